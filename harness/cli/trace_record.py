"""Implements ``moebench trace record``: runs that record every gate and prediction."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.harness.arguments import require_folder, require_new
from moebench.harness.run.live import LiveSession, prepare
from moebench.harness.run.rules import resolve
from moebench.harness.settings import settings
from moebench.results.spec import RunSpec
from moebench.substrate.errors import UsageError
from moebench.substrate.models.catalogue import scale_names
from moebench.substrate.traces.file import Header
from moebench.substrate.traces.record import Kept, TraceRecorder, header_of, recorded_predictions
from moebench.substrate.traces.writer import writing
from moebench.systems.options import build

#: The machine of a recording that names none; with `gpu-only` no number depends on it.
MACHINE = "a6000"


def record(
    given: Mapping[str, Any], workloads: Sequence[str | None], data_dir: Path | None, out: Path,
    every: bool, scores: Kept, states: bool | None,
) -> None:  # fmt: skip
    """Record the requested traces; of several, existing ones are kept.

    Args:
        given: run options, as `harness.run.rules.resolve` takes them.
        workloads: one, or several for as many traces.
        out: the trace's folder; where there may be several, their parent.
        every: one trace for each shipped scale model and workload.
        scores: the type of recorded scores, states and embeddings.
        states: whether states and embeddings are recorded; None is with scale models only.
    """
    several = every or len(workloads) > 1
    if several:
        require_folder("--out", out)
    else:
        require_new("--out", out)
    for spec in list(_specs(given, workloads, every, data_dir)):
        folder = out / f"{spec.model}__{spec.workload}" if several else out
        if several and folder.exists():
            console.stderr().print(f"{folder} exists")
            continue
        _record(spec, data_dir, folder, scores, spec.weights is None if states is None else states)


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


def _record(spec: RunSpec, data_dir: Path | None, out: Path, scores: Kept, states: bool) -> None:
    from moebench.harness.run.execute import run

    session = prepare(spec, data_dir)
    with writing(out, _header(session)) as writer:
        predictions = recorded_predictions(session.system.lookaheads, spec.system)
        writer.describe(predictions=predictions)
        session.wrap = lambda model: TraceRecorder(model, writer, scores, states)
        with console.progress(f"{spec.model} on {spec.workload}") as progress:
            run(session, out.parent, progress)
    megabytes = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    console.stderr().print(f"{out}: {spec.prompts} sequences, {megabytes:.1f} MB")


def _header(session: LiveSession) -> Header:
    spec, sample = session.spec, session.sample
    source = {
        "weights": spec.weights or f"scale model of {spec.model}",
        "weights_hash": session.hashes["weights"], "system": spec.system, "run_id": session.run_id,
        "spec": spec.model_dump(mode="json"),
        "data": f"{sample.source}: {len(sample.examples)} of {sample.available}",
        "data_hash": sample.data_hash,
    }  # fmt: skip
    header = header_of(session.weights.checkpoint.shape, spec.model, spec.workload)
    return header.model_copy(update={"source": source, "lossless": session.system.lossless})
