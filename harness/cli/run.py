"""``moebench run``, once its options are parsed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.harness.arguments import find_data_dir, parse_overrides, require_writable
from moebench.harness.cli.timeline import require_place, write_timeline
from moebench.harness.run.rules import resolve
from moebench.results.spec import RunSpec
from moebench.results.store import Store
from moebench.substrate.errors import MoeBenchError, UsageError
from moebench.substrate.progress_events import tell


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The options of ``moebench run`` as typed; None means "not given"."""

    given: dict[str, Any]
    overrides: list[str]
    data_dir: Path | None
    store: Path
    timeline: Path | None
    seeds: int | None
    force: bool
    interval: bool
    json: bool


def run_command(request: RunRequest) -> None:
    """Resolve, reuse stored results or run, store, show."""
    data_dir = find_data_dir(request.data_dir)
    specs = _specs(request, data_dir)
    console.say_refused([specs[0].system])
    if request.timeline is not None:
        if len(specs) > 1:
            raise UsageError(f"--timeline and --seeds {request.seeds}: give --seed instead")
        if specs[0].native:
            raise UsageError(f"--timeline: {specs[0].system} is a package that shows no lanes")
        require_place("--timeline", request.timeline)
    require_writable(request.store)
    documents = [_document(request, spec, data_dir) for spec in specs]
    if request.seeds is None:
        (document,) = documents
        if request.json:
            print(json.dumps(document, sort_keys=True))
        else:
            console.show_run(document, request.store)
        return
    from moebench.harness.cli.seeds import means, show_means

    found = means(documents)
    if request.json:
        print(json.dumps({"runs": documents, "means": found}, sort_keys=True))
    else:
        show_means(documents, found)


def _specs(request: RunRequest, data_dir: Path | None) -> list[RunSpec]:
    """The run, or the same with one seed after another, from the given one on."""
    overrides = parse_overrides(request.overrides)
    spec = resolve(data_dir, **request.given, overrides=overrides)
    if request.seeds is None:
        return [spec]
    if spec.trace is not None:
        raise UsageError(f"--seeds {request.seeds} and --trace: a trace has its own prompts")
    seeds = range(spec.seed, spec.seed + request.seeds)
    given = {key: value for key, value in request.given.items() if key != "seed"}
    return [resolve(data_dir, **given, seed=seed, overrides=overrides) for seed in seeds]


def _document(request: RunRequest, spec: RunSpec, data_dir: Path | None) -> dict[str, Any]:
    """One run's document, stored before or now."""
    store, outcome = Store(request.store), None
    seed = "" if request.seeds is None else f", seed {spec.seed}"
    what = f"{spec.title} on {spec.model}{seed}"
    with console.progress(what) as progress:
        tell("load")
        # The first of these imports takes seconds, too.
        from moebench.harness.run.execute import prepare, run
        from moebench.harness.run.interval import add_interval
        from moebench.harness.run.session import Session
        from moebench.harness.sweep.worker import samples_of
        from moebench.results.samples import samples_of_run
        from moebench.systems.user_classes import blamed

        session = prepare(spec, data_dir)
        stored = None if request.force or request.timeline else store.get(session.run_id)
        if stored is None:
            try:
                outcome = run(session, request.store, progress, request.timeline is not None)
            except MoeBenchError:
                raise
            except Exception as error:
                line = blamed(error, spec.system)
                if line is None:
                    raise
                raise line from error
    if outcome is not None:
        stored = outcome.document
        with samples_of_run(store, session.run_id, samples_of(outcome.generations)):
            store.put(stored, outcome.picture, (session.run_id, spec.model_dump()))
        if request.timeline is not None:
            write_timeline(request.timeline, outcome.timeline.records(), stored)
    else:
        console.stderr().print(f"run {session.run_id} was stored; --force runs it again")
    assert stored is not None
    alone = request.interval and request.seeds is None
    wanted = alone and stored["simulated"] and stored.get("interval") is None
    if wanted and isinstance(session, Session):
        with console.progress(f"{what}, how sure its latencies are"):
            add_interval(stored, session, request.store)
        store.put(stored, store.timeline(session.run_id), (session.run_id, spec.model_dump()))
    return stored
