"""``moebench run``, once its options are parsed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.harness.options import find_data_dir, parse_overrides, require_file, require_writable
from moebench.harness.run.spec import resolve
from moebench.results.store import Store
from moebench.substrate.errors import MoeBenchError, UsageError


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The options of ``moebench run`` as typed; None means "not given"."""

    given: dict[str, Any]
    overrides: list[str]
    data_dir: Path | None
    store: Path
    timeline: Path | None
    force: bool
    interval: bool
    json: bool


def run_command(request: RunRequest) -> None:
    """Resolve, reuse a stored result or run, store, show."""
    data_dir = find_data_dir(request.data_dir)
    spec = resolve(data_dir, **request.given, overrides=parse_overrides(request.overrides))
    console.say_refused([spec.system])
    if request.timeline is not None:
        if spec.native:
            raise UsageError(f"--timeline: {spec.system} is a package that shows no lanes")
        require_file("--timeline", request.timeline, folder_exists=True)
    require_writable(request.store)

    from moebench.harness.run.interval import add_interval
    from moebench.harness.run.runner import prepare, run
    from moebench.harness.run.session import Session
    from moebench.harness.sweep.worker import samples_of
    from moebench.results.samples import keep_with_samples
    from moebench.systems.own import blamed

    session = prepare(spec, data_dir)
    store = Store(request.store)
    stored = None if request.force or request.timeline else store.get(session.run_id)
    if stored is None:
        with console.progress(f"{spec.title} on {spec.model}") as progress:
            try:
                outcome = run(session, request.store, progress, request.timeline is not None)
            except MoeBenchError:
                raise
            except Exception as error:
                line = blamed(error, spec.system)
                if line is None:
                    raise
                raise line from error
        stored = outcome.document
        samples = samples_of(outcome.generations)
        cell = (session.run_id, spec.model_dump())
        keep_with_samples(store, stored, samples, cell, outcome.picture)
        if request.timeline is not None:
            outcome.timeline.write_chrome_trace(request.timeline)
            console.stderr().print(f"timeline in {request.timeline}: open it at ui.perfetto.dev")
    else:
        console.stderr().print(f"run {session.run_id} was stored; --force runs it again")
    wanted = request.interval and stored["simulated"] and stored.get("interval") is None
    if wanted and isinstance(session, Session):
        add_interval(stored, session, request.store)
        store.put(stored, store.timeline(session.run_id), (session.run_id, spec.model_dump()))
    if request.json:
        print(json.dumps(stored, sort_keys=True))
    else:
        console.show_run(stored)
