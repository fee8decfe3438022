"""Host memory before the disk: a cache of expert records, where they do not all fit.

It is what an operating system makes of free memory when files are read or mapped: all that comes
from the disk passes through it and stays, until the record that was used longest ago makes room.
An expert's copy on the device does not shorten the stay of its record here.  Records that a system
keeps for good take part in none of that.
"""

from collections import OrderedDict

from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.protocol import Op, Span
from moebench.substrate.memory.tier import Tier

#: Records that host memory must hold at least: one is read while the one before moves on.
READ_BUFFERS = 2

#: Form, layer and expert.  A record of any form has room for a whole one.
_Key = tuple[int, int, int]


class HostRecords:
    """Which experts' records are in host memory, least recently used first.

    Args:
        tier: what is free there says how many records fit; each is charged when it takes room that
            none had before.
        most: records at most, whatever is free.

    Attributes:
        capacity: records at once.
        spare: how many of them may be kept for good.
        reads, hits: uses (transfers to the device, host computations) for which the record was read
            from the disk, and those that found it here.

    Raises:
        BudgetError: fewer than `READ_BUFFERS` records fit.
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
        #: By expert, the read that brings its record; None if it was there before the run.
        self._reads: OrderedDict[_Key, Span | None] = OrderedDict()
        #: By expert, the operation that reads its record here last, as far as that is known.
        self._last_use: dict[_Key, Span] = {}
        #: The expert whose record is being copied in chunks.
        self._held: _Key | None = None

    def keep(self, op: Op) -> None:
        """Hold a record from before the run to its end.

        Raises:
            UsageError: too few would be left for those that pass through.
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
        """Whether the record of an operation's expert is here, or on its way."""
        key = _key(op)
        return key in self._reads or key in self._kept

    def find(self, op: Op) -> Span | None:
        """Use a record that is here: the read that brings it; None if it was always here."""
        self.hits += 1
        key = _key(op)
        if key in self._kept:
            return None
        self._reads.move_to_end(key)
        return self._reads[key]

    def make_room(self) -> Span | None:
        """Let the record go that was used longest ago, unless there is room for one more.

        Returns:
            what reads it last, for which a read into its place must wait; None if nothing does.
        """
        if len(self._reads) + len(self._kept) < self.capacity:
            self._tier.reserve("experts", self._record_bytes)
            return None
        oldest = next(key for key in self._reads if key != self._held)
        del self._reads[oldest]
        return self._last_use.pop(oldest, None)

    def bring(self, op: Op, read: Span) -> None:
        """A record is read into the room that was made for it."""
        self.reads += 1
        self._reads[_key(op)] = read

    def used(self, op: Op, by: Span) -> None:
        """An operation that reads the record was submitted."""
        key = _key(op)
        if key == self._held:
            self._held = None
        if key in self._kept:
            return
        before = self._last_use.get(key)
        if before is None or before.end_ns < by.end_ns:  # type: ignore[operator]
            self._last_use[key] = by

    def hold(self, op: Op) -> None:
        """A record is to be copied in chunks: it stays until `used` names the last of them."""
        self._held = _key(op)

    def place(self, op: Op) -> None:
        """A record passes through before the run, and stays like others."""
        if _key(op) in self._kept:
            return
        if not self.holds(op):
            self.make_room()
        self._reads[_key(op)] = None
        self._reads.move_to_end(_key(op))


def _key(op: Op) -> _Key:
    return op.form, op.layer, op.experts[0]
