"""Claims over the ranges of uncertain numbers, with made-up figures whose crossings are known."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.reproduce import ranges
from moebench.harness.reproduce.bands import Bands, change
from moebench.harness.reproduce.claim import Claim
from moebench.harness.reproduce.evidence import Evidence, Experiment, MissingEvidenceError
from moebench.results.claims import Band, Measured, Range, Verdict
from moebench.results.store import Store
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.machines.profile_ranges import Uncertain, uncertain
from moebench.substrate.machines.quantity import Bandwidth

pytestmark = pytest.mark.usefixtures("tiny_models")

HOST = "host.gemv_bandwidth"
BANDS = change(-24, 10, "ten points")


def number(value: float, low: float, high: float) -> Uncertain:
    held = Bandwidth(value=value, unit="GB/s", source="hand", badge="estimate", range=(low, high))
    return Uncertain(HOST, held, low, high)


def measured(
    figure: Callable[[float], float], bands: Bands = BANDS, paper: float | None = -24
) -> Range:
    """Search the range of one number from 20 to 80 GB/s, whose own value is 40."""
    claim = Claim("A", "Fig. 1", "a time", paper, "%", bands, lambda evidence: pytest.fail("no"))
    search = ranges.Search(claim, HOST, {"a6000": number(40, 20, 80)})
    while places := search.missing:
        for at in places:
            search.figures[at] = figure(search._values(at)["a6000"])
    return search.result()


def test_a_verdict_that_flips_is_found_where_it_does() -> None:
    # From -24 at 20 GB/s in equal steps of doubling: -14 is passed at 20 × 2^(10/12) = 35.6.
    found = measured(lambda gbs: -24 + 12 * math.log2(gbs / 20))
    leaves, ends = found.crossings
    assert (leaves.below, leaves.above) == (Verdict.REPRODUCED, Verdict.DIRECTION_ONLY)
    assert leaves.values["a6000"] == pytest.approx(35.6, rel=0.01)
    assert (ends.below, ends.above) == (Verdict.DIRECTION_ONLY, Verdict.NO_EFFECT)
    assert ends.values["a6000"] == pytest.approx(20 * 2**1.5, rel=0.01)


def test_a_verdict_that_does_not_flip_has_no_crossing_and_few_points() -> None:
    found = measured(lambda gbs: -24.0)
    assert found.crossings == ()
    assert [one.at for one in found.points] == list(ranges.PLACES)
    assert [one.values["a6000"] for one in found.points] == [20, 28.28, 40, 56.57, 80]


def test_the_value_that_the_papers_figure_implies() -> None:
    found = measured(lambda gbs: -gbs)
    (implied,) = found.implied
    assert implied["a6000"] == pytest.approx(24, rel=0.02)
    assert measured(lambda gbs: -gbs, paper=None).implied == ()
    assert measured(lambda gbs: gbs).implied == ()


def test_one_step_may_pass_several_bands() -> None:
    found = measured(lambda gbs: -24.0 if gbs < 41 else 30.0)
    told = [(one.below, one.above) for one in found.crossings]
    assert told == [
        (Verdict.REPRODUCED, Verdict.DIRECTION_ONLY),
        (Verdict.DIRECTION_ONLY, Verdict.NO_EFFECT),
        (Verdict.NO_EFFECT, Verdict.NOT_REPRODUCED),
    ]
    assert all(40 <= one.values["a6000"] <= 40 * 2**ranges.FINEST for one in found.crossings)


@given(st.floats(-60, 60), st.floats(-60, 60))
def test_crossings_lead_from_the_first_verdict_to_the_last(first: float, last: float) -> None:
    found = measured(lambda gbs: first + (last - first) * (gbs - 20) / 60)
    verdicts = [found.points[0].verdict]
    for one in found.crossings:
        assert one.below == verdicts[-1]
        verdicts.append(one.above)
    assert verdicts[-1] == found.points[-1].verdict
    places = [one.at for one in found.crossings]
    assert places == sorted(places)


# ----------------------------------------------------------------------------- cells

ONE = Experiment(
    "one",
    {"common": {"workload": "arithmetic", "prompts": 1, "new_tokens": 2, "system": "moe-ondemand"},
     "product": {"setting": ["S1", "S3"], "seed": [0, 1]}},
    quick={"product": {"seed": [0]}}, numbers=(HOST, "link.pinned_h2d"),
)  # fmt: skip


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    return Evidence(Store(tmp_path), None, tmp_path, quick=False)


def test_cells_name_the_machine_with_the_moved_number(evidence: Evidence) -> None:
    low = {n.field: n.low for n in uncertain(load_profile("a6000"))}[HOST]
    machines = [spec.machine for spec in evidence.moved({HOST: -1}).specs(ONE)]
    assert machines[1] == f"a6000+{HOST}={low:g}"
    assert load_profile(machines[1]).host.gemv_bandwidth.value == low
    assert [spec.machine for spec in evidence.moved({}).specs(ONE)] == ["rtx3080ti", "a6000"]


def test_each_place_is_run_once_and_all_claims_read_it(evidence: Evidence) -> None:
    asked: list[list[str]] = []

    def run(wanted: ranges.Wanted) -> None:
        asked.append([spec.machine for needs, of in wanted for spec in of.specs(needs[0])])

    def figure(evidence: Evidence) -> Measured:
        return Measured.of([10 * evidence.numbers.get(HOST, 0.0)], "estimate")

    flips = Claim("A", "Fig. 1", "a time", -10, "%", Bands(Band(high=-3)), figure, (ONE,))
    never = replace(flips, id="B", bands=Bands(Band(high=100)))
    found = ranges.carry_out(ranges.searches([flips, never], evidence), evidence, run)
    # Of the link's figure in the profile no range is stated, or it moves nothing here.
    by_field = {one.field: one for one in found["A"]}
    assert by_field[HOST].crossings[0].at == pytest.approx(-0.3, abs=0.01)
    assert all(one.crossings == () for one in found["B"])
    assert len(asked) == 3  # five places, and two that halve the distance from 1/2 to 1/8


def test_a_figure_that_cannot_be_measured_has_no_range(evidence: Evidence) -> None:
    def missing(evidence: Evidence) -> Measured:
        raise MissingEvidenceError("a cell failed")

    claim = Claim("A", "Fig. 1", "a time", -10, "%", BANDS, missing, (ONE,))
    found = ranges.carry_out(ranges.searches([claim], evidence), evidence, lambda wanted: None)
    assert found == {}


def test_a_machine_whose_number_does_not_move_keeps_its_name(evidence: Evidence) -> None:
    assert evidence.moved({"host.no_such_number": 1.0}).machine("a6000") == "a6000"
    assert evidence.moved({HOST: 0.0}).machine("a6000") == "a6000"
    assert evidence.moved({HOST: -1.0}).machine("a6000") != "a6000"
