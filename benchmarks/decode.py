"""How fast a decoded token of S3 is simulated, and where that time goes.

The same decisions run twice: live, with the scale model's mathematics, and replayed from the trace
of the live run, without it.  The replay is the bookkeeping (engine, policies, virtual clock); the
difference is mathematics.  CPU time of this process, one thread, the best of several repeats;
figures are per decoded token at batch 1.

    python -m benchmarks.decode [--repeats 3]
"""

import argparse
import gc
import time
from collections.abc import Callable
from pathlib import Path

import torch

from harness.inputs import prepare
from harness.spec import resolve
from harness.stage import Stage, set_up
from substrate.model import Model
from substrate.trace import Recorder, TracedModel
from systems import build

SYSTEMS = ("gpu-only", "moe-ondemand", "smoe")
TOKENS = 64


class _Clock:
    """CPU seconds spent in decode passes of an engine."""

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


def measure(system: str, wrap: Callable[[Model], Model], inputs, prompts) -> tuple[float, Model]:
    """Microseconds of CPU time a decoded token, and the model that answered."""
    from contextlib import ExitStack

    with ExitStack() as stack, torch.inference_mode():
        spec = inputs.spec.model_copy(update={"system": system, "allow_overcommit": True})
        stage = set_up(spec, build(system), inputs, Path(), False, stack)
        stage.engine.model = wrap(stage.engine.model)
        stage.start()
        clock = _Clock(stage)
        for prompt in prompts:
            stage.engine.generate([prompt], TOKENS)
        return clock.us_per_token, stage.engine.model


def main() -> None:
    """Print one line a system."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    gc.freeze()
    spec = resolve(None, system="smoe", setting="S3", prompts=4, new_tokens=TOKENS)
    inputs = prepare(spec, None)
    print(f"{'system':<14}{'tokens/s':>10}{'ms/token':>10}{'mathematics':>13}{'bookkeeping':>13}")
    for system in SYSTEMS:
        _, recorder = measure(system, Recorder, inputs, inputs.prompts)
        trace = recorder.trace  # type: ignore[attr-defined]
        live, replay = [], []
        for _ in range(repeats):
            live.append(measure(system, lambda model: model, inputs, inputs.prompts)[0])
            replay.append(
                measure(system, lambda _, t=trace: TracedModel(t), inputs, inputs.prompts)[0]
            )
        total, books = min(live) / 1e3, min(replay) / 1e3
        print(f"{system:<14}{1e3 / total:>10.1f}{total:>10.2f}{total - books:>13.2f}{books:>13.2f}")


if __name__ == "__main__":
    main()
