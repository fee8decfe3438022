"""Benchmark of simulating a decoded token of S3: total time, forward pass and bookkeeping.

The same decisions run twice: live, with the scale model's forward pass, and replayed from the trace
of the live run, without it.  The replay is the bookkeeping (engine, policies, virtual clock); the
difference is the forward pass.  CPU time of this process, one thread, the best of several repeats;
figures are per decoded token at batch 1.

    python -m benchmarks.decode [--repeats 3]
"""

import argparse
import gc
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import torch

from moebench.harness.run.live import LiveSession, prepare
from moebench.harness.run.rules import resolve
from moebench.harness.stage.kinds import open_stage
from moebench.harness.stage.stage import Stage, StageRequest
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shared import SharedWork
from moebench.substrate.traces.passes import Recorder, RoutingTrace, TracedModel

SYSTEMS = ("gpu-only", "moe-ondemand", "smoe")
TOKENS = 64


class Measured(NamedTuple):
    """CPU time of a decoded token, and the trace of the run if it was recorded."""

    us_per_token: float
    trace: RoutingTrace | None


class _Clock:
    """Sum of the CPU seconds of an engine's decode passes."""

    def __init__(self, stage: Stage) -> None:
        self.seconds = 0.0
        self.tokens = 0
        engine, forward = stage.engine, stage.engine._forward

        def timed(phase: str) -> list[int]:
            started = time.process_time()
            tokens = forward(phase)  # type: ignore[arg-type]
            if phase == "decode":
                self.seconds += time.process_time() - started
                self.tokens += 1
            return tokens

        engine._forward = timed  # type: ignore[method-assign]

    @property
    def us_per_token(self) -> float:
        return self.seconds / self.tokens * 1e6


def measure(
    session: LiveSession, trace: RoutingTrace | None = None, record: bool = False
) -> Measured:
    """Run all prompts once, live or replayed from a trace, and measure decode."""
    recorders: list[Recorder] = []

    def recording(model: Model) -> Model:
        recorders.append(Recorder(model))
        return recorders[-1]

    with ExitStack() as stack, torch.inference_mode():
        spec, system, full = session.spec, session.system, session.full
        if trace is None:
            session.wrap = recording if record else (lambda model: model)
            stage = session.open(Path(), False, stack)
        else:
            request = StageRequest(
                spec=spec, system=system, full=full, longest=session.longest,
                model=lambda decoder: TracedModel(trace),
            )  # fmt: skip
            stage = open_stage(request, stack)
        stage.start()
        clock = _Clock(stage)
        for question in session.questions:
            stage.engine.generate([question.prompt], TOKENS)
    return Measured(clock.us_per_token, recorders[0].trace if recorders else None)


def main() -> None:
    """Print one line per system."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    gc.freeze()
    spec = resolve(None, system="smoe", setting="S3", prompts=4, new_tokens=TOKENS)
    opened = prepare(spec, None)
    shared = SharedWork(opened.weights.checkpoint)

    def session(system: str) -> LiveSession:
        given = {"system": system, "overrides": {}, "allow_overcommit": True}
        varied = opened.varied(spec.model_copy(update=given))
        varied.weights.shared = shared
        return varied

    print(f"{'system':<14}{'tokens/s':>10}{'ms/token':>10}{'mathematics':>13}{'replay':>10}"
          f"{'replayed/s':>12}")  # fmt: skip
    for system in SYSTEMS:
        trace = measure(session(system), record=True).trace
        live, replay = [], []
        for _ in range(repeats):
            live.append(measure(session(system)).us_per_token)
            replay.append(measure(session(system), trace).us_per_token)
        total, books = min(live) / 1e3, min(replay) / 1e3
        print(f"{system:<14}{1e3 / total:>10.1f}{total:>10.2f}{total - books:>13.2f}{books:>10.2f}"
              f"{1e3 / books:>12.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
