"""Schedules expert transfers and allocates slots: the machine's client for both.

A needed load claims its slot when it is submitted.  A speculative prefetch claims when its lane
really starts it, so that a cancelled one has evicted no expert; if none can be evicted at that
moment it is dropped.  A committed prefetch is a load that begins early: it waits for its slot.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence

from moebench.substrate.engine.decisions import EXPERT_OF, Fetch
from moebench.substrate.engine.policies import Eviction, Placement
from moebench.substrate.engine.records import check_form
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, Machine, Op, OpKind, Span, op_of
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.capacity import Home


class _LoadOps(dict[int, Op]):
    """The transfer of each expert by its key: thousands are asked for in a second."""

    def __init__(self, cache: ExpertCache) -> None:
        super().__init__()
        self._cache = cache

    def __missing__(self, key: int) -> Op:
        layer, expert = self._cache.expert_of(key)
        op = self[key] = op_of(OpKind.LOAD, layer, (), (expert,), self._cache.form_of(key))
        return op


class Transfers:
    """Slots, evictions and transfers of one run; see the module's docstring.

    Args:
        homes: where each layer's common weights are; none is the device.
        streams_from_disk: streamed common weights are read from the disk first.
    """

    def __init__(
        self, evict: Eviction, machine: Machine, cache: ExpertCache, timeline: Timeline,
        homes: Sequence[Home] = (), streams_from_disk: bool = False,
    ) -> None:  # fmt: skip
        self.evict, self.machine, self.cache = evict, machine, cache
        self._timeline, self._add_load = timeline, timeline.costs.load_ns.append
        self._homes, self._streams_from_disk = homes, streams_from_disk
        self._experts = cache.shape.num_experts
        self._several = cache.forms > 1
        #: Keys of one form of records.
        self._keys = cache.key(0, 0, form=1)
        self._ops = _LoadOps(cache)
        #: The last transfer of each key, from when it is under way.
        self._arrivals: dict[int, Span] = {}
        #: Prefetches that began, by layer, since they were last asked for.  An expert that was
        #: evicted before its layer came may be there more than once.
        self._started: dict[int, list[int]] = defaultdict(list)
        #: The last speculative request, by key: these do not evict each other.
        self._wanted: dict[int, Fetch] = {}
        #: When those of these can begin that wait for a prediction.
        self._since_ns: dict[int, int] = {}
        #: Keys of speculative transfers under way, and of experts that are not kept.
        self._speculative: set[int] = set()
        self._passing: set[int] = set()
        #: Of the latter, those that had not come when their layer ended, or when the computation
        #: was submitted that is their last use.
        self._missed: set[int] = set()
        self._leaving: dict[int, Span] = {}
        #: Slots that only experts pass through which are not kept.
        self._transient = 0
        #: How many experts have a slot.
        self._holding = 0
        #: Streams of common weights under way, by layer.
        self._streams: dict[int, Span] = {}

    def start(self, placement: Placement, reserve: int) -> int:
        """Fill device and host memory before the run; returns how many are on the device.

        Args:
            reserve: slots that stay empty.
        """
        cache, memory, placed = self.cache, self.machine.host_memory, 0
        self._transient = self.evict.transient
        if memory is not None:
            for layer, expert in placement.keep_on_host(cache.shape, memory.spare):
                memory.keep(self._ops[cache.key(layer, expert)])
        slots = cache.slots - reserve
        for layer, expert in placement.place(cache.shape, slots, cache.scope):
            self._place(layer, expert)
            placed += 1
        return placed

    def _place(self, layer: int, expert: int) -> None:
        """Put an expert into a free slot; nothing is charged to a lane."""
        key = self.cache.key(layer, expert)
        self.cache.claim(key, None)
        self._holding += 1
        self.evict.placed(key)
        self.machine.copy_record(layer, expert, self.cache.slot_of(key))
        self.cache.arrive(key, 0)

    # ------------------------------------------------------------------ needed now

    def demand(self, wanted: Sequence[Fetch]) -> dict[int, Span]:
        """Load experts that their layer needs, in this order.

        Returns:
            by expert, its transfer; none from the first one on for which no slot can be had without
            waiting.
        """
        machine = self.machine
        arrivals: dict[int, Span] = {}
        with machine.lock:  # a machine that waits for what a load follows lets go of it meanwhile
            for fetch in wanted:
                key = fetch[0] * self._experts + fetch[1]  # type: ignore[operator]
                if fetch[4]:
                    key = self._key(fetch)
                after = self._claim(fetch, key, machine.now_ns())
                if after is None:
                    break
                span = machine.load(self._ops[key], self, after)
                arrivals[fetch[1]] = span  # type: ignore[index]
        return arrivals

    def demand_when_free(self, fetch: Fetch) -> Span:
        """The same, into the slot of an expert whose computation was submitted already.

        Where all that could be evicted is still arriving, the control thread waits for it.
        """
        cache, key = self.cache, self._key(fetch)
        while True:
            with self.machine.lock:
                now_ns = self.machine.now_ns()
                if cache.holds(key):  # a prefetch of it began during a wait
                    return self._arrival(key)
                after = self._claim(fetch, key, now_ns)
                if after is None:
                    after = self._claim_soon(fetch, key, now_ns)
                arriving = [] if after is not None else cache.arriving(key, now_ns)
            if after is not None:
                return self.machine.load(self._ops[key], self, after)
            if not arriving:
                raise UsageError(
                    f"{type(self.evict).__name__} finds no expert to evict for one that layer "
                    f"{fetch.layer} must load; swap it: --set evict=lru"
                )
            self.machine.wait(self._arrival(arriving[0]))

    def again(self, layer: int, expert: int, form: int = 0) -> Span:
        """Copy an expert's record once more, to where it is."""
        return self.machine.submit(self._ops[self.cache.key(layer, expert, form)], Lane.H2D)

    def arrival(self, layer: int, expert: int, form: int = 0) -> Span:
        """The transfer that is bringing an expert, which its layer needs now."""
        return self._arrival(self.cache.key(layer, expert, form))

    def common(self, layer: int) -> Span:
        """The transfer that brings a layer's common weights, or (-1) the head, for this pass."""
        return self._streams.pop(layer, None) or self._stream(layer)

    def computed(self, reads: Sequence[Span]) -> None:
        """Computations were submitted: experts that are not kept free their slots after them."""
        cache = self.cache
        with self.machine.lock:
            cache.read_by(reads)
            if self._passing:
                for span in reads:
                    for key in cache.keys(span.op.layer, span.op.experts, span.op.form):
                        self._let_go(key, span)

    def drop_unused(self, layer: int) -> None:
        """The layer has submitted all its computations: what it did not keep and did not use goes.

        Its slots are free once it has come, for the fetches that follow.
        """
        if not self._passing:
            return
        with self.machine.lock:
            for key in sorted(k for k in self._passing if self.cache.expert_of(k)[0] == layer):
                if self.cache.has_come(key):
                    self._let_go(key, self._arrivals[key])
                else:
                    self._missed.add(key)

    def layer_ends(self, keys: list[int]) -> None:
        """These experts of a layer, which has submitted all its computations, can be evicted."""
        with self.machine.lock:
            self.cache.unpin(keys)

    # ------------------------------------------------------------------ ahead of its layer

    def speculate(self, wanted: Sequence[Fetch], chunks: int = 1, since_ns: int = 0) -> None:
        """Queue fetches behind everything needed, in this order and instead of what is queued.

        The caller holds the machine's lock: a loader asks what is queued, and what is wanted.

        Args:
            since_ns: when those can begin that were not asked for before: now, if that is later.
        """
        experts, keys, ops, held = self._experts, self._keys, self._ops, self.cache.held
        try:
            if self._several:
                asked = {f[4] * keys + f[0] * experts + f[1]: f for f in wanted}  # type: ignore
            else:
                asked = {fetch[0] * experts + fetch[1]: fetch for fetch in wanted}  # type: ignore
        except TypeError:
            if None not in map(EXPERT_OF, wanted):
                raise
            raise UsageError(
                "a speculative prefetch must name an expert; a layer's common weights are "
                'fetched ahead by one whose discipline is "committed"'
            ) from None
        if self._several:
            for fetch in wanted:
                check_form(fetch.form, self.cache.forms)
        absent = [ops[key] for key in asked if not held[key]]
        before, self._wanted = self._wanted, asked
        now_ns, waited = self.machine.now_ns(), self._since_ns
        since: list[int] = []
        if since_ns > now_ns or waited:
            new = {key: waited.get(key, 0) if key in before else since_ns for key in asked}
            self._since_ns = {key: ns for key, ns in new.items() if ns > now_ns}
            since = [ns for key, ns in new.items() if not held[key]]
        self.machine.prefetch(absent, self, chunks, since)

    def commit(self, wanted: Sequence[Fetch]) -> None:
        """Begin fetches in this order, each as soon as a slot can be had."""
        for fetch in [f for f in wanted if not self._is_here(f)]:
            if fetch.expert is None:
                self._streams[fetch.layer] = self._stream(fetch.layer)
            elif not self._is_here(fetch):  # a queued prefetch may have begun meanwhile
                self.demand_when_free(fetch)
                self._started[fetch.layer].append(fetch.expert)

    def take_started(self, layer: int) -> list[int]:
        """The prefetches for a layer that really began."""
        return self._started.pop(layer, [])

    # ------------------------------------------------------------------ the machine's questions

    def claim(self, op: Op, now_ns: int) -> tuple[Span, ...] | None:
        """Give a prefetch a slot, unless the expert has one or none can be evicted."""
        layer, expert = op.layer, op.experts[0]
        key = op.form * self._keys + layer * self._experts + expert
        if self.cache.holds(key):
            return None
        fetch = self._wanted[key]
        if fetch[4] != op.form:  # without several forms, `speculate` has not looked at it
            check_form(fetch.form, self.cache.forms)
        after = self._claim(fetch, key, now_ns, spare=self._wanted)
        if after is not None:
            self._started[layer].append(expert)
            self._speculative.add(key)
            self._arrivals.pop(key, None)  # an earlier transfer's
        return after

    def under_way(self, op: Op, span: Span) -> None:
        """Remember what a computation that needs the expert must wait for."""
        key = op.layer * self._experts + op.experts[0]
        if op.form:
            key += op.form * self._keys
        self._arrivals[key] = span

    def arrived(self, op: Op, start_ns: int, end_ns: int) -> None:
        """The record can be read from ``end_ns`` on."""
        key = op.layer * self._experts + op.experts[0]
        if op.form:
            key += op.form * self._keys
        self.cache.arrive(key, end_ns)
        if key in self._speculative:
            self._speculative.remove(key)
        else:
            self._add_load(end_ns - start_ns)
        if self._passing:
            self._pass_on(key)

    def _pass_on(self, key: int) -> None:
        """An expert has come; if it was not kept and its last use is known, its slot is free."""
        last_use = self._leaving.pop(key, None)
        if key in self._missed:
            self._missed.remove(key)
            last_use = last_use or self._arrivals[key]
        if last_use is not None and not self.cache.is_pinned(key):  # by the next pass's layer
            self._let_go(key, last_use)

    def slot_of(self, op: Op) -> int:
        """Where the record goes."""
        return self.cache.slot_of(self.cache.key(op.layer, op.experts[0]))

    # ------------------------------------------------------------------ slots

    def _claim(
        self, fetch: Fetch, key: int, now_ns: int, spare: Collection[int] = ()
    ) -> tuple[Span, ...] | None:
        """Give an expert a slot at this instant, evicting if need be.

        Keys in ``spare`` stay, whatever the policy thinks of them.

        Returns:
            what the transfer must wait for; None if no expert can be evicted.
        """
        cache = self.cache
        if fetch.instead_of is not None and (named := self._named(fetch)) is not None:
            allowed = cache.evictable(key, now_ns)
            return self._give(fetch, key, named, now_ns) if allowed[named] else None
        grows = not self._transient or self._may_grow(fetch)
        free = grows and cache.has_free_slot(key, now_ns)
        victim = None
        if not (free and self.evict.grows(key)):
            allowed = cache.evictable(key, now_ns)
            victim = self.evict.victim(allowed, key)
            if victim in spare:
                allowed = allowed.copy()
                allowed[list(spare)] = False
                victim = self.evict.victim(allowed, key)
            if victim is None and not free:
                return None
        return self._give(fetch, key, victim, now_ns)

    def _claim_soon(self, fetch: Fetch, key: int, now_ns: int) -> tuple[Span, ...] | None:
        """The same, counting experts that leave when what was submitted has been computed."""
        cache, named = self.cache, self._named(fetch)
        grows = named is None and self._may_grow(fetch)
        if grows and (last_use := cache.await_slot(key)) is not None:
            return (last_use, *self._give(fetch, key, None, now_ns))
        allowed = cache.evictable_soon(key, now_ns)
        if named is None:
            victim = self.evict.victim(allowed, key)
            if victim is None and grows:  # what only passes through makes room last
                victim = min((k for k in self._passing if allowed[k]), default=None)
        else:
            victim = named if allowed[named] else None
        if victim is None:
            return None
        reader = cache.reader_of(victim)
        if reader is None:
            return self._give(fetch, key, victim, now_ns)
        idle_ns = max(now_ns, reader.end_ns or 0)
        return (reader, *self._give(fetch, key, victim, idle_ns))

    def _may_grow(self, fetch: Fetch) -> bool:
        """Whether a fetch may have a slot without one that is kept leaving its own."""
        if not (self._transient and fetch.keep):
            return True
        return self._holding - len(self._passing) < self.cache.capacity - self._transient

    def _named(self, fetch: Fetch) -> int | None:
        """The key of the expert that a fetch replaces, if it is still there."""
        if fetch.instead_of is None:
            return None
        key = self.cache.key(fetch.layer, fetch.instead_of, fetch.form)
        return key if self.cache.holds(key) else None

    def _give(self, fetch: Fetch, key: int, victim: int | None, now_ns: int) -> tuple[Span, ...]:
        slot = self.cache.claim(key, victim)
        after: tuple[Span, ...] = ()
        if victim is None:
            self._holding += 1
        else:
            if self._passing:
                self._passing.discard(victim)
            self.evict.left(victim)
            if self._timeline.keeping:
                self._timeline.note("evict", now_ns, *self.cache.expert_of(victim))
            if self.evict.writes_back:
                (layer, expert), form = self.cache.expert_of(victim), self.cache.form_of(victim)
                after = (self.machine.write_back(layer, expert, slot, now_ns, form),)
        if fetch.keep:
            self.evict.arrived(key)
        else:
            self._passing.add(key)
        return after

    def _let_go(self, key: int, last_use: Span) -> None:
        if key in self._passing:
            if not self.cache.has_come(key):
                self._leaving[key] = last_use
                return
            self._passing.remove(key)
            self._holding -= 1
            self.cache.let_go(key, last_use)

    def _arrival(self, key: int) -> Span:
        span = self._arrivals.get(key)
        if span is None or span.end_ns is None:
            self.machine.finish(self._ops[key])
            span = self._arrivals[key]
        return span

    def _key(self, fetch: Fetch) -> int:
        assert fetch.expert is not None, "common weights are streamed, not loaded into a slot"
        check_form(fetch.form, self.cache.forms)
        return self.cache.key(fetch.layer, fetch.expert, fetch.form)

    def _is_here(self, fetch: Fetch) -> bool:
        """Whether what a fetch brings is on the device or on its way."""
        if fetch.expert is None:
            streamed = bool(self._homes) and self._homes[fetch.layer] == "stream"
            return not streamed or fetch.layer in self._streams
        return self.cache.holds(self._key(fetch))

    def _stream(self, layer: int) -> Span:
        op, after = op_of(OpKind.STREAM, layer, ()), []
        if self._streams_from_disk:
            after.append(self.machine.submit(op, Lane.DISK))
        return self.machine.submit(op, Lane.H2D, after)
