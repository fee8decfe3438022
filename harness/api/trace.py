"""Records routing traces: what `moebench trace record` and `moebench.trace` do.

A trace holds every gate and prediction of a run; `moebench.run(..., trace=DIR)` replays it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from moebench.harness.api.options import Options, SystemName, given_of
from moebench.harness.api.run import Shown, console_progress, silent
from moebench.harness.arguments import find_data_dir, require_folder, require_new
from moebench.harness.run.execute import run
from moebench.harness.run.live import prepare
from moebench.harness.run.recording import MACHINE, Recorded
from moebench.harness.run.recording import record as record_session
from moebench.harness.run.rules import resolve
from moebench.harness.settings import settings
from moebench.results.spec import RunSpec
from moebench.substrate.errors import UsageError
from moebench.substrate.models.catalogue import scale_names
from moebench.substrate.traces.file import TraceFile, open_trace
from moebench.substrate.traces.record import Kept
from moebench.systems.options import build


def trace(
    out: Path | str, *, system: SystemName = "gpu-only", scores: Kept = "float16",
    states: bool | None = None, data_dir: Path | str | None = None, progress: bool = False,
    **options: Unpack[Options],
) -> TraceFile:  # fmt: skip
    """Record the routing of a run as a trace in a new folder, and open it.

        moebench.trace("facts", model="mixtral-8x7b", workload="facts", prompts=8)
        moebench.run("smoe", trace="facts", setting="S3")

    Args:
        out: the trace's folder; it must not exist.
        scores: type of the stored scores; a float32 trace replays exactly as the live run.
        states: whether hidden states and embeddings are recorded; None is with scale models only.
        system, data_dir, progress, options: as of `moebench.run`.

    Raises MoeBenchError: one line that says what, where and what is allowed.
    """
    folder = Path(out)
    require_new("out", folder)
    found = find_data_dir(None if data_dir is None else Path(data_dir))
    given = given_of(system, options, "trace")
    (spec,) = _specs(given, [given.get("workload")], False, found)
    _record(spec, found, folder, Recorded(scores, states), console_progress if progress else silent)
    return open_trace(folder)


def record(
    given: Mapping[str, Any], workloads: Sequence[str | None], data_dir: Path | None, out: Path,
    every: bool, kept: Recorded, shown: Shown, say: Callable[[str], None],
) -> None:  # fmt: skip
    """Record the requested traces; of several, existing ones are kept.

    Args:
        given: run options, as `harness.run.rules.resolve` takes them.
        workloads: one, or several for as many traces.
        out: the trace's folder; where there may be several, their parent.
        every: one trace for each shipped scale model and workload.
        say: told of each trace.
    """
    several = every or len(workloads) > 1
    if several:
        require_folder("--out", out)
    else:
        require_new("--out", out)
    for spec in list(_specs(given, workloads, every, data_dir)):
        folder = out / f"{spec.model}__{spec.workload}" if several else out
        if several and folder.exists():
            say(f"{folder} exists")
            continue
        _record(spec, data_dir, folder, kept, shown)
        megabytes = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        say(f"{folder}: {spec.prompts} sequences, {megabytes:.1f} MB")


def _specs(
    given: Mapping[str, Any], workloads: Sequence[str | None], every: bool, data_dir: Path | None
) -> Iterator[RunSpec]:
    if every and (given.get("setting") or given.get("model") or given.get("weights")):
        raise UsageError("--all: every shipped scale model; leave --setting, --model and --weights")
    if given.get("machine") == "local":
        raise UsageError("--machine local: recording runs on a simulated machine")
    for model in scale_names() if every else [None]:
        for workload in workloads:
            chosen = {**given, "workload": workload}
            if model is not None:
                chosen |= _setting_of(model)
            if chosen.get("setting") is None and chosen.get("machine") is None:
                chosen["machine"] = MACHINE
            system = build(chosen["system"], chosen.get("overrides") or {})
            # A recording's times are not used, so its device may be larger than it is.
            chosen["allow_overcommit"] = system.all_resident or None
            yield resolve(data_dir, **chosen)


def _setting_of(model: str) -> dict[str, str]:
    """Return the first setting of a model, or the model itself."""
    names = [s.name for s in settings().values() if s.model == model]
    return {"setting": names[0]} if names else {"model": model}


def _record(spec: RunSpec, data_dir: Path | None, out: Path, kept: Recorded, shown: Shown) -> None:
    with shown(f"{spec.model} on {spec.workload}") as progress:
        record_session(prepare(spec, data_dir), out, kept, run, progress)
