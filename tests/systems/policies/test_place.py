"""Initial placement by hand, for three layers (the first dense) of four experts."""

import numpy as np
import pytest

from moebench.harness.run.learn import learners
from moebench.substrate.errors import UsageError
from moebench.substrate.terms import RoutedSequence
from moebench.systems.options import build
from moebench.systems.policies.place import (
    PlaceAtRandom,
    PlaceByFirstLayers,
    PlaceById,
    PlaceNothing,
    PlacePopular,
)
from tests.systems.views import shape

MODEL = shape(4, 2, 3, dense_layers=(0,), dense_width=8)

#: The dense layer's row is ignored.  Layer 1: 9 5 5 1; layer 2: 7 5 0 6.
POPULARITY = [[99, 99, 99, 99], [9, 5, 5, 1], [7, 5, 0, 6]]


def placed(policy, slots, scope="global"):
    """Return the placed (layer, expert) pairs in order."""
    return list(policy.place(MODEL, slots, scope))


def test_by_id_layer_after_layer():
    assert placed(PlaceById(), 4) == [(1, 0), (2, 0), (1, 1), (2, 1)]
    assert placed(PlaceById(), 5) == [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)]  # 3 and 2


@pytest.mark.parametrize(
    "policy",
    [PlaceById(), PlacePopular(popularity=POPULARITY), PlaceByFirstLayers(), PlaceAtRandom()],
)
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_placement_fills_exactly_the_available_slots(policy, scope):
    everything = {(layer, e) for layer in (1, 2) for e in range(4)}
    for slots, expected in ((-2, 0), (0, 0), (1, 1), (7, 7), (8, 8), (100, 8)):
        pairs = placed(policy, slots, scope)
        assert len(pairs) == len(set(pairs)) == expected
        assert set(pairs) <= everything


def test_the_first_layers_are_filled_first():
    assert placed(PlaceByFirstLayers(), 5) == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]
    # Where each layer has slots of its own, it has three and two of them.
    assert placed(PlaceByFirstLayers(), 5, "layer") == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]


def test_a_random_order_is_its_seeds():
    drawn = placed(PlaceAtRandom(), 5)
    assert drawn == placed(PlaceAtRandom(seed=42), 5) == placed(PlaceAtRandom(), 8)[:5]
    assert any(placed(PlaceAtRandom(seed=seed), 5) != drawn for seed in range(3))
    by_layer = [layer for layer, _ in placed(PlaceAtRandom(), 5, "layer")]
    assert sorted(by_layer) == [1, 1, 1, 2, 2]


def test_most_popular_over_all_layers():
    # 9 (1,0)  7 (2,0)  6 (2,3)  5 (1,1)  5 (1,2)  5 (2,1)  1 (1,3)  0 (2,2); fives by layer and id.
    order = [(1, 0), (2, 0), (2, 3), (1, 1), (1, 2), (2, 1), (1, 3), (2, 2)]
    for slots in range(9):
        assert placed(PlacePopular(popularity=POPULARITY), slots) == order[:slots]


def test_most_popular_of_each_layer():
    # Layer 1: 0 1 2 3 (tie by id).  Layer 2: 0 3 1 2.  In turns.
    order = [(1, 0), (2, 0), (1, 1), (2, 3), (1, 2), (2, 1), (1, 3), (2, 2)]
    equal = PlacePopular(popularity=POPULARITY, equal_layers=True)
    for slots in range(9):
        assert placed(equal, slots) == order[:slots]
        assert placed(PlacePopular(popularity=POPULARITY), slots, "layer") == order[:slots]


def test_popularity_is_learnt_from_the_texts(tmp_path):
    # Two MoE layers, top-2, prompt and decoded tokens alike.  Layer 1: expert 3 three times, 0
    # twice, 1 once; layer 2: 2 three times, 1 twice, 0 once.
    ids_TLK = np.array([[[3, 0], [2, 1]], [[3, 0], [2, 0]], [[1, 3], [1, 2]]])
    texts = [RoutedSequence(ids_TLK[:2], 1), RoutedSequence(ids_TLK[2:], 1)]
    policy = PlacePopular()
    assert policy.calibrates
    policy.calibrate(texts, MODEL, tmp_path, lambda done, total: None)
    assert policy.learnt == {"tokens": "3"}
    assert policy.popularity == ()  # the option stays as it was given
    # 3: (1,3) (2,2)   2: (1,0) (2,1)   1: (1,1) (2,0)   0: the rest, by layer and id.
    order = [(1, 3), (2, 2), (1, 0), (2, 1), (1, 1), (2, 0), (1, 2), (2, 3)]
    assert placed(policy, 8) == order
    # Calibrating again replaces the earlier popularity.
    policy.calibrate(texts[1:], MODEL, tmp_path, lambda done, total: None)
    assert policy.learnt == {"tokens": "1"}
    assert placed(policy, 4) == [(1, 1), (1, 3), (2, 1), (2, 2)]


def test_given_counts_need_no_calibration():
    policy = PlacePopular(popularity=POPULARITY)
    assert not policy.calibrates
    assert policy.learnt == {}


@pytest.mark.parametrize("name", ["popular", "activation"])
def test_any_system_that_borrows_it_learns_before_it_runs(name):
    assert list(learners(build("moe-ondemand", {"place": name}))) == ["place"]
    given = {"place": name, "place.popularity": "[[1, 2], [3, 4]]"}
    assert learners(build("moe-ondemand", given)) == {}


@pytest.mark.parametrize("options", [{}, {"equal_layers": True}])
def test_without_popularity_nothing_is_placed(options):
    with pytest.raises(UsageError, match=r"knows none: calibrate it, or .*place\.popularity") as e:
        placed(PlacePopular(**options), 5)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    "counts", [POPULARITY[1:], [*POPULARITY, [1, 1, 1, 1]], [row[:3] for row in POPULARITY]]
)
def test_counts_of_another_shape(counts):
    with pytest.raises(UsageError, match="needs 3 rows of 4 counts"):
        placed(PlacePopular(popularity=counts), 5)


def test_nothing_is_placed():
    assert placed(PlaceNothing(), 8) == []
