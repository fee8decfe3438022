"""One run from its spec to the store: prepare, run, keep."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moebench.harness.extras import EXTRAS, install_errors, require
from moebench.harness.native import run as native
from moebench.harness.run import execute
from moebench.harness.run.live import LiveSession
from moebench.harness.run.replay import ReplaySession
from moebench.harness.run.session import Outcome, Prepared
from moebench.results.samples import TokenSample, samples_of_run
from moebench.results.spec import RunSpec
from moebench.results.store import Store
from moebench.substrate.engine.records import Generation
from moebench.workloads.catalogue import workload

Progress = Callable[[int, int], None]


@install_errors()
def prepare(spec: RunSpec, data_dir: Path | None) -> Prepared:
    """Open the inputs of a run (weights and prompts, or a trace) and build its system.

    Args:
        data_dir: the folder of evaluation sets, if any.

    Raises MoeBenchError: one line that says what, where and what is allowed.
    """
    if spec.scoring == "generation" and workload(spec.workload).metric == "rouge":
        require("rouge_score", f"--workload {spec.workload}")  # before anything is computed
    if not spec.native:
        return execute.prepare(spec, data_dir)
    session = native.prepare(spec, data_dir)
    for module in EXTRAS.keys() & {*session.system.libraries}:
        require(module, f"--system {spec.system}")
    return session


@contextmanager
def opened(spec: RunSpec, data_dir: Path | None) -> Iterator[Prepared]:
    """Prepare a run; its files are closed at the end of the context."""
    session = prepare(spec, data_dir)
    try:
        yield session
    finally:
        session.close()


@install_errors()
def run(
    session: Prepared, scratch: Path, progress: Progress = lambda done, total: None,
    keep_timeline: bool = False,
) -> Outcome:  # fmt: skip
    """Run a prepared session on the engine or in a package's process.

    Args:
        session: from `prepare`.
        scratch: where expert records are kept for a local machine, and fitted policies.
        progress: called with the batches done and to do.
        keep_timeline: keep every span, not only those of the report's excerpt.

    Raises MoeBenchError: anything that the user can mend; nothing was stored.
    """
    if isinstance(session, native.NativeSession):
        return native.run(session, scratch, progress)
    assert isinstance(session, LiveSession | ReplaySession)
    return execute.run(session, scratch, progress, keep_timeline)


def keep(
    store: Store, document: dict[str, Any], picture: list[dict[str, Any]] | None,
    samples: Sequence[TokenSample] = (), cell: tuple[str, dict[str, Any]] | None = None,
) -> None:  # fmt: skip
    """Store a run's samples, then its document.

    Args:
        picture: spans of the report's excerpt, if they were kept.
        samples: the time of every token.
        cell: the id and spec for which the run was asked, if the store must know these.

    Raises MoeBenchError: the store cannot be written.
    """
    with samples_of_run(store, document["run_id"], samples):
        store.put(document, picture, cell)


def samples_of(generations: Sequence[Generation]) -> list[TokenSample]:
    """Return the time and the numbers of active experts of every token of a run."""
    found = []
    for batch, generation in enumerate(generations):
        times = [generation.ttft_ns, *generation.steps_ns]
        active: list[list[int] | None] = [[*map(len, step)] for step in generation.used]
        # A package that runs by itself does not say what it used; no prefill does.
        active = [None, *(active or [None] * len(generation.steps_ns))]
        for step, (ns, experts) in enumerate(zip(times, active, strict=True)):
            found.append(TokenSample(batch, step, ns, experts))
    return found
