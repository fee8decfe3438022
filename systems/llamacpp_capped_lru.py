"""llama.cpp with a capped LRU of experts in each layer: two uploads a layer and step.

ggml-org/llama.cpp PR 27861 (not merged), as in turbo-tan/llama.cpp-tq3 at bf247f9,
src/llama-moecache.cpp.

    llama.cpp                              moebench
    ─────────                              ────────
    --moe-expert-cache N, LLAMA_MOE_       LayerSlots (``place=layer-slots``, ``place.n``)
      CACHE_SLOTS
    a step: one call of decode             a pass
    the table of an expert's slot          the published experts, `Capped.published`
    moe_obs_cb: hits, and pending misses   `Capped.observe`, of at most 4 tokens
    llama_moe_cache_step: publish,         ``admit=capped``, at the end of a pass, by `schedule`
      then schedule
    max_inserts 2                          ``admit.uploads_per_layer``
    slot_last_use                          LayerLRU (``evict=layer-lru``)
    hits on the device, misses on the      PublishedCopies (``assign=published-copies``),
      host                                   ``assign.max_batch``

Each layer has N slots.  A layer remembers which experts a step missed, each once, in the order of
the rows.  At the end of the step copies that have ended are published.  Then the last two misses,
the last one first, are scheduled: the expert of the layer that was used longest ago leaves at once,
and the newcomer is used from the step after its publication on, so at best two steps after its
miss.  One of the two that has been published meanwhile uses up its place.  The other misses are
forgotten.

Deviations and readings:

- A copy that takes two steps or more is scheduled a second time in llama.cpp if its expert is
  missed again: a second slot is lost to it.  Here an expert on its way uses up a place and is not
  copied twice.  How often this can happen: where the copies of a step, at most two for each layer,
  take longer than a step.
- A copy is published at the first gate of a pass; so one that ends between the end of a step and
  that gate is published a step early.
- An empty slot, or a victim, is chosen at the end of the step.  A slot for misses, which llama.cpp
  has in addition to N in each layer, is counted as used by `LayerSlots`.
- Larger steps are neither served nor counted: the host computes all their experts, or from
  ``assign.min_batch`` rows on they are copied as in `systems.llamacpp`.  Then cached experts are
  not copied again.  Slots for a third of a layer stay free for copies, as there.
- Device and host compute a layer's experts at the same time.  llama.cpp's graph has both parts; in
  which order its scheduler starts them is not known.
- Only layers with separate gate and up matrices are cached in llama.cpp; here all are.
- Another N for some layers, several devices and a cache on the fastest one are not modelled.
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from moebench.substrate.engine.decisions import Active, Fetch, LayerView, Plan
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Admission, Assignment, Eviction, Placement
from moebench.substrate.errors import BudgetError
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.memory.capacity import Budget, Home
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Phase
from moebench.systems.llamacpp import HostOrCopy, LlamaCpp, Split, shared_staging, staging
from moebench.systems.llamacpp_moe_cache import ServedEviction, rows_of_node

#: Most tokens of a step that is served and counted.
MOST_TOKENS = 4

# --------------------------------------------------------------------------- the rule


def pending(rows: Iterable[int], published: Container[int]) -> list[int]:
    """Return the experts that a layer's rows miss, each once, in the order of rows."""
    return [expert for expert in dict.fromkeys(rows) if expert not in published]


def schedule(
    missed: Sequence[int], order: Iterable[int], coming: Container[int], free: int, most: int = 2
) -> list[tuple[int, int | None]]:
    """Return the uploads of a layer at the end of a step, each with the expert that leaves for it.

    Args:
        missed: the experts that the step missed, each once, in the order of rows.
        order: experts that are published by now, least recently used first.
        coming: experts whose copies are under way.
        free: slots of the layer without an expert, which are used first.
        most: uploads of a layer and step; an expert that has a slot uses up one.
    """
    here, found = [*order], list[tuple[int, int | None]]()
    for expert in [*reversed(missed)][:most]:
        if expert in here or expert in coming:
            continue
        if not (free or here):  # copies to all slots are under way
            break
        found.append((expert, None if free else here.pop(0)))
        free = max(0, free - 1)
    return found


# --------------------------------------------------------------------------- the policies


@dataclass(kw_only=True)
class LayerSlots(Split):
    """All experts on the host; each layer has N empty slots.

    Attributes:
        n: N; None is the most that fit.
    """

    n: int | None = option(None, low=0, searched=(1, 128), scale="log")

    def __post_init__(self) -> None:
        super().__post_init__()
        #: N, once `homes` was called.
        self.share: int | None = None

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """Return ``device`` for every layer.

        Raises:
            BudgetError: N slots of each layer do not fit.
        """
        homes: list[Home] = ["device"] * shape.num_layers
        free = max(0, budget.slots(homes) - staging(shape))
        # Each layer has one more slot, of zeros, for experts that it misses.
        best = min(max(0, free // len(shape.moe_layers) - 1), shape.num_experts)
        self.share = best if self.n is None else min(self.n, shape.num_experts)
        if self.share > best:
            raise BudgetError(
                f"place.n={self.n}: {len(shape.moe_layers)} layers have no room for so many slots; "
                f"the most that fit are {best} (place.n=null)"
            )
        return homes

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return the slots of all layers and of copies."""
        if self.share is None:
            return None
        return self.share * len(shape.moe_layers) + staging(shape)

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return no expert: the cache is empty when a run starts."""
        return ()

    def flags(self, shape: ModelShape) -> str:
        """Return --moe-expert-cache with its N."""
        return f"--moe-expert-cache {self.share} --cpu-moe, of {shape.num_experts} experts a layer"


@dataclass(kw_only=True)
class PublishedCopies(HostOrCopy):
    """Computes published experts on the device and all others on the host.

    Attributes:
        max_batch: most tokens of a pass that the cache serves.
    """

    max_batch: int = option(MOST_TOKENS, low=1, searched=(1, 64), scale="log")

    def __post_init__(self) -> None:
        super().__post_init__()
        #: Keys of published experts, which the system sets; None is every resident.
        self.published: Container[int] | None = None

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Keep the number of experts, by which keys count."""
        super().start(shape, cache)
        self._experts = shape.num_experts

    def serves(self, view: LayerView) -> bool:
        """Return whether the cache serves a layer of a pass."""
        return view.forward.rows <= self.max_batch

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Return a plan: published experts on the device; large passes bypass the cache."""
        if not self.serves(view):
            if self.host_copies(view.forward.rows):
                return super().assign(view, active)
            return Plan((), [*active.rows])
        base, published = view.layer * self._experts, self.published
        here = [e for e in active.resident if published is None or base + e in published]
        return Plan(here, [e for e in active.rows if e not in here])


@dataclass(kw_only=True)
class Capped(Admission):
    """Uploads the last two misses of each layer at the end of a pass, in the background.

    Attributes:
        uploads_per_layer: most uploads of a layer and pass.
        max_batch: most tokens of a pass that counts.
    """

    uploads_per_layer: int = option(2, low=0, searched=(1, 16), scale="log")
    max_batch: int = option(MOST_TOKENS, low=1, searched=(1, 64), scale="log")

    reads_scores = False

    def __post_init__(self) -> None:
        super().__post_init__()
        #: Returns a layer's complete experts, least recently used first, and its free slots.  The
        #: system sets it; None leaves victims to the eviction.
        self.slots_of: Callable[[int], tuple[list[int], int]] | None = None

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Forget misses and published experts."""
        self._cache, self._layers = cache, shape.moe_layers
        self._experts = shape.num_experts
        #: Keys of experts that the table has.
        self.published: set[int] = set()
        self._ended: set[int] = set()
        self._missed: dict[int, list[int]] = {}

    def uploaded(self, key: int) -> None:
        """Note a copy that has ended; it is published at the first gate of a pass."""
        self.published.discard(key)  # it was evicted since it was published
        self._ended.add(key)

    def observe(self, view: LayerView) -> None:
        """Publish at a pass's first layer; remember which experts the layer misses."""
        if view.layer == self._layers[0]:
            self.published |= self._ended
            self._ended.clear()
        resident_E, keys = view.resident_E, self._cache.keys(view.layer, range(self._experts))
        here = {e for e, key in enumerate(keys) if key in self.published and resident_E[e]}
        self.published.difference_update(key for e, key in enumerate(keys) if e not in here)
        if view.forward.rows <= self.max_batch:
            self._missed[view.layer] = pending(rows_of_node(view), here)

    def pass_ends(self, phase: Phase) -> Sequence[Fetch]:
        """Return the uploads of each layer, front layers first, and forget all misses."""
        missed, self._missed = self._missed, {}
        return [
            fetch for layer in sorted(missed) for fetch in self._scheduled(layer, missed[layer])
        ]

    def _scheduled(self, layer: int, missed: Sequence[int]) -> list[Fetch]:
        """Return the uploads of a layer, with their victims if the eviction is this system's."""
        keys = self._cache.keys(layer, range(self._experts))
        held = {expert for expert, key in enumerate(keys) if self._cache.holds(key)}
        order, free = ([], self._experts) if self.slots_of is None else self.slots_of(layer)
        found = schedule(missed, order, held.difference(order), free, self.uploads_per_layer)
        return [Fetch(layer, expert, instead_of=victim) for expert, victim in found]


@dataclass(kw_only=True)
class LayerLRU(ServedEviction):
    """Gives each layer N slots and evicts its expert that was used longest ago, row by row.

    An expert counts as used when its copy is published, at the first gate of a pass.

    Attributes:
        n: N; None is an equal share of the slots.
    """

    n: int | None = option(None, low=0)

    needs_host = True

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Create an empty order for each layer."""
        self._experts, self._first = shape.num_experts, shape.moe_layers[0]
        equal = max(0, cache.slots - self.transient) // len(shape.moe_layers)
        self.share = equal if self.n is None else self.n
        self._cache = cache
        self._orders = [OrderedDict[int, None]() for _ in range(shape.num_layers)]
        #: Experts that have arrived and are not published.
        self._new: list[int] = []
        self._rows: list[int] = []
        self._bypassed = False

    def observe(self, view: LayerView) -> None:
        """Publish at a pass's first layer; keep the layer's rows."""
        if view.layer == self._first:
            for key in self._new:
                self._orders[key // self._experts][key] = None
            self._new.clear()
        self._rows = rows_of_node(view)
        self._bypassed = self.serves is not None and not self.serves(view)

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Make each row's expert the most recent one, if it is published."""
        if self._bypassed:
            return
        base, order, active = layer * self._experts, self._orders[layer], set(experts)
        for expert in [e for e in self._rows if e in active] + sorted(
            active.difference(self._rows)
        ):
            key = base + expert
            if key in order:
                order.move_to_end(key)

    def arrived(self, key: int) -> None:
        """Remember the expert until it is published."""
        self._new.append(key)

    def left(self, key: int) -> None:
        """Remove the expert from its layer's order."""
        self._orders[key // self._experts].pop(key, None)
        if key in self._new:
            self._new.remove(key)

    def slots_of(self, layer: int) -> tuple[list[int], int]:
        """Return a layer's complete experts, least recently used first, and its free slots."""
        first = layer * self._experts
        new = [key for key in self._new if key // self._experts == layer]
        held = sum(self._cache.held[first : first + self._experts])
        return [key - first for key in chain(self._orders[layer], new)], max(0, self.share - held)

    def grows(self, incoming: int) -> bool:
        """Return whether the layer has fewer than N experts, complete or arriving."""
        return self.slots_of(incoming // self._experts)[1] > 0

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the layer's expert that was used longest ago; None in passes that bypass it."""
        if self._bypassed:
            return None
        layer, first = incoming // self._experts, incoming // self._experts * self._experts
        order, _ = self.slots_of(layer)
        return next((first + expert for expert in order if allowed[first + expert]), None)


# --------------------------------------------------------------------------- the system


@dataclass(kw_only=True)
class LlamaCppCappedLRU(LlamaCpp):
    """llama.cpp with N slots a layer and at most two uploads a layer and step."""

    paper = "ggml-org/llama.cpp PR 27861"

    place: Placement = field(default_factory=LayerSlots)
    assign: Assignment = field(default_factory=PublishedCopies)
    evict: Eviction = field(default_factory=LayerLRU)
    admit: Admission = field(default_factory=Capped)
    overlap: bool = True

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Keep slots free for copies of prompts; let the host compute what is not published."""
        spare = shared_staging(shape, cache)
        if isinstance(self.evict, LayerLRU) and isinstance(self.assign, PublishedCopies):
            self.evict.transient, self.evict.serves = spare, self.assign.serves
        super().start(shape, cache)
        if isinstance(self.admit, Capped):
            self.admit.slots_of = self.evict.slots_of if isinstance(self.evict, LayerLRU) else None
            if isinstance(self.assign, PublishedCopies):
                self.assign.published = self.admit.published
