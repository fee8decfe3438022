"""Eviction by the expected next use: by hand, against Belady on periodic routing, and its bound."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.analysis.cache_replay import replay, token_steps, topology
from moebench.substrate.engine.decisions import Prompts
from moebench.substrate.errors import UsageError
from moebench.substrate.terms import RoutedSequence
from moebench.systems.learn.next_use_table import AGES, FREQUENCIES, UNIT, NextUse
from moebench.systems.next_use import FarthestNextUse
from moebench.systems.registry import make
from tests.systems.views import cache, shape, started, victim_of, view

EXPERTS, LAYERS = 4, 2


def by_age(*tokens):
    """Return a policy whose table knows ages alone: the distance of each age, the last for all."""
    policy = FarthestNextUse()
    ages = np.array([*tokens, *[tokens[-1]] * (AGES - len(tokens))]) * UNIT
    cells = np.broadcast_to(ages[:, None, None], (AGES, FREQUENCIES, 1))
    policy.table = NextUse(cells, np.zeros((LAYERS, EXPERTS), dtype=np.int64), 0)
    return started(policy, EXPERTS, LAYERS)


def learnt(texts, experts, **options):
    """Return a policy that has learnt from texts ``[T, L, K]``."""
    policy = FarthestNextUse(**options)
    sequences = [RoutedSequence(ids, 1) for ids in texts]
    policy.calibrate(sequences, shape(experts), Path(), lambda done, total: None)
    return policy


def test_the_farthest_leaves_and_of_equal_tokens_the_layer_that_comes_last():
    policy = by_age(3, 2, 1, 9)  # used now: in 3 tokens; one token ago: in 2; never: in 9
    for experts in ([0], [1], [2]):
        policy.used(0, experts)
        policy.used(1, [0])
    # After layer 1: expert 2 of layer 0 comes in 3 tokens, 1 in 2, 0 in 1; 3 in 9.
    assert victim_of(policy, 0, 1, 2) == 2
    assert victim_of(policy, 0, 1) == 1
    assert victim_of(policy, 0, 1, 2, 3) == 3
    # Layer 1's 0, used just now, comes in 3 tokens: later than 2, as layer 0 is first.
    assert victim_of(policy, 2, 4) == 4
    # Once layer 0 has begun its next token, its 3 tokens end after those of layer 1.
    policy.used(0, [2])
    assert victim_of(policy, 2, 4) == 2
    assert victim_of(policy) is None


def test_ties_go_to_the_lowest_key():
    policy = by_age(1)
    policy.used(0, [1, 2])
    assert victim_of(policy, 1, 2) == 1


def test_a_prompt_counts_token_by_token():
    policy = by_age(1, 2, 3, 9)
    seen = view(np.ones((3, EXPERTS)), 1, own=[[0], [1], [2]], phase="prefill")
    policy.observe(seen)
    policy.used(0, [0, 1, 2])  # the engine says it of all rows together
    assert victim_of(policy, 0, 1, 2) == 0
    assert victim_of(policy, 1, 2) == 1
    policy.begin_sequences(Prompts((1,)))
    assert victim_of(policy, 0, 1, 2) == 0  # all are as new
    decoded = view(np.ones((1, EXPERTS)), 1, own=[[2]])
    policy.observe(decoded)
    policy.used(0, [2])
    assert victim_of(policy, 0, 2) == 0
    assert victim_of(policy, 2) == 2


@pytest.mark.parametrize("period", [2, 3, 4, 5])
@pytest.mark.parametrize("layers", [1, 3])
def test_on_periodic_routing_it_hits_as_often_as_belady(period, layers):
    # Each layer uses its experts in turn, one a token: the distance is the period less the age.
    turns = np.arange(200) % period
    ids_TLK = np.repeat(turns[:, None, None], layers, axis=1)
    policy = learnt([ids_TLK] * 3, 5, groups=1)
    steps, model = token_steps(ids_TLK), topology(layers, 5, 1)
    for slots in range(1, period + 1):
        best = replay(make("evict", "belady"), [steps], model, slots * layers)
        found = replay(policy, [steps], model, slots * layers)
        # The first times of each expert, whose frequency is new to the table, may differ.
        assert best.hit_rate - found.hit_rate <= 2 * period / 200
        lru = replay(make("evict", "lru"), [steps], model, slots * layers)
        assert lru.hit_rate == (1 - period / 200 if slots == period else 0)


@given(st.integers(0, 10**6), st.integers(2, 8), st.sampled_from(["layer", "global"]))
def test_it_hits_no_more_than_belady(seed, slots, scope):
    random = np.random.default_rng(seed)
    popular = random.dirichlet(np.full(6, 0.5), LAYERS)
    text = np.array([
        [random.choice(6, 2, replace=False, p=(own + 0.01) / (own + 0.01).sum()) for own in popular]
        for _ in range(60)
    ])  # fmt: skip
    policy = learnt([text[:30]], 6)
    model, steps = topology(LAYERS, 6, 2), token_steps(text[30:])
    found = replay(policy, [steps], model, slots * LAYERS, scope)
    bound = replay(make("evict", "belady"), [steps], model, slots * LAYERS, scope)
    assert found.hit_rate <= bound.hit_rate


def test_it_is_refused_without_a_table_or_for_another_model():
    with pytest.raises(UsageError, match="calibrate it first"):
        started(FarthestNextUse())
    policy = learnt([np.zeros((3, 2, 1), dtype=np.int64)], 4)
    assert policy.learnt == {"tokens": "3"}
    other = shape(8, 1, 2)
    with pytest.raises(UsageError, match="2 layers of 4 experts, the model has 2 of 8"):
        policy.start(other, cache(other, 4))
