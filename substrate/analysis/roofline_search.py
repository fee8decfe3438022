"""Search for the policy of `substrate.analysis.roofline` with the highest throughput.

The search of MoE-Lightning (ASPLOS 2025): for μ = 1, 2, 3, 4, 36, 68, ... it raises the number q of
micro-batches from 1 until throughput falls or memory is full, and solves a linear program for each.
As in the authors' code, attention is on the host (A_g = 0, r_c = 0) and the experts are on the
device (F_g = 1), so that only r_w is free and the program has a closed form:

    r_w = the least share with which the link takes no longer than the other lanes, or as many as
          the device's memory holds, and at least what the host's memory lacks

Throughput does not fall in q: the lanes of device and host take q times as long, and the link's
bytes grow at most linearly, with a constant part.  So the loop ends at the largest q that fits,
which is found by bisection.

Readings:

- Of equally good policies the last one is chosen, as in the code.  Throughputs that differ by
  `TIED` are equal, so that rounding does not decide.
- A linear program's solution is not unique where the link does not limit; the least r_w is chosen.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from moebench.substrate.analysis.roofline import (
    USABLE_DEVICE,
    USABLE_HOST,
    LayerTime,
    Policy,
    Roofs,
    Sizes,
    Texts,
    device_need,
    host_need,
    layer_time,
    throughput,
)

#: Relative difference below which two throughputs count as equal.
TIED = 1e-9

#: Micro-batches: the first ones, and the step after them.
SMALL, STEP = 4, 32


class Found(NamedTuple):
    """A policy, the time of its layer, and its throughput in tokens/s."""

    policy: Policy
    time: LayerTime
    tokens_per_s: float


class Case(NamedTuple):
    """A model on a machine with requests of one length."""

    sizes: Sizes
    roofs: Roofs
    texts: Texts

    def shares(self, policy: Policy) -> tuple[float, float]:
        """Return the lowest and highest r_w with which a policy fits both memories.

        The lowest is above the highest if there is none.
        """
        device = device_need(self.sizes, self.texts, policy).shares(self.device_limit)
        host = host_need(self.sizes, self.texts, policy).shares(self.host_limit)
        return max(device[0], host[0]), min(device[1], host[1])

    @property
    def device_limit(self) -> float:
        """Bytes of device memory that a policy may need."""
        return USABLE_DEVICE * self.roofs.gpu_bytes

    @property
    def host_limit(self) -> float:
        """Bytes of host memory that a policy may need."""
        return USABLE_HOST * self.roofs.host_bytes

    def fits(self, policy: Policy) -> bool:
        """Return whether any share of resident experts lets a policy fit."""
        low, high = self.shares(policy)
        return low <= high

    def timed(self, policy: Policy) -> Found:
        """Return a policy with its layer's time and its throughput."""
        time = layer_time(self.sizes, self.roofs, self.texts, policy)
        tokens_per_s = throughput(self.sizes, self.texts, policy.batch, time.total)
        return Found(policy, time, tokens_per_s)

    def with_best_share(self, policy: Policy) -> Found | None:
        """Return a policy with the best r_w, or None if no share fits.

        Where attention is on the device or the experts are on the host, it is the highest share.
        """
        low, high = self.shares(policy)
        if low > high:
            return None
        if policy.attention_on_device or not policy.experts_on_device:
            return self.timed(replace(policy, resident=high))
        time = layer_time(self.sizes, self.roofs, self.texts, policy)
        other = max(time.host, time.device)
        wanted = 1 - other * self.roofs.link_bandwidth / self.sizes.expert_bytes
        return self.timed(replace(policy, resident=min(max(wanted, low), high)))

    def most(self, policy: Policy) -> int:
        """Return the largest q with which a policy's micro-batches fit; 0 if not even one does."""

        def fits(q: int) -> bool:
            return self.fits(replace(policy, batch=q * policy.micro_batch))

        above = 1
        while fits(above):
            above *= 2
        below = above // 2
        while above - below > 1:
            middle = (above + below) // 2
            below, above = (middle, above) if fits(middle) else (below, middle)
        return below

    def largest(self, micro_batch: int) -> Found | None:
        """Return the searched policy with this μ and the most requests, or None if none fits."""
        one = Policy(batch=micro_batch, micro_batch=micro_batch)
        q = self.most(one)
        return self.with_best_share(replace(one, batch=q * micro_batch)) if q else None

    def search(self) -> Found | None:
        """Return the best policy, or None if not even one request fits."""
        return _best(self._each_largest())

    def _each_largest(self) -> Iterator[Found]:
        micro_batch = 1
        while (found := self.largest(micro_batch)) is not None:
            yield found
            micro_batch += 1 if micro_batch < SMALL else STEP

    def of_batch(self, batch: int) -> Found | None:
        """Return the best policy for a batch, over the micro-batches that divide it, or None."""
        return _best(self._each_divisor(batch))

    def _each_divisor(self, batch: int) -> Iterator[Found]:
        for micro_batch in range(1, batch + 1):
            policy = Policy(batch=batch, micro_batch=micro_batch)
            if not self.fits(policy):  # nor does a larger micro-batch
                return
            if batch % micro_batch == 0 and (found := self.with_best_share(policy)) is not None:
                yield found


def _best(found: Iterator[Found]) -> Found | None:
    """Return the policy with the highest throughput, the last one of equals."""
    best: Found | None = None
    for one in found:
        if best is None or one.tokens_per_s >= best.tokens_per_s * (1 - TIED):
            best = one
    return best
