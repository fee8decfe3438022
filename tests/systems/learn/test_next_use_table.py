"""The table of distances to the next use: classes, distances and means by restatement."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.systems.learn.next_use_table import (
    AGES,
    FADES,
    FREQUENCIES,
    ONE,
    PARTS,
    PRIOR,
    UNIT,
    Past,
    distances,
    half_octaves,
    popularity,
    table,
)

EXPERTS, LAYERS = 4, 2


def test_half_octaves_by_hand():
    values = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 15, 16, 23, 24, 31, 32])
    assert half_octaves(values, 99).tolist() == [
        0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10,
    ]  # fmt: skip
    assert half_octaves(values, 5).tolist() == [0, 1, 2, 3] + [4] * 13


CHOICE = st.lists(st.integers(0, EXPERTS - 1), min_size=2, max_size=2, unique=True)
#: Tokens of one text: for each layer the experts that it uses.
TEXTS = st.lists(st.tuples(*[CHOICE] * LAYERS), min_size=1, max_size=30)


def flags(tokens):
    """Return whether each token uses each expert, ``[T, L, E]``."""
    used = np.zeros((len(tokens), LAYERS, EXPERTS), dtype=bool)
    for t, layers in enumerate(tokens):
        for layer, experts in enumerate(layers):
            used[t, layer, experts] = True
    return used


def slow_class(age, seen, uses):
    """Return the classes of age and frequency from their definition."""

    def half_octave(value, classes):
        found, low = 0, 0
        while True:
            octave = max(low.bit_length() - 1, 0)
            width = 1 if low < 4 else 1 << (octave - 1)
            if value < low + width or found == classes - 1:
                return found
            found, low = found + 1, low + width

    return half_octave(age, AGES - 1) if seen else AGES - 1, half_octave(uses, FREQUENCIES)


@given(TEXTS)
def test_the_past_is_its_definition(tokens):
    past, whole = Past(LAYERS, EXPERTS), Past(LAYERS, EXPERTS)
    for t, layers in enumerate(tokens, 1):
        whole.step(slice(None), flags([layers])[0])
        for layer in range(LAYERS):
            past.step(layer, flags([layers])[0, layer])
            found = list(zip(*(kind.tolist() for kind in past.classes(layer)), strict=True))
            for e in range(EXPERTS):
                when = [s for s in range(1, t + 1) if e in tokens[s - 1][layer]]
                uses = 0
                for s in range(1, t + 1):
                    uses = uses - (uses >> FADES) + ONE * (s in when)
                age = t - when[-1] if when else 0
                assert found[e] == slow_class(age, bool(when), uses * PARTS // ONE)
    for one, other in zip(past.classes(slice(None)), whole.classes(slice(None)), strict=True):
        assert (one == other).all()


@given(TEXTS, st.integers(1, 40))
def test_distances_are_found_by_looking_ahead(tokens, horizon):
    distance_TLE, known_TLE = distances(flags(tokens), horizon)
    for t in range(len(tokens)):
        for layer in range(LAYERS):
            for e in range(EXPERTS):
                later = [s - t for s in range(t + 1, len(tokens)) if e in tokens[s][layer]]
                known = bool(later) or len(tokens) - 1 - t >= horizon
                assert known_TLE[t, layer, e] == known
                if known:
                    assert distance_TLE[t, layer, e] == min([*later, horizon])


def test_popularity_by_hand():
    # Layer 0 uses 2 most, then 0; 1 and 3 never: of equal ones the lower id counts as less popular.
    text = np.array([[[2], [0]], [[2], [1]], [[0], [1]]])
    assert popularity([text], 4, 4).tolist() == [[2, 0, 3, 1], [2, 3, 0, 1]]
    assert popularity([text], 4, 2).tolist() == [[1, 0, 1, 0], [1, 1, 0, 0]]
    assert popularity([text], 4, 1).tolist() == [[0] * 4] * 2


@given(st.lists(TEXTS, min_size=1, max_size=4), st.integers(1, 12), st.integers(1, 3))
def test_a_cell_is_the_mean_of_its_class(texts, horizon, groups):
    ids = [np.array(tokens) for tokens in texts]
    found = table(ids, EXPERTS, horizon, groups)
    assert found.tokens == sum(map(len, texts))
    popular = popularity(ids, EXPERTS, groups)
    samples = []
    for tokens in texts:
        past, (distance_TLE, known_TLE) = Past(LAYERS, EXPERTS), distances(flags(tokens), horizon)
        for t, layers in enumerate(tokens):
            past.step(slice(None), flags([layers])[0])
            age_LE, frequency_LE = past.classes(slice(None))
            for layer, e in zip(*np.nonzero(known_TLE[t]), strict=True):
                at = age_LE[layer, e], frequency_LE[layer, e], popular[layer, e]
                samples.append((tuple(map(int, at)), int(distance_TLE[t, layer, e])))

    def cell(at):
        value = None
        for fixed in range(4):
            own = [d for key, d in samples if key[:fixed] == at[:fixed]]
            if value is None:
                value = floor(Fraction(UNIT * sum(own), max(len(own), 1)))
            else:
                value = floor(Fraction(UNIT * sum(own) + PRIOR * value, len(own) + PRIOR))
        return value

    for at in {key for key, _ in samples} | {(AGES - 1, 0, 0), (3, FREQUENCIES - 1, groups - 1)}:
        assert found.distance_AFP[at] == cell(at)


@given(st.permutations(range(4)), st.integers(0, 5))
def test_the_order_of_texts_does_not_matter(order, seed):
    random = np.random.default_rng(seed)
    texts = [random.permuted(np.tile(np.arange(EXPERTS), (n, LAYERS, 1)), axis=2)[..., :2]
             for n in (3, 8, 13, 21)]  # fmt: skip
    one, other = table(texts, EXPERTS, 8, 3), table([texts[n] for n in order], EXPERTS, 8, 3)
    assert (one.distance_AFP == other.distance_AFP).all()
    assert (one.popularity_LE == other.popularity_LE).all()


def test_more_texts_outweigh_the_coarser_mean():
    # Expert 0 comes every second token.  Its distance at age 1 is 1; all others are at the horizon.
    tokens = np.array([[[n % 2 * (1 + n % 3)]] for n in range(4000)])
    found = table([tokens], 4, 64, 1)
    past = Past(1, 4)
    for n in range(100):
        past.step(0, np.arange(4) == tokens[n, 0, 0])
    assert tokens[99, 0, 0] != 0
    assert found.distances(past, 0)[0] == pytest.approx(UNIT, rel=0.2)
