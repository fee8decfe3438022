"""FreeToken: the misses of a decode step divided between link and host by their bandwidths.

"FreeToken" (arXiv 2608.16157), FlashML-org/FreeToken.  The default variant is PyPI's freetoken
0.2.1 (October 2026, with flashlib 0.3.0); ``--variant earlier`` is the code of August (0ab982f).
All routed experts are in page-locked host memory, and one pool of slots on the device caches them
for all layers.  Prefill streams whole layers through two buffers at the beginning of that pool.

    engine                                     moebench
    ──────                                     ────────
    --moe-strategy auto, offload, hybrid, cpu  ``assign.mode``
    --moe-hybrid-max-fetch (-1: by φ)          ``assign.max_fetch``
    ft bench bw: pcie_gather_overlap_gbs,      `phi_of`, of the durations of the last loads and
      cpu_moe_overlap_gbs                        host experts; ``assign.phi`` sets φ by hand
    FREETOKEN_HYBRID_FETCH_ROUND               ``assign.rounding``
    _ensure_experts_hybrid_kernel              `split_misses`, `most_recent`, OldestCall
    lru_ensure (flashlib): offload             ascending ids, OldestCall
    step, expert_recency, usage                one clock, which counts calls: one for each layer
    --moe-cache-scope, --moe-cache-split       ``place.pools``: unified, equal, profile
    --disable-moe-prefill-overlap              ``prefetch.overlap=false``
    pinned host banks                          ``pinned_copies``
    --moe-cache-auto                           `cache_slots`; a run's slots are what fits

Decode, hybrid: a layer's call misses m distinct experts.  A fetch costs 1 - φ, an expert on the
host φ, so f fetches take max(f·(1 - φ), (m - f)·φ).  f is the better of ⌊m·φ⌋ and the next number;
a tie takes the lower one.  The f experts that were routed most recently are fetched and computed
on the device after the hits, the others on the host meanwhile.  An expert that was computed on the
host does not enter the cache, but its recency counts: if it comes again soon, it is fetched.

Deviations and readings:

- Bandwidths are those of the run: one over the mean durations of the last ``assign.history`` loads
  and host experts when φ is first needed.  The simulated machine's link and host do not slow each
  other, so that stand-alone and overlapped bandwidths are the same there.
- ``mode=auto`` is *offload* in 0.2.1, except on a GPU with unified memory: it then holds all
  experts (`automatic`), which is the system ``gpu-only`` here.
- All layers of a model have one kind here, and all host memory is pinned or none: one φ holds for
  all layers.  `phi_of_unpinned` is the share of layers that 0.2.1 could not pin.
- If a run has no slots for two buffers, prefill has one, as the engine has where the number of
  slots is set by hand.  Its automatic plan fails instead (`cache_slots`).
- A prompt computes residents in their slots, which is nearest to --moe-prefill-hit-d2d; by default
  the engine copies whole layers, residents included.  Each buffer fetch evicts one expert of the
  first 2·E slots; the engine empties the E slots of a buffer at once.
- With one buffer, the engine leaves the last layer of a prompt in the cache; here nothing stays.
- Pools for each layer: a prompt streams whole layers only if a pool holds one.  The smallest pool
  has a token's k experts, in the engine those of its largest batch.
- With ``mode=cpu`` no expert enters the cache; the engine does not use its slots, either.
- The cache is reset, and recency with it, only when the engine changes its size: never here.
- FREETOKEN_HYBRID_FETCH=lowest_id, layers that decode on the host (--moe-cpu-layers) and tensor
  parallelism are left out.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np

from moebench.substrate.choices import HostKernels
from moebench.substrate.engine.decisions import (
    Active,
    Fetch,
    Forecast,
    LayerView,
    Plan,
    fetches,
    split,
)
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.errors import BudgetError
from moebench.substrate.machines.timeline import COSTS_KEPT, Costs
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Phase
from moebench.systems.policies.evict import pools
from moebench.systems.policies.latency import mean_of_last
from moebench.systems.policies.place import PlaceByPopularity, PlaceNothing
from moebench.systems.policies.route import ExactRouting

Mode = Literal["auto", "offload", "hybrid", "cpu"]
Rounding = Literal["min-wait", "stochastic", "prefer-fetch"]

# --------------------------------------------------------------------------- the rules

#: One, as the fixed-point number in which the engine's kernel has φ.
Q16 = 1 << 16

#: How many times the link's bandwidth the host's must exceed for August's ``auto`` to be hybrid.
HYBRID_ABOVE = 2.0


def phi_of(link: float, host: float) -> float:
    """Return φ, the share of misses to fetch, from bandwidths measured while both are busy."""
    return link / (link + host)


def phi_alone(link: float, host: float) -> float:
    """Return φ from bandwidths measured one after the other, where no others are known."""
    return min(1.0, link / host)


def phi_of_unpinned(link: float, host: float) -> float:
    """Return φ of a layer that is not pinned: the host copies each fetched expert before the link.

    Both steps together run at link·host / (link + host).
    """
    return link / (2 * link + host)


def to_q16(phi: float) -> int:
    """Return φ as a Q16 integer; half an integer rounds to the even one, as Python does."""
    return min(Q16, max(0, round(phi * Q16)))


def split_misses(
    misses: int, phi_q16: int, cap: int, rounding: Rounding = "min-wait", call: int = 0,
    room: int | None = None,
) -> int:  # fmt: skip
    """Return f, how many of a call's missed experts are fetched; the host computes the others.

    Args:
        misses: m, the distinct experts that are missing.
        phi_q16: φ·65536; 0 does not divide the misses but fetches up to ``cap``.
        cap: most fetches where ``phi_q16`` is 0.
        rounding: of m·φ: to the division that ends first, at random, or up.
        call: number of the call, by which ``stochastic`` draws.
        room: slots of the pool that no hit of this call uses; None does not limit f.
    """
    scaled = misses * phi_q16
    low = scaled // Q16
    if not phi_q16:
        fetched = cap
    elif rounding == "prefer-fetch":
        fetched = -(-scaled // Q16)
    elif rounding == "stochastic":
        fetched = low + (uniform(call) * Q16 < scaled % Q16)
    else:
        fetched = min((low, low + 1), key=lambda f: _slower_side(f, misses, phi_q16))
    return min(misses, fetched, misses if room is None else room)


def _slower_side(fetched: int, misses: int, phi_q16: int) -> int:
    """Return the time of the slower side: fetches, or experts on the host."""
    return max(fetched * (Q16 - phi_q16), (misses - fetched) * phi_q16)


@lru_cache(maxsize=1 << 14)
def uniform(call: int) -> float:
    """Return the number in [0, 1) that the engine's kernel draws in a call (Triton's tl.rand).

    It is the first word of Philox-4x32-10 with key 0 and the call's number as counter.
    """
    low, key = 0xFFFFFFFF, (0, 0)
    a, b, c, d = call & 0x7FFFFFFF, 0, 0, 0
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ key[0], second & low, first >> 32 ^ d ^ key[1], first & low
        key = (key[0] + 0x9E3779B9 & low, key[1] + 0xBB67AE85 & low)
    positive = low - a if a >> 31 else a
    return float(np.float32(positive) * np.float32(4.6566127342e-10))


def most_recent(missing: Iterable[int], recency: Mapping[int, int]) -> list[int]:
    """Return missing experts in the order of fetching: last routed first, ties to the lower id.

    ``recency`` has the number of the last call that routed an expert; none means never.
    """
    return sorted(missing, key=lambda e: (-recency.get(e, -1), e))


def automatic(unified_memory: bool) -> Literal["offload", "resident"]:
    """Return what ``auto`` means in 0.2.1: all experts on the device if it has no other memory."""
    return "resident" if unified_memory else "offload"


def recommended(host: float, link: float) -> Literal["offload", "hybrid"]:
    """Return the verdict of August's benchmark on one workload, by stand-alone bandwidths."""
    return "hybrid" if host > HYBRID_ABOVE * link else "offload"


def automatic_earlier(
    workloads: Sequence[str], verdict: str | None = None
) -> Literal["offload", "hybrid"]:
    """Return what ``auto`` meant in August: hybrid if the profile recommends nothing else.

    Args:
        workloads: verdicts on all profiled workloads whose experts have the model's format.
        verdict: the profile's verdict on the format itself, which is above those.
    """
    found = [verdict] if verdict else workloads
    return "hybrid" if found and all(one == "hybrid" for one in found) else "offload"


def cache_slots(
    free: int, weights: int, fixed: int, kv: int, slot: int, experts: int, total: int,
    overlap: bool = True, limit: int | None = None, ratio: float = 0.9,
) -> int:  # fmt: skip
    """Return the slots of --moe-cache-auto: what fits, but at least prefill's buffers.

    Args:
        free: bytes that were free before the model was loaded.
        weights, fixed, kv: bytes of dense weights, of other caches, and of the least KV cache.
        slot: bytes of an expert.
        experts, total: experts of a layer, and of the model.
        overlap: whether prefill has two buffers.
        limit: most slots that the kernels of a format address (nvfp4_marlin: 992).

    Raises BudgetError: the buffers and the KV cache do not fit.
    """
    most = total if limit is None else min(limit, total)
    least = 2 * experts if overlap and most >= 2 * experts else experts
    budget = int(ratio * free) - weights - fixed
    slots = max(least, min((budget - kv) // slot, most))
    if slots * slot + kv > budget:
        raise BudgetError(
            f"{slots} slots and the KV cache take {slots * slot + kv} bytes, {budget} are free; "
            "give more memory, or --set prefetch.overlap=false"
        )
    return slots


# --------------------------------------------------------------------------- place: slot pools


def split_equally(total: int, layers: int, least: int, most: int) -> list[int]:
    """Return the slots of each layer's pool: equally many, one more in the first layers."""
    _check_pools(total, layers, least)
    each, more = divmod(min(total, layers * most), layers)
    return [each + (row < more) for row in range(layers)]


def split_by_profile(
    total: int, counts: Sequence[Sequence[float]], least: int, most: int
) -> list[int]:
    """Return the slots of each layer's pool, by how much its experts are used.

    Each layer has ``least`` slots, for its most used experts.  The others are for the most used of
    all further experts; of equally used ones, those of the first layers.  ``counts`` are the uses
    ``[layer][expert]``, which count as shares of their layer.
    """
    _check_pools(total, len(counts), least)
    further: list[tuple[float, int]] = []
    for row, used in enumerate(counts):
        whole = max(sum(used), 1e-12)
        shares = sorted((one / whole for one in used), reverse=True)
        further += [(-share, row) for share in shares[least:most]]
    further.sort()
    sizes = [least] * len(counts)
    for _, row in further[: total - sum(sizes)]:
        sizes[row] += 1
    return sizes


def _check_pools(total: int, layers: int, least: int) -> None:
    if total < layers * least:
        raise BudgetError(
            f"{total} slots, but {layers} pools need {least} each; give a larger --capacity, or "
            "--set place.pools=unified"
        )


@dataclass(kw_only=True)
class SlotPools(PlaceByPopularity):
    """Places no expert, and divides the slots into pools.

    Attributes:
        pools: ``unified`` is one pool; otherwise each layer has its own: ``equal`` ones, or by the
            uses of experts in a ``profile``.
    """

    pools: Literal["unified", "equal", "profile"] = option(
        "unified", searched=True, needs=("texts",)
    )

    leaves_slots = True

    @property
    def calibrates(self) -> bool:  # type: ignore[override]
        """Whether texts must be counted: for a profile that was not given."""
        return self.pools == "profile" and not self.popularity

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return no experts."""
        return ()

    def slots(self, shape: ModelShape, slots: int) -> Sequence[int] | None:
        """Return the slots of each layer; None if all layers share them."""
        if self.pools == "unified":
            return None
        layers, least = shape.moe_layers, min(shape.num_experts, shape.top_k)
        if self.pools == "equal":
            return split_equally(slots, len(layers), least, shape.num_experts)
        counts = self.counts(shape)
        return split_by_profile(slots, [counts[layer] for layer in layers], least,
                                shape.num_experts)  # fmt: skip


# --------------------------------------------------------------------------- assign: the split


@dataclass(kw_only=True)
class _Split(Assignment):
    """Base of the division of misses between link and host, in decode; a prompt uses the device.

    Attributes:
        mode: ``offload`` fetches all misses, ``cpu`` none, ``hybrid`` divides them; ``auto``
            chooses one of these.
        max_fetch: most experts that a hybrid call fetches; -1 divides by φ instead.
        phi: φ, 0 to 1; null takes it from the run's durations.
        history: how many past durations of each kind are averaged.
    """

    mode: Mode = option("auto", searched=True, needs=("host",))
    max_fetch: int = option(-1, low=-1, searched=(0, 16))
    phi: float | None = option(None, low=0, high=1, searched=(0, 1))
    history: int = option(10, low=1, high=COSTS_KEPT, searched=(1, COSTS_KEPT), scale="log")

    reads_scores = False

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Set the clock to 0 and forget all recency; refuse slots for less than a layer."""
        experts, smallest = shape.num_experts, min(cache.pools)
        if cache.scope == "global" and smallest < experts:
            raise BudgetError(
                f"prefill streams layers of {experts} experts, the device has {smallest} slots; "
                "give a larger --capacity"
            )
        self._whole = smallest >= experts
        each = cache.pools * (1 if cache.scope == "layer" else len(shape.moe_layers))
        self._slots = dict(zip(shape.moe_layers, each, strict=True))
        self._clock = 0
        self._recency: list[dict[int, int]] = [{} for _ in range(shape.num_layers)]
        self._phi_q16: int | None = None
        self._chosen: Mode | None = None

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Plan to stream the layer in prefill; in decode, to fetch some misses and compute others.

        Host experts are in ascending order of id.
        """
        if self._chosen is None:  # the machine's rates are known, and nothing was decided
            self._chosen = self.automatic(view.costs) if self.mode == "auto" else self.mode
        if view.phase == "prefill":
            return self._stream(view, active)
        self._clock += 1
        mode, missing = self._chosen, active.absent
        if mode == "offload":
            return split(active, fetches(view.layer, missing))
        if mode == "cpu":
            return split(active, host=missing)
        recency = self._recency[view.layer]
        order = most_recent(missing, recency)
        hits = len(active.rows) - len(missing)
        count = self.fetched(view, len(missing), self._slots[view.layer] - hits)
        recency.update(dict.fromkeys(active.rows, self._clock))
        return split(active, fetches(view.layer, order[:count]), sorted(order[count:]))

    def automatic(self, costs: Costs) -> Mode:
        """Return the mode that ``auto`` is."""
        return "offload"

    def fetched(self, view: LayerView, misses: int, room: int) -> int:
        """Return how many of a layer's misses are fetched; ``room`` slots hold no hit."""
        raise NotImplementedError

    def share(self, view: LayerView) -> int | None:
        """Return φ as a Q16 integer, measured once; None if a cap was given or no host is known."""
        if self.max_fetch >= 0:
            return None
        if self._phi_q16 is None:
            if self.phi is not None:
                self._phi_q16 = to_q16(self.phi)
            else:
                rates = self.rates(view.costs)
                if rates is None:
                    return None
                self._phi_q16 = to_q16(phi_of(*rates))
        return self._phi_q16

    def rates(self, costs: Costs) -> tuple[float, float] | None:
        """Return the rates of link and host in experts per ns; None on a machine without host."""
        if not costs.host_ns:
            return None
        load_ns, host_ns = (
            mean_of_last(kind, self.history) for kind in (costs.load_ns, costs.host_ns)
        )
        return 1 / load_ns, 1 / host_ns

    def _stream(self, view: LayerView, active: Active) -> Plan:
        """Plan to copy the layer's experts for this prompt, chosen or not; none is kept."""
        absent: Sequence[int] = active.absent
        if self._whole:
            absent = view.residency.divide(range(view.shape.num_experts))[2]
        device = [*active.resident, *active.in_flight, *active.absent]
        return Plan(device, load=[Fetch(view.layer, e, keep=False) for e in absent])


@dataclass(kw_only=True)
class BandwidthSplit(_Split):
    """Divides the misses of each decoded layer between link and host (0.2.1).

    Attributes:
        rounding: of m·φ: ``min-wait`` to the division that ends first, ``stochastic`` up with the
            probability of the fraction, ``prefer-fetch`` up.
    """

    rounding: Rounding = option("min-wait", searched=True)

    @property
    def uses_host(self) -> bool:  # type: ignore[override]
        """Whether experts may be computed on the host."""
        return self.mode in ("hybrid", "cpu")

    def automatic(self, costs: Costs) -> Mode:
        """Return ``offload``: no machine's device memory is its only memory here."""
        return "offload"

    def fetched(self, view: LayerView, misses: int, room: int) -> int:
        """Return f by φ, or up to the cap: the given one, else 1.

        Without a profile, and if φ is 0 as a Q16 integer, the cap counts.
        """
        cap = 1 if self.max_fetch < 0 else self.max_fetch
        phi_q16 = self.share(view) or 0
        return split_misses(misses, phi_q16, cap, self.rounding, self._clock, room)


@dataclass(kw_only=True)
class EarlierSplit(_Split):
    """Divides the misses of each decoded layer between link and host (August, 0ab982f).

    ``auto`` is hybrid where the host computes experts more than twice as fast as the link copies
    them.
    """

    @property
    def uses_host(self) -> bool:  # type: ignore[override]
        """Whether experts may be computed on the host."""
        return self.mode != "offload"

    def automatic(self, costs: Costs) -> Mode:
        """Return ``hybrid`` or ``offload`` by the rates: the profile has this workload alone."""
        rates = self.rates(costs)
        return automatic_earlier([] if rates is None else [recommended(rates[1], rates[0])])

    def fetched(self, view: LayerView, misses: int, room: int) -> int:
        """Return f by φ, or up to the cap: the given one, E with a profile, else 1."""
        phi_q16 = self.share(view)
        if self.max_fetch >= 0:
            return split_misses(misses, 0, self.max_fetch)
        if phi_q16 is None:
            return split_misses(misses, 0, 1)
        return split_misses(misses, phi_q16, view.shape.num_experts)


# --------------------------------------------------------------------------- prefetch: two buffers


@dataclass(kw_only=True)
class TwoBuffers(Prefetching):
    """Copies the whole next layer while a prompt computes this one; in decode, nothing.

    Attributes:
        overlap: whether prefill has two buffers; with one, a layer is copied after its gate.
    """

    overlap: bool = option(True, searched=True)

    discipline = "committed"
    reads_scores = False

    def fits(self, experts: int, slots: int) -> bool:
        """Return whether two buffers are used: both must fit into the slots."""
        return self.overlap and slots >= 2 * experts

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Check whether the buffers fit: two into a shared pool, or one into each layer's."""
        smallest, experts = min(cache.pools), shape.num_experts
        own = self.overlap and cache.scope == "layer" and smallest >= experts
        self._two = own or (cache.scope == "global" and self.fits(experts, smallest))
        self._experts = range(experts)

    def opening(self, phase: Phase, layer: int) -> Sequence[Fetch]:
        """Return the whole first layer for a prompt."""
        return self._buffer(layer) if phase == "prefill" else ()

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return the whole next layer for a prompt."""
        if view.phase != "prefill" or view.next_layer is None:
            return ()
        return self._buffer(view.next_layer)

    def _buffer(self, layer: int) -> Sequence[Fetch]:
        return [Fetch(layer, e, keep=False) for e in self._experts] if self._two else ()


# --------------------------------------------------------------------------- evict: oldest call


class Pool:
    """A pool's slots: which expert is in which one, and the call that used it last.

    Slots are numbered from 0; an expert that enters takes the lowest empty slot.

    Attributes:
        slot: the slot of each key in the pool.
        usage: by key, the number of the last call that used it; keys of older calls come first.
    """

    def __init__(self, slots: int) -> None:
        self.slot: dict[int, int] = {}
        self.usage: OrderedDict[int, int] = OrderedDict()
        self._empty = list(range(slots))

    def use(self, key: int, call: int) -> None:
        """Note that a call uses a resident."""
        self.usage[key] = call
        self.usage.move_to_end(key)

    def enter(self, key: int, call: int) -> None:
        """Give the lowest empty slot to an expert."""
        self.slot[key] = heapq.heappop(self._empty)
        self.usage[key] = call

    def leave(self, key: int) -> None:
        """Empty the slot of an expert."""
        heapq.heappush(self._empty, self.slot.pop(key))
        del self.usage[key]

    def oldest(self, allowed: Mask) -> int | None:
        """Return the allowed key of the oldest call, ties to the lowest slot, or None."""
        found: int | None = None
        for key, call in self.usage.items():
            if found is not None and call != self.usage[found]:
                break
            if allowed[key] and (found is None or self.slot[key] < self.slot[found]):
                found = key
        return found

    def lowest(self, below: int, allowed: Mask) -> int | None:
        """Return the allowed key in the lowest slot under ``below``, or None."""
        inside = [(slot, key) for key, slot in self.slot.items() if slot < below and allowed[key]]
        return min(inside)[1] if inside else None

    @property
    def has_empty(self) -> bool:
        """Whether a slot is empty."""
        return bool(self._empty)


@dataclass(kw_only=True)
class OldestCall(Eviction):
    """Evicts the expert that the oldest call used; of one call's, that in the lowest slot.

    A call is a decoded layer.  In prefill, experts in the first slots give way to the buffers, and
    no use counts.

    Attributes:
        buffers: how many layers the first slots of a shared pool hold in prefill.
    """

    buffers: int = option(2, low=1, searched=(1, 4))

    reads_scores = False

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Empty all pools, and set the clock to 0."""
        self._experts = shape.num_experts
        self._pools = pools(shape, cache, Pool)
        self._call, self._prefill = 0, False
        shared = cache.scope == "global"
        self._buffered = self.buffers * shape.num_experts if shared else 0

    def observe(self, view: LayerView) -> None:
        """Note whether the layer is part of a prompt."""
        self._prefill = view.phase == "prefill"

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Count one call, and note the residents that it uses."""
        if self._prefill:
            return
        self._call += 1
        base = layer * self._experts
        pool = self._pools[base]
        for expert in experts:
            if base + expert in pool.slot:
                pool.use(base + expert, self._call)

    def arrived(self, key: int) -> None:
        """Give the lowest empty slot to the expert."""
        self._pools[key].enter(key, self._call)

    def left(self, key: int) -> None:
        """Empty the slot of an expert; experts of a buffer have none."""
        if key in self._pools[key].slot:
            self._pools[key].leave(key)

    def grows(self, incoming: int) -> bool:
        """Return whether a free slot is used: in prefill, only once the first ones are empty."""
        return not (self._prefill and self._buffered)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the key of the oldest call; in prefill, first those in the lowest slots.

        None while a slot is empty: a prompt's expert is about to leave it.
        """
        pool, found = self._pools[incoming], None
        if self._prefill and self._buffered:
            found = pool.lowest(self._buffered, allowed)
        if found is None and not pool.has_empty:
            found = pool.oldest(allowed)
        return found


# --------------------------------------------------------------------------- the system


@dataclass(kw_only=True)
class FreeToken(System):
    """FreeToken 0.2.1: by default, every miss is fetched; ``assign.mode=hybrid`` divides them."""

    paper = "arXiv 2608.16157"

    place: Placement = field(default_factory=SlotPools)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=BandwidthSplit)
    prefetch: Prefetching = field(default_factory=TwoBuffers)
    evict: Eviction = field(default_factory=OldestCall)
    pinned_copies: bool | None = True
    host_kernels: HostKernels = "fused"
    host_together: bool = True  # one submission to the executor, one sync for a layer

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return a note if prefill has one buffer for want of slots."""
        ahead = self.prefetch
        if not isinstance(ahead, TwoBuffers) or not ahead.overlap:
            return ()
        if ahead.fits(shape.num_experts, slots):
            return ()
        return [
            f"{slots} slots hold one of prefill's two buffers of {shape.num_experts} experts: a "
            "prompt's layers are copied after their gates"
        ]


@dataclass(kw_only=True)
class EarlierFreeToken(FreeToken):
    """FreeToken of August 2026: hybrid where the host is more than twice as fast as the link."""

    place: Placement = field(default_factory=PlaceNothing)
    assign: Assignment = field(default_factory=EarlierSplit)
