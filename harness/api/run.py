"""Runs one system, or takes its stored run: what `moebench run` and `moebench.run` do."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from moebench.harness import one_run
from moebench.harness.api.options import Options, SystemName, given_of, specs_of
from moebench.harness.api.results import Runs
from moebench.harness.arguments import find_data_dir, require_writable
from moebench.harness.keep import keep, samples_of
from moebench.harness.run.execute import EngineRun
from moebench.harness.run.interval import add_interval
from moebench.harness.run.session import Prepared
from moebench.results.document import Document
from moebench.results.spec import RunSpec
from moebench.results.store import Store
from moebench.results.store_hints import DEFAULT_STORE
from moebench.substrate.errors import MoeBenchError
from moebench.substrate.progress_events import report_phase
from moebench.systems.user_classes import blamed

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
    shown = console_progress if progress else silent
    documents = []
    for spec in specs:
        done = carry_out(spec, folder, place, force, shown)
        with closing(done.session):
            if interval and seeds is None:
                complete(done, place, shown)
        documents.append(done.document)
    return Runs(tuple(documents), place)


def console_progress(what: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """Show progress on stderr."""
    from moebench.harness import console

    return console.progress(what)


class Done(NamedTuple):
    """A run in the store, with the open session that made it or found it.

    Attributes:
        what: its title, for progress.
        timeline: all of its spans, if it was run now and they were asked for.
        stored: it was in the store before.
    """

    document: Document
    session: Prepared
    what: str
    timeline: list[dict[str, Any]] | None
    stored: bool


def carry_out(
    spec: RunSpec, data_dir: Path | None, directory: Path, force: bool = False,
    shown: Shown = silent, keep_timeline: bool = False, what: str = "",
    prepared: Callable[[Prepared], None] = lambda session: None,
) -> Done:  # fmt: skip
    """Run a spec and store the run, or take it from the store; `complete` adds its intervals.

    Args:
        keep_timeline: run it in any case, and return every span.
        what: tells the run from others beside it, for the progress.
        prepared: called before a session is run.

    Raises MoeBenchError: anything that the user can mend; a system's own error names its place.
    """
    store, outcome = Store(directory), None
    what = f"{spec.title} on {spec.model}{what}"
    with shown(what) as progress, ExitStack() as stack:
        report_phase("load")
        session = one_run.prepare(spec, data_dir)
        stack.callback(session.close)  # if it fails
        stored = None if force or keep_timeline else store.reusable(session.run_id)
        if stored is None:
            try:
                prepared(session)
                outcome = one_run.run(session, directory, progress, keep_timeline)
            except MoeBenchError:
                raise
            except Exception as error:
                line = blamed(error, spec.system)
                if line is None:
                    raise
                raise line from error
        stack.pop_all()
    if outcome is None:
        assert stored is not None
        return Done(stored, session, what, None, True)
    samples, cell = samples_of(outcome.generations), (session.run_id, spec.model_dump())
    keep(store, outcome.document, outcome.picture, samples, cell)
    spans = outcome.timeline.records() if keep_timeline else None
    return Done(outcome.document, session, what, spans, False)


def complete(done: Done, directory: Path, shown: Shown = silent) -> bool:
    """Add the interval of a simulated run that has none, and store it; return whether it did."""
    document, session = done.document, done.session
    wanted = document["simulated"] and document.get("interval") is None
    if not (wanted and isinstance(session, EngineRun)):
        return False
    with shown(f"{done.what}, how sure its latencies are"):
        add_interval(document, session, directory)
    store, cell = Store(directory), (session.run_id, session.spec.model_dump())
    keep(store, document, store.timeline(session.run_id), cell=cell)
    return True
