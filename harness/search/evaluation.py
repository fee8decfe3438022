"""Compositions as runs: stored like any other run, each computed once, several at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moebench.harness.sweep.execute import keep
from moebench.harness.sweep.planned import Planned
from moebench.harness.sweep.pool import Workers, schedule
from moebench.harness.sweep.worker import Failed, Job, group_of
from moebench.results.intervals import Interval, ratio_interval
from moebench.results.samples import TokenSample, read_samples
from moebench.results.spec import RunSpec
from moebench.results.store import Store
from moebench.substrate.errors import MoeBenchError

#: Tokens whose mean is one sample of a paired difference: neighbouring tokens are alike.
BLOCK = 8


class Refused(NamedTuple):
    """A run that cannot be, and why; ``broken`` if it is a defect."""

    why: str
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """A finished run: its document, and each decoded token's time in ns."""

    document: dict[str, Any]
    token_ns: np.ndarray

    @property
    def tpot_ms(self) -> float:
        """Mean time per decoded token, in ms."""
        return float(self.document["metrics"]["tpot_ms"]["mean"])

    @property
    def kl(self) -> float | None:
        """KL divergence from the lossless model in nats a token; None where none was computed."""
        accuracy = self.document.get("accuracy")
        return None if accuracy is None or accuracy.get("kl") is None else float(accuracy["kl"])

    @property
    def kl_interval(self) -> Interval | None:
        """The KL divergence's 95 % interval over prompts; None for one prompt, or without a KL."""
        items = (self.document.get("accuracy") or {}).get("items") or {"kl": [None]}
        return None if None in items["kl"] else ratio_interval(items["kl"], items["decoded"])

    @property
    def run_id(self) -> str:
        """The run's id in the store."""
        return str(self.document["run_id"])


class Difference(NamedTuple):
    """Mean difference of two runs' decoded tokens in ms, and its standard error."""

    mean_ms: float
    error_ms: float

    @property
    def clear(self) -> bool:
        """Whether it is larger than twice its standard error."""
        return abs(self.mean_ms) > 2 * self.error_ms


def paired(one: Sequence[Measured], other: Sequence[Measured]) -> Difference:
    """Return the difference of two systems' tokens, the first minus the second.

    Both ran the same prompts with as many tokens.  A sample is the mean of `BLOCK` tokens.

    Raises ValueError: they have not the same numbers of tokens.
    """
    blocks = []
    for mine, yours in zip(one, other, strict=True):
        if len(mine.token_ns) != len(yours.token_ns):
            raise ValueError("runs of different lengths are not paired")
        gap_ms = (mine.token_ns - yours.token_ns) / 1e6
        blocks += [part.mean() for part in np.split(gap_ms, range(BLOCK, len(gap_ms), BLOCK))]
    found = np.array(blocks)
    error = found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else float("inf")
    return Difference(float(found.mean()), float(error))


class Evaluator:
    """Runs specs on workers that stay open, and keeps each run in the store.

    Args:
        directory: the store's folder.
        workers: run cells; they are not released between calls.
    """

    def __init__(self, data_dir: Path | None, directory: Path, workers: Workers) -> None:
        self._store, self._planned = Store(directory), Planned(data_dir)
        self._workers = _Open(workers)
        self._known: dict[str, Measured | Refused] = {}

    def run(
        self, specs: Sequence[RunSpec | Refused],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Measured | Refused]:  # fmt: skip
        """Return each spec's run, from the store or computed now; what is refused stays so."""
        jobs = [self._job(spec) if isinstance(spec, RunSpec) else spec for spec in specs]
        todo: dict[str, Job] = {}
        for job in jobs:
            if isinstance(job, Job) and not self._is_known(job):
                todo[job.cell_id] = job
        for _, job, outcome in schedule(todo.values(), self._workers):
            if isinstance(outcome, Failed):
                found: Measured | Refused = Refused(outcome.error, outcome.traceback is not None)
            else:
                keep(self._store, job, outcome)
                found = Measured(outcome.document, _token_ns(outcome.samples))
            self._known[job.cell_id] = found
            progress(sum(cell in self._known for cell in todo), len(todo))
        return [self._known[job.cell_id] if isinstance(job, Job) else job for job in jobs]

    def problem(self, spec: RunSpec) -> str | None:
        """Return why a spec cannot run, as far as that is known without a run; else None."""
        return self._planned.problem(spec)

    def _job(self, spec: RunSpec) -> Job | Refused:
        try:
            return Job(self._planned.cell_id(spec), spec, group_of(spec))
        except MoeBenchError as error:
            return Refused(str(error))

    def _is_known(self, job: Job) -> bool:
        """Whether a cell was run by this search, or is in the store with the time of each token."""
        if job.cell_id in self._known:
            return True
        run_id = self._store.finished([job.cell_id]).get(job.cell_id)
        document = None if run_id is None else self._store.reusable(run_id)
        samples = None if run_id is None else read_samples(self._store.directory, run_id)
        if document is None or samples is None:
            return False
        self._known[job.cell_id] = Measured(document, _token_ns(samples))
        return True


def _token_ns(samples: Sequence[TokenSample]) -> np.ndarray:
    return np.array([one.ns for one in samples if one.step], dtype=float)


class _Open:
    """Workers that are not released when nothing waits for them: the next trials need them."""

    def __init__(self, workers: Workers) -> None:
        self.size, self._workers = workers.size, workers

    def send(self, worker: int, job: Job) -> None:
        self._workers.send(worker, job)

    def wait(self) -> Any:
        return self._workers.wait()

    def release(self, worker: int) -> None:
        """Keep the worker."""

    def close(self) -> None:
        self._workers.close()
