"""Hand-made inputs of policies: a small shape, a layer's view, a cache that is never read."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from moebench.substrate.engine.decisions import Active, Fetch, ForwardPass, LayerView
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.substrate.machines.timeline import Costs
from moebench.substrate.memory.cache import NEVER, ExpertCache, Scope
from moebench.substrate.memory.residency import Whereabouts
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.shape import GateKind, ModelShape
from moebench.substrate.terms import Phase


def shape(experts: int = 8, top_k: int = 3, layers: int = 2, **changed: Any) -> ModelShape:
    """Return a model shape in which only layers, experts and top-k matter."""
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
    """Return the model's own top-k, best first, ties to the lowest id."""
    return np.argsort(-scores_TE, axis=1, kind="stable")[:, :k]


def costs(
    load: Iterable[float] = (),
    host: Iterable[float] = (),
    per_row: Iterable[float] = (),
    device: Iterable[float] = (),
    first: Iterable[bool] | None = None,
) -> Costs:
    """Return measured durations, oldest first; ``first`` marks a layer's first experts."""
    measured = Costs()
    measured.load_ns.extend(load)
    measured.host_ns.extend(host)
    measured.host_ns_per_row.extend(per_row)
    measured.host_first.extend([False] * len(measured.host_ns) if first is None else first)
    measured.device_ns.extend(device)
    return measured


class Backlog:
    """Lanes that stay busy, and keep the control thread, for given times; 0 if none is given."""

    def __init__(
        self, busy_ns: Mapping[Lane, int] | None = None, load_path: tuple[Lane, ...] = (Lane.H2D,),
        control_ns: Mapping[tuple[OpKind, Lane], int] | None = None,
        estimate_ns: Mapping[tuple[OpKind, Lane], int] | None = None,
    ) -> None:  # fmt: skip
        self._busy_ns, self.load_path = dict(busy_ns or {}), load_path
        self._control_ns = dict(control_ns or {})
        self._estimate_ns = dict(estimate_ns or {})

    def backlog_ns(self, lane: Lane) -> int:
        return self._busy_ns.get(lane, 0)

    def estimate_ns(self, op: Op, lane: Lane) -> int:
        return self._estimate_ns.get((op.kind, lane), 0)

    def control_ns(self, op: Op, lane: Lane) -> int:
        return self._control_ns.get((op.kind, lane), 0)


def flags(experts: Iterable[int], total: int) -> np.ndarray:
    """Return an array of ``total`` flags that is True for the given experts."""
    found = np.zeros(total, dtype=bool)
    found[list(experts)] = True
    return found


def view(
    rows: Sequence[Sequence[float]] | np.ndarray,
    k: int = 3,
    resident: Iterable[int] = (),
    *,
    in_flight: Iterable[int] = (),
    own: Sequence[Sequence[int]] | np.ndarray | None = None,
    phase: Phase = "decode",
    layer: int = 0,
    layers: int = 2,
    alpha: float = 0.25,
    ahead: bool = False,
    of: float = 1.0,
    measured: Costs | None = None,
    lanes: Backlog | None = None,
    kind: type[LayerView] = LayerView,
    hidden: np.ndarray | None = None,
) -> LayerView:
    """Return one layer's view: scores are ``rows / of``; ``own`` sets the model's own choice."""
    given = np.asarray(rows)
    scores_TE = given / given.dtype.type(of) if given.dtype.kind == "f" else given / of
    tokens, experts = scores_TE.shape
    topk_ids_TK = own_choice(scores_TE, k) if own is None else np.asarray(own)
    prefill = phase == "prefill"
    made = kind(
        layer=layer,
        next_layer=layer + 1,
        phase=phase,
        shape=shape(experts, k, max(layers, layer + 2)),
        forward=ForwardPass(
            phase=phase,
            sequences=(tokens,) if prefill else (1,) * tokens,
            rows=tokens,
            context=tokens,
            pairs=tokens * (tokens + 1) // 2 if prefill else tokens,
            history=[topk_ids_TK],
        ),
        alpha=alpha,
        scores_TE=scores_TE,
        topk_ids_TK=topk_ids_TK,
        costs=measured or Costs(),
        lanes=lanes or Backlog(),
        ahead=ahead,
        hidden_TH=hidden,
    )
    there, coming = set(resident), set(in_flight)
    made.residency = Whereabouts(
        [0 if e in there else NEVER for e in range(experts)],
        bytes(e in there or e in coming for e in range(experts)),
        now_ns=0,
    )
    return made


def active(seen: LayerView, rows: Mapping[int, int] | None = None) -> Active:
    """Return the experts that the view's tokens use by the model's choice, or the given ones."""
    if rows is None:
        experts, counts = np.unique(seen.topk_ids_TK, return_counts=True)
        rows = dict(zip(experts.tolist(), counts.tolist(), strict=True))
    return Active(rows, seen)


def fetched(layer: int, fetches: Iterable[Fetch]) -> list[int]:
    """Return the experts of fetches in order, all plain fetches of this layer."""
    found = list(fetches)
    assert all(fetch == Fetch(layer, fetch.expert) for fetch in found)
    return [fetch.expert for fetch in found if fetch.expert is not None]


def started(
    policy: Any, experts: int = 4, layers: int = 2, slots: int = 4, scope: Scope = "global"
) -> Any:
    """Return an eviction policy at the start of a run."""
    model = shape(experts, 1, layers)
    policy.start(model, cache(model, slots, scope))
    return policy


def victim_of(policy: Any, *keys: int, total: int = 8) -> int | None:
    """Return which of these keys the policy evicts for some expert."""
    victim: int | None = policy.victim(flags(keys, total), incoming=7)
    return victim


def cache(model: ModelShape, slots: int, scope: Scope = "global") -> ExpertCache:
    """Return a cache of slots without bytes."""
    return ExpertCache(model, slots, scope, Tier("device", 0), 0)
