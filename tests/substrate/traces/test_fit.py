"""The search for a recipe: its numbers as unbounded ones, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.traces.fit import START, _bound, _free
from moebench.substrate.traces.recipes import SynthesisRecipe

BASE = SynthesisRecipe(static=0.1, recall=0.7)
SHARE = st.floats(0.05, 0.95)


@given(SHARE, SHARE, SHARE, SHARE, SHARE)
def test_unbounded_numbers_give_the_recipe_back(
    explained: float, static: float, rho: float, common: float, prefill: float
) -> None:
    numbers = (explained * static, explained * (1 - static), rho, common, prefill)
    found = _bound(BASE, _free(numbers))
    assert (found.static, found.ar1, found.rho, found.common, found.prefill) == pytest.approx(
        numbers, abs=6e-4
    )
    assert (found.recall, found.depth) == (BASE.recall, BASE.depth)


def test_the_search_starts_where_it_says() -> None:
    found = _bound(BASE, _free(START))
    assert (found.static, found.ar1, found.rho, found.common, found.prefill) == START
