"""One run, from a spec to its document: build, generate, measure."""

import gc
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from moebench.harness.run import measure
from moebench.harness.run.accuracy import Accuracy
from moebench.harness.run.answers import answer
from moebench.harness.run.calibration import calibrate, identity
from moebench.harness.run.inputs import Inputs, RunInputs
from moebench.harness.run.inputs import prepare as prepare_live
from moebench.harness.run.provenance import provenance
from moebench.harness.run.replay import ReplayInputs, no_accuracy, prepare_replay, replay, stage_of
from moebench.harness.run.shared import SharedWork
from moebench.harness.run.spec import RunSpec
from moebench.harness.run.stage import Stage, set_up
from moebench.substrate.engine.loop import Generation
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.models.protocol import Model
from moebench.systems.options import build, describe

__all__ = ["Outcome", "prepare", "run"]

#: Decoded tokens of the first batch that the report's picture shows.
PICTURE_TOKENS = (8, 10)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run: its document, the picture's spans, and the records behind them."""

    document: dict[str, Any]
    picture: list[dict[str, Any]]
    timeline: Timeline
    generations: list[Generation]


def prepare(spec: RunSpec, data_dir: Path | None) -> Inputs | ReplayInputs:
    """Open what a run reads: weights and questions, or a trace; see `inputs.prepare`."""
    if spec.trace is not None:
        return prepare_replay(spec)
    inputs = prepare_live(spec, data_dir)
    inputs.hashes |= identity(spec, data_dir)
    return inputs


def run(
    inputs: Inputs | ReplayInputs,
    scratch: Path,
    progress: Progress = lambda done, total: None,
    keep_timeline: bool = False,
    shared: SharedWork | None = None,
    wrap: Callable[[Model], Model] = lambda model: model,
) -> Outcome:
    """Carry out a run.

    Args:
        inputs: from `prepare`.
        scratch: where expert records are kept for a local machine.
        keep_timeline: keep every span, not only the picture's.
        shared: of the run's checkpoint, where several runs use it.
        wrap: put around a model that computes, for example to record what it answers.

    Raises:
        MoeBenchError: anything that the user can mend; nothing was stored.
    """
    started = time.monotonic()
    spec = inputs.spec
    system = build(spec.system, spec.settings)
    # The scale model's products are too small to share between threads.
    torch.set_num_threads(1)
    if isinstance(inputs, Inputs):
        shared = shared or SharedWork(inputs.checkpoint)
    learnt = calibrate(system, inputs, shared, scratch, progress)
    with ExitStack() as stack, torch.inference_mode():
        stage: Stage
        if isinstance(inputs, ReplayInputs):
            stage = stage_of(inputs, system, keep_timeline)
            work, accuracy = partial(replay, inputs, stage), no_accuracy
        else:
            assert isinstance(inputs, Inputs)
            assert shared is not None
            stage = live = set_up(spec, system, inputs, shared, scratch, keep_timeline, stack, wrap)
            answers = Accuracy(inputs.workload, len(inputs.questions))
            work, accuracy = partial(answer, inputs, live, answers), answers.document
        load_ms = stage.start()
        # What lives now lives until the end: the collector need not walk it again and again.
        gc.freeze()
        stack.callback(gc.unfreeze)
        generations = _generate(spec, stage, work, progress)
        document = _document(spec, stage, inputs, generations, accuracy(), load_ms)
    if isinstance(inputs, ReplayInputs):
        inputs.mark(document)
    document["provenance"]["learnt"] = learnt
    document["provenance"]["wall_s"] = round(time.monotonic() - started, 3)
    return Outcome(document, stage.timeline.picture(), stage.timeline, generations)


def _generate(
    spec: RunSpec, stage: Stage, work: Callable[[slice], list[Generation]], progress: Progress
) -> list[Generation]:
    generations = []
    batches = range(0, spec.prompts, spec.batch)
    for done, first in enumerate(batches):
        stage.timeline.window(PICTURE_TOKENS if first == 0 else None)
        generations += work(slice(first, first + spec.batch))
        progress(done + 1, len(batches))
    return generations


def _document(
    spec: RunSpec, stage: Stage, inputs: RunInputs, generations: list[Generation],
    accuracy: dict[str, Any], load_ms: float,
) -> dict[str, Any]:  # fmt: skip
    profile, engine = stage.profile, stage.engine
    resolved = {
        **spec.model_dump(),
        "alpha": getattr(engine.system.route, "alpha", None),
        "cache_ratio": measure.ratio(stage.slots, stage.total),
        "slots": stage.slots,
        "options": describe(engine.system),
    }
    return {
        "run_id": inputs.run_id,
        "spec": resolved,
        "badge": "measured" if profile is None else profile.badge,
        "simulated": profile is not None,
        "lossless": engine.system.lossless,
        "notes": stage.notes,
        "metrics": {
            **measure.latencies(generations),
            **measure.expert_figures(engine),
            **measure.lane_figures(stage.timeline),
            "peak_device_bytes": stage.device.peak_bytes,
            "peak_host_bytes": stage.host.peak_bytes,
            **measure.energy(profile, stage.timeline, generations),
            "load_ms": load_ms,
        },
        "accuracy": accuracy,
        "bound": measure.bound(engine, generations),
        "provenance": provenance(inputs, profile),
    }
