"""Runs a prepared session on the engine: calibrate, place, generate, build the document."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from moebench.harness.run import document, live, replay
from moebench.harness.run.document import Document, document_of, engine_result
from moebench.harness.run.learn import calibrate
from moebench.harness.run.live import LiveSession
from moebench.harness.run.replay import ReplaySession
from moebench.harness.run.session import Outcome, Session
from moebench.harness.stage.kinds import check_machine
from moebench.harness.stage.stage import Stage
from moebench.results.spec import RunSpec
from moebench.substrate.engine.records import Generation
from moebench.substrate.files_read import below, collect_reads
from moebench.substrate.machines import energy
from moebench.substrate.progress_events import report_phase
from moebench.systems.compiled.engine import compiled

#: Decoded tokens of the first batch; the report's excerpt shows the last of them that was reached.
PICTURE_TOKENS = (1, 9)

Progress = Callable[[int, int], None]

#: A run whose prompts are known before it starts.
EngineRun = LiveSession | ReplaySession


def prepare(spec: RunSpec, data_dir: Path | None) -> EngineRun:
    """Open the inputs of a run on the engine and build its system."""
    return replay.prepare(spec, data_dir) if spec.replays else live.prepare(spec, data_dir)


def run(
    session: EngineRun, scratch: Path, progress: Progress = lambda done, total: None,
    keep_timeline: bool = False,
) -> Outcome:  # fmt: skip
    """Run a prepared session on the engine (arguments as in `harness.one_run.run`)."""
    with started(session, scratch, progress, keep_timeline) as ready, torch.inference_mode():
        generations = _generate(session, ready.stage, progress)
        written = ready.document(generations)
    timeline = ready.stage.timeline
    return Outcome(written, timeline.picture(), timeline, generations)


@contextmanager
def started(
    session: Session, scratch: Path, progress: Progress, keep_timeline: bool = False
) -> Iterator["Ready"]:
    """Open a session's stage, calibrate its system and place its experts.

    What is generated must be generated in torch's inference mode.
    """
    began = time.monotonic()
    # The scale model's products are too small to share between threads.
    torch.set_num_threads(1)
    with ExitStack() as stack:
        used = stack.enter_context(collect_reads())
        with torch.inference_mode():
            stage, learnt = calibrated(session, scratch, progress, keep_timeline, stack)
            report_phase("load")
            load_ns = stage.start()
        stage.engine = compiled(stage.engine)
        if stage.profile is None:
            stage.engine.measured_by = energy.open_meter(stage.card)
        stage.notes += [f"{name} learnt from {found['from']}" for name, found in learnt.items()]
        stage.notes += [found["note"] for found in learnt.values() if "note" in found]
        # What exists now is needed until the end: the collector need not visit it again.
        gc.freeze()
        stack.callback(gc.unfreeze)
        origin = {"learnt": learnt, "kept": below(scratch, used)}
        yield Ready(session, stage, origin, load_ns, began, document.involuntary_switches())


def calibrated(
    session: Session, scratch: Path, progress: Progress, keep_timeline: bool, stack: ExitStack
) -> tuple[Stage, dict[str, Any]]:
    """Open a session's stage and calibrate its system.

    What cannot run is refused before a system learns for minutes.  A system that learns the forms
    of its records is calibrated before its stage divides the memory into slots.

    Returns:
        the stage, and what was learnt by decision.
    """
    report_phase("load")
    system, learnable = session.system, partial(session.learnable, scratch, progress)
    late = bool(system.place.own_forms)
    if late:
        session.check_memory()
        check_machine(session.spec, system)
    stage = None if late else session.open(scratch, keep_timeline, stack)
    learnt = calibrate(system, session.full, learnable, scratch, progress)
    return stage or session.open(scratch, keep_timeline, stack), learnt


@dataclass(frozen=True, slots=True)
class Ready:
    """A started run: its experts are placed and nothing is generated yet.

    Attributes:
        origin: entries of the document's provenance: what policies learnt from, by decision, and
            the files below the store that the run read, relative to it.
        load_ns: the model's loading time.
        began: on the monotonic clock, in seconds.
        switches: involuntary context switches of this process so far.
    """

    session: Session
    stage: Stage
    origin: Mapping[str, Any]
    load_ns: int
    began: float
    switches: int

    def document(self, generations: list[Generation]) -> Document:
        """Return the run's document, after all batches were generated."""
        switches = document.involuntary_switches() - self.switches
        wall_s = round(time.monotonic() - self.began, 3)
        result = engine_result(self.session, self.stage, generations, self.load_ns, switches)
        return document_of(self.session, result, {**self.origin, "wall_s": wall_s})


def _generate(session: EngineRun, stage: Stage, progress: Progress) -> list[Generation]:
    generations = []
    batches = range(0, session.spec.prompts, session.spec.batch)
    for done, first in enumerate(batches):
        stage.timeline.window(PICTURE_TOKENS if first == 0 else None)
        generations += session.answer(stage, slice(first, first + session.spec.batch))
        progress(done + 1, len(batches))
    return generations
