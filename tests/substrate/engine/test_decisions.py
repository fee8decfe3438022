"""Plain values of decisions: fetches, plans, and a layer's view."""

import numpy as np
import pytest

from moebench.substrate.engine.decisions import (
    EXPERT_OF,
    LAYER_OF,
    NO_EXPERT,
    Active,
    Fetch,
    Plan,
    Routed,
    best_scores,
    fetches,
    split,
)
from tests.systems.views import active, view


def test_fetches_of_one_layer_are_plain_and_made_once() -> None:
    found = fetches(3, [5, 2, 5])
    assert found == [Fetch(3, 5), Fetch(3, 2), Fetch(3, 5)]
    assert found[0] is found[2] is fetches(3, [5])[0]
    assert fetches(4, [5]) == [Fetch(4, 5, instead_of=None, keep=True, form=0)]
    assert (LAYER_OF(found[0]), EXPERT_OF(found[0])) == (3, 5)


def test_defaults_of_plans_and_routing() -> None:
    assert Plan([1]) == ([1], (), (), (), (), {})
    assert Routed(np.array([1]), np.array([1]))[2:] == (None, None)
    assert NO_EXPERT == -1


@pytest.mark.parametrize(
    ("load", "host", "device"),
    [
        ((), (), [0, 1, 2]),
        ([Fetch(0, 5), Fetch(0, 4)], (), [0, 1, 2, 5, 4]),
        ([Fetch(0, 4)], [5], [0, 1, 2, 4]),
        ((), [1, 5, 4], [0, 2]),
        ([Fetch(0, 4)], [0, 2, 1], [4]),
    ],
)
def test_the_usual_plan(load: list[Fetch], host: list[int], device: list[int]) -> None:
    # 0 and 1 are there, 2 is coming, 4 and 5 are absent.
    seen = view([[0.1] * 6], 5, [0, 1, 3], in_flight=[2], own=[[5, 4, 2, 1, 0]])
    plan = split(active(seen), load, host)
    assert plan == Plan(device, host, (), load)


def test_experts_are_divided_and_have_their_best_scores() -> None:
    scores = [[0.1, 0.4, 0.2, 0.3], [0.5, 0.1, 0.2, 0.2]]
    seen = view(scores, 2, [1], in_flight=[0])
    found = Active({0: 1, 1: 1, 3: 2}, seen)
    assert (found.resident, found.in_flight, found.absent) == ([1], [0], [3])
    assert found.best == [0.5, 0.4, 0.2, 0.3] == best_scores(seen.scores_TE).tolist()
    assert found.best is found.best
    one = view(scores[:1], 2)
    assert Active({1: 1}, one).best == scores[0]


def test_plain_lists_of_a_view_are_made_once() -> None:
    seen = view([[0.1, 0.4, 0.2], [0.5, 0.1, 0.2]], 2, [2], in_flight=[1])
    assert seen.scores == [[0.1, 0.4, 0.2], [0.5, 0.1, 0.2]]
    assert seen.topk == [[1, 2], [0, 2]]
    assert seen.scores is seen.scores
    assert seen.topk is seen.topk
    assert seen.resident_E.tolist() == [False, False, True]
    assert seen.in_flight_E.tolist() == [False, True, False]
    assert (seen.absent, seen.whole_layers, seen.hidden_TH, seen.norm_T) == ((), False, None, None)
