"""Host memory before the disk: an LRU cache of expert records, where not all of them fit.

It models an operating system's page cache: every record read from the disk stays, until it is the
least recently used one and another needs room.  A copy of the expert on the device does not change
that.  Records that a system keeps in host memory for the whole run are never evicted.
"""

from collections import OrderedDict

from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.protocol import Op, Span
from moebench.substrate.memory.tier import Tier

#: Records that host memory must hold at least: one is read while the one before is copied.
READ_BUFFERS = 2

#: Form, layer and expert.  A record of any form has room for a whole one.
_Key = tuple[int, int, int]


class HostRecords:
    """An LRU cache of the expert records in host memory.

    Args:
        tier: its free bytes determine how many records fit; charged when a record uses new memory.
        most: records at most; None is all that fit.

    Attributes:
        capacity: how many records fit.
        spare: how many of them may be kept for the whole run.
        reads, hits: uses (transfers to the device, host computations) for which the record was read
            from the disk, and those that found it here.

    Raises BudgetError: fewer than `READ_BUFFERS` records fit.
    """

    def __init__(self, tier: Tier, record_bytes: int, most: int | None = None) -> None:
        fits = tier.free_bytes // record_bytes
        self.capacity = fits if most is None else min(fits, most)
        if self.capacity < READ_BUFFERS:
            raise BudgetError(
                f"{tier.name} memory: {tier.free_bytes / 1e6:.4g} MB are free; experts on the disk "
                f"pass through it, which takes {READ_BUFFERS} of {record_bytes / 1e6:.4g} MB; give "
                "a larger --free-host-gb"
            )
        self.spare = self.capacity - READ_BUFFERS
        self.reads = self.hits = 0
        self._kept: set[_Key] = set()
        self._tier, self._record_bytes = tier, record_bytes
        #: By record, the read that loads it; None if it was there before the run.
        self._reads: OrderedDict[_Key, Span | None] = OrderedDict()
        #: By record, the last submitted operation that reads it.
        self._last_use: dict[_Key, Span] = {}
        #: The record that is being copied to the device in chunks.
        self._held: _Key | None = None

    def keep(self, op: Op) -> None:
        """Keep a record in host memory for the whole run.

        Raises UsageError: too little room would be left for other records.
        """
        if _key(op) in self._kept:
            return
        if len(self._kept) == self.spare:
            raise UsageError(
                f"the system's placement keeps more experts in host memory than {self.spare}; "
                f"{self._tier.name} memory has room for {self.capacity}, others pass through "
                f"{READ_BUFFERS}"
            )
        self._tier.reserve("experts", self._record_bytes)
        self._kept.add(_key(op))

    def holds(self, op: Op) -> bool:
        """Return whether the record of an operation's expert is in host memory or being read."""
        key = _key(op)
        return key in self._reads or key in self._kept

    def find(self, op: Op) -> Span | None:
        """Use a record in host memory; return the read that loads it, or None if it was there."""
        self.hits += 1
        key = _key(op)
        if key in self._kept:
            return None
        self._reads.move_to_end(key)
        return self._reads[key]

    def make_room(self) -> Span | None:
        """Evict the least recently used record, unless there is room for one more.

        Returns:
            the last operation that reads the evicted record, for which a read into its memory must
            wait; None if there is none.
        """
        if len(self._reads) + len(self._kept) < self.capacity:
            self._tier.reserve("experts", self._record_bytes)
            return None
        oldest = next(key for key in self._reads if key != self._held)
        del self._reads[oldest]
        return self._last_use.pop(oldest, None)

    def bring(self, op: Op, read: Span) -> None:
        """Add a record that is read from the disk into the room that was made."""
        self.reads += 1
        self._reads[_key(op)] = read

    def used(self, op: Op, by: Span) -> None:
        """Note a submitted operation as the last reader of its expert's record."""
        key = _key(op)
        if key == self._held:
            self._held = None
        if key in self._kept:
            return
        before = self._last_use.get(key)
        if before is None or before.end_ns < by.end_ns:  # type: ignore[operator]
            self._last_use[key] = by

    def hold(self, op: Op) -> None:
        """Protect a record that is copied in chunks, until `used` is called with the last one."""
        self._held = _key(op)

    def place(self, op: Op) -> None:
        """Add a record that is loaded before the run; it may be evicted like others."""
        if _key(op) in self._kept:
            return
        if not self.holds(op):
            self.make_room()
        self._reads[_key(op)] = None
        self._reads.move_to_end(_key(op))


def _key(op: Op) -> _Key:
    return op.form, op.layer, op.experts[0]
