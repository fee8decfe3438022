"""``moebench run``: one system on one model and machine."""

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from contextlib import AbstractContextManager

    from moebench.harness.api.run import Done
    from moebench.harness.progress import Step
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
    from moebench.harness.api.options import specs_of
    from moebench.harness.arguments import find_data_dir, require_writable
    from moebench.harness.cli.run_time import since_start
    from moebench.harness.cli.timeline import require_place
    from moebench.substrate.errors import UsageError

    folder = find_data_dir(data_dir)
    if quick:
        given = {**_quick(given, folder), **given}
    specs = specs_of(given, seeds, folder)
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
            from moebench.harness.api.run import complete as add_interval

            return not no_interval and add_interval(done, store, console.progress)

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


def _run(
    spec: "RunSpec", data_dir: Path | None, directory: Path, force: bool,
    timeline: Path | None = None, interval: bool = False, before_s: float = 0.0, what: str = "",
) -> "Done":  # fmt: skip
    """Return a stored run, or run it and store it.

    Args:
        interval: whether its interval will be computed.
        before_s: seconds since the command was started.
        what: tells the run from others beside it.
    """
    from moebench.harness import console
    from moebench.harness.cli.run_time import Announcer
    from moebench.harness.cli.timeline import write_timeline
    from moebench.substrate.progress_events import report_phase

    announcer = Announcer(spec, console.say, interval, before_s=before_s)
    with console.progress(f"{spec.title} on {spec.model}{what}"):
        report_phase("load")
        from moebench.harness.api.run import carry_out  # takes seconds

    def shown(what: str) -> "AbstractContextManager[Step]":
        return console.progress(what, also=announcer.phase)

    done = carry_out(
        spec, data_dir, directory, force, shown, timeline is not None, what,
        lambda session: announcer.learning(session, directory),
    )  # fmt: skip
    if done.stored:
        console.stderr().print(f"run {done.session.run_id} was stored; --force runs it again")
    if timeline is not None:
        assert done.timeline is not None, "it was asked for"
        write_timeline(timeline, done.timeline, done.document)
    return done
