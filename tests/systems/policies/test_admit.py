"""Admission after the n-th miss, against a restatement that keeps every miss in a list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.errors import UsageError
from moebench.systems.policies.admit import AfterMisses
from tests.systems.views import cache, shape, view

EXPERTS, LAYERS = 4, 2
MODEL = shape(EXPERTS, 2, LAYERS)


def layer_view(layer):
    return view([[0.25] * EXPERTS], 2, (), layer=layer, layers=LAYERS)


def started(slots=8, **options):
    policy = AfterMisses(**options)
    held = cache(MODEL, slots)
    policy.start(MODEL, held)
    return policy, held


def keys(fetched):
    return [fetch.layer * EXPERTS + fetch.expert for fetch in fetched]


def test_the_second_miss_is_uploaded_and_the_count_begins_anew_when_it_has_come():
    policy, _ = started(misses=2)
    assert keys(policy.uploads(layer_view(1), [3])) == []
    assert keys(policy.uploads(layer_view(1), [3, 0])) == [7]
    assert keys(policy.uploads(layer_view(1), [3])) == [7], "refused or under way: asked again"
    policy.uploaded(7)
    assert keys(policy.uploads(layer_view(1), [3])) == []


def test_a_full_pool_asks_for_more_misses():
    policy, held = started(slots=2, misses=1, full=3)
    assert keys(policy.uploads(layer_view(0), [0])) == [0]
    for key in (4, 5):
        held.claim(key, None)
    policy.uploaded(0)
    asked = [keys(policy.uploads(layer_view(0), [0])) for _ in range(3)]
    assert asked == [[], [], [0]]


def test_a_layer_queues_at_most_so_many():
    policy, _ = started(misses=1, a_layer=2)
    assert keys(policy.uploads(layer_view(0), [3, 1, 2])) == [3, 1]


@given(st.lists(st.integers(0, EXPERTS - 1)), st.integers(1, 4))
def test_every_nth_load_of_an_expert_stays(loaded, misses):
    policy, _ = started(misses=misses)
    seen: list[int] = []
    for expert in loaded:
        seen.append(expert)
        assert policy.admits(layer_view(0), expert) == (seen.count(expert) % misses == 0)


@pytest.mark.parametrize("option", ["misses", "full", "a_layer", "queue"])
def test_options_out_of_range_are_refused(option):
    with pytest.raises(UsageError, match=rf"^admit\.{option} is 0; allowed: 1 or more$"):
        AfterMisses(**{option: 0})
    assert getattr(AfterMisses(**{option: 1}), option) == 1
