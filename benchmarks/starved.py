"""Memory for a quarter of the experts, the rest on the disk: our systems beside three packages.

    python -m benchmarks.starved [--weights DIR] [--limit 1.3GB] [--new-tokens 8]

Ours keep a quarter of the experts in memory slots and read the others past the page cache.  The
packages run under a limit of memory in which the page cache counts (a cgroup, where one can be
made), on top of what their libraries take.  Same checkpoint, prompts, lengths, fp32 and one thread;
one run after the other, so that ratios are of one hour of one computer.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.wide import make_wide
from moebench.harness.run.runner import prepare, run
from moebench.harness.run.spec import resolve
from moebench.substrate.errors import MoeBenchError

#: Share of the experts that our systems keep.
CACHE_RATIO = 0.25

OURS: list[tuple[str, dict[str, str]]] = [
    ("moe-ondemand", {}),
    ("moe-infinity", {}),
    ("smoe", {"alpha": "0"}),
]
NATIVE: list[tuple[str, dict[str, str]]] = [
    ("native-llamacpp", {}),
    ("native-accelerate", {}),
    ("native-deepspeed", {}),
]


def measured(weights: Path, scratch: Path, name: str, options: dict[str, str], n: int) -> Any:
    """One run's document, or the line that says why there is none."""
    given: dict[str, Any] = {} if name.startswith("native-") else {"cache_ratio": CACHE_RATIO}
    try:
        spec = resolve(
            None, system=name, machine="local", weights=str(weights), prompts=1, new_tokens=n,
            overrides=options, **given,
        )  # fmt: skip
        return run(prepare(spec, None), scratch).document
    except MoeBenchError as error:
        return str(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, default=Path("wide"))
    parser.add_argument("--store", type=Path, default=Path(".moebench"))
    parser.add_argument("--limit", default="1.3GB", help="of the packages; DeepSpeed needs more")
    parser.add_argument("--new-tokens", type=int, default=8)
    arguments = parser.parse_args()
    weights = make_wide(arguments.weights)
    best: float | None = None
    print("| system | options | TPOT ms | TTFT ms | ours is faster by | read GB | peak GB |")
    print("|---|---|---|---|---|---|---|")
    for name, options in [*OURS, *NATIVE]:
        own = name in dict(OURS)
        options = options if own else {"memory_limit": arguments.limit, **options}
        got = measured(weights, arguments.store, name, options, arguments.new_tokens)
        shown = " ".join(f"{k}={v}" for k, v in options.items())
        if isinstance(got, str):
            print(f"| {name} | {shown} | {got} | | | | |", flush=True)
            continue
        metrics = got["metrics"]
        tpot, ttft = (metrics[f]["mean"] for f in ("tpot_ms", "ttft_ms"))
        if own:
            best = min(tpot, best or tpot)
        process = metrics.get("process") or {}
        read = metrics["bytes_disk"] if own else process.get("read_bytes")
        peak = None if own else process.get("peak_rss_bytes")
        ratio = "" if own or best is None else f"{tpot / best:.1f}"
        sizes = ["" if size is None else f"{size / 1e9:.2f}" for size in (read, peak)]
        print(f"| {name} | {shown} | {tpot:.0f} | {ttft:.0f} | {ratio} | {' | '.join(sizes)} |",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
