"""Doubles for tests of the engine, and an engine wired to them.

`FixedModel` answers gates and predictions from tables, `FlatCosts` prices operations from a small
one, so that a timeline can be worked out by hand.  `random_trace` makes routing for properties.
`rig` records every span and claim; `tests.substrate.engine.checker` checks them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.system import System
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import GateKind, ModelShape
from moebench.substrate.terms import Gate, Ids, Lookahead, Phase, Scores
from moebench.substrate.traces.passes import PassTrace, RoutingTrace

RECORD_BYTES = 1000


def small_shape(
    *,
    layers: int = 3,
    experts: int = 4,
    top_k: int = 2,
    dense_layers: tuple[int, ...] = (),
    shared: bool = False,
) -> ModelShape:
    """A shape whose widths mean nothing."""
    return ModelShape(
        family="mixtral",
        num_layers=layers,
        hidden_size=8,
        vocab_size=16,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        num_experts=experts,
        top_k=top_k,
        expert_width=4,
        dense_layers=dense_layers,
        dense_width=16 if dense_layers else 0,
        shared_width=4 if shared else 0,
        gate=GateKind.SOFTMAX_TOPK,
    )


def top_k_of(scores_TE: Scores, k: int) -> Ids:
    """Best first; ties to the lowest id."""
    return np.argsort(-scores_TE, axis=1, kind="stable")[:, :k]


class FixedModel:
    """Answers from tables and writes down what it was asked to compute.

    Args:
        gates: (pass, layer) → scores ``[T, E]``; its rows are the pass's.
        predictions: (pass, layer) → scores for the next layer.
    """

    def __init__(
        self,
        shape: ModelShape,
        gates: Mapping[tuple[int, int], Sequence[Sequence[float]]],
        predictions: Mapping[tuple[int, int], Sequence[Sequence[float]]] | None = None,
    ) -> None:
        self.shape = shape
        self._gates = {k: np.array(v, dtype=np.float64) for k, v in gates.items()}
        self._predictions = {
            k: np.array(v, dtype=np.float64) for k, v in (predictions or {}).items()
        }
        self._pass = -1
        #: (pass, layer, expert) in the order of computation.
        self.computed: list[tuple[int, int, int]] = []

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        forced: Sequence[Sequence[int]] = (),
    ) -> None:
        self._lengths = [len(p) for p in prompts]

    def embed(self, phase: Phase) -> int:
        self._pass += 1
        return sum(self._lengths) if phase == "prefill" else len(self._lengths)

    def attend(self, layer: int) -> None: ...

    def dense(self, layer: int) -> None: ...

    def shared(self, layer: int) -> None: ...

    def gate(self, layer: int) -> Gate:
        scores_TE = self._gates[self._pass, layer]
        return Gate(scores_TE, top_k_of(scores_TE, self.shape.top_k))

    def dispatch(self, layer: int, ids_TK: Ids, weigh_as_TK: Ids) -> dict[int, int]:
        experts, rows = np.unique(ids_TK, return_counts=True)
        self._active = dict(zip(experts.tolist(), rows.tolist(), strict=True))
        return self._active

    def compute(self, layer: int, experts: Sequence[int], stale: bool = False) -> None:
        self.computed += [(self._pass, layer, expert) for expert in experts]

    def foresee(self, layer: int) -> Scores:
        return self._predictions[self._pass, layer]

    def recall(self, layer: int) -> Gate:
        return self.gate(layer)

    def combine(self, layer: int) -> None:
        done = {e for p, at, e in self.computed if (p, at) == (self._pass, layer)}
        assert done == set(self._active)

    def predict(self, layer: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        return self._predictions[self._pass, layer]

    def head(self) -> list[int]:
        return [self._pass] * len(self._lengths)


class FlatCosts:
    """Stands in for `CostModel`: one price for each operation on each lane.

    An expert operation costs and launches once for each of its experts.
    """

    def __init__(
        self,
        lanes: Mapping[tuple[Lane, OpKind], int],
        *,
        launch_ns: int = 0,
        submit_ns: int = 0,
        sync_ns: int = 0,
        decision_ns: int = 0,
    ) -> None:
        self._lanes = dict(lanes)
        self._launch_ns, self.copy_submit_ns = launch_ns, submit_ns
        self.sync_ns, self.decision_ns = sync_ns, decision_ns
        self.record_bytes = RECORD_BYTES

    def ns(self, op: Op, lane: Lane) -> int:
        return self._lanes[lane, op.kind] * _experts_in(op)

    def price(self, op: Op, lane: Lane) -> tuple[int, int, int]:
        return self.first_launch_ns(op, lane), self.control_ns(op, lane), self.ns(op, lane)

    def first_launch_ns(self, op: Op, lane: Lane) -> int:
        return self._launch_ns if lane is Lane.DEVICE else self.copy_submit_ns

    def control_ns(self, op: Op, lane: Lane) -> int:
        return self._launch_ns * _experts_in(op) if lane is Lane.DEVICE else self.copy_submit_ns


def _experts_in(op: Op) -> int:
    return len(op.rows) if op.kind is OpKind.EXPERT else 1


def prices(
    *,
    attend: int = 30,
    gate: int = 3,
    expert: int = 10,
    shared: int = 8,
    combine: int = 2,
    dense: int = 20,
    predict: int = 5,
    head: int = 6,
    load: int = 40,
    read: int = 60,
    host: int = 55,
    back: int = 4,
    network: int = 25,
) -> dict[tuple[Lane, OpKind], int]:
    """A table for `FlatCosts`, in ns."""
    device = {
        OpKind.ATTEND: attend,
        OpKind.GATE: gate,
        OpKind.EXPERT: expert,
        OpKind.SHARED: shared,
        OpKind.COMBINE: combine,
        OpKind.DENSE: dense,
        OpKind.PREDICT: predict,
        OpKind.HEAD: head,
    }
    return {(Lane.DEVICE, kind): ns for kind, ns in device.items()} | {
        (Lane.H2D, OpKind.LOAD): load,
        (Lane.DISK, OpKind.READ): read,
        (Lane.HOST, OpKind.EXPERT): host,
        (Lane.D2H, OpKind.RETURN): back,
        (Lane.PREDICT, OpKind.PREDICT): network,
    }


# ----------------------------------------------------------------------------- random routing


def random_trace(
    seed: int,
    shape: ModelShape,
    batches: Sequence[Sequence[int]],
    passes: int,
    *,
    sticky: float = 0.7,
    predictable: float = 0.8,
) -> RoutingTrace:
    """Random gates, skewed towards what the last pass used.

    Args:
        batches: for each batch, the lengths of its prompts.
        sticky: how much of a sequence's logits outlives a pass.
        predictable: how much of a prediction is the next gate's truth.
    """
    random = np.random.default_rng(seed)
    trace = RoutingTrace(shape)
    for lengths in batches:
        logits = {i: _noise(random, len(lengths), shape) for i in shape.moe_layers}
        trace.batches.append([])
        for step in range(passes):
            repeats = [1] * len(lengths) if step else lengths
            scores: dict[int, Scores] = {}
            for layer in shape.moe_layers:
                fresh = _noise(random, len(lengths), shape)
                logits[layer] = sticky * logits[layer] + (1 - sticky) * fresh
                rows = np.repeat(logits[layer], repeats, axis=0)
                noise = 0 if step else _noise(random, len(rows), shape)
                scores[layer] = _softmax(rows + noise)
            done = PassTrace(tuple(repeats))
            for layer, scores_TE in scores.items():
                done.gates[layer] = Gate(scores_TE, top_k_of(scores_TE, shape.top_k))
                if layer + 1 in scores:
                    guess = _softmax(_noise(random, len(scores_TE), shape))
                    truth = scores[layer + 1]
                    done.predicted[layer] = predictable * truth + (1 - predictable) * guess
            done.chosen = random.integers(0, shape.vocab_size, len(lengths)).tolist()
            trace.batches[-1].append(done)
    return trace


def _noise(random: np.random.Generator, rows: int, shape: ModelShape) -> np.ndarray:
    return 2 * random.standard_normal((rows, shape.num_experts))


def _softmax(logits: np.ndarray) -> Scores:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


# ----------------------------------------------------------------------------- a wired engine


class Claim(NamedTuple):
    """An expert got a slot: before the span with this index; ``placed`` before the first of all."""

    index: int
    key: int
    slot: int
    victim: int | None
    placed: bool


@dataclass
class Rig:
    """An engine on a simulated machine, and everything that watched it."""

    engine: Engine
    machine: SimulatedMachine
    cache: ExpertCache
    timeline: Timeline
    tier: Tier
    claims: list[Claim]
    #: Control time at which each needed load was on its way, and its span on its first lane.
    needed: list[tuple[int, Span]]
    #: Phase of every LayerView, in order, with its layer.
    phases: list[tuple[Phase, int]]

    @property
    def spans(self) -> list[Span]:
        return self.timeline.spans


def rig(
    system: System,
    model: Model,
    *,
    slots: int,
    costs: Any = None,
    scope: Scope | None = None,
    from_disk: bool = False,
) -> Rig:
    """Wire a system on a simulated machine; its experts are placed when this returns."""
    costs = costs or FlatCosts(prices(), launch_ns=1, submit_ns=1, sync_ns=2, decision_ns=3)
    timeline = Timeline(costs.record_bytes, keep_all=True)
    machine = SimulatedMachine(costs, timeline, from_disk)
    tier = Tier("device", slots * costs.record_bytes)
    cache = ExpertCache(model.shape, slots, scope or system.scope, tier, costs.record_bytes)
    claims = _watch_claims(cache, timeline)
    needed = _watch_needed(machine)
    phases: list[tuple[Phase, int]] = []
    observe = system.observe

    def observed(view):
        phases.append((view.phase, view.layer))
        observe(view)

    system.observe = observed  # type: ignore[method-assign]
    engine = Engine(system, model, machine, cache, timeline)
    engine.start()
    claims[:] = [claim._replace(placed=True) for claim in claims]
    return Rig(engine, machine, cache, timeline, tier, claims, needed, phases)


def _watch_claims(cache: ExpertCache, timeline: Timeline) -> list[Claim]:
    claims: list[Claim] = []
    claim = cache.claim

    def watched(key: int, victim: int | None) -> int:
        slot = claim(key, victim)
        claims.append(Claim(len(timeline.spans), key, slot, victim, placed=False))
        return slot

    cache.claim = watched  # type: ignore[method-assign]
    return claims


def _watch_needed(machine: SimulatedMachine) -> list[tuple[int, Span]]:
    needed: list[tuple[int, Span]] = []
    load = machine.load

    def watched(op, transfer, after=()):
        span = load(op, transfer, after)
        needed.append((machine.now_ns(), machine.timeline.spans[-len(machine.load_path)]))
        return span

    machine.load = watched  # type: ignore[method-assign]
    return needed
