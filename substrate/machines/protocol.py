"""What a machine is: lanes that run operations, and a control thread that waits for some of them.

The engine speaks only this protocol.  `substrate.machines.simulated` answers it with a
virtual clock and a hardware profile, `substrate.machines.local` with this computer's wall clock.

    submit   an operation that is needed: runs on its lane as soon as what it waits for has ended
    load     the same for a transfer of an expert
    prefetch the same for transfers that may be of use: in their lane's idle time; can be cancelled
    finish   a prefetch that has begun is needed now: what is left of it goes like a load
    wait     the control thread stands still until an operation has ended
    elapse   the control thread itself works (decisions, launches)

Two rules settle every tie: a needed operation goes before a prefetch that could start at the same
instant, and operations of one kind go in the order of submission.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Protocol

Work = Callable[..., Any]


class Lane(StrEnum):
    """A resource that does one thing at a time."""

    # Enum's own hash is a Python function; lanes and kinds are dictionary keys in the inner loop.
    __hash__ = str.__hash__

    DEVICE = "device"
    H2D = "h2d"
    D2H = "d2h"
    HOST = "host"
    DISK = "disk"
    PREDICT = "predict"  # a stream beside the device's own, for a policy's network


class OpKind(StrEnum):
    """What an operation does; the cost model has one rule for each."""

    __hash__ = str.__hash__

    ATTEND = "attend"
    GATE = "gate"
    EXPERT = "expert"
    SHARED = "shared"
    COMBINE = "combine"
    DENSE = "dense"
    PREDICT = "predict"
    HEAD = "head"
    LOAD = "load"  # an expert's record, host to device
    READ = "read"  # an expert's record, disk to host
    WRITE_BACK = "write_back"  # an evicted expert's record, device to host
    STREAM = "stream"  # a layer's common weights, or the head, host to device
    RETURN = "return"  # activations, between host and device


#: An enum's member is looked up by a Python function, and operations come by the thousand.
_STREAM = OpKind.STREAM


@dataclass(slots=True, init=False)
class Op:
    """An operation and the sizes that price it; never changed once it is made.

    ``rows`` holds one count for each expert of an expert operation and for each gate of a
    prediction, else the pass's rows.
    ``context`` counts the cached tokens that attention reads, ``pairs`` the products of a query
    with a key that it computes, both summed over the batch's sequences.  ``network`` holds a
    policy's own network's widths, input to output.  ``form`` is the form of the experts' records,
    ``chunk`` which of how many equal parts of a record a transfer moves; None is all of it.
    ``queued`` says of a read that the disk had others to do when it was asked for.
    ``sizes`` is all that its price depends on: the experts of a layer cost alike, and so do layers,
    but for their common weights (``STREAM``).
    """

    kind: OpKind
    layer: int
    rows: tuple[int, ...]
    experts: tuple[int, ...]
    context: int
    pairs: int
    network: tuple[int, ...]
    form: int
    chunk: tuple[int, int] | None
    queued: bool
    sizes: Hashable = field(repr=False, compare=False)

    # Written out: what is generated would call a `__post_init__` for ``sizes``.
    def __init__(
        self, kind: OpKind, layer: int, rows: tuple[int, ...] = (), experts: tuple[int, ...] = (),
        context: int = 0, pairs: int = 0, network: tuple[int, ...] = (), form: int = 0,
        chunk: tuple[int, int] | None = None, queued: bool = False,
    ) -> None:  # fmt: skip
        self.kind, self.layer, self.rows, self.experts = kind, layer, rows, experts
        self.context, self.pairs, self.network = context, pairs, network
        self.form, self.chunk, self.queued = form, chunk, queued
        part = layer if kind is _STREAM else chunk
        self.sizes = (kind, rows, context, pairs, network, form, queued, part)


@lru_cache(maxsize=1 << 14)
def _stand_in(sizes: Hashable) -> object:
    """One object for equal sizes: its hash is its address, where a tuple's is computed anew."""
    return object()


@lru_cache(maxsize=1 << 14)
def op_of(
    kind: OpKind, layer: int, rows: tuple[int, ...], experts: tuple[int, ...] = (),
    form: int = 0, chunk: tuple[int, int] | None = None, queued: bool = False,
) -> Op:  # fmt: skip
    """One object for operations that come again with every token."""
    op = Op(kind, layer, rows, experts, form=form, chunk=chunk, queued=queued)
    op.sizes = _stand_in(op.sizes)
    return op


class Span:
    """An operation in time (ns).  ``end_ns`` is None until it is known.

    ``stall_ns`` is how long the lane stood idle before it, ``cause`` what it was waiting for;
    ``late_ns`` is the other idle time, in which the control thread had not submitted it and was not
    itself waiting for another lane.
    ``moved_bytes`` counts the weights that crossed its lane.
    ``value`` is what its work returned; there is none before it ran, and none of a transfer.
    """

    value: Any

    __slots__ = (
        "cause", "end_ns", "lane", "late_ns", "moved_bytes", "op", "stall_ns", "start_ns", "value",
    )  # fmt: skip

    def __init__(
        self,
        op: Op,
        lane: Lane,
        start_ns: int | None = None,
        end_ns: int | None = None,
        stall_ns: int = 0,
        cause: str = "",
        late_ns: int = 0,
        moved_bytes: int = 0,
    ) -> None:
        self.op = op
        self.lane = lane
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.stall_ns = stall_ns
        self.cause = cause
        self.late_ns = late_ns
        self.moved_bytes = moved_bytes

    @property
    def duration_ns(self) -> int:
        """End minus start; the span must have ended."""
        if self.start_ns is None or self.end_ns is None:
            raise RuntimeError(f"{self.op.kind} on {self.lane} has not ended")
        return self.end_ns - self.start_ns

    def __repr__(self) -> str:
        where = f"layer {self.op.layer}, {self.start_ns}..{self.end_ns}"
        return f"<{self.op.kind} {list(self.op.experts)} on {self.lane}, {where}>"


class TransferClient(Protocol):
    """Allocates slots: the machine asks it when transfers start and tells it of their end.

    ``op`` is the transfer's own operation; it names one expert.  All is called while no other
    thread can hold the machine's lock.
    """

    def claim(self, op: Op, now_ns: int) -> tuple[Span, ...] | None:
        """Give a prefetch a slot; what its transfer must wait for, or None to drop it."""

    def under_way(self, op: Op, span: Span) -> None:
        """The transfer has started; ``span`` ends when the record is complete."""

    def arrived(self, op: Op, start_ns: int, end_ns: int) -> None:
        """The record, under way since ``start_ns``, is complete in its slot from ``end_ns`` on."""

    def slot_of(self, op: Op) -> int:
        """The slot that the record goes to."""


class HostMemory(Protocol):
    """Expert records in host memory, where the others are on the disk.

    The machine asks it before an expert is copied to the device or computed on the host.  ``op``
    names the expert.
    """

    @property
    def capacity(self) -> int:
        """Records at once."""

    @property
    def spare(self) -> int:
        """How many of them may be kept for good."""

    reads: int  #: uses for which the record was read
    hits: int  #: and those that found it

    def holds(self, op: Op) -> bool:
        """Whether the record is there, or on its way."""

    def find(self, op: Op) -> Span | None:
        """Use a record that is there: the read that brings it; None if it was always there."""

    def make_room(self) -> Span | None:
        """Make room for one more; what a read into it must wait for, if anything."""

    def bring(self, op: Op, read: Span) -> None:
        """The record is read into the room that was made."""

    def used(self, op: Op, by: Span) -> None:
        """An operation that reads the record was submitted."""

    def keep(self, op: Op) -> None:
        """The record is there from before the run to its end."""

    def hold(self, op: Op) -> None:
        """The record is to be copied in chunks: it stays until `used` names the last."""

    def place(self, op: Op) -> None:
        """The record passes through before the run."""


class Machine(Protocol):
    """See the module's docstring."""

    @property
    def load_path(self) -> tuple[Lane, ...]:
        """Lanes that an expert crosses on its way to the device, in order."""

    @property
    def has_host_lane(self) -> bool:
        """Whether the host can compute experts beside the device."""

    @property
    def host_memory(self) -> HostMemory | None:
        """Experts in host memory before the disk; None where there is no disk behind it."""

    @property
    def decision_ns(self) -> int:
        """What a layer's decisions cost the control thread; 0 where that is not known."""

    @property
    def sync_ns(self) -> int:
        """What reading a result back costs it beyond waiting; 0 where that is not known."""

    @property
    def lock(self) -> AbstractContextManager[Any, bool | None]:
        """Held while memory or a policy's state is read or changed; reentrant."""

    def now_ns(self) -> int:
        """The control thread's clock."""

    def begin(self) -> None:
        """A batch starts: the time that lanes stood idle before it is no stall."""

    def elapse(self, decisions: int) -> None:
        """The control thread takes so many layers' decisions."""

    def submit(
        self, op: Op, lane: Lane, after: Sequence[Span] = (), work: Work | None = None, *args: Any
    ) -> Span:
        """Run a needed operation; its ``value`` is what ``work(*args)`` returns."""

    def load(self, op: Op, client: TransferClient, after: Sequence[Span] = ()) -> Span:
        """Bring a needed expert whose slot is already claimed; the span ends when it is there."""

    def prefetch(
        self,
        ops: Iterable[Op],
        client: TransferClient,
        chunks: int = 1,
        since_ns: Sequence[int] = (),
    ) -> None:
        """Queue transfers behind all needed ones, in place of those queued that have not begun.

        They cost the control thread nothing, a loader submits them.  Between the chunks of one,
        needed loads go first.  They begin in their order, none before its ``since_ns``; now, if
        that is later or not given.
        """

    def cancel(self, layer: int) -> int:
        """Drop prefetches for layers up to this one that have not begun; returns how many."""

    def finish(self, op: Op) -> None:
        """Bring the chunks that are left of a prefetch that has begun, as a needed load."""

    def write_back(self, layer: int, expert: int, slot: int, since_ns: int, form: int = 0) -> Span:
        """Copy an evicted expert's record in a slot back to the host, from ``since_ns`` on."""

    def backlog_ns(self, lane: Lane) -> int:
        """How long a lane will still be busy with what was submitted to it."""

    def wait(self, span: Span) -> None:
        """Return when the span has ended."""

    def copy_record(self, layer: int, expert: int, slot: int) -> None:
        """Move an expert's record into a slot, where slots are real."""

    def estimate_ns(self, op: Op, lane: Lane) -> int:
        """What the operation costs before anything was measured."""

    def control_ns(self, op: Op, lane: Lane) -> int:
        """What submitting it costs the control thread; 0 where that is not known."""
