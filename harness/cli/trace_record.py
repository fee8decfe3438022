"""Records traces: runs whose model records every gate and prediction."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRequest:
    """The options of ``moebench trace record`` as typed.

    Attributes:
        given: those that `harness.run.rules.resolve` reads; None means "not given".
        workloads: one, or several for as many traces.
        every: one trace for each shipped scale model and workload.
        scores: the type of recorded scores, states and embeddings.
        states: whether states and embeddings are recorded; None is with scale models only.
        out: the trace's folder; where there may be several, their parent.
    """

    given: dict[str, Any]
    workloads: Sequence[str | None]
    every: bool
    scores: Kept
    states: bool | None
    data_dir: Path | None
    out: Path


def record(request: RecordRequest) -> None:
    """Record what was asked for; of several traces those that exist are left as they are."""
    several = request.every or len(request.workloads) > 1
    if several:
        require_folder("--out", request.out)
    else:
        require_new("--out", request.out)
    for spec in list(_specs(request)):
        out = request.out / f"{spec.model}__{spec.workload}" if several else request.out
        if several and out.exists():
            console.stderr().print(f"{out} exists")
            continue
        _record(spec, request, out)


def _specs(request: RecordRequest) -> Iterator[RunSpec]:
    given = dict(request.given)
    if request.every and (given.get("setting") or given.get("model") or given.get("weights")):
        raise UsageError("--all: every shipped scale model; leave --setting, --model and --weights")
    if given.get("machine") == "local":
        raise UsageError("--machine local: recording runs on a simulated machine")
    models = scale_names() if request.every else [None]
    for model in models:
        for workload in request.workloads:
            chosen = given | {"workload": workload}
            if model is not None:
                chosen |= _setting_of(model)
            if chosen.get("setting") is None and chosen.get("machine") is None:
                chosen["machine"] = MACHINE
            system = build(chosen["system"], chosen.get("overrides") or {})
            # A recording's times are not used, so its device may be larger than it is.
            chosen["allow_overcommit"] = system.all_resident or None
            yield resolve(request.data_dir, **chosen)


def _setting_of(model: str) -> dict[str, str]:
    """The first setting with this model, or the model alone."""
    names = [s.name for s in settings().values() if s.model == model]
    return {"setting": names[0]} if names else {"model": model}


def _record(spec: RunSpec, request: RecordRequest, out: Path) -> None:
    from moebench.harness.run.execute import run

    session = prepare(spec, request.data_dir)
    asks = session.system.lookaheads
    states = spec.weights is None if request.states is None else request.states
    with writing(out, _header(session)) as writer:
        writer.describe(predictions=recorded_predictions(asks, spec.system))

        session.wrap = lambda model: TraceRecorder(model, writer, request.scores, states)
        with console.progress(f"{spec.model} on {spec.workload}") as progress:
            run(session, out.parent, progress)
    megabytes = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    console.stderr().print(f"{out}: {spec.prompts} sequences, {megabytes:.1f} MB")


def _header(session: LiveSession) -> Header:
    spec, sample = session.spec, session.sample
    source = {
        "weights": spec.weights or f"scale model of {spec.model}",
        "weights_hash": session.hashes["weights"],
        "system": spec.system,
        "run_id": session.run_id,
        "spec": spec.model_dump(mode="json"),
        "data": f"{sample.source}: {len(sample.examples)} of {sample.available}",
        "data_hash": sample.data_hash,
    }
    header = header_of(session.checkpoint.shape, spec.model, spec.workload)
    return header.model_copy(update={"source": source, "lossless": session.system.lossless})
