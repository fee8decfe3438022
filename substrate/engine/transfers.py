"""Scheduling of expert transfers and allocation of slots: the machine's transfer client.

A needed load claims its slot when it is submitted.  A speculative prefetch claims when its lane
really starts it, so that a cancelled one has evicted no expert; if none can be evicted at that
moment it is dropped.  A committed prefetch is a load that begins early: it waits for its slot.  An
upload, a copy in the background, claims when it is queued; it is refused if no expert can be
evicted, and the eviction policy hears of the expert once the upload is complete.  The eviction
policy can read which of these a slot is for (`Eviction.purpose`).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import cast

from moebench.substrate.engine.decisions import EXPERT_OF, Fetch
from moebench.substrate.engine.policies import Eviction, Placement
from moebench.substrate.engine.records import check_form, check_upload, names_no_expert, no_room
from moebench.substrate.machines.protocol import Lane, Machine, Op, OpKind, Span, op_of
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.capacity import Home
from moebench.substrate.terms import Purpose


class _LoadOps(dict[int, Op]):
    """Cache of the transfer operation of each record by its key."""

    def __init__(self, cache: ExpertCache) -> None:
        super().__init__()
        self._cache = cache

    def __missing__(self, key: int) -> Op:
        layer, expert = self._cache.expert_of(key)
        op = self[key] = op_of(OpKind.LOAD, layer, (), (expert,), self._cache.form_of(key))
        return op


class Transfers:
    """Manages slots, evictions and transfers of one run; see the module's docstring.

    Args:
        homes: where each layer's non-expert weights are; empty is the device for all.
        streams_from_disk: whether streamed non-expert weights are read from the disk first.
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
        #: The last transfer of each key, once it has begun.
        self._arrivals: dict[int, Span] = {}
        #: By layer, the experts of prefetches that began since `take_started`.  An expert that was
        #: evicted before its layer began may be listed more than once.
        self._started: dict[int, list[int]] = defaultdict(list)
        #: The last speculative request, by key: its experts do not evict each other.
        self._wanted: dict[int, Fetch] = {}
        #: By key, when fetches of that request can begin that wait for a prediction.
        self._since_ns: dict[int, int] = {}
        #: Keys of speculative transfers under way, and of experts that are not kept.
        self._speculative: set[int] = set()
        self._passing: set[int] = set()
        #: Experts that are not kept and were incomplete when their layer ended; by key, the last
        #: use of experts that were incomplete when that was submitted.
        self._missed: set[int] = set()
        self._leaving: dict[int, Span] = {}
        #: Keys of uploads that were not complete when it was last asked, in their order.
        self._uploads: dict[int, None] = {}
        #: Slots that only experts which are not kept may use.
        self._transient = 0
        #: How many experts have a slot.
        self._holding = 0
        #: By layer, the transfer of streamed non-expert weights that has been submitted.
        self._streams: dict[int, Span] = {}

    def start(self, placement: Placement, reserve: int) -> int:
        """Fill device and host memory before the run; return how many experts are on the device.

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
        """Put an expert into a free slot, without charging a lane."""
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
            by expert, its transfer; none from the first expert on for which no slot can be claimed
            without waiting.
        """
        machine = self.machine
        arrivals: dict[int, Span] = {}
        with machine.lock:  # a machine that waits within `load` releases the lock meanwhile
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

    def demand_when_free(
        self, fetch: Fetch, waits: bool = True, purpose: Purpose = "needed"
    ) -> Span | None:
        """Load an expert into the slot of one whose computation was already submitted.

        Where all evictable experts are still in flight, the control thread waits for the first.

        Args:
            waits: False returns None where no slot can be claimed without a wait.
        """
        cache, key = self.cache, self._key(fetch)
        while True:
            with self.machine.lock:
                now_ns = self.machine.now_ns()
                if cache.holds(key):  # a prefetch of it began during a wait
                    return self._arrival(key)
                after = self._claim_in_time(fetch, key, now_ns, purpose)
                arriving = [] if after is not None else cache.arriving(key, now_ns)
            if after is not None:
                return self.machine.load(self._ops[key], self, after)
            if not waits:
                return None
            if not arriving:
                raise no_room(self.evict, fetch.layer)
            self.machine.wait(self._arrival(arriving[0]))

    def again(self, layer: int, expert: int, form: int = 0) -> Span:
        """Copy an expert's record into its slot once more."""
        return self.machine.submit(self._ops[self.cache.key(layer, expert, form)], Lane.H2D)

    def arrival(self, layer: int, expert: int, form: int = 0) -> Span:
        """Return the transfer of an expert in flight, which its layer needs now."""
        return self._arrival(self.cache.key(layer, expert, form))

    def common(self, layer: int) -> Span:
        """Return this pass's transfer of a layer's non-expert weights, or the head's (-1)."""
        return self._streams.pop(layer, None) or self._stream(layer)

    def computed(self, reads: Sequence[Span]) -> None:
        """Note submitted computations, after which experts that are not kept free their slots."""
        cache = self.cache
        with self.machine.lock:
            cache.read_by(reads)
            if self._passing:
                last_use = {
                    key: span for span in reads
                    for key in cache.keys(span.op.layer, span.op.experts, span.op.form)
                }  # fmt: skip
                for key, span in last_use.items():
                    self._let_go(key, span)

    def drop_unused(self, layer: int) -> None:
        """Free the slots of a layer's experts that are not kept and were not used.

        Called when all its computations are submitted.  A slot is free once its transfer has ended.
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
        """End the protection of a layer's experts, once all its computations are submitted."""
        with self.machine.lock:
            self.cache.unpin(keys)

    # ------------------------------------------------------------------ ahead of its layer

    def speculate(self, wanted: Sequence[Fetch], chunks: int = 1, since_ns: int = 0) -> None:
        """Queue fetches behind all needed transfers, in this order and in place of queued ones.

        The caller holds the machine's lock, because a loader thread reads the queue.

        Args:
            since_ns: when fetches that are new in the queue can begin; now, if that is later.
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
            raise names_no_expert() from None
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

    def commit(self, wanted: Sequence[Fetch], purpose: Purpose = "committed") -> None:
        """Begin fetches in this order, each as soon as a slot can be claimed."""
        for fetch in [f for f in wanted if not self._is_here(f)]:
            if fetch.expert is None:
                self._streams[fetch.layer] = self._stream(fetch.layer)
            elif not self._is_here(fetch):  # a queued prefetch may have begun meanwhile
                self.demand_when_free(fetch, purpose=purpose)
                self._started[fetch.layer].append(fetch.expert)

    def send_back(self, experts: Iterable[tuple[int, int]]) -> None:
        """Copy experts back to the host one by one, and free the slot of each once it is there.

        The control thread waits for each copy.  Experts without a slot, on their way to it, or not
        kept are skipped.
        """
        cache, machine = self.cache, self.machine
        for layer, expert in experts:
            key = cache.key(layer, expert)
            if not cache.holds(key) or not cache.has_come(key) or key in self._passing:
                continue
            back = machine.write_back(layer, expert, cache.slot_of(key), machine.now_ns())
            machine.wait(back)
            with machine.lock:
                self.evict.left(key)
                self._holding -= 1
                cache.let_go(key, back)

    def absent(self, wanted: Sequence[Fetch]) -> list[Fetch]:
        """Return the fetches of experts that have no slot."""
        return [fetch for fetch in wanted if not self._is_here(fetch)]

    def claim_pages(self, wanted: Sequence[Fetch]) -> tuple[list[Fetch], tuple[Span, ...]]:
        """Claim the slots of a layer's experts that one transfer in pages brings.

        Returns:
            the fetches that got a slot, and what the first page waits for.
        """
        claimed: list[Fetch] = []
        after: list[Span] = []
        with self.machine.lock:
            for fetch in wanted:
                key, now_ns = self._key(fetch), self.machine.now_ns()
                waits = self._claim_in_time(fetch, key, now_ns, "committed")
                if waits is None:
                    break
                claimed.append(fetch)
                after += waits
                self._started[fetch.layer].append(cast(int, fetch.expert))
                self._speculative.add(key)
                self._arrivals.pop(key, None)  # an earlier transfer's
        return claimed, tuple(after)

    def pages_arrive(self, fetches: Sequence[Fetch], first: Span, last: Span) -> None:
        """Mark experts as complete when the last of their pages has been copied."""
        with self.machine.lock:
            for fetch in fetches:
                op = self._ops[self._key(fetch)]
                self.under_way(op, last)
                self.arrived(op, cast(int, first.start_ns), cast(int, last.end_ns))

    def take_started(self, layer: int) -> list[int]:
        """Return the experts of a layer's prefetches that began, and forget them."""
        return self._started.pop(layer, [])

    # ------------------------------------------------------------------ in the background

    def upload(self, wanted: Sequence[Fetch], queue: int | None) -> int:
        """Queue uploads in this order, behind all needed transfers; return how many were queued.

        Refused are experts that have a slot, and those for which no expert can be evicted.

        Args:
            queue: most uploads that may be pending; further ones are refused.  None is any number.
        """
        cache, machine, queued = self.cache, self.machine, 0
        with machine.lock:
            for fetch in wanted:
                check_upload(fetch)
                key, now_ns = self._key(fetch), machine.now_ns()
                if cache.holds(key):
                    continue
                if queue is not None and self.pending >= queue:
                    break
                self._uploads[key] = None
                after = self._claim_in_time(fetch, key, now_ns, "upload")
                if after is None:
                    del self._uploads[key]
                    continue
                self._speculative.add(key)
                self._arrivals.pop(key, None)  # an earlier transfer's
                machine.upload(self._ops[key], self, after)
                queued += 1
        return queued

    @property
    def pending(self) -> int:
        """The number of uploads that wait for the link or are under way."""
        now_ns, cache = self.machine.now_ns(), self.cache
        return sum(not cache.is_complete(key, now_ns) for key in self._uploads)

    def queued_uploads(self) -> list[int]:
        """Return the keys of uploads whose transfers have not begun."""
        return [key for key in self._uploads if not self.cache.has_come(key)]

    def take_uploaded(self) -> list[int]:
        """Tell the eviction policy of uploads that are complete by now; return their keys."""
        now_ns, done = self.machine.now_ns(), list[int]()
        for key in self._uploads:
            if not self.cache.is_complete(key, now_ns):
                break  # they end in their order
            done.append(key)
        self.evict.purpose = "upload"
        for key in done:
            del self._uploads[key]
            self.evict.arrived(key)
        self.evict.purpose = "needed"
        return done

    # ------------------------------------------------------------------ the machine's questions

    def claim(self, op: Op, now_ns: int) -> tuple[Span, ...] | None:
        """Claim a slot for a prefetch, unless the expert has one or none can be evicted."""
        layer, expert = op.layer, op.experts[0]
        key = op.form * self._keys + layer * self._experts + expert
        if self.cache.holds(key):
            return None
        fetch = self._wanted[key]
        if fetch[4] != op.form:  # without several forms, `speculate` has not looked at it
            check_form(fetch.form, self.cache.forms)
        self.evict.purpose = "speculative"
        after = self._claim(fetch, key, now_ns, spare=self._wanted)
        self.evict.purpose = "needed"
        if after is not None:
            self._started[layer].append(expert)
            self._speculative.add(key)
            self._arrivals.pop(key, None)  # an earlier transfer's
        return after

    def under_way(self, op: Op, span: Span) -> None:
        """Remember the transfer for which computations of the expert must wait."""
        key = op.layer * self._experts + op.experts[0]
        if op.form:
            key += op.form * self._keys
        self._arrivals[key] = span

    def arrived(self, op: Op, start_ns: int, end_ns: int) -> None:
        """Mark the record as complete from ``end_ns`` on."""
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
        """Free the slot of an expert that has arrived, is not kept and has a known last use."""
        last_use = self._leaving.pop(key, None)
        if key in self._missed:
            self._missed.remove(key)
            last_use = last_use or self._arrivals[key]
        if last_use is not None and not self.cache.is_pinned(key):  # by the next pass
            self._let_go(key, last_use)

    def slot_of(self, op: Op) -> int:
        """Return the slot that the transfer's record is copied to."""
        return self.cache.slot_of(self.cache.key(op.layer, op.experts[0]))

    # ------------------------------------------------------------------ slots

    def _claim(
        self, fetch: Fetch, key: int, now_ns: int, spare: Collection[int] = ()
    ) -> tuple[Span, ...] | None:
        """Claim a slot for an expert at this instant, evicting another if necessary.

        Keys in ``spare`` are never evicted.

        Returns:
            the spans that the transfer must wait for; None if no expert can be evicted.
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

    def _claim_in_time(
        self, fetch: Fetch, key: int, now_ns: int, purpose: Purpose
    ) -> tuple[Span, ...] | None:
        """Claim a slot at this instant, or else one that submitted computations will free."""
        self.evict.purpose = purpose
        after = self._claim(fetch, key, now_ns)
        if after is None:
            after = self._claim_soon(fetch, key, now_ns)
        self.evict.purpose = "needed"
        return after

    def _claim_soon(self, fetch: Fetch, key: int, now_ns: int) -> tuple[Span, ...] | None:
        """Claim a slot, counting experts as evictable once submitted computations have ended.

        The policy is asked first among experts that are idle when the transfer can begin: one that
        is still to be computed would delay it, whatever its worth.
        """
        cache, named = self.cache, self._named(fetch)
        grows = named is None and self._may_grow(fetch)
        if grows and (last_use := cache.await_slot(key)) is not None:
            return (last_use, *self._give(fetch, key, None, now_ns))
        allowed = cache.evictable_soon(key, now_ns)
        if named is None:
            idle = cache.idle_by(allowed, now_ns + self._backlog_ns(key))
            victim = self.evict.victim(idle, key) if idle.any() else None
            if victim is None:
                victim = self.evict.victim(allowed, key)
            if victim is None and grows:  # experts that are not kept are evicted last
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

    def _backlog_ns(self, key: int) -> int:
        """Return the time until the first lane of a record's transfer is idle, in ns."""
        machine, memory = self.machine, self.machine.host_memory
        on_disk = memory is not None and not memory.holds(self._ops[key])
        return machine.backlog_ns(Lane.DISK if on_disk else Lane.H2D)

    def _may_grow(self, fetch: Fetch) -> bool:
        """Return whether a fetch may take a slot without evicting an expert that is kept."""
        if not (self._transient and fetch.keep):
            return True
        return self._holding - len(self._passing) < self.cache.capacity - self._transient

    def _named(self, fetch: Fetch) -> int | None:
        """Return the key of the expert that a fetch names to replace, if it still has a slot."""
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
            if victim in self._passing:
                self._passing.remove(victim)  # the policy never saw it arrive
            elif victim in self._uploads:
                del self._uploads[victim]  # nor one whose upload has not ended
            else:
                self.evict.left(victim)
            if self._timeline.keeping:
                self._timeline.note("evict", now_ns, *self.cache.expert_of(victim))
            if self.evict.writes_back:
                (layer, expert), form = self.cache.expert_of(victim), self.cache.form_of(victim)
                after = (self.machine.write_back(layer, expert, slot, now_ns, form),)
        if not fetch.keep:
            self._passing.add(key)
        elif key not in self._uploads:
            self.evict.arrived(key)
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
        """Return whether a fetch's weights are on the device or being copied to it."""
        if fetch.expert is None:
            streamed = bool(self._homes) and self._homes[fetch.layer] == "stream"
            return not streamed or fetch.layer in self._streams
        return self.cache.holds(self._key(fetch))

    def _stream(self, layer: int) -> Span:
        op, after = op_of(OpKind.STREAM, layer, ()), []
        if self._streams_from_disk:
            after.append(self.machine.submit(op, Lane.DISK))
        return self.machine.submit(op, Lane.H2D, after)
