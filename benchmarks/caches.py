"""Benchmark of cache replay on recorded routing: speed against libcachesim; FlashMoE's figures.

    python -m benchmarks.caches speed TRACE [--repeats 3]
    python -m benchmarks.caches figures --train TRACE ... --test TRACE ...

A trace is a folder that `moebench trace` wrote, or a published one that `moebench trace import`
reads.  ``speed`` replays single requests, as libcachesim's Python binding does; hits must be equal.
``steps`` is the actual replay, a token's experts of a layer at once, over the same time.  Times
are CPU times of this process: the least of the repeats, with the variants in turn.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from moebench.harness.reproduce.flashmoe.evictions import duel, hit_rates, regret
from moebench.substrate.analysis.cache_replay import Step, replay, requests, token_steps, topology
from moebench.substrate.engine.system import Eviction
from moebench.substrate.memory.cache import Scope
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces.file import HEADER, TraceFile, open_trace
from moebench.substrate.traces.published import import_trace
from moebench.systems.flashmoe import ARTEFACTS
from moebench.systems.registry import make

#: Our policy and its options for each policy of libcachesim.
PAIRS: dict[str, tuple[str, dict[str, str]]] = {
    "LRU": ("lru", {}),
    "LFU": ("lfu", {}),
    "FIFO": ("fifo", {}),
    "ARC": ("arc", {}),
    "LeCaR": ("lecar", {"variant": "libcachesim"}),
    "Belady": ("belady", {}),
}


def open_any(path: Path, scratch: Path) -> TraceFile:
    """Open a trace, and import it first if it is a published one."""
    if not (path / HEADER).exists():
        import_trace(path, scratch / path.name)
        path = scratch / path.name
    return open_trace(path)


def sequences(trace: TraceFile) -> list[np.ndarray]:
    """Return the chosen experts of each sequence, ``[T, L, K]``."""
    return [np.asarray(trace.ids_TLK[rows]) for rows in trace.sequences]


# ----------------------------------------------------------------------------- speed


def oracle_hits(name: str, steps: list[Step], experts: int, caches: int, slots: int) -> int:
    """Return the hits that libcachesim counts with one cache for each layer, or one for all.

    Its random generator restarts only in a new thread: each cache has its own thread.
    """
    keys: list[list[int]] = [[] for _ in range(caches)]
    for layer, ids in steps:
        keys[layer % caches].append(layer * experts + ids[0])
    hits = 0
    for cache in range(caches):
        with ThreadPoolExecutor(1) as thread:
            hits += thread.submit(oracle_cache_hits, name, keys[cache], slots).result()
    return hits


def oracle_cache_hits(name: str, keys: list[int], slots: int) -> int:
    """Return libcachesim's hits for one cache."""
    import libcachesim

    get = getattr(libcachesim, name)(cache_size=slots, hashpower=10).get
    request, hits = libcachesim.Request(obj_size=1), 0
    if name != "Belady":
        for key in keys:
            request.obj_id = key
            hits += get(request)
        return hits
    later: dict[int, int] = {}
    following = [2**62] * len(keys)
    for now in range(len(keys) - 1, -1, -1):
        following[now] = later.get(keys[now], 2**62)
        later[keys[now]] = now
    for key, next_use in zip(keys, following, strict=True):
        request.obj_id, request.next_access_vtime = key, next_use
        hits += get(request)
    return hits


def timed(work: Callable[[], int]) -> tuple[float, int]:
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def speed(path: Path, repeats: int, share: float) -> None:
    """Print our time over libcachesim's, per request and per step, for each policy and scope."""
    with tempfile.TemporaryDirectory() as scratch:
        trace = open_any(path, Path(scratch))
    header = trace.header
    layers, experts = header.num_moe_layers, header.num_experts
    passes = [step for ids in sequences(trace) for step in token_steps(ids)]
    steps = requests(passes)
    shape = topology(layers, experts, header.top_k)
    each = max(1, round(share * experts))
    print(f"{path.name}: {len(steps)} requests, {each} of {experts} experts a layer")
    print("policy    scope     requests   steps  its ns/request  hit rate  equal")
    for theirs, (ours, options) in PAIRS.items():
        scopes: tuple[tuple[Scope, int, int], ...]
        scopes = (("layer", layers, each), ("global", 1, each * layers))
        for scope, caches, slots in scopes:
            runs: tuple[list[tuple[float, int]], ...] = ([], [], [])
            for _ in range(repeats):
                count = partial(hits_of, ours, options, steps, shape, each * layers, scope)
                whole = partial(hits_of, ours, options, passes, shape, each * layers, scope)
                truth = partial(oracle_hits, theirs, steps, experts, caches, slots)
                for times, work in zip(runs, (count, truth, whole), strict=True):
                    times.append(timed(work))
            own, their, whole_step = map(min, runs)
            equal = "yes" if own[1] == their[1] else "no"
            print(
                f"{ours:<10}{scope:<8}{own[0] / their[0]:>10.2f}{whole_step[0] / their[0]:>8.2f}"
                f"{their[0] / len(steps) * 1e9:>14.0f}{own[1] / len(steps):>10.4f}{equal:>7}"
            )


def hits_of(
    name: str,
    options: dict[str, str],
    steps: list[Step],
    shape: ModelShape,
    slots: int,
    scope: Scope,
) -> int:
    """Return the hits that our policy counts."""
    return sum(replay(evict(name, **options), [steps], shape, slots, scope).hits)


def evict(name: str, **options: Any) -> Eviction:
    """Return an eviction policy by name."""
    return cast(Eviction, make("evict", name, **options))


# ----------------------------------------------------------------------------- figures


def figures(train: list[Path], test: list[Path], train_share: float) -> None:
    """Print Fig. 6 and the figures of §2.3; a trace used for both is split by sequences."""
    with tempfile.TemporaryDirectory() as scratch:
        known = {path: open_any(path, Path(scratch)) for path in {*train, *test}}
    if train == test:
        both = [ids for path in train for ids in sequences(known[path])]
        cut = max(1, min(len(both) - 1, round(train_share * len(both))))
        learnt, held_out = both[:cut], both[cut:]
    else:
        learnt = [ids for path in train for ids in sequences(known[path])]
        held_out = [ids for path in test for ids in sequences(known[path])]
    header = known[test[0]].header
    experts = header.num_experts
    network = evict("flashmoe")
    shape = topology(header.num_moe_layers, experts, header.top_k)
    network.calibrate(
        [RoutedSequence(ids, 0) for ids in learnt], shape, ARTEFACTS, lambda *done: None
    )
    policies = {
        "flashmoe": network,
        **{name: evict(name) for name in ("lru", "lfu", "lifo", "fifo", "arc", "lecar")},
        "lfu-id": evict("lfu", tie="id"),
        "lfu-kept": evict("lfu", survive=True, tie="id"),
        "belady": evict("belady"),
    }
    print(f"{header.model}: {len(learnt)} sequences to learn from, {len(held_out)} held out")
    sizes = sorted({experts // 8, experts // 4, experts // 2})
    print("slots".ljust(8) + "".join(f"{name:>10}" for name in policies))
    for size, rates in hit_rates(held_out, experts, sizes, policies).items():
        print(f"{size:<8}" + "".join(f"{100 * rate:>10.1f}" for rate in rates.values()))
    size = experts // 4
    print(f"at {size} slots:")
    for name in ("lru", "lfu", "flashmoe", "belady"):
        found = regret(policies[name], held_out, experts, size)
        print(
            f"  {name}: {found.refetched:.1%} of evicted experts wanted within 5 tokens, "
            f"{found.idle:.1f} tokens idle before they left"
        )
    result = duel(evict("lru"), evict("lfu"), held_out, experts, size)
    print(
        f"  LRU's choice better than LFU's in {result.share:.1%} of {result.first + result.second}"
    )


def main() -> None:
    """Print the benchmark that the command line selects."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    fast = commands.add_parser("speed")
    fast.add_argument("trace", type=Path)
    fast.add_argument("--repeats", type=int, default=3)
    fast.add_argument("--share", type=float, default=0.25)
    drawn = commands.add_parser("figures")
    drawn.add_argument("--train", type=Path, nargs="+", required=True)
    drawn.add_argument("--test", type=Path, nargs="+", required=True)
    drawn.add_argument("--train-share", type=float, default=0.8)
    given = parser.parse_args()
    if given.command == "speed":
        speed(given.trace, given.repeats, given.share)
    else:
        figures(given.train, given.test, given.train_share)


if __name__ == "__main__":
    main()
