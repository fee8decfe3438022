"""Reproduction of papers: runs experiments, judges claims, and tries them under other conditions.

Counter-experiments and ranges of uncertain numbers are measured on the cells of ``--quick``.  Every
cell is a run in the store, so a reproduction that was stopped continues where it ended.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from moebench.harness.reproduce import ranges
from moebench.harness.reproduce.claim import Claim, CounterExperiment, PaperClaims, Show
from moebench.harness.reproduce.evidence import UNDEFINED, Evidence, Experiment
from moebench.harness.run.document import commit, versions
from moebench.harness.run.identity import code_hash
from moebench.harness.sweep.execute import Open, carry_out
from moebench.harness.sweep.progress import Board
from moebench.harness.sweep.worker import Job
from moebench.results.claims import ClaimResult, Counter, Exhibit, PaperResult, Sweeps, Verdict
from moebench.substrate.errors import IntegrityError, MoeBenchError

#: Return a context manager that shows the progress of cells.
Boards = Callable[[Sequence[Job]], AbstractContextManager[Board]]

#: Print one line about the work in progress.
Say = Callable[[str], None]

#: Experiments to run, with the evidence whose changes apply to them.
Wanted = tuple[Iterable[Experiment], Evidence]

#: Verdicts whose claims have an explanation and counter-experiments.
DIFFERING = (Verdict.DIRECTION_ONLY, Verdict.NO_EFFECT, Verdict.NOT_REPRODUCED)

#: Verdicts that may change with a number of a machine.
MOVABLE = (*DIFFERING, Verdict.REPRODUCED)


@dataclass(frozen=True, slots=True)
class ExecutionContext:
    """The workers, progress display and options with which cells are run.

    Attributes:
        opened: opens the workers.
        retry_failed: run cells again that failed before.
    """

    opened: Open
    board: Boards
    say: Say
    retry_failed: bool = False


def reproduce(
    papers: Sequence[PaperClaims], evidence: Evidence, context: ExecutionContext
) -> list[PaperResult]:
    """Run all experiments of some papers, then measure and judge their claims.

    The counter-experiments of claims that were not reproduced run afterwards, in one batch, so that
    no worker is idle; then, in rounds, the cells with other numbers of the machines.
    """
    began = time.monotonic()
    _run([(_needed(papers), evidence)], evidence, context)
    judged = []
    for paper in papers:
        context.say(f"{paper.paper}: {len(paper.claims)} claims")
        judged.append([(claim, _measured(claim, evidence)) for claim in paper.claims])
    wanted = _countering([pair for pairs in judged for pair in pairs], evidence)
    context.say(f"counter-experiments: {sum(1 for _, changed in wanted if changed.changes)}")
    _run(wanted, evidence, context)
    movable = [claim for pairs in judged for claim, result in pairs if _movable(result)]
    asked = ranges.searches(movable, evidence)
    context.say(f"ranges of numbers: {len(asked)}")
    over = ranges.carry_out(asked, evidence, lambda wanted: _run(wanted, evidence, context))
    results = []
    for paper, pairs in zip(papers, judged, strict=True):
        claims = [
            _countered(claim, result, evidence).model_copy(
                update={"ranges": over.get(claim.id, ())}
            )
            for claim, result in pairs
        ]
        exhibits = [made for show in paper.exhibits if (made := _made(show, evidence, context))]
        provenance = {
            "versions": versions(), "commit": commit(), "code_hash": code_hash(),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "wall_s": round(time.monotonic() - began, 1),
        }  # fmt: skip
        results.append(
            PaperResult(
                paper=paper.paper, title=paper.title, quick=evidence.quick, provenance=provenance,
                experiments=sweeps(paper), claims=tuple(claims), exhibits=tuple(exhibits),
            )
        )  # fmt: skip
    return results


def exhibit(show: Show, evidence: Evidence, context: ExecutionContext) -> Exhibit | None:
    """Run the cells of a table or figure of no paper and make it; None if it cannot be made."""
    _run([(show.needs, evidence)], evidence, context)
    return _made(show, evidence, context)


def cells_of(papers: Iterable[PaperClaims], evidence: Evidence) -> list[Job]:
    """Return the distinct cells that the claims and exhibits of some papers need."""
    jobs, _ = _jobs(_needed(papers), evidence)
    return jobs


def sweeps(paper: PaperClaims) -> dict[str, Sweeps]:
    """Return the sweeps of a paper's experiments, by name."""
    return {
        one.name: Sweeps(cells=one.plan(False, {}), quick=one.plan(True, {}))
        for one in _needed([paper])
    }


def _needed(papers: Iterable[PaperClaims]) -> list[Experiment]:
    return [
        experiment
        for paper in papers
        for needs in (*(c.needs for c in paper.claims), *(s.needs for s in paper.exhibits))
        for experiment in needs
    ]


# ----------------------------------------------------------------------------- cells


def _run(wanted: Iterable[Wanted], evidence: Evidence, context: ExecutionContext) -> None:
    """Run the distinct cells of some experiments that the store does not hold."""
    jobs: dict[str, Job] = {}
    for experiments, changed in wanted:
        found, refused = _jobs(experiments, changed)
        jobs |= {job.cell_id: job for job in found}
        for line in refused:
            context.say(line)
    finished = evidence.store.finished(jobs)
    failed = {cell.cell_id for cell in evidence.store.cells("failed")}
    skipped = set(finished) if context.retry_failed else {*finished, *failed}
    todo = [job for job in jobs.values() if job.cell_id not in skipped]
    if not todo:
        return
    evidence.store.queue([(job.cell_id, job.spec.model_dump()) for job in todo])
    with context.board(todo) as shown:
        carry_out(todo, evidence.store, context.opened, shown)


def _jobs(experiments: Iterable[Experiment], evidence: Evidence) -> tuple[list[Job], list[str]]:
    """Return the distinct cells of experiments, and the errors of those that cannot be expanded."""
    unique = {experiment.name: experiment for experiment in experiments}
    jobs: dict[str, Job] = {}
    refused = []
    for experiment in unique.values():
        try:
            found = evidence.jobs(experiment)
        except IntegrityError:
            raise
        except MoeBenchError as error:
            refused.append(f"{experiment.name}: left out: {error}")
            continue
        for job in found:
            jobs.setdefault(job.cell_id, job)
    return list(jobs.values()), refused


# ----------------------------------------------------------------------------- claims


def _measured(claim: Claim, evidence: Evidence) -> ClaimResult:
    """Measure and judge a claim; it is not measurable where its evidence is missing."""
    unmeasured = ClaimResult(
        id=claim.id, place=claim.place, statement=claim.statement, paper=claim.paper,
        unit=claim.unit, reproduced=claim.bands.reproduced, direction=claim.bands.direction,
        no_effect=claim.bands.no_effect, why=claim.bands.why, measured=None,
        verdict=Verdict.NOT_MEASURABLE, reason=claim.not_measurable, headline=claim.headline,
        cause=claim.cause, sources=claim.sources,
    )  # fmt: skip
    if claim.measure is None:
        return unmeasured
    seen = evidence.watched()
    try:
        measured = claim.measure(seen)
        blind = claim.control(seen) if claim.control else ""
        turns = claim.turns(seen) if claim.turns else ""
    except IntegrityError:
        raise
    except UNDEFINED as error:
        return unmeasured.model_copy(update={"reason": str(error)})
    verdict = Verdict.CANNOT_SHOW if blind else claim.judge(measured.value)
    told = claim.explanation if verdict in DIFFERING else ""
    tag = claim.tag if verdict in MOVABLE else None
    return unmeasured.model_copy(
        update={
            "measured": measured, "verdict": verdict, "explanation": told, "runs": seen.used,
            "reason": blind or (TIMED_HERE if claim.timed_here else ""), "tag": tag,
            "tag_reason": claim.tag_reason if tag else "", "turns": turns,
        }
    )  # fmt: skip


#: Reason of `Verdict.NO_VERDICT`.
TIMED_HERE = "a time of this computer: it differs between computers, and no two runs agree"


def _movable(result: ClaimResult) -> bool:
    """Return whether a claim's verdict may depend on the numbers of machines."""
    return (
        result.measured is not None
        and result.verdict in MOVABLE
        and result.measured.badge != "counted"
    )


def _countering(judged: Iterable[tuple[Claim, ClaimResult]], evidence: Evidence) -> list[Wanted]:
    """Return the distinct counter-experiments to run, and their cells without the change."""
    wanted: dict[CounterExperiment | None, list[Experiment]] = {}
    for claim, result in judged:
        for counter in _counters(claim, result):
            wanted.setdefault(counter, []).extend(claim.needs)
            wanted.setdefault(None, []).extend(claim.needs)
    return [
        (needs, evidence.changed(counter.changes if counter else {}))
        for counter, needs in wanted.items()
    ]


def _counters(claim: Claim, result: ClaimResult) -> list[CounterExperiment]:
    """Return the counter-experiments of a judged claim: all of them if it is not reproduced."""
    differs = result.verdict in DIFFERING
    measured = result.measured is not None
    return [one for one in claim.counters if differs or (measured and one.always)]


def _countered(claim: Claim, result: ClaimResult, evidence: Evidence) -> ClaimResult:
    """Add the measured counter-experiments to the result of a claim."""
    found = []
    counters = _counters(claim, result)
    before = _measured(claim, evidence.changed({})).measured if counters else None
    for counter in counters:
        read = replace(claim, measure=counter.measure or claim.measure)
        again = _measured(read, evidence.changed(counter.changes))
        if again.measured is not None:
            found.append(
                Counter(
                    name=counter.name, changes=dict(counter.changes), measured=again.measured,
                    verdict=again.verdict,
                    unchanged=before.value if before else None, reading=counter.reading,
                    runs=again.runs,
                )
            )  # fmt: skip
    return result.model_copy(update={"counters": tuple(found)})


def _made(show: Show, evidence: Evidence, context: ExecutionContext) -> Exhibit | None:
    """Make a table or figure; where its evidence is missing, print the reason and return None."""
    seen = evidence.watched()
    try:
        exhibit = show.make(seen)
    except IntegrityError:
        raise
    except MoeBenchError as error:
        context.say(f"left out: {error}")
        return None
    return exhibit.model_copy(update={"runs": seen.used})
