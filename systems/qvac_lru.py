"""qvac-lru: one LRU cache of whole experts for all layers, and every miss is fetched.

tetherto/qvac-fabric-llm.cpp, a fork of llama.cpp with a cache of experts on the device (pull
request 232, September 2026, read at 06560fb, src/llama-moe-cache.cpp).  Experts are in host memory.
A *dispatch* is one layer's products for one batch of rows.  It finds its distinct experts in the
cache or fetches them.  The device computes all of them, in decode and prefill.

    fork                                    moebench
    ────                                    ────────
    llama_moe_cache_lru::plan               CacheOrBypass, DispatchLRU; `Slots.plan` alone
    slots for all layers, no layer's own    ``scope=global``
    hits, then misses, by ascending id;     LeastRecentlyUsed: a layer's uses and arrivals are
      each is one tick of the clock           ordered in this way
    the dispatch's slots are pinned         the engine protects a layer's experts
    more distinct experts than slots:       Fetch(keep=False); neither the order nor the slots of
      plan() is false, ordinary offload       the cache change
    GGML_OP_OFFLOAD_MIN_BATCH is 1 while    every bypassed dispatch is copied and computed on the
      the cache is on                         device
    n_slots >= n_expert_used                ``assign.gate``
    n_slots + 1 slots are allocated         `cached_slots`
    copies on the computation's stream      ``overlap=false``
    mmap: weights are pageable              ``pinned_copies=false``

A cache of kekzl/imp has the same rule.  Its slots are single matrices, and its pull request 1365
bypasses the cache below 3·k slots of a layer.  An expert is three matrices, so this gate is the
same as the fork's: k whole experts, ``gate=1``.  ``gate=3`` reads it as 3·k whole experts.

Deviations and readings:

- A layer that --fit split by matrix is not cached in the fork, and of layers with several tensor
  layouts only the commonest one.  Neither case exists here: no placement of this system splits an
  expert, and all records of a model have one layout.  So all layers are cached.
- --fit and the cache share the device in the fork: it keeps whole layers there, and they bypass
  the cache.  Here all memory is the cache's.
- A dispatch is a micro-batch of at most 512 rows in the fork, and a whole prompt here.
- A bypassed dispatch finds residents in the cache here, and computes them there; the fork copies
  them once more.
- Slots for a third of a layer stay free for the copies of bypassed dispatches, as in
  `systems.llamacpp`.
- The fork's automatic size (a share of what --fit leaves) is not modelled: the size is the run's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from moebench.substrate.choices import HostKernels
from moebench.substrate.engine.decisions import Active, Fetch, LayerView, Plan, fetches, split
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import ExpertCache, Mask
from moebench.substrate.models.shape import ModelShape
from moebench.systems.llamacpp import no_gguf, staging
from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.policies.place import PlaceNothing
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting

#: A slot behind the last one, which matrix kernels may read and no expert uses.
GUARD = 1


def bypasses(distinct: int, slots: int) -> bool:
    """Return whether a dispatch of ``distinct`` experts leaves the cache as it is."""
    return distinct > slots


def is_active(slots: int, top_k: int, gate: int = 1) -> bool:
    """Return whether a cache of ``slots`` whole experts is used: ``gate`` tokens must fit."""
    return slots >= gate * top_k


def cached_slots(slots: int, experts_staged: int) -> int:
    """Return the slots of the cache: all but the guard and the room for bypassed dispatches."""
    return max(0, slots - GUARD - experts_staged)


class Fill(NamedTuple):
    """A missed expert's slot, and the expert that leaves it: (layer, expert), or None."""

    expert: int
    slot: int
    victim: tuple[int, int] | None


class Slots:
    """The fork's cache by itself: which expert is in which slot, and when it was used."""

    def __init__(self, slots: int) -> None:
        self.owner: list[tuple[int, int] | None] = [None] * slots
        self.last_used = [0] * slots
        self.clock = 0

    def plan(self, layer: int, ids: Iterable[int]) -> list[Fill] | None:
        """Plan a dispatch: return its fills in their order; None if it bypasses the cache."""
        distinct = sorted(set(ids))
        if bypasses(len(distinct), len(self.owner)):
            return None
        where = {owner: slot for slot, owner in enumerate(self.owner) if owner is not None}
        hits = [where[layer, e] for e in distinct if (layer, e) in where]
        for slot in hits:
            self._tick(slot)
        protected, fills = set(hits), list[Fill]()
        for expert in (e for e in distinct if (layer, e) not in where):
            free = [slot for slot in range(len(self.owner)) if slot not in protected]
            empty = [slot for slot in free if self.owner[slot] is None]
            slot = empty[0] if empty else min(free, key=lambda slot: self.last_used[slot])
            fills.append(Fill(expert, slot, self.owner[slot]))
            self.owner[slot] = (layer, expert)
            self._tick(slot)
            protected.add(slot)
        return fills

    def _tick(self, slot: int) -> None:
        self.clock += 1
        self.last_used[slot] = self.clock


@dataclass(kw_only=True)
class CacheOrBypass(Assignment):
    """Fetches every miss, in ascending order of id; a layer that the cache cannot hold bypasses it.

    Attributes:
        gate: how many times a token's experts the cache must hold; a smaller cache is not used.
    """

    gate: int = option(1, low=1, searched=(1, 16), scale="log")

    reads_scores = False

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Compute the slots of the cache; none if they do not pass the gate."""
        slots = cached_slots(cache.slots, staging(shape))
        self._slots = slots if is_active(slots, shape.top_k, self.gate) else 0

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Plan to fetch the absent experts; they are kept unless the layer bypasses the cache."""
        if bypasses(len(active.rows), self._slots):
            return split(active, [Fetch(view.layer, e, keep=False) for e in active.absent])
        return split(active, fetches(view.layer, active.absent))


@dataclass(kw_only=True)
class DispatchLRU(LeastRecentlyUsed):
    """Evicts the expert that was used longest ago; a layer that bypasses the cache changes nothing.

    Slots for a third of a layer, and one guard, stay free of experts that are kept.
    """

    shares_slots = True

    takes_forms = False

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Create an empty order, and keep the slots of bypassing layers free."""
        if cache.scope == "layer":
            raise UsageError(
                "evict=dispatch-lru is one cache for all layers; allowed: --set scope=global"
            )
        super().start(shape, cache)
        self._slots = cached_slots(cache.slots, staging(shape))
        self.reserve = self.transient = cache.slots - self._slots
        self._bypassing = False

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Note the uses of residents, unless the layer bypasses the cache."""
        distinct = list(experts)
        self._bypassing = bypasses(len(distinct), self._slots)
        if not self._bypassing:
            super().used(layer, distinct)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed key that was used longest ago; None while a layer bypasses."""
        return None if self._bypassing else super().victim(allowed, incoming)


@dataclass(kw_only=True)
class QvacLRU(System):
    """qvac-fabric's llama.cpp with its MoE cache: global LRU, every miss fetched."""

    paper = "tetherto/qvac-fabric-llm.cpp"

    place: Placement = field(default_factory=PlaceNothing)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=CacheOrBypass)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=DispatchLRU)
    overlap: bool = False
    pinned_copies: bool | None = False
    host_kernels: HostKernels = "fused"

    def why_not(self, shape: ModelShape, batch: int) -> str | None:
        """Return why llama.cpp's converter has no GGUF file for the model, or None."""
        return no_gguf(shape) or super().why_not(shape, batch)

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return notes on the kind of software, and on a cache that does not pass its gate."""
        said = ["llama.cpp is C++: its kind of software is --software ggml"]
        cached, assign = cached_slots(slots, staging(shape)), self.assign
        if isinstance(assign, CacheOrBypass) and not is_active(cached, shape.top_k, assign.gate):
            said.append(
                f"the cache has {cached} slots, {assign.gate * shape.top_k} are its least: it is "
                "not used, and every expert is copied for each use"
            )
        return said
