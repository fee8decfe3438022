"""What binds an answer, with a made-up cost of a decoded token."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.advise import binding
from moebench.harness.published.case import case_of
from moebench.harness.published.constants import COMPONENTS
from moebench.harness.published.rows import Row
from tests.harness.published.made import SAID


def row(fits: str = "fits") -> Any:
    return SimpleNamespace(
        fits=fits, engine="llama.cpp", configuration="c", binds="", shares={}
    )  # fmt: skip


def bound(monkeypatch: pytest.MonkeyPatch, case: Any, times: Any) -> Any:
    """Bind an answer whose token takes the sum of some times by what they depend on."""
    monkeypatch.setattr(binding, "case_for", lambda question, rules, configuration: case)
    monkeypatch.setattr(binding, "fitted", lambda: SimpleNamespace(all_rows=COMPONENTS))
    monkeypatch.setattr(binding, "rate_of", lambda one, values, phase: 1 / times(one, values))
    found: Any = row()
    question: Any = None
    binding.bind(question, found)
    return found


def test_shares_are_of_the_time_that_a_faster_resource_saves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 10 ms, 6 are reads of the host, 3 those of the device, and 1 is none of both."""
    case = case_of(Row(**SAID))
    reads, device = (number.value for number in
                     (case.profile.host.gemv_bandwidth, case.profile.gpu.bandwidth))  # fmt: skip

    def times(one: Any, values: Any) -> float:
        profile = one.profile
        host = 6 * reads / profile.host.gemv_bandwidth.value
        return host + 3 * device / profile.gpu.bandwidth.value + 1

    found = bound(monkeypatch, case, times)
    assert found.shares == {
        "memory of the host": 0.6, "cores of the host": 0.0, "memory of the device": 0.3,
        "launches and hand-overs": 0.0,
    }  # fmt: skip
    assert found.binds == "memory of the host"


def test_launches_and_hand_overs_are_made_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(Row(**SAID))
    names = ("launch ggml", "launch python", "handoff us")

    def times(one: Any, values: Any) -> float:
        return sum(values[name] / COMPONENTS[name] for name in names) + 1

    found = bound(monkeypatch, case, times)
    assert found.shares["launches and hand-overs"] == 0.75
    assert found.binds == "launches and hand-overs"


def test_a_resource_whose_haste_costs_time_has_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(Row(**SAID))
    found = bound(monkeypatch, case, lambda one, values: 1.0 + (one is not case))
    assert set(found.shares.values()) == {0.0}


def test_resources_are_those_that_a_token_uses() -> None:
    case = case_of(Row(**SAID))

    def named(one: Any) -> list[str]:
        return [name for name, _ in binding._faster(one, dict(COMPONENTS))]

    host = ["memory of the host", "cores of the host"]
    device = ["memory of the device", "launches and hand-overs"]
    assert named(case) == [*host, *device]
    assert named(replace(case, first=0)) == device
    alone = case_of(Row(**SAID | {"n_gpu": 0, "gpu": ""}))
    assert named(alone) == host
    over_link = replace(case, engine=case.engine._replace(misses="link"))
    assert named(over_link) == [*device, "link"]
    assert named(replace(over_link, first=0)) == device
    no_cores = case.profile.host.model_copy(update={"core_rate": None})
    profile = case.profile.model_copy(update={"host": no_cores})
    assert named(replace(case, profile=profile)) == [host[0], *device]
    (changed, _), *_ = [one for _, one in binding._faster(over_link, dict(COMPONENTS))][2:]
    for part, name in (("link", "pinned_h2d"), ("host", "gemv_bandwidth")):
        before, after = (getattr(getattr(one.profile, part), name) for one in (case, changed))
        assert after.value == pytest.approx(1.1 * before.value)
        assert after.range is None


def test_a_configuration_that_reads_a_file_is_bound_by_the_disk() -> None:
    found: Any = row("pages")
    question: Any = None
    binding.bind(question, found)
    assert (found.binds, found.shares) == ("disk", {})
