"""Drawn routing: traces with given statistics, for models whose routing only papers describe.

For each sequence, layer and expert the gate's logit is the sum of

    static(e) + AR1(t, e) + noise(t, e)

with variances that sum to one; the k largest are chosen.  The static part makes popularity: a share
of it is common to all sequences, the rest is the sequence's own.  AR(1) with coefficient ρ makes
recency.  Layers differ: ``depth`` scales both between the first, middle and last layer, and noise
takes what they leave.  In prefill the static part is another draw that correlates with decode's.
A prediction is the next layer's logits plus noise: its recall at k follows from their correlation.

Two wishes are given as what is measured in the end (similarity of prefill and decode, recall); the
correlations behind them are found by bisection on a pilot draw.  How close a trace came is measured
on the trace (`asked_and_drawn`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moebench.substrate.analysis.statistics import (
    concentration,
    lag_overlap,
    popularity,
    prediction_by_layer,
    prefill_decode_similarity,
)
from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Lookahead, RoutedSequence
from moebench.substrate.traces.file import Header, Prediction, writing
from moebench.substrate.traces.scores import spread_of

_BISECTIONS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisRecipe:
    """What a drawn trace should look like.

    Attributes:
        static, ar1: variances of the logits, as means over layers; noise has the rest.
        rho: AR(1) coefficient from token to token.
        common: share of the static variance that all sequences have in common.
        depth: static and AR(1) variance of the first, middle and last layer, over the mean's.
        prefill_similarity: cosine of expert use in prefill and decode; None draws both alike.
        recall: share of a layer's top-k that the layer before predicts; None predicts nothing.
        spread: standard deviation of logits as the gate's softmax sees them.
        published: what was published of the real model, by the statistic's name.
        chance: overlap of random choices (k/E) in that model; others cannot be compared with it.
    """

    static: float
    ar1: float = 0.0
    rho: float = 0.0
    common: float = 0.3
    depth: tuple[float, float, float] = (1.0, 1.0, 1.0)
    prefill_similarity: float | None = None
    recall: float | None = None
    spread: float = 1.0
    published: tuple[tuple[str, float], ...] = ()
    chance: float | None = None

    def __post_init__(self) -> None:
        ranges = {"static": 1.0, "ar1": 1.0, "rho": 0.9999, "common": 1.0}
        optional = {"prefill_similarity": 1.0, "recall": 1.0}
        for name, most in (ranges | optional).items():
            value = getattr(self, name)
            if value is not None and not 0 <= value <= most:
                raise UsageError(f"{name} is {value:g}; allowed: 0 to {most:g}")
        if self.static + self.ar1 > 1:
            raise UsageError(
                f"static {self.static:g} and ar1 {self.ar1:g} are shares of one variance; "
                "their sum may be 1 at most"
            )
        if self.spread <= 0 or min(self.depth) < 0 or not sum(self.depth):
            raise UsageError("spread must be positive, depth not negative and not all zero")


def _measured(
    variances: tuple[float, float, float], lags: tuple[float, float], gini: float,
    depth: tuple[float, float, float], chance: float, **more: float,
) -> SynthesisRecipe:  # fmt: skip
    """A recipe from what a trace shows.

    Args:
        variances: static, AR(1), and ρ.
        lags: overlap with the token 1 and 8 before.
        depth: overlap with the token before in the first, middle and last layer.
        chance: overlap of random choices.
    """
    static, ar1, rho = variances
    names = ("lag_overlap.1", "lag_overlap.8", "gini", "first_layer", "middle_layer", "last_layer")
    # What overlaps beyond chance grows about as the variance that outlives a token.
    first, middle, last = (max(0.0, overlap - chance) for overlap in depth)
    mean = (first + 2 * middle + last) / 4
    return SynthesisRecipe(
        static=static,
        ar1=ar1,
        rho=rho,
        depth=(first / mean, middle / mean, last / mean),
        published=tuple(
            (name, value)
            for name, value in zip(names, (*lags, gini, *depth), strict=True)
            if value == value
        ),
        chance=chance,
        **more,
    )


_UNKNOWN = float("nan")

#: Variances that reproduce the lag curves of public traces (512 greedy steps, four prompts a model;
#: pjordanandrsn/grouped-nf4-gemm, MIT) and what was measured there.  Mixtral's variances are
#: estimates that reach the overlaps of its paper's Table 5.  Similarity: DAOP's Table II for
#: Mixtral, else that of the first 64 steps and the rest.  Recall: DAOP's Fig. 5 for Mixtral, else
#: published probes of OLMoE and gpt-oss; nothing for the others, which take .84 too.
FAMILIES: dict[str, SynthesisRecipe] = {
    name: _measured(*numbers, prefill_similarity=alike, recall=recall, spread=spread_of(name))  # type: ignore[arg-type]
    for name, *numbers, alike, recall in (
        ("olmoe-1b-7b", (0.445, 0.073, 0.99), (0.413, 0.352), 0.582, (0.3, 0.516, 0.376), 1 / 8,
         0.85, 0.91),
        ("gpt-oss-20b", (0.349, 0.232, 0.965), (0.444, 0.35), 0.53, (0.18, 0.58, 0.53), 1 / 8,
         0.8, 0.83),
        ("granite-3b-a800m", (0.351, 0.324, 0.489), (0.436, 0.353), 0.462, (0.379, 0.512, 0.447),
         1 / 5, 0.96, 0.84),
        ("qwen1.5-moe-a2.7b", (0.229, 0.0, 0.0), (0.144, 0.103), 0.42, (0.094, 0.161, 0.134),
         1 / 15, 0.85, 0.84),
        ("mixtral-8x7b", (0.175, 0.175, 0.6), (_UNKNOWN, _UNKNOWN), _UNKNOWN, (0.26, 0.36, 0.29),
         1 / 4, 0.907, 0.84),
    )
}  # fmt: skip


#: Recall of predictions where none is published of a model.
RECALL = 0.84


def recall_of(model: str) -> float:
    """The share of a layer's top-k that is predicted in a model's family."""
    recipe = FAMILIES.get(model)
    return RECALL if recipe is None or recipe.recall is None else recipe.recall


def family(name: str) -> SynthesisRecipe:
    """The recipe of a model whose routing was measured.

    Raises:
        UnknownNameError: nothing is published of it.
    """
    if name not in FAMILIES:
        raise UnknownNameError("family", name, FAMILIES, "or give --static and the others")
    return FAMILIES[name]


# ----------------------------------------------------------------------------- drawing


class Synthesis:
    """Draws sequences of a model's routing, one after the other, from one seed.

    Args:
        shape: number of MoE layers and experts, and top-k.
    """

    def __init__(self, shape: ModelShape, recipe: SynthesisRecipe, seed: int) -> None:
        self.layers, self.experts = len(shape.moe_layers), shape.num_experts
        self.top_k, self.recipe, self.seed = shape.top_k, recipe, seed
        self._random = np.random.default_rng(seed)
        self._common = self._normal(self.layers, self.experts)
        profile = np.interp(np.linspace(0, 2, self.layers), (0, 1, 2), recipe.depth)
        lasting = np.array([[recipe.static], [recipe.ar1]]) * profile
        # At most .95 lasts: some noise is always left.
        lasting = lasting / np.maximum(1, lasting.sum(0) / 0.95)
        self._static_std, self._ar1_std = np.sqrt(lasting)[..., None]
        self._noise_std = np.sqrt(1 - lasting.sum(0))[:, None]
        self._alike = 1.0
        self._predictions: DrawnPredictions | None = None
        if recipe.recall is not None:
            self._predictions = DrawnPredictions(
                self.experts, self.top_k, recipe.recall, recipe.spread
            )

    def _normal(self, *shape: int) -> np.ndarray:
        return self._random.standard_normal(shape, dtype=np.float32)

    def fit(self, prompt: int, new_tokens: int) -> None:
        """Find the correlation of prefill's and decode's popularity that was asked for.

        It is measured on four pilot sequences, so that the noise of short ones is in it.
        """
        wanted = self.recipe.prefill_similarity
        if wanted is None or not prompt or new_tokens < 2:
            return

        def similarity(alike: float) -> float:
            pilot = _copy(self, alike)
            drawn = [pilot.draw(prompt, new_tokens) for _ in range(4)]
            routing = [RoutedSequence(ids, prompt) for ids, _, _ in drawn]
            return prefill_decode_similarity(routing, self.experts)

        self._alike = _bisect(similarity, wanted, 0.0, 1.0, steps=6)

    def draw(
        self, prompt: int, new_tokens: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """One sequence: ids ``[T, L, K]``, scores ``[T, L, E]``, predictions ``[D, L-1, E]``.

        T is the prompt and ``new_tokens - 1`` decoded tokens: the last one is not read any more.
        """
        r, tokens = self.recipe, prompt + new_tokens - 1
        own, other = (self._popularity() for _ in range(2))
        before = self._alike * own + np.sqrt(1 - self._alike**2) * other
        logits = self._noise_std * self._normal(tokens, self.layers, self.experts)
        logits[:prompt] += self._static_std * before
        logits[prompt:] += self._static_std * own
        state, fresh = self._normal(self.layers, self.experts), np.sqrt(1 - r.rho**2)
        for t in range(tokens):
            logits[t] += self._ar1_std * state
            state = r.rho * state + fresh * self._normal(self.layers, self.experts)
        ids = np.argsort(-logits, axis=2, kind="stable")[:, :, : self.top_k]
        predicted = None
        if self._predictions is not None:
            predicted = self._predictions.of(logits[prompt:, 1:], self._random)
        return ids, _softmax(r.spread * logits), predicted

    def _popularity(self) -> np.ndarray:
        """A sequence's static part, of variance one ``[L, E]``."""
        c = self.recipe.common
        return np.asarray(
            np.sqrt(c) * self._common + np.sqrt(1 - c) * self._normal(self.layers, self.experts)
        )


class DrawnPredictions:
    """Predictions of gate scores: the true logits and noise.

    Args:
        recall: the share of the true top-k that a prediction's top-k holds, on the mean.
        spread: standard deviation of logits as the gate's softmax sees them.
    """

    def __init__(self, experts: int, top_k: int, recall: float, spread: float) -> None:
        self._correlation = correlation_for_recall(experts, top_k, recall)
        self._spread = spread

    def of(self, logits: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Predicted scores ``[..., E]``, for logits of variance one."""
        wrong = random.standard_normal(logits.shape, dtype=np.float32)
        guess = self._correlation * logits + np.sqrt(1 - self._correlation**2) * wrong
        return _softmax(self._spread * guess)

    def of_scores(self, scores: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Predicted scores ``[..., E]`` where only the order of true scores is known.

        Normal logits are drawn and dealt in that order; equal scores take turns at random.
        """
        ranked = np.lexsort((random.random(scores.shape), -scores), axis=-1)
        drawn = random.standard_normal(scores.shape, dtype=np.float32)
        logits = np.empty_like(drawn)
        np.put_along_axis(logits, ranked, -np.sort(-drawn, axis=-1), axis=-1)
        return self.of(logits, random)


def _copy(of: Synthesis, alike: float) -> Synthesis:
    """The same model, drawing anew from its seed."""
    pilot = object.__new__(Synthesis)
    pilot.__dict__ |= of.__dict__
    pilot._predictions = None
    pilot._random, pilot._alike = np.random.default_rng(of.seed + 1), alike
    return pilot


def correlation_for_recall(experts: int, top_k: int, recall: float) -> float:
    """The correlation of two normal vectors whose top-k share this part, on 4,000 pairs."""
    random = np.random.default_rng(0)
    truth, wrong = random.standard_normal((2, 4000, experts), dtype=np.float32)
    best = np.argpartition(-truth, top_k - 1, axis=1)[:, :top_k]

    def shared(correlation: float) -> float:
        guess = correlation * truth + np.sqrt(1 - correlation**2) * wrong
        named = np.zeros(truth.shape, bool)
        np.put_along_axis(named, np.argpartition(-guess, top_k - 1, axis=1)[:, :top_k], True, 1)
        return float(np.take_along_axis(named, best, 1).mean())

    return 1.0 if top_k == experts else _bisect(shared, recall, 0.0, 1.0)


def _bisect(
    of: Callable[[float], float], wanted: float, low: float, high: float, steps: int = _BISECTIONS
) -> float:
    """Where a rising function reaches a value; the nearer end if it does not."""
    if of(high) <= wanted:
        return high
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle) < wanted else (low, middle)
    return (low + high) / 2


def _softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def drawn_header(synthesis: Synthesis, model: str) -> Header:
    """The header of a drawn trace."""
    recipe = synthesis.recipe
    made = f"drawn, recall {recipe.recall} asked"
    kinds = () if recipe.recall is None else (Lookahead.GATE, Lookahead.LAYER)
    return Header(
        model=model,
        workload="synthesized",
        num_moe_layers=synthesis.layers,
        num_experts=synthesis.experts,
        top_k=synthesis.top_k,
        scores="softmax of drawn logits",
        predictions={kind: Prediction(array="predicted", made=made) for kind in kinds},
        source={"recipe": {k: getattr(recipe, k) for k in _FIELDS}, "seed": synthesis.seed},
        notes=["drawn, not recorded: no text and no weights are behind it"],
    )


def synthesize(
    synthesis: Synthesis, model: str, prompts: Sequence[int], new_tokens: int, out: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:  # fmt: skip
    """Write a drawn trace; memory is that of one sequence.

    Args:
        prompts: tokens of each sequence's prompt.

    Raises:
        UsageError: ``out`` exists.
    """
    synthesis.fit(round(float(np.mean(prompts))), new_tokens)
    with writing(out, drawn_header(synthesis, model)) as writer:
        for s, prompt in enumerate(prompts):
            ids, scores, predicted = synthesis.draw(prompt, new_tokens)
            tokens = np.arange(len(ids))
            arrays = {} if predicted is None else {"predicted": predicted.astype(np.float16)}
            writer.append(
                ids=ids,
                sequence=np.full(len(ids), s),
                position=tokens,
                phase=tokens >= prompt,
                chosen=np.full(len(ids), -1),
                scores=scores.astype(np.float16),
                **arrays,
            )
            progress(s + 1, len(prompts))


_FIELDS = ("static", "ar1", "rho", "common", "depth", "prefill_similarity", "recall", "spread")


# ----------------------------------------------------------------------------- how close it came


def asked_and_drawn(
    recipe: SynthesisRecipe, sequences: Sequence[RoutedSequence], experts: int
) -> list[tuple[str, float | None, float]]:
    """For each statistic what was asked for (or published), None for neither, and what it became.

    Overlaps are those with the token 1 and 8 before, means over layers, and with the token before
    in the first, middle and last layer; ``gini`` is that of one sequence's decoded tokens, the mean
    over layers and sequences (short sequences push it up).  NaN where a trace is too short.
    """
    chance = sequences[0].ids_TLK.shape[2] / experts
    same = recipe.chance is not None and abs(chance - recipe.chance) < 1e-9
    asked: dict[str, float | None] = dict(recipe.published if same else ())
    overlaps = lag_overlap(sequences, 1)
    drawn = {
        "lag_overlap.1": float(overlaps.mean()),
        "lag_overlap.8": float(lag_overlap(sequences, 8).mean()),
        "first_layer": float(overlaps[0]),
        "middle_layer": float(overlaps[len(overlaps) // 2]),
        "last_layer": float(overlaps[-1]),
        "gini": _gini(sequences, experts),
        "gini_of_all": float(concentration(popularity(sequences, experts))["gini"].mean()),
    }
    if recipe.prefill_similarity is not None:
        asked["prefill_decode_similarity"] = recipe.prefill_similarity
        drawn["prefill_decode_similarity"] = prefill_decode_similarity(sequences, experts)
    if recipe.recall is not None:
        asked["recall"] = recipe.recall
        drawn["recall"] = float(np.nanmean(prediction_by_layer(sequences, Lookahead.GATE)[1:]))
    return [(name, asked.get(name), value) for name, value in drawn.items()]


def _gini(sequences: Sequence[RoutedSequence], experts: int) -> float:
    decoded = [
        RoutedSequence(s.ids_TLK[s.prefill :], 0) for s in sequences if len(s.ids_TLK) > s.prefill
    ]
    each = [concentration(popularity([s], experts))["gini"].mean() for s in decoded]
    return float(np.mean(each)) if each else float("nan")
