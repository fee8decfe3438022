"""``moebench run``: one system on one model and machine."""

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from moebench.harness.cli.options import takes
from moebench.harness.cli.parameters import (
    DATA_DIR,
    DEFAULT_STORE,
    JSON,
    QUICK_PROMPTS,
    QUICK_TEXTS,
    QUICK_TOKENS,
    STORE,
    option,
)
from moebench.results.spec import OPTIONS

if TYPE_CHECKING:
    from moebench.harness.run.session import Prepared
    from moebench.results.spec import RunSpec


@takes(*OPTIONS)
def run(
    given: dict[str, Any],
    seeds: Annotated[
        int | None,
        option(
            "Number of seeds, counted from --seed; prints means and 95 % intervals.",
            min=2,
            max=1000,
        ),
    ] = None,
    quick: Annotated[
        bool,
        option(
            f"Shorter: --prompts {QUICK_PROMPTS} --new-tokens {QUICK_TOKENS} --calibrate-texts "
            f"{QUICK_TEXTS}, where these are not given; for a first look.",
            "--quick",
        ),
    ] = False,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    timeline: Annotated[Path | None, option("File to write a Perfetto trace to.")] = None,
    force: Annotated[bool, option("Run again even if the result is stored.")] = False,
    no_interval: Annotated[
        bool, option("Do not compute the intervals of simulated latencies.", "--no-interval")
    ] = False,
    json: JSON = False,
) -> None:
    """Run one system on one model and machine; store and show the results."""
    from moebench.harness import console
    from moebench.harness.arguments import find_data_dir, require_writable
    from moebench.harness.cli.run_time import since_start
    from moebench.harness.cli.timeline import require_place
    from moebench.substrate.errors import UsageError

    folder = find_data_dir(data_dir)
    if quick:
        given = {**_quick(given, folder), **given}
    specs = _specs(given, seeds, folder)
    console.say_refused([specs[0].system])
    if timeline is not None:
        if len(specs) > 1:
            raise UsageError(f"--timeline and --seeds {seeds}: give --seed instead")
        if specs[0].native:
            raise UsageError(f"--timeline: {specs[0].system} is a package that shows no lanes")
        require_place("--timeline", timeline)
    require_writable(store)
    if seeds is None:
        done = _run(specs[0], folder, store, force, timeline, not no_interval, since_start())
        document = done.document

        def complete() -> bool:
            return not no_interval and _add_interval(done, store)

        if json:
            complete()
            print(json_.dumps(document, sort_keys=True))
        else:
            console.show_run(document, store, complete)
        return
    from moebench.harness.cli.seeds import means, show_means

    documents = [
        _run(spec, folder, store, force, what=f", seed {spec.seed}").document for spec in specs
    ]
    found = means(documents)
    if json:
        print(json_.dumps({"runs": documents, "means": found}, sort_keys=True))
    else:
        show_means(documents, found)


def _specs(given: dict[str, Any], seeds: int | None, data_dir: Path | None) -> "list[RunSpec]":
    """Return the spec of the run, or one spec for each seed."""
    from moebench.harness.run.rules import resolve
    from moebench.substrate.errors import UsageError

    spec = resolve(data_dir, **given)
    if seeds is None:
        return [spec]
    if spec.trace is not None:
        raise UsageError(f"--seeds {seeds} and --trace: a trace has its own prompts")
    numbers = range(spec.seed, spec.seed + seeds)
    return [resolve(data_dir, **{**given, "seed": seed}) for seed in numbers]


def _quick(given: dict[str, Any], data_dir: Path | None) -> dict[str, Any]:
    """Return the options of a quick run, as far as they have an effect."""
    from moebench.harness.run.rules import resolve

    spec = resolve(data_dir, **given)
    found = {"prompts": min(spec.prompts, -(-QUICK_PROMPTS // spec.batch) * spec.batch)}
    if spec.scoring == "fixed-length" or spec.replays:  # else answers have their workload's length
        found["new_tokens"] = min(spec.new_tokens, QUICK_TOKENS)
    if spec.native or spec.replays:  # a replay learns from what its trace holds
        return found
    policies = spec.make_system().policies.values()
    if any(policy.calibrates and not policy.calibration_trace for policy in policies):
        found["calibrate_texts"] = QUICK_TEXTS
    return found


class _Done(NamedTuple):
    """A stored run with its session, from which its interval can be computed."""

    document: dict[str, Any]
    session: "Prepared"
    what: str


def _run(
    spec: "RunSpec", data_dir: Path | None, directory: Path, force: bool,
    timeline: Path | None = None, interval: bool = False, before_s: float = 0.0, what: str = "",
) -> _Done:  # fmt: skip
    """Return a stored run, or run it and store it.

    Args:
        interval: whether its interval will be computed.
        before_s: seconds since the command was started.
        what: tells the run from others beside it.
    """
    from moebench.harness import console
    from moebench.harness.cli.run_time import Announcer
    from moebench.harness.cli.timeline import write_timeline
    from moebench.results.store import Store
    from moebench.substrate.errors import MoeBenchError
    from moebench.substrate.progress_events import report_phase

    store, outcome = Store(directory), None
    what = f"{spec.title} on {spec.model}{what}"
    announcer = Announcer(spec, console.say, interval, before_s=before_s)
    with console.progress(what, also=announcer.phase) as progress:
        report_phase("load")
        # The first of these imports takes seconds, too.
        from moebench.harness import one_run
        from moebench.systems.user_classes import blamed

        session = one_run.prepare(spec, data_dir)
        stored = None if force or timeline else store.reusable(session.run_id)
        if stored is None:
            try:
                announcer.learning(session, directory)
                outcome = one_run.run(session, directory, progress, timeline is not None)
            except MoeBenchError:
                raise
            except Exception as error:
                line = blamed(error, spec.system)
                if line is None:
                    raise
                raise line from error
    if outcome is not None:
        stored, samples = outcome.document, one_run.samples_of(outcome.generations)
        cell = (session.run_id, spec.model_dump())
        one_run.keep(store, stored, outcome.picture, samples, cell)
        if timeline is not None:
            write_timeline(timeline, outcome.timeline.records(), stored)
    else:
        console.stderr().print(f"run {session.run_id} was stored; --force runs it again")
    assert stored is not None
    return _Done(stored, session, what)


def _add_interval(done: _Done, directory: Path) -> bool:
    """Add the interval of a simulated run that has none, and store it; return whether it did."""
    from moebench.harness import console, one_run
    from moebench.harness.run.execute import EngineRun
    from moebench.harness.run.interval import add_interval
    from moebench.results.store import Store

    document, session, what = done
    wanted = document["simulated"] and document.get("interval") is None
    if not (wanted and isinstance(session, EngineRun)):
        return False
    with console.progress(f"{what}, how sure its latencies are"):
        add_interval(document, session, directory)
    store, cell = Store(directory), (session.run_id, session.spec.model_dump())
    one_run.keep(store, document, store.timeline(session.run_id), cell=cell)
    return True
