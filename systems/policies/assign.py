"""Divides active experts that are off the device between the link and the host."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from moebench.substrate.engine.decisions import Active, LayerView, Plan, fetches, split
from moebench.substrate.engine.policies import Assignment
from moebench.substrate.errors import UsageError


@dataclass(kw_only=True)
class LoadAll(Assignment):
    """Load every missing expert, by ascending id."""

    reads_scores = False

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Load all that are absent."""
        return split(active, fetches(view.layer, active.absent))


@dataclass(kw_only=True)
class HostAll(Assignment):
    """Compute every missing expert on the host in decode; load them in prefill.

    In prefill an expert serves many rows: the host's time grows with them, the link's does not.
    """

    reads_scores = False

    @property
    def uses_host(self) -> bool:  # type: ignore[override]
        """Always in decode."""
        return True

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Compute all that are absent on the host; in prefill, load them."""
        if view.phase == "prefill":
            return split(active, fetches(view.layer, active.absent))
        return split(active, host=active.absent)


@dataclass(kw_only=True)
class Balanced(Assignment):
    """SMoE Algorithm 2: two pointers balance the link's time against the host's.

        sort S descending;  l, r = 0, |S| - 1;  T_load = T_cpu = 0
        while l ≤ r:
            if T_load ≤ T_cpu:  load S[l];  T_load += C_load;  l += 1
            else:               host S[r];  T_cpu  += C_cpu;   r -= 1

    S are the missing experts (``active.absent``), ``C_load`` and ``C_cpu`` means of the last
    ``history`` measured operations (§V-A).

    Attributes:
        by: ``score`` sorts by gate score with a constant C_cpu (second version, Algorithm 2);
            ``batch`` sorts by rows with C_cpu times the rows (first version, Algorithm 2).
        history: p, how many past durations are averaged.
        tie: which side takes an expert when both are equally loaded; the papers say ``load``, the
            authors' code ``host``.
    """

    by: Literal["score", "batch"] = "score"
    history: int = 10
    tie: Literal["load", "host"] = "load"

    def __post_init__(self) -> None:
        if not 1 <= self.history <= 64:
            raise UsageError(f"assign.history is {self.history}; allowed: 1 to 64")

    @property
    def uses_host(self) -> bool:  # type: ignore[override]
        """In decode, when the link falls behind."""
        return True

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Algorithm 2 in decode; in prefill everything is loaded (first version, §4.1)."""
        if view.phase == "prefill":
            return split(active, fetches(view.layer, active.absent))
        if not active.absent:
            return split(active)
        costs, p = view.costs, self.history
        load_ns = _mean(costs.load_ns, p)
        host_ns = _mean(costs.host_ns if self.by == "score" else costs.host_ns_per_row, p)
        score, rows = active.best, active.rows
        # Best first; ties by the other measure, then by id.
        if self.by == "score":
            queue = sorted(active.absent, key=lambda e: (-score[e], -rows[e], e))  # S
        else:
            queue = sorted(active.absent, key=lambda e: (-rows[e], -score[e], e))
        load: list[int] = []
        host: list[int] = []
        t_load = t_cpu = 0.0
        left, right = 0, len(queue) - 1
        while left <= right:
            if t_load < t_cpu or (t_load == t_cpu and self.tie == "load"):
                load.append(queue[left])
                t_load += load_ns
                left += 1
            else:
                host.append(queue[right])
                t_cpu += host_ns * (rows[queue[right]] if self.by == "batch" else 1)
                right -= 1
        return split(active, fetches(view.layer, load), host)


def _mean(values: Sequence[float], last: int) -> float:
    recent = list(values)[-last:]
    return sum(recent) / len(recent)
