"""The device's expert slots: the only module that keeps which expert is in which slot.

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

A record's *key* is ``(form · layers + layer) · E + expert``; where each expert has one record, in a
form of its own, it is ``layer · E + expert``.  It indexes all that is kept of records, one by one
or as a vector.  Each form has slots of its own, unless each expert has one record: then all share
slots.  Times are integer nanoseconds of the machine's clock.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
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

_NONE: Mapping[int, int] = {}

#: Later than any time: the end of something that has not ended.
NEVER = int(np.iinfo(np.int64).max)


def _flags(keys: int) -> tuple[bytearray, Mask]:
    """Return unset flags of all keys, as bytes and as a boolean array of the same memory."""
    flags = bytearray(keys)
    return flags, np.frombuffer(flags, dtype=bool)


def _instants(keys: int) -> tuple["array[int]", np.ndarray]:
    """Return times of all keys, all `NEVER`, as an array and as a vector of the same memory."""
    times = array("q", [NEVER]) * keys
    return times, np.frombuffer(times, dtype=np.int64)


def equal_pools(
    shape: ModelShape, slots: int, scope: Scope, tier: Tier, least: int | None = None
) -> tuple[int, ...]:
    """Return the slots of each pool: one pool of all, or one of equal size for each MoE layer.

    Args:
        least: slots that there must be; None is as many as a token uses experts of a layer.

    Raises BudgetError: the experts that one token uses in one layer do not fit.
    """
    layers = len(shape.moe_layers)
    slots = min(slots, layers * shape.num_experts)
    pools = layers if scope == "layer" else 1
    if slots // pools < 1 or slots < (shape.top_k if least is None else least):
        raise BudgetError(
            f"{tier.name} memory: room for {slots} experts, one token of one layer pins "
            f"{shape.top_k}" + (f" and each of {layers} layers needs one" if pools > 1 else "")
            + "; give more memory, or a larger --capacity or --slots"
        )  # fmt: skip
    return (slots // pools,) * pools


class _Pool:
    """Slots that any of a set of experts may use, and which of their experts can be evicted.

    Attributes:
        slots: how many there are.
        free: those without an expert.
        record_bytes: bytes of a slot.
        mask: the evictable experts over all keys, at the latest instant that was asked for.
    """

    def __init__(self, free: list[int], keys: int, record_bytes: int) -> None:
        self.slots, self.free, self.record_bytes = len(free), free, record_bytes
        self.flags, self.mask = _flags(keys)
        self.mask.flags.writeable = False


class ExpertCache:
    """The device's slots, the experts in them, and which of these can be evicted.

    Args:
        shape: the model.
        slots: how many experts fit at once; or how many of each MoE layer, which may be none.
        scope: one pool for all layers, or one for each layer: equal shares of ``slots``.  Where
            these are given for each layer, the scope is the layer.
        tier: charged a slot's bytes when the slot is used for the first time.
        record_bytes: bytes of a slot.
        more: of each form of records after form 0, its number of slots and the bytes of a slot.
        chosen: the form of each expert's only record ``[layers, E]``, where all forms share slots;
            a key then is ``layer · E + expert``.

    Attributes:
        forms: the number of forms that have slots of their own.
        used_forms: the forms of the records.
        pools: the slots of each pool of form 0: one pool for all layers, or one for each MoE layer.
        slots: the slots of form 0.
        capacity: the slots of all forms.
        slot_bytes: the bytes of all slots.

    Raises:
        BudgetError: the experts that one token uses in one layer do not fit.
        UsageError: ``slots`` is not one number for each MoE layer.
    """

    def __init__(
        self, shape: ModelShape, slots: int | Sequence[int], scope: Scope, tier: Tier,
        record_bytes: int, more: Sequence[tuple[int, int]] = (), chosen: np.ndarray | None = None,
    ) -> None:  # fmt: skip
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
        #: The slots of each pool of each form.
        self.form_pools = [tuple(slots)]
        self.form_pools += [equal_pools(shape, count, scope, tier, least=1) for count, _ in more]
        self.pools, self.slots = self.form_pools[0], sum(slots)
        if more:
            self.residency = self._in_forms  # type: ignore[method-assign]
        self.capacity = sum(map(sum, self.form_pools))
        self.slot_bytes = sum(sum(p) * n for p, n in zip(self.form_pools, sizes, strict=True))
        self._tier, self._experts, self._layers = tier, experts, shape.num_layers
        #: The number of keys of one form.
        self._keys = shape.num_layers * experts
        #: The distance of the keys of two forms, and by key the form where each expert has one.
        self._form_keys, self._chosen = self._keys, list[int]()
        self.used_forms: Sequence[int] = range(self.forms)
        self._chosen_in: list[dict[int, int]] = []
        if chosen is not None:
            self._form_keys, self._chosen = 0, chosen.ravel().tolist()
            self.used_forms = np.unique(chosen[[*shape.moe_layers]]).tolist()
            self._chosen_in = [{e: f for e, f in enumerate(row) if f} for row in chosen.tolist()]
        #: The keys of each layer, form by form.
        rows = self.forms * shape.num_layers
        self._rows = [slice(n * experts, (n + 1) * experts) for n in range(rows)]
        total = rows * experts
        self._slot_of = [-1] * total
        self._owner_of = [-1] * self.capacity
        #: By key, the last submitted computation that reads the record.
        self._reader: list[Span | None] = [None] * total
        # Changes and most queries are of single keys; some queries are of all keys at once.
        #: Whether each key has a slot, complete or arriving; other modules read it.
        self.held, self.held_all = _flags(total)
        #: By key, when the expert is complete; other modules read the vector.
        self._ready_ns, self.ready_all = _instants(total)
        #: The keys that the current layer has chosen, and those of them whose computation was
        #: submitted.
        self._pinned: set[int] = set()
        self._computed: set[int] = set()
        # The instant of the pools' masks; the keys that have changed since then or were busy then,
        # and a time before which none of these is idle; by key, since when it has been idle.
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
        # By key, the pool of its slot.
        self._pool_of = [self._pools[0]] * total
        of_layers = list(self._pools)
        for form in range(self.forms):
            first = form * shape.num_layers
            for layer in shape.moe_layers:
                pool = of_layers.pop(0) if scope == "layer" else of_layers[form]
                self._pool_of[self._rows[first + layer]] = [pool] * experts
        #: Slots that were let go: the pool in which each will be free, and its last use.
        self._draining: list[tuple[int, _Pool, Span]] = []
        self._charged: set[int] = set()

    # ------------------------------------------------------------------ questions

    def key(self, layer: int, expert: int, form: int = 0) -> int:
        """Return the key of a record, its index in every array of the cache."""
        return form * self._form_keys + layer * self._experts + expert

    def chosen_forms(self, layer: int) -> Mapping[int, int]:
        """Return the forms other than 0 of a layer's only records, by expert; else none."""
        return self._chosen_in[layer] if self._chosen else _NONE

    def expert_of(self, key: int) -> tuple[int, int]:
        """Return the layer and the expert of a key."""
        row, expert = divmod(key, self._experts)
        return row % self._layers, expert

    def form_of(self, key: int) -> int:
        """Return the form of a key's record."""
        return self._chosen[key] if self._chosen else key // self._keys

    def keys(self, layer: int, experts: Iterable[int], form: int = 0) -> list[int]:
        """Return the keys of several experts of a layer in one form."""
        first = layer * self._experts
        if form:
            first += form * self._form_keys
        return [first + expert for expert in experts]

    def residency(self, layer: int, now_ns: int) -> Whereabouts:
        """Return which experts of a layer are resident or in flight at this instant."""
        row = self._rows[layer]
        return Whereabouts(self._ready_ns[row], self.held[row], now_ns)

    def _in_forms(self, layer: int, now_ns: int) -> Whereabouts:
        """Return a layer's residency where records have several forms."""
        rows = self._rows[layer :: self._layers]
        each = [Whereabouts(self._ready_ns[row], self.held[row], now_ns) for row in rows]
        return InForms(each, now_ns)

    def holds(self, key: int) -> bool:
        """Return whether the expert has a slot, complete or arriving."""
        return bool(self.held[key])

    def has_come(self, key: int) -> bool:
        """Return whether the time is known at which the expert is complete."""
        return self._ready_ns[key] != NEVER

    def is_complete(self, key: int, now_ns: int) -> bool:
        """Return whether the expert is completely on the device at this instant."""
        return self._ready_ns[key] <= now_ns

    def free_slots(self, key: int) -> int:
        """Return how many slots that the expert could use have no expert."""
        row = self._pool_row(key)
        return self._pool_of[key].slots - self.held.count(1, row.start, row.stop)

    def is_pinned(self, key: int) -> bool:
        """Return whether the expert is protected: its layer has chosen it and not submitted it."""
        return key in self._pinned and key not in self._computed

    def slot_of(self, key: int) -> int:
        """Return the slot of an expert that has one."""
        return self._slot_of[key]

    def reader_of(self, key: int) -> Span | None:
        """Return the last submitted computation that reads the expert in its slot, or None."""
        return self._reader[key]

    def has_free_slot(self, key: int, now_ns: int) -> bool:
        """Return whether the expert could get a slot at this instant without an eviction."""
        pool = self._pool_of[key]
        if self._draining and not pool.free:
            # Free one slot only, for the claim that follows: a prefetch that begins at an earlier
            # instant must not find the others free.
            for entry in self._draining:
                slot, drains_to, last_use = entry
                if drains_to is pool and (last_use.end_ns or NEVER) <= now_ns:
                    self._draining.remove(entry)
                    pool.free.append(slot)
                    break
        return bool(pool.free)

    def await_slot(self, key: int) -> Span | None:
        """Take the first slot that was let go and is still in use; return its last use, or None."""
        for entry in self._draining:
            slot, pool, last_use = entry
            if pool is self._pool_of[key]:
                self._draining.remove(entry)
                pool.free.append(slot)
                return last_use
        return None

    def evictable(self, incoming: int, now_ns: int) -> Mask:
        """Return the mask over keys of experts that can be evicted for ``incoming`` now.

        The mask is the cache's own array: read-only, and valid until something changes.
        """
        if now_ns > self._asked_ns:
            self._asked_ns = now_ns
        if self._asked_ns >= self._due_ns:
            self._settle(self._asked_ns)
        mask = self._pool_of[incoming].mask
        if now_ns < self._asked_ns:  # a prefetch starts before the latest instant
            return mask & (self._idle_all <= now_ns)
        return mask

    def _settle(self, now_ns: int) -> None:
        """Update the masks: an expert is idle once its transfer and its last reader have ended."""
        released, self._released, due_ns = self._released, set(), NEVER
        pinned, ready_ns, readers = self._pinned, self._ready_ns, self._reader
        all_idle_ns, pool_of = self._idle_ns, self._pool_of
        for key in released:
            if key in pinned:
                continue
            idle_ns, reader = ready_ns[key], readers[key]
            if reader is not None:
                end_ns = reader.end_ns
                if end_ns is None:  # the device lags behind and still reads it
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
        """Return the mask of experts that can be evicted once their last reader has ended.

        It includes protected experts whose computation has been submitted.
        """
        row, pool = self._pool_row(incoming), self._pool_of[incoming]
        mask = self._over_keys(row, self.ready_all[row] <= now_ns)
        for key in self._pinned:
            if self._pool_of[key] is pool:
                mask[key] = key in self._computed and self.has_come(key)
        return mask

    def idle_by(self, mask: Mask, at_ns: int) -> Mask:
        """Return the experts of a mask whose last computation has ended at ``at_ns``, as a mask."""
        found = mask.copy()
        for key in (*self._pinned, *self._released):
            reader = self._reader[key]
            if reader is not None and (reader.end_ns is None or reader.end_ns > at_ns):
                found[key] = False
        return found

    def arriving(self, incoming: int, now_ns: int) -> list[int]:
        """Return keys in flight that no layer will submit: evictable once they are complete.

        A device that lags behind its control thread may be given work on an expert in flight.
        """
        row = self._pool_row(incoming)
        mask = self._over_keys(row, self.held_all[row] & (self.ready_all[row] > now_ns))
        found = np.flatnonzero(mask).tolist()
        computed = self._computed
        return [
            key for key in found
            if key not in self._pinned or (key in computed and not self.has_come(key))
        ]  # fmt: skip

    def _pool_row(self, incoming: int) -> slice:
        """Return the range of keys whose experts share a pool with the incoming one."""
        if self.scope == "layer":
            return self._rows[incoming // self._experts]
        first = incoming // self._keys * self._keys
        return slice(first, first + self._keys)

    def _over_keys(self, row: slice, mask: Mask) -> Mask:
        """Return a mask of a range of keys as a mask over all keys."""
        if len(mask) == len(self.held_all):
            return mask
        found = np.zeros_like(self.held_all)
        found[row] = mask
        return found

    # ------------------------------------------------------------------ changes

    def claim(self, key: int, victim: int | None) -> int:
        """Give an expert a free slot, or the victim's slot; return the slot."""
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
        """Remove an expert; its slot is free when its last use has ended."""
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
        """Mark an expert as complete from ``ready_ns`` on."""
        self._ready_ns[key] = ready_ns
        if key not in self._pinned:  # a protected key is released when its layer ends
            self._released.add(key)
            if ready_ns < self._due_ns:
                self._due_ns = ready_ns

    def pin(self, keys: list[int]) -> None:
        """Protect experts that a layer has chosen from eviction."""
        self._pinned.update(keys)
        pool_of = self._pool_of
        for key in keys:
            pool_of[key].flags[key] = False

    def unpin(self, keys: list[int]) -> None:
        """End the protection of experts."""
        self._pinned.difference_update(keys)
        self._computed.difference_update(keys)
        self._released.update(keys)
        self._due_ns = 0

    def read_by(self, spans: Iterable[Span]) -> None:
        """Note submitted computations as the last readers of their operations' experts."""
        readers, computed = self._reader, self._computed.add
        for span in spans:
            op = span.op
            first = op.layer * self._experts
            if op.form:
                first += op.form * self._form_keys
            for expert in op.experts:
                key = first + expert
                readers[key] = span
                computed(key)

    @property
    def owners(self) -> list[int]:
        """The keys of experts that have a slot, in the order of the slots."""
        return [key for key in self._owner_of if key >= 0 and self._slot_of[key] >= 0]

    def charge(self, slots: int) -> None:
        """Charge the tier for further slots that were used for the first time elsewhere."""
        if slots > 0:
            self._tier.reserve("experts", slots * self._pools[0].record_bytes)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless slots, owners and protected experts agree."""
        held = np.flatnonzero(self.held_all).tolist()
        free = [slot for pool in self._pools for slot in pool.free]
        free += [slot for slot, _, _ in self._draining]
        if sorted([*(self._slot_of[key] for key in held), *free]) != list(range(self.capacity)):
            raise IntegrityError("slots are lost or owned twice")
        if any(self._owner_of[self._slot_of[key]] != key for key in held):
            raise IntegrityError("a slot's owner does not know it")
        for pool in self._pools:
            if (pool.mask & (self.ready_all == NEVER)).any() or pool.mask[[*self._pinned]].any():
                raise IntegrityError("a pinned or absent expert counts as evictable")
        if (self.ready_all[~self.held_all] != NEVER).any():
            raise IntegrityError("an expert without a slot counts as resident")
