"""Intervals and badges: the rules by hand, and replays against real runs on a moved profile."""

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from moebench.harness.one_run import prepare, run
from moebench.harness.run import interval
from moebench.harness.run.interval import Effect, badge_of, combined, effects_on
from moebench.harness.run.live import LiveSession
from moebench.harness.run.rules import resolve
from moebench.harness.run.session import Session
from moebench.reports.sections.fidelity import TABLES
from moebench.substrate.errors import NotRecordedError
from moebench.substrate.machines.profile import MACHINES, load_profile
from moebench.substrate.machines.profile_ranges import Uncertain, uncertain
from moebench.substrate.machines.quantity import Bandwidth
from tests.harness import commands
from tests.harness.commands import call, refused

pytestmark = pytest.mark.usefixtures("tiny_models")

PROFILE = load_profile("a6000")


def effect(badge: str = "estimate", **changes: tuple[float, float]) -> Effect:
    number = Bandwidth.model_validate(
        {"value": 20.0, "unit": "GB/s", "source": "hand", "badge": badge}
    )
    return Effect(changes, Uncertain("link.pinned_h2d", number, 16, 24))


def session_of(system: str, **given: Any) -> Session:
    sizes = {"prompts": 1, "new_tokens": 3, "workload": "arithmetic"}
    return prepare(resolve(None, system=system, setting="S3", **sizes | given), None)


# ------------------------------------------------------------------------- rules


def test_independent_numbers_add_up_as_roots_of_squares() -> None:
    slow, fast = (0.03, -0.06), (-0.08, 0.04)
    ones = [effect(tpot_ms=slow), effect(tpot_ms=fast), effect(ttft_ms=(0.5, -0.5))]
    assert combined(ones, "tpot_ms") == pytest.approx((0.10, 0.05))
    assert combined([effect(tpot_ms=(0.1, 0.2))], "tpot_ms") == (0.0, 0.2)
    assert combined([], "tpot_ms") == (0.0, 0.0)


@pytest.mark.parametrize(
    ("effects", "badge"),
    [
        ([], "datasheet"),
        ([effect(tpot_ms=(0.03, -0.04), ttft_ms=(0.0, 0.0))], "datasheet"),
        ([effect(tpot_ms=(0.06, 0.0))], "estimate"),
        ([effect(tpot_ms=(0.0, 0.0), ttft_ms=(0.0, -0.06))], "estimate"),
        # Together more than a twentieth, though neither is alone.
        ([effect(tpot_ms=(0.04, 0.0)), effect(tpot_ms=(0.04, 0.0))], "estimate"),
        ([effect("datasheet", tpot_ms=(0.5, -0.5)), effect(tpot_ms=(0.01, 0.0))], "datasheet"),
    ],
)
def test_a_run_is_datasheet_where_estimates_hardly_move_it(
    effects: list[Effect], badge: str
) -> None:
    assert badge_of(PROFILE, effects) == badge


def test_a_calibrated_profile_stays_calibrated() -> None:
    profile = load_profile(str(next(TABLES.glob("*.yaml"))))
    assert badge_of(profile, [effect("calibrated", tpot_ms=(0.5, -0.5))]) == "calibrated"
    # Numbers that few runs use may be estimates, and then they count in these.
    assert badge_of(profile, [effect("estimate", tpot_ms=(0.5, -0.5))]) == "estimate"


def test_shares_are_applied_to_the_runs_own_figures() -> None:
    metrics = {
        "tpot_ms": {"mean": 100.0}, "ttft_ms": {"mean": 200.0}, "e2e_ms": 1000.0,
        "tokens_per_s": 9.0,
    }  # fmt: skip
    both = effect(tpot_ms=(0.10, -0.05), ttft_ms=(0.50, -0.25))
    found = interval.interval(metrics, [both, effect(tpot_ms=(0.0, 0.0), ttft_ms=(0.0, 0.0))])
    assert found["tpot_ms"] == {"low": 95.0, "high": 110.0}
    assert found["ttft_ms"] == {"low": 150.0, "high": 300.0}
    # A fifth of the time is prefill: .2 · .5 + .8 · .1 = .18 and .2 · .25 + .8 · .05 = .09.
    assert found["e2e_ms"] == {"low": 910.0, "high": 1180.0}
    assert found["tokens_per_s"] == {"low": round(9 / 1.18, 4), "high": round(9 / 0.91, 4)}
    (named,) = found["fields"]
    assert named == {
        "field": "link.pinned_h2d", "low": 16, "high": 24, "stated": False,
        "tpot_ms": [10.0, -5.0], "ttft_ms": [50.0, -25.0],
    }  # fmt: skip


def test_a_latency_that_a_run_lacks_has_no_ends() -> None:
    metrics = {"tpot_ms": None, "ttft_ms": {"mean": 200.0}, "e2e_ms": 200.0, "tokens_per_s": 5.0}
    found = interval.interval(metrics, [effect(ttft_ms=(0.10, -0.10))])
    assert set(found) == {"ttft_ms", "e2e_ms", "tokens_per_s", "fields", "order"}
    assert found["e2e_ms"] == {"low": 180.0, "high": 220.0}


def test_another_order_counts_like_one_more_number() -> None:
    metrics = {"tpot_ms": {"mean": 100.0}, "ttft_ms": None, "e2e_ms": None}
    found = interval.interval(metrics, [effect(tpot_ms=(-0.03, 0.06))],
                              interval.Changes({"tpot_ms": (-0.04, 0.08)}))  # fmt: skip
    assert found["tpot_ms"] == {"low": 95.0, "high": 110.0}
    assert found["order"] == {"tpot_ms": [-4.0, 8.0]}
    alone = interval.interval(metrics, [effect(tpot_ms=(-0.03, 0.06))])
    assert alone["order"] is None
    assert alone["tpot_ms"] == {"low": 97.0, "high": 106.0}


@pytest.mark.parametrize(("batches", "number"), [(2, 1), (3, 5), (4, 4), (8, 8)])
def test_other_orders_are_permutations_of_the_batches(batches: int, number: int) -> None:
    found = interval.orders(batches)
    assert len(set(found)) == len(found) == number
    assert all(sorted(order) == list(range(batches)) for order in found)
    assert tuple(range(batches)) not in found
    assert interval.orders(1) == interval.orders(9) == []


# ------------------------------------------------------------------------- replays


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "given"),
    [
        ("moe-ondemand", {}),
        ("moe-ondemand", {"batch": 2, "prompts": 2}),
        ("smoe", {}),
        ("daop", {}),
        ("duoserve", {"overrides": {"prefetch.epochs": "1"}}),
        ("flashmoe", {"overrides": {"evict.epochs": "1"}}),
    ],
)
def test_a_replay_takes_as_long_as_the_run_and_so_does_the_next(
    system: str, given: dict[str, Any], tmp_path: Path
) -> None:
    session = session_of(system, **given)
    metrics = run(session, tmp_path).document["metrics"]
    replay = interval._Replayer(session, interval.recorded(session, tmp_path, 3))
    for _ in range(2):
        found = replay(load_profile("a6000", session.spec.software))
        assert found["ttft_ms"] / 1e6 == pytest.approx(metrics["ttft_ms"]["mean"])
        assert found["tpot_ms"] / 1e6 == pytest.approx(metrics["tpot_ms"]["mean"])


@pytest.mark.slow
def test_an_effect_is_that_of_a_run_on_the_moved_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = "link.pinned_h2d"
    found = {one.number.field: one for one in effects_on(session_of("moe-ondemand"), tmp_path)}
    (number,) = [one for one in uncertain(PROFILE) if one.field == field]
    data = yaml.safe_load((MACHINES / "a6000.yaml").read_text())
    data["link"]["pinned_h2d"] |= {"value": number.high}
    box = tmp_path / "box.yaml"
    box.write_text(yaml.safe_dump(data))
    before = run(session_of("moe-ondemand"), tmp_path).document["metrics"]
    on_box = session_of("moe-ondemand", machine=str(box), device_memory_gib=41.56)  # as S3 has it
    after = run(on_box, tmp_path).document["metrics"]
    for latency in ("tpot_ms", "ttft_ms"):
        change = after[latency]["mean"] / before[latency]["mean"] - 1
        assert change < -0.01
        assert found[field].changes[latency][1] == pytest.approx(change, abs=1e-6)


@pytest.mark.slow
def test_a_replayed_trace_has_an_interval_too(tmp_path: Path) -> None:
    given = {"routing": "drawn", "prompts": 2, "workload": "arithmetic"}
    session = prepare(resolve(None, system="smoe", setting="S3", new_tokens=3, **given), None)
    effects = effects_on(session, tmp_path)
    assert combined(effects, "tpot_ms")[1] > 0


@pytest.mark.parametrize(("prompts", "batch"), [(1, 1), (2, 2), (9, 1)])
def test_a_run_of_one_batch_or_of_many_has_no_other_order(
    prompts: int, batch: int, tmp_path: Path
) -> None:
    session = session_of("moe-ondemand", prompts=prompts, batch=batch)
    assert interval.effect_of_order(session, tmp_path) is None


def test_the_change_of_order_is_that_of_a_run_in_the_other_order(tmp_path: Path) -> None:
    given = {"prompts": 2, "new_tokens": 8, "alpha": 0.0, "overrides": {"prefetch": "none"}}

    def run_of(swapped: bool) -> dict[str, float]:
        session = session_of("smoe", **given)
        assert isinstance(session, LiveSession)
        if swapped:
            session = replace(session, questions=session.questions[::-1])
        metrics = run(session, tmp_path).document["metrics"]
        return {name: metrics[name]["mean"] for name in ("tpot_ms", "ttft_ms")}

    before, after = run_of(swapped=False), run_of(swapped=True)
    found = interval.effect_of_order(session_of("smoe", **given), tmp_path)
    assert found is not None
    changes = {name: after[name] / before[name] - 1 for name in found.changes}
    assert any(abs(change) > 1e-5 for change in changes.values())
    for name, ends in found.changes.items():
        assert ends == pytest.approx((min(0, changes[name]), max(0, changes[name])), abs=1e-8)


def test_an_order_that_asks_for_what_was_not_recorded_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = interval._Replayer.__call__

    def without_others(self: Any, profile: Any, order: Any = None) -> dict[str, float]:
        if order is not None:
            raise NotRecordedError("the trace holds no predictions")
        return replay(self, profile, order)

    monkeypatch.setattr(interval._Replayer, "__call__", without_others)
    session = session_of("moe-ondemand", prompts=2)
    assert interval.effect_of_order(session, tmp_path) is None


# ------------------------------------------------------------------------- commands


@pytest.mark.slow
def test_a_run_says_its_interval_and_computes_it_once(
    monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    without = commands.run("smoe")
    assert (without["interval"], without["badge"]) == (None, "estimate")
    command = ("run", "--system", "smoe", *commands.SMALL)
    document = call(*command, "--json").json
    assert document["run_id"] == without["run_id"]
    assert document["metrics"] == without["metrics"]
    for latency in ("tpot_ms", "ttft_ms"):
        ends = document["interval"][latency]
        assert ends["low"] < document["metrics"][latency]["mean"] < ends["high"]
    monkeypatch.setattr(interval, "effects_on", None)
    assert commands.run("smoe") == document
    shown = call(*command)
    tpot = next(line for line in shown.out.splitlines() if line.startswith("TPOT\t"))
    assert re.search(r" ms (± \S+|\+\S+ −\S+) \[(\w+)\]", tpot)
    assert f"[{document['badge']}]" in tpot
    assert "± over the ranges of the profile's numbers, most by " in shown.err


def test_errors_of_published_rates_widen_an_interval(capsys) -> None:
    """80 % within a factor of 1.5: from two thirds of a latency to one and a half."""
    metrics = {"tpot_ms": {"mean": 30.0}, "ttft_ms": {"mean": 900.0}, "e2e_ms": None}
    known = {"figures": 20, "machines": 5, "median_error": 0.17, "within_80": 1.5}
    found = interval.interval(metrics, [], published={"decode": known})
    assert found["tpot_ms"] == {"low": 20, "high": 45}
    assert found["ttft_ms"] == {"low": 900, "high": 900}
    assert found["checked"] == {"decode": known}
    assert "checked" not in interval.interval(metrics, [])
    other = interval.Changes({"tpot_ms": (-0.25, 0.25)})
    both = interval.interval(metrics, [], order=other, published={"decode": known})["tpot_ms"]
    assert both["high"] == pytest.approx(30 * (1 + math.hypot(0.25, 0.5)))


@pytest.mark.slow
def test_a_checked_run_says_how_far_published_rates_are_off(here: Path) -> None:
    command = ("run", "--system", "llamacpp", "--model", "qwen3-30b-a3b", "--software", "ggml",
               "--machine", "rtx-3090+ryzen-7-7700", "--routing", "drawn", "--quant", "q4_k_m",
               "--prompts", "1", "--new-tokens", "3", "--device-memory", "12GB")  # fmt: skip
    shown = call(*command)
    assert shown.code == 0, shown.err
    assert "[estimate, checked]" in shown.out
    assert re.search(
        r"checked: \d+ published decode rates of such runs on \d+ other machines", shown.err
    )


@pytest.mark.slow
def test_sensitivity_names_the_numbers_that_move_a_run_most(here: Path) -> None:
    options = ("--system", "moe-ondemand", "--setting", "S3", "--workload", "arithmetic")
    found = call("machines", "sensitivity", *options, "--tokens", "3", "--json").json
    sizes = [max(map(abs, one["tpot_ms"])) for one in found["fields"]]
    assert sizes == sorted(sizes, reverse=True)
    assert found["fields"][0]["field"].startswith("link.")
    shown = call("machines", "sensitivity", *options, "--tokens", "3")
    header, first, *_ = shown.out.splitlines()
    assert header.split("\t")[:5] == ["field", "value", "unit", "low", "high"]
    assert first.split("\t")[0] == found["fields"][0]["field"]
    assert "all together: TPOT −" in shown.err


def test_this_computer_has_no_profile_to_move() -> None:
    line = refused("machines", "sensitivity", "--system", "smoe", "--setting", "S3",
                   "--machine", "local")  # fmt: skip
    assert "this computer is measured and has no profile" in line


# ------------------------------------------------------------------------- by hand


METRICS: dict[str, Any] = {"tpot_ms": {"mean": 100.0}, "ttft_ms": {"mean": 200.0},
                           "e2e_ms": 1000.0, "tokens_per_s": 9.0}  # fmt: skip


def named(name: str, **changes: tuple[float, float]) -> Effect:
    one = effect(**changes)
    return replace(one, number=replace(one.number, field=name))


def test_numbers_are_named_from_the_one_that_moves_a_latency_most() -> None:
    """A tenth of a percent is named, less is not; of ten, the eight largest are."""
    sizes = {f"n{size}": size / 1000 for size in (1, 30, 5, 70, 20, 10, 60, 2, 40, 50)}
    effects = [named(name, tpot_ms=(-size, size / 2)) for name, size in sizes.items()]
    fields = interval.interval(METRICS, effects)["fields"]
    assert [one["field"] for one in fields] == [
        "n70", "n60", "n50", "n40", "n30", "n20", "n10", "n5",
    ]  # fmt: skip
    few = [named("least", tpot_ms=(0.0, 0.001)), named("less", tpot_ms=(0.0, 0.00099)),
           named("prefill", ttft_ms=(-0.5, 0.0))]  # fmt: skip
    assert [one["field"] for one in interval.interval(METRICS, few)["fields"]] == [
        "prefill", "least",
    ]  # fmt: skip
    alone = METRICS | {"ttft_ms": None}
    assert [one["field"] for one in interval.interval(alone, few)["fields"]] == ["least"]


def test_a_law_of_routing_counts_like_one_more_number() -> None:
    law = interval.Changes({"tpot_ms": (-0.04, 0.08)})
    found = interval.interval(METRICS, [effect(tpot_ms=(-0.03, 0.06))], law=law)
    assert found["tpot_ms"] == {"low": 95.0, "high": 110.0}
    assert found["routing"] == {"tpot_ms": [-4.0, 8.0]}
    assert "routing" not in interval.interval(METRICS, [])


def test_published_errors_of_both_phases_widen_the_whole_time() -> None:
    """A fifth is prefill, within 2: ±.5 and 1; the rest within 1.25: -.2 and +.25."""
    known = {"prefill": {"within_80": 2.0}, "decode": {"within_80": 1.25}}
    found = interval.interval(METRICS, [], published=known)
    assert found["ttft_ms"] == {"low": 100, "high": 400}
    assert found["tpot_ms"] == {"low": 80, "high": 125}
    down, up = 0.2 * 0.5 + 0.8 * 0.2, 0.2 * 1 + 0.8 * 0.25
    assert found["e2e_ms"] == {"low": pytest.approx(1000 * (1 - down)),
                               "high": pytest.approx(1000 * (1 + up))}  # fmt: skip
    assert found["tokens_per_s"] == {"low": round(9 / (1 + up), 4),
                                     "high": round(9 / (1 - down), 4)}  # fmt: skip


def test_a_time_falls_by_no_more_than_all_of_it() -> None:
    huge = [effect(tpot_ms=(-0.9, 3.0), ttft_ms=(-0.9, 3.0))] * 2
    assert combined(huge, "tpot_ms") == (1.0, pytest.approx(math.hypot(3, 3)))
    found = interval.interval(METRICS, huge)
    assert found["tpot_ms"]["low"] == 0
    assert found["e2e_ms"]["low"] == 0
    assert found["tokens_per_s"]["high"] is None


def test_figures_are_rounded_to_their_digits() -> None:
    metrics = {"tpot_ms": {"mean": 1 / 3}, "ttft_ms": {"mean": 2 / 3}, "e2e_ms": 10 / 3,
               "tokens_per_s": 1 / 3}  # fmt: skip
    found = interval.interval(metrics, [effect(tpot_ms=(-0.01, 0.012345), ttft_ms=(0.0, 0.0))])
    assert found["tpot_ms"] == {"low": 0.33, "high": 0.337448}
    assert found["ttft_ms"] == {"low": 0.666667, "high": 0.666667}
    low, high = 10 / 3 * (1 - 0.8 * 0.01), 10 / 3 * (1 + 0.8 * 0.012345)
    assert found["e2e_ms"] == {"low": round(low, 6), "high": round(high, 6)}
    assert found["tokens_per_s"] == {"low": round(10 / 9 / high, 4), "high": round(10 / 9 / low, 4)}
    assert found["fields"][0]["tpot_ms"] == [-1.0, 1.23]


def test_a_law_that_moves_a_latency_makes_a_run_an_estimate() -> None:
    datasheet = effect("datasheet", tpot_ms=(0.5, -0.5))
    assert badge_of(PROFILE, [datasheet], interval.Changes({"ttft_ms": (0.0, 0.06)})) == "estimate"
    assert badge_of(PROFILE, [datasheet], interval.Changes({"ttft_ms": (-0.05, 0.05)})) == (
        "datasheet"
    )


class Replays:
    """Replaces replays: a latency by the moved number, and what was recorded for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Any] = []
        self.takes: dict[Any, dict[str, float]] = {}
        replays = self

        class Replayer:
            def __init__(self, session: Any, piece: Any) -> None:
                self.piece = piece

            def __call__(self, profile: Any, order: Any = None) -> dict[str, float]:
                replays.asked.append((self.piece, profile, order))
                return replays.takes[profile if order is None else order]

        monkeypatch.setattr(interval, "_Replayer", Replayer)
        monkeypatch.setattr(interval, "recorded", lambda *given: ("piece", *given[2:]))
        monkeypatch.setattr(interval, "load_profile", lambda *given: "profile")
        monkeypatch.setattr(interval, "moved", lambda profile, field, value: (field, value))


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Replays:
    return Replays(monkeypatch)


def of(**spec: Any) -> Any:
    base = {"machine": "m", "software": "s", "quant": None, "precision": "bf16",
            "expert_dtype": None, "prompts": 4, "batch": 2}  # fmt: skip
    return SimpleNamespace(spec=SimpleNamespace(**base | spec),
                           system=SimpleNamespace(expert_precision=None))  # fmt: skip


QUANTISED = interval.OF_QUANTISED[0]


@pytest.mark.parametrize(
    ("spec", "own", "names"),
    [
        ({}, None, ["link", "host"]), ({}, "4bit", ["link", QUANTISED, "host"]),
        ({"quant": "q4_0"}, None, ["link", QUANTISED, "host"]),
        ({"expert_dtype": "int8"}, None, ["link", QUANTISED, "host"]),
        ({"precision": "int4"}, None, ["link", QUANTISED, "host"]), ({}, "bf16", ["link", "host"]),
    ],
)  # fmt: skip
def test_every_number_is_moved_to_both_ends(
    spec: dict[str, Any], own: str | None, names: list[str], replays: Replays,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """From 10 ms to 5 and 12; numbers of quantised weights move nothing else."""
    ends = {name: replace(effect().number, field=name, low=1.0, high=2.0)
            for name in ("link", QUANTISED, "host")}  # fmt: skip
    monkeypatch.setattr(interval, "uncertain", lambda profile: [*ends.values()])
    replays.takes = {"profile": {"tpot_ms": 10.0, "ttft_ms": 40.0}}
    for name in ends:
        replays.takes |= {(name, 1.0): {"tpot_ms": 5.0, "ttft_ms": 60.0},
                          (name, 2.0): {"tpot_ms": 12.0, "ttft_ms": 40.0}}  # fmt: skip
    session = of(**spec)
    session.system.expert_precision = own
    found = effects_on(session, Path("s"))
    assert [one.number for one in found] == [ends[name] for name in names]
    for one in found:
        assert one.changes["tpot_ms"] == pytest.approx((-0.5, 0.2))
        assert one.changes["ttft_ms"] == pytest.approx((0.5, 0.0))
    assert replays.asked[0] == (("piece", 5), "profile", None)


def test_the_largest_changes_of_other_orders_count(replays: Replays) -> None:
    """Three batches have five other orders, in which decode is slower and the prefill faster."""
    plain = {"tpot_ms": 10.0, "ttft_ms": 10.0}
    replays.takes = {"profile": plain} | {
        order: {"tpot_ms": 10.0 + n, "ttft_ms": 10.0 - n}
        for n, order in enumerate(interval.orders(3))
    }
    found = interval.effect_of_order(of(prompts=5), Path("s"))
    assert found is not None
    assert found.changes == {"tpot_ms": (0.0, pytest.approx(0.4)),
                             "ttft_ms": (pytest.approx(-0.4), 0.0)}  # fmt: skip
    assert [order for *_, order in replays.asked] == [None, *interval.orders(3)]
    assert {piece for piece, *_ in replays.asked} == {("piece", 32, 3)}
    for prompts, batch in ((2, 2), (9, 1)):
        assert interval.effect_of_order(of(prompts=prompts, batch=batch), Path("s")) is None
