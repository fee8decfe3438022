"""Lanes and the control thread's clock, in the reference simulator; times are in seconds."""

from collections import defaultdict
from collections.abc import Sequence

LANES = ("device", "h2d", "d2h", "host", "disk")

#: What an operation waits for: when that ends, and what it is called in stalls.
Wait = tuple[float, str]


class Lanes:
    """Lanes in order: the end of an operation is known when it is submitted."""

    def __init__(self) -> None:
        self.free = dict.fromkeys(LANES, 0.0)
        self.busy = dict.fromkeys(LANES, 0.0)
        self.bytes = dict.fromkeys(LANES, 0)
        self._last = dict.fromkeys(LANES, (0.0, 0))  # end and bytes of a lane's last operation
        self.stalls: dict[str, float] = defaultdict(float)
        self.now = 0.0  # the control thread's clock

    def place(
        self, lane: str, lasts: float, since: float | None = None, after: Sequence[Wait] = (),
        size: int = 0,
    ) -> float:  # fmt: skip
        """Place an operation on its lane and return its end.

        It starts when the lane is free, the operations that it waits for have ended, and the
        control thread has submitted it (``since``, else now).  Idle time of the device is due to
        the last of these.
        """
        waits = [(self.now if since is None else since, "control"), *after]
        ready, cause = max(waits, key=lambda wait: wait[0])
        start = max(self.free[lane], ready)
        if lane == "device" and start > self.free[lane]:
            self.stalls[cause] += start - self.free[lane]
        self.free[lane] = start + lasts
        self.busy[lane] += lasts
        self.bytes[lane] += size
        self._last[lane] = (start + lasts, size)
        return start + lasts

    def launch(
        self, first: float, all_launches: float, work: float, after: Sequence[Wait] = ()
    ) -> float:
        """Place an operation of several kernels on the device and return its end.

        It starts with its first launch, and ends no earlier than its last one.
        """
        last = self.now + all_launches
        self.now += first
        start = max(self.free["device"], self.now, *(wait[0] for wait in after or [(0.0, "")]))
        end = self.place("device", max(work, last - start), after=after)
        self.now = last
        return end

    def finish(self) -> None:
        """Leave out what lanes do after the last token: the rest of a transfer, and its bytes."""
        for lane, (end, size) in self._last.items():
            if end > self.now:
                self.busy[lane] -= end - self.now
                self.bytes[lane] -= size

    def wait(self, end: float, read_back: float) -> None:
        """Let the control thread wait for an end, and read a result back."""
        self.now = max(self.now, end) + read_back
