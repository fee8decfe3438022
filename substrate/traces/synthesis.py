"""Synthesis of routing traces with given statistics, for models without recorded routing.

For each sequence, layer and expert the gate's logit is the sum of

    static(e) + AR1(t, e) + noise(t, e)

with variances that sum to one; the k largest are chosen.  The static part models popularity: a
share of it is common to all sequences, the rest is the sequence's own.  AR(1) with coefficient ρ
models recency.  ``depth`` scales both variances between the first, middle and last layer, and noise
has the rest.  In prefill the sequence's own part is another sample that correlates with decode's.
A prediction is the next layer's logits plus noise: its recall at k depends on their correlation,
which is found by bisection.

`compared` measures the statistics of a synthesized trace and compares them with the targets of real
models.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from moebench.substrate.analysis.statistics import (
    LAGS,
    USED_AFTER,
    prefill_decode_similarity,
    summary,
)
from moebench.substrate.analysis.targets import Judgement, Target, judge, value_at
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import LOOKAHEADS, RoutedSequence
from moebench.substrate.traces.file import Header, Prediction
from moebench.substrate.traces.recipes import SynthesisRecipe
from moebench.substrate.traces.writer import writing

#: Prompt and new tokens of the texts on which targets are measured: 256 of them are inputs.
PROMPT, NEW_TOKENS = 128, 129

_BISECTIONS = 12


# ----------------------------------------------------------------------------- drawing


class Topology(NamedTuple):
    """The numbers of a model's shape that determine the form of its routing."""

    layers: int
    experts: int
    top_k: int

    @classmethod
    def of(cls, shape: ModelShape) -> "Topology":
        """Return the numbers of a model's MoE layers and experts, and its top-k."""
        return cls(len(shape.moe_layers), shape.num_experts, shape.top_k)


class Drawn(NamedTuple):
    """Synthesized routing of one sequence with T tokens, D of them decoded.

    Attributes:
        predicted_DLE: predictions ``[D, L-1, E]`` of each next layer, or None without predictions.
    """

    ids_TLK: np.ndarray
    scores_TLE: np.ndarray
    predicted_DLE: np.ndarray | None


class Synthesis:
    """Generator of synthesized routing: draws sequences one after the other from one seed.

    Args:
        model: seed of what all texts of a model have in common, its popular experts; by default
            ``seed``.  With one ``model``, other seeds are other texts of the same model.
    """

    def __init__(
        self, topology: Topology, recipe: SynthesisRecipe, seed: int, model: int | None = None
    ) -> None:
        self.topology, self.recipe, self.seed = topology, recipe, seed
        self._random = np.random.default_rng(seed)
        layers, experts, top_k = topology
        self._common = self._normal(layers, experts)
        if model not in (None, seed):
            drawn = np.random.default_rng(model)
            self._common = drawn.standard_normal((layers, experts), dtype=np.float32)
        profile = np.interp(np.linspace(0, 2, layers), (0, 1, 2), recipe.depth)
        lasting = np.array([[recipe.static], [recipe.ar1]]) * profile
        # The static and AR(1) variances are at most 0.95 together, so that some noise is left.
        lasting = lasting / np.maximum(1, lasting.sum(0) / 0.95)
        self._static_std, self._ar1_std = np.sqrt(lasting, dtype=np.float32)[..., None]
        self._noise_std = np.sqrt(1 - lasting.sum(0), dtype=np.float32)[:, None]
        self._predictions: DrawnPredictions | None = None
        if recipe.recall is not None:
            self._predictions = DrawnPredictions(experts, top_k, recipe.recall, recipe.spread)

    def _normal(self, *shape: int) -> np.ndarray:
        return self._random.standard_normal(shape, dtype=np.float32)

    def draw(self, prompt: int, new_tokens: int) -> Drawn:
        """Draw the routing of a sequence with a prompt and ``new_tokens - 1`` decoded tokens."""
        r, tokens = self.recipe, prompt + new_tokens - 1
        layers, experts, top_k = self.topology
        own, other = self._normal(2, layers, experts)
        logits = self._noise_std * self._normal(tokens, layers, experts)
        logits[:prompt] += self._static(_correlated(own, other, r.prefill))
        logits[prompt:] += self._static(own)
        recent = self._normal(tokens, layers, experts)
        for t in range(1, tokens):
            recent[t] = _correlated(recent[t - 1], recent[t], r.rho)
        logits += self._ar1_std * recent
        ids = np.argpartition(-logits, top_k - 1, axis=2)[:, :, :top_k]
        best_first = np.argsort(-np.take_along_axis(logits, ids, axis=2), axis=2)
        ids = np.take_along_axis(ids, best_first, axis=2)
        predicted = None
        if self._predictions is not None:
            predicted = self._predictions.of(logits[prompt:, 1:], self._random)
        return Drawn(ids, _softmax(r.spread * logits), predicted)

    def _static(self, own: np.ndarray) -> np.ndarray:
        """Return the static part of a sequence's logits ``[L, E]``, from common and own part."""
        return np.asarray(
            self._static_std * _correlated(self._common, own, self.recipe.common**0.5)
        )


def _correlated(these: np.ndarray, fresh: np.ndarray, correlation: float) -> np.ndarray:
    """Mix two arrays of standard normal values so that the result correlates with the first."""
    return np.asarray(correlation * these + (1 - correlation**2) ** 0.5 * fresh)


class DrawnPredictions:
    """Generator of synthesized predictions of gate scores: the true logits plus noise.

    Args:
        recall: mean share of the true top-k in a prediction's top-k.
        spread: standard deviation of the logits that the gate's softmax reads.
    """

    def __init__(self, experts: int, top_k: int, recall: float, spread: float) -> None:
        self._correlation = correlation_for_recall(experts, top_k, recall)
        self._spread = spread

    def of(self, logits: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return predicted scores ``[..., E]`` for true logits of variance one."""
        wrong = random.standard_normal(logits.shape, dtype=np.float32)
        return _softmax(self._spread * _correlated(logits, wrong, self._correlation))

    def of_scores(self, scores: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return predicted scores ``[..., E]`` from the order of true scores only.

        Normal logits are drawn and assigned in that order; equal scores are ordered at random.
        """
        ranked = np.lexsort((random.random(scores.shape), -scores), axis=-1)
        drawn = random.standard_normal(scores.shape, dtype=np.float32)
        logits = np.empty_like(drawn)
        np.put_along_axis(logits, ranked, -np.sort(-drawn, axis=-1), axis=-1)
        return self.of(logits, random)


def correlation_for_recall(experts: int, top_k: int, recall: float) -> float:
    """Return the correlation of logits at which predictions have a recall, from 4,000 pairs."""
    random = np.random.default_rng(0)
    truth, wrong = random.standard_normal((2, 4000, experts), dtype=np.float32)
    best = np.argpartition(-truth, top_k - 1, axis=1)[:, :top_k]

    def shared(correlation: float) -> float:
        guess = _correlated(truth, wrong, correlation)
        named = np.zeros(truth.shape, bool)
        np.put_along_axis(named, np.argpartition(-guess, top_k - 1, axis=1)[:, :top_k], True, 1)
        return float(np.take_along_axis(named, best, 1).mean())

    return 1.0 if top_k == experts else _bisect(shared, recall, 0.0, 1.0)


def prefill_for_similarity(topology: Topology, recipe: SynthesisRecipe, similarity: float) -> float:
    """Return the ``prefill`` of a recipe at which prefill and decode have a cosine similarity.

    It is measured on eight texts of 128 prompt and 128 decoded tokens, and at most four layers.
    """
    few = topology._replace(layers=min(4, topology.layers))

    def similar(prefill: float) -> float:
        pilot = Synthesis(few, replace(recipe, prefill=prefill, recall=None), seed=1)
        drawn = [pilot.draw(PROMPT, NEW_TOKENS) for _ in range(8)]
        routing = [RoutedSequence(one.ids_TLK, PROMPT) for one in drawn]
        return prefill_decode_similarity(routing, topology.experts)

    return _bisect(similar, similarity, 0.0, 1.0, steps=6)


def _bisect(
    of: Callable[[float], float], wanted: float, low: float, high: float, steps: int = _BISECTIONS
) -> float:
    """Return the argument at which a rising function reaches a value, clipped to the interval."""
    if of(high) <= wanted:
        return high
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle) < wanted else (low, middle)
    return (low + high) / 2


def _softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def drawn_header(topology: Topology, recipe: SynthesisRecipe, seed: int, model: str) -> Header:
    """Return the header of a synthesized trace, which does not depend on the sequences' lengths."""
    made = f"drawn, recall {recipe.recall} asked"
    kinds = () if recipe.recall is None else LOOKAHEADS
    return Header(
        model=model,
        workload="synthesized",
        num_moe_layers=topology.layers,
        num_experts=topology.experts,
        top_k=topology.top_k,
        scores="softmax of drawn logits",
        predictions={kind: Prediction(array="predicted", made=made) for kind in kinds},
        source={"recipe": asdict(recipe), "seed": seed},
        notes=["drawn, not recorded: no text and no weights are behind it"],
    )


def synthesize(
    synthesis: Synthesis, model: str, prompts: Sequence[int], new_tokens: int, out: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:  # fmt: skip
    """Write a synthesized trace, with only one sequence in memory at a time.

    Args:
        prompts: prompt length of each sequence in tokens.

    Raises UsageError: ``out`` exists.
    """
    header = drawn_header(synthesis.topology, synthesis.recipe, synthesis.seed, model)
    with writing(out, header) as writer:
        for s, prompt in enumerate(prompts):
            ids, scores, predicted = synthesis.draw(prompt, new_tokens)
            tokens = np.arange(len(ids))
            arrays = {} if predicted is None else {"predicted": predicted.astype(np.float16)}
            writer.append(
                ids=ids, sequence=np.full(len(ids), s), position=tokens, phase=tokens >= prompt,
                chosen=np.full(len(ids), -1), scores=scores.astype(np.float16), **arrays,
            )  # fmt: skip
            progress(s + 1, len(prompts))


# ----------------------------------------------------------------------------- comparison


class Compared(NamedTuple):
    """A statistic of a synthesized trace, with its target and judgement or None."""

    drawn: float
    target: Target | None
    judgement: Judgement | None


#: Statistics that are shown for a synthesized trace: dotted paths into `statistics.summary`.
SHOWN = (
    *(f"used.{tokens}" for tokens in USED_AFTER),
    *(f"lag_overlap.{lag}" for lag in LAGS),
    *(f"hit_rates.{s}.{p}" for s in ("quarter", "half") for p in ("lru", "lfu", "belady")),
    "popularity_within.gini",
    "popularity_within.max_over_mean",
    "popularity.gini",
    "popularity.max_over_mean",
    "sequence_similarity",
    "prefill_decode_similarity",
    "prediction.gate",
    "weight_by_rank.1",
)


def compared(
    sequences: Sequence[RoutedSequence], experts: int, targets: Mapping[str, Target]
) -> dict[str, Compared]:
    """Return the statistics of synthesized sequences with their targets and judgements.

    Statistics for which the sequences are too short are left out.  Most depend on the texts'
    length: targets are for 128 prompt and 128 decoded tokens.
    """
    measured = summary(sequences, experts)
    found = {}
    for name in SHOWN:
        value, target = value_at(measured, name), targets.get(name)
        if value is not None:
            found[name] = Compared(value, target, None if target is None else judge(value, target))
    return found
