"""PowerInfer's placement: golden cases by hand, brute force on small ones, refusals."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.run.learn import learners
from moebench.substrate.errors import UsageError
from moebench.substrate.terms import RoutedSequence
from moebench.systems.options import build
from moebench.systems.policies.place import PlacePopular
from moebench.systems.policies.place_threshold import PlaceAboveThreshold, most_activated
from tests.harness.commands import refused
from tests.systems.views import shape

MODEL = shape(4, 2, 3, dense_layers=(0,), dense_width=8)

#: The dense layer's row is ignored.
POPULARITY = [[99, 99, 99, 99], [5, 4, 1, 0], [6, 1, 1, 1]]


def placed(slots, scope="global", counts=POPULARITY, **options):
    """Return the placed (layer, expert) pairs in order."""
    policy = PlaceAboveThreshold(popularity=counts, **options)
    return list(policy.place(MODEL, slots, scope))


@pytest.mark.parametrize(
    ("capacity", "threshold", "expected"),
    [
        (3, 2, [3, 0]),  # 5 + 4 + 1 = 10
        (3, 1, [2, 1]),  # 6 + 5 + 4 = 15
        (4, 2, [2, 2]),  # 5 + 4 + 6 + 1 = 16
        (1, 2, [0, 0]),  # no layer reaches the threshold
        (2, 2, [2, 0]),  # 9 against 7
        (9, 2, [4, 4]),
        (0, 1, [0, 0]),
    ],
)
def test_golden_cases(capacity, threshold, expected):
    frequencies = POPULARITY[1:]
    assert most_activated(frequencies, capacity, threshold, [4, 4]) == expected


def test_experts_are_placed_by_layer_most_used_first():
    assert placed(3) == [(1, 0), (1, 1), (1, 2)]
    assert placed(3, threshold=1) == [(1, 0), (1, 1), (2, 0)]
    assert placed(4) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert placed(-1) == placed(1) == []


def test_the_default_threshold_is_the_models_top_k():
    for slots in range(9):
        assert placed(slots) == placed(slots, threshold=2)


def test_equal_sums_prefer_more_experts_then_the_first_layers():
    equal = [[0, 0, 0, 0], [3, 3, 0, 0], [3, 3, 0, 0]]
    assert placed(2, counts=equal) == [(1, 0), (1, 1)]
    assert placed(3, counts=equal) == [(1, 0), (1, 1), (1, 2)]
    assert len(placed(8, counts=equal)) == 8


def test_layers_with_own_slots_have_the_threshold_or_none():
    # Each layer has half of the slots; the first one has one more of an odd number.
    assert placed(4, "layer") == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert placed(3, "layer") == [(1, 0), (1, 1)]
    assert placed(3, "layer", threshold=1) == [(1, 0), (1, 1), (2, 0)]
    assert placed(7, "layer", threshold=4) == [(1, 0), (1, 1), (1, 2), (1, 3)]


small = st.lists(
    st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=4
)  # fmt: skip


@given(small, st.integers(0, 14), st.integers(1, 3), st.data())
def test_the_program_equals_brute_force(rows, capacity, threshold, data):
    most = [data.draw(st.integers(0, 3)) for _ in rows]
    gains = [np.cumsum([0, *sorted(row, reverse=True)]) for row in rows]
    allowed = [[n for n in range(room + 1) if n == 0 or n >= threshold] for room in most]
    ways = [way for way in product(*allowed) if sum(way) <= capacity]
    value = {way: sum(g[n] for g, n in zip(gains, way, strict=True)) for way in ways}
    best = max(ways, key=lambda way: (value[way], sum(way)))
    found = tuple(most_activated(rows, capacity, threshold, most))
    assert found in ways  # within the capacity, and none or at least the threshold
    assert (value[found], sum(found)) == (value[best], sum(best))


@given(small.filter(lambda rows: len(rows) == 2), st.integers(-1, 9))
def test_with_a_threshold_of_one_it_places_what_popularity_does(rows, slots):
    model = shape(3, 2, 2)
    uses = dict(np.ndenumerate(np.array(rows)))
    options = PlaceAboveThreshold(popularity=rows, threshold=1), PlacePopular(popularity=rows)
    one, other = (list(policy.place(model, slots, "global")) for policy in options)
    assert len(one) == len({*one}) == len(other) == max(0, min(slots, 6))
    assert sum(uses[pair] for pair in one) == sum(uses[pair] for pair in other)


def test_large_models_are_solved_exactly():
    # 94 layers of 256 experts.  Every layer's best eight sum to its number, so the last ones win.
    rows = [[layer + 1] * 8 + [0] * 248 for layer in range(94)]
    counts = most_activated(rows, 80, 8, [256] * 94)
    assert counts == [0] * 84 + [8] * 10


def test_popularity_is_learnt_from_the_texts(tmp_path):
    ids_TLK = np.array([[[3, 0], [2, 1]], [[3, 0], [2, 0]], [[1, 3], [1, 2]]])
    policy = PlaceAboveThreshold()
    assert policy.calibrates
    policy.calibrate([RoutedSequence(ids_TLK, 1)], MODEL, tmp_path, lambda done, total: None)
    # Layer 1: 3 three times, 0 twice, 1 once; layer 2: 2 three times, 1 twice, 0 once.
    assert list(policy.place(MODEL, 3, "global")) == [(1, 3), (1, 0), (1, 1)]
    assert list(policy.place(MODEL, 4, "global")) == [(1, 3), (1, 0), (2, 2), (2, 1)]


@pytest.mark.parametrize("system", ["fiddler", "ktransformers", "daop", "hybrimoe", "llamacpp"])
def test_systems_that_compute_misses_on_the_host_take_it(system):
    assert list(learners(build(system, {"place": "threshold-ilp"}))) == ["place"]
    with_host = {"place": "threshold-ilp", "assign": "host"}
    assert build("moe-ondemand", with_host).assign.uses_host


@pytest.mark.parametrize("system", ["moe-ondemand", "duoserve", "flashmoe"])
def test_a_system_that_loads_every_miss_is_refused_in_one_line(system):
    said = refused("run", "--system", system, "--setting", "S3", "--set", "place=threshold-ilp")
    assert "place is PlaceAboveThreshold" in said
    assert "--set assign=host" in said


def test_without_popularity_nothing_is_placed():
    with pytest.raises(UsageError, match=r"knows none: calibrate it, or .*place\.popularity") as e:
        list(PlaceAboveThreshold().place(MODEL, 5, "global"))
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("threshold", [0, -2])
def test_a_threshold_below_one_is_refused(threshold):
    with pytest.raises(UsageError, match=rf"place\.threshold is {threshold}; allowed: 1 or more"):
        PlaceAboveThreshold(threshold=threshold)


def test_a_threshold_above_a_layers_experts_is_refused():
    with pytest.raises(UsageError, match=r"place\.threshold is 5, .*4 experts; allowed: 1 to 4"):
        placed(8, threshold=5)
