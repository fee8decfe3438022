"""Counts of what happened to experts and prefetches: hits, loads, host computations and more."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from moebench.substrate.engine.decisions import (
    EXPERT_OF,
    LAYER_OF,
    Active,
    Fetch,
    LayerView,
    Plan,
    Routed,
)
from moebench.substrate.terms import Ids, Phase


@dataclass(slots=True)
class Counts:
    """Counts of active experts and prefetches, summed over layers and passes of one phase."""

    active: int = 0
    hits: int = 0
    #: Hits on experts that the eviction had given up, in slots that nothing had reused.
    lingering: int = 0
    in_flight: int = 0
    #: Active experts complete on the device, or being copied, when their layer's gate was known.
    begun: int = 0
    loads: int = 0
    host: int = 0
    #: Experts computed on the host although they were complete on the device.
    host_resident: int = 0
    #: Outputs that were added one MoE layer later.
    deferred: int = 0
    #: Experts that a layer fetched although no token had chosen them.
    unchosen: int = 0
    #: Places (row, rank) whose expert the system replaced, or left empty.
    replaced: int = 0
    prefetched: int = 0
    prefetched_top_score: int = 0
    prefetched_active: int = 0
    prefetched_used: int = 0
    #: Copies in the background that were queued, and requests for one that were refused.
    uploaded: int = 0
    uploads_refused: int = 0
    #: Places (row, rank) that were routed one layer ahead; how many of their experts the gate chose
    #: in the end, and how many the system replaced.
    routed_ahead: int = 0
    routed_ahead_right: int = 0
    degraded: int = 0
    #: Decoded rows of layers for which experts were prefetched; rows whose experts were all among
    #: the requested ones, and rows of which at least one expert was.
    asked: int = 0
    asked_all: int = 0
    asked_any: int = 0


class Tally:
    """The counts of each phase, and the experts that were requested ahead for each later layer."""

    def __init__(self) -> None:
        self.by_phase: dict[Phase, Counts] = {"prefill": Counts(), "decode": Counts()}
        self._asked: dict[int, set[int | None]] = {}

    def ask(self, wanted: Sequence[Fetch], layer: int, discipline: str) -> None:
        """Note which experts are requested ahead; ``layer``, the next one, may have no request.

        Speculative requests replace earlier ones for the same layer, committed ones add up.
        """
        adds_up = discipline == "committed"
        layers = {layer, *map(LAYER_OF, wanted)}
        for later in layers:
            of_layer = wanted if len(layers) == 1 else [f for f in wanted if f.layer == later]
            asked = set(map(EXPERT_OF, of_layer))
            if adds_up and later in self._asked:
                asked |= self._asked[later]
            self._asked[later] = asked

    def experts(self, phase: Phase, rows: Mapping[int, int], active: Active, plan: Plan) -> None:
        """Count where a layer's experts were computed, and which were loaded for it.

        Experts of ``rows`` that are not in ``active`` had begun on the host one layer ahead.
        """
        c = self.by_phase[phase]
        hits, in_flight = len(active.resident), len(active.in_flight)
        lacking = len(active.absent)
        c.active += len(rows)
        c.hits += hits
        c.in_flight += in_flight
        c.begun += hits + in_flight
        c.host += len(rows) - (hits + in_flight + lacking)
        for e in (*plan.host, *plan.deferred):
            c.host += 1
            if e in active.absent:
                lacking -= 1
            elif e in active.in_flight:
                c.in_flight -= 1
            else:
                c.hits -= 1
                c.host_resident += 1
        c.loads += lacking
        c.deferred += len(plan.deferred)
        if len(plan.load) > lacking:
            c.unchosen += sum(fetch.expert not in rows for fetch in plan.load)

    def prefetches(
        self, view: LayerView, routed: Routed, active: Collection[int], began: Sequence[int]
    ) -> None:
        """Count which prefetches for a layer were used, now that its experts are known.

        Of several transfers of one expert, at most one counts as used.
        """
        c = self.by_phase[view.phase]
        asked = self._asked.pop(view.layer, None)
        if asked:
            asked.discard(None)  # a request for non-expert weights
        if not began and not asked:
            return
        topk, top = view.topk, routed.top_score
        if began:
            c.prefetched += len(began)
            for expert in set(began):
                own = expert in chain.from_iterable(topk)
                c.prefetched_active += own
                c.prefetched_top_score += own if top is None else expert in top
                # An expert that was evicted before its layer began was not used.
                c.prefetched_used += expert in active and expert not in view.absent
        if asked and view.phase == "decode":
            for chosen in topk:
                right = len(asked.intersection(chosen))
                c.asked += 1
                if right:
                    c.asked_any += 1
                    c.asked_all += right == len(chosen)

    def routing(self, view: LayerView, routed: Routed) -> bool:
        """Count chosen experts that are not the model's own; return whether there was any."""
        if routed.ids_TK is view.topk_ids_TK:
            return False
        differs = routed.ids_TK != view.topk_ids_TK
        self.by_phase[view.phase].replaced += differs.tobytes().count(True)
        return True

    def routed_ahead(self, expected_TK: Ids, routed: Routed, own_TK: Ids) -> None:
        """Count how many experts of a layer that was routed ahead were predicted correctly."""
        c = self.by_phase["decode"]
        c.routed_ahead += expected_TK.size
        pairs = zip(expected_TK.tolist(), own_TK.tolist(), strict=True)
        c.routed_ahead_right += sum(len({*guess} & {*own}) for guess, own in pairs)
        c.degraded += int(np.count_nonzero(routed.ids_TK != expected_TK))
