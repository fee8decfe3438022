"""What happens to active experts that are off the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from moebench.substrate.engine.system import Assigned, Assignment, LayerView, Missing
from moebench.substrate.errors import UsageError


def _by_id(missing: Sequence[Missing]) -> list[int]:
    return sorted([m.expert for m in missing])


@dataclass(kw_only=True)
class LoadAll(Assignment):
    """Load every missing expert, by ascending id."""

    def assign(self, view: LayerView, missing: Sequence[Missing]) -> Assigned:
        """All to the link."""
        return Assigned(_by_id(missing), ())


@dataclass(kw_only=True)
class HostAll(Assignment):
    """Compute every missing expert on the host in decode; load them in prefill.

    In prefill an expert serves many rows: the host's time grows with them, the link's does not.
    """

    @property
    def uses_host(self) -> bool:  # type: ignore[override]
        """Always in decode."""
        return True

    def assign(self, view: LayerView, missing: Sequence[Missing]) -> Assigned:
        """All to the host, or in prefill all to the link."""
        ids = _by_id(missing)
        return Assigned(ids, ()) if view.phase == "prefill" else Assigned((), ids)


@dataclass(kw_only=True)
class Balanced(Assignment):
    """SMoE Algorithm 2: two pointers balance the link's time against the host's.

        sort S descending;  l, r = 0, |S| - 1;  T_load = T_cpu = 0
        while l ≤ r:
            if T_load ≤ T_cpu:  load S[l];  T_load += C_load;  l += 1
            else:               host S[r];  T_cpu  += C_cpu;   r -= 1

    ``C_load`` and ``C_cpu`` are means of the last ``history`` measured operations (§V-A).

    Attributes:
        by: ``score`` sorts by gate score with a constant C_cpu (second version, Algorithm 2);
            ``batch`` sorts by rows with C_cpu times the rows (first version, Algorithm 2).
        history: p, how many past durations are averaged.
        tie: who takes an expert when both sides are equally loaded; the papers say ``load``, the
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

    def assign(self, view: LayerView, missing: Sequence[Missing]) -> Assigned:
        """Algorithm 2 in decode; in prefill everything is loaded (first version, §4.1)."""
        if view.phase == "prefill":
            return Assigned(_by_id(missing), ())
        if not missing:
            return Assigned((), ())
        costs, p = view.costs, self.history
        load_ns = _mean(costs.load_ns, p)
        host_ns = _mean(costs.host_ns if self.by == "score" else costs.host_ns_per_row, p)
        queue = sorted(missing, key=self._order)
        load: list[int] = []
        host: list[int] = []
        t_load = t_cpu = 0.0
        left, right = 0, len(queue) - 1
        while left <= right:
            if t_load < t_cpu or (t_load == t_cpu and self.tie == "load"):
                load.append(queue[left].expert)
                t_load += load_ns
                left += 1
            else:
                host.append(queue[right].expert)
                t_cpu += host_ns * (queue[right].rows if self.by == "batch" else 1)
                right -= 1
        return Assigned(load, host)

    def _order(self, m: Missing) -> tuple[float, float, int]:
        """Best first; ties by the other measure, then by id."""
        return (
            (-m.score, -m.rows, m.expert) if self.by == "score" else (-m.rows, -m.score, m.expert)
        )


def _mean(values: Sequence[float], last: int) -> float:
    recent = list(values)[-last:]
    return sum(recent) / len(recent)
