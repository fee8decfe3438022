"""Times of an expert by lane, rows and machine, with a cost model whose times are given."""

from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.smoe import components
from moebench.substrate.machines.protocol import Lane


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expert takes 10 ns a row on the host beyond 30, 7 on the device, and 100 to load."""

    def expert(lane: Lane, rows: int, machine: str = "", model: str = "") -> int:
        return {Lane.HOST: max(30, 10 * rows), Lane.DEVICE: 7}[lane]

    monkeypatch.setattr(components, "expert_ns", expert)
    monkeypatch.setattr(components, "load_ns", lambda machine="", model="": 100)


def test_rows_and_lanes(evidence: Evidence) -> None:
    flat = components.over_one_row(Lane.HOST, 3)(evidence)
    assert flat.value == 1
    assert components.over_one_row(Lane.HOST, 8)(evidence).value == pytest.approx(8 / 3, rel=1e-5)
    assert components.over_one_row(Lane.DEVICE, 8)(evidence).value == 1
    assert flat.conditions == "qwen2-57b-a14b, 8 cores; exact: what the cost model charges"
    six = components.over_one_row(Lane.HOST, 8, "a6000")(evidence)
    assert six.conditions.startswith("qwen2-57b-a14b, 6 cores; ")
    load = components.host_over_load()(evidence)
    assert (load.value, load.conditions) == (
        0.3, "qwen2-57b-a14b on a6000; exact: what the cost model charges",
    )  # fmt: skip
    host = components.over_lane(Lane.HOST)(evidence)
    assert host.samples == pytest.approx([30 / 7] * 3, rel=1e-4)
    assert (host.over, host.conditions) == (
        "models",
        "deepseek-moe-16b, xverse-moe-a4.2b, qwen2-57b-a14b on a6000, as the cost model charges",
    )
    assert components.over_lane(Lane.HOST, Lane.H2D)(evidence).samples == (0.3,) * 3


def test_prompts_whose_experts_are_slower_on_the_host(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eleven rows take longer than a load; with 8 of 64 experts 84 tokens are 10.5 rows, or ten."""
    assert [components.rows_of(n, "qwen2-57b-a14b") for n in (1, 12, 84, 85)] == [1, 2, 10, 11]
    assert components.slower_from("qwen2-57b-a14b", "a6000") == 85
    doubled = components.prompt_over(512, 256)(evidence)
    assert (doubled.value, doubled.conditions) == (
        2, "qwen2-57b-a14b on a6000@smoe-8core; exact: what the cost model charges",
    )  # fmt: skip
    limits = {"deepseek-moe-16b": 5, "qwen2-57b-a14b": 9}
    monkeypatch.setattr(components, "slower_from", lambda model, machine: limits[model])
    found = components.longest_limit(evidence, ("S1", "S3"))
    assert found.samples == (9,)
    assert found.conditions == (
        "exact: a largest value; S1 5, S3 9 tokens, as the cost models charge"
    )


def test_the_badge_is_the_lowest_of_what_prices_a_lane() -> None:
    def number(badge: str) -> Any:
        return SimpleNamespace(badge=badge)

    names = ("bandwidth", "small_read_efficiency", "large_read_efficiency", "tensor_efficiency")
    hosts = ("gemv_bandwidth", "peak_fp32", "gemm_efficiency", "handoff")
    for low in (*names, *hosts):
        profile: Any = SimpleNamespace(
            gpu=SimpleNamespace(**{name: number("measured") for name in names}),
            host=SimpleNamespace(**{name: number("measured") for name in hosts}),
        )
        part = profile.gpu if low in names else profile.host
        setattr(part, low, number("datasheet"))
        device = components.charged_badge(profile, Lane.DEVICE)
        host = components.charged_badge(profile, Lane.HOST)
        expected = ("datasheet", "measured") if low in names else ("measured", "datasheet")
        assert (device, host) == expected, low
