"""What the engine counts beside time."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moebench.substrate.engine.decisions import Active, Fetch, LayerView, Plan, Routed
from moebench.substrate.terms import Ids, Phase


@dataclass(slots=True)
class Counts:
    """What became of active experts and prefetches, summed over layers and passes of one phase."""

    active: int = 0
    hits: int = 0
    in_flight: int = 0
    loads: int = 0
    host: int = 0
    #: Of those on the host, how many were on the device.
    host_resident: int = 0
    #: Outputs that were added one MoE layer later.
    deferred: int = 0
    #: Experts that a layer fetched though nobody had chosen them.
    unchosen: int = 0
    #: Places (row, rank) whose expert the system replaced, or left empty.
    replaced: int = 0
    prefetched: int = 0
    prefetched_top_score: int = 0
    prefetched_active: int = 0
    prefetched_used: int = 0
    #: Places (row, rank) that were routed one layer ahead, those of them whose expert was really
    #: chosen, and those whose expert the system replaced.
    routed_ahead: int = 0
    routed_ahead_right: int = 0
    degraded: int = 0
    #: Decoded rows of layers for which experts were asked ahead; those of them whose own experts
    #: were all among the asked ones, and those of which at least one was.
    asked: int = 0
    asked_all: int = 0
    asked_any: int = 0


class Tally:
    """Counts by phase, and what was asked ahead for layers that have not come yet."""

    def __init__(self) -> None:
        self.by_phase: dict[Phase, Counts] = {"prefill": Counts(), "decode": Counts()}
        self._asked: dict[int, frozenset[int]] = {}

    def ask(self, wanted: Sequence[Fetch], layer: int) -> None:
        """Experts were asked for ahead; ``layer`` is the next one, for which that may be none."""
        if not wanted:
            self._asked[layer] = frozenset()
            return
        by_layer: dict[int, list[int]] = {layer: []}
        for fetch in wanted:
            if fetch.expert is not None:
                by_layer.setdefault(fetch.layer, []).append(fetch.expert)
        for asked_for, experts in by_layer.items():
            self._asked[asked_for] = frozenset(experts)

    def experts(self, phase: Phase, rows: Mapping[int, int], active: Active, plan: Plan) -> None:
        """Where a layer's experts were computed, and what brought them to the device.

        Those of ``rows`` that are not in ``active`` had begun on the host one layer ahead.
        """
        c, host = self.by_phase[phase], {*plan.host, *plan.deferred}
        resident = len(host.intersection(active.resident)) if host else 0
        in_flight = len(host.intersection(active.in_flight)) if host else 0
        absent = len(host) - resident - in_flight
        c.active += len(rows)
        c.hits += len(active.resident) - resident
        c.in_flight += len(active.in_flight) - in_flight
        c.loads += len(active.absent) - absent
        c.host += len(host) + len(rows) - len(active.rows)
        c.host_resident += resident
        c.deferred += len(plan.deferred)
        for fetch in plan.load:
            c.unchosen += fetch.expert not in rows

    def prefetches(
        self, view: LayerView, routed: Routed, active: Collection[int], began: set[int]
    ) -> None:
        """What the prefetches for a layer were good for, now that its experts are known."""
        c = self.by_phase[view.phase]
        if began:
            own = set(view.topk_ids_TK.ravel().tolist())
            top = own if routed.top_score is None else routed.top_score
            c.prefetched += len(began)
            c.prefetched_top_score += len(began & top)
            c.prefetched_active += len(began & own)
            c.prefetched_used += len(began.intersection(active))
        asked = self._asked.pop(view.layer, None)
        if asked and view.phase == "decode":
            for chosen in view.topk_ids_TK.tolist():
                right = len(asked.intersection(chosen))
                c.asked += 1
                c.asked_all += right == len(chosen)
                c.asked_any += right > 0

    def routing(self, view: LayerView, routed: Routed) -> bool:
        """Places whose expert is not the model's own; whether there was any."""
        if routed.ids_TK is view.topk_ids_TK:
            return False
        replaced = int(np.count_nonzero(routed.ids_TK != view.topk_ids_TK))
        self.by_phase[view.phase].replaced += replaced
        return True

    def routed_ahead(self, expected_TK: Ids, routed: Routed, own_TK: Ids) -> None:
        """How well a layer was routed one layer ahead."""
        c = self.by_phase["decode"]
        c.routed_ahead += expected_TK.size
        pairs = zip(expected_TK.tolist(), own_TK.tolist(), strict=True)
        c.routed_ahead_right += sum(len({*guess} & {*own}) for guess, own in pairs)
        c.degraded += int(np.count_nonzero(routed.ids_TK != expected_TK))
