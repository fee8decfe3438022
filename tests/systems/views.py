"""What a policy sees, made by hand: a small shape, one layer's view, a cache that is never read."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from moebench.substrate.engine.system import Costs, LayerView
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.shape import GateKind, ModelShape
from moebench.substrate.terms import Phase


def shape(experts: int = 8, top_k: int = 3, layers: int = 2, **changed: Any) -> ModelShape:
    """A model of which only the number of layers, experts and chosen experts matters."""
    sizes = {"hidden_size": 8, "vocab_size": 16, "num_heads": 2, "num_kv_heads": 2, "head_dim": 4}
    return ModelShape(
        family="by-hand",
        num_layers=layers,
        num_experts=experts,
        top_k=top_k,
        expert_width=4,
        gate=GateKind.SOFTMAX_TOPK,
        **sizes,
        **changed,
    )


def own_choice(scores_TE: np.ndarray, k: int) -> np.ndarray:
    """The model's own top-k, best first, ties to the lowest id."""
    return np.argsort(-scores_TE, axis=1, kind="stable")[:, :k]


def costs(
    load: Iterable[float] = (), host: Iterable[float] = (), per_row: Iterable[float] = ()
) -> Costs:
    """Measured durations, oldest first."""
    measured = Costs()
    measured.load_ns.extend(load)
    measured.host_ns.extend(host)
    measured.host_ns_per_row.extend(per_row)
    return measured


def view(
    rows: Sequence[Sequence[float]] | np.ndarray,
    k: int = 3,
    resident: Iterable[int] = (),
    *,
    own: Sequence[Sequence[int]] | np.ndarray | None = None,
    phase: Phase = "decode",
    layer: int = 0,
    of: float = 1.0,
    measured: Costs | None = None,
) -> LayerView:
    """One layer's gate: scores are ``rows / of``; ``own`` where the model breaks ties oddly."""
    scores_TE = np.asarray(rows, dtype=np.float64) / of
    experts = scores_TE.shape[1]
    resident_E = np.zeros(experts, dtype=bool)
    resident_E[list(resident)] = True
    return LayerView(
        phase=phase,
        layer=layer,
        shape=shape(experts, k),
        scores_TE=scores_TE,
        scores=scores_TE.tolist(),
        own_TK=own_choice(scores_TE, k) if own is None else np.asarray(own),
        resident_E=resident_E,
        in_flight_E=np.zeros(experts, dtype=bool),
        costs=measured or Costs(),
    )


def cache(model: ModelShape, slots: int, scope: Scope = "global") -> ExpertCache:
    """Slots without bytes."""
    return ExpertCache(model, slots, scope, Tier("device", 0), 0)
