"""Invariants of every run, checked by code that shares nothing with the engine.

The checks read only recorded spans, slot events and counts, not the state of the substrate.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from moebench.harness.conformance.watch import Again, Claim, LetGo
from moebench.substrate.engine.counts import Counts
from moebench.substrate.engine.records import Generation
from moebench.substrate.machines.protocol import Lane, OpKind, Span
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.capacity import Home
from moebench.substrate.terms import Phase

#: End of a transfer that never became complete.
NEVER = 1 << 62


class BrokenError(AssertionError):
    """An invariant of a run does not hold."""


def must(holds: bool, text: str = "") -> None:
    """Raise BrokenError if a condition does not hold, also if Python runs without assertions."""
    if not holds:
        raise BrokenError(text)


def times(span: Span) -> tuple[int, int]:
    """Return a span's start and end, both known after the run."""
    if span.start_ns is None or span.end_ns is None:
        raise BrokenError(f"{span!r} has no time")
    return span.start_ns, span.end_ns


@dataclass
class _Stay:
    """One record in a slot, from its transfer's start to the last operation that reads it."""

    key: int
    form: int
    slot: int
    start_ns: int
    ready_ns: int
    last_read_ns: int


def check_timeline(  # noqa: PLR0913 each says what one run allows
    spans: Sequence[Span], events: Sequence[Claim | LetGo | Again], *,
    num_experts: int, capacity: int,
    num_layers: int = 0, record_bytes: Sequence[int] = (), common_bytes: int = 0,
    budget_bytes: int | None = None, writes_back: bool = False, reads_unfinished: bool = False,
    queued: Collection[int] = (), one_form: bool = False,
) -> None:  # fmt: skip
    """Check lanes, slots and bytes at every instant.

    Args:
        spans: in the order of submission.
        events: those of `watch.watch_slots` and `watch.watch_again`; claims before the run are
            marked as placed.
        num_layers: number of layers of the model; needed if records have several forms.
        record_bytes: bytes of a record in each form; without them, bytes are not checked.
        common_bytes, budget_bytes: bytes of all else on the device, and of the device.
        writes_back: whether victims are copied back.
        reads_unfinished: whether the system declares that it computes on unfinished copies.
        queued: keys of uploads that had not begun when the run ended.
        one_form: whether each expert has one record, in a form of its own, and all share slots.

    Raises BrokenError: a condition does not hold.
    """
    check_lanes(spans)
    made = _Slots(
        spans,
        num_layers,
        num_experts,
        record_bytes,
        writes_back,
        reads_unfinished,
        queued,
        one_form,
    )
    stays = made.stays(events)
    _check_slots(stays, capacity, one_form)
    if record_bytes and budget_bytes is not None:
        _check_bytes(stays, record_bytes, common_bytes, budget_bytes)


def check_lanes(spans: Sequence[Span]) -> None:
    """Check that a lane runs one operation at a time, and that none ends before it starts."""
    lanes: dict[Lane, list[tuple[int, int]]] = defaultdict(list)
    for span in spans:
        start, end = times(span)
        if not 0 <= start <= end:
            raise BrokenError(f"{span!r} ends before it starts")
        lanes[span.lane].append((start, end))
    for lane, busy in lanes.items():
        busy.sort()
        for (_, end), (start, _) in pairwise(busy):
            if start < end:
                raise BrokenError(f"{lane} does two things at {start}")


# ----------------------------------------------------------------------------- slots


@dataclass
class _Slots:
    """Pairs claims with transfers and write-backs, and device computations with what they read."""

    spans: Sequence[Span]
    num_layers: int
    num_experts: int
    record_bytes: Sequence[int]
    writes_back: bool
    reads_unfinished: bool
    queued: Collection[int]
    one_form: bool
    current: dict[int, _Stay] = field(default_factory=dict)
    all: list[_Stay] = field(default_factory=list)

    def stays(self, observed: Sequence[Claim | LetGo | Again]) -> list[_Stay]:
        self.owners: dict[int, int] = {}  # slot → key
        self.forms: dict[int, int] = {}  # key → the form of its only record
        if self.one_form:
            for span in self.spans:
                if span.op.kind in (OpKind.LOAD, OpKind.READ, OpKind.EXPERT):
                    for key in self._keys(span):
                        same = self.forms.setdefault(key, span.op.form) == span.op.form
                        must(same, f"{span!r} is in another form than this expert's record")
        self.repeated = {event.at for event in observed if isinstance(event, Again)}
        events = [event for event in observed if not isinstance(event, Again)]
        self.unclaimed = self._of_kind(OpKind.LOAD, OpKind.PAGE)
        self.unread = self._of_kind(OpKind.WRITE_BACK)
        done = 0
        for index, span in enumerate(self.spans):
            while done < len(events) and events[done].before <= index:
                self._happens(events[done])
                done += 1
            if span.op.kind is OpKind.EXPERT and span.lane is Lane.DEVICE:
                self._reads(span)
        for event in events[done:]:
            self._happens(event)
        must(not any(self.unclaimed.values()), "a transfer had no slot to go to")
        must(not any(self.unread.values()), "nobody had left who was written back")
        return self.all

    def _of_kind(self, *kinds: OpKind) -> dict[int, list[int]]:
        """Return the transfers of these kinds by key, in order; a page is of several keys."""
        found: dict[int, list[int]] = defaultdict(list)
        for index, span in enumerate(self.spans):
            staged = span.op.kind is OpKind.PAGE and span.lane is Lane.HOST
            if span.op.kind in kinds and index not in self.repeated and not staged:
                for key in self._keys(span):
                    found[key].append(index)
        return found

    def _keys(self, span: Span) -> list[int]:
        form = 0 if self.one_form else span.op.form
        row = form * self.num_layers + span.op.layer
        return [row * self.num_experts + e for e in span.op.experts]

    def _reads(self, span: Span) -> None:
        start, end = times(span)
        for key in self._keys(span):
            if key not in self.current:
                raise BrokenError(f"{span!r} reads an expert that has no slot")
            stay = self.current[key]
            if start < stay.ready_ns and not self.reads_unfinished:
                raise BrokenError(f"{span!r} reads before {stay.ready_ns}")
            stay.last_read_ns = max(stay.last_read_ns, end)

    def _happens(self, event: Claim | LetGo) -> None:
        if isinstance(event, LetGo):
            gone = self.current.pop(event.key)
            del self.owners[gone.slot]
            sent = self.unread[event.key]
            if sent and sent[0] < event.before:  # sent back at the start of a pass
                self._is_copied_back(gone, sent.pop(0))
            return
        if event.victim is not None:
            victim = self.current.pop(event.victim)
            must(victim.slot == event.slot, "a victim leaves its own slot")
            del self.owners[victim.slot]
            if self.writes_back:
                self._is_written_back(victim, event.before)
        must(event.key not in self.current, "an expert has two slots")
        must(event.slot not in self.owners, "a slot has two owners")
        start, ready = (0, 0) if event.placed else self._transfer(event)
        form = event.key // (self.num_layers * self.num_experts) if self.num_layers else 0
        if self.one_form:
            form = self.forms.get(event.key, 0)
        self.current[event.key] = _Stay(event.key, form, event.slot, start, ready, ready)
        self.owners[event.slot] = event.key
        self.all.append(self.current[event.key])

    def _is_written_back(self, victim: _Stay, index: int) -> None:
        """Check that a victim's write-back starts after its transfer; its slot waits for it."""
        if not self.unread[victim.key]:
            raise BrokenError(f"{victim} was not written back")
        found = self.unread[victim.key].pop(0)
        must(found >= index, "written back before it left")
        self._is_copied_back(victim, found)

    def _is_copied_back(self, victim: _Stay, index: int) -> None:
        """Check that the copy to the host starts after the expert's transfer to the device."""
        span = self.spans[index]
        start, end = times(span)
        must(span.lane is Lane.D2H, "written back over another lane")
        if start < victim.ready_ns:
            raise BrokenError(f"{span!r} reads before {victim.ready_ns}")
        victim.last_read_ns = max(victim.last_read_ns, end)

    def _transfer(self, claim: Claim) -> tuple[int, int]:
        """Return start and end of the transfer that follows a claim, in one piece or in chunks."""
        left = self.unclaimed[claim.key]
        if not left and claim.key in self.queued:
            return NEVER, NEVER
        if not left:
            raise BrokenError(f"{claim} and nothing came")
        must(left[0] >= claim.before, "a transfer began before it had a slot")
        first = self.spans[left[0]].op
        chunks = 1 if first.chunk is None else first.chunk[1]
        taken, self.unclaimed[claim.key] = left[:chunks], left[chunks:]
        parts = [self.spans[index] for index in taken]
        in_order = [(number, chunks) for number in range(len(parts))]
        must(chunks == 1 or [p.op.chunk for p in parts] == in_order, "chunks in another order")
        if len(parts) < chunks:
            return times(parts[0])[0], NEVER
        moved = sum(part.moved_bytes for part in parts)
        whole = moved
        if self.record_bytes:
            pieces = len(first.experts) if first.kind is OpKind.PAGE else 1
            whole = pieces * self.record_bytes[first.form]
        must(moved == whole, f"a transfer of {moved} bytes, a record in its form has {whole}")
        return times(parts[0])[0], times(parts[-1])[1]


def _check_slots(stays: Sequence[_Stay], capacity: int, one_form: bool) -> None:
    """Check that a slot is overwritten only after its last read, and of what forms its records are.

    It holds one form, unless each expert has one (``one_form``).
    """
    by_slot: dict[int, list[_Stay]] = defaultdict(list)
    for stay in stays:
        by_slot[stay.slot].append(stay)
    must(set(by_slot) <= set(range(capacity)), "a slot that there is not")
    for slot, following in by_slot.items():
        same = len({stay.form for stay in following}) == 1
        must(same or one_form, f"slot {slot} held several forms")
        for before, after in pairwise(following):
            if after.start_ns < before.last_read_ns:
                raise BrokenError(
                    f"slot {slot}: {after.key} comes at {after.start_ns}, "
                    f"{before.key} is in use until {before.last_read_ns}"
                )


def _check_bytes(stays: Sequence[_Stay], sizes: Sequence[int], common: int, budget: int) -> None:
    """Check that records in use or under way fit at every instant, ignoring slot numbers."""
    busy = [s for s in stays if s.last_read_ns > s.start_ns]
    changes = [(s.last_read_ns, -sizes[s.form]) for s in busy]
    changes += [(s.start_ns, sizes[s.form]) for s in busy]
    held = common
    for _, change in sorted(changes):
        held += change
        must(held <= budget, "more bytes than the device has")


# ----------------------------------------------------------------------------- order


def check_order(
    spans: Sequence[Span], homes: Sequence[Home] = (), deferred: Sequence[tuple[int, ...]] = ()
) -> None:
    """Check that a layer's parts follow each other, on whatever lane they run.

    Args:
        homes: location of each layer's non-expert weights; none is the device.
        deferred: for each layer of each pass, in order, the experts that its sum does not need.

    Raises BrokenError: an operation begins before its input is available.
    """
    left = list(reversed(deferred))
    done = 0  # time at which the next part's input is known
    streamed: dict[int, int] = {}
    outputs: dict[int, dict[int, int]] = defaultdict(dict)  # layer → expert → end
    carried: list[int] = []
    shared = 0
    for span in spans:
        op, home = span.op, homes[span.op.layer] if homes else "device"
        start, end = times(span)
        needed = done
        match op.kind:
            case OpKind.STREAM:
                must(home == "stream", "common weights are streamed that have another home")
                streamed[op.layer] = end
                continue
            case OpKind.ATTEND | OpKind.GATE | OpKind.DENSE | OpKind.SHARED:
                if span.lane is not (Lane.HOST if home == "host" else Lane.DEVICE):
                    raise BrokenError(f"{span!r} runs where its weights are not")
                if op.kind is OpKind.ATTEND and home == "stream":
                    must(op.layer in streamed, "a streamed layer runs before its weights came")
                    needed = max(done, streamed.pop(op.layer))
                if op.kind is OpKind.SHARED:
                    shared = end
                else:
                    done = end
            case OpKind.EXPERT:
                outputs[op.layer] |= dict.fromkeys(op.experts, end)
            case OpKind.RETURN if op.experts:
                needed = max(outputs[op.layer][expert] for expert in op.experts)
                outputs[op.layer] |= dict.fromkeys(op.experts, end)
            case OpKind.COMBINE:
                ends, later = outputs.pop(op.layer, {}), left.pop() if left else ()
                now = [end for expert, end in ends.items() if expert not in later]
                needed = max([done, shared, *now, *carried])
                carried = [ends[expert] for expert in later]
                done = end
            case OpKind.HEAD:
                needed = max(done, streamed.pop(-1, 0))
                must(not outputs, "experts of no sum")
                carried, done = [], end
            case _:
                continue
        if start < needed:
            raise BrokenError(f"{span!r} begins before its input is there, at {needed}")


# ----------------------------------------------------------------------------- micro-batches


def check_micro_batches(spans: Sequence[Span]) -> None:
    """Check the order of parts in passes that are divided into micro-batches.

    The n-th part of a kind in a layer of a pass is of the n-th micro-batch.  Each part begins when
    the one before it has ended; the first to read a layer's experts, when their last page has come.

    Raises BrokenError: a part begins before its input is there, or one is missing.
    """
    ends: dict[tuple[str, int], list[int]] = defaultdict(list)
    pages: dict[int, int] = {}
    behind = {"qkv": "project", "core": "qkv", "state": "core", "output": "state"}
    for span in spans:
        op, (start, end) = span.op, times(span)
        kind = op.kind.value
        if op.kind is OpKind.HEAD:
            counts = {len(found) for (part, _), found in ends.items() if part != "sum"}
            must(len(counts) <= 1, "a micro-batch lacks a part")
            ends.clear()
        elif op.kind is OpKind.PAGE and span.lane is Lane.H2D:
            pages[op.layer] = end
        elif op.kind in (OpKind.COMBINE, OpKind.DENSE):
            ends["sum", op.layer].append(end)
        elif op.kind is OpKind.RETURN and span.lane is Lane.H2D:
            kind = "state"
        if kind == "project":
            before = ends["sum", op.layer - 1] if op.layer else None
        elif kind in behind and not (kind == "qkv" and op.rows[0] == 0):  # not a prompt's cache
            before = ends[behind[kind], op.layer]
        else:
            continue
        number = len(ends[kind, op.layer])
        needed = 0
        if before is not None:
            must(number < len(before), f"{span!r} comes before what it needs")
            needed = before[number]
        if kind == "output":
            needed = max(needed, pages.get(op.layer, 0))
        must(start >= needed, f"{span!r} begins before its input is there, at {needed}")
        ends[kind, op.layer].append(end)


# ----------------------------------------------------------------------------- counts and time


def check_counts(
    spans: Sequence[Span], counts: Mapping[Phase, Counts], generations: Sequence[Generation]
) -> None:
    """Check that every active expert was computed once, and on the lane that the counts state.

    Once for each micro-batch, where a layer has several sums in a pass.

    Raises BrokenError: the counts do not add up.
    """
    computed = dict.fromkeys(Lane, 0)
    returned = 0
    of_pass: dict[int, set[int]] = defaultdict(set)
    summed: set[int] = set()
    for span in spans:
        layer = span.op.layer
        if span.op.kind is OpKind.HEAD:
            of_pass.clear()
            summed.clear()
        elif span.op.kind is OpKind.COMBINE:
            summed.add(layer)
        elif span.op.kind is OpKind.EXPERT:
            known = of_pass[layer] if layer in summed else set()
            computed[span.lane] += len({*span.op.experts} - known)
            of_pass[layer] |= {*span.op.experts}
        returned += len(span.op.experts) if span.op.kind is OpKind.RETURN else 0
    for phase, c in counts.items():
        if c.hits + c.in_flight + c.loads + c.host != c.active:
            raise BrokenError(f"{phase}: active experts are not those hit, coming, loaded, on host")
        must(c.host_resident + c.deferred <= 2 * c.host, f"{phase}: more on the host than there")
        if c.prefetched_used > c.prefetched_active + c.replaced:
            raise BrokenError(f"{phase}: more prefetches were used than were active")
        if max(c.prefetched_active, c.prefetched_used) > c.prefetched:
            raise BrokenError(f"{phase}: more prefetches were active than were made")
    active, host = (sum(getattr(c, n) for c in counts.values()) for n in ("active", "host"))
    must(computed[Lane.DEVICE] == active - host, "experts were computed twice, or not at all")
    must(computed[Lane.HOST] == returned == host, "what the host computed did not come back once")
    decoded = sum(len(keys) for g in generations for token in g.used for keys in token)
    must(counts["decode"].active == decoded, "decode's active experts are not those it used")


def check_times(timeline: Timeline, generations: Sequence[Generation]) -> None:
    """Check that tokens end in order, and that no lane works longer than the finished run.

    The device's work and idle time fill it.

    Raises BrokenError: a condition does not hold.
    """
    now = 0
    for generation in generations:
        must(generation.started_ns >= now, "a batch begins before the one before has ended")
        must(generation.ttft_ns > 0, "a first token takes no time")
        must(all(step > 0 for step in generation.steps_ns), "a token takes no time")
        now = generation.token_ends_ns[-1]
    device = [span for span in timeline.spans if span.lane is Lane.DEVICE]
    stalls = sum(timeline.stall_ns().values())
    whole = timeline.busy_ns(Lane.DEVICE) + stalls
    end = times(device[-1])[1]
    must(whole == end <= now, f"the device was busy and idle for {whole} ns of {end}, of {now}")
    for lane in Lane:
        busy = timeline.busy_ns(lane)
        must(0 <= busy <= now, f"the lane {lane.value} was busy for {busy} ns of {now}")
