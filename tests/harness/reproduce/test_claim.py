"""Bands and verdicts of claims, and experiments as sweeps."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.reproduce.bands import (
    Bands,
    at_least,
    at_most,
    change,
    every,
    half,
    half_to_twice,
    near,
    quarter,
    sign,
    within,
)
from moebench.harness.reproduce.claim import Claim, Headline, paper_claims
from moebench.harness.reproduce.evidence import Experiment
from moebench.harness.sweep.plan import expand
from moebench.results.claims import Band, Measured, Verdict

finite = st.floats(-1e6, 1e6)


def claim(reproduced: Band | None, direction: Band | None = None) -> Claim:
    return Claim(
        "S-1", "Fig. 11", "TPOT against the best baseline", -24, "%",
        Bands(reproduced, direction, "ten points around"),
    )  # fmt: skip


# ----------------------------------------------------------------------------- bands


@pytest.mark.parametrize(
    ("band", "inside", "outside"),
    [
        (Band(low=-34, high=-14), [-34, -24, -14], [-34.01, -13.99, 24]),
        (Band(low=0), [0, 1e9], [-1e-9]),
        (Band(high=0), [0, -1e9], [1e-9]),
        (Band(), [-1e9, 0, 1e9], []),
    ],
)
def test_both_ends_of_a_band_are_in_it(
    band: Band, inside: list[float], outside: list[float]
) -> None:
    assert all(band.holds(value) for value in inside)
    assert not any(band.holds(value) for value in outside)


def test_a_band_in_words() -> None:
    assert [str(Band(low=-34, high=-14.5)), str(Band(low=0.5)), str(Band(high=0))] == [
        "-34 to -14.5", "≥ 0.5", "≤ 0",
    ]  # fmt: skip


# ----------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (-24, Verdict.REPRODUCED), (-14, Verdict.REPRODUCED), (-13.9, Verdict.DIRECTION_ONLY),
        (-60, Verdict.DIRECTION_ONLY), (0, Verdict.DIRECTION_ONLY), (0.1, Verdict.NOT_REPRODUCED),
    ],
)  # fmt: skip
def test_the_first_band_that_holds_decides(value: float, verdict: Verdict) -> None:
    one = claim(Band(low=-34, high=-14), Band(high=0))
    assert one.judge(value) is verdict


def test_claim_with_one_band_has_no_intermediate_verdict() -> None:
    one = claim(Band(low=-34, high=-14))
    assert one.judge(-13.9) is Verdict.NOT_REPRODUCED


def test_the_value_decides_and_not_its_interval() -> None:
    wide = Measured.of([-60, 12], "estimate")
    assert wide.low is not None
    assert wide.low < -34
    assert claim(Band(low=-34, high=-14), Band(high=0)).judge(wide.value) is Verdict.REPRODUCED


@given(finite, finite, finite)
def test_what_is_in_the_first_band_is_reproduced(value: float, low: float, high: float) -> None:
    one = claim(Band(low=low, high=high), Band())
    wanted = Verdict.REPRODUCED if low <= value <= high else Verdict.DIRECTION_ONLY
    assert one.judge(value) is wanted


# ----------------------------------------------------------------------------- named bands


@pytest.mark.parametrize(
    ("bands", "reproduced", "direction"),
    [
        (at_least(5, 1, "x"), (5, None), (1, None)),
        (at_most(5, 9, "x"), (None, 5), (None, 9)),
        (every("x"), (1, None), (0.5, None)),
        (sign(2, "x"), (2, None), (0.5, None)),
        (sign(-2, "x"), (None, -2), (None, -0.5)),
        (sign(0.2, "x", 1), (1.2, None), (1.05, None)),
        (near(70, 10, Band(low=50), "x"), (60, 80), (50, None)),
        (within(300, 0.2, "x"), (240, 360), (150, 600)),
        (quarter(8), (6, 10), (4, 16)),
        (half(40, "%", "x"), (20, 60), (10, None)),
        (half(-40, "%", "x"), (-60, -20), (None, -10)),
        (half(3, "×", "x"), (2, 4), (1.5, None)),
        (half_to_twice(12, "x"), (6, 24), (3, None)),
        (half_to_twice(-3, "x"), (-6, -1.5), (None, -0.75)),
        (change(-24, 10, "x"), (-34, -14), (None, -6)),
        (change(-8, 7, "x"), (-15, -2), (None, -2)),
        (change(1.8, 1, "x", 1), (1.2, 2.8), (1.2, None)),
    ],
)
def test_named_bands_by_hand(
    bands: Bands, reproduced: tuple[float, float], direction: tuple[float, float]
) -> None:
    assert bands.reproduced is not None
    assert bands.direction is not None
    assert (bands.reproduced.low, bands.reproduced.high) == reproduced
    assert (bands.direction.low, bands.direction.high) == direction
    assert bands.why


EFFECTS = st.floats(0.1, 1e3) | st.floats(-1e3, -0.1)


@given(EFFECTS, st.floats(-0.249, 0.249), st.sampled_from([0.0, 1.0]))
def test_less_than_a_quarter_of_the_papers_effect_is_no_effect_either_way(
    size: float, share: float, none: float
) -> None:
    one = replace(claim(None), bands=Bands(Band(low=1e9), None, "x").effect(size, none))
    assert one.judge(none + share * size) is Verdict.NO_EFFECT


@given(EFFECTS, st.floats(0.251, 1e3), st.sampled_from([0.0, 1.0]))
def test_a_larger_effect_has_the_direction_or_the_opposite_one(
    size: float, share: float, none: float
) -> None:
    one = replace(claim(None), bands=Bands(Band(low=1e9), None, "x").effect(size, none))
    assert one.judge(none + share * size) is Verdict.DIRECTION_ONLY
    assert one.judge(none - share * size) is Verdict.NOT_REPRODUCED


@given(EFFECTS, st.floats(0, 2e3), st.sampled_from([0.0, 1.0]))
def test_bands_of_a_change_end_where_no_effect_begins(
    size: float, points: float, none: float
) -> None:
    bands = change(none + size, points, "x", none)
    assert bands.reproduced is not None
    assert bands.no_effect is not None
    ends = (bands.reproduced.low, bands.reproduced.high)
    assert none not in (*ends, bands.no_effect.low, bands.no_effect.high)
    assert not bands.reproduced.holds(none)
    assert bands.reproduced.holds(none + size)


def test_a_time_of_this_computer_has_no_verdict() -> None:
    one = claim(Band(low=-34, high=-14))
    assert replace(one, timed_here=True).judge(-24) is Verdict.NO_VERDICT
    assert one.judge(-24) is Verdict.REPRODUCED


def test_headlines_are_of_the_claims_that_they_name() -> None:
    claims = [Claim(id, "Fig. 1", "a statement", None, "%") for id in ("S-1", "S-2")]
    named = {"S-2": Headline("TPOT", "the host is faster")}
    first, second = paper_claims("smoe", "SMoE", claims, (), {}, named).claims
    assert (first.headline, first.cause) == ("", "")
    assert (second.headline, second.cause) == ("TPOT", "the host is faster")


def test_an_explanation_is_that_of_the_longest_beginning_in_whole_words() -> None:
    ids = ["S-1", "S-1 b1", "S-1 b1 x", "S-1, b2", "S-11", "S-2"]
    claims = [Claim(id, "Fig. 1", "a statement", None, "%") for id in ids]
    known = {"S-1": "one", "S-1 b1": "longer"}
    found = paper_claims("smoe", "SMoE", claims, (), known, {}).claims
    assert [one.explanation for one in found] == ["one", "longer", "longer", "one", "", ""]


# ----------------------------------------------------------------------------- figures


def test_the_interval_of_three_samples_is_students() -> None:
    # Mean 2, s = 1: t(2, 97.5 %) is 4.302653 in every table.
    found = Measured.of([1, 2, 3], "estimate", "in words", "workloads")
    half = 4.302653 / math.sqrt(3)
    assert found.value == 2
    assert found.samples == (1, 2, 3)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), rel=1e-5)
    assert (found.badge, found.conditions, found.over) == ("estimate", "in words", "workloads")


def test_one_sample_has_no_interval() -> None:
    found = Measured.of([7.25], "counted")
    assert (found.value, found.low, found.high) == (7.25, None, None)


def test_equal_samples_have_an_interval_without_width() -> None:
    found = Measured.of([5, 5, 5], "counted")
    assert (found.low, found.value, found.high) == (5, 5, 5)


@given(st.lists(finite, min_size=2, max_size=6))
def test_a_mean_lies_in_its_interval(samples: list[float]) -> None:
    found = Measured.of(samples, "counted")
    assert found.low is not None
    assert found.high is not None
    slack = 1e-5 * max(map(abs, samples)) + 1e-12  # six digits are kept
    assert found.low - slack <= found.value <= found.high + slack
    assert min(samples) - slack <= found.value <= max(samples) + slack


# ----------------------------------------------------------------------------- experiments

MAIN = Experiment(
    "main",
    {
        "common": {"new_tokens": 64, "scoring": "fixed-length"},
        "product": {"system": ["smoe", "daop"], "seed": [0, 1, 2], "software": ["hf-eager"]},
        "zip": {"batch": [1, 3], "prompts": [8, 9]},
        "exclude": [{"system": "daop", "batch": 3}],
    },
    quick={
        "common": {"new_tokens": 16, "scoring": None},
        "product": {"seed": [0]},
        "zip": {"prompts": [2, 3]},
    },
)


def test_a_full_plan_is_the_experiments_own() -> None:
    assert MAIN.plan(False, {}) == MAIN.cells


def test_quick_replaces_keys_and_drops_those_with_none() -> None:
    assert MAIN.plan(True, {}) == {
        "common": {"new_tokens": 16},
        "product": {"system": ["smoe", "daop"], "seed": [0], "software": ["hf-eager"]},
        "zip": {"batch": [1, 3], "prompts": [2, 3]},
        "exclude": [{"system": "daop", "batch": 3}],
    }
    assert MAIN.cells["common"]["new_tokens"] == 64


def test_quick_may_replace_a_part_that_is_no_mapping() -> None:
    one = Experiment("one", MAIN.cells, quick={"exclude": []})
    assert one.plan(True, {})["exclude"] == []


SEVERAL = Experiment(
    "several",
    {
        "common": {"setting": "S3", "workload": "arithmetic", "scoring": "generation"},
        "product": {
            "system": [
                {"system": "moe-ondemand", "set": {"evict": "lru"}},
                {"system": "moe-ondemand", "software": "lean", "set": {"evict": "fifo"}},
            ]
        },
        "zip": [{"batch": [1, 3], "prompts": [8, 9]}],
    },
)


def expanded(experiment: Experiment, changes: dict[str, Any]) -> list[tuple[Any, ...]]:
    specs = expand(experiment.plan(False, changes), None)
    return [(s.system, s.batch, s.prompts, s.software, s.scoring, dict(s.overrides)) for s in specs]


def test_empty_changes_leave_the_sweep_unchanged() -> None:
    assert len(expanded(SEVERAL, {})) == 4
    assert ("moe-ondemand", 3, 9, "lean", "generation", {"evict": "fifo"}) in expanded(SEVERAL, {})


def test_a_change_is_of_all_cells_wherever_the_sweep_says_otherwise() -> None:
    assert expanded(SEVERAL, {"software": "hf-eager", "prompts": 6, "scoring": None}) == [
        ("moe-ondemand", 1, 6, "hf-eager", "fixed-length", {"evict": "lru"}),
        ("moe-ondemand", 3, 6, "hf-eager", "fixed-length", {"evict": "lru"}),
        ("moe-ondemand", 1, 6, "hf-eager", "fixed-length", {"evict": "fifo"}),
        ("moe-ondemand", 3, 6, "hf-eager", "fixed-length", {"evict": "fifo"}),
    ]


def test_options_of_a_change_are_added_and_win() -> None:
    found = expanded(SEVERAL, {"set": {"evict": "lfu", "evict.tie": "id"}, "batch": 1})
    assert {str(options) for *_, options in found} == {"{'evict': 'lfu', 'evict.tie': 'id'}"}


def test_a_list_replaces_an_axis_and_what_its_entries_said() -> None:
    found = expanded(SEVERAL, {"system": ["accelerate", "deepspeed"], "batch": 1, "prompts": 4})
    assert found == [
        (system, 1, 4, "hf-eager", "generation", {}) for system in ("accelerate", "deepspeed")
    ]
