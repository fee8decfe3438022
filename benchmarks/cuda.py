"""Benchmark of a GPU: copy rates, and systems with their control thread's share of decode.

    python -m benchmarks.cuda [--weights DIR] [--capacity 0.25] [--device-memory 12GB]
                              [--precision bf16] [--prompts 4] [--new-tokens 32]

The first table compares copies of expert records with the link's best rate: large copies from
pinned memory.  The second runs systems on the same checkpoint, prompts and slots, one after
the other.  *Control* is the share of decode in which the GPU was idle and the control thread was
not waiting for a copy or the host: decisions, launches and our own bookkeeping.
"""

import argparse
import gc
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.wide import make_wide
from moebench.harness.arguments import parse_gib
from moebench.harness.one_run import prepare, run
from moebench.harness.run.rules import resolve
from moebench.harness.stage.card import DTYPES
from moebench.substrate.errors import MoeBenchError
from moebench.substrate.machines.accelerator import Accelerator, Cuda
from moebench.substrate.machines.records import rows
from moebench.substrate.models.config import read_shape

SYSTEMS = ("gpu-only", "smoe", "hybrimoe", "moe-infinity", "fiddler", "moe-ondemand", "llamacpp")

#: Size of the copies that measure the link's best rate; rounds of which each figure is the best.
LARGE_BYTES, ROUNDS = 256 << 20, 5


def gigabytes_per_s(card: Accelerator, size: int, pinned: bool) -> float:
    """Return the rate of consecutive copies of ``size`` bytes to the GPU, made as by the loader."""
    count = max(4, LARGE_BYTES // size)
    source, target = rows(count, size, "the benchmark's copies"), card.allocate(2, size)
    if pinned:
        card.pin(source)
    stream, best_ns = card.stream(), 0
    try:
        for _ in range(ROUNDS):
            with card.on(stream):
                began = card.record(stream)
                for n in range(count):
                    card.copy(target[n % 2], source[n])
                    card.record(stream).synchronize()
                ended = card.record(stream)
            ended.synchronize()
            took_ns = card.elapsed_ns(began, ended)
            best_ns = min(took_ns, best_ns or took_ns)
    finally:
        if pinned:
            card.unpin(source)
    return count * size / best_ns


def measured(weights: Path, scratch: Path, name: str, given: dict[str, Any]) -> Any:
    """Return one run's document, or the error that prevented the run."""
    try:
        spec = resolve(
            None, system=name, machine="local", device="cuda", weights=str(weights), **given
        )
        return run(prepare(spec, None), scratch).document
    except MoeBenchError as error:
        return str(error)
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, default=Path("wide"))
    parser.add_argument("--store", type=Path, default=Path(".moebench"))
    parser.add_argument("--capacity", type=float, default=0.25)
    parser.add_argument("--device-memory")
    parser.add_argument("--precision", default="bf16", choices=DTYPES)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=32)
    arguments = parser.parse_args()
    try:
        card = Cuda()
    except MoeBenchError as error:
        sys.exit(f"benchmarks.cuda: {error}")
    if not (arguments.weights / "config.json").exists():
        make_wide(arguments.weights)
    shape = read_shape(arguments.weights / "config.json")
    record = shape.expert_params * DTYPES[arguments.precision].itemsize
    best = gigabytes_per_s(card, LARGE_BYTES, pinned=True)
    print(f"{card.name}, {shape.family}, an expert of {record / 1e6:.3g} MB\n")
    print("| copies | GB/s | of the best |\n|---|---|---|")
    for what, size, pinned in (
        ("large, pinned", LARGE_BYTES, True),
        ("experts, pinned", record, True),
        ("experts, pageable", record, False),
    ):
        rate = gigabytes_per_s(card, size, pinned)
        print(f"| {what} | {rate:.2f} | {rate / best:.1%} |", flush=True)
    given = {
        "precision": arguments.precision, "prompts": arguments.prompts,
        "new_tokens": arguments.new_tokens, "calibrate_texts": 2,
        "device_memory_gib": parse_gib("--device-memory", arguments.device_memory),
    }  # fmt: skip
    print("\n| system | TPOT ms | TTFT ms | hits | GB h2d | control | note |")
    print("|---|---|---|---|---|---|---|")
    for name in SYSTEMS:
        slots = {} if name == "gpu-only" else {"cache_ratio": arguments.cache_ratio}
        got = measured(arguments.weights, arguments.store, name, given | slots)
        if isinstance(got, str):
            print(f"| {name} | | | | | | {got} |", flush=True)
            continue
        metrics = got["metrics"]
        tpot, ttft = (metrics[figure]["mean"] for figure in ("tpot_ms", "ttft_ms"))
        decode_ms = tpot * (arguments.new_tokens - 1) * arguments.prompts
        control = metrics["decode"]["stall_ms"].get("control", 0.0) / decode_ms
        moved = metrics["bytes_h2d"] / 1e9
        print(
            f"| {name} | {tpot:.2f} | {ttft:.1f} | {metrics['cache_ratio']:.3f} | {moved:.2f} "
            f"| {control:.1%} | {got['badge']} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
