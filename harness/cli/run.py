"""``moebench run``, once its options are parsed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.harness.cli.timeline import require_place, write_timeline
from moebench.harness.options import find_data_dir, parse_overrides, require_writable
from moebench.harness.run.spec import resolve
from moebench.results.store import Store
from moebench.substrate.errors import UsageError


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
        require_place("--timeline", request.timeline)
    require_writable(request.store)

    from moebench.harness.run.interval import add_interval
    from moebench.harness.run.runner import prepare, run
    from moebench.harness.run.session import Session
    from moebench.harness.sweep.worker import samples_of
    from moebench.results.samples import samples_of_run

    session = prepare(spec, data_dir)
    store = Store(request.store)
    stored = None if request.force or request.timeline else store.get(session.run_id)
    if stored is None:
        with console.progress(f"{spec.title} on {spec.model}") as progress:
            outcome = run(session, request.store, progress, request.timeline is not None)
        stored = outcome.document
        with samples_of_run(request.store, session.run_id, samples_of(outcome.generations)):
            store.put(stored, outcome.picture, (session.run_id, spec.model_dump()))
        if request.timeline is not None:
            write_timeline(request.timeline, outcome.timeline.records(), stored)
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
