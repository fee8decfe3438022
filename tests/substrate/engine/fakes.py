"""Doubles for tests of the engine, and an engine wired to them.

`FixedModel` answers gates and predictions from tables, `FlatCosts` prices operations from a small
one, so that a timeline can be worked out by hand.  `random_trace` makes routing for properties.
`rig` records every span and claim; `moebench.harness.conformance.invariants` checks them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moebench.harness.conformance.watch import Again, Claim, LetGo, watch_again, watch_slots
from moebench.substrate.engine.counts import Counts
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.system import System
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.memory.capacity import Home
from moebench.substrate.memory.host import HostRecords
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import GateKind, ModelShape
from moebench.substrate.terms import LOOKAHEADS, Gate, Ids, Lookahead, Phase, Scores
from moebench.substrate.traces.passes import PassTrace, RoutingTrace
from tests.substrate.engine.watch import watch_needed, watch_turns

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
    """Answers from tables and writes down what it was asked.

    Args:
        gates: (pass, layer) → scores ``[T, E]``; its rows are the pass's.
        predictions: (pass, layer) → scores for the next layer with experts.
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
        #: (pass, layer, expert) in the order of computation; those of them on an older state.
        self.computed: list[tuple[int, int, int]] = []
        self.stale: list[tuple[int, int, int]] = []
        #: By (pass, layer, expert), the form from which it was computed, where that is not 0.
        self.forms: dict[tuple[int, int, int], int] = {}
        #: (pass, layer, later layer, experts that were done), one for each prediction.
        self.predicted: list[tuple[int, int, int, tuple[int, ...]]] = []
        #: (pass, layer, experts) whose outputs come one layer later.
        self.deferred: list[tuple[int, int, tuple[int, ...]]] = []
        #: (pass, layer) that were routed ahead.
        self.ahead: list[tuple[int, int]] = []
        #: (pass, layer, weights) in place of the gate's.
        self.weighed: list[tuple[int, int, list[list[float]]]] = []

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        forced: Sequence[Sequence[int]] = (),
    ) -> None:
        self._prompts = prompts
        self._lengths = [len(p) for p in prompts]

    def embed(self, phase: Phase) -> int:
        self._pass += 1
        self._rows = sum(self._lengths) if phase == "prefill" else len(self._lengths)
        return self._rows

    def attend(self, layer: int) -> None: ...

    def dense(self, layer: int) -> None: ...

    def shared(self, layer: int) -> None: ...

    def gate(self, layer: int) -> Gate:
        scores_TE = self._gates[self._pass, layer]
        return Gate(scores_TE, top_k_of(scores_TE, self.shape.top_k))

    def dispatch(self, layer: int, ids_TK: Ids, weigh_as_TK: Ids) -> dict[int, int]:
        experts, rows = np.unique(ids_TK[ids_TK >= 0], return_counts=True)
        self._active = dict(zip(experts.tolist(), rows.tolist(), strict=True))
        return self._active

    def weigh(self, layer: int, weights_TK: np.ndarray) -> None:
        self.weighed.append((self._pass, layer, weights_TK.tolist()))

    def compute(self, layer: int, experts: Sequence[int], form: int = 0) -> None:
        self.computed += [(self._pass, layer, expert) for expert in experts]
        self.forms |= {(self._pass, layer, expert): form for expert in experts if form}

    def compute_on_host(
        self, layer: int, experts: Sequence[int], ahead: bool = False, form: int = 0
    ) -> None:
        self.compute(layer, experts, form)
        if ahead:
            assert self.ahead[-1] == (self._pass, layer), "routed ahead, and not dispatched"
            self.stale += [(self._pass, layer, expert) for expert in experts]

    def route_ahead(self, layer: int, ids_TK: Ids) -> None:
        self.ahead.append((self._pass, layer))

    def defer(self, layer: int, experts: Sequence[int]) -> None:
        self.deferred.append((self._pass, layer, tuple(experts)))

    def combine(self, layer: int) -> None:
        done = [e for p, at, e in self.computed if (p, at) == (self._pass, layer)]
        assert sorted(done) == list(self._active), "every active expert is computed once"

    def predict(self, layer: int, later: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        self.predicted.append((self._pass, layer, later, tuple(done)))
        return self._predictions[self._pass, layer]

    def hidden(self, layer: int) -> np.ndarray:
        """A state that says where it is from: pass and layer."""
        return np.full((self._rows, 2), [self._pass, layer])

    def token_norms(self, layer: int) -> np.ndarray | None:
        return np.linalg.norm(self.hidden(layer), axis=1)

    def embedding(self) -> np.ndarray:
        """The mean of each prompt's tokens."""
        return np.array([[np.mean(prompt)] for prompt in self._prompts])

    def head(self) -> list[int]:
        return [self._pass] * len(self._lengths)


#: By lane and kind, and apart, of a read that is queued.
Prices = dict[tuple[Lane, OpKind] | tuple[Lane, OpKind, str], int]


class FlatCosts:
    """Stands in for `CostModel`: one price for each operation on each lane.

    An expert operation costs and launches once for each of its experts, a part of a record costs
    that part, and a form its bytes' part of form 0.  A layer's common weights are ten records.
    """

    def __init__(
        self,
        lanes: Prices,
        *,
        launch_ns: int = 0,
        submit_ns: int = 0,
        sync_ns: int = 0,
        decision_ns: int = 0,
        waits: bool = False,
        lost_together: float = 0.0,
        form_bytes: Sequence[int] = (RECORD_BYTES,),
    ) -> None:
        self._lanes = dict(lanes)
        self._launch_ns, self.copy_submit_ns = launch_ns, submit_ns
        self.load_submit_ns = submit_ns
        self.sync_ns, self.decision_ns = sync_ns, decision_ns
        self.record_bytes, self.form_bytes = RECORD_BYTES, form_bytes
        self.waits_each_layer, self.synchronous = waits, False
        self.lost_beside_copies = 0.0
        self.lost_together = lost_together

    def ns(self, op: Op, lane: Lane) -> int:
        if op.queued:
            return self._lanes[lane, op.kind, "queued"]
        part = self.form_bytes[op.form] / RECORD_BYTES / (op.chunk[1] if op.chunk else 1)
        return round(self._lanes[lane, op.kind] * _experts_in(op) * part)

    def least_load_ns(self, form: int) -> float:
        return self.ns(Op(OpKind.LOAD, 0, form=form), Lane.H2D)

    def least_host_ns(self, op: Op) -> float:
        return self.ns(op, Lane.HOST)

    def expert_products(self, rows: int) -> tuple[float, float]:
        return self._lanes[Lane.DEVICE, OpKind.EXPERT], self._lanes[Lane.HOST, OpKind.EXPERT]

    def host_begins_ns(self, experts: int) -> float:
        return 0.0

    def moved_bytes(self, op: Op) -> int:
        if op.kind is OpKind.PAGE:
            part, parts = op.chunk or (0, 1)
            size = len(op.experts) * self.record_bytes
            return size * (part + 1) // parts - size * part // parts
        return 10 * RECORD_BYTES if op.kind is OpKind.STREAM else self.form_bytes[op.form]

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
    queued: int | None = None,
    host: int = 55,
    back: int = 4,
    network: int = 25,
    write: int = 35,
    stream: int = 300,
    on_host: int = 70,
    project: int = 20,
    core: int = 50,
    output: int = 7,
    qkv: int = 4,
    state: int = 5,
    page: int = 100,
    stage: int = 0,
) -> Prices:
    """A table for `FlatCosts`, in ns.

    ``on_host`` is any part of a layer but an expert there, ``queued`` a read behind others (as
    alone, if it is not given).  ``page`` and ``stage`` are all pages of a layer.
    """
    device = {
        OpKind.ATTEND: attend,
        OpKind.GATE: gate,
        OpKind.EXPERT: expert,
        OpKind.SHARED: shared,
        OpKind.COMBINE: combine,
        OpKind.DENSE: dense,
        OpKind.PREDICT: predict,
        OpKind.HEAD: head,
        OpKind.PROJECT: project,
        OpKind.OUTPUT: output,
    }
    common = (OpKind.ATTEND, OpKind.GATE, OpKind.SHARED, OpKind.DENSE)
    return (
        {(Lane.DEVICE, kind): ns for kind, ns in device.items()}
        | {(Lane.HOST, kind): on_host for kind in common}
        | {
            (Lane.H2D, OpKind.LOAD): load,
            (Lane.H2D, OpKind.STREAM): stream,
            (Lane.H2D, OpKind.PAGE): page,
            (Lane.H2D, OpKind.RETURN): state,
            (Lane.HOST, OpKind.CORE): core,
            (Lane.HOST, OpKind.PAGE): stage,
            (Lane.D2H, OpKind.QKV): qkv,
            (Lane.DISK, OpKind.READ): read,
            (Lane.DISK, OpKind.READ, "queued"): read if queued is None else queued,
            (Lane.HOST, OpKind.EXPERT): host,
            (Lane.D2H, OpKind.RETURN): back,
            (Lane.D2H, OpKind.WRITE_BACK): write,
            (Lane.PREDICT, OpKind.PREDICT): network,
            (Lane.HOST, OpKind.PREDICT): network,
        }
    )


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
    """Random gates, skewed towards what the last pass used, and predictions of two layers.

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
                row = shape.moe_rows[layer]
                for later in shape.moe_layers[row + 1 : row + 3]:
                    for kind in LOOKAHEADS:
                        guess = _softmax(_noise(random, len(scores_TE), shape))
                        mixed = predictable * scores[later] + (1 - predictable) * guess
                        done.predicted.setdefault(kind, {})[layer, later] = mixed
            done.chosen = random.integers(0, shape.vocab_size, len(lengths)).tolist()
            trace.batches[-1].append(done)
    return trace


def _noise(random: np.random.Generator, rows: int, shape: ModelShape) -> np.ndarray:
    return 2 * random.standard_normal((rows, shape.num_experts))


def _softmax(logits: np.ndarray) -> Scores:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


# ----------------------------------------------------------------------------- a wired engine


@dataclass
class Rig:
    """An engine on a simulated machine, and everything that watched it."""

    engine: Engine
    machine: SimulatedMachine
    cache: ExpertCache
    timeline: Timeline
    tier: Tier
    #: What happened to slots, in order.
    events: list[Claim | LetGo | Again]
    #: Control time at which each needed load was submitted, and its span on its first lane.
    needed: list[tuple[int, Span]]
    #: On which lane and when the turn of each speculative prefetch came.
    turns: list[tuple[Lane, int]]
    #: Phase of every LayerView, in order, with its layer.
    phases: list[tuple[Phase, int]]

    @property
    def spans(self) -> list[Span]:
        return self.timeline.spans

    @property
    def claims(self) -> list[Claim]:
        return [event for event in self.events if isinstance(event, Claim)]

    @property
    def counts(self) -> dict[Phase, Counts]:
        return self.engine.tally.by_phase


def host_memory(records: int | None, record_bytes: int = RECORD_BYTES) -> HostRecords | None:
    """Host memory with room for so many records, or for all."""
    if records is None:
        return None
    return HostRecords(Tier("host", records * record_bytes), record_bytes)


def rig(
    system: System,
    model: Model,
    *,
    slots: int | Sequence[int],
    costs: Any = None,
    scope: Scope | None = None,
    host_records: int | None = None,
    homes: Sequence[Home] = (),
    streams_from_disk: bool = False,
    more: Sequence[int] = (),
    chosen: np.ndarray | None = None,
) -> Rig:
    """Wire a system on a simulated machine; its experts are placed when this returns.

    Args:
        host_records: where experts are on the disk, how many fit into host memory.
        more: slots of form 1 and further ones, whose bytes ``costs`` has.
        chosen: the form of each expert's only record ``[layers, E]``; all share ``slots``.
    """
    costs = costs or FlatCosts(prices(), launch_ns=1, submit_ns=1, sync_ns=2, decision_ns=3)
    timeline = Timeline(keep_all=True)
    machine = SimulatedMachine(
        costs,
        timeline,
        host_memory(host_records, costs.record_bytes),
        parallel_reads=system.parallel_reads,
        overlap=system.overlap,
        blocking_copies=system.blocking_copies,
    )
    forms = list(zip(more, costs.form_bytes[1:], strict=chosen is None))
    size = int(np.sum(slots)) * costs.record_bytes + sum(count * of for count, of in forms)
    tier = Tier("device", size)
    cache = ExpertCache(
        model.shape, slots, scope or system.scope, tier, costs.record_bytes, forms, chosen
    )
    events = watch_slots(cache, timeline)
    needed = watch_needed(machine, costs.copy_submit_ns)
    phases: list[tuple[Phase, int]] = []
    observe = system.observe

    def observed(view):
        phases.append((view.phase, view.layer))
        observe(view)

    system.observe = observed  # type: ignore[method-assign]
    engine = Engine(system, model, machine, cache, timeline, homes, streams_from_disk)
    turns = watch_turns(engine.transfers)
    watch_again(engine.transfers, timeline, events)
    engine.start()
    events[:] = [claim._replace(placed=True) for claim in events]
    return Rig(engine, machine, cache, timeline, tier, events, needed, turns, phases)
