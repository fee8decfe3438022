"""Assignment policies: divide active experts that are not on the device between load and host."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from moebench.substrate.engine.decisions import Active, Fetch, LayerView, Plan, fetches, split
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment
from moebench.substrate.errors import BudgetError
from moebench.substrate.machines.timeline import COSTS_KEPT
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.latency import SAME_NS, mean_of_last


@dataclass(kw_only=True)
class LoadAll(Assignment):
    """Loads every missing expert, by ascending id; the host computes none."""

    reads_scores = False

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Return a plan that loads all absent experts."""
        return split(active, fetches(view.layer, active.absent))


#: Model families with a class in Transformers 5, which fuses a layer's experts into one module.
FUSED = frozenset({
    "deepseek_v2", "glm4_moe", "gpt_oss", "llama4_text", "mixtral", "olmoe", "phimoe", "qwen2_moe",
    "qwen3_moe",
})  # fmt: skip


@dataclass(kw_only=True)
class LoadForOneUse(Assignment):
    """Loads absent experts for one use, by ascending id, and keeps none on the device.

    A system with a cache for them sets ``keep`` when it starts.

    Attributes:
        experts: which experts of a layer to load: ``all``, the ``active`` ones, or according to the
            model's ``family``: all where Transformers 5 makes a layer's experts one module.
    """

    experts: Literal["family", "all", "active"] = option("family", searched=True)

    loads = "passing"

    reads_scores = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.keep = False

    def whole_layers(self, shape: ModelShape) -> bool:
        """Return whether all experts of a layer are loaded, and so need a slot at once."""
        return shape.family in FUSED if self.experts == "family" else self.experts == "all"

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Refuse slots that cannot hold all experts of a layer, if these are loaded together."""
        room = min(cache.pools)
        if self.whole_layers(shape) and room < shape.num_experts:
            raise BudgetError(
                f"all {shape.num_experts} experts of a layer are loaded together, and the device "
                f"has room for {room}; give more memory, or --set assign.experts=active"
            )

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Return a plan that loads the layer's absent experts, or its active ones, for one use."""
        absent: Sequence[int] = active.absent
        if view.whole_layers:
            absent = view.residency.divide(range(view.shape.num_experts))[2]
        device = [*active.resident, *active.in_flight, *active.absent]
        return Plan(device, load=[Fetch(view.layer, e, keep=self.keep) for e in absent])


@dataclass(kw_only=True)
class HostAll(Assignment):
    """Compute every missing expert on the host in decode; load them in prefill.

    In prefill an expert serves many rows: the host's time grows with them, the link's does not.
    """

    reads_scores = False
    uses_host = True

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Return a plan: in prefill load all absent experts, in decode compute them on the host."""
        if view.phase == "prefill":
            return split(active, fetches(view.layer, active.absent))
        return split(active, host=active.absent)


@dataclass(kw_only=True)
class LinkOrHost(Assignment):
    """Base of assignments that weigh the link's time against the host's (SMoE §V-A).

    Attributes:
        history: p, the number of past durations over which C_load and C_CPU are averaged.
        link: when the link is free for a first load: at once, as ``printed`` (T_load = 0), or after
            its ``backlog``.  A prefetch is usually under way when the gate is known, and a load
            that queues behind it is what §IV-C excludes: "not interfering with current layer
            expert loading".  From the disk it is the longer backlog of disk and link.
        prefill: what is done with the experts that a prompt misses.  ``balanced`` divides them as
            in decode: the second version states Algorithm 2 for every phase (§V-A) and ascribes
            its TTFT to "the pipelining strategy across CPU, GPU, and loading processes" (§VI-B).
            ``load`` loads them all: the first version calls the CPU "less efficient than loading"
            for long prompts, as its time grows with their tokens (v1 §4.1), but has the sentence
            on the pipelining, too (v1 §6.2).
    """

    history: int = option(10, low=1, high=COSTS_KEPT, searched=(1, COSTS_KEPT), scale="log")
    link: Literal["printed", "backlog"] = "backlog"
    prefill: Literal["balanced", "load"] = option("balanced", searched=True)

    uses_host = True

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Return a plan that divides the absent experts, or loads those of a prompt."""
        if view.phase == "prefill" and self.prefill == "load":
            return split(active, fetches(view.layer, active.absent))
        if not active.absent:
            return split(active)
        backlogs_ns = map(view.lanes.backlog_ns, view.lanes.load_path)
        free_ns = max(backlogs_ns) if self.link == "backlog" else 0
        load, host = self.divide(view, active, free_ns)
        return split(active, fetches(view.layer, load), host)

    @abstractmethod
    def divide(self, view: LayerView, active: Active, free_ns: int) -> tuple[list[int], list[int]]:
        """Return the experts to load and those for the host; ``free_ns`` until the link is free."""

    def mean(self, durations: Sequence[float]) -> float:
        """Return the mean of the last p durations."""
        return mean_of_last(durations, self.history)


def best_first(active: Active) -> list[int]:
    """Return S, the missing experts by descending score; ties by descending rows, then by id."""
    score, rows = active.best, active.rows
    return sorted(active.absent, key=lambda e: (-score[e], -rows[e], e))


@dataclass(kw_only=True)
class Balanced(LinkOrHost):
    """SMoE Algorithm 2: two pointers balance the link's time against the host's.

        sort S descending;  l, r = 0, |S| - 1;  T_load = link;  T_cpu = 0
        while l ≤ r:
            if T_load ≤ T_cpu:  load S[l];  T_load += C_load;  l += 1
            else:               host S[r];  T_cpu  += C_cpu;   r -= 1

    S are the missing experts (``active.absent``).  Sums within 1 us count as equal (`SAME_NS`).

    Attributes:
        by: ``score`` sorts by gate score with a constant C_cpu (second version, Algorithm 2);
            ``batch`` sorts by rows with C_cpu times the rows (first version, Algorithm 2).
        tie: which side takes an expert when both are equally loaded; the papers say ``load``.
    """

    by: Literal["score", "batch"] = option("score", searched=True)
    tie: Literal["load", "host"] = option("load", searched=True)

    def divide(self, view: LayerView, active: Active, free_ns: int) -> tuple[list[int], list[int]]:
        """Divide the missing experts between load and host with SMoE's Algorithm 2."""
        costs, rows, by_score = view.costs, active.rows, self.by == "score"
        load_ns = self.mean(costs.load_ns)
        host_ns = self.mean(costs.host_ns if by_score else costs.host_ns_per_row)
        queue = best_first(active)
        if not by_score:
            queue.sort(key=lambda e: (-rows[e], -active.best[e], e))
        load: list[int] = []
        host: list[int] = []
        t_load, t_cpu = float(free_ns), 0.0
        left, right = 0, len(queue) - 1
        while left <= right:
            equal = abs(t_load - t_cpu) <= SAME_NS
            if self.tie == "load" if equal else t_load < t_cpu:
                load.append(queue[left])
                t_load += load_ns
                left += 1
            else:
                host.append(queue[right])
                t_cpu += host_ns * (1 if by_score else rows[queue[right]])
                right -= 1
        return load, host


@dataclass(kw_only=True)
class Optimal(LinkOrHost):
    """SMoE Eq. 4 solved exactly: of all splits of S in score order, the one that ends first.

        min over n_load of  max(link + n_load · C_load, (|S| - n_load) · C_CPU)

    The n_load best are loaded, as they are the likeliest to be used again; of two splits that end
    at the same time, to 1 us (`SAME_NS`), the one with most loads is used.  A link without loads
    need not become free.
    """

    def divide(self, view: LayerView, active: Active, free_ns: int) -> tuple[list[int], list[int]]:
        """Return the best of the |S| + 1 splits into loads and host computations."""
        queue = best_first(active)
        load_ns, host_ns = self.mean(view.costs.load_ns), self.mean(view.costs.host_ns)

        def end_ns(loads: int) -> float:
            on_link = free_ns + loads * load_ns if loads else 0.0
            return max(on_link, (len(queue) - loads) * host_ns)

        ends_ns = [end_ns(loads) for loads in range(len(queue) + 1)]
        loads = max(n for n, end in enumerate(ends_ns) if end <= min(ends_ns) + SAME_NS)
        return queue[:loads], queue[loads:][::-1]
