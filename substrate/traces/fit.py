"""Finds the recipe whose drawn texts have the routing statistics of real models.

A recipe's variances and correlations are searched (its depth profile, recall and spread stay) so
that what is drawn lies in the model's targets (`analysis.targets`).  The same random numbers are
drawn for every recipe, so the loss is a function of five numbers alone, and a search finds the same
recipe each time.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from moebench.substrate.analysis.statistics import (
    CACHE_SIZES,
    LAGS,
    USED_AFTER,
    concentration,
    concentration_within,
    hit_rates,
    lag_overlap,
    popularity,
    prefill_decode_similarity,
    sequence_similarity,
    used_share,
)
from moebench.substrate.analysis.targets import NEAR, Target
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces.recipes import SynthesisRecipe
from moebench.substrate.traces.synthesis import NEW_TOKENS, PROMPT, Synthesis, Topology

#: Drawn texts that a recipe is judged by.
TEXTS = 16
#: Layers that are drawn: so many that they have about as many experts together, for equal noise.
EXPERTS = 256
#: Texts and layers whose caches are replayed, which takes long.
CACHED, CACHES = 4, 3

#: Where a search starts: static, ar1, rho, common, prefill.
START = (0.3, 0.3, 0.6, 0.4, 0.9)
#: Recipes that are tried from there.
STEPS = 120

#: How much the middle of a range is preferred to its edge.
CENTRE = 0.01


def fit(
    recipe: SynthesisRecipe, topology: Topology, targets: Mapping[str, Target],
    progress: Callable[[int, int], None] = lambda done, total: None, steps: int = STEPS,
) -> SynthesisRecipe:  # fmt: skip
    """The best recipe that an evolution strategy finds, (1+1)-ES with an adapted step.

    Args:
        recipe: what is searched is replaced in it.
        progress: told of tried and of all recipes.
    """
    random = np.random.default_rng(0)
    best, step = _free(START), 0.6
    least = loss(_bound(recipe, best), topology, targets)
    for tried in range(steps):
        other = best + step * random.standard_normal(len(START))
        value = loss(_bound(recipe, other), topology, targets)
        step *= 1.3 if value < least else 0.96
        if value < least:
            best, least = other, value
        progress(tried + 1, steps)
    return _bound(recipe, best)


def loss(recipe: SynthesisRecipe, topology: Topology, targets: Mapping[str, Target]) -> float:
    """How far drawn texts are from the targets: 1 for a statistic at the edge of *near*."""
    total = 0.0
    for name, value in drawn_statistics(recipe, topology).items():
        if name in targets:
            low, high, _ = targets[name]
            outside = max(0.0, low - value, value - high) / (NEAR * (low if value < low else high))
            from_middle = abs(2 * value - low - high) / (high - low) if high > low else 0.0
            total += outside**2 + CENTRE * min(1.0, from_middle) ** 2
    return total


def drawn_statistics(
    recipe: SynthesisRecipe, topology: Topology, seed: int = 0
) -> dict[str, float]:
    """Statistics of texts as targets are measured on, by their dotted path into `summary`.

    Those that need predictions or scores are left out: other numbers of the recipe make them.

    Args:
        seed: draws the texts; the same ones for every recipe.
    """
    layers, experts = topology.layers, topology.experts
    few = topology._replace(layers=min(layers, max(3, EXPERTS // experts)))
    synthesis = Synthesis(few, replace(recipe, recall=None), seed)
    texts = [
        RoutedSequence(synthesis.draw(PROMPT, NEW_TOKENS).ids_TLK, PROMPT) for _ in range(TEXTS)
    ]
    spread = np.linspace(0, few.layers - 1, min(CACHES, few.layers)).round().astype(int)
    cached = [RoutedSequence(text.ids_TLK[:, spread], PROMPT) for text in texts[:CACHED]]
    sizes = {name: experts * CACHE_SIZES[name] // 8 for name in ("quarter", "half")}
    rates = hit_rates(cached, list(sizes.values()))
    over_all = concentration(popularity(texts, experts))
    return {
        **{f"used.{n}": used_share(texts, experts, n) for n in USED_AFTER},
        **{f"lag_overlap.{lag}": float(lag_overlap(texts, lag).mean()) for lag in LAGS},
        **{
            f"hit_rates.{size}.{policy}": float(rate[i])
            for i, size in enumerate(sizes)
            for policy, rate in rates.items()
        },
        **{
            f"popularity_within.{name}": value
            for name, value in concentration_within(texts, experts).items()
        },
        **{f"popularity.{name}": float(over_all[name].mean()) for name in over_all},
        "sequence_similarity": sequence_similarity(texts, experts),
        "prefill_decode_similarity": prefill_decode_similarity(texts, experts),
    }


# ----------------------------------------------------------------------------- as free numbers


def _free(numbers: tuple[float, ...]) -> np.ndarray:
    """Searched numbers as ones of any size: logarithms of odds, for variances of noise's."""
    static, ar1, *odds = numbers
    logits = [np.log(x / (1 - x)) for x in odds]
    return np.array([*np.log([static, ar1]) - np.log(1 - static - ar1), *logits])


def _bound(recipe: SynthesisRecipe, free: np.ndarray) -> SynthesisRecipe:
    """The recipe with such numbers, to three decimals; extreme ones are cut off."""
    free = np.clip(free, -6, 6)
    shares = np.exp([*free[:2], 0.0])
    numbers = [*(shares / shares.sum())[:2], *1 / (1 + np.exp(-free[2:]))]
    static, ar1, rho, common, prefill = (round(float(number), 3) for number in numbers)
    return replace(recipe, static=static, ar1=ar1, rho=rho, common=common, prefill=prefill)
