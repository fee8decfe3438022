"""Runs one system, or takes its stored run: what `moebench run` and `moebench.run` do."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from moebench.harness import one_run
from moebench.harness.api.options import Options, SystemName, given_of, specs_of
from moebench.harness.api.results import Runs
from moebench.harness.arguments import find_data_dir, require_writable
from moebench.harness.keep import keep, samples_of
from moebench.harness.run.execute import EngineRun
from moebench.harness.run.interval import add_interval
from moebench.results.document import Document
from moebench.results.spec import RunSpec
from moebench.results.store import Store
from moebench.substrate.errors import MoeBenchError
from moebench.substrate.progress_events import report_phase
from moebench.systems.user_classes import blamed

#: The folder in which results are stored.
DEFAULT_STORE = Path(".moebench")

#: Shows the progress of a piece of work by its name; yields a function of done and total.
Shown = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]


def silent(what: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """Show no progress."""
    return nullcontext(lambda done, total: None)


def run(
    system: SystemName, *, store: Path | str = DEFAULT_STORE, data_dir: Path | str | None = None,
    seeds: int | None = None, force: bool = False, interval: bool = True, progress: bool = False,
    **options: Unpack[Options],
) -> Runs:  # fmt: skip
    """Run one system on one model and machine, store the run and return it.

        moebench.run("smoe", setting="S3", alpha=0.2).frame()["tpot_ms"]

    A run that is stored already, with the same options, code and inputs, is returned from the
    store.

    Args:
        system: a name of ``moebench list systems``, ``module:Class``, or a class of a module.
        store: the folder of stored runs.
        data_dir: the folder of evaluation sets, or ``hub:``; None reads generated sets only.
        seeds: number of seeds, counted from ``seed``: one run for each.
        force: run again even if the result is stored.
        interval: compute the intervals of simulated latencies, of a run without seeds.
        progress: show progress on stderr.
        options: options of the run; see `Options`.

    Raises MoeBenchError: one line that says what, where and what is allowed; nothing was stored.
    """
    folder = find_data_dir(None if data_dir is None else Path(data_dir))
    specs = specs_of(given_of(system, options, "run"), seeds, folder)
    place = Path(store)
    require_writable(place, "store")
    with_interval = interval and seeds is None
    shown = console_progress if progress else silent
    done = [carry_out(spec, folder, place, force, with_interval, shown) for spec in specs]
    return Runs(tuple(one.document for one in done), place)


def console_progress(what: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """Show progress on stderr."""
    from moebench.harness import console

    return console.progress(what)


class Done(NamedTuple):
    """A run in the store.

    Attributes:
        timeline: all of its spans, if it was run now and they were asked for.
        stored: it was in the store before.
    """

    document: Document
    timeline: list[dict[str, Any]] | None
    stored: bool


def carry_out(
    spec: RunSpec, data_dir: Path | None, directory: Path, force: bool = False,
    interval: bool = True, shown: Shown = silent, keep_timeline: bool = False, what: str = "",
) -> Done:  # fmt: skip
    """Run a spec and store the run, or take it from the store; add its intervals if asked.

    Args:
        keep_timeline: run it in any case, and return every span.
        what: tells the run from others beside it, for the progress.

    Raises MoeBenchError: anything that the user can mend; a system's own error names its place.
    """
    store, outcome = Store(directory), None
    what = f"{spec.title} on {spec.model}{what}"
    with shown(what) as progress, one_run.opened(spec, data_dir) as session:
        report_phase("load")
        stored = None if force or keep_timeline else store.reusable(session.run_id)
        if stored is None:
            try:
                outcome = one_run.run(session, directory, progress, keep_timeline)
            except MoeBenchError:
                raise
            except Exception as error:
                line = blamed(error, spec.system)
                if line is None:
                    raise
                raise line from error
    cell = (session.run_id, spec.model_dump())
    if outcome is not None:
        stored, samples = outcome.document, samples_of(outcome.generations)
        keep(store, stored, outcome.picture, samples, cell)
    assert stored is not None
    wanted = interval and stored["simulated"] and stored.get("interval") is None
    if wanted and isinstance(session, EngineRun):
        with shown(f"{what}, how sure its latencies are"):
            add_interval(stored, session, directory)
        keep(store, stored, store.timeline(session.run_id), cell=cell)
    spans = outcome.timeline.records() if outcome is not None and keep_timeline else None
    return Done(stored, None if spans is None else list(spans), outcome is None)
