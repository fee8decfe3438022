"""llama.cpp --moe-cache: cached experts on the device beside missing ones on the host.

ggml-org/llama.cpp PR 24524 (by leloch, not merged) and its forks; the rules are those of the CUDA
file of the forks (ggml-cuda/moe-cache.cu).  Variant ``earlier`` is an earlier fork:
borisk1/llama.cpp-fusion at e2302da.

    llama.cpp                                    moebench
    ─────────                                    ────────
    --moe-cache on, GGML_CUDA_MOE_CACHE_MODE     ``admit.mode``
    free memory less GGML_CUDA_MOE_CACHE_        CacheSlots (``place=moe-cache``): ``place.reserve``
      RESERVE_MB, at most ..._BUDGET_MB            and ``place.budget``, MiB
    a node: one product with a layer's experts   a layer of a pass
    moe_cache_plan: hits, and rows that the      BesideHost (``assign=beside-host``), by
      host gets back                               `rows_on_host`
    ..._MAX_BATCH 8, ..._OVERLAP_CPU_ROWS        ``assign.max_batch``, ``assign.host_rows``
    moe_cache_lookup_or_queue_locked             MissCounts (``admit=moe-cache``), by `threshold`
                                                   and `fills`
    ..._ADMIT_AFTER, ..._THROTTLE 8              ``admit.admit_after``, ``admit.readmit_after``
    ..._INSERTS 8, ..._QUEUE 128, ..._QUEUE_MB   ``admit.inserts``, ``admit.jobs``,
      512                                          ``admit.queue_mib``
    ..._MIN_EXPERT_KB                            ``admit.min_kib``
    the LRU list                                 RowLRU (``evict=row-lru``)
    heat-protected eviction (PR 300 of a fork)   Heat (``evict=heat``), by `coldest`
    1 miss in 8 when full (the earlier fork)     EveryNth (``admit=every-nth``)

Of a node of at most 8 tokens and 64 rows the device computes the rows whose experts are cached
while the host computes the others.  No row waits for a copy.  If all rows are hits, the last ones
are given back to the host, which would be idle.  Every miss counts, row by row.  An expert is
queued for a copy at its second miss since its last completed copy while a slot is free, and at its
eighth when none is; at its first if there is a slot for every expert.  A queued expert is no hit
and cannot leave until its copy has ended; the expert whose slot it takes has left at once.

Deviations and readings:

- llama.cpp caches single matrices (gate, up, down); a record of moebench is a whole expert.  The
  three matrices of an expert have equal counts, so they are queued in the same node of each and
  differ only where the queue is full.  A queue of 128 jobs is one of 42 experts and the one under
  way; 8 copies a node are 8 experts a layer; 64 slots are 22 experts.  `Form` describes records of
  which each is computed alone, so matrices cannot be forms of an expert.
- All matrices of one size and format share a pool of slots; here all experts do.  In files with
  other formats for some layers, or for down, llama.cpp divides the slots.
- In llama.cpp a miss of a node can evict an expert that a later row of the node would have hit.
  Here all rows are looked up first, then copies are queued.
- An expert is computed in one place: of several tokens' rows, those that are given back are experts
  of which all rows are among the last ones.
- Nodes of more tokens bypass the cache: the host computes them, or from ``assign.min_batch`` rows
  on their experts are copied as in `systems.llamacpp`.  Then cached experts are not copied again,
  and one that is being copied is waited for.  Slots for a third of a layer stay free for copies, as
  there.
- ``auto`` needs two devices, so on the one of moebench it is asleep; ``on`` is the default here.
- The reserve is on top of what moebench reserves for CUDA and the workspace.
- Shared experts are computed beside the host; llama.cpp's graph runs them in its own order.
- The earlier fork also fills the cache in the background from a list of the last run, and measures
  whether the cache gains; both are left out.  It has four copying threads; here there is one link.
- Several devices (a layer is bound to one) are not modelled.
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from moebench.substrate.engine.decisions import Active, Fetch, LayerView, Plan, fetches
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Admission, Assignment, Eviction, Placement
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.memory.capacity import Budget, Home
from moebench.substrate.models.shape import ModelShape
from moebench.systems.llamacpp import HostOrCopy, LlamaCpp, Split, shared_staging, staging
from moebench.systems.policies.evict import pools

MIB = 2**20

#: The largest node that the cache serves (moe_cache_batch_max, moe_cache_node_rows_max).
MOST_TOKENS, MOST_ROWS = 8, 64

#: Bytes of matrices that the host gets for each token where all rows are hits.
OVERLAP_BYTES = 8 * MIB

#: Smaller matrices are not cached, by mode.
LEAST_BYTES = {"auto": 512 * 2**10, "on": MIB}

# --------------------------------------------------------------------------- the rules


def is_served(tokens: int, rows: int, most_tokens: int = MOST_TOKENS) -> bool:
    """Return whether the cache serves a node; larger ones bypass it and are not counted."""
    return tokens <= most_tokens and rows <= MOST_ROWS


def rows_on_host(rows: int, tokens: int, matrix_bytes: int, given: int | None = None) -> int:
    """Return how many of a node's rows, its last ones, the host computes though all are hits.

    Args:
        rows: of the node: tokens times experts of a token.
        given: a number set by hand.
    """
    if given is not None:
        return min(given, max(0, rows - 1))
    if rows <= 1 or tokens <= 0 or rows % tokens:
        return 0
    least = 2 if rows // tokens >= 8 else 1
    found = max(least, OVERLAP_BYTES * tokens // max(1, matrix_bytes))
    return min(found, max(1, rows // 4), max(2, tokens), rows - 1)


def threshold(free: int, covers: bool, admit_after: int | None, again: int) -> int:
    """Return at which of its misses an expert is queued.

    Args:
        free: free slots of the pool.
        covers: whether the pool has a slot for every expert.
        admit_after: the number for a pool with free slots, set by hand; None is 2, or 1 if the pool
            covers all.
        again: the least number for a pool without free slots.
    """
    first = (1 if covers else 2) if admit_after is None else admit_after
    return first if free > 0 else max(first, again)


def fills(
    missed: Iterable[int], counts: dict[int, int], free: int, room: int, after: Callable[[int], int]
) -> list[int]:
    """Return the experts that a node queues for a copy, and add its misses to ``counts``.

    Args:
        missed: the expert of each row that missed and is not being copied, in the order of rows.
        counts: misses of each expert since its last completed copy.
        free: free slots of the pool.
        room: how many experts the node can queue.
        after: the threshold by the number of free slots.
    """
    queued: list[int] = []
    for expert in missed:
        if expert in queued:  # it is being copied
            continue
        counts[expert] = counts.get(expert, 0) + 1
        if counts[expert] >= after(free) and len(queued) < room:
            queued.append(expert)
            free = max(0, free - 1)
    return queued


def every_nth(
    missed: Iterable[int], copying: Container[int], before: int, free: int, room: int, every: int
) -> tuple[list[int], int]:
    """Return the experts that a node of the earlier fork queues, and the device's misses so far.

    Args:
        missed: the expert of each row that missed, in the order of rows.
        copying: those that are being copied: they count as misses and are not queued.
        before: misses of the device before the node.
    """
    queued: list[int] = []
    for expert in missed:
        before += 1
        if expert in copying or expert in queued or len(queued) >= room:
            continue
        if free > 0 or before % every == 0:
            queued.append(expert)
            free = max(0, free - 1)
    return queued, before


def coldest(
    order: Iterable[int], hits: Mapping[int, int] | Sequence[int], hot: int | None,
    allowed: Callable[[int], bool] = lambda key: True,
) -> int | None:  # fmt: skip
    """Return the least recently used key with at most ``hot`` hits since its copy, else the first.

    Args:
        order: keys, least recently used first.
        hot: None protects no key.
    """
    first = None
    for key in order:
        if not allowed(key):
            continue
        if hot is None or hits[key] <= hot:
            return key
        if first is None:
            first = key
    return first


def most_queued(jobs: int, queue_mib: int | None, matrix_bytes: int, matrices: int) -> int:
    """Return how many experts can wait or be under way in a queue of jobs of one matrix.

    One job is under way and not in the queue.

    Args:
        queue_mib: MiB of all jobs in the queue; None is any.
    """
    waiting = jobs if queue_mib is None else min(jobs, queue_mib * MIB // max(1, matrix_bytes))
    return (waiting + 1) // matrices if waiting else 0


def matrix_bytes_of(shape: ModelShape, cache: ExpertCache) -> int:
    """Return the bytes of one of an expert's matrices, by the size of a slot."""
    return cache.slot_bytes // max(1, cache.slots) // shape.ffn_matrices


def rows_of_node(view: LayerView) -> list[int]:
    """Return the expert of each row of a node, token by token and best first."""
    return [expert for chosen in view.topk for expert in chosen]


# --------------------------------------------------------------------------- place and assign


@dataclass(kw_only=True)
class CacheSlots(Split):
    """All experts on the host; the device's free memory less a reserve is empty slots.

    Attributes:
        reserve: MiB of device memory that stay free.
        budget: the most MiB of slots; None is all that is free.
    """

    reserve: int = option(3072, low=0, searched=(256, 8192), scale="log")
    budget: int | None = option(None, low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._slots: int | None = None

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """Return ``device`` for every layer."""
        homes: list[Home] = ["device"] * shape.num_layers
        free = max(0, budget.slots(homes) - staging(shape)) * budget.expert_bytes
        granted = max(0, free - self.reserve * MIB)
        if self.budget is not None:
            granted = min(granted, self.budget * MIB)
        every = len(shape.moe_layers) * shape.num_experts
        self._slots = min(granted // budget.expert_bytes, every)
        return homes

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return the slots of the cache and of copies."""
        return None if self._slots is None else self._slots + staging(shape)

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return no expert: the cache is empty when a run starts."""
        return ()

    def flags(self, shape: ModelShape) -> str:
        """Return --moe-cache with its number of slots."""
        budget = "" if self.budget is None else f" of {self.budget} MiB"
        return f"--moe-cache{budget} --cpu-moe: {self._slots or 0} slots of whole experts"


@dataclass(kw_only=True)
class BesideHost(HostOrCopy):
    """Computes cached experts on the device while the host computes all others; no copy is awaited.

    Attributes:
        max_batch: most tokens of a node that the cache serves.
        host_rows: rows that the host gets back where all are hits; None is by the matrices' bytes.
    """

    max_batch: int = option(MOST_TOKENS, low=1, searched=(1, 64), scale="log")
    host_rows: int | None = option(None, low=0, searched=(0, 8))

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Keep the bytes of a matrix."""
        super().start(shape, cache)
        self._matrix_bytes = matrix_bytes_of(shape, cache)

    def serves(self, view: LayerView) -> bool:
        """Return whether the cache serves a layer of a pass."""
        tokens = view.forward.rows
        return is_served(tokens, tokens * view.shape.top_k, self.max_batch)

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Return a plan: hits on the device, misses on the host; large nodes bypass the cache."""
        if not self.serves(view):
            if self.host_copies(view.forward.rows):
                return super().assign(view, active)
            return Plan((), [*active.rows])
        host = sorted([*active.in_flight, *active.absent])
        back = [] if host else self._given_back(view, active)
        return Plan([e for e in active.resident if e not in back], [*host, *back])

    def _given_back(self, view: LayerView, active: Active) -> list[int]:
        """Return the experts of which all rows are among those that the host gets back."""
        rows = rows_of_node(view)
        back = rows_on_host(len(rows), view.forward.rows, self._matrix_bytes, self.host_rows)
        kept = set(rows[: len(rows) - back])
        return [
            e for e in dict.fromkeys(rows[len(rows) - back :]) if e in active.rows and e not in kept
        ]


# --------------------------------------------------------------------------- admit


class _OfCache(Admission):
    """Base of admissions of a cache that shares the slots with copies of prompts.

    Attributes:
        spare: slots for copies, which a system sets.
    """

    spare: int = 0


@dataclass(kw_only=True)
class _Counting(_OfCache):
    """Base of admissions that look at each row of a node and queue copies of what it missed.

    Attributes:
        inserts: most experts that a node queues.
        jobs: most jobs that wait, of one matrix each.
        queue_mib: MiB that wait at most; None is any.
        min_kib: KiB of the smallest matrix that is cached; None is by the mode.
        least_slots: fewest slots of matrices with which there is a cache.
        max_batch: most tokens of a node that counts.
    """

    inserts: int = option(8, low=1, searched=(1, 64), scale="log")
    jobs: int = option(128, low=1, searched=(16, 1024), scale="log")
    queue_mib: int | None = option(512, low=1, searched=(64, 4096), scale="log")
    min_kib: int | None = option(None, low=0)
    least_slots: int = option(64, low=1)
    max_batch: int = option(MOST_TOKENS, low=1, searched=(1, 64), scale="log")

    @property
    def _least_bytes(self) -> int:
        """Bytes of the smallest matrix that is cached."""
        return LEAST_BYTES["on"] if self.min_kib is None else self.min_kib * 2**10

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Forget all misses; find out whether there is a cache, and how long its queue is."""
        self._cache, self._experts = cache, shape.num_experts
        matrices, size = shape.ffn_matrices, matrix_bytes_of(shape, cache)
        self.queue = most_queued(self.jobs, self.queue_mib, size, matrices)
        room = min(cache.pools) - self.spare
        entries = shape.num_experts * (1 if cache.scope == "layer" else len(shape.moe_layers))
        self._covers = room >= entries
        self._awake = size >= self._least_bytes and room * matrices >= self.least_slots
        #: Keys that were queued and are not known to be complete or refused.
        self._queued: set[int] = set()

    def _serves(self, view: LayerView) -> bool:
        tokens = view.forward.rows
        return self._awake and is_served(tokens, tokens * view.shape.top_k, self.max_batch)

    def _free(self, layer: int) -> int:
        """Return the free slots of the pool of a layer's experts."""
        return max(0, self._cache.free_slots(self._cache.key(layer, 0)) - self.spare)

    def _room(self) -> int:
        """Return how many experts a node can queue now."""
        self._queued = {key for key in self._queued if self._cache.holds(key)}
        return min(self.inserts, (self.queue or 0) - len(self._queued))

    def _queue(self, layer: int, experts: Sequence[int]) -> Sequence[Fetch]:
        self._queued.update(self._cache.keys(layer, experts))
        return fetches(layer, experts)

    def uploaded(self, key: int) -> None:
        """Note that a copy has ended."""
        self._queued.discard(key)


@dataclass(kw_only=True)
class MissCounts(_Counting):
    """Queues an expert at its second miss, or at its eighth if no slot is free.

    Attributes:
        mode: ``auto`` needs two devices, so it is asleep on one.
        admit_after: misses while a slot is free; None is 2, or 1 with a slot for every expert.
        readmit_after: least misses while no slot is free.
    """

    mode: Literal["on", "auto"] = "on"
    admit_after: int | None = option(None, low=1, searched=(1, 16), scale="log")
    readmit_after: int = option(8, low=1, searched=(1, 64), scale="log")

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Set all counts to zero."""
        super().start(shape, cache)
        self._awake = self._awake and self.mode == "on"
        self._counts = [dict[int, int]() for _ in range(shape.num_layers)]

    def uploads(self, view: LayerView, missed: Sequence[int]) -> Sequence[Fetch]:
        """Return the copies that this layer's misses queue."""
        if not self._serves(view):
            return ()
        copying = view.in_flight_E
        rows = [e for e in rows_of_node(view) if e in missed and not copying[e]]

        def after(free: int) -> int:
            return threshold(free, self._covers, self.admit_after, self.readmit_after)

        counts, free = self._counts[view.layer], self._free(view.layer)
        return self._queue(view.layer, fills(rows, counts, free, self._room(), after))

    def uploaded(self, key: int) -> None:
        """Forget the misses of an expert whose copy has ended."""
        super().uploaded(key)
        layer, expert = self._cache.expert_of(key)
        self._counts[layer].pop(expert, None)


@dataclass(kw_only=True)
class EveryNth(_Counting):
    """Queues every missed expert while a slot is free, and every eighth miss if none is.

    Attributes:
        every: of so many misses of the device, the last one is queued if no slot is free.
    """

    jobs: int = option(512, low=1, searched=(16, 1024), scale="log")
    queue_mib: int | None = option(None, low=1, searched=(64, 4096), scale="log")
    max_batch: int = option(1, low=1, searched=(1, 64), scale="log")
    every: int = option(8, low=1, searched=(1, 64), scale="log")

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Set the number of misses to zero."""
        super().start(shape, cache)
        self._misses = 0

    def uploads(self, view: LayerView, missed: Sequence[int]) -> Sequence[Fetch]:
        """Return the copies that this layer's misses queue."""
        if not self._serves(view):
            return ()
        rows = [expert for expert in rows_of_node(view) if expert in missed]
        held = {expert for expert in rows if view.in_flight_E[expert]}
        free, room = self._free(view.layer), self._room()
        queued, self._misses = every_nth(rows, held, self._misses, free, room, self.every)
        return self._queue(view.layer, queued)


# --------------------------------------------------------------------------- evict


class ServedEviction(Eviction):
    """Base of evictions that know which layers of a pass a cache serves.

    Attributes:
        serves: returns whether the cache serves a layer, which a system sets; None is every layer.
    """

    serves: Callable[[LayerView], bool] | None = None
    reads_scores = False


@dataclass(kw_only=True)
class RowLRU(ServedEviction):
    """Evicts the expert that was used longest ago; within a layer uses are in the order of rows."""

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Create an empty order for each pool."""
        self._experts = shape.num_experts
        self._orders = pools(shape, cache, lambda slots: OrderedDict[int, None]())
        self._hits = [0] * len(self._orders)
        self._rows: list[int] = []
        self._bypassed = False

    def observe(self, view: LayerView) -> None:
        """Keep the layer's rows, in whose order experts are used."""
        self._rows = rows_of_node(view)
        self._bypassed = self.serves is not None and not self.serves(view)

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Make each row's expert the most recent one, row by row."""
        if self._bypassed:
            return
        base = layer * self._experts
        order, hits, active = self._orders[base], self._hits, set(experts)
        # A routing that replaces experts may use others than the model's own.
        for expert in [e for e in self._rows if e in active] + sorted(
            active.difference(self._rows)
        ):
            key = base + expert
            if key in order:
                order.move_to_end(key)
                hits[key] += 1

    def arrived(self, key: int) -> None:
        """Append the expert to its pool's order, without hits."""
        self._orders[key][key] = None
        self._hits[key] = 0

    def left(self, key: int) -> None:
        """Remove the expert from its pool's order."""
        self._orders[key].pop(key, None)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed key that was used longest ago; None in layers that bypass it."""
        if self._bypassed:
            return None
        return coldest(self._orders[incoming], self._hits, self._most_hits, allowed.__getitem__)

    @property
    def _most_hits(self) -> int | None:
        """Hits since its copy up to which an expert is not protected; None protects none."""
        return None


@dataclass(kw_only=True)
class Heat(RowLRU):
    """Evicts, of the experts with few hits since their copy, the one that was used longest ago.

    If all have more hits, it is the one of all that was used longest ago.

    Attributes:
        hot: most hits of an expert that is not protected.
    """

    hot: int = option(4, low=0, searched=(0, 16))

    @property
    def _most_hits(self) -> int | None:
        """The option ``hot``."""
        return self.hot


# --------------------------------------------------------------------------- the system


@dataclass(kw_only=True)
class LlamaCppMoeCache(LlamaCpp):
    """llama.cpp --moe-cache on: copies in the background, hits beside misses."""

    paper = "ggml-org/llama.cpp PR 24524"

    place: Placement = field(default_factory=CacheSlots)
    assign: Assignment = field(default_factory=BesideHost)
    evict: Eviction = field(default_factory=RowLRU)
    admit: Admission = field(default_factory=MissCounts)
    overlap: bool = True

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Keep slots free for copies of prompts, which evict no cached expert."""
        spare = shared_staging(shape, cache)
        if isinstance(self.admit, _Counting):
            self.admit.spare = spare
        if isinstance(self.evict, RowLRU) and isinstance(self.assign, BesideHost):
            self.evict.transient, self.evict.serves = spare, self.assign.serves
        super().start(shape, cache)

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return llama.cpp's notes, and that ``auto`` is asleep."""
        said = list(super().remarks(shape, slots))
        if isinstance(self.admit, MissCounts) and self.admit.mode == "auto":
            said.append("--moe-cache auto is asleep on one device; allowed: admit.mode=on")
        return said


@dataclass(kw_only=True)
class EarlierMoeCache(LlamaCppMoeCache):
    """The cache of an earlier fork: no second miss, and one miss in eight when it is full."""

    paper = "borisk1/llama.cpp-fusion"

    assign: Assignment = field(default_factory=lambda: BesideHost(max_batch=1, host_rows=0))
    admit: Admission = field(default_factory=EveryNth)
