"""Search for the recipe whose synthesized routing has the statistics of real models.

The search varies a recipe's variances and correlations (not its depth profile, recall and spread)
until the statistics of synthesized texts are in the model's targets (`analysis.targets`).  All
recipes use the same random numbers, so the loss is a function of five numbers only, and the search
is reproducible.
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

#: Number of texts that are synthesized to evaluate a recipe.
TEXTS = 16
#: Total number of experts in the synthesized layers, about equal for all models, for equal noise.
EXPERTS = 256
#: Numbers of texts and of layers for the slow replay of caches.
CACHED, CACHES = 4, 3

#: Start of the search: static, ar1, rho, common, prefill.
START = (0.3, 0.3, 0.6, 0.4, 0.9)
#: Number of recipes that a search tries.
STEPS = 120

#: Weight of the loss term that prefers the middle of a target's range to its edge.
CENTRE = 0.01


def fit(
    recipe: SynthesisRecipe, topology: Topology, targets: Mapping[str, Target],
    progress: Callable[[int, int], None] = lambda done, total: None, steps: int = STEPS,
) -> SynthesisRecipe:  # fmt: skip
    """Return the best recipe that an evolution strategy finds: (1+1)-ES with an adapted step.

    Args:
        recipe: the recipe in which the searched numbers are replaced.
        progress: called with the numbers of tried and of all recipes.
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
    """Return a recipe's loss: sum of squared distances to the targets, in units of ``NEAR``."""
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
    """Return the statistics of synthesized texts by their dotted path into `summary`.

    Texts have the lengths of those that targets are measured on.  Statistics of predictions and
    scores are left out, as they depend on other numbers of the recipe.

    Args:
        seed: random seed of the texts, equal for all recipes.
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
    """Map a recipe's five searched numbers to unbounded ones: log odds, log ratios to noise."""
    static, ar1, *odds = numbers
    logits = [np.log(x / (1 - x)) for x in odds]
    return np.array([*np.log([static, ar1]) - np.log(1 - static - ar1), *logits])


def _bound(recipe: SynthesisRecipe, free: np.ndarray) -> SynthesisRecipe:
    """Return the recipe with the numbers of a free vector, clipped, rounded to three decimals."""
    free = np.clip(free, -6, 6)
    shares = np.exp([*free[:2], 0.0])
    numbers = [*(shares / shares.sum())[:2], *1 / (1 + np.exp(-free[2:]))]
    static, ar1, rho, common, prefill = (round(float(number), 3) for number in numbers)
    return replace(recipe, static=static, ar1=ar1, rho=rho, common=common, prefill=prefill)
