"""Fiddler: the host computes what is not worth a load.

"Fiddler: CPU-GPU Orchestration for Fast Inference of Mixture-of-Experts Models" (K. Kamahori et
al., ICLR 2025, arXiv 2402.07033).  The activations of a few tokens are small, an expert's weights
are large.  So an expert that is not on the device is computed where its weights are, unless so many
tokens use it that loading it is faster.

    paper                                        here
    ─────                                        ────
    popular experts on the GPU, for good         PlacePopular, over all layers
    CPU time proportional to tokens;             Latency
      transfer time and GPU time constant
    the division of a layer's experts between    LoadOrCompute; ``assign.minimise``
      CPU and GPU that takes least
    weights that are copied are used             Fetch(keep=False)
      and dropped
    one buffer for them                          the slot that OnePlaceholder keeps empty

Prefill and decode are divided alike.  An expert of n tokens costs n · token on the host; on the
device it costs ``device``, and ``load`` more if it is not there.

    max   the larger of the two sides is to be least: the host computes beside the device
    sum   the sum of all costs is to be least: each expert takes its own cheaper side

The paper, and a comment in its code, say ``max``; the code minimises the sum (`--variant shipped`,
`systems.fiddler_shipped`).  Of equally good divisions, the one that leaves most on the device is
taken.

Deviations and readings:

- The code was read; of the paper, what others report.
- All 2^E divisions need not be tried: see `least_sum` and `least_max`.
- Times are means of what was measured last (`assign.history`); the paper profiles them once.  On a
  roofline a host expert's time is not proportional to its tokens: each costs less where there are
  many.
- Popularity is counted on the train half of the workload served (`--calibrate-from`); the authors
  have a list for Mixtral-8x7B, the one model that their code runs.
- The placeholder is one of the expert slots.
- What the paper's AVX-512 kernel reaches is for the profile's host to say.
- Beams, of which the paper runs up to 16, are sequences of a batch.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import Literal, NamedTuple

from moebench.substrate.engine.decisions import Active, Fetch, LayerView, Plan, split
from moebench.substrate.engine.policies import (
    Assignment,
    Eviction,
    Placement,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.systems.policies.evict import OnePlaceholder
from moebench.systems.policies.latency import check_history, host_ns_per_token, mean_of_last
from moebench.systems.policies.place import PlacePopular
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting


class Latency(NamedTuple):
    """What an expert takes: on the host a token; on the device; and to be loaded; in one unit."""

    token: float
    device: float
    load: float


def least_sum(tokens: Mapping[int, int], absent: Collection[int], takes: Latency) -> list[int]:
    """The experts that the host computes where the sum of all costs is least.

    It is a sum of terms that each depend on one expert's side alone.

    Args:
        tokens: of each active expert.
        absent: those of them that are not on the device.
    """
    return [
        e
        for e, n in tokens.items()
        if n * takes.token < takes.device + (takes.load if e in absent else 0)
    ]


def least_max(tokens: Mapping[int, int], absent: Collection[int], takes: Latency) -> list[int]:
    """The experts that the host computes where the larger of the two sides is least.

    The device's side depends on how many experts it computes and how many of them it loads.  For
    any such numbers the host's side is least if the host has those with the fewest tokens of either
    kind: so the kinds are sorted, and all their cuts are tried.
    """
    ranked = sorted(tokens, key=lambda e: (tokens[e], e))
    here, away = [e for e in ranked if e not in absent], [e for e in ranked if e in absent]
    tokens_here = [0, *accumulate(tokens[e] for e in here)]  # of the first so many
    tokens_away = [0, *accumulate(tokens[e] for e in away)]

    def larger_side(cut: tuple[int, int]) -> float:
        i, j = cut
        host = (tokens_here[i] + tokens_away[j]) * takes.token
        return max(host, (len(ranked) - i - j) * takes.device + (len(away) - j) * takes.load)

    i, j = min(product(range(len(here) + 1), range(len(away) + 1)), key=larger_side)
    return here[:i] + away[:j]


#: What a division is to make least.
Objective = Literal["max", "sum"]
LEAST: dict[Objective, Callable[[Mapping[int, int], Collection[int], Latency], list[int]]] = {
    "max": least_max,
    "sum": least_sum,
}


def divided(view: LayerView, active: Active, minimise: Objective, takes: Latency) -> Plan:
    """What the host does not compute and the device lacks is loaded for one use, by id."""
    host = LEAST[minimise](active.rows, active.absent, takes)
    load = [Fetch(view.layer, e, keep=False) for e in active.absent if e not in host]
    return split(active, load, host)


@dataclass(kw_only=True)
class LoadOrCompute(Assignment):
    """Divides a layer by the latency model, as measured.

    Attributes:
        minimise: the larger side, or the sum of all costs.
        history: how many past durations of each kind are averaged.
    """

    minimise: Objective = "max"
    history: int = 10

    reads_scores = False
    uses_host = True

    def __post_init__(self) -> None:
        check_history(self.history)

    def assign(self, view: LayerView, active: Active) -> Plan:
        """The same in both phases."""
        costs, last = view.costs, self.history
        takes = Latency(
            token=host_ns_per_token(costs, last),
            device=mean_of_last(costs.device_ns, last),
            load=mean_of_last(costs.load_ns, last),
        )
        return divided(view, active, self.minimise, takes)


@dataclass(kw_only=True)
class Fiddler(System):
    """The complete system."""

    paper = "ICLR 2025, arXiv 2402.07033"

    place: Placement = field(default_factory=PlacePopular)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadOrCompute)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=OnePlaceholder)
