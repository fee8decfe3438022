"""Benchmark of decoding with every weight in memory: moebench and Transformers in one process.

    python -m benchmarks.resident [--weights DIR ...] [--rounds 5] [--new-tokens 24] [--compile]

Same checkpoint, prompt, tokens, fp32 and one thread.  Ours is gpu-only on the local machine: its
time includes engine, policies and timeline.  Transformers runs with each of its implementations
of experts; with --compile its decoding step is also compiled, on a static cache.  Each round runs
all of them in turn; ratios are within a round, and their median is printed, so that a computer that
slows down slows all.  Without --weights: the scale model of S3 and `benchmarks.wide`'s.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

from benchmarks.wide import make_wide
from moebench.harness.run.live import prepare
from moebench.harness.run.rules import resolve
from moebench.substrate.models.catalogue import scale_path

#: Tokens of the prompt.
PROMPT = 40

#: Transformers' implementations of experts; the last one is its default.
IMPLEMENTATIONS = ("eager", "batched_mm", "grouped_mm")


class Times(NamedTuple):
    """Times of one generation in ms: to the first token, and per later token (median)."""

    ttft: float
    tpot: float
    tokens: list[int]


Runner = Callable[[Sequence[int], int], Times]


def ours(weights: Path, scratch: Path, stack: ExitStack) -> Runner:
    """Return a runner of `gpu-only` on this computer, opened once."""
    spec = resolve(
        None, system="gpu-only", machine="local", weights=str(weights), prompts=1, new_tokens=64,
        slots=1, emulated_link_gb_s=20.0,
    )  # fmt: skip
    session = prepare(spec, None)
    stage = session.open(scratch, False, stack)
    stage.start()

    def run(prompt: Sequence[int], count: int) -> Times:
        got = stage.engine.generate([prompt], count)
        ttft = (got.token_ends_ns[0] - got.started_ns) / 1e6
        return Times(ttft, statistics.median(got.steps_ns) / 1e6, got.tokens[0])

    return run


def transformers(model: Any, experts: str, compiled: bool) -> Runner:
    """Return a runner of Transformers' forward pass, called as its `generate` calls it."""
    step = torch.compile(model.forward, dynamic=False) if compiled else model.forward

    def run(prompt: Sequence[int], count: int) -> Times:
        cache = (
            StaticCache(config=model.config, max_cache_len=len(prompt) + count)
            if compiled
            else DynamicCache(config=model.config)
        )
        model.set_experts_implementation(experts)
        ids, tokens, ends = torch.tensor([prompt]), [], [time.perf_counter()]
        position = torch.arange(len(prompt))
        while len(tokens) < count:
            forward = step if tokens else model.forward
            given = {"cache_position": position} if compiled else {}
            logits = forward(ids, past_key_values=cache, use_cache=True, **given).logits
            ids = logits[:, -1:].argmax(-1)
            position = position[-1:] + 1
            tokens.append(int(ids))
            ends.append(time.perf_counter())
        steps = [1e3 * (b - a) for a, b in pairwise(ends)]
        return Times(steps[0], statistics.median(steps[1:]), tokens)

    return run


def compare(weights: Path, rounds: int, count: int, compiled: bool, scratch: Path) -> None:
    """Print one line for each way of running these weights."""
    with ExitStack() as stack, torch.inference_mode():
        runners = {"ours": ours(weights, scratch, stack)}
        model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32).eval()
        for experts in IMPLEMENTATIONS:
            runners[f"transformers, {experts}"] = transformers(model, experts, False)
            if compiled:
                runners[f"transformers, {experts}, compiled"] = transformers(model, experts, True)
        prompt = torch.randint(8, 400, (PROMPT,), generator=torch.manual_seed(0)).tolist()
        for run in runners.values():  # warm-up, compilation
            run(prompt, count)
        times: dict[str, list[Times]] = {name: [] for name in runners}
        for _ in range(rounds):
            for name, run in runners.items():
                times[name].append(run(prompt, count))
    for name, theirs in times.items():
        pairs = list(zip(theirs, times["ours"], strict=True))
        same = all(a.tokens == b.tokens for a, b in pairs)
        tpot, ttft = (statistics.median(getattr(t, f) for t in theirs) for f in ("tpot", "ttft"))
        faster, sooner = (
            statistics.median(getattr(a, f) / getattr(b, f) for a, b in pairs)
            for f in ("tpot", "ttft")
        )
        print(f"| {weights.name} | {name} | {tpot:.1f} | {ttft:.0f} | {faster:.2f} | {sooner:.2f} "
              f"| {'yes' if same else 'no'} |", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--store", type=Path, default=Path(".moebench"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    weights = arguments.weights or [scale_path("qwen2-57b-a14b"), make_wide(Path("wide"))]
    print("| model | runs | TPOT ms | TTFT ms | TPOT over ours | TTFT over ours | same tokens |")
    print("|---|---|---|---|---|---|---|")
    for each in weights:
        compare(each, arguments.rounds, arguments.new_tokens, arguments.compile, arguments.store)


if __name__ == "__main__":
    main()
