"""The split of slots over layers against brute force, and against the authors' own figures."""

from fractions import Fraction
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.systems.policies.split import measured_loads, split, uniform_loads

# --------------------------------------------------------------------------- expected loads


def by_counting(experts: int, slots: int, used: int, right: Fraction) -> Fraction:
    """Return expected loads by summing over all sets of experts; the first ones are cached."""
    total, sets = Fraction(0), list(combinations(range(experts), used))
    for chosen in sets:
        missing = sum(expert >= slots for expert in chosen)
        total += right * max(missing - 1, 0) + (1 - right) * missing
    return total / len(sets)


@pytest.mark.parametrize("experts", [1, 3, 6])
def test_loads_are_those_of_all_sets_of_experts(experts):
    accuracy = Fraction(3, 4)
    for used in range(1, min(experts, 3) + 1):
        only = [0.0] * (used - 1) + [1.0]
        truth = [by_counting(experts, s, used, accuracy) for s in range(experts + 1)]
        assert uniform_loads(experts, only, 0.75) == pytest.approx(
            [float(value) for value in truth]
        )


def test_loads_are_the_authors_terms():
    # dp.py: f1 of one expert; f2, f3, f4 of two.
    single, accuracy = 0.3, 0.8
    for size, found in enumerate(uniform_loads(8, [single, 1 - single], accuracy)):
        both, one = (8 - size) * (7 - size) / 56, 2 * (8 - size) * size / 56
        f1 = (1 - size / 8) * (1 - accuracy)
        f2, f3, f4 = 2 * both * (1 - accuracy), both * accuracy, one * (1 - accuracy)
        assert found == pytest.approx(single * f1 + (1 - single) * (f2 + f3 + f4))


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True), max_size=12),
    st.floats(0, 1),
)
def test_measured_loads_are_those_of_lru_with_so_many_slots(tokens, accuracy):
    for slots, found in enumerate(measured_loads(5, tokens, accuracy)):
        recent = list(range(5))[:slots]  # a cache of its own for each size
        total = 0.0
        for used in tokens:
            missing = sum(expert not in recent for expert in used)
            total += missing - accuracy * (missing > 0)
            recent = [*used, *(expert for expert in recent if expert not in used)][:slots]
        assert found == pytest.approx(total / max(len(tokens), 1))


# --------------------------------------------------------------------------- the split


@settings(max_examples=60)
@given(
    table=st.integers(1, 4).flatmap(
        lambda most: st.lists(
            st.lists(st.integers(0, 20), min_size=most + 1, max_size=most + 1),
            min_size=1, max_size=4,
        )
    ),
    slots=st.integers(0, 18),
)  # fmt: skip
def test_no_other_split_has_fewer_loads(table, slots):
    layers, most = len(table), len(table[0]) - 1
    found = split(slots, table)
    slots = min(slots, layers * most)
    least = 1 if slots >= layers else 0
    assert sum(found) == slots
    assert all(least <= own <= most for own in found)
    every = [s for s in product(range(least, most + 1), repeat=layers) if sum(s) == slots]
    costs = [sum(row[own] for row, own in zip(table, s, strict=True)) for s in every]
    assert sum(row[own] for row, own in zip(table, found, strict=True)) == min(costs)


#: dp.py's figures of Mixtral 8x7B: prefetch accuracy and single experts, by layer.
ACCURACY = (
    0, .5663, .7211, .7891, .8656, .8588, .8299, .8401, .8486, .8010, .8980, .8980, .8929, .9099,
    .9252, .8810, .9150, .9388, .9048, .8793, .8759, .8929, .8793, .8759, .8878, .8844, .9218,
    .9133, .8861, .8997, .9031, .8503,
)  # fmt: skip
SINGLE = (
    .00002, .03476, .00488, .00094, .00038, .00251, .00789, .03413, .03451, .04913, .01299, .01957,
    .02958, .00549, .01552, .02841, .06389, .07100, .14072, .28026, .29867, .36511, .41448, .35561,
    .49519, .52098, .54789, .61804, .77998, .88399, .97538, .85771,
)  # fmt: skip


@pytest.mark.parametrize(
    ("slots", "gated", "sizes"),
    [
        (64, True, [8, 4, *[3] * 5, *[2] * 12, *[1] * 13]),
        (128, True, [8, 7, 6, 6, *[5] * 14, 4, 4, 4, 3, 3, 3, 2, 2, *[1] * 6]),
        (64, False, [8, *[2] * 12, 1, 1, 2, 1, 1, *[2] * 8, 1, 1, *[2] * 4]),
        (128, False, [8, 5, *[4] * 12, 3, 4, 3, 3, *[4] * 8, 3, 3, *[4] * 4]),
    ],
)
def test_the_authors_splits(slots, gated, sizes):
    singles = SINGLE if gated else [0.0] * 32
    table = [uniform_loads(8, [q, 1 - q], a) for q, a in zip(singles, ACCURACY, strict=True)]
    assert split(slots, table) == sizes
