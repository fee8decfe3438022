"""Measured times of one model's operations on one machine: a part of its hardware profile.

A measured time is a function of rows and, for attention, of the products of queries with keys.  It
is linear between measured points, and in proportion to the rows beyond the last.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, model_validator

from moebench.substrate.machines.protocol import OpKind
from moebench.substrate.machines.quantity import Inert
from moebench.substrate.models.shape import ModelShape

_Ns = Annotated[float, Field(ge=0)]


class Point(Inert):
    """One measured time of an operation.

    Attributes:
        rows: of the operation, or of one expert of it.
        pairs: products of a query with a key that attention computes, over the batch; else 0.
        spread: the middle half of the trials, as a share of ``ns``, their median.
    """

    rows: int = Field(gt=0)
    pairs: int = Field(default=0, ge=0)
    ns: _Ns
    spread: float = Field(default=0.0, ge=0)


class Measured(Inert):
    """The measured times of one model's operations on one machine.

    Attributes:
        shape: the hash of the model's shape (`shape_hash`).
        what: a description of the measurement.
        device, host: times by kind of operation; of one expert without ``operation_ns``, which an
            operation of any number of experts takes once.
        load_ns: transfer of a record to the device, from the request on, with no other transfer.
        load_after_ns: transfer of a record right behind another one.
        read_alone_ns: transfer of a record in one read, for systems without `parallel_reads`; 0
            where records are in memory.
        return_ns: transfer of outputs back from the host.
        submit_ns: control thread's time to hand an operation to another thread.
        gap_ns: control thread's time between two operations of the device.
        decision_ns: its time from a gate's result to the first expert, beyond ``gap_ns``.
        wake_ns: its time from the end of a wait until it continues.
        beside_copies: factor by which an operation of the device is slower while records are
            copied: on a computer without a GPU both read one memory.
    """

    shape: str
    what: str
    device: dict[OpKind, tuple[Point, ...]]
    host: dict[OpKind, tuple[Point, ...]] = Field(default_factory=dict)
    operation_ns: _Ns
    load_ns: _Ns
    load_after_ns: _Ns
    read_alone_ns: _Ns = 0.0
    return_ns: _Ns = 0.0
    submit_ns: _Ns
    gap_ns: _Ns
    decision_ns: _Ns
    wake_ns: _Ns
    beside_copies: float = Field(default=1.0, ge=1)

    @model_validator(mode="after")
    def _not_empty(self) -> "Measured":
        if not all([*self.device.values(), *self.host.values()]):
            raise ValueError("an operation without a measured point")
        return self

    def slower(self, factor: float) -> "Measured":
        """Return the times of a computer that computes ``factor`` times as long.

        Transfers of records keep their times: a link or a disk has its own rate.
        """
        sides = {
            side: {
                kind: tuple(p.model_copy(update={"ns": p.ns * factor}) for p in points)
                for kind, points in getattr(self, side).items()
            }
            for side in ("device", "host")
        }
        parts = {name: getattr(self, name) * factor for name in OWN_TIMES}
        return self.model_copy(update={**sides, **parts})


#: Times of the processor's own work, besides those by kind of operation.
OWN_TIMES = ("operation_ns", "submit_ns", "gap_ns", "decision_ns", "wake_ns")


def shape_hash(shape: ModelShape) -> str:
    """Return 16 hexadecimal digits that identify the measured model's shape."""
    return hashlib.sha256(shape.model_dump_json().encode()).hexdigest()[:16]


def interpolated(points: Sequence[Point], rows: int, pairs: int = 0) -> float:
    """Return the time of an operation of ``rows`` rows, in ns, from measured points.

    Points of equal rows form a line over pairs, which is extrapolated.
    """
    by_rows: dict[int, list[Point]] = {}
    for point in sorted(points, key=lambda p: (p.rows, p.pairs)):
        by_rows.setdefault(point.rows, []).append(point)
    known = sorted(by_rows)
    times = [_over_pairs(by_rows[n], pairs) for n in known]
    if rows >= known[-1]:
        return times[-1] * rows / known[-1]
    at = bisect_left(known, rows)
    if at == 0 or known[at] == rows:
        return times[at]
    share = (rows - known[at - 1]) / (known[at] - known[at - 1])
    return times[at - 1] + share * (times[at] - times[at - 1])


def _over_pairs(line: Sequence[Point], pairs: int) -> float:
    if len(line) == 1:
        return line[0].ns
    at = min(max(1, bisect_left([p.pairs for p in line], pairs)), len(line) - 1)
    low, high = line[at - 1], line[at]
    slope = (high.ns - low.ns) / (high.pairs - low.pairs)
    return max(0.0, low.ns + slope * (pairs - low.pairs))
