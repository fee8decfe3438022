"""Benchmark of replays: the engine in Python against compiled code, with equal results.

Each system replays the recorded routing of S3 (prompts and 64 tokens each, batch 1).  CPU time of
this process, the least of several repeats, executed alternately, in ms a decoded token; prompts are
part of it.  The rest of a run, such as its document, is not.

    python -m benchmarks.replay [SYSTEM ...] [--repeats 5]
"""

import argparse
import gc
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import torch

from moebench.harness.run.execute import EngineRun, calibrated, prepare
from moebench.harness.run.learn import silent
from moebench.harness.run.rules import resolve
from moebench.systems.compiled.engine import compiled

SYSTEMS = (
    "moe-ondemand",
    "fiddler",
    "smoe α=0",
    "smoe",
    "hybrimoe",
    "dali",
    "lfru",
    "ktransformers",
)
PROMPTS, TOKENS = 2, 64


def measure(session: EngineRun, scratch: Path, with_code: bool) -> tuple[float, list[list[int]]]:
    """Replay all prompts; return the CPU time of a decoded token in ms, and the tokens' ends."""
    spec = session.spec
    with ExitStack() as stack, torch.inference_mode():
        stage, _ = calibrated(session, scratch, silent, False, stack)
        stage.start()
        engine = compiled(stage.engine) if with_code else stage.engine
        stage.engine = engine
        gc.collect()
        gc.freeze()
        started = time.process_time()
        done = [session.answer(stage, slice(n, n + 1)) for n in range(spec.prompts)]
        took = time.process_time() - started
        gc.unfreeze()
    return took / (PROMPTS * (TOKENS - 1)) * 1e3, [g[0].token_ends_ns for g in done]


def opened(name: str) -> EngineRun:
    """Return the run of a system, with α where its name says one."""
    system, _, alpha = name.partition(" α=")
    given = {"alpha": float(alpha)} if alpha else {}
    spec = resolve(
        None, system=system, setting="S3", prompts=PROMPTS, new_tokens=TOKENS,
        routing="replayed", **given,
    )  # fmt: skip
    return prepare(spec, None)


def main() -> None:
    """Print a line for each system."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("systems", nargs="*", default=SYSTEMS)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    print(f"{'system':20} {'Python ms':>10} {'compiled ms':>12} {'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name in given.systems:
            least: dict[bool, float] = {}
            for _ in range(given.repeats):
                ends = {}
                for with_code in (False, True):
                    took, ends[with_code] = measure(opened(name), Path(folder), with_code)
                    least[with_code] = min(took, least.get(with_code, took))
                if ends[False] != ends[True]:
                    raise SystemExit(f"{name}: the replays differ")
            ratio = least[False] / least[True]
            print(f"{name:20} {least[False]:10.3f} {least[True]:12.3f} {ratio:7.1f}", flush=True)


if __name__ == "__main__":
    main()
