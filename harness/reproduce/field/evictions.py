"""Counts of causal evictions on recorded streams: which hits most, and which collide (R-5).

A *collision* is a miss of an expert that was evicted less than one token ago: since its layer's
last step.  A pool for all layers that is smaller than a token's experts collides all the time.
"""

from collections.abc import Callable, Mapping
from functools import cache
from statistics import fmean
from typing import NamedTuple, cast

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError
from moebench.harness.reproduce.field.recorded import Stream, streams
from moebench.results.claims import Measured
from moebench.substrate.analysis.cache_replay import Replayed, replay, token_steps, topology
from moebench.substrate.engine.policies import Eviction
from moebench.substrate.memory.cache import Scope
from moebench.systems.registry import make

#: Causal evictions that need ids alone.
CAUSAL = ("lru", "lfu", "fifo", "lifo", "arc", "lecar", "lfru", "least-stale", "dali-window")

#: Shares of the experts that are cached, in full and with ``--quick``.
SHARES, QUICK_SHARES = (0.125, 0.25, 0.5), (0.25,)

#: Share of OLMoE's experts in the abstract that reports 85 times fewer collisions.
SMALL = 0.05

#: The three rules that third parties implement under the name of Least-Stale.
READINGS = ("tinyserve", "layer", "interval")


class Rates(NamedTuple):
    """Hit rates of one stream at one size, by policy; global pool or one for each layer."""

    stream: str
    share: float
    hits: Mapping[str, float]

    @property
    def best(self) -> str:
        """The policy with most hits."""
        return max(self.hits, key=lambda name: self.hits[name])


def counted(
    stream: Stream, name: str, share: float, scope: Scope = "layer", **options: str
) -> Replayed:
    """Replay a stream through a cache of a share of all experts."""
    layers, k = stream.sequences[0].shape[1:]
    steps = [token_steps(rows) for rows in stream.sequences]
    each = round(share * stream.experts) if scope == "layer" else share * stream.experts
    policy = cast(Eviction, make("evict", name, **options))
    return replay(policy, steps, topology(layers, stream.experts, k), round(each * layers), scope)


def rates(evidence: Evidence) -> list[Rates]:
    """Return the hit rates of all causal policies, by stream and size that leaves a choice.

    Raises MissingEvidenceError: no stream does, or there is none.
    """
    found = []
    for stream in streams(evidence):
        k = stream.sequences[0].shape[2]
        for share in QUICK_SHARES if evidence.quick else SHARES:
            if round(share * stream.experts) > k:
                hits = {name: _hit_rate(stream, name, share) for name in CAUSAL}
                found.append(Rates(stream.name, share, hits))
    if not found:
        raise MissingEvidenceError("no stream leaves a cache a choice")
    return found


@cache
def _hit_rate(stream: Stream, name: str, share: float) -> float:
    return counted(stream, name, share).hit_rate


def wins(found: list[Rates], name: str) -> dict[str, float]:
    """Return by stream the share of sizes at which a policy has most hits, ties included."""
    by: dict[str, list[bool]] = {}
    for one in found:
        by.setdefault(one.stream, []).append(one.hits[name] >= max(one.hits.values()))
    return {stream: fmean(won) for stream, won in by.items()}


def first(name: str) -> Callable[[Evidence], Measured]:
    """Return a function that measures the share of streams in which a policy has most hits.

    A stream counts as won where the policy has most hits at half of the sizes or more.
    """

    def measure(evidence: Evidence) -> Measured:
        found = rates(evidence)
        by_stream = wins(found, name)
        won = sum(share >= 0.5 for share in by_stream.values())
        said = f"{won} of {len(by_stream)} streams, a cache for each layer; exact count"
        return Measured.of([won / len(by_stream)], "counted", said)

    return measure


def collisions(stream: Stream, name: str, **options: str) -> int:
    """Return the misses of experts that were evicted less than one token ago, in one pool."""
    layers, experts = stream.sequences[0].shape[1], stream.experts
    done = counted(stream, name, SMALL, "global", **options)
    evicted: dict[int, int] = {}
    count = 0
    for step, victim, incoming in done.evicted:
        since = evicted.get(incoming)
        count += since is not None and step - since <= layers
        evicted[victim] = step
    assert all(victim < layers * experts for victim in evicted)
    return count


def fewer_collisions(reading: str) -> Callable[[Evidence], Measured]:
    """Return a function that measures LRU's collisions over Least-Stale's on OLMoE."""

    def measure(evidence: Evidence) -> Measured:
        found = [s for s in streams(evidence) if s.model == "olmoe-1b-7b"]
        if not found:
            raise MissingEvidenceError("the data folder holds no recording of olmoe-1b-7b")
        samples = [
            collisions(one, "lru") / max(1, collisions(one, "least-stale", reading=reading))
            for one in found
        ]
        said = f"{SMALL:.0%} of OLMoE's experts in one pool, on demand, reading {reading}"
        return Measured.of(samples, "counted", said, "streams")

    return measure


def turns(evidence: Evidence) -> str:
    """Return by cache size which policy has most hits in how many streams."""
    found = rates(evidence)
    parts = []
    for share in sorted({one.share for one in found}):
        here = [one for one in found if one.share == share]
        best: dict[str, int] = {}
        for one in here:
            best[one.best] = best.get(one.best, 0) + 1
        ordered = sorted(best.items(), key=lambda item: -item[1])
        said = ", ".join(f"{name} {count}" for name, count in ordered)
        gap = 100 * fmean(max(one.hits.values()) - one.hits["lfru"] for one in here)
        parts.append(f"at {share:.3g} of the experts {said} of {len(here)} (LFRU on average "
                     f"{gap:.1f} points below the best)")  # fmt: skip
    return f"Most hits, in streams: {'; '.join(parts)}."
