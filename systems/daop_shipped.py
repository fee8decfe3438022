"""DAOP as its authors' code runs it (ecolab-nus/DAOP 08fef33), where it differs from the paper.

    code                              moebench
    ────                              ────────
    experts on the device at start    PlaceByActivation, as published; swaps persist across requests
    prefill: which experts to swap    listed_swaps, AllocateAsShipped
    a swap: D2H, then H2D             Fetch(instead_of=...); OnlySwaps writes back; blocking_copies
    prefill: the least sum over 2^E   least_sum; a loaded expert is Fetch(keep=False)
    one placeholder for these         SwapsAndPlaceholder.reserve: one slot left empty by placement
    decode from layer 5 on            PredictedRouting, as published

The code differs from Algorithm 1 in three points.  It orders experts by products with zeros (see
`listed_swaps`), so that host experts without a token void pairs.  An expert with many tokens that
stays on the host is not computed there but loaded for one use.  Copies block.

Deviations, where the code is not modelled:

- The search over 2^E splits costs the authors' code .6 ms a layer for 8 experts and .30 s for 16;
  in moebench it is free.
- The code loads a swapped-out expert with more than 8 tokens again, through the placeholder; here
  it is computed before its swap begins, which saves a few of a prompt's hundreds of loads.
- The code swaps in from page-locked memory an expert that was swapped out before, others from
  pageable memory; in moebench every copy has the profile's rate.
- The code's placeholder is memory in addition to the expert slots; in moebench it is one of them.
- In layers 0 to 4 of decode, the code's device experts wait for the host experts; in moebench they
  run concurrently.
- The code's host experts begin with the first copy to the placeholder, moebench's after it.
- Host experts without a token cost their calls in the code, and nothing in moebench.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from moebench.substrate.engine.decisions import Active, Fetch, LayerView, Plan
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction
from moebench.systems.daop import DAOP, THRESHOLD, AllocateBySequence
from moebench.systems.policies.evict import OnePlaceholder

#: Most experts in each of the two lists of `listed_swaps`.
LISTED = 8
#: The code's constants for a token on the host and for a load: without a unit, for every model.
HOST_COST, LOAD_COST = 3.5, 30.0


def listed_swaps(
    tokens: Sequence[int], rows: int, on_device: Sequence[bool], threshold: float, listed: int
) -> dict[int, int]:
    """Return the experts to load, each with the one that it replaces (modeling_daop.py, 393-400).

    With n_e of the T ``rows``: *hot* lists experts by n_e on the host and 0 on the device,
    descending; *cold* by n_e on the device and n_e · T on the host, ascending; ties by id.  Their
    first entries are paired by position.  A pair is exchanged if its hot expert is on the host, its
    cold one on the device, and n_hot > threshold · n_cold.
    """
    experts = range(len(tokens))
    hot = sorted(experts, key=lambda e: -tokens[e] * (not on_device[e]))
    cold = sorted(experts, key=lambda e: tokens[e] * (1 if on_device[e] else rows))
    return {
        h: c
        for h, c in zip(hot[:listed], cold[:listed], strict=True)
        if not on_device[h] and on_device[c] and tokens[h] > threshold * tokens[c]
    }


def least_sum(
    tokens: Sequence[int], on_device: Iterable[int], host_cost: float, load_cost: float
) -> set[int]:
    """Return the experts that the host computes in the split with the least total cost (414-500).

    On the host an expert costs ``host_cost`` a token, on the device ``load_cost``, or nothing if it
    is resident.  The code tries all 2^E splits.  Their cost is a sum of terms that each depend on
    one expert's side only, so it is least if every expert is computed on its own cheaper side.  At
    equal cost the device computes the expert: the code tries splits in ascending order, a 1 in
    place of an expert is the host, and only a lower cost replaces the best split so far.
    """
    there = set(on_device)
    return {e for e, n in enumerate(tokens) if host_cost * n < (0.0 if e in there else load_cost)}


@dataclass(kw_only=True)
class AllocateAsShipped(AllocateBySequence):
    """Swaps in prefill, then divides the layer by the least sum of constant costs.

    Attributes:
        threshold: a host expert needs more than this many times its device expert's tokens.
        listed: the most experts in each of the two lists of `listed_swaps`.
        host_cost, load_cost: cost of a token on the host, and of a load.
    """

    threshold: float = option(THRESHOLD, low=1, searched=(1, 4))
    listed: int = option(LISTED, low=1, searched=(1, 32), scale="log")
    host_cost: float = option(HOST_COST, low=0, above=True)
    load_cost: float = option(LOAD_COST, low=0, above=True)

    loads = "passing"

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Plan the layer: swaps and the cheapest split in prefill; no loads in decode."""
        if view.phase == "decode":
            return super().assign(view, active)
        tokens = np.bincount(view.topk_ids_TK.ravel(), minlength=view.shape.num_experts).tolist()
        on_device = (view.resident_E | view.in_flight_E).tolist()
        pairs = listed_swaps(tokens, view.forward.rows, on_device, self.threshold, self.listed)
        before = {e for e, there in enumerate(on_device) if there}
        after = before - set(pairs.values()) | pairs.keys()
        on_host = least_sum(tokens, after, self.host_cost, self.load_cost)
        host = [e for e in active.rows if e in on_host]
        here = [e for e in active.rows if e not in on_host and e in before]
        passing = [e for e in active.rows if e not in on_host and e not in before | after]
        swaps = [Fetch(view.layer, h, instead_of=c) for h, c in pairs.items()]
        load = [*swaps, *(Fetch(view.layer, e, keep=False) for e in passing)]
        return Plan([*here, *pairs, *passing], host, (), load)


@dataclass(kw_only=True)
class SwapsAndPlaceholder(OnePlaceholder):
    """Evicts only experts that a swap names and copies them back; keeps one slot empty."""

    writes_back = True


@dataclass(kw_only=True)
class ShippedDAOP(DAOP):
    """DAOP with its authors' swaps, constant costs, placeholder slot and blocking copies."""

    assign: Assignment = field(default_factory=AllocateAsShipped)
    evict: Eviction = field(default_factory=SwapsAndPlaceholder)
    blocking_copies: bool = True
