"""Runs cells in one process of a sweep, and keeps inputs that later cells share."""

import gc
import platform
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from moebench.results.samples import TokenSample
from moebench.results.spec import OPTIONS, RunSpec
from moebench.substrate.errors import BudgetError, MoeBenchError, UsageError
from moebench.systems.registry import needs_import

if TYPE_CHECKING:
    from moebench.harness.run.session import Prepared
    from moebench.substrate.models.shared import SharedWork

Document = dict[str, Any]

#: A process that uses more memory than this after a cell drops what cells share.
MEMORY_LIMIT_BYTES = 700_000_000


class Job(NamedTuple):
    """A cell to run.

    Attributes:
        cell_id: what the store knows it by.
        group: equal for cells that read the same: they follow each other on one process.
    """

    cell_id: str
    spec: RunSpec
    group: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished cell: its document, timeline excerpt and token samples."""

    document: Document
    samples: list[TokenSample]
    picture: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed cell: the error in one line, and its traceback; None if it cannot run here."""

    error: str
    traceback: str | None


def group_of(spec: RunSpec) -> str:
    """Return a key that is equal for specs with the same weights and prompts, or trace.

    Those of native systems are opened by other sessions.
    """
    may_differ = ("always",) if spec.trace is None else ("always", "replay")
    own = {name for name in RunSpec.model_fields if OPTIONS[name].own in may_differ}
    kind = "native " if spec.native else ""
    return kind + spec.model_dump_json(exclude=own)


class Opened:
    """Prepares sessions of cells, and opens inputs that consecutive cells share once."""

    def __init__(self, data_dir: Path | None) -> None:
        self._data_dir = data_dir
        self._group = ""
        self._known: Prepared | None = None

    def session(self, spec: RunSpec) -> "Prepared":
        """Return the prepared session of a spec.

        Raises MoeBenchError: as `prepare` does.
        """
        from moebench.harness.one_run import prepare

        group = group_of(spec)
        if group == self._group and self._known is not None:
            return self._known.varied(spec)
        if self._known is not None:
            self._known.close()
        self._known = None
        self._known, self._group = prepare(spec, self._data_dir), group
        return self._known

    def problem(self, spec: RunSpec) -> str | None:
        """Return the reason why a cell cannot run, if known before running it; else None."""
        try:
            self.session(spec).check_memory()
        except MoeBenchError as error:
            return str(error)
        return None

    def cell_id(self, spec: RunSpec) -> str:
        """Return the id of a cell: its run id, or a repeatable id for a measured run.

        A cell whose inputs cannot be opened is known by its spec: it fails when it is run.
        """
        from moebench.harness.run.identity import run_id

        try:
            session = self.session(spec)
        except MoeBenchError:
            return run_id(spec, inputs="unusable")
        if spec.machine == "local":
            return run_id(spec, **session.hashes | {"profile": f"local {platform.node()}"})
        return session.run_id


class Worker:
    """Runs cells one after another.

    Args:
        scratch: where expert records are kept for cells on a local machine.
        samples: give every token's time too.
    """

    def __init__(self, data_dir: Path | None, scratch: Path, samples: bool) -> None:
        self._opened = Opened(data_dir)
        self._scratch, self._samples = scratch, samples
        self._group = ""
        self._shared: SharedWork | None = None

    def run(self, job: Job, code: str) -> Finished | Failed:
        """Run a cell; any exception becomes its failure.

        What a system that ships with moebench refuses cannot run here; a refusal of a user's own
        system may be a defect of it.

        Args:
            code: `code_hash` of the process that keeps the store.
        """
        from moebench.harness.run.identity import code_hash

        if code != code_hash():
            said = (
                f"moebench is not the same here and there: {platform.node()} has another "
                "version, or its files changed meanwhile; start the sweep again"
            )
            return Failed(said, said)
        try:
            return self._run(job)
        except (UsageError, BudgetError) as error:
            own = needs_import(job.spec.system, job.spec.overrides)
            return Failed(str(error), traceback.format_exc() if own else None)
        except MoeBenchError as error:
            return Failed(str(error), traceback.format_exc())
        except Exception as error:  # a bug here or in a system of the user's own: only this cell's
            return Failed(f"{type(error).__name__}: {error}", traceback.format_exc())
        finally:
            if resident_bytes() > MEMORY_LIMIT_BYTES:
                self._forget()

    def _run(self, job: Job) -> Finished:
        from moebench.harness.keep import samples_of
        from moebench.harness.one_run import run

        if self._group != job.group:
            self._forget()
        session = self._opened.session(job.spec)
        self._shared = session.share(self._shared)
        self._group = job.group
        try:
            outcome = run(session, self._scratch)
        except UsageError:
            if self._shared is None:
                raise
            # A prefill that its system routes in its own way cannot be shared: alone, it can run.
            self._forget()
            outcome = run(session.varied(job.spec), self._scratch)
        samples = samples_of(outcome.generations) if self._samples else []
        return Finished(outcome.document, samples, outcome.picture)

    def _forget(self) -> None:
        if self._shared is not None:
            self._shared = None
            gc.collect()


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 if unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * 4096
