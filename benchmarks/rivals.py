"""Benchmark of our systems against the Accelerate, DeepSpeed and llama.cpp packages, locally.

    python -m benchmarks.rivals starved [--weights DIR] [--limit 1.3GB] [--new-tokens 8]
    python -m benchmarks.rivals resident [--weights DIR] [--new-tokens 16]

*starved*: ours keep a quarter of the experts in memory slots and read the others past the page
cache; the packages run under a memory limit that includes the page cache (a cgroup, where one can
be created), in addition to their libraries' memory.  *resident*: all weights in memory, next to
Transformers.  Same checkpoint, prompts, lengths, fp32 and one thread; one run after the other, so
that ratios are of one hour of one computer.
"""

import argparse
import gc
from pathlib import Path
from typing import Any

from benchmarks.wide import make_wide
from moebench.harness.one_run import prepare, run
from moebench.harness.run.rules import resolve
from moebench.substrate.errors import MoeBenchError

Runs = list[tuple[str, dict[str, Any]]]

#: Systems of each benchmark: ours with arguments of `resolve`, packages with their own options.
OURS: dict[str, Runs] = {
    "starved": [
        ("moe-ondemand", {"cache_ratio": 0.25}),
        ("moe-infinity", {"cache_ratio": 0.25}),
        ("smoe", {"cache_ratio": 0.25, "overrides": {"alpha": "0"}}),
    ],
    "resident": [("gpu-only", {"slots": 1, "emulated_link_gb_s": 20.0})],
}
NATIVE: dict[str, Runs] = {
    "starved": [("native-llamacpp", {}), ("native-accelerate", {}), ("native-deepspeed", {})],
    "resident": [("native-accelerate", {"offload": "none"}), ("native-llamacpp", {})],
}


def measured(weights: Path, scratch: Path, name: str, n: int, given: dict[str, Any]) -> Any:
    """Return one run's document, or the error that prevented the run."""
    try:
        spec = resolve(
            None, system=name, machine="local", weights=str(weights), prompts=2, new_tokens=n,
            **given,
        )  # fmt: skip
        return run(prepare(spec, None), scratch).document
    except MoeBenchError as error:
        return str(error)
    finally:
        gc.collect()  # two runs' weights may not fit into memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=OURS)
    parser.add_argument("--weights", type=Path, default=Path("wide"))
    parser.add_argument("--store", type=Path, default=Path(".moebench"))
    parser.add_argument("--limit", default="1.3GB", help="of the packages, when starved")
    parser.add_argument("--new-tokens", type=int, default=8)
    arguments = parser.parse_args()
    which, limit = arguments.which, {"memory_limit": arguments.limit}
    native = [
        (name, {"overrides": options | (limit if which == "starved" else {})})
        for name, options in NATIVE[which]
    ]
    weights = arguments.weights
    if not (weights / "config.json").exists():
        make_wide(weights)
    best: float | None = None
    print("| system | options | TPOT ms | TTFT ms | TPOT over our best | read GB | peak GB |")
    print("|---|---|---|---|---|---|---|")
    for name, given in [*OURS[which], *native]:
        got = measured(weights, arguments.store, name, arguments.new_tokens, given)
        options = {k: v for k, v in given.items() if k != "overrides"} | given.get("overrides", {})
        shown = " ".join(f"{k}={v}" for k, v in options.items())
        if isinstance(got, str):
            print(f"| {name} | {shown} | {got} | | | | |", flush=True)
            continue
        metrics, own = got["metrics"], not name.startswith("native-")
        tpot, ttft = (metrics[f]["mean"] for f in ("tpot_ms", "ttft_ms"))
        best = min(tpot, best or tpot) if own else best
        process = metrics.get("process") or {}
        read = metrics["bytes_disk"] if own else process.get("read_bytes")
        ratio = f"{tpot / best:.2f}" if best else ""
        sizes = [
            "" if size is None else f"{size / 1e9:.2f}"
            for size in (read, process.get("peak_rss_bytes"))
        ]
        print(f"| {name} | {shown} | {tpot:.1f} | {ttft:.0f} | {ratio} | {' | '.join(sizes)} |",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
