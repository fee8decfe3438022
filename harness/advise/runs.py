"""Runs that advice needs, executed as sweep cells, so that finished cells are not run again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.harness.advise.choose import (
    By,
    Candidate,
    Demand,
    Fit,
    Ranking,
    fit,
    rank,
    smallest_alpha,
)
from moebench.harness.guard.accuracy_table import scoring_of
from moebench.harness.sweep.execute import carry_out, jobs_of, local_workers
from moebench.harness.sweep.plan import expand
from moebench.harness.sweep.planned import Planned
from moebench.harness.sweep.progress import board
from moebench.results import intervals
from moebench.results.document import Document, basis, dig, score_at_floor, score_of
from moebench.results.samples import read_samples
from moebench.results.store import Store
from moebench.substrate.errors import UsageError
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
    """

    ranking: Ranking
    fits: dict[str, Fit | None]
    measured: dict[str, dict[float, float]]
    left_out: dict[str, str]
    notes: list[str]


@dataclass(slots=True)
class Runs:
    """Executes cells and returns their documents.

    Attributes:
        given: fields of every cell, as a sweep's `common` contains them.
        texts: number of calibration texts of a trained system; None is its paper's number.
        jobs: processes; 0 runs everything in this one.
    """

    given: Mapping[str, Any]
    texts: int | None
    data_dir: Path | None
    directory: Path
    jobs: int
    left_out: dict[str, str] = field(default_factory=dict)

    def of(self, systems: Sequence[str], alphas: Sequence[float]) -> list[Document]:
        """Run every system, at every α if it has one; failures are left out, with the reason.

        Raises UsageError, InputError: an invalid value.
        """
        store, say = Store(self.directory), console.stderr().print
        store.schema()  # report an unreadable store before cells are hashed
        axes = {"system": [self._shown(name) for name in systems], "alpha": list(alphas)}
        specs = expand({"common": self.given, "product": axes}, self.data_dir, say)
        cells = jobs_of(specs, Planned(self.data_dir))
        finished = store.finished(job.cell_id for job in cells)
        todo = [job for job in cells if job.cell_id not in finished]
        if todo:
            opened = local_workers(self.jobs, self.data_dir, self.directory, samples=True)
            with board(len(todo)) as shown:
                carry_out(todo, store, opened, shown)
            finished = store.finished(job.cell_id for job in cells)
            failed = {cell.cell_id: cell.error or "" for cell in store.cells("failed")}
            self.left_out |= {
                job.spec.title: failed[job.cell_id] for job in cells if job.cell_id in failed
            }
        found = [store.get(finished[job.cell_id]) for job in cells if job.cell_id in finished]
        return [document for document in found if document is not None]

    def _shown(self, system: str) -> str | dict[str, Any]:
        """Return a system's entry in the sweep, with few calibration texts if it is trained."""
        policies = build(system).policies.values()
        learns = any(policy.calibrates and not policy.calibration_trace for policy in policies)
        if self.texts is None or not learns:
            return system
        return {"system": system, "calibrate_texts": self.texts}


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
    runs: Runs, systems: Sequence[str], alphas: Sequence[float], demand: Demand, by: By
) -> Advice:
    """Measure all systems, search the α of those that have one, and rank them.

    Raises UsageError: the demand cannot be judged, or a name or value is invalid.
    """
    documents = runs.of(systems, alphas)
    lossy = sorted({d["spec"]["system"] for d in documents if d["spec"]["alpha"] is not None})
    fits: dict[str, Fit | None] = {}
    measured: dict[str, dict[float, float]] = {}
    for system in lossy:
        if demand.tpot_ms is not None:
            documents += _search(runs, system, documents, demand.tpot_ms)
        measured[system] = _times(documents, system)
        fits[system] = fit(measured[system])
    reference = next((d for d in documents if d["lossless"]), None)
    if by == "score" and documents and reference is None:
        raise UsageError(
            "--by score: no lossless system was run to compare scores with; add one: "
            "--systems ...,moe-ondemand"
        )
    candidates = [_candidate(runs.directory, d, reference, by) for d in documents]
    chosen: dict[str, float | None] = {}
    if demand.tpot_ms is not None:  # rank the smallest α in budget, not one with less loss
        chosen = {s: _in_budget(measured[s], demand.tpot_ms) for s in lossy}
    notes = _floor(reference) if by == "score" and reference is not None else []
    return Advice(rank(candidates, demand, chosen), fits, measured, runs.left_out, notes)


def _search(
    runs: Runs, system: str, documents: Sequence[Document], budget_ms: float
) -> list[Document]:
    """Measure the smallest α that is predicted to be in budget, until one is confirmed."""
    found: list[Document] = []
    for _ in range(CONFIRMATIONS):
        measured = _times([*documents, *found], system)
        alpha = smallest_alpha(measured, budget_ms)
        if alpha is None or alpha in measured:
            break
        new = runs.of([system], [alpha])
        if not new:
            break
        found += new
    return found


def _in_budget(measured: Mapping[float, float], budget_ms: float) -> float | None:
    """Return the smallest measured α whose TPOT is within the budget."""
    return min((alpha for alpha, ms in measured.items() if ms <= budget_ms), default=None)


def _times(documents: Sequence[Document], system: str) -> dict[float, float]:
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
        assert reference is not None
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
