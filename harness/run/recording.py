"""Records the routing of live runs as traces: on request, or once for runs that replay it."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import torch

from moebench.harness.run.live import LiveSession
from moebench.results.spec import RunSpec
from moebench.substrate.traces.file import Array, Header
from moebench.substrate.traces.record import Kept, TraceRecorder, header_of, recorded_predictions
from moebench.substrate.traces.writer import writing

#: The machine of a recording that names none; with `gpu-only` no number depends on it.
MACHINE = "a6000"


class Recorded(NamedTuple):
    """What a trace keeps.

    Attributes:
        scores: the type of recorded scores, states and embeddings.
        states: whether states and embeddings are recorded; None is with scale models only.
    """

    scores: Kept
    states: bool | None


#: What `--routing replayed` keeps: its replay is exact, and every system finds what it reads.
EXACT = Recorded("float32", True)


#: Carries out a session: its arguments are the session, a scratch folder, and what is told of
#: prompts done and to do.
Run = Callable[[LiveSession, Path, Callable[[int, int], None]], object]


def answered(session: LiveSession, scratch: Path, progress: Callable[[int, int], None]) -> None:
    """Generate all answers of a session whose system learns nothing, and no document."""
    torch.set_num_threads(1)
    spec = session.spec
    with ExitStack() as stack, torch.inference_mode():
        stage = session.open(scratch, False, stack)
        stage.start()
        for first in range(0, spec.prompts, spec.batch):
            session.answer(stage, slice(first, first + spec.batch))
            progress(first + spec.batch, spec.prompts)


def record(
    session: LiveSession, out: Path, kept: Recorded, run: Run = answered,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:  # fmt: skip
    """Run a session and write its routing to a new folder.

    Args:
        run: carries out the session; `execute.run` if its system must learn first.

    Raises UsageError: the folder exists.
    """
    states = session.spec.weights is None if kept.states is None else kept.states
    with writing(out, header(session)) as writer:
        predictions = recorded_predictions(session.system.lookaheads, session.spec.system)
        writer.describe(predictions=predictions)
        session.wrap = lambda model: TraceRecorder(model, writer, kept.scores, states)
        run(session, out.parent, progress)


def header(session: LiveSession) -> Header:
    """Return the header of a session's trace, without what only its writer knows."""
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


def once(spec: RunSpec) -> RunSpec:
    """Return the run that is recorded for all runs with the same weights, prompts and lengths.

    Its model is resident, so that the chosen experts are the model's own.
    """
    return RunSpec(
        system="gpu-only", machine=MACHINE, allow_overcommit=True, model=spec.model,
        weights=spec.weights, workload=spec.workload, prompts=spec.prompts,
        new_tokens=spec.new_tokens, seed=spec.seed, few_shot=spec.few_shot,
        plain_prompts=spec.plain_prompts,
    )  # fmt: skip


def planned_header(session: LiveSession) -> Header:
    """Return the header of a recording that keeps everything (`EXACT`), before it is made."""
    found, shape = header(session), session.weights.checkpoint.shape
    hidden = (0, found.num_moe_layers, shape.hidden_size)
    arrays = {
        "hidden": Array(dtype=EXACT.scores, shape=hidden, sha256=""),
        "embedding": Array(dtype=EXACT.scores, shape=(0, shape.hidden_size), sha256=""),
    }
    predictions = recorded_predictions(session.system.lookaheads, session.spec.system)
    return found.model_copy(update={"predictions": predictions, "arrays": arrays})
