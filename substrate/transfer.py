"""Experts on the move: every load and prefetch claims a slot here, through the system's eviction.

A needed load claims its slot when it is submitted.  A prefetch claims when its lane really starts
it, so that a cancelled one has evicted nobody; if nobody may leave at that moment it is dropped.
"""

from collections import defaultdict
from collections.abc import Sequence

from substrate.errors import IntegrityError
from substrate.machine import Machine, Op, OpKind, Span
from substrate.memory import NEVER, ExpertCache
from substrate.system import Costs, Eviction


class _Arriving:
    """One record under way; the machine calls it back (see `substrate.machine.Transfer`)."""

    __slots__ = ("_prefetch", "_transfers", "expert", "key", "layer")

    def __init__(
        self, transfers: "Transfers", layer: int, expert: int, key: int, prefetch: bool
    ) -> None:
        self._transfers = transfers
        self.layer, self.expert, self.key, self._prefetch = layer, expert, key, prefetch

    def begin(self, now_ns: int) -> bool:
        """Claim a slot for a prefetch, unless the expert came by itself or nobody may leave."""
        t = self._transfers
        with t.machine.lock:
            if t.cache.holds(self.key) or not t.claim(self.key, now_ns, t.wanted):
                return False
            t.started[self.layer].add(self.expert)
            return True

    def under_way(self, span: Span) -> None:
        """Remember what a computation that needs the expert must wait for."""
        self._transfers.arrivals[self.key] = span

    def arrived(self, start_ns: int, end_ns: int) -> None:
        """The record can be read from ``end_ns`` on."""
        t = self._transfers
        with t.machine.lock:
            t.cache.arrive(self.key, end_ns)
            if not self._prefetch:
                t.costs.load_ns.append(end_ns - start_ns)

    def copy(self) -> None:
        """Move the record into its slot, where slots are real."""
        self._transfers.machine.copy_record(
            self.layer, self.expert, self._transfers.cache.slot_of(self.key)
        )


class Transfers:
    """Slots, evictions and transfers of one run.

    ``started`` collects, by layer, the prefetches that really began since they were last asked for.
    """

    def __init__(self, evict: Eviction, machine: Machine, cache: ExpertCache, costs: Costs) -> None:
        self.evict, self.machine, self.cache, self.costs = evict, machine, cache, costs
        self.started: dict[int, set[int]] = defaultdict(set)
        #: The last transfer of each key that was started.
        self.arrivals: dict[int, Span] = {}
        self._readers: dict[int, Span] = {}
        self._ops: dict[int, Op] = {}
        #: What the last request for prefetches named: these do not evict each other.
        self.wanted: list[int] = []

    def claim(self, key: int, now_ns: int, spare: Sequence[int] = ()) -> bool:
        """Give ``key`` a slot at this instant, evicting if need be; False if nobody may leave.

        Keys in ``spare`` stay, whatever the policy thinks of them.
        """
        if self.cache.has_free_slot(key):
            self._give(key, None)
            return True
        allowed = self.cache.evictable(key, now_ns)
        victim = self.evict.victim(allowed, key)
        if victim in spare:
            allowed[spare] = False
            victim = self.evict.victim(allowed, key)
        if victim is None:
            return False
        self._give(key, victim)
        return True

    def _give(self, key: int, victim: int | None) -> None:
        self.cache.claim(key, victim)
        if victim is not None:
            self.evict.left(victim)
        self.evict.arrived(key)

    def place(self, layer: int, expert: int) -> None:
        """Put an expert into a free slot before the run; nothing is charged to a lane."""
        key = self.cache.key(layer, expert)
        self._give(key, None)
        self.machine.copy_record(layer, expert, self.cache.slot_of(key))
        self.cache.arrive(key, 0)

    # ------------------------------------------------------------------ needed now

    def demand(self, layer: int, experts: Sequence[int]) -> list[Span]:
        """Load experts that their layer needs, in this order.

        The list ends before the first one for which no slot can be had without waiting.
        """
        machine, spans = self.machine, []
        for expert, key in zip(experts, self.cache.keys(layer, experts), strict=True):
            with machine.lock:
                if not self.claim(key, machine.now_ns()):
                    break
            spans.append(self._load(layer, expert, key, ()))
        return spans

    def demand_when_free(self, layer: int, expert: int) -> Span:
        """The same, into the slot of an expert whose computation was submitted already.

        Where all that may leave is still arriving, the control thread waits for it.
        """
        key = self.cache.key(layer, expert)
        while True:
            with self.machine.lock:
                now_ns = self.machine.now_ns()
                if self.claim(key, now_ns):
                    return self._load(layer, expert, key, ())
                victim = self.evict.victim(self.cache.evictable_soon(key, now_ns), key)
                if victim is not None:
                    reader = self._readers.get(victim)
                    self._give(key, victim)
                    return self._load(layer, expert, key, () if reader is None else (reader,))
                arriving = self.cache.arriving(key, now_ns)
            if not arriving:
                raise IntegrityError(f"layer {layer} expert {expert}: no slot can ever be had")
            self.machine.wait(self.arrivals[arriving[0]])

    def _load(self, layer: int, expert: int, key: int, after: Sequence[Span]) -> Span:
        op = self._ops.get(key) or self._op(layer, expert, key)
        return self.machine.load(op, _Arriving(self, layer, expert, key, prefetch=False), after)

    def _op(self, layer: int, expert: int, key: int) -> Op:
        """One object a transfer of this expert: thousands of them are asked for in a second."""
        return self._ops.setdefault(key, Op(OpKind.LOAD, layer, (), (expert,)))

    def arrival(self, layer: int, expert: int) -> Span:
        """The transfer that is bringing an expert."""
        return self.arrivals[self.cache.key(layer, expert)]

    def read_by(self, span: Span, layer: int, experts: Sequence[int]) -> None:
        """A computation that reads these experts was submitted."""
        keys = self.cache.keys(layer, experts)
        self._readers.update(dict.fromkeys(keys, span))
        self.cache.read_until(keys, NEVER if span.end_ns is None else span.end_ns)

    # ------------------------------------------------------------------ perhaps needed later

    def prefetch(self, layer: int, experts: Sequence[int]) -> None:
        """Queue experts that are neither there nor on their way, in this order."""
        self.wanted = self.cache.keys(layer, experts)
        for key, expert in zip(self.wanted, experts, strict=True):
            if not self.cache.holds(key):
                op = self._ops.get(key) or self._op(layer, expert, key)
                self.machine.enqueue(op, _Arriving(self, layer, expert, key, prefetch=True))

    def take_started(self, layer: int) -> set[int]:
        """The prefetches for a layer that really began."""
        return self.started.pop(layer, set())
