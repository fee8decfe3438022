"""One run, from a spec to its document: prepare, calibrate, generate, measure."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from moebench.harness.native import run as native
from moebench.harness.run import live, measure, repetition, replay
from moebench.harness.run.learn import calibrate
from moebench.harness.run.provenance import provenance
from moebench.harness.run.session import OnEngine, Outcome, Prepared, Session
from moebench.harness.stage.stage import Stage
from moebench.results.spec import RunSpec
from moebench.substrate.engine.records import Generation
from moebench.substrate.files_read import below, noting
from moebench.substrate.machines import energy
from moebench.substrate.progress_events import tell
from moebench.systems.options import describe

__all__ = ["Outcome", "prepare", "run", "started"]

#: Decoded tokens of the first batch; the report's picture shows the last of them that was reached.
PICTURE_TOKENS = (1, 9)

Progress = Callable[[int, int], None]


def prepare(spec: RunSpec, data_dir: Path | None) -> Prepared:
    """Open what a run reads: weights and questions, or a trace; and build its system.

    Args:
        data_dir: the folder of evaluation sets, if any.

    Raises:
        MoeBenchError: one line that says what, where and what is allowed.
    """
    return native.prepare(spec, data_dir) if spec.native else on_engine(spec, data_dir)


def on_engine(spec: RunSpec, data_dir: Path | None) -> Session:
    """The same for a run on our own engine.

    Raises:
        MoeBenchError: one line that says what, where and what is allowed.
    """
    return replay.prepare(spec, data_dir) if spec.replays else live.prepare(spec, data_dir)


def run(
    session: Prepared,
    scratch: Path,
    progress: Progress = lambda done, total: None,
    keep_timeline: bool = False,
) -> Outcome:
    """Carry out a run.

    Args:
        session: from `prepare`.
        scratch: where expert records are kept for a local machine, and what systems learnt.
        keep_timeline: keep every span, not only the picture's.

    Raises:
        MoeBenchError: anything that the user can mend; nothing was stored.
    """
    if isinstance(session, native.NativeSession):
        torch.set_num_threads(1)
        with noting() as used:
            outcome = native.run(session, scratch, progress)
        outcome.document["provenance"]["kept"] = below(scratch, used)
        return outcome
    assert isinstance(session, Session)
    with started(session, scratch, progress, keep_timeline) as ready, torch.inference_mode():
        generations = _generate(session, ready.stage, progress)
        document = ready.document(generations)
    timeline = ready.stage.timeline
    return Outcome(document, timeline.picture(), timeline, generations)


@contextmanager
def started(
    session: OnEngine, scratch: Path, progress: Progress, keep_timeline: bool = False
) -> Iterator["Ready"]:
    """Open a run on our engine: its system has learnt what it learns, its experts are placed.

    What is generated must be generated in torch's inference mode.

    Raises:
        MoeBenchError: anything that the user can mend.
    """
    began = time.monotonic()
    # The scale model's products are too small to share between threads.
    torch.set_num_threads(1)
    with ExitStack() as stack:
        used = stack.enter_context(noting())
        with torch.inference_mode():
            tell("load")
            # What cannot run is refused here, before a system learns for minutes.
            stage = session.open(scratch, keep_timeline, stack)
            learnt = calibrate(session, scratch, progress)
            tell("load")
            load_ms = measure.ms(stage.start())
        if stage.profile is None:
            stage.engine.measured_by = energy.open_meter(stage.card)
        stage.notes += [f"{name} learnt from {found['from']}" for name, found in learnt.items()]
        stage.notes += [found["note"] for found in learnt.values() if "note" in found]
        # What exists now is needed until the end: the collector need not visit it again.
        gc.freeze()
        stack.callback(gc.unfreeze)
        yield Ready(
            session,
            stage,
            learnt,
            below(scratch, used),
            load_ms,
            began,
            measure.involuntary_switches(),
        )


@dataclass(frozen=True, slots=True)
class Ready:
    """A run that was started.

    Attributes:
        learnt: by decision, what was learnt from.
        kept: files below the store that the run read, relative to it.
        load_ms: the model's loading time.
        began: on the monotonic clock, in seconds.
        switches: involuntary ones of this process so far.
    """

    session: OnEngine
    stage: Stage
    learnt: dict[str, Any]
    kept: list[str]
    load_ms: float
    began: float
    switches: int

    def document(self, generations: list[Generation]) -> dict[str, Any]:
        """The run's document, once all was generated."""
        switches = measure.involuntary_switches() - self.switches
        document = _document(self.session, self.stage, generations, self.load_ms, switches)
        self.session.mark(document)
        document["provenance"]["learnt"] = self.learnt
        document["provenance"]["kept"] = self.kept
        document["provenance"]["wall_s"] = round(time.monotonic() - self.began, 3)
        return document


def _generate(session: Session, stage: Stage, progress: Progress) -> list[Generation]:
    generations = []
    batches = range(0, session.spec.prompts, session.spec.batch)
    for done, first in enumerate(batches):
        stage.timeline.window(PICTURE_TOKENS if first == 0 else None)
        generations += session.answer(stage, slice(first, first + session.spec.batch))
        progress(done + 1, len(batches))
    return generations


def _document(
    session: OnEngine,
    stage: Stage,
    generations: list[Generation],
    load_ms: float,
    switches: int,
) -> dict[str, Any]:
    profile, engine, system = stage.profile, stage.engine, session.system
    measured = None
    if stage.ran is not None:
        measured = {"model": stage.ran, **measure.steadiness(generations, switches)}
    repeated = repetition.repeated([t for g in generations for t in session.written(g)])
    resolved = {
        **session.spec.model_dump(),
        "alpha": system.alpha if system.has_alpha else None,
        "cache_ratio": measure.ratio(stage.slots, stage.total),
        "slots": stage.slots,
        "options": describe(system),
    }
    return {
        "run_id": session.run_id,
        "spec": resolved,
        "badge": stage.badge,
        "simulated": profile is not None,
        "measured": measured,
        "lossless": system.lossless and session.spec.expert_dtype is None,
        "oracle": system.clairvoyant,
        "memory": stage.memory,
        "notes": stage.notes + repetition.notes(repeated),
        "metrics": {
            **measure.latencies(generations),
            **measure.expert_figures(engine),
            **measure.lane_figures(stage.timeline),
            "host_memory": measure.host_memory_figures(engine.machine),
            "peak_device_bytes": stage.device.peak_bytes,
            "peak_host_bytes": stage.host.peak_bytes,
            **_energy(stage, generations),
            "load_ms": load_ms,
            "repeated_4grams": None if repeated is None else round(repeated, 6),
        },
        # `harness.run.interval` works it out, where it is asked for.
        "interval": None,
        "accuracy": session.accuracy(),
        "bound": measure.bound(engine, generations),
        "provenance": provenance(session, profile),
    }


def _energy(stage: Stage, generations: list[Generation]) -> dict[str, Any]:
    tokens = measure.generated_tokens(generations)
    if stage.profile is not None:
        seconds = sum(measure.durations_ns(generations)) / 1e9
        return energy.simulated(stage.profile, stage.timeline, seconds, tokens)
    meter = stage.engine.measured_by
    assert isinstance(meter, energy.Meter), "it was opened with the run"
    return meter.figures(tokens)
