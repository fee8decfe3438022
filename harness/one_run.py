"""One run from its spec to its document; `harness.keep` stores it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from moebench.harness.extras import EXTRAS, install_errors, require
from moebench.harness.native import run as native
from moebench.harness.run import execute
from moebench.harness.run.live import LiveSession
from moebench.harness.run.replay import ReplaySession
from moebench.harness.run.session import Outcome, Prepared
from moebench.results.spec import RunSpec
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
