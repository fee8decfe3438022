"""AdapMoE: drop unimportant experts, and divide the slots so that the fewest loads are expected.

"AdapMoE: Adaptive Sensitivity-based Expert Gating and Management for Efficient MoE Inference" (S.
Zhong et al., ICCAD 2024, arXiv 2408.10284), after its code (PKU-SEC-Lab/AdapMoE 2cfe8df), which
is derived from Mixtral-Offloading's.  A token's second expert is dropped where that costs little
accuracy; one expert is fetched ahead; the device's slots are divided between layers by dynamic
programming.

    paper and code                          moebench
    ──────────────                          ────────
    adaptive gating: the second expert is   AdaptiveGating; T = ``route.threshold``, s_l measured or
      dropped where its normalised weight     ``route.sensitivity``
      < sqrt(T / s_l), in decode
    s_l: diagonal Fisher information        `DifferentiableDecoder.sensitivity`, see below
    dp.py: T slots divided by dynamic       `split`, PlaceBySplit
      programming
    LRU in each layer, highest ids first    StagedLRU with the shares that PlaceBySplit sets
    prefetch: gate l + 1 on this layer's    FirstMissing: one expert, the best-scored of the
      normed state, exactly one expert        predicted top-k that is missing; from more layers
                                              (the paper's 2 to 3) with ``prefetch.layers``
    buffers for transfers under way (6)     ``evict.staging``, counted as device slots
    experts in 2 bits (HQQ)                 ``--set expert_precision=2bit``

More than two experts a token.  Dropping a set of experts with the share d of the token's weight,
and renormalising the others, changes the output by d · (mean of the others - mean of the dropped).
To second order the loss changes by ½ · s · d², so the rule is applied to the share of all dropped
experts: they are dropped from the lowest up, while the sum of their shares is below sqrt(T / s_l),
and the best one never is.  With two experts this is the paper's rule.

Sensitivity.  The authors publish s_l of Mixtral, but not the script that measured it.  A live run
measures s_l on the calibration texts, as Fisher information of the lowest expert's share.  Experts
of a scale model matter less than those of a large one (T = 0.005 would leave one of two or eight),
so the values are scaled to the authors' operating point: at T = 0.005 a quarter of all droppable
experts is dropped, as on Mixtral (dp.py's mean is 0.248).  A replay has no gradients and uses the
authors' values, interpolated by relative depth for models with another number of layers.

Split.  The division of slots minimises the sum of the layers' expected loads: the misses with that
many slots, less one if there is a miss and the prefetch was right.  dp.py assumes that every set of
experts is equally likely to be cached (``place.misses=uniform``).  If a token uses many of many
experts, these loads fall in a straight line, so that some layers would get all slots and others one
(on S3 a token takes a fifth longer than with equal shares); on Mixtral it matters little.  The
default, ``measured``, counts LRU's misses on the calibration texts.

Deviations and readings, where the sources are silent:

- Only the abstract and summaries of the paper were available; everything else follows the code.
- The code detects decode by a single row, so it neither gates nor prefetches for a batch.  moebench
  knows the phase: each row is gated by itself, and the prefetch uses the best score of any row.
- All of a token's dropped experts share one limit; measured sensitivities are scaled until a
  quarter is dropped; LRU's misses on the texts replace dp.py's (``place.misses=uniform``).
- "Normalised weight" is the share of a token's gate scores, which for Mixtral is its weight.
- dp.py has constants of Mixtral for how many experts a token uses and how often a prefetch is
  right; moebench measures both on the calibration texts.  The accuracy of a prefetch is the share
  of the predicted top-k that was chosen, or 0 if nothing is fetched ahead.
- Every layer gets a slot if there are enough, and no more than it has experts.
- The eviction policy enforces the shares, not separate pools (`Placement.slots`), because all
  layers share the buffers.
- In the code the next layer always waits for a prefetch, and an expert's first matrix is computed
  while the others are copied.  In moebench an expert waits for its own record, whole.
- A prefetch that has not begun when its layer's gate is known is dropped.
- ``route.threshold=0`` is lossless, as the code's default is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from moebench.substrate.engine.decisions import NO_EXPERT, Fetch, Forecast, LayerView, Routed
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Learnt, Lookahead, RoutedSequence, Scores
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.evict_staged import StagedLRU
from moebench.systems.policies.place import last_ids
from moebench.systems.policies.predict import NextGatesOnNormed
from moebench.systems.policies.prefetch import ranked
from moebench.systems.policies.split import measured_loads, split, uniform_loads

#: T of the authors' run.py, and the share of droppable experts that it drops on Mixtral.
THRESHOLD, DROPPED = 0.005, 0.25
#: s_l as measured by the authors: Mixtral 8x7B (run.py) and 8x22B (run_acc_benchmark.py).
MIXTRAL_8X7B = (
    46.69, 17.30, 13.02, 7.641, 4.169, 2.230, 1.256, 0.8445, 0.6838, 0.5603, 0.5126, 0.4780,
    0.4454, 0.4356, 0.3836, 0.3099, 0.2331, 0.1761, 0.1384, 0.1138, 0.1047, 0.09543, 0.08625,
    0.07713, 0.06938, 0.06109, 0.05025, 0.04256, 0.03350, 0.02527, 0.02068, 0.02295,
)  # fmt: skip
MIXTRAL_8X22B = (
    61.74, 30.83, 22.53, 18.12, 15.12, 12.26, 7.301, 4.386, 3.167, 2.322, 1.876, 1.501, 1.272,
    1.110, 0.9757, 0.8828, 0.8225, 0.7468, 0.6462, 0.6081, 0.5720, 0.5017, 0.4849, 0.4674, 0.4506,
    0.4441, 0.4266, 0.4034, 0.3987, 0.3824, 0.3599, 0.3467, 0.3329, 0.3283, 0.3180, 0.3047, 0.2975,
    0.2854, 0.2730, 0.2586, 0.2432, 0.2291, 0.2132, 0.1991, 0.1838, 0.1745, 0.1653, 0.1521, 0.1430,
    0.1259, 0.1048, 0.08550, 0.07233, 0.06393, 0.05674, 0.08506,
)  # fmt: skip


# ----------------------------------------------------------------------------- adaptive gating


def measured_by_the_authors(layers: int) -> np.ndarray:
    """Return s_l of Mixtral; for another number of layers, log-linear in relative depth."""
    known = MIXTRAL_8X22B if layers == len(MIXTRAL_8X22B) else MIXTRAL_8X7B
    depths = np.linspace(0, 1, len(known))
    found: np.ndarray = np.exp(np.interp(np.linspace(0, 1, layers), depths, np.log(known)))
    return found


def droppable(scores_TK: Scores) -> Scores:
    """Return, for each expert (best first), the score share of it and all lower experts."""
    share = scores_TK / scores_TK.sum(axis=-1, keepdims=True)
    found: Scores = share[..., ::-1].cumsum(axis=-1)[..., ::-1]
    return found


def dropped(scores_TK: Scores, limit: float | np.ndarray) -> Mask:
    """Return a mask of the dropped experts: those with a share below the limit, except the best."""
    found: Mask = droppable(scores_TK) < limit
    found[..., 0] = False
    return found


@dataclass(kw_only=True)
class AdaptiveGating(Routing):
    """Drops a decoded token's lowest experts while their share is below sqrt(T / s_l).

    Attributes:
        threshold: T.
        sensitivity: s_l of each layer with experts; empty measures it, see the module.
    """

    threshold: float = option(THRESHOLD, low=0, searched=(0.0005, 0.05), scale="log")
    sensitivity: Sequence[float] = ()

    learns_from: ClassVar[frozenset[Learnt]] = frozenset({"scores", "sensitivity"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not value > 0 for value in self.sensitivity):
            raise UsageError(f"route.sensitivity is {[*self.sensitivity]}; allowed: above 0 each")
        self._measured: np.ndarray | None = None

    @property
    def calibrates(self) -> bool:  # type: ignore[override]
        """Whether sensitivities must be measured because none were given."""
        return not self.sensitivity

    @property
    def learnt(self) -> Mapping[str, str]:
        """Sensitivities of the first and last layer, or a note that they are Mixtral's."""
        if self._measured is None:
            return {"note": "sensitivities are AdapMoE's of Mixtral: a recording has no gradients"}
        first, last = self._measured[0], self._measured[-1]
        return {"sensitivity": f"measured: {first:.3g} in the first layer, {last:.3g} in the last"}

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        """Average the sensitivities over the texts, scaled to the authors' operating point."""
        known = [(text.sensitivity_L, len(text.ids_TLK)) for text in sequences]
        measured = [(values, tokens) for values, tokens in known if values is not None]
        self._measured = None
        if len(measured) < len(known):
            return
        values_SL, tokens_S = map(np.array, zip(*measured, strict=True))
        mean_L = np.average(values_SL, axis=0, weights=tokens_S)
        shares_TLK = droppable(np.concatenate([chosen_scores(text) for text in sequences]))
        changes = shares_TLK[..., 1:] ** 2 * mean_L[:, None]
        if changes.size:
            mean_L = mean_L * THRESHOLD / max(float(np.quantile(changes, DROPPED)), 1e-30)
        self._measured = np.maximum(mean_L, 1e-30)

    def limits(self, shape: ModelShape) -> np.ndarray:
        """Return sqrt(T / s_l) of each layer with experts; refuse any other number of s_l."""
        layers, values_L = len(shape.moe_layers), self._measured
        if self.sensitivity:
            values_L = np.array(self.sensitivity, dtype=float)
        elif values_L is None:
            values_L = measured_by_the_authors(layers)
        if len(values_L) != layers:
            raise UsageError(
                f"route.sensitivity has {len(values_L)} values, the model has {layers} layers with "
                "experts; give one for each as JSON: --set 'route.sensitivity=[46.7, 17.3, ...]'"
            )
        found: np.ndarray = np.sqrt(self.threshold / values_L)
        return found

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Compute the limit sqrt(T / s_l) of each layer."""
        self._limits = dict(zip(shape.moe_layers, self.limits(shape).tolist(), strict=True))

    def lossless_at(self, alpha: float) -> bool:
        """Return whether no expert is ever dropped."""
        return self.threshold == 0

    def route(self, view: LayerView) -> Routed:
        """Return the model's own top-k, in decode without the dropped experts."""
        own_TK = view.topk_ids_TK
        if view.phase == "prefill":
            return Routed(own_TK, own_TK)
        scores_TK = np.take_along_axis(view.scores_TE, own_TK, axis=1)
        drop_TK = dropped(scores_TK, self._limits[view.layer])
        ids_TK = np.where(drop_TK, NO_EXPERT, own_TK) if drop_TK.any() else own_TK
        return Routed(ids_TK, ids_TK)


def chosen_scores(text: RoutedSequence) -> Scores:
    """Return the chosen experts' scores of decoded tokens ``[T, L, K]``, or ones if unknown."""
    ids_TLK = text.ids_TLK[text.prefill :]
    if text.scores_TLE is None:
        return np.ones(ids_TLK.shape)
    scores_TLE = text.scores_TLE[text.prefill :].astype(np.float64)
    found: Scores = np.take_along_axis(scores_TLE, ids_TLK.astype(np.int64), axis=2)
    return found


# ----------------------------------------------------------------------------- the cache's split


@dataclass(kw_only=True)
class PlaceBySplit(Placement):
    """Gives each layer the slots that minimise expected loads; places the highest ids first.

    AdapMoE passes its routing and prefetching to `beside`; in another system no token drops an
    expert and nothing is fetched ahead.  With separate pools all layers get the same number.

    Attributes:
        misses: how a layer's misses are estimated: ``measured`` replays the texts through LRU;
            ``uniform`` assumes that every set of experts is equally likely to be cached (dp.py).
    """

    misses: Literal["measured", "uniform"] = option("measured", searched=True)

    calibrates: ClassVar[bool] = True
    learns_from: ClassVar[frozenset[Learnt]] = frozenset({"scores", "predictions"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._gating: AdaptiveGating | None = None
        self._predicted = Lookahead.NONE
        self._texts: Sequence[RoutedSequence] = ()

    def beside(self, route: Routing, prefetch: Prefetching) -> None:
        """Note the system's gating, and the predictions by which it fetches experts ahead."""
        self._gating = route if isinstance(route, AdaptiveGating) else None
        predictor = prefetch.predictor
        self._predicted = Lookahead.NONE if predictor is None else predictor.lookahead

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        """Keep the texts: their experts can be counted only when the gating is calibrated."""
        self._texts = sequences

    @property
    def learnt(self) -> Mapping[str, str]:
        """Number of decoded tokens in the calibration texts."""
        tokens = sum(len(text.ids_TLK) - text.prefill for text in self._texts)
        return {"tokens": str(tokens)} if tokens else {}

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> list[tuple[int, int]]:
        """Return the highest ids of each layer, as many as `split` gives it."""
        layers, experts = len(shape.moe_layers), shape.num_experts
        if scope == "layer":
            return last_ids(shape, [min(slots // layers, experts)] * layers)
        return last_ids(shape, split(slots, self.loads(shape)))

    def loads(self, shape: ModelShape) -> list[list[float]]:
        """Return the expected loads a token of each layer with experts, by its number of slots."""
        experts, found = shape.num_experts, []
        for tokens, accuracy in zip(self.used(shape), self.accuracies(shape), strict=True):
            if self.misses == "measured" and tokens:
                found.append(measured_loads(experts, tokens, accuracy))
                continue
            counts = [len(used) for used in tokens] or [shape.top_k]
            used_J = np.bincount(counts, minlength=shape.top_k + 1)[1:] / len(counts)
            found.append(uniform_loads(experts, used_J.tolist(), accuracy))
        return found

    def used(self, shape: ModelShape) -> list[list[list[int]]]:
        """Return each layer's experts of each decoded token of the texts, best first."""
        found: list[list[list[int]]] = [[] for _ in shape.moe_layers]
        limits_L = None if self._gating is None else self._gating.limits(shape)
        for text in self._texts:
            ids_TLK = text.ids_TLK[text.prefill :]
            keep_TLK = np.ones(ids_TLK.shape, dtype=bool)
            if limits_L is not None:
                keep_TLK = ~dropped(chosen_scores(text), limits_L[:, None])
            for ids_LK, keep_LK in zip(ids_TLK, keep_TLK, strict=True):
                for tokens, ids_K, keep_K in zip(found, ids_LK, keep_LK, strict=True):
                    tokens.append(ids_K[keep_K].tolist())
        return found

    def accuracies(self, shape: ModelShape) -> list[float]:
        """Return each layer's share of the predicted top-k that was chosen; 0 for the first."""
        layers, k = len(shape.moe_layers), shape.top_k
        right_L, asked = np.zeros(layers), 0
        for text in self._texts:
            predicted_TLE = text.predicted_TLE.get(self._predicted)
            if predicted_TLE is None:
                continue
            ids_TLK = text.ids_TLK[text.prefill :].astype(np.int64)
            chosen_TLE = np.zeros((*ids_TLK.shape[:2], shape.num_experts), dtype=bool)
            np.put_along_axis(chosen_TLE, ids_TLK, True, axis=2)
            made_TLE = predicted_TLE[text.prefill :, :-1]
            order = np.argsort(-made_TLE, axis=2, kind="stable")[..., :k]
            right = np.take_along_axis(chosen_TLE[:, 1:] & ~np.isnan(made_TLE), order, axis=2)
            right_L[1:] += right.sum(axis=(0, 2))
            asked += len(ids_TLK) * k
        shares: list[float] = (right_L / max(asked, 1)).tolist()
        return shares


# ----------------------------------------------------------------------------- prefetching


@dataclass(kw_only=True)
class FirstMissing(Prefetching):
    """Fetches one expert: the best-scored of the next layer's predicted top-k that is missing.

    If nothing of the next layer is missing, the next ``layers`` are searched.
    """

    layers: int = option(1, low=1, searched=(1, 8))

    reads_scores = False

    @property
    def predictor(self) -> NextGatesOnNormed:
        """Predictor that runs later layers' gates on the state that this layer's gate reads."""
        return NextGatesOnNormed(layers=self.layers)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Keep the cache, to look up resident experts."""
        self._cache = cache

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return the best predicted expert not on the device or under way; none in prefill."""
        for layer, predicted_TE in forecast.items():
            for expert in ranked(predicted_TE)[: view.shape.top_k]:
                if not self._cache.holds(self._cache.key(layer, expert)):
                    return (Fetch(layer, expert),)
        return ()


@dataclass(kw_only=True)
class AdapMoE(System):
    """AdapMoE with the paper's policies for its decisions."""

    paper = "ICCAD 2024, arXiv 2408.10284"

    place: Placement = field(default_factory=PlaceBySplit)
    route: Routing = field(default_factory=AdaptiveGating)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=FirstMissing)
    evict: Eviction = field(default_factory=partial(StagedLRU, staging=6))

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.place, PlaceBySplit):
            self.place.beside(self.route, self.prefetch)
