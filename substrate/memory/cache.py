"""The device's expert slots: the only place that knows which expert is where.

    ┌ Who owns a slot, and when may it be reused? ──────────────────────────────────────────────┐
    │ free ──claim──▶ arriving ──arrive──▶ resident ──read_by──▶ resident, busy ──▶ evictable    │
    │                                                                                            │
    │ claim       gives the slot to an expert; its previous owner is gone from that moment       │
    │ arriving    ready_ns > now: the transfer is under way, nothing may read or evict it        │
    │ pinned      its layer has chosen it: eviction must not touch it ...                        │
    │ computed    ... unless nothing else is left and its computation was already submitted      │
    │ busy        its reader has not ended: a computation still reads it                         │
    │ evictable   resident, not pinned, not busy                                                 │
    │ let go      it only passed through: the slot is free once its last reader has ended        │
    └────────────────────────────────────────────────────────────────────────────────────────────┘

A record's *key* is ``(form · layers + layer) · E + expert``.  It indexes all that is kept of
records, one by one or as a vector.  Each form has slots of its own.  Times are integer nanoseconds
of the machine's clock.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Literal

import numpy as np

from moebench.substrate.errors import BudgetError, IntegrityError, UsageError
from moebench.substrate.machines.protocol import Span
from moebench.substrate.memory.residency import InForms, Whereabouts
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.shape import ModelShape

Mask = np.ndarray
Scope = Literal["global", "layer"]

#: Later than any time: the end of something that has not ended.
NEVER = int(np.iinfo(np.int64).max)


def _flags(keys: int) -> tuple[bytearray, Mask]:
    """A flag for each key, none set: for single keys, and the same bytes for vector questions."""
    flags = bytearray(keys)
    return flags, np.frombuffer(flags, dtype=bool)


def _instants(keys: int) -> tuple["array[int]", np.ndarray]:
    """A time for each key, `NEVER` at first: for single keys, and the same for vector questions."""
    times = array("q", [NEVER]) * keys
    return times, np.frombuffer(times, dtype=np.int64)


def equal_pools(
    shape: ModelShape, slots: int, scope: Scope, tier: Tier, least: int | None = None
) -> tuple[int, ...]:
    """One pool of all slots, or the same number of slots for each MoE layer.

    Args:
        least: slots that there must be; None is as many as a token uses experts of a layer.

    Raises:
        BudgetError: not even one layer's pinned experts fit.
    """
    layers = len(shape.moe_layers)
    slots = min(slots, layers * shape.num_experts)
    pools = layers if scope == "layer" else 1
    if slots // pools < 1 or slots < (shape.top_k if least is None else least):
        raise BudgetError(
            f"{tier.name} memory: room for {slots} experts, one token of one layer pins "
            f"{shape.top_k}" + (f" and each of {layers} layers needs one" if pools > 1 else "")
            + "; give more memory, or a larger --cache-ratio or --slots"
        )  # fmt: skip
    return (slots // pools,) * pools


class _Pool:
    """Slots that lend each other, and which of their experts can be evicted.

    Attributes:
        free: slots without an expert.
        record_bytes: bytes of a slot.
        mask: who can be evicted, over all keys, at the latest instant that was asked for.
    """

    def __init__(self, free: list[int], keys: int, record_bytes: int) -> None:
        self.free, self.record_bytes = free, record_bytes
        self.flags, self.mask = _flags(keys)
        self.mask.flags.writeable = False


class ExpertCache:
    """The device's slots and the experts in them.

    Args:
        shape: the model.
        slots: how many experts fit at once; or how many of each MoE layer, which may be none.
        scope: one pool for all layers, or one for each layer: equal shares of ``slots``.  Where
            these are given for each layer, the scope is the layer.
        tier: charged a slot's bytes when the slot is used for the first time.
        record_bytes: bytes of a slot.
        more: of each form of records after form 0, its number of slots and the bytes of a slot.

    Attributes:
        forms: the number of forms.
        pools: the numbers of slots that lend each other, of form 0: of all layers together, or of
            each MoE layer.
        slots: the slots of form 0.
        capacity: the slots of all forms.
        slot_bytes: the bytes of all slots.

    Raises:
        BudgetError: not even one layer's pinned experts fit.
        UsageError: ``slots`` is not one number for each MoE layer.
    """

    def __init__(
        self,
        shape: ModelShape,
        slots: int | Sequence[int],
        scope: Scope,
        tier: Tier,
        record_bytes: int,
        more: Sequence[tuple[int, int]] = (),
    ) -> None:
        experts = shape.num_experts
        if isinstance(slots, int):
            slots = equal_pools(shape, slots, scope, tier)
        else:
            scope, layers = "layer", len(shape.moe_layers)
            if len(slots) != layers or min(slots) < 0:
                raise UsageError(
                    f"slots {[*slots]}; allowed: 0 or more for each of {layers} layers"
                )
        self.shape = shape
        self.scope: Scope = scope
        sizes = [record_bytes, *(size for _, size in more)]
        self.forms = len(sizes)
        #: Of each form, as `pools`.
        self.form_pools = [tuple(slots)]
        self.form_pools += [equal_pools(shape, count, scope, tier, least=1) for count, _ in more]
        self.pools, self.slots = self.form_pools[0], sum(slots)
        if more:
            self.whereabouts = self._in_forms  # type: ignore[method-assign]
        self.capacity = sum(map(sum, self.form_pools))
        self.slot_bytes = sum(sum(p) * n for p, n in zip(self.form_pools, sizes, strict=True))
        self._tier, self._experts, self._layers = tier, experts, shape.num_layers
        #: Keys of one form.
        self._keys = shape.num_layers * experts
        #: Each layer's keys, form by form.
        rows = self.forms * shape.num_layers
        self._rows = [slice(n * experts, (n + 1) * experts) for n in range(rows)]
        total = rows * experts
        self._slot_of = [-1] * total
        self._owner_of = [-1] * self.capacity
        #: The last computation that was submitted to read each.
        self._reader: list[Span | None] = [None] * total
        # Changes go key by key, most questions too; some are put to all keys at once.
        #: Who has a slot, complete or arriving; for others to read.
        self.held, self.held_all = _flags(total)
        self._ready_ns, self._ready_all = _instants(total)
        #: The keys that the layer in hand has chosen, and those of them whose computation was
        #: submitted: few.
        self._pinned: set[int] = set()
        self._computed: set[int] = set()
        # The instant of the pools' masks; since when those in them have been idle; keys that were
        # unpinned or have arrived since, or were not idle then, and before when none of them is.
        self._asked_ns = 0
        self._released: set[int] = set()
        self._due_ns = NEVER
        self._idle_ns, self._idle_all = _instants(total)
        each = [(n, size) for p, size in zip(self.form_pools, sizes, strict=True) for n in p]
        ends = accumulate(n for n, _ in each)
        self._pools = [
            _Pool(list(range(end - 1, end - n - 1, -1)), total, size)
            for end, (n, size) in zip(ends, each, strict=True)
        ]
        # By key, the pool of its slot: that of all layers, or its own layer's.
        self._pool_of = [self._pools[0]] * total
        of_layers = list(self._pools)
        for form in range(self.forms):
            first = form * shape.num_layers
            for layer in shape.moe_layers:
                pool = of_layers.pop(0) if scope == "layer" else of_layers[form]
                self._pool_of[self._rows[first + layer]] = [pool] * experts
        #: Slots that were let go: where they will be free, and their last use.
        self._draining: list[tuple[int, _Pool, Span]] = []
        self._charged: set[int] = set()

    # ------------------------------------------------------------------ questions

    def key(self, layer: int, expert: int, form: int = 0) -> int:
        """The index of a record in every array here."""
        return form * self._keys + layer * self._experts + expert

    def expert_of(self, key: int) -> tuple[int, int]:
        """The layer and the expert of a key."""
        row, expert = divmod(key, self._experts)
        return row % self._layers, expert

    def form_of(self, key: int) -> int:
        """The form of a key's record."""
        return key // self._keys

    def keys(self, layer: int, experts: Iterable[int], form: int = 0) -> list[int]:
        """The keys of several experts of a layer in one form."""
        first = layer * self._experts
        if form:
            first += form * self._keys
        return [first + expert for expert in experts]

    def whereabouts(self, layer: int, now_ns: int) -> Whereabouts:
        """Where the experts of a layer are at this instant."""
        row = self._rows[layer]
        return Whereabouts(self._ready_ns[row], self.held[row], now_ns)

    def _in_forms(self, layer: int, now_ns: int) -> Whereabouts:
        """The same where records have several forms."""
        rows = self._rows[layer :: self._layers]
        each = [Whereabouts(self._ready_ns[row], self.held[row], now_ns) for row in rows]
        return InForms(each, now_ns)

    def holds(self, key: int) -> bool:
        """Whether the expert has a slot, complete or arriving."""
        return self._slot_of[key] >= 0

    def has_come(self, key: int) -> bool:
        """Whether it is known when the expert is, or was, complete."""
        return self._ready_ns[key] != NEVER

    def is_pinned(self, key: int) -> bool:
        """Whether its layer has chosen the expert and may still compute it."""
        return key in self._pinned and key not in self._computed

    def slot_of(self, key: int) -> int:
        """The slot of an expert that has one."""
        return self._slot_of[key]

    def reader_of(self, key: int) -> Span | None:
        """The last computation that reads the expert where it is now; None if none did."""
        return self._reader[key]

    def has_free_slot(self, key: int, now_ns: int) -> bool:
        """Whether the expert could be placed at this instant without an eviction."""
        pool = self._pool_of[key]
        if self._draining and not pool.free:
            # One, for the claim that follows: the others were not free at every earlier instant,
            # at which a prefetch may yet have had its turn.
            for entry in self._draining:
                slot, drains_to, last_use = entry
                if drains_to is pool and (last_use.end_ns or NEVER) <= now_ns:
                    self._draining.remove(entry)
                    pool.free.append(slot)
                    break
        return bool(pool.free)

    def await_slot(self, key: int) -> Span | None:
        """Take the first slot that was let go and is not free yet: its last use; None without."""
        for entry in self._draining:
            slot, pool, last_use = entry
            if pool is self._pool_of[key]:
                self._draining.remove(entry)
                pool.free.append(slot)
                return last_use
        return None

    def evictable(self, incoming: int, now_ns: int) -> Mask:
        """Experts that can be evicted for ``incoming`` at this instant, over keys.

        The mask is the cache's own: read-only, and true until something changes.
        """
        if now_ns > self._asked_ns:
            self._asked_ns = now_ns
        if self._asked_ns >= self._due_ns:
            self._settle(self._asked_ns)
        mask = self._pool_of[incoming].mask
        if now_ns < self._asked_ns:  # a prefetch starts before what was asked last
            return mask & (self._idle_all <= now_ns)
        return mask

    def _settle(self, now_ns: int) -> None:
        """Bring the masks up to date: an expert is idle once it has come and was last read."""
        released, self._released, due_ns = self._released, set(), NEVER
        pinned, ready_ns, readers = self._pinned, self._ready_ns, self._reader
        all_idle_ns, pool_of = self._idle_ns, self._pool_of
        for key in released:
            if key in pinned:
                continue
            idle_ns, reader = ready_ns[key], readers[key]
            if reader is not None:
                end_ns = reader.end_ns
                if end_ns is None:  # a device that runs behind its control thread is still at it
                    self._released.add(key)
                    due_ns = now_ns
                    continue
                if end_ns > idle_ns:
                    idle_ns = end_ns
            if idle_ns <= now_ns:
                all_idle_ns[key] = idle_ns
                pool_of[key].flags[key] = True
            elif idle_ns != NEVER:
                self._released.add(key)
                due_ns = min(due_ns, idle_ns)
        self._due_ns = due_ns

    def evictable_soon(self, incoming: int, now_ns: int) -> Mask:
        """Experts that can be evicted once the last computation that reads them has ended.

        These include pinned ones: their layer has nothing left to start on them.
        """
        row, pool = self._pool_row(incoming), self._pool_of[incoming]
        mask = self._over_keys(row, self._ready_all[row] <= now_ns)
        for key in self._pinned:
            if self._pool_of[key] is pool:
                mask[key] = key in self._computed and self.has_come(key)
        return mask

    def arriving(self, incoming: int, now_ns: int) -> list[int]:
        """Keys under way that no layer will submit work on: evictable for ``incoming`` once there.

        A device that runs behind its control thread is given work on an expert that has not come.
        """
        row = self._pool_row(incoming)
        mask = self._over_keys(row, self.held_all[row] & (self._ready_all[row] > now_ns))
        found = np.flatnonzero(mask).tolist()
        computed = self._computed
        return [
            key for key in found
            if key not in self._pinned or (key in computed and not self.has_come(key))
        ]  # fmt: skip

    def _pool_row(self, incoming: int) -> slice:
        """Keys whose experts may be in the slots of the incoming one's pool."""
        if self.scope == "layer":
            return self._rows[incoming // self._experts]
        first = incoming // self._keys * self._keys
        return slice(first, first + self._keys)

    def _over_keys(self, row: slice, mask: Mask) -> Mask:
        """A mask of some keys as one of all."""
        if len(mask) == len(self.held_all):
            return mask
        found = np.zeros_like(self.held_all)
        found[row] = mask
        return found

    # ------------------------------------------------------------------ changes

    def claim(self, key: int, victim: int | None) -> int:
        """Give a slot to an expert: a free one, or the victim's.  Returns the slot."""
        slot_of = self._slot_of
        if slot_of[key] >= 0:
            raise IntegrityError(f"expert {key} already has a slot")
        if victim is None:
            pool = self._pool_of[key]
            if not pool.free:
                raise IntegrityError(f"expert {key} was to have a free slot, its pool has none")
            slot = pool.free.pop()
            if slot not in self._charged:
                self._tier.reserve("experts", pool.record_bytes)
                self._charged.add(slot)
        else:
            slot = slot_of[victim]
            if slot < 0 or (victim in self._pinned and victim not in self._computed):
                raise IntegrityError(f"expert {victim} cannot be evicted: not resident, or in use")
            self.held[victim] = False
            self._computed.discard(victim)
            slot_of[victim] = -1
            self._ready_ns[victim] = NEVER
            self._pool_of[victim].flags[victim] = False
        self.held[key] = True
        slot_of[key] = slot
        self._owner_of[slot] = key
        self._reader[key] = None
        return slot

    def let_go(self, key: int, last_use: Span) -> None:
        """The expert is gone; its slot is free when its last use has ended."""
        if not self.held[key]:
            raise IntegrityError(f"expert {key} has no slot to let go")
        pool = self._pool_of[key]
        pool.flags[key] = False
        self._draining.append((self._slot_of[key], pool, last_use))
        self.held[key] = False
        self._computed.discard(key)
        self._slot_of[key], self._reader[key] = -1, None
        self._ready_ns[key] = NEVER

    def arrive(self, key: int, ready_ns: int) -> None:
        """The expert can be read from ``ready_ns`` on."""
        self._ready_ns[key] = ready_ns
        if key not in self._pinned:  # else it is released when its layer ends
            self._released.add(key)
            if ready_ns < self._due_ns:
                self._due_ns = ready_ns

    def pin(self, keys: list[int]) -> None:
        """Protect experts that a layer has chosen."""
        self._pinned.update(keys)
        pool_of = self._pool_of
        for key in keys:
            pool_of[key].flags[key] = False

    def unpin(self, keys: list[int]) -> None:
        """End the protection."""
        self._pinned.difference_update(keys)
        self._computed.difference_update(keys)
        self._released.update(keys)
        self._due_ns = 0

    def read_by(self, spans: Iterable[Span]) -> None:
        """Computations that read pinned experts were submitted; their operations name them."""
        readers, computed = self._reader, self._computed.add
        for span in spans:
            op = span.op
            first = op.layer * self._experts
            if op.form:
                first += op.form * self._keys
            for expert in op.experts:
                key = first + expert
                readers[key] = span
                computed(key)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless slots, owners and pins agree."""
        held = np.flatnonzero(self.held_all).tolist()
        free = [slot for pool in self._pools for slot in pool.free]
        free += [slot for slot, _, _ in self._draining]
        if sorted([*(self._slot_of[key] for key in held), *free]) != list(range(self.capacity)):
            raise IntegrityError("slots are lost or owned twice")
        if any(self._owner_of[self._slot_of[key]] != key for key in held):
            raise IntegrityError("a slot's owner does not know it")
        for pool in self._pools:
            if (pool.mask & (self._ready_all == NEVER)).any() or pool.mask[[*self._pinned]].any():
                raise IntegrityError("a pinned or absent expert counts as evictable")
        if (self._ready_all[~self.held_all] != NEVER).any():
            raise IntegrityError("an expert without a slot counts as resident")
