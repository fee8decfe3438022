"""The one loop: a token's way through the layers, for every system, model and machine.

    attend → gate → (stale prefetches dropped) → route → assign
           → loads and host experts go to their lanes; resident and shared experts compute
           → the next layer is predicted, prefetches are queued
             (or, where the system foresees it, routed: its host experts start at once)
           → loaded experts compute as they arrive → all are combined

Prefill runs the same loop with many rows an expert.  Nothing here knows a system by name.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np

from moebench.substrate.engine.counts import Counts
from moebench.substrate.engine.system import Costs, LayerView, Missing, Routed, System, best_scores
from moebench.substrate.engine.transfers import Transfers
from moebench.substrate.errors import IntegrityError, UsageError
from moebench.substrate.machines.protocol import Lane, Machine, Op, OpKind, Span, Work, op_of
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.models.protocol import Model
from moebench.substrate.terms import Gate, Ids, Lookahead, Phase


class _Ahead(NamedTuple):
    """A layer that was routed while the one before it was computed."""

    own_TK: Ids
    routed: Routed
    #: The host's experts: when their outputs are back.
    returned: dict[int, Span]


@dataclass(slots=True)
class Generation:
    """One batch's outcome; times in ns of the machine's clock."""

    tokens: list[list[int]]
    started_ns: int
    token_ends_ns: list[int] = field(default_factory=list)
    #: For each decoded token: the keys that each MoE layer used, in order.
    used: list[list[list[int]]] = field(default_factory=list)

    @property
    def ttft_ns(self) -> int:
        """Time to the first token."""
        return self.token_ends_ns[0] - self.started_ns

    @property
    def steps_ns(self) -> list[int]:
        """Time of each further token."""
        ends = self.token_ends_ns
        return [b - a for a, b in pairwise(ends)]


class Engine:
    """Runs a system's decisions for a model on a machine."""

    def __init__(
        self, system: System, model: Model, machine: Machine, cache: ExpertCache, timeline: Timeline
    ) -> None:
        self.system, self.model, self.machine = system, model, machine
        self.cache, self.timeline = cache, timeline
        self._moe_layers = frozenset(model.shape.moe_layers)
        #: By layer: what was asked ahead for it.
        self._asked: dict[int, frozenset[int]] = {}
        self.counts: dict[Phase, Counts] = {"prefill": Counts(), "decode": Counts()}
        self.costs = Costs()
        self.transfers = Transfers(system.evict, machine, cache, self.costs)
        one = Op(OpKind.EXPERT, 0, rows=(1,), experts=(0,))
        self.costs.load_ns.append(machine.estimate_ns(Op(OpKind.LOAD, 0), machine.load_path[-1]))
        if machine.has_host_lane:
            estimate = machine.estimate_ns(one, Lane.HOST)
            self.costs.host_ns.append(estimate)
            self.costs.host_ns_per_row.append(estimate)

    def start(self) -> int:
        """Fill the device as the system places experts; returns how many were placed.

        This is loading time, before the clock of any request: nothing is charged to a lane.
        """
        shape, cache = self.model.shape, self.cache
        self.system.start(shape, cache)
        slots = cache.slots - self.system.evict.reserve
        placed = 0
        for layer, expert in self.system.place.place(shape, slots, cache.scope):
            self.transfers.place(layer, expert)
            placed += 1
        return placed

    # ------------------------------------------------------------------ a batch of prompts

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        forced: Sequence[Sequence[int]] = (),
        end: int | None = None,
    ) -> Generation:
        """Prefill the prompts, then decode until each has ``new_tokens`` new tokens.

        Args:
            forced: for each prompt, tokens taken instead of its own first choices.
            end: a token that ends a sequence; the batch stops when all of its sequences ended.
        """
        self.model.begin(prompts, new_tokens, forced)
        self.machine.begin()
        self._lengths = [len(p) for p in prompts]
        out = Generation([[] for _ in prompts], self.machine.now_ns())
        for step in range(new_tokens):
            phase: Phase = "decode" if step else "prefill"
            self.timeline.begin(phase)
            self._used: list[list[int]] = []
            self._ahead: _Ahead | None = None
            for tokens, token in zip(out.tokens, self._forward(phase), strict=True):
                tokens.append(token)
            out.token_ends_ns.append(self.machine.now_ns())
            self.timeline.token(step, out.token_ends_ns[-1])
            if phase == "decode":
                out.used.append(self._used)
            if end is not None and all(end in tokens for tokens in out.tokens):
                break
        return out

    def _forward(self, phase: Phase) -> list[int]:
        """One pass: the whole prompts, or one token of each sequence."""
        rows = self.model.embed(phase)
        if phase == "decode":
            self._lengths = [n + 1 for n in self._lengths]
        self._context = sum(self._lengths)
        # A prompt's rows each look back to its start; a decoded row sees the whole sequence.
        prefill = phase == "prefill"
        self._pairs = sum(n * (n + 1) // 2 if prefill else n for n in self._lengths)
        first = self.model.shape.moe_layers[0]
        self._ask(first, self.system.prefetch.opening(phase, first))
        for layer in range(self.model.shape.num_layers):
            attend = Op(OpKind.ATTEND, layer, (rows,), (), self._context, self._pairs)
            self._device(attend, self.model.attend, layer)
            if layer in self._moe_layers:
                self._moe(layer, phase, rows)
            else:
                self._device(op_of(OpKind.DENSE, layer, (rows,)), self.model.dense, layer)
        head = self._device(op_of(OpKind.HEAD, -1, (len(self._lengths),)), self.model.head)
        self.machine.wait(head)
        return cast(list[int], head.value)

    def _device(self, op: Op, work: Work, *args: Any) -> Span:
        return self.machine.submit(op, Lane.DEVICE, (), work, *args)

    # ------------------------------------------------------------------ a layer with experts

    def _moe(self, layer: int, phase: Phase, rows: int) -> None:
        model, machine, cache, system = self.model, self.machine, self.cache, self.system

        ahead, self._ahead = self._ahead, None
        gate = model.recall(layer) if ahead else self._gate(layer, rows)
        machine.cancel(layer)
        if phase == "decode" and layer + 1 in self._moe_layers and system.route.foresees(layer + 1):
            self._ahead = self._foresee(layer, rows)
        with machine.lock:
            view = self._view(layer, phase, gate)
            system.observe(view)
            routed = ahead.routed if ahead else system.route.route(view)
            active = model.dispatch(layer, routed.ids_TK, routed.weigh_as_TK)
            early = ahead.returned if ahead else {}
            hits, late, missing = self._whereabouts(view, active, early)
            assigned = system.assign.assign(view, missing)
            keys = cache.keys(layer, active)
            cache.pin(keys)
            system.evict.used(layer, active)
        machine.elapse(decisions=1)

        # Loads and host experts first: they take longest and cost the control thread least.
        arriving = [(e, self.transfers.arrival(layer, e)) for e in late]
        loads = self.transfers.demand(layer, assigned.load)
        arriving += zip(assigned.load, loads, strict=False)
        if early:
            model.compute(layer, list(early), stale=True)
        returned = [*early.values()]
        for e in assigned.host:
            returned.append(self._on_host(layer, e, active[e], model.compute, layer, [e]))
        reads: list[Span] = []
        if hits:
            each = tuple(map(active.__getitem__, hits))
            together = Op(OpKind.EXPERT, layer, each, tuple(hits))
            reads.append(self._device(together, model.compute, layer, hits))
        if model.shape.shared_width:
            self._device(op_of(OpKind.SHARED, layer, (rows,)), model.shared, layer)
        more, in_order = layer + 1 in self._moe_layers, system.prefetch.in_order
        predicted = self._predict(view, rows, hits) if more else None
        if more and not in_order:
            self._prefetch(view, layer + 1, predicted)
        for e, arrival in arriving:
            reads.append(self._compute(layer, e, active[e], arrival))
        with machine.lock:
            cache.read_by(reads)
        # More loads than slots: each waits for a computed expert to leave.
        for e in assigned.load[len(loads) :]:
            arrival = self.transfers.demand_when_free(layer, e)
            read = self._compute(layer, e, active[e], arrival)
            with machine.lock:
                cache.read_by((read,))
        combine = op_of(OpKind.COMBINE, layer, (rows,))
        machine.submit(combine, Lane.DEVICE, returned, model.combine, layer)
        if more and in_order:  # into slots that wait for what was just submitted
            self._prefetch(view, layer + 1, predicted)

        with machine.lock:
            cache.unpin(keys)
        self._count(view, routed, active, hits, late, assigned.load, [*early, *assigned.host])
        if ahead:
            self._count_foreseen(view, ahead)
        self._used.append(keys)

    def _gate(self, layer: int, rows: int) -> Gate:
        gated = self._device(op_of(OpKind.GATE, layer, (rows,)), self.model.gate, layer)
        self.machine.wait(gated)
        return cast(Gate, gated.value)

    def _foresee(self, layer: int, rows: int) -> _Ahead:
        """Route the next layer on this layer's state; its host experts start at once."""
        op = op_of(OpKind.PREDICT, layer, (rows,))
        span = self._device(op, self.model.foresee, layer)
        self.machine.wait(span)
        scores_TE = span.value
        own_TK = np.argsort(-scores_TE, axis=1, kind="stable")[:, : self.model.shape.top_k]
        with self.machine.lock:
            view = self._view(layer + 1, "decode", Gate(scores_TE, own_TK))
            routed = self.system.route.route(view)
        absent = [e for e in routed.ids_TK.ravel().tolist() if not view.resident_E[e]]
        early = Counter(absent) if self.machine.has_host_lane else {}
        returned = {e: self._on_host(layer + 1, e, rows) for e, rows in sorted(early.items())}
        return _Ahead(own_TK, routed, returned)

    def _view(self, layer: int, phase: Phase, gate: Gate) -> LayerView:
        resident, in_flight = self.cache.whereabouts(layer, self.machine.now_ns())
        return LayerView(
            phase=phase,
            layer=layer,
            shape=self.model.shape,
            scores_TE=gate.scores_TE,
            scores=gate.scores_TE.tolist(),
            own_TK=gate.ids_TK,
            resident_E=resident,
            in_flight_E=in_flight,
            costs=self.costs,
        )

    def _whereabouts(
        self, view: LayerView, active: dict[int, int], early: Mapping[int, Span]
    ) -> tuple[list[int], list[int], list[Missing]]:
        """Active experts that are on the device, on their way to it, and neither.

        Those in ``early`` are none of these: the host has them already.
        """
        resident, in_flight = view.resident_E.tolist(), view.in_flight_E.tolist()
        best = view.scores[0] if len(view.scores) == 1 else best_scores(view.scores_TE).tolist()
        hits: list[int] = []
        late: list[int] = []
        missing: list[Missing] = []
        for e, rows in active.items():
            if e in early:
                continue
            if resident[e]:
                hits.append(e)
            elif in_flight[e]:
                late.append(e)
            else:
                missing.append(Missing(e, best[e], rows))
        return hits, late, missing

    def _compute(self, layer: int, expert: int, rows: int, arrival: Span) -> Span:
        """Run an expert that is, after this transfer, on the device."""
        op = op_of(OpKind.EXPERT, layer, (rows,), (expert,))
        return self.machine.submit(
            op, Lane.DEVICE, (arrival,), self.model.compute, layer, op.experts
        )

    def _on_host(
        self, layer: int, expert: int, rows: int, work: Work | None = None, *args: Any
    ) -> Span:
        """Compute an expert on the host; its small output comes back over d2h."""
        op = op_of(OpKind.EXPERT, layer, (rows,), (expert,))
        span = self.machine.submit(op, Lane.HOST, (), work, *args)
        self.costs.host_ns.append(span.duration_ns)
        self.costs.host_ns_per_row.append(span.duration_ns / rows)
        back = op_of(OpKind.RETURN, layer, (rows,), (expert,))
        return self.machine.submit(back, Lane.D2H, (span,))

    # ------------------------------------------------------------------ the next layer

    def _predict(self, view: LayerView, rows: int, hits: Sequence[int]) -> Span | None:
        prefetch, layer = self.system.prefetch, view.layer
        lookahead = prefetch.lookahead
        if view.phase == "decode" and prefetch.network:
            op = Op(OpKind.PREDICT, layer, (rows,), network=prefetch.network)
            return self.machine.submit(op, Lane.PREDICT, (), prefetch.foretell, view, layer + 1)
        if view.phase == "prefill" or lookahead is Lookahead.NONE:
            return None
        if lookahead is Lookahead.LAYER:
            op = Op(OpKind.PREDICT, layer, (rows,), (), self._context, self._pairs)
        else:  # the next gate alone
            op = op_of(OpKind.PREDICT, layer, (rows,))
        return self._device(op, self.model.predict, layer, hits, lookahead)

    def _prefetch(self, view: LayerView, next_layer: int, predicted: Span | None) -> None:
        """Ask for prefetches as soon as the prediction can be read, and queue them."""
        if predicted is not None:
            self.machine.wait(predicted)
        scores = None if predicted is None else predicted.value
        with self.machine.lock:
            wanted = self.system.prefetch.prefetch(view, next_layer, scores)
        self._ask(next_layer, wanted)

    def _ask(self, layer: int, experts: Sequence[int]) -> None:
        """Ask for experts ahead of their layer."""
        if not self.system.prefetch.in_order:
            self.transfers.prefetch(layer, experts)
        else:
            absent = [e for e in experts if not self.cache.holds(self.cache.key(layer, e))]
            for expert in absent:
                self.transfers.demand_when_free(layer, expert)
            self.transfers.started[layer].update(absent)
        self._asked[layer] = frozenset(experts)

    # ------------------------------------------------------------------ counting

    def _count(
        self, view: LayerView, routed: Routed, active: dict[int, int], hits: Sequence[int],
        late: Sequence[int], loads: Sequence[int], host: Sequence[int],
    ) -> None:  # fmt: skip
        if len(hits) + len(late) + len(loads) + len(host) != len(active):
            raise IntegrityError(
                f"layer {view.layer}: the system assigned {len(loads)} loads and {len(host)} host "
                f"experts to {len(active) - len(hits) - len(late)} missing ones"
            )
        c = self.counts[view.phase]
        c.active += len(active)
        c.hits += len(hits)
        c.in_flight += len(late)
        c.loads += len(loads)
        c.host += len(host)
        started = self.transfers.take_started(view.layer)
        if started:
            own = set(view.own_TK.ravel().tolist())
            top = own if routed.top_score is None else routed.top_score
            c.prefetched += len(started)
            c.prefetched_top_score += len(started & top)
            c.prefetched_active += len(started & own)
            c.prefetched_used += len(started & active.keys())
        asked = self._asked.pop(view.layer, None)
        if asked and view.phase == "decode":
            for own in view.own_TK.tolist():
                right = len(asked.intersection(own))
                c.asked += 1
                c.asked_all += right == len(own)
                c.asked_any += right > 0
        if routed.ids_TK is not view.own_TK:
            if self.system.lossless:
                raise UsageError(
                    f"{type(self.system.route).__name__} says that it is lossless and replaced an "
                    "expert; let its `lossless` be False"
                )
            c.replaced += int(np.count_nonzero(routed.ids_TK != view.own_TK))

    def _count_foreseen(self, view: LayerView, ahead: _Ahead) -> None:
        c = self.counts["decode"]
        c.foreseen += ahead.own_TK.size
        pairs = zip(ahead.own_TK.tolist(), view.own_TK.tolist(), strict=True)
        c.foreseen_right += sum(len({*guess} & {*own}) for guess, own in pairs)
        c.degraded += int(np.count_nonzero(ahead.routed.ids_TK != ahead.own_TK))
