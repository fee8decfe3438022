"""Costs of reproductions: their cells, what one takes, and the time of all of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.reproduce import costs as module
from moebench.harness.reproduce.bands import Bands
from moebench.harness.reproduce.claim import Claim, CounterExperiment, PaperClaims, Show
from moebench.harness.reproduce.costs import Meter, Step, costs_of, steps, work
from moebench.harness.reproduce.evidence import Evidence, Experiment
from moebench.harness.reproduce.expected import guess
from moebench.harness.reproduce.ranges import PLACES
from moebench.harness.sweep.estimate import START_S, run_seconds
from moebench.harness.sweep.forecast import LIVE, counts_of
from moebench.harness.sweep.progress import Unseen
from moebench.harness.sweep.worker import Failed, Job
from moebench.results.claims import Band, ClaimResult, Measured, PaperResult, Point, Range, Verdict
from moebench.results.spec import RunSpec
from moebench.results.store import Store
from moebench.substrate.errors import IntegrityError, UsageError
from tests.results.documents import document

pytestmark = pytest.mark.usefixtures("tiny_models")

FIELD = "host.handoff"
CELLS = {
    "common": {"setting": "S3", "workload": "arithmetic", "prompts": 4, "new_tokens": 2},
    "product": {"system": ["smoe", "moe-ondemand"]},
}
PAIR = Experiment("pair", CELLS, {"common": {"prompts": 1}}, (FIELD,))
LEAN = CounterExperiment("lean", {"software": "lean"})


def paper(*counters: CounterExperiment, needs: tuple[Experiment, ...] = (PAIR,)) -> PaperClaims:
    claim = Claim("S-1", "Fig. 9", "TPOT", 20, "%", Bands(Band(low=9)), lambda evidence: found(),
                  needs, counters)  # fmt: skip
    return PaperClaims("smoe", "SMoE", (claim,))


def found() -> Measured:
    return Measured.of([1, 2], "estimate")


def earlier(verdict: Verdict, **of: Any) -> dict[str, PaperResult]:
    claim = ClaimResult(
        id="S-1", place="", statement="", paper=20, unit="%", reproduced=None, direction=None,
        why="", measured=found(), verdict=verdict, ranges=of.pop("ranges", ()),
    )  # fmt: skip
    given = {"paper": "smoe", "title": "", "quick": True, "provenance": {}, "claims": (claim,)}
    return {"smoe": PaperResult(**(given | of))}


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    return Evidence(Store(tmp_path), None, tmp_path, quick=False)


def cells(papers: PaperClaims, evidence: Evidence, known: dict[str, PaperResult]) -> int:
    return len({j.cell_id for step in steps([papers], evidence, known) for j in step.jobs})


def test_an_unknown_claim_is_measured_over_its_ranges(evidence: Evidence) -> None:
    assert cells(paper(LEAN), evidence, {}) == 2 + 2 * len(PLACES)
    bare = Experiment("bare", CELLS, {"common": {"prompts": 1}})
    assert cells(paper(needs=(bare,)), evidence, {}) == 2


def test_a_claim_that_differed_has_its_counter_experiments_again(evidence: Evidence) -> None:
    ranges = 2 * len(PLACES)
    assert cells(paper(LEAN), evidence, earlier(Verdict.NO_EFFECT)) == 2 + ranges + 2
    assert cells(paper(LEAN), evidence, earlier(Verdict.REPRODUCED)) == 2 + ranges
    assert cells(paper(LEAN), evidence, earlier(Verdict.NOT_MEASURABLE)) == 2
    always = CounterExperiment("lean", {"software": "lean"}, always=True)
    assert cells(paper(always), evidence, earlier(Verdict.REPRODUCED)) == 2 + ranges + 2


def test_ranges_are_measured_at_the_places_of_before(evidence: Evidence) -> None:
    points = tuple(
        Point(at=at, values={"a6000": 25.0}, figure=1.0, verdict=Verdict.REPRODUCED)
        for at in (-1, -0.75, -0.5, 0, 0.5, 1)
    )
    known = earlier(Verdict.REPRODUCED, ranges=(Range(field=FIELD, unit="GB/s", points=points),))
    assert cells(paper(), evidence, known) == 2 + 2 * len(points)


def test_a_store_with_runs_is_asked_for_the_cells_of_ranges(evidence: Evidence) -> None:
    """As many cells as without runs, whose ids are those that the reproduction will ask for."""
    count = cells(paper(), evidence, {})
    evidence.store.put(document("0123456789ab"))
    assert cells(paper(), evidence, {}) == count
    moved = evidence.moved({FIELD: -1.0}).jobs(PAIR)
    planned = {j.cell_id for step in steps([paper()], evidence, {}) for j in step.jobs}
    assert {job.cell_id for job in moved} <= planned


# ----------------------------------------------------------------------------- the time

SPEC = RunSpec(
    setting="S3", system="smoe", workload="arithmetic", prompts=1, new_tokens=2, machine="a6000",
    model="qwen2-57b-a14b",
)  # fmt: skip


#: Time of the fixed computation where the costs were measured.
SPEED_S = 0.25


def step(*names: str, experiment: str = "pair", size: Any = "quick") -> Step:
    return Step("smoe", experiment, size, [Job(name, SPEC, "") for name in names])


def costs(**experiments: Any) -> dict[str, PaperResult]:
    known = {"speed_s": SPEED_S, "own_s": {"quick": 8.0}, "experiments": experiments}
    made = {"costs": known, "created": "2026-02-03T", "commit": "abc"}
    return earlier(Verdict.REPRODUCED, provenance=made)


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer on which everything takes twice as long."""
    monkeypatch.setattr("moebench.harness.reproduce.expected.speed_s", lambda: 2 * SPEED_S)


def nothing(cells: Any) -> dict[str, str]:
    return {}


@pytest.mark.usefixtures("speed")
def test_the_time_is_that_of_the_cells_and_of_the_calling_process() -> None:
    known = costs(pair={"quick": [2, 30.0, 1.0]})
    got = guess([step("a", "b"), step("b", "c")], nothing, known, 1)
    assert got.seconds == pytest.approx(START_S + 2 * (3 * 30 + 8))
    assert (got.cells, got.todo, got.measured, got.of) == (3, 3, 3, "2026-02-03 (abc)")
    assert got.scale == 2
    slower = guess([step("a", "b", "c")], nothing, known, 1, slowdown=2.0)
    assert slower.seconds == pytest.approx(2 * got.seconds)


@pytest.mark.usefixtures("speed")
def test_stored_cells_take_no_time() -> None:
    known = costs(pair={"quick": [2, 30.0, 1.0]})
    got = guess([step("a", "b")], lambda cells: {"a": "run"}, known, 1)
    assert (got.cells, got.todo) == (2, 1)
    assert got.seconds == pytest.approx(2 * (30 + 4) + START_S)
    done = guess([step("a")], lambda cells: {"a": "run"}, known, 1)
    assert done.seconds == pytest.approx(2 * 4), "the process reads all runs"


@pytest.mark.usefixtures("speed")
def test_costs_of_the_other_size_are_scaled_by_the_work() -> None:
    """A cell of the full size had 100 times the work by the constants: 100 times the time."""
    (quick,) = [guess([step("a")], nothing, costs(pair={"quick": [1, 9.0, 1.0]}), 1)]
    whole = guess([step("a")], nothing, costs(pair={"full": [1, 900.0, 100.0]}), 1)
    unit = guess([step("a")], nothing, costs(pair={"full": [1, 9.0, 1.0]}), 1)
    assert whole.seconds == pytest.approx(unit.seconds)
    assert whole.measured == quick.measured == 1


def test_what_was_never_measured_is_from_constants() -> None:
    got = guess([step("a", experiment="new")], nothing, costs(), 1)
    assert (got.todo, got.measured) == (1, 0)
    assert got.seconds > START_S
    assert guess([step("a")], nothing, {}, 1).of == ""


# ----------------------------------------------------------------------------- the meter


def test_a_meter_keeps_what_cells_and_claims_took(evidence: Evidence) -> None:
    meter, bare = Meter(), paper(needs=(Experiment("bare", CELLS),))
    (made,) = steps([bare], evidence, {})
    with meter.watched(_opened()) as board:
        for job in made.jobs:
            board.started(0, job)
            board.ended(0, job, Failed("no", None))
    measure = meter.timed(bare).claims[0].measure
    assert measure is not None
    assert measure(evidence) == found()
    kept = meter.costs([bare], evidence, [], {})["smoe"]
    assert kept["experiments"]["bare"]["full"][0] == 2
    assert set(kept["own_s"]) == {"full"}
    assert 0 < kept["speed_s"] < 5


def test_experiments_that_did_not_run_keep_their_costs(evidence: Evidence) -> None:
    bare = paper(needs=(Experiment("bare", CELLS),))
    known = costs(bare={"full": [2, 30.0, 1.0], "quick": [2, 3.0, 1.0]})
    kept = Meter().costs([bare], evidence, [], known)["smoe"]
    assert kept["experiments"] == {"bare": {"full": [2, 30.0, 1.0], "quick": [2, 3.0, 1.0]}}
    assert kept["own_s"]["quick"] == 8.0


def _opened() -> Any:
    from contextlib import nullcontext

    return nullcontext(Unseen())


class Clock:
    """Clocks of a process, of its workers and of the wall, which a test sets."""

    def __init__(self) -> None:
        self.cpu = self.wall = self.workers = 0.0

    def process_time(self) -> float:
        return self.cpu

    def monotonic(self) -> float:
        return self.wall


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(module, "_workers_s", lambda: made.workers)
    monkeypatch.setattr(module, "speed_s", lambda: 0.123456)
    monkeypatch.setattr(module, "work", lambda jobs: float(len([*jobs])))
    return made


def test_costs_of_cells_are_their_share_of_the_workers_time(
    evidence: Evidence, clock: Clock
) -> None:
    """Cells of 30 and 10 s of wall time took 20 s of the workers: half of each."""
    clock.cpu, clock.workers = 100.0, 5.0
    meter, bare = Meter(_cpu=100.0), paper(needs=(Experiment("bare", CELLS),))
    (made,) = steps([bare], evidence, {})
    with meter.watched(_opened()) as board:
        for job, taken in zip(made.jobs, (30, 10), strict=True):
            board.started(0, job)
            clock.wall += taken
            board.ended(0, job, Failed("no", None))
    assert list(meter.cells.values()) == [30, 10]

    # Of this process's 9 s, 4 were its claims' and 2 an exhibit's that failed.
    def slow(evidence: Evidence) -> Measured:
        clock.cpu += 4
        return found()

    def failing(evidence: Evidence) -> Any:
        clock.cpu += 2
        raise ZeroDivisionError

    whole = PaperClaims("smoe", "SMoE", (
        replace(bare.claims[0], measure=slow), replace(bare.claims[0], id="S-2", measure=None),
    ), (Show(failing),))  # fmt: skip
    timed = meter.timed(whole)
    assert timed.claims[1].measure is None
    assert timed.claims[0].measure is not None
    assert timed.claims[0].measure(evidence) == found()
    with pytest.raises(ZeroDivisionError):
        timed.exhibits[0].make(evidence)
    assert meter.own == {"smoe": 6}
    clock.cpu += 3
    clock.workers += 20
    other = PaperClaims("daop", "DAOP", ())
    kept = meter.costs([bare, other], evidence, [], {})
    assert kept["smoe"] == {
        "speed_s": 0.1235, "own_s": {"full": 7.5}, "experiments": {"bare": {"full": [2, 10, 2]}},
    }  # fmt: skip
    assert kept["daop"]["own_s"] == {"full": 1.5}
    assert kept["daop"]["experiments"] == {}


def test_an_experiment_of_which_half_of_the_cells_ran_has_new_costs(
    evidence: Evidence, clock: Clock
) -> None:
    """Without workers' time, or with more than the wall's, a cell takes its wall time."""
    bare = paper(needs=(Experiment("bare", CELLS),))
    (made,) = steps([bare], evidence, {})
    known = costs(bare={"full": [2, 30.0, 1.0], "quick": [2, 3.0, 1.0]})
    one = Meter(cells={made.jobs[0].cell_id: 8.0}, _cpu=0.0, _workers=0.0)
    for workers in (0.0, 80.0):
        clock.workers = workers
        kept = one.costs([bare], evidence, [], known)["smoe"]
        assert kept["experiments"]["bare"] == {"full": [1, 8.0, 2], "quick": [2, 3.0, 1.0]}
    # Cells ran, so that the process's time is new; that of --quick stays.
    assert kept["own_s"] == {"quick": 8.0, "full": 0.0}
    three = {**CELLS, "product": {"system": ["smoe", "moe-ondemand", "accelerate"]}}
    more = paper(needs=(Experiment("bare", three),))
    kept = one.costs([more], replace(evidence, _jobs={}), [], known)["smoe"]
    assert kept["experiments"]["bare"]["full"] == [2, 30.0, 1.0]
    again = Meter().costs([bare], evidence.moved({}), [], known)["smoe"]
    assert again["own_s"] == {"quick": 8.0}, "no cell ran"


def test_work_is_the_mean_of_cells_by_the_constants() -> None:
    """A recorded cell is replayed, which has constants of its own."""
    live = Job("a", SPEC, "")
    longer = Job("b", SPEC.model_copy(update={"new_tokens": 20}), "")
    each = [work([one]) for one in (live, longer)]
    assert each[0] < each[1]
    assert work([live, longer]) == pytest.approx(sum(each) / 2, abs=1e-4)
    assert each[0] == round(run_seconds(counts_of(SPEC), LIVE), 4)


def test_costs_that_are_none_are_empty() -> None:
    nothing_known = {"own_s": {}, "experiments": {}}
    assert costs_of(None) == nothing_known
    (result,) = earlier(Verdict.REPRODUCED, provenance={"costs": "broken"}).values()
    assert costs_of(result) == nothing_known
    (result,) = costs().values()
    assert costs_of(result)["own_s"] == {"quick": 8.0}


def test_a_defect_of_ours_stops_the_estimate(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(error: Exception) -> Any:
        def jobs(self: Evidence, experiment: Experiment) -> Any:
            raise error

        return jobs

    bare = paper(needs=(Experiment("bare", CELLS),))
    monkeypatch.setattr(Evidence, "jobs", refused(UsageError("no data")))
    assert list(steps([bare], evidence, {})) == []
    monkeypatch.setattr(Evidence, "jobs", refused(IntegrityError("a sum is negative")))
    with pytest.raises(IntegrityError):
        list(steps([bare], evidence, {}))
