"""The machine protocol: lanes that run operations, and a control thread that submits them.

The engine uses only this protocol.  `substrate.machines.simulated` implements it with a virtual
clock and a hardware profile, `substrate.machines.local` with this computer's wall clock.

    submit   run a needed operation on its lane as soon as its dependencies have ended
    load     transfer a needed expert
    prefetch queue transfers of experts for a lane's idle time; they can be cancelled
    upload   queue a transfer for a lane's idle time that cannot be cancelled
    finish   a prefetch that has begun, or an upload, is needed now: transfer the rest like a load
    wait     block the control thread until an operation has ended
    elapse   charge the control thread for decisions

Two rules settle every tie: a needed operation goes before an upload and an upload before a prefetch
that could start at the same instant, and operations of one kind go in the order of submission.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Protocol

Work = Callable[..., Any]


class Lane(StrEnum):
    """A resource that runs one operation at a time."""

    # str's hash is faster than Enum's: lanes and kinds are dictionary keys in the inner loop.
    __hash__ = str.__hash__

    DEVICE = "device"
    H2D = "h2d"
    D2H = "d2h"
    HOST = "host"
    DISK = "disk"
    PREDICT = "predict"  # a stream beside the device's own, for a policy's network


class OpKind(StrEnum):
    """The kind of an operation; the cost model has one rule for each."""

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
    STREAM = "stream"  # a layer's non-expert weights, or the head, host to device
    RETURN = "return"  # activations, between host and device
    # Parts of a layer's attention, where the host computes the middle one:
    PROJECT = "project"  # norm and the products that make queries, keys and values
    QKV = "qkv"  # queries, keys and values, device to host
    CORE = "core"  # scores and values over the KV cache
    OUTPUT = "output"  # the product behind it
    PAGE = "page"  # an equal part of several experts, host to device; on the host, staged for it


#: Enum members as globals: an enum looks them up in a Python function, slow for each operation.
_STREAM, _PAGE = OpKind.STREAM, OpKind.PAGE


@dataclass(slots=True, init=False)
class Op:
    """An operation and the sizes by which it is priced; never changed after its creation.

    ``rows`` holds one count for each expert of an expert operation and for each gate of a
    prediction, of ``QKV`` those of queries and of keys and values, else the pass's rows or the
    micro-batch's.
    ``context`` counts the cached tokens that attention reads, ``pairs`` the products of a query
    with a key that it computes, both summed over the batch's sequences.  ``network`` holds a
    policy's own network's widths, input to output.  ``form`` is the form of the experts' records,
    ``chunk`` which of how many equal parts of a record, or of several experts' (``PAGE``), a
    transfer moves; None is all of it.
    ``queued`` is true for a read that is submitted while the disk is busy with others.
    ``sizes`` is all that its price depends on: all experts of a layer cost the same, and so do all
    layers, except for their non-expert weights (``STREAM``).
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

    # Not generated: a generated one would need a call of `__post_init__` for ``sizes``.
    def __init__(
        self, kind: OpKind, layer: int, rows: tuple[int, ...] = (), experts: tuple[int, ...] = (),
        context: int = 0, pairs: int = 0, network: tuple[int, ...] = (), form: int = 0,
        chunk: tuple[int, int] | None = None, queued: bool = False,
    ) -> None:  # fmt: skip
        self.kind, self.layer, self.rows, self.experts = kind, layer, rows, experts
        self.context, self.pairs, self.network = context, pairs, network
        self.form, self.chunk, self.queued = form, chunk, queued
        part: Hashable = layer if kind is _STREAM else chunk
        if kind is _PAGE:
            part = (chunk, len(experts))
        self.sizes = (kind, rows, context, pairs, network, form, queued, part)


@lru_cache(maxsize=1 << 14)
def _stand_in(sizes: Hashable) -> object:
    """Return one object for equal sizes, whose hash is its address; a tuple's hash is slow."""
    return object()


@lru_cache(maxsize=1 << 14)
def op_of(
    kind: OpKind, layer: int, rows: tuple[int, ...], experts: tuple[int, ...] = (),
    form: int = 0, chunk: tuple[int, int] | None = None, queued: bool = False,
) -> Op:  # fmt: skip
    """Return a cached operation, for operations that every token repeats."""
    op = Op(kind, layer, rows, experts, form=form, chunk=chunk, queued=queued)
    op.sizes = _stand_in(op.sizes)
    return op


class Span:
    """An operation with its start and end in ns; ``end_ns`` is None until it is known.

    ``stall_ns`` is the lane's idle time before it, ``cause`` what the lane waited for; ``late_ns``
    is the other idle time, in which the control thread had not submitted it and was not itself
    waiting for another lane.
    ``moved_bytes`` counts the weights that crossed its lane.
    ``value`` is its work's result; unset before the work ran, and for transfers.
    """

    value: Any

    __slots__ = (
        "cause", "end_ns", "lane", "late_ns", "moved_bytes", "op", "stall_ns", "start_ns", "value",
    )  # fmt: skip

    def __init__(
        self, op: Op, lane: Lane, start_ns: int | None = None, end_ns: int | None = None,
        stall_ns: int = 0, cause: str = "", late_ns: int = 0, moved_bytes: int = 0,
    ) -> None:  # fmt: skip
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
        """The span's end minus its start, in ns; the span must have ended."""
        if self.start_ns is None or self.end_ns is None:
            raise RuntimeError(f"{self.op.kind} on {self.lane} has not ended")
        return self.end_ns - self.start_ns

    def __repr__(self) -> str:
        where = f"layer {self.op.layer}, {self.start_ns}..{self.end_ns}"
        return f"<{self.op.kind} {list(self.op.experts)} on {self.lane}, {where}>"


class TransferClient(Protocol):
    """Allocates slots: the machine calls it when transfers start and end.

    ``op`` is the transfer's operation, of one expert.  The caller holds the machine's lock.
    """

    def claim(self, op: Op, now_ns: int) -> tuple[Span, ...] | None:
        """Claim a slot for a prefetch; return the spans to wait for, or None to drop it."""

    def under_way(self, op: Op, span: Span) -> None:
        """Called when a transfer has started; ``span`` ends when the record is complete."""

    def arrived(self, op: Op, start_ns: int, end_ns: int) -> None:
        """Called when a record's transfer has its start and end: it is complete from ``end_ns``."""

    def slot_of(self, op: Op) -> int:
        """Return the slot that the record is copied to."""


class HostMemory(Protocol):
    """Host memory that caches expert records from the disk.

    The machine uses it before an expert is copied to the device or computed on the host.  ``op``
    is an operation of that expert.
    """

    @property
    def capacity(self) -> int:
        """The number of records that fit."""

    @property
    def spare(self) -> int:
        """The number of records that may be kept for the whole run."""

    reads: int  #: uses for which the record was read
    hits: int  #: and those that found it

    def holds(self, op: Op) -> bool:
        """Return whether the record is in host memory, or being read."""

    def find(self, op: Op) -> Span | None:
        """Use a record in host memory; return the read that loads it, or None if it was there."""

    def make_room(self) -> Span | None:
        """Make room for one record; return the span that a read into it must wait for, or None."""

    def bring(self, op: Op, read: Span) -> None:
        """Add a record that is read into the room that was made."""

    def used(self, op: Op, by: Span) -> None:
        """Note a submitted operation as the last reader of its record."""

    def keep(self, op: Op) -> None:
        """Keep a record for the whole run."""

    def hold(self, op: Op) -> None:
        """Protect a record that is copied in chunks, until `used` is called with the last one."""

    def place(self, op: Op) -> None:
        """Add a record that is loaded before the run."""


class Machine(Protocol):
    """A machine that runs operations on lanes; see the module's docstring."""

    @property
    def load_path(self) -> tuple[Lane, ...]:
        """Lanes that an expert's transfer to the device occupies, in order."""

    @property
    def has_host_lane(self) -> bool:
        """Whether the host can compute experts in parallel to the device."""

    @property
    def host_memory(self) -> HostMemory | None:
        """Host memory as a cache of the disk; None where no expert is on the disk."""

    @property
    def decision_ns(self) -> int:
        """Control thread's time for a layer's decisions, in ns; 0 where not known."""

    @property
    def sync_ns(self) -> int:
        """Control thread's time to read a result back, in ns; 0 where not known."""

    @property
    def lock(self) -> AbstractContextManager[Any, bool | None]:
        """Reentrant lock, held while memory or a policy's state is read or changed."""

    def now_ns(self) -> int:
        """Return the time of the control thread's clock, in ns."""

    def begin(self) -> None:
        """Begin a batch: idle time of lanes before it does not count as a stall."""

    def elapse(self, decisions: int) -> None:
        """Charge the control thread for the decisions of ``decisions`` layers."""

    def submit(
        self, op: Op, lane: Lane, after: Sequence[Span] = (), work: Work | None = None, *args: Any
    ) -> Span:
        """Run a needed operation; its span's ``value`` is the result of ``work(*args)``."""

    def load(self, op: Op, client: TransferClient, after: Sequence[Span] = ()) -> Span:
        """Transfer a needed expert whose slot is claimed; return the span of the transfer."""

    def prefetch(
        self, ops: Iterable[Op], client: TransferClient, chunks: int = 1,
        since_ns: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Queue transfers behind all needed ones, in place of queued ones that have not begun.

        They take no time of the control thread, because a loader submits them.  Needed loads are
        copied between the chunks of one.  They begin in their order, none before its ``since_ns``;
        now, if that is later or not given.
        """

    def cancel(self, layer: int) -> int:
        """Drop prefetches for layers up to this one that have not begun; return how many."""

    def upload(self, op: Op, client: TransferClient, after: Sequence[Span] = ()) -> None:
        """Queue the transfer of an expert whose slot is claimed, behind all needed transfers.

        It takes no time of the control thread, is never dropped, and goes before every prefetch.
        """

    def finish(self, op: Op) -> None:
        """Transfer an upload, or the remaining chunks of a begun prefetch, as a needed load.

        Uploads that were queued before it are transferred before it.
        """

    def write_back(self, layer: int, expert: int, slot: int, since_ns: int, form: int = 0) -> Span:
        """Copy an evicted expert's record from its slot to the host, from ``since_ns`` on."""

    def backlog_ns(self, lane: Lane) -> int:
        """Return how long a lane will still be busy with submitted operations, in ns."""

    def wait(self, span: Span) -> None:
        """Block the control thread until the span has ended."""

    def copy_record(self, layer: int, expert: int, slot: int) -> None:
        """Copy an expert's record into a slot before the run, where slots are real memory."""

    def estimate_ns(self, op: Op, lane: Lane) -> int:
        """Return an estimate of the operation's time on a lane, in ns."""

    def control_ns(self, op: Op, lane: Lane) -> int:
        """Return the control thread's time to submit an operation, in ns; 0 if not known."""
