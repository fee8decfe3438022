"""Recent operation times for scheduling rules: mean durations, and host time per token."""

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import islice
from operator import add

from moebench.substrate.machines.timeline import Costs

#: Two ends of simulated work that differ by no more than this, in ns, count as equal: a difference
#: of rounding does not choose between schedules.
SAME_NS = 1000


def summed(values: Iterable[float]) -> float:
    """Return the sum of one value or more, added in their order: `sum` differs between Pythons."""
    return reduce(add, values)


def mean_of_last(durations: Sequence[float], history: int) -> float:
    """Return the mean of the last ``history`` durations, which are ordered oldest first."""
    recent = list(islice(reversed(durations), history))
    return summed(recent) / len(recent)


def host_ns_per_token(costs: Costs, history: int) -> float:
    """Return the total time over the total tokens of the last ``history`` host experts, in ns."""
    return _per_token(_on_host(costs, history))


def host_line(costs: Costs, history: int) -> tuple[float, float]:
    """Return ns per token of the last ``history`` host experts, and ns more of a layer's first one.

    The latter is its mean time beyond that of its tokens; 0 if there is none or no sample tells.
    """
    recent = _on_host(costs, history)
    per_token = _per_token([sample for sample in recent if not sample[2]] or recent)
    more = [took - tokens * per_token for took, tokens, first in recent if first]
    return per_token, max(0.0, summed(more) / len(more)) if more else 0.0


def _on_host(costs: Costs, history: int) -> list[tuple[float, float, bool]]:
    """Return ns, tokens and whether it was its layer's first, for each of the last host experts."""
    ns, per_row = reversed(costs.host_ns), reversed(costs.host_ns_per_row)
    recent = islice(zip(ns, per_row, reversed(costs.host_first), strict=True), history)
    return [(took, took / each, first) for took, each, first in recent]


def _per_token(samples: Sequence[tuple[float, float, bool]]) -> float:
    return summed(took for took, _, _ in samples) / summed(tokens for _, tokens, _ in samples)
