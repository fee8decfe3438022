"""Selection and averaging of figures from stored runs."""

from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.results.store import Store
from moebench.substrate.choices import DEFAULT_SOFTWARE
from moebench.substrate.errors import InputError
from moebench.substrate.machines.profile import load_profile, machine_with
from moebench.substrate.machines.profile_ranges import number_at, uncertain


def run(
    system: str, seed: int, tpot: float | None, badge: str = "estimate", **spec: Any
) -> dict[str, Any]:
    return {
        "run_id": f"{system}-{seed}",
        "spec": {"system": system, "variant": "published", "seed": seed, "overrides": {}} | spec,
        "badge": badge,
        "metrics": {"tpot_ms": {"mean": tpot}},
    }


RUNS = Runs(
    [
        run("smoe", 0, 60.0, overrides={"alpha": "0.3"}),
        run("moe-infinity", 0, 90.0, "datasheet, no ranges"),
        run("smoe", 1, 62.0, overrides={"alpha": "0.3", "evict": "lru"}),
        run("moe-infinity", 1, 100.0, "measured", variant="shipped"),
    ]
)
TPOT = "metrics.tpot_ms.mean"


def test_runs_are_chosen_by_what_their_specs_say() -> None:
    assert RUNS.of(system="smoe").ids == ("smoe-0", "smoe-1")
    assert RUNS.of(system="smoe", seed=1).ids == ("smoe-1",)
    assert RUNS.of(seed=(0, 7)).ids == ("smoe-0", "moe-infinity-0")
    assert RUNS.of(seed=2).ids == ()


def test_a_variant_is_part_of_a_systems_name() -> None:
    assert RUNS.of(system="moe-infinity").ids == ("moe-infinity-0",)
    assert RUNS.of(system="moe-infinity (shipped)").ids == ("moe-infinity-1",)


def test_options_are_compared_without_alpha() -> None:
    assert RUNS.of(set={}, system="smoe").ids == ("smoe-0",)
    assert RUNS.of(set={"evict": "lru"}).ids == ("smoe-1",)


def test_groups_come_in_the_order_of_their_first_run() -> None:
    assert {seed: runs.ids for seed, runs in RUNS.by("seed").items()} == {
        0: ("smoe-0", "moe-infinity-0"),
        1: ("smoe-1", "moe-infinity-1"),
    }
    assert list(RUNS.by("system")) == ["smoe", "moe-infinity", "moe-infinity (shipped)"]


def test_groups_of_several_fields_are_nested() -> None:
    found = RUNS.groups("system", "seed")
    assert {key: runs.ids for key, runs in found.items()} == {
        ("smoe", 0): ("smoe-0",), ("smoe", 1): ("smoe-1",),
        ("moe-infinity", 0): ("moe-infinity-0",),
        ("moe-infinity (shipped)", 1): ("moe-infinity-1",),
    }  # fmt: skip
    assert RUNS.groups()[()].ids == RUNS.ids


def test_runs_by_name_are_of_every_variant() -> None:
    assert RUNS.named("moe-infinity").ids == ("moe-infinity-0", "moe-infinity-1")
    assert RUNS.named("smoe", "moe-infinity").ids == RUNS.ids


def test_a_mean_is_over_all_runs() -> None:
    assert RUNS.values(TPOT) == [60, 90, 62, 100]
    assert RUNS.mean(TPOT) == 78


def test_a_figure_that_is_not_there_is_missing_evidence() -> None:
    with pytest.raises(MissingEvidenceError, match=r"no run has metrics\.tpot_ms\.mean"):
        RUNS.of(system="daop").mean(TPOT)
    with pytest.raises(MissingEvidenceError, match=r"a run lacks metrics\.tpot_ms\.mean"):
        Runs([*RUNS, run("daop", 0, None)]).mean(TPOT)
    with pytest.raises(MissingEvidenceError, match=r"a run lacks metrics\.energy_j"):
        RUNS.mean("metrics.energy_j")


def test_the_badge_is_the_lowest() -> None:
    assert RUNS.badge == "estimate"
    assert RUNS.of(system="moe-infinity").badge == "datasheet"
    assert RUNS.of(system="moe-infinity (shipped)").badge == "measured"


def test_a_figure_of_each_seed_and_its_interval() -> None:
    def change(runs: Runs) -> float:
        return runs.of(system="smoe").mean(TPOT) / runs.of(seed=(0, 1)).values(TPOT)[1]

    found = RUNS.per_seed(change, "one setting")
    samples = [60 / 90, 62 / 100]
    assert found.samples == pytest.approx(samples, rel=1e-5)
    low, high = stats.t.interval(0.95, 1, sum(samples) / 2, stats.sem(samples))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-4)
    assert (found.badge, found.conditions) == ("estimate", "one setting")


def test_evidence_that_is_changed_or_moved_is_quick_and_its_own(tmp_path: Path) -> None:
    of = Evidence(Store(tmp_path), None, tmp_path, quick=False)
    of._seen.append("a")
    of._jobs["x"] = []
    of._read["x"] = Runs([])
    changed, moved = of.changed({"software": "lean"}), of.moved({"link.pinned_h2d": 1.0})
    assert (changed.quick, changed.changes, changed.numbers) == (True, {"software": "lean"}, {})
    assert (moved.quick, moved.changes, moved.numbers) == (True, {}, {"link.pinned_h2d": 1.0})
    again = changed.moved({"link.pinned_h2d": 0.5})
    assert (again.changes, again.numbers) == ({"software": "lean"}, {"link.pinned_h2d": 0.5})
    for one in (changed, moved):
        assert (one._jobs, one._read, one._seen) == ({}, {}, [])
        assert one.planned is of.planned
        assert one._jobs is not of._jobs
    watched = of.watched()
    assert (watched.used, watched.quick, watched._jobs) == ((), False, of._jobs)
    of._seen.extend(["b", "a"])
    assert of.used == ("a", "b")


def test_a_machine_has_the_numbers_of_their_places(tmp_path: Path) -> None:
    """Places whose value is the profile's own leave its name."""
    of = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    assert of.machine("a6000") == "a6000"
    assert of.moved({"no.such": 1.0}).machine("a6000") == "a6000"
    known = uncertain(load_profile("a6000", DEFAULT_SOFTWARE))
    others = 0
    for number in known:
        assert of.moved({number.field: 0.0}).machine("a6000") == "a6000"
        for place in (-1.0, 1.0):
            value = number_at(number, place)
            moved = of.moved({number.field: place}).machine("a6000")
            own = value == number.number.value
            assert moved == machine_with("a6000", {} if own else {number.field: value})
            others += moved != "a6000"
    assert others > len(known)


def test_recordings_need_a_data_folder(tmp_path: Path) -> None:
    without = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    with pytest.raises(MissingEvidenceError, match="recordings lie in a data folder; give --data-"):
        without.recordings("olmoe-1b-7b")
    with pytest.raises(InputError, match="no recorded routing of olmoe-1b-7b"):
        Evidence(Store(tmp_path), tmp_path, tmp_path, quick=True).recordings("olmoe-1b-7b")
