"""Reproduction with fake workers: which cells run, and how claims are judged and stored."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.reproduce import run_claims
from moebench.harness.reproduce.bands import Bands
from moebench.harness.reproduce.claim import Claim, CounterExperiment, PaperClaims, Show
from moebench.harness.reproduce.evidence import Evidence, Experiment
from moebench.harness.reproduce.run_claims import ExecutionContext, cells_of, reproduce
from moebench.harness.sweep.pool import Outcome, Workers
from moebench.harness.sweep.worker import Failed, Finished, Job
from moebench.results.claims import Axis, Band, ClaimResult, Exhibit, Measured, Range, Tag, Verdict
from moebench.results.store import Store
from moebench.substrate.errors import IntegrityError

pytestmark = pytest.mark.usefixtures("tiny_models")

CELLS = {
    "common": {"setting": "S3", "workload": "arithmetic", "prompts": 1, "new_tokens": 2},
    "product": {"system": ["smoe", "moe-ondemand"], "seed": [0, 1]},
}
PAIR = Experiment("pair", CELLS)
ONE = Experiment(
    "one", CELLS | {"product": {"system": ["smoe"], "seed": [0, 1, 2]}},
    quick={"product": {"seed": [0]}},
)  # fmt: skip

#: Recorded routing lies in a data folder, and there is none.
NO_DATA = Experiment("no data", {"common": {"setting": "F1", "system": "smoe", "routing": "real"}})


def tpot(job: Job) -> float:
    """Return a TPOT that is lower with lean software and with each seed."""
    base = {"smoe": 80.0, "moe-ondemand": 100.0}[job.spec.system]
    return base / (2 if job.spec.software == "lean" else 1) - job.spec.seed


@dataclass
class Made(Workers):
    """Fake workers that return made-up results at once, one cell at a time."""

    fails: Callable[[Job], bool]
    sent: list[Job] = field(default_factory=list)
    size: int = 1

    def send(self, worker: int, job: Job) -> None:
        self.sent.append(job)

    def wait(self) -> list[tuple[int, Outcome]]:
        job = self.sent[-1]
        if self.fails(job):
            return [(0, Failed("the disk is\nfull", "Traceback: OSError"))]
        document = {
            "run_id": job.cell_id, "spec": job.spec.model_dump(), "badge": "estimate",
            "simulated": True,
            "metrics": {"tpot_ms": {"mean": tpot(job)}},
            "provenance": {"created": "2026-01-01T00:00:00+00:00"},
        }  # fmt: skip
        return [(0, Finished(document, [], []))]

    def release(self, worker: int) -> None:
        """Do nothing: there is no worker process."""

    def close(self) -> None:
        """Do nothing: there is no worker process."""


class Bench:
    """A store with fake workers, on which claims are measured."""

    def __init__(self, folder: Path) -> None:
        self.evidence = Evidence(Store(folder), None, folder, quick=False)
        self.sent: list[Job] = []
        self.said: list[str] = []
        self.boards: list[int] = []
        self.fails: Callable[[Job], bool] = lambda job: False
        self.retry = False

    def claims(
        self, *claims: Claim, exhibits: tuple[Show, ...] = (), quick: bool = False
    ) -> tuple[ClaimResult, ...]:
        return self.paper(PaperClaims("smoe", "SMoE", claims, exhibits), quick).claims

    def paper(self, paper: PaperClaims, quick: bool = False) -> Any:
        evidence = replace(self.evidence, quick=quick, _jobs={}, _read={}, _seen=[])
        made = Made(self.fails, self.sent)
        shop = ExecutionContext(lambda local: made, self.board, self.said.append, self.retry)
        (result,) = reproduce([paper], evidence, shop)
        return result

    @contextmanager
    def board(self, jobs: Sequence[Job]) -> Iterator["Bench"]:
        self.boards.append(len(jobs))
        yield self

    def started(self, worker: int, job: Job) -> None:
        """Do nothing: starts of cells are not recorded."""

    def ended(self, worker: int, job: Job, outcome: Finished | Failed) -> None:
        """Do nothing: ends of cells are not recorded."""

    def asked(self) -> list[tuple[str, int, str]]:
        """Return the cells sent to workers since the last call."""
        cells = [(job.spec.system, job.spec.seed, job.spec.software) for job in self.sent]
        self.sent.clear()
        return cells


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store")


def ratio(evidence: Evidence) -> Measured:
    """Return SMoE's TPOT over that of loading on demand, in percent."""
    return evidence.runs(PAIR).per_seed(
        lambda runs: (
            100
            * runs.of(system="smoe").mean("metrics.tpot_ms.mean")
            / runs.of(system="moe-ondemand").mean("metrics.tpot_ms.mean")
        )
    )


def mean(evidence: Evidence) -> Measured:
    return evidence.runs(ONE).per_seed(lambda runs: runs.mean("metrics.tpot_ms.mean"))


NEVER = Bands(Band(high=0), Band(high=100), "half")
HALF = Bands(Band(low=75, high=85), Band(high=100), "half")


def claim(
    name: str, measure: Callable[[Evidence], Measured], *needs: Experiment, bands: Bands = HALF,
    **of: Any,
) -> Claim:  # fmt: skip
    return Claim(name, "Fig. 1", "a time", 80, "%", bands, measure, needs, **of)


LEAN = CounterExperiment("lean software", {"software": "lean"})


# ----------------------------------------------------------------------------- cells


def test_a_claim_is_measured_from_its_cells(bench: Bench) -> None:
    (found,) = bench.claims(claim("A", ratio, PAIR))
    assert sorted(bench.asked()) == [
        ("moe-ondemand", 0, "hf-eager"), ("moe-ondemand", 1, "hf-eager"),
        ("smoe", 0, "hf-eager"), ("smoe", 1, "hf-eager"),
    ]  # fmt: skip
    assert found.measured is not None
    assert found.measured.samples == pytest.approx((80, 100 * 79 / 99), rel=1e-5)
    assert found.verdict is Verdict.REPRODUCED
    assert sorted(found.runs) == sorted(bench.evidence.store.ids())


def test_a_claim_has_what_was_found_over_the_ranges_of_numbers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    low, ranges = Range(field="link.latency", unit="us", points=()), run_claims.ranges
    monkeypatch.setattr(ranges, "searches", lambda claims, evidence: [one.id for one in claims])
    monkeypatch.setattr(ranges, "carry_out", lambda asked, *of: {"A": (low,)})
    one, other = bench.claims(claim("A", ratio, PAIR), claim("B", mean, ONE))
    assert (one.ranges, other.ranges) == ((low,), ())


def test_claims_share_cells_and_finished_ones_are_not_run_again(bench: Bench) -> None:
    both = (claim("A", ratio, PAIR), claim("B", mean, ONE))
    first = bench.claims(*both)
    assert len(bench.asked()) == 5  # smoe's seeds 0 and 1 are in both
    assert bench.claims(*both) == first
    assert bench.asked() == []
    assert bench.boards == [5]


def test_interrupted_claims_resume_without_finished_cells(bench: Bench) -> None:
    def stop(job: Job) -> bool:
        if len(bench.sent) == 3:
            raise KeyboardInterrupt
        return False

    bench.fails = stop
    with pytest.raises(KeyboardInterrupt):
        bench.claims(claim("A", ratio, PAIR))
    before = bench.asked()[:2]
    bench.fails = lambda job: False
    (found,) = bench.claims(claim("A", ratio, PAIR))
    assert found.verdict is Verdict.REPRODUCED
    after = bench.asked()
    assert len(after) == 2
    assert not set(after) & set(before)


def test_quick_runs_fewer_cells(bench: Bench) -> None:
    bench.claims(claim("B", mean, ONE), quick=True)
    assert bench.asked() == [("smoe", 0, "hf-eager")]


def test_the_plan_counts_every_cell_once(bench: Bench) -> None:
    show = Show(lambda evidence: pytest.fail("not made"), (ONE,))
    paper = PaperClaims("smoe", "SMoE", (claim("A", ratio, PAIR),), (show,))
    assert len({job.cell_id for job in cells_of([paper], bench.evidence)}) == 5
    assert bench.asked() == []


# ----------------------------------------------------------------------------- what fails


def test_a_failed_cell_makes_its_claims_unmeasurable_with_the_reason(bench: Bench) -> None:
    bench.fails = lambda job: job.spec.system == "moe-ondemand" and job.spec.seed == 1
    needs_it, does_not = bench.claims(claim("A", ratio, PAIR), claim("B", mean, ONE))
    assert needs_it.verdict is Verdict.NOT_MEASURABLE
    assert needs_it.measured is None
    assert "moe-ondemand" in needs_it.reason
    assert needs_it.reason.endswith("the disk is full")
    assert does_not.verdict is Verdict.REPRODUCED


def test_a_failed_cell_is_run_again_only_where_that_is_asked(bench: Bench) -> None:
    bench.fails = lambda job: job.spec.seed == 1
    bench.claims(claim("A", ratio, PAIR))
    bench.asked()
    bench.fails = lambda job: False
    (found,) = bench.claims(claim("A", ratio, PAIR))
    assert bench.asked() == []
    assert found.verdict is Verdict.NOT_MEASURABLE
    bench.retry = True
    (found,) = bench.claims(claim("A", ratio, PAIR))
    assert {seed for _, seed, _ in bench.asked()} == {1}
    assert found.verdict is Verdict.REPRODUCED


def test_cells_that_cannot_be_expanded_are_one_line_and_no_claim(bench: Bench) -> None:
    def of_data(evidence: Evidence) -> Measured:
        return evidence.runs(NO_DATA).per_seed(lambda runs: 1.0)

    found, other = bench.claims(claim("A", of_data, NO_DATA), claim("B", mean, ONE))
    assert found.verdict is Verdict.NOT_MEASURABLE
    assert "--data-dir" in found.reason
    assert other.verdict is Verdict.REPRODUCED
    (line,) = [said for said in bench.said if said.startswith("no data: left out: ")]
    assert found.reason in line


def test_what_cannot_be_measured_here_says_why_and_runs_nothing(bench: Bench) -> None:
    one = Claim(
        id="C", place="Table 1", statement="joules", paper=1, unit="J",
        not_measurable="it takes a power meter",
    )  # fmt: skip
    (found,) = bench.claims(one)
    assert (found.verdict, found.reason) == (Verdict.NOT_MEASURABLE, "it takes a power meter")
    assert bench.asked() == []


def test_a_defect_of_ours_is_no_verdict(bench: Bench) -> None:
    def broken(evidence: Evidence) -> Measured:
        raise IntegrityError("a sum is negative")

    with pytest.raises(IntegrityError):
        bench.claims(claim("A", broken))


# ----------------------------------------------------------------------------- counter-experiments


def test_no_counter_experiment_where_a_claim_is_reproduced(bench: Bench) -> None:
    (found,) = bench.claims(claim("A", ratio, PAIR, counters=(LEAN,), explanation="software"))
    assert len(bench.asked()) == 4
    assert (found.counters, found.explanation) == ((), "")


def test_both_readings_of_a_paper_are_measured_where_one_reproduces_the_claim(bench: Bench) -> None:
    both = (replace(LEAN, always=True), replace(LEAN, name="another"))
    (found,) = bench.claims(claim("A", ratio, PAIR, counters=both, explanation="software"))
    assert found.verdict is Verdict.REPRODUCED
    assert [one.name for one in found.counters] == ["lean software"]


@pytest.mark.parametrize(
    ("band", "verdict"),
    [(Band(high=100), Verdict.DIRECTION_ONLY), (Band(high=0), Verdict.NOT_REPRODUCED)],
)
def test_a_claim_that_differs_is_measured_again_under_other_conditions(
    bench: Bench, band: Band, verdict: Verdict
) -> None:
    one = claim(
        "B", mean, ONE, bands=Bands(Band(low=30, high=45), band, "half"), counters=(LEAN,),
        explanation="software",
    )  # fmt: skip
    (found,) = bench.claims(one)
    assert found.verdict is verdict
    assert found.explanation == "software"
    assert found.measured is not None
    assert found.measured.value == 79
    (counter,) = found.counters
    assert (counter.name, counter.verdict) == ("lean software", Verdict.REPRODUCED)
    # Three seeds of the claim, and one of --quick under other conditions.
    assert (counter.unchanged, counter.measured.value) == (80, 40)
    asked = bench.asked()
    assert [software for *_, software in asked] == ["hf-eager"] * 3 + ["lean"]
    assert not set(counter.runs) & set(found.runs)


def test_claims_share_a_counter_experiment(bench: Bench) -> None:
    differing: Any = {"bands": NEVER, "counters": (LEAN,)}
    both = bench.claims(claim("A", ratio, PAIR, **differing), claim("B", mean, ONE, **differing))
    assert [len(one.counters) for one in both] == [1, 1]
    assert len(bench.asked()) == 5 + 4  # five cells, and those of --quick under other conditions
    assert "counter-experiments: 1" in bench.said


def test_a_counter_experiment_that_fails_leaves_its_claim(bench: Bench) -> None:
    bench.fails = lambda job: job.spec.software == "lean"
    (found,) = bench.claims(claim("B", mean, ONE, bands=NEVER, counters=(LEAN,)))
    assert found.verdict is Verdict.DIRECTION_ONLY
    assert found.counters == ()


# ----------------------------------------------------------------------------- little evidence


def test_a_tag_stands_with_a_verdict_and_not_without(bench: Bench) -> None:
    bench.fails = lambda job: job.spec.seed == 2
    tagged = claim("A", ratio, PAIR).tagged(Tag.CANNOT_FAIL, "both are at the ceiling")
    unmeasured = claim("B", mean, ONE).tagged(Tag.CANNOT_FAIL, "both are at the ceiling")
    first, second = bench.claims(tagged, unmeasured)
    assert (first.tag, first.tag_reason) == (Tag.CANNOT_FAIL, "both are at the ceiling")
    assert (second.verdict, second.tag, second.tag_reason) == (Verdict.NOT_MEASURABLE, None, "")


@pytest.mark.parametrize(
    ("blind", "verdict"), [("", Verdict.REPRODUCED), ("all score 100 %", Verdict.CANNOT_SHOW)]
)
def test_a_control_that_shows_no_loss_takes_the_verdict(
    bench: Bench, blind: str, verdict: Verdict
) -> None:
    (found,) = bench.claims(claim("A", ratio, PAIR, control=lambda evidence: blind))
    assert (found.verdict, found.reason) == (verdict, blind)
    assert found.measured is not None


def test_a_time_of_this_computer_is_shown_without_a_verdict(bench: Bench) -> None:
    (found,) = bench.claims(claim("A", ratio, PAIR, timed_here=True, counters=(LEAN,)))
    assert (found.verdict, found.counters) == (Verdict.NO_VERDICT, ())
    assert found.measured is not None
    assert "computer" in found.reason


# ----------------------------------------------------------------------------- exhibits


def table(experiment: Experiment) -> Show:
    def make(evidence: Evidence) -> Exhibit:
        runs = evidence.runs(experiment)
        rows = [{"ms": value} for value in runs.values("metrics.tpot_ms.mean")]
        return Exhibit(
            id="smoe-table-1", place="Table 1", title="TPOT", form="table", rows=tuple(rows),
            columns=(Axis(field="ms", title="TPOT", unit="ms"),), badge=runs.badge,
        )  # fmt: skip

    return Show(make, (experiment,))


def test_exhibits_name_their_runs(bench: Bench) -> None:
    (made,) = bench.paper(PaperClaims("smoe", "SMoE", (), (table(ONE),))).exhibits
    assert made.rows == ({"ms": 80.0}, {"ms": 79.0}, {"ms": 78.0})
    assert sorted(made.runs) == sorted(bench.evidence.store.ids())


def test_an_exhibit_without_its_evidence_is_left_out_with_a_line(bench: Bench) -> None:
    bench.fails = lambda job: job.spec.seed == 2
    found = bench.paper(PaperClaims("smoe", "SMoE", (), (table(ONE), table(NO_DATA), table(PAIR))))
    assert [len(made.rows) for made in found.exhibits] == [4]
    said = [line for line in bench.said if line.startswith("left out: ")]
    assert len(said) == 2
    assert "the disk is full" in said[0]
    assert "--data-dir" in said[1]


def test_paper_result_holds_title_and_provenance(bench: Bench) -> None:
    found = bench.paper(PaperClaims("smoe", "SMoE", (claim("B", mean, ONE),)), quick=True)
    assert (found.paper, found.title, found.quick) == ("smoe", "SMoE", True)
    assert found.provenance.keys() == {"versions", "commit", "code_hash", "created", "wall_s"}


def test_a_table_of_no_paper_is_made_of_its_own_cells(bench: Bench) -> None:
    shop = ExecutionContext(
        lambda local: Made(bench.fails, bench.sent), bench.board, bench.said.append
    )
    made = run_claims.exhibit(table(ONE), bench.evidence, shop)
    assert made is not None
    assert len(made.rows) == len(made.runs) == 3
    assert len(bench.sent) == 3
    assert run_claims.exhibit(table(NO_DATA), bench.evidence, shop) is None
    assert [line.split(":")[0] for line in bench.said] == ["no data", "left out"]


def test_a_defect_of_ours_is_no_missing_evidence(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*of: Any) -> Any:
        raise IntegrityError("a sum is negative")

    shop = ExecutionContext(
        lambda local: Made(bench.fails, bench.sent), bench.board, bench.said.append
    )
    with pytest.raises(IntegrityError):
        run_claims.exhibit(Show(broken), bench.evidence, shop)
    with pytest.raises(IntegrityError):
        bench.claims(claim("A", mean, ONE, control=broken))
    monkeypatch.setattr(Evidence, "jobs", broken)
    with pytest.raises(IntegrityError):
        bench.claims(claim("A", mean, ONE))


def test_a_ratio_without_a_denominator_is_not_measurable(bench: Bench) -> None:
    def none(evidence: Evidence) -> Measured:
        raise ZeroDivisionError("division by zero")

    (found,) = bench.claims(claim("A", none))
    assert (found.verdict, found.measured, found.reason) == (
        Verdict.NOT_MEASURABLE, None, "division by zero",
    )  # fmt: skip
    (turned,) = bench.claims(claim("A", mean, ONE, turns=lambda evidence: "at a half"))
    assert turned.turns == "at a half"
    assert len(turned.runs) == 3


def test_a_claim_moves_with_numbers_if_it_was_judged_on_runs() -> None:
    def result(verdict: Verdict, badge: str | None = "estimate") -> ClaimResult:
        measured = None if badge is None else Measured.of([1], badge)
        return ClaimResult(
            id="A", place="", statement="", paper=1, unit="%", reproduced=None, direction=None,
            why="", measured=measured, verdict=verdict,
        )  # fmt: skip

    movable = {v for v in Verdict if run_claims._movable(result(v))}
    assert movable == {
        Verdict.REPRODUCED, Verdict.DIRECTION_ONLY, Verdict.NO_EFFECT, Verdict.NOT_REPRODUCED,
    }  # fmt: skip
    assert not run_claims._movable(result(Verdict.REPRODUCED, "counted"))
    assert not run_claims._movable(result(Verdict.REPRODUCED, None))


def test_cells_of_claims_and_tables_are_run_once(bench: Bench) -> None:
    """Two of the four cells of one sweep are among the three of the other."""
    paper = PaperClaims("smoe", "SMoE", (claim("A", mean, ONE),), (table(PAIR), table(ONE)))
    jobs = run_claims.cells_of([paper, paper], bench.evidence)
    assert len({job.cell_id for job in jobs}) == len(jobs) == 5
    found = run_claims.sweeps(paper)
    assert sorted(found) == sorted([ONE.name, PAIR.name])
    assert found[ONE.name].cells == ONE.cells
    assert found[ONE.name].quick == ONE.plan(True, {})


def test_a_counter_experiment_runs_before_its_cells_without_the_change(bench: Bench) -> None:
    """Claims that share one have it once, with the cells of both; a reproduced one has none."""
    lean = CounterExperiment("lean", {"software": "lean"})
    always = CounterExperiment("always", {"batch": 2}, always=True)
    first = claim("a", ratio, PAIR)
    judged = [
        (replace(first, counters=(lean,)), Verdict.NOT_REPRODUCED),
        (replace(first, needs=(ONE,), counters=(lean, always)), Verdict.NO_EFFECT),
        (replace(first, counters=(lean,)), Verdict.REPRODUCED),
    ]
    made: list[Any] = [
        (one, run_claims._measured(one, bench.evidence).model_copy(update={"verdict": verdict}))
        for one, verdict in judged
    ]
    found = [
        ([need.name for need in needs], changed.changes, changed.quick)
        for needs, changed in run_claims._countering(made, bench.evidence)
    ]
    assert found == [
        (["pair", "one"], {"software": "lean"}, True), (["pair", "one", "one"], {}, True),
        (["one"], {"batch": 2}, True),
    ]  # fmt: skip
    assert run_claims._countering(made[2:], bench.evidence) == []


def test_a_counter_experiment_may_read_another_figure(bench: Bench) -> None:
    """Its own measure replaces the claim's; the cells without the change are read as the claim."""

    def seven(evidence: Evidence) -> Measured:
        assert evidence.quick
        return Measured.of([7.0], "estimate", "read otherwise")

    readings = (
        CounterExperiment("otherwise", {}, seven, always=True, reading=True),
        CounterExperiment("lean", {"software": "lean"}, always=True),
    )
    (result,) = bench.claims(replace(claim("a", ratio, PAIR), counters=readings))
    otherwise, lean = result.counters
    assert (otherwise.name, otherwise.measured.value) == ("otherwise", 7)
    assert (otherwise.measured.conditions, otherwise.reading) == ("read otherwise", True)
    assert result.measured is not None
    assert otherwise.unchanged == lean.unchanged == pytest.approx(result.measured.value)
    assert (lean.changes, lean.reading) == ({"software": "lean"}, False)
    assert lean.measured.value != 7
    assert (result.verdict, otherwise.verdict) == (Verdict.REPRODUCED, Verdict.DIRECTION_ONLY)
