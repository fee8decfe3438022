"""Experts on the move: every load and prefetch claims a slot here, through the system's eviction.

A needed load claims its slot when it is submitted.  A prefetch claims when its lane really starts
it, so that a cancelled one has evicted nobody; if nobody may leave at that moment it is dropped.
"""

from collections import defaultdict
from collections.abc import Sequence

from moebench.substrate.engine.system import Costs, Eviction
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Machine, OpKind, Span, op_of
from moebench.substrate.memory.cache import ExpertCache


class _Arriving:
    """Brings one expert whenever it is asked to; the machine calls it back.

    See `substrate.machines.protocol.Transfer`.
    """

    __slots__ = ("_prefetch", "_transfers", "expert", "key", "layer", "op")

    def __init__(
        self, transfers: "Transfers", layer: int, expert: int, key: int, prefetch: bool
    ) -> None:
        self._transfers = transfers
        self.layer, self.expert, self.key, self._prefetch = layer, expert, key, prefetch
        self.op = op_of(OpKind.LOAD, layer, (), (expert,))

    def begin(self, now_ns: int) -> bool:
        """Claim a slot for a prefetch, unless the expert came by itself or nobody may leave."""
        t = self._transfers
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
        # One object for each expert and purpose: thousands are asked for in a second.
        self._needed: dict[int, _Arriving] = {}
        self._perhaps: dict[int, _Arriving] = {}
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
            spans.append(self._load(layer, expert, key))
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
                    return self._load(layer, expert, key)
                victim = self.evict.victim(self.cache.evictable_soon(key, now_ns), key)
                if victim is not None:
                    reader = self.cache.reader_of(victim)
                    self._give(key, victim)
                    return self._load(layer, expert, key, () if reader is None else (reader,))
                arriving = self.cache.arriving(key, now_ns)
            if not arriving:
                raise UsageError(
                    f"{type(self.evict).__name__} lets nobody leave for an expert that layer "
                    f"{layer} must load; swap it: --set evict=lru"
                )
            self.machine.wait(self.arrivals[arriving[0]])

    def _load(self, layer: int, expert: int, key: int, after: Sequence[Span] = ()) -> Span:
        arriving = self._needed.get(key)
        if arriving is None:
            arriving = self._needed[key] = _Arriving(self, layer, expert, key, prefetch=False)
        return self.machine.load(arriving.op, arriving, after)

    def arrival(self, layer: int, expert: int) -> Span:
        """The transfer that is bringing an expert."""
        return self.arrivals[self.cache.key(layer, expert)]

    # ------------------------------------------------------------------ perhaps needed later

    def prefetch(self, layer: int, experts: Sequence[int]) -> None:
        """Queue experts that are neither there nor on their way, in this order."""
        self.wanted = self.cache.keys(layer, experts)
        for key, expert in zip(self.wanted, experts, strict=True):
            if not self.cache.holds(key):
                arriving = self._perhaps.get(key)
                if arriving is None:
                    arriving = self._perhaps[key] = _Arriving(self, layer, expert, key, True)
                self.machine.enqueue(arriving.op, arriving)

    def take_started(self, layer: int) -> set[int]:
        """The prefetches for a layer that really began."""
        return self.started.pop(layer, set())
