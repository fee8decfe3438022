"""Runs that advice needs, executed as sweep cells, so that finished cells are not run again."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.harness.advise.budget.choose import (
    By,
    Candidate,
    Demand,
    Fit,
    Ranking,
    configuration,
    fit,
    rank,
    smallest_alpha,
)
from moebench.harness.guard.accuracy_table import scoring_of
from moebench.harness.sweep.execute import carry_out, jobs_of, local_workers, processes_for
from moebench.harness.sweep.plan import expand
from moebench.harness.sweep.planned import Planned
from moebench.harness.sweep.progress import Board, board, forecast_of
from moebench.harness.sweep.worker import Failed, Finished, Job
from moebench.results import intervals
from moebench.results.document import Document, basis, dig, score_at_floor, score_of
from moebench.results.samples import read_samples
from moebench.results.store import Store
from moebench.substrate.errors import UsageError
from moebench.substrate.text import visible
from moebench.systems.options import build
from moebench.systems.registry import NATIVE, SYSTEMS
from moebench.workloads.catalogue import DEFAULT_WORKLOAD, workload

#: The α's that are measured first by default; SMoE's Table IV ends at 0.6.
ALPHAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)

#: Maximum number of further α's of a system to measure.
CONFIRMATIONS = 5


@dataclass(slots=True)
class Advice:
    """The result of `advise`: ranking, fits, measurements and failures.

    Attributes:
        fits: by system with an α, T(α) fitted to all measurements.
        measured: by system with an α, TPOT in ms by α.
        left_out: the reason why a system could not be run, by its name.
        missing: titles of the configurations that an interruption left unmeasured.
        interrupted: whether measuring was interrupted, so that the ranking is of a part.
    """

    ranking: Ranking
    fits: dict[str, Fit | None]
    measured: dict[str, dict[float, float]]
    left_out: dict[str, str]
    notes: list[str]
    missing: list[str] = field(default_factory=list)
    interrupted: bool = False


@dataclass(slots=True)
class Runs:
    """Executes cells and collects their documents.

    Attributes:
        given: fields of every cell, as a sweep's `common` contains them.
        texts: number of calibration texts of a trained system; None is its paper's number.
        jobs: processes; 0 runs everything in this one.
        left_out: the reason why a system could not be run, by its name.
        documents: of all finished cells, by their ids, in the order in which they were finished.
        asked: titles of all cells that were asked for, by their ids.
        failed: ids of the cells that failed.
    """

    given: Mapping[str, Any]
    texts: int | None
    data_dir: Path | None
    directory: Path
    jobs: int
    left_out: dict[str, str] = field(default_factory=dict)
    documents: dict[str, Document] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    @property
    def missing(self) -> list[str]:
        """Titles of the cells that were asked for and neither finished nor failed."""
        ended = {*self.documents, *self.failed}
        return [title for cell_id, title in self.asked.items() if cell_id not in ended]

    def of(
        self, systems: Sequence[str], alphas: Sequence[float],
        finished: Callable[[Document], None] = lambda document: None,
    ) -> None:  # fmt: skip
        """Run every system, at every α if it has one; failures are left out, with the reason.

        What is finished is in `documents` and in the store at once, also if this is interrupted.

        Args:
            finished: called with the document of each cell that was run.

        Raises UsageError, InputError: an invalid value.
        """
        store, say = Store(self.directory), console.stderr().print
        store.schema()  # report an unreadable store before cells are hashed
        axes = {"system": [self._shown(name) for name in systems], "alpha": list(alphas)}
        specs = expand({"common": self.given, "product": axes}, self.data_dir, say)
        planned = Planned(self.data_dir)
        cells = jobs_of(specs, planned)
        self.asked |= {job.cell_id: _configuration(job) for job in cells}
        stored = store.finished(job.cell_id for job in cells)
        for cell_id, run_id in stored.items():
            document = store.get(run_id)
            if document is not None:
                self.documents[cell_id] = document
        todo = [job for job in cells if job.cell_id not in self.documents]
        if not todo:
            return
        if stored:
            console.say(f"{len(stored)} of {len(cells)} configurations are stored")

        def ended(job: Job, outcome: Finished | Failed) -> None:
            if isinstance(outcome, Failed):
                self.failed.add(job.cell_id)
                self.left_out[job.spec.title] = visible(" ".join(outcome.error.split()))
                return
            self.documents[job.cell_id] = outcome.document
            finished(outcome.document)

        opened = local_workers(self.jobs, self.data_dir, self.directory, samples=True)
        forecast = forecast_of(todo, store, planned, processes_for(self.jobs))
        console.say(f"{len(todo)} configurations to measure, {forecast}")
        with board(forecast) as shown:
            carry_out(todo, store, opened, _Told(shown, ended))

    def _shown(self, system: str) -> str | dict[str, Any]:
        """Return a system's entry in the sweep, with few calibration texts if it is trained."""
        policies = build(system).policies.values()
        learns = any(policy.calibrates and not policy.calibration_trace for policy in policies)
        if self.texts is None or not learns:
            return system
        return {"system": system, "calibrate_texts": self.texts}


def _configuration(job: Job) -> str:
    alpha = job.spec.overrides.get("alpha")
    return configuration(job.spec.title, None if alpha is None else float(alpha))


class _Told:
    """A progress board that also passes on the outcome of each cell."""

    def __init__(self, shown: Board, ended: Callable[[Job, Finished | Failed], None]) -> None:
        self._shown, self._ended = shown, ended

    def started(self, worker: int, job: Job) -> None:
        self._shown.started(worker, job)

    def ended(self, worker: int, job: Job, outcome: Finished | Failed) -> None:
        self._shown.ended(worker, job, outcome)
        self._ended(job, outcome)


def systems_for(typed: Sequence[str]) -> list[str]:
    """Return the systems that were named, or all that need not know the future."""
    if typed:
        native = [name for name in typed if name in NATIVE]
        if native:
            raise UsageError(
                f"--systems {','.join(native)}: a package that runs by itself says nothing of its "
                "accuracy loss; allowed: systems of our own engine"
            )
        return list(typed)
    return [name for name in sorted(SYSTEMS) if not build(name).clairvoyant]


def advise(
    runs: Runs, systems: Sequence[str], alphas: Sequence[float], demand: Demand, by: By,
    told: Callable[[Candidate, Ranking], None] = lambda candidate, ranking: None,
) -> Advice:  # fmt: skip
    """Measure all systems, search the α of those that have one, and rank them.

    Ctrl-C ends the measurements: the advice is then of what was finished (`Advice.interrupted`).

    Args:
        told: called with each configuration that was measured, and the ranking so far.

    Raises:
        UsageError: the demand cannot be judged, or a name or value is invalid.
        KeyboardInterrupt: nothing had been planned yet.
    """
    seen: list[Candidate] = []

    def measured_one(document: Document) -> None:
        reference = _reference(runs.documents.values())
        seen.append(_candidate(runs.directory, document, reference, by))
        told(seen[-1], rank(seen, demand, {}))

    interrupted = False
    try:
        runs.of(systems, alphas, measured_one)
        for system in _lossy(runs.documents.values()) if demand.tpot_ms is not None else ():
            _search(runs, system, demand.tpot_ms or 0.0, measured_one)
    except KeyboardInterrupt:
        if not runs.asked:
            raise
        interrupted = True
    documents = [runs.documents[cell] for cell in runs.asked if cell in runs.documents]
    lossy = _lossy(documents)
    measured = {system: _times(documents, system) for system in lossy}
    reference = _reference(documents)
    if by == "score" and documents and reference is None and not interrupted:
        raise UsageError(
            "--by score: no lossless system was run to compare scores with; add one: "
            "--systems ...,moe-ondemand"
        )
    candidates = [_candidate(runs.directory, d, reference, by) for d in documents]
    chosen: dict[str, float | None] = {}
    if demand.tpot_ms is not None:  # rank the smallest α in budget, not one with less loss
        chosen = {s: _in_budget(measured[s], demand.tpot_ms) for s in lossy}
    notes = _floor(reference) if by == "score" and reference is not None else []
    return Advice(
        rank(candidates, demand, chosen), {s: fit(measured[s]) for s in lossy}, measured,
        runs.left_out, notes, runs.missing if interrupted else [], interrupted,
    )  # fmt: skip


def _lossy(documents: Iterable[Document]) -> list[str]:
    """Return the names of the systems that have an α."""
    return sorted({d["spec"]["system"] for d in documents if d["spec"]["alpha"] is not None})


def _reference(documents: Iterable[Document]) -> Document | None:
    """Return a lossless run, whose score is the reference; None if there is none."""
    return next((document for document in documents if document["lossless"]), None)


def _search(
    runs: Runs, system: str, budget_ms: float, finished: Callable[[Document], None]
) -> None:
    """Measure the smallest α that is predicted to be in budget, until one is confirmed."""
    for _ in range(CONFIRMATIONS):
        measured = _times(runs.documents.values(), system)
        alpha = smallest_alpha(measured, budget_ms)
        if alpha is None or alpha in measured:
            return
        before = len(runs.documents)
        runs.of([system], [alpha], finished)
        if len(runs.documents) == before:
            return


def _in_budget(measured: Mapping[float, float], budget_ms: float) -> float | None:
    """Return the smallest measured α whose TPOT is within the budget."""
    return min((alpha for alpha, ms in measured.items() if ms <= budget_ms), default=None)


def _times(documents: Iterable[Document], system: str) -> dict[float, float]:
    """Return the mean TPOT in ms by α."""
    return {
        d["spec"]["alpha"]: d["metrics"]["tpot_ms"]["mean"]
        for d in documents
        if d["spec"]["system"] == system and d["spec"]["alpha"] is not None
    }


def _candidate(
    directory: Path, document: Document, reference: Document | None, by: By
) -> Candidate:
    return Candidate(
        system=document["spec"]["system"], alpha=document["spec"]["alpha"],
        tpot=tpot_of(directory, document), loss=_loss(document, reference, by),
        lossless=document["lossless"], run_id=document["run_id"], badge=basis(document),
    )  # fmt: skip


def tpot_of(directory: Path, document: Document) -> intervals.Estimate:
    """Return a run's mean TPOT in ms, with an interval if its token times were stored."""
    mean, prompts = document["metrics"]["tpot_ms"]["mean"], document["spec"]["prompts"]
    samples = read_samples(directory, document["run_id"]) or []
    sums: dict[int, tuple[float, float]] = {}
    for sample in samples:
        if sample.step:
            ns, steps = sums.get(sample.batch, (0.0, 0.0))
            sums[sample.batch] = ns + sample.ns / 1e6, steps + 1
    return intervals.ratio(list(sums.values())) or intervals.Estimate(mean, None, None, prompts)


def _loss(document: Document, reference: Document | None, by: By) -> intervals.Estimate | None:
    items = document["accuracy"]["items"]
    if by == "score":
        if reference is None:  # no lossless system was measured yet
            return None
        own, exact = (
            [(100.0 * value, 1.0) for value in one["accuracy"]["items"]["value"]]
            for one in (document, reference)
        )
        return intervals.difference(own, exact, paired=True)
    if by == "kl":
        if None in items["kl"]:
            return None
        return intervals.ratio(list(zip(items["kl"], items["decoded"], strict=True)))
    unlike = [100.0 * (d - a) for d, a in zip(items["decoded"], items["agreed"], strict=True)]
    return intervals.ratio(list(zip(unlike, items["decoded"], strict=True)))


def _floor(reference: Document) -> list[str]:
    """Return a warning if the lossless model's score is no better than chance."""
    if not score_at_floor(reference):
        return []
    score, chance = score_of(reference), dig(reference, "accuracy.chance") or 0.0
    return [
        f"the lossless model scores {score:.1f} % on {reference['spec']['workload']}, by chance it "
        f"would be {chance:.1f} %: what a system costs cannot be seen there; give --by kl"
    ]


def scoring_for(by: By, name: str | None) -> str | None:
    """Return the `scoring` option that a measure of loss needs; None for the default.

    Raises UsageError: the workload has no score.
    """
    if by != "score":
        return None
    chosen = workload(name or DEFAULT_WORKLOAD)
    if not chosen.scored:
        raise UsageError(f"--by score: {chosen.name} has no reference answers; allowed: kl")
    return scoring_of(chosen)
