"""Runs many cells, or takes their stored runs: what `moebench sweep` and `moebench.sweep` do."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

from moebench.harness.api.options import name_of
from moebench.harness.api.results import Failure, Runs, documents_of
from moebench.harness.arguments import find_data_dir, require_writable
from moebench.harness.sweep.execute import carry_out, jobs_of, local_workers, processes_for
from moebench.harness.sweep.plan import cells_from_file, expand
from moebench.harness.sweep.planned import Planned
from moebench.harness.sweep.pool import Workers
from moebench.harness.sweep.progress import Board, Unseen, board, forecast_of
from moebench.harness.sweep.worker import Job
from moebench.results.spec import RunSpec
from moebench.results.store import Store
from moebench.results.store_hints import DEFAULT_STORE
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError

Progress = Callable[[int, int], None]


class Plan(NamedTuple):
    """The cells of a sweep, and which of them a store has.

    Attributes:
        cells: every cell, grouped by shared inputs.
        todo: those that are to be run.
        known: of others, whether they are ``stored`` or ``failed before``, by the cell's id.
        planned: names and checks cells.
    """

    cells: list[Job]
    todo: list[Job]
    known: dict[str, str]
    planned: Planned

    @classmethod
    def of(
        cls, specs: list[RunSpec], store: Store, data_dir: Path | None, force: bool = False,
        retry_failed: bool = False, progress: Progress = lambda done, total: None,
    ) -> Self:  # fmt: skip
        """Return the plan of some specs on a store.

        Args:
            force: run stored cells again, too.
            retry_failed: run failed cells again.
        """
        planned = Planned(data_dir)
        store.schema()  # a store that cannot be read is said before cells are hashed
        cells = jobs_of(specs, planned, progress)
        finished = store.finished(job.cell_id for job in cells)
        failed = {cell.cell_id: cell.error for cell in store.cells("failed")}
        todo = [
            job for job in cells
            if (force or job.cell_id not in finished)
            and (retry_failed or force or job.cell_id not in failed)
        ]  # fmt: skip
        known = dict.fromkeys(finished, "stored") | dict.fromkeys(failed, "failed before")
        return cls(cells, todo, known, planned)

    def run(self, store: Store, opened: Callable[[bool], Workers], shown: Board) -> None:
        """Run the cells that are to be run, and store each when it is finished."""
        if self.todo:
            store.queue([(job.cell_id, job.spec.model_dump()) for job in self.todo])
            carry_out(self.todo, store, opened, shown)


def sweep(
    plan: Mapping[str, Any] | Path | str | None = None, *,
    store: Path | str = DEFAULT_STORE, data_dir: Path | str | None = None, jobs: int | None = None,
    force: bool = False, retry_failed: bool = False, samples: bool = True, progress: bool = False,
    **axes: Any,
) -> Runs:  # fmt: skip
    """Run every combination of the given values, store each run, and return all of them.

        moebench.sweep(system=["smoe", "daop"], setting="S3", batch=[1, 3]).frame()

    Finished cells are returned from the store.  Cells without a run are in ``failures`` of what is
    returned.

    Args:
        plan: a sweep's file, the name of one that ships, or its content (`docs/sweeps.md`); in
            place of ``axes``.
        store, data_dir, force, progress: as of `moebench.run`.
        jobs: worker processes; None is one a core, 0 runs all in this process.
        retry_failed: run failed cells again.
        samples: keep the time of every token.
        axes: values of options of a run (`moebench.harness.api.options.Options`), of ``system`` and
            of ``alpha``: one, or a list of them.

    Raises MoeBenchError: the plan is wrong, or the store cannot be written.
    """
    folder = find_data_dir(None if data_dir is None else Path(data_dir))
    place = Path(store)
    require_writable(place, "store")
    kept = Store(place)
    found = Plan.of(_specs(plan, axes, folder), kept, folder, force, retry_failed)
    opened = local_workers(jobs, folder, place, samples)
    with ExitStack() as stack:
        shown: Board = Unseen()
        if progress and found.todo:
            forecast = forecast_of(found.todo, kept, found.planned, processes_for(jobs))
            shown = stack.enter_context(board(forecast))
        found.run(kept, opened, shown)
    return ended(found.cells, kept)


def _specs(
    plan: Mapping[str, Any] | Path | str | None, axes: Mapping[str, Any], data_dir: Path | None
) -> list[RunSpec]:
    if plan is not None and axes:
        raise UsageError(f"sweep: a plan and {', '.join(axes)}: give one of them")
    if isinstance(plan, Path | str):
        return cells_from_file(Path(plan), data_dir)
    if plan is not None:
        return expand(plan, data_dir)
    if not axes:
        raise UsageError('sweep: nothing is given; for example system=["smoe", "daop"]')
    lists = {name: [_plain(one) for one in _values(value)] for name, value in axes.items()}
    return expand({"product": lists}, data_dir)


def _values(value: object) -> Iterable[object]:
    """Return the values of an axis: those of a collection, or the one that was given."""
    if isinstance(value, Collection) and not isinstance(value, str | Mapping):
        return value
    return [value]


def _plain(value: object) -> object:
    if isinstance(value, type) and issubclass(value, System):
        return name_of(value)
    return str(value) if isinstance(value, Path) else value


def ended(cells: Iterable[Job], store: Store) -> Runs:
    """Return the stored runs of cells, in their order, and the failures of the others."""
    names = [job.cell_id for job in cells]
    runs = store.finished(names)
    failed = {cell.cell_id: cell for cell in store.cells("failed")}
    failures = (failed[name] for name in names if name in failed and name not in runs)
    return Runs(
        tuple(documents_of(store, (runs[name] for name in names if name in runs))),
        store.directory,
        tuple(Failure(cell.spec, cell.error or "", cell.impossible) for cell in failures),
    )
