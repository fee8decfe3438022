"""Where experts start, by hand: three layers, the first dense; four experts a layer."""

import pytest

from moebench.systems.policies.place import PlaceById, PlacePopular
from tests.systems.views import shape

MODEL = shape(4, 2, 3, dense_layers=(0,), dense_width=8)

#: The dense layer's row is ignored.  Layer 1: 9 5 5 1; layer 2: 7 5 0 6.
POPULARITY = [[99, 99, 99, 99], [9, 5, 5, 1], [7, 5, 0, 6]]


def placed(policy, slots, scope="global"):
    """The pairs in order."""
    return list(policy.place(MODEL, slots, scope))


def test_by_id_layer_after_layer():
    assert placed(PlaceById(), 4) == [(1, 0), (2, 0), (1, 1), (2, 1)]
    assert placed(PlaceById(), 5) == [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)]  # 3 and 2


@pytest.mark.parametrize("policy", [PlaceById(), PlacePopular(popularity=POPULARITY)])
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_counts(policy, scope):
    everything = {(layer, e) for layer in (1, 2) for e in range(4)}
    for slots, expected in ((-2, 0), (0, 0), (1, 1), (7, 7), (8, 8), (100, 8)):
        pairs = placed(policy, slots, scope)
        assert len(pairs) == len(set(pairs)) == expected
        assert set(pairs) <= everything


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


def test_without_a_calibration_all_are_equally_popular():
    assert placed(PlacePopular(), 5) == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]
    assert placed(PlacePopular(equal_layers=True), 3) == [(1, 0), (2, 0), (1, 1)]
