"""What is counted of a layer's experts, its prefetches and its routing, by hand."""

from dataclasses import asdict

import numpy as np
import pytest

from moebench.substrate.engine.counts import Counts, Tally
from moebench.substrate.engine.decisions import Fetch, Plan, Routed
from tests.systems.views import active, view


def counted(tally: Tally, phase: str = "decode") -> dict[str, int]:
    """Return the counts of a phase that are not zero."""
    return {name: n for name, n in asdict(tally.by_phase[phase]).items() if n}


def test_counts_begin_at_zero() -> None:
    assert not any(asdict(Counts()).values())
    assert [counted(Tally(), phase) for phase in ("prefill", "decode")] == [{}, {}]


# Eight experts, of which the row uses 0, 1, 2, 3 and 4: 0 and 1 are there, 2 is coming.
SEEN = view([[0.1] * 8], 5, [0, 1, 6], in_flight=[2], own=[[0, 1, 2, 3, 4]])
ACTIVE = active(SEEN)


@pytest.mark.parametrize(
    ("plan", "found"),
    [
        (Plan([0, 1, 2, 3, 4], load=[Fetch(0, 3), Fetch(0, 4)]),
         {"active": 5, "hits": 2, "in_flight": 1, "begun": 3, "loads": 2}),
        # An absent one, a resident one and one in flight on the host.
        (Plan([0, 4], [3, 1], (), [Fetch(0, 4)]),
         {"active": 5, "hits": 1, "in_flight": 1, "begun": 3, "loads": 1, "host": 2,
          "host_resident": 1}),
        (Plan([0, 1], [2], [3, 4]),
         {"active": 5, "hits": 2, "begun": 3, "host": 3, "deferred": 2}),
        # Two experts are fetched that no row uses, one is copied that the host computes.
        (Plan([0, 1, 2, 3], [4], (), [Fetch(0, e) for e in (3, 5, 7, 4)]),
         {"active": 5, "hits": 2, "in_flight": 1, "begun": 3, "loads": 1, "host": 1,
          "unchosen": 2}),
    ],
)  # fmt: skip
def test_where_experts_are_computed(plan: Plan, found: dict[str, int]) -> None:
    tally = Tally()
    tally.experts("decode", ACTIVE.rows, ACTIVE, plan)
    assert counted(tally) == found
    assert counted(tally, "prefill") == {}
    tally.experts("decode", ACTIVE.rows, ACTIVE, plan)
    assert counted(tally) == {name: 2 * n for name, n in found.items()}


def test_experts_that_began_a_layer_ahead_are_the_hosts() -> None:
    tally = Tally()
    plan = Plan([0, 1, 2, 3, 4], load=[Fetch(0, 3), Fetch(0, 4)])
    tally.experts("prefill", {**ACTIVE.rows, 5: 1, 7: 1}, ACTIVE, plan)
    assert counted(tally, "prefill") == {
        "active": 7, "hits": 2, "in_flight": 1, "begun": 3, "loads": 2, "host": 2,
    }  # fmt: skip


def prefetched(
    wanted: list[list[Fetch]], own: list[list[int]], *, top=None, began=(), absent=(),
    discipline: str = "speculative", phase: str = "decode", layer: int = 1,
) -> dict[str, int]:  # fmt: skip
    """Return what is counted in a layer for which these prefetches were asked and had begun."""
    tally = Tally()
    for one in wanted:
        tally.ask(one, 1, discipline)
    seen = view([[0.1] * 8] * len(own), len(own[0]), own=own, phase=phase, layer=layer)  # type: ignore[arg-type]
    seen.absent = absent
    used = {expert for row in own for expert in row}
    routed = Routed(seen.topk_ids_TK, seen.topk_ids_TK, None if top is None else frozenset(top))
    tally.prefetches(seen, routed, used, began)
    tally.prefetches(seen, routed, used, ())  # what was asked for counts once
    return counted(tally, phase)


ASKED = [Fetch(1, 0), Fetch(1, 1), Fetch(1, 5)]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        # Row 0 uses 0 and 1, both asked for; row 1 uses 1 and 7; row 2 none of them.
        ({"wanted": [ASKED], "own": [[0, 1], [1, 7], [6, 7]]},
         {"asked": 3, "asked_all": 1, "asked_any": 2}),
        ({"wanted": [ASKED], "own": [[0, 1]], "phase": "prefill"}, {}),
        ({"wanted": [ASKED], "own": [[0, 1]], "layer": 2}, {}),
        ({"wanted": [[]], "own": [[0, 1]]}, {}),
        # Requests for non-expert weights are no experts.
        ({"wanted": [[Fetch(1, None)]], "own": [[0, 1]]}, {}),
        ({"wanted": [[Fetch(1, None), Fetch(1, 1)]], "own": [[0, 1]]},
         {"asked": 1, "asked_any": 1}),
        # Later requests replace earlier ones, unless they are committed.
        ({"wanted": [ASKED, [Fetch(1, 7)]], "own": [[0, 1]]}, {"asked": 1}),
        ({"wanted": [[Fetch(1, 0)], [Fetch(1, 1)]], "own": [[0, 1]], "discipline": "committed"},
         {"asked": 1, "asked_all": 1, "asked_any": 1}),
        # Requests for a further layer, and for the next one beside it.
        ({"wanted": [[Fetch(2, 0), Fetch(2, 3)]], "own": [[0, 1]], "layer": 2},
         {"asked": 1, "asked_any": 1}),
        ({"wanted": [[Fetch(2, 0), Fetch(1, 1)]], "own": [[0, 1]]}, {"asked": 1, "asked_any": 1}),
        # Transfers: 1 was brought twice and is used once; 5 is not used; 0 was evicted again.
        ({"wanted": [], "own": [[0, 1], [1, 2]], "began": (1, 5, 1, 0), "absent": (0,)},
         {"prefetched": 4, "prefetched_active": 2, "prefetched_top_score": 2,
          "prefetched_used": 1}),
        ({"wanted": [], "own": [[0, 1], [1, 2]], "began": (1, 5, 0), "top": (5, 1, 2)},
         {"prefetched": 3, "prefetched_active": 2, "prefetched_top_score": 2,
          "prefetched_used": 2}),
        ({"wanted": [], "own": [[0, 1]], "began": (1,), "top": (), "phase": "prefill"},
         {"prefetched": 1, "prefetched_active": 1, "prefetched_used": 1}),
    ],
)  # fmt: skip
def test_prefetches_and_requests(given: dict, found: dict[str, int]) -> None:
    assert prefetched(**given) == found


def test_replaced_places_are_counted_one_by_one() -> None:
    tally, seen = Tally(), view([[0.1] * 4] * 2, 2, own=[[0, 1], [2, 3]])
    own = seen.topk_ids_TK
    assert not tally.routing(seen, Routed(own, own))
    assert counted(tally) == {}
    assert tally.routing(seen, Routed(np.array([[0, 2], [-1, 3]]), own))
    assert tally.routing(seen, Routed(own.copy(), own))
    assert counted(tally) == {"replaced": 2}


def test_a_layer_that_was_routed_ahead() -> None:
    tally = Tally()
    expected, own = np.array([[0, 1], [2, 3]]), np.array([[1, 5], [2, 3]])
    used = np.array([[0, 1], [2, 7]])
    tally.routed_ahead(expected, Routed(used, used), own)
    # Of the gate's choice 1, 2 and 3 were foretold, in any order; one place was replaced.
    assert counted(tally) == {"routed_ahead": 4, "routed_ahead_right": 3, "degraded": 1}
    assert counted(tally, "prefill") == {}
