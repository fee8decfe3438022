"""Fiddler: compute a missing expert on the host unless loading it is faster.

"Fiddler: CPU-GPU Orchestration for Fast Inference of Mixture-of-Experts Models" (K. Kamahori et
al., ICLR 2025, arXiv 2402.07033).  The activations of a few tokens are small, an expert's weights
are large.  So an expert that is not on the device is computed where its weights are, unless so many
tokens use it that loading it is faster.

    paper                                        moebench
    ─────                                        ────────
    popular experts stay on the GPU              PlacePopular, over all layers
    CPU time proportional to tokens;             Latency
      transfer time and GPU time constant
    the fastest division of a layer's experts    LoadOrCompute; ``assign.minimise``
      between CPU and GPU
    copied weights are used once and dropped     Fetch(keep=False)
    one buffer for copied weights                the slot that OnePlaceholder keeps empty

Prefill and decode use the same division.  An expert of n tokens costs n · token on the host; on the
device it costs ``device``, and ``load`` more if it is not resident.

    max   minimise the larger of the two sides: host and device compute concurrently
    sum   minimise the sum of all costs: each expert is computed on its cheaper side

The paper, and a comment in its code, state ``max``; the code minimises the sum (`--variant
shipped`, `systems.fiddler_shipped`).  Of equally good divisions, moebench chooses the one with most
experts on the device.

Deviations and readings:

- The authors' code was read; the paper is known from other papers only.
- Not all 2^E divisions are tried: see `least_sum` and `least_max`.
- Times are means of the last measurements (`assign.history`); the paper profiles them once.  On a
  roofline a host expert's time is not proportional to its tokens: many tokens cost less each.
- Popularity is counted on the train half of the workload (`--calibrate-from`); the authors have a
  list for Mixtral-8x7B, the only model that their code runs.
- The placeholder is one of the expert slots.
- The profile's host speed replaces that of the paper's AVX-512 kernel.
- The paper's beams, up to 16, are sequences of a batch.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import Literal, NamedTuple

from moebench.substrate.engine.decisions import Active, Fetch, LayerView, Plan, split
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.machines.timeline import COSTS_KEPT
from moebench.systems.policies.evict import OnePlaceholder
from moebench.systems.policies.latency import host_ns_per_token, mean_of_last
from moebench.systems.policies.place import PlacePopular
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting


class Latency(NamedTuple):
    """Times of an expert in one unit: a token on the host, the device computation, and a load."""

    token: float
    device: float
    load: float


def least_sum(tokens: Mapping[int, int], absent: Collection[int], takes: Latency) -> list[int]:
    """Return the experts that the host computes in the division with the least sum of costs.

    Each term of the sum depends on one expert's side only, so each is minimised by itself.
    ``tokens`` has all active experts, ``absent`` those of them that are not on the device.
    """
    loads = {e: takes.load if e in absent else 0 for e in tokens}
    return [e for e, n in tokens.items() if n * takes.token < takes.device + loads[e]]


def least_max(tokens: Mapping[int, int], absent: Collection[int], takes: Latency) -> list[int]:
    """Return the experts that the host computes in the division whose larger side is least.

    The device's side depends on how many experts it computes and how many of them it loads.  For
    given numbers the host's side is least if the host computes the resident and the absent experts
    with the fewest tokens: so both kinds are sorted by tokens, and all their cuts are tried.
    """
    ranked = sorted(tokens, key=lambda e: (tokens[e], e))
    here, away = [e for e in ranked if e not in absent], [e for e in ranked if e in absent]
    tokens_here = [0, *accumulate(tokens[e] for e in here)]  # tokens of the first n
    tokens_away = [0, *accumulate(tokens[e] for e in away)]

    least, cut = inf, (0, 0)
    for i, more in enumerate(tokens_here):
        for j, others in enumerate(tokens_away):
            device = (len(ranked) - i - j) * takes.device + (len(away) - j) * takes.load
            larger_side = max((more + others) * takes.token, device)
            if larger_side < least:
                least, cut = larger_side, (i, j)
    i, j = cut
    return here[:i] + away[:j]


#: The quantity that a division minimises.
Objective = Literal["max", "sum"]
LEAST = {"max": least_max, "sum": least_sum}


def divided(view: LayerView, active: Active, minimise: Objective, takes: Latency) -> Plan:
    """Return the plan that loads, for one use and by id, absent experts not left to the host."""
    host = LEAST[minimise](active.rows, active.absent, takes)
    load = [Fetch(view.layer, e, keep=False) for e in active.absent if e not in host]
    return split(active, load, host)


@dataclass(kw_only=True)
class LoadOrCompute(Assignment):
    """Divides a layer between host and device by measured times.

    Attributes:
        minimise: ``max`` minimises the larger side, ``sum`` the sum of all costs.
        history: how many past durations of each kind are averaged.
    """

    minimise: Objective = option("max", searched=True)
    history: int = option(10, low=1, high=COSTS_KEPT, searched=(1, COSTS_KEPT), scale="log")

    loads = "passing"

    reads_scores = False
    uses_host = True

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Divide the layer by the mean times of the last operations, in both phases."""
        costs, last = view.costs, self.history
        device, load = mean_of_last(costs.device_ns, last), mean_of_last(costs.load_ns, last)
        takes = Latency(token=host_ns_per_token(costs, last), device=device, load=load)
        return divided(view, active, self.minimise, takes)


@dataclass(kw_only=True)
class Fiddler(System):
    """Fiddler with the paper's policies for its decisions."""

    paper = "ICLR 2025, arXiv 2402.07033"

    place: Placement = field(default_factory=PlacePopular)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadOrCompute)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=OnePlaceholder)
