"""The search for a recipe: its numbers as unbounded ones, and back."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.analysis.targets import NEAR, Target
from moebench.substrate.traces import fit
from moebench.substrate.traces.fit import START, _bound, _free
from moebench.substrate.traces.recipes import SynthesisRecipe
from moebench.substrate.traces.synthesis import Topology

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


def test_a_loss_is_the_squared_distance_to_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """In units of NEAR times the near end of a range, and a hundredth for the way to its edge."""
    values = {"below": 1.0, "above": 6.0, "middle": 3.0, "edge": 4.0, "point": 5.0, "other": 9.0}
    monkeypatch.setattr(fit, "drawn_statistics", lambda recipe, topology: values)
    ranges = {
        "below": (2.0, 4.0), "above": (2.0, 4.0), "middle": (2.0, 4.0), "edge": (2.0, 4.0),
        "point": (5.0, 5.0), "unknown": (0.0, 1.0),
    }  # fmt: skip
    targets = {name: Target(*pair, "here") for name, pair in ranges.items()}
    expected = {
        "below": (1 / (NEAR * 2)) ** 2 + 0.01, "above": (2 / (NEAR * 4)) ** 2 + 0.01,
        "middle": 0, "edge": 0.01, "point": 0,
    }  # fmt: skip
    topology: Any = None
    for name, value in expected.items():
        assert fit.loss(BASE, topology, {name: targets[name]}) == pytest.approx(value), name
    assert fit.loss(BASE, topology, targets) == pytest.approx(sum(expected.values()))
    half = {"middle": Target(2.0, 3.0 + 1 / 3, "here")}
    # A quarter of the range from its middle: half of the way to an edge.
    assert fit.loss(BASE, topology, half) == pytest.approx(0.01 * 0.5**2)


def test_a_search_keeps_the_best_recipe_and_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fourth recipe is the best; an equal one does not replace it."""
    losses = iter([9.0, 10.0, 8.0, 8.5, 3.0, 3.0, 7.0])
    tried: list[SynthesisRecipe] = []

    def loss(recipe: SynthesisRecipe, topology: Any, targets: Any) -> float:
        assert (topology, targets) == ("topology", {"a": 1})
        tried.append(recipe)
        return next(losses)

    monkeypatch.setattr(fit, "loss", loss)
    told: list[tuple[int, int]] = []
    topology, targets = cast(Any, "topology"), cast(Any, {"a": 1})
    found = fit.fit(BASE, topology, targets, lambda *step: told.append(step), 6)
    assert told == [(n, 6) for n in range(1, 7)]
    assert tried[0] == _bound(BASE, _free(START))
    assert found == tried[4]
    assert len({(one.static, one.ar1, one.rho) for one in tried}) == 7


def test_statistics_are_of_all_texts_and_few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 layers of 64 experts four are drawn; three of them, and four texts, are replayed."""
    drawn: list[Any] = []

    class Drawn:
        def __init__(self, topology: Topology, recipe: SynthesisRecipe, seed: int) -> None:
            drawn.append((topology.layers, recipe.recall, seed))
            self.topology = topology

        def draw(self, prompt: int, new_tokens: int) -> Any:
            drawn.append((prompt, new_tokens))
            n = len(drawn)
            ids = np.arange(6 * self.topology.layers).reshape(6, -1, 1) * n % 64
            return SimpleNamespace(ids_TLK=ids)

    monkeypatch.setattr(fit, "Synthesis", Drawn)
    monkeypatch.setattr(fit, "PROMPT", 2)
    asked: list[Any] = []
    for name in ("hit_rates", "used_share", "lag_overlap", "sequence_similarity"):
        true = getattr(fit, name)

        def noting(texts: Any, *of: Any, true: Any = true, name: str = name) -> Any:
            asked.append((name, len(texts), texts[0].ids_TLK.shape[1], texts[0].prefill, *of))
            return true(texts, *of)

        monkeypatch.setattr(fit, name, noting)
    topology = Topology(layers=40, experts=64, top_k=1)
    found = fit.drawn_statistics(BASE, topology, seed=5)
    assert drawn[0] == (4, None, 5)
    assert drawn[1:] == [(2, fit.NEW_TOKENS)] * 16
    assert asked[0] == ("hit_rates", 4, 3, 2, [16, 32])
    assert ("used_share", 16, 4, 2, 64, fit.USED_AFTER[0]) in asked
    assert ("sequence_similarity", 16, 4, 2, 64) in asked
    assert {name.split(".")[0] for name in found} == {
        "used", "lag_overlap", "hit_rates", "popularity_within", "popularity",
        "sequence_similarity", "prefill_decode_similarity",
    }  # fmt: skip
    assert {"hit_rates.quarter.lru", "hit_rates.half.lru"} <= found.keys()
    assert found["hit_rates.quarter.lru"] <= found["hit_rates.half.lru"]
    few = fit.drawn_statistics(BASE, Topology(layers=2, experts=512, top_k=1))
    assert drawn[17][0] == 2
    assert few
