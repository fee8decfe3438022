"""The loop: runs tokens through the layers, for every system, model and machine.

    attend → gate → (stale prefetches dropped) → route → assign
           → loads and host experts go to their lanes; resident and shared experts compute
           → later layers are predicted, prefetches are queued
           → loaded experts compute as they arrive → all are combined
           → experts that were missing are admitted: copied in the background

Where the system routes a layer ahead, its host experts start while the layer before computes.
Prefill runs the same loop with many rows an expert.  Nothing here knows a system by name.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile
from typing import cast

import numpy as np

from moebench.substrate.engine.counts import Tally
from moebench.substrate.engine.decisions import (
    EXPERT_OF,
    Active,
    Fetch,
    ForwardPass,
    LayerView,
    Plan,
    Prompts,
)
from moebench.substrate.engine.in_flight import host_in_flight
from moebench.substrate.engine.micro_batches import MicroBatches
from moebench.substrate.engine.operations import operations
from moebench.substrate.engine.policies import Admission, Eviction, Prefetching, Routing
from moebench.substrate.engine.prefetches import Prefetches
from moebench.substrate.engine.records import (
    NO_LOADS,
    NOT_ON_HOST,
    Ahead,
    Generation,
    HostWork,
    Layer,
    Loads,
    check,
    forms_of,
    replaces_experts,
    rows_of,
)
from moebench.substrate.engine.system import System
from moebench.substrate.engine.transfers import Transfers
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, Machine, Op, OpKind, Span, op_of
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.capacity import Home
from moebench.substrate.models.protocol import Model
from moebench.substrate.progress_events import report_phase
from moebench.substrate.terms import Gate, Phase

#: Enum members as globals: an enum looks them up in a Python function, and every layer needs them.
_ATTEND, _GATE, _EXPERT, _SHARED = OpKind.ATTEND, OpKind.GATE, OpKind.EXPERT, OpKind.SHARED


class Engine:
    """Runs a system's decisions for a model on a machine.

    Args:
        homes: where each layer's non-expert weights are, and the head; empty is the device for all.
        streams_from_disk: whether streamed non-expert weights are read from the disk.
        cached: tokens that each text's KV cache holds before its prompt; nothing computes them.
    """

    def __init__(
        self, system: System, model: Model, machine: Machine, cache: ExpertCache,
        timeline: Timeline, homes: Sequence[Home] = (), streams_from_disk: bool = False,
        cached: int = 0,
    ) -> None:  # fmt: skip
        self.system, self.model, self.machine = system, model, machine
        self.cache, self.timeline, self.homes = cache, timeline, homes
        self.cached = cached
        self.tally = Tally()
        #: Entered for each batch, to measure what the machine's clock does not, such as energy.
        self.measured_by: AbstractContextManager[object] = nullcontext()
        #: Called after each token of `generate`, when the token's time has ended.
        self.after_token: Callable[[], object] = lambda: None
        timeline.costs.estimate(machine)
        self.transfers = Transfers(system.evict, machine, cache, timeline, homes, streams_from_disk)
        self._ops = operations(model, machine, system.evict, self.transfers, homes)
        self._prefetches = Prefetches(
            system.prefetch, model.shape, self._ops, self.transfers, self.tally
        )
        #: Submits decode passes that are divided into micro-batches; None if none is.
        self._divided: MicroBatches | None = None
        if system.divides:
            submits = (model, machine, self.transfers, self._ops)
            self._divided = MicroBatches(
                system, *submits, decide=self._begin_divided, close=self._end_divided
            )
        # Read once: every layer needs these values, and a property takes as long as using one.
        self._alpha = system.alpha_in_use
        admit = type(system.admit)
        self._uploads = (
            admit.uploads is not Admission.uploads or admit.pass_ends is not Admission.pass_ends
        )
        self._lingers = type(system.evict).lingering is not Eviction.lingering
        self._routes_passes = system.route.routes_passes
        self._leaves = type(system.prefetch).leaving is not Prefetching.leaving
        self._routes_ahead = type(system.route).routes_ahead is not Routing.routes_ahead
        self._lossless = system.lossless
        self._whole_layers = system.assign.whole_layers(model.shape)
        self._synchronises = system.synchronises
        #: A record on the disk is read for an expert of its own.
        self._host_together = system.host_together and machine.host_memory is None
        self._reads_unfinished = system.reads_unfinished
        self._hosts_in_flight = system.in_flight == "host" and system.assign.uses_host
        self._several = cache.forms > 1
        self._reads_hidden = system.reads_hidden
        self._reads_embedding = system.reads_embedding
        self._reads_norms = system.reads_token_norms
        self._reads_token_embeddings = system.reads_token_embeddings

    def start(self) -> int:
        """Put experts on the device as the system places them; return how many were placed.

        This is loading time, before the clock of any request: no lane is charged for it.
        """
        self.system.start(self.model.shape, self.cache)
        self._predictor = self.system.prefetch.predictor
        return self.transfers.start(self.system.place, self.system.reserve)

    # ------------------------------------------------------------------ a batch of prompts

    def generate(
        self, prompts: Sequence[Sequence[int]], new_tokens: int,
        forced: Sequence[Sequence[int]] = (), end: int | None = None,
        stop: Callable[[Sequence[list[int]]], bool] | None = None,
    ) -> Generation:  # fmt: skip
        """Prefill the prompts, then decode until each has ``new_tokens`` new tokens.

        Args:
            forced: for each prompt, tokens taken instead of its own first choices.
            end: a token that ends a sequence; the batch stops when all of its sequences ended.
            stop: called after each token with all sequences' new tokens; True ends the batch.
        """
        with self.measured_by:
            for out in self.steps(prompts, new_tokens, forced, end, stop):  # noqa: B007
                self.after_token()
        return out

    def steps(
        self, prompts: Sequence[Sequence[int]], new_tokens: int,
        forced: Sequence[Sequence[int]] = (), end: int | None = None,
        stop: Callable[[Sequence[list[int]]], bool] | None = None,
    ) -> Iterator[Generation]:  # fmt: skip
        """Generate as `generate` does, and yield the same growing result after each token.

        What the caller does between two tokens counts for neither of them.
        """
        self.model.begin(prompts, new_tokens, forced)
        self.machine.begin()
        self._lengths = [len(p) for p in prompts]
        embedding = self.model.embedding() if self._reads_embedding else None
        self.system.begin_sequences(Prompts(self._lengths, embedding))
        out = Generation([[] for _ in prompts], self.machine.now_ns())
        for step in range(new_tokens):
            phase: Phase = "decode" if step else "prefill"
            self.timeline.begin(phase)
            report_phase(phase, step, new_tokens if step else None)
            self._used: list[list[int]] = []
            for tokens, token in zip(out.tokens, self._forward(phase), strict=True):
                tokens.append(token)
            out.token_ends_ns.append(self.machine.now_ns())
            self.timeline.token(step, out.token_ends_ns[-1])
            if self._uploads:
                self._upload(phase, self.system.admit.pass_ends(phase))
            if phase == "decode":
                out.used.append(self._used)
            else:
                self.transfers.commit(self.system.place.after_prefill())
            done = end is not None and all(end in tokens for tokens in out.tokens)
            done = done or (stop is not None and stop(out.tokens))
            if done or step + 1 == new_tokens:
                break
            since_ns = self.machine.now_ns()
            yield out
            out.paused_ns.append(self.machine.now_ns() - since_ns)
        self.system.end_sequences()
        yield out

    def _forward(self, phase: Phase) -> list[int]:
        """Run one pass over the whole prompts, or over one token of each sequence."""
        model, shape = self.model, self.model.shape
        p = self._pass = self._begin_pass(phase, model.embed(phase))
        if self._routes_passes:
            self._route_pass()
        if self._leaves:
            self.transfers.send_back(self.system.prefetch.leaving(phase))
        divided = self._divided
        if divided and phase == "decode":
            divided.run(p, self._lengths, self.cached)
            return self._head()
        self._prefetches.open(phase)
        for layer in range(shape.num_layers):
            attend = Op(_ATTEND, layer, (p.rows,), (), p.context, p.pairs)
            self._attended = self._ops.attend(attend, layer)
            if divided:
                divided.keep_cache(layer, p.rows, self._attended)
            if layer in shape.moe_rows:
                self._moe(layer)
            else:
                self._ops.common(OpKind.DENSE, layer, p.rows, model.dense)
        return self._head()

    def _head(self) -> list[int]:
        """Choose each text's token; the control thread waits for it."""
        head = self._ops.head(op_of(OpKind.HEAD, -1, (len(self._lengths),)))
        self.machine.wait(head)
        return cast(list[int], head.value)

    def _route_pass(self) -> None:
        """Let the system choose the experts of all layers of the pass, and wait for its choice."""
        route = self.system.route
        embedding_TH = self.model.token_embeddings() if self._reads_token_embeddings else None
        op = route.pass_op(self._pass.rows)
        done = self.machine.submit(op, Lane.PREDICT, (), route.plan_pass, self._pass, embedding_TH)
        self.machine.wait(done)

    def _begin_pass(self, phase: Phase, rows: int) -> ForwardPass:
        prefill = phase == "prefill"
        if not prefill:
            self._lengths = [n + 1 for n in self._lengths]
        # Each row of a prompt attends to all positions up to its own, a decoded row to all.
        pairs = sum(n * (n + 1) // 2 if prefill else n for n in self._lengths)
        pairs += self.cached * rows
        self._ops.begin(self.system.assign.host_copies(rows))
        self._ahead: Ahead | None = None
        self._carried: Sequence[Span] = ()
        return ForwardPass(
            phase=phase,
            sequences=tuple(self._lengths) if prefill else (1,) * len(self._lengths),
            rows=rows,
            context=sum(self._lengths) + self.cached * len(self._lengths),
            pairs=pairs,
        )

    # ------------------------------------------------------------------ a layer with experts

    def _moe(self, layer: int) -> None:
        """Run one MoE layer: gate, decisions, transfers, computation, sum."""
        ahead, self._ahead = self._ahead, None
        view = self._gate(layer, ahead)
        self.machine.cancel(layer)  # drops prefetches for this layer that have not begun
        if self._routes_ahead:
            self._route_ahead(view)
        now = self._decide(view, ahead)
        loads = self._load(now)
        on_host = self._compute_on_host(now)
        reads = self._compute_here(now)
        self._compute_shared(layer)
        predicted = (
            self._ops.predict(self._predictor, view, now.leading_ready) if self._predictor else None
        )
        if self._prefetches.speculative:  # behind the loads that this layer needs
            self._prefetches.ask(view, predicted)
        if self._synchronises:
            self._wait(now, loads, on_host)
        self._compute_arrivals(now, loads, reads)
        self._combine(layer, on_host)
        self.transfers.drop_unused(layer)
        if self._ahead:  # into slots that this layer's experts leave free
            self.transfers.commit(self._ahead.plan.load, "needed")
        if self._prefetches.committed:
            self._prefetches.ask(view, predicted)
        self._close(now)
        if self._uploads:
            self._admit(now)

    def _gate(self, layer: int, ahead: Ahead | None) -> LayerView:
        """Compute the gate; the control thread waits for it, unless the layer is routed already."""
        self._ops.next_layer()
        if ahead or self._routes_passes:
            return self._view(layer, self.model.gate(layer))
        gated = self._ops.common(_GATE, layer, self._pass.rows, self.model.gate)
        self.machine.wait(gated)
        return self._view(layer, gated.value)

    def _route_ahead(self, view: LayerView) -> None:
        """Route the next layer by its predicted scores, and start its host experts at once."""
        route, layer = self.system.route, view.next_layer
        if layer is None or view.phase == "prefill" or not route.routes_ahead(layer):
            return
        predicted = self._ops.predict(route.predictor, view, ())
        if predicted is None:
            raise UsageError(f"{type(route).__name__} routes layers ahead and has no predictor")
        scores_TE = self._ops.forecast(predicted)[layer]
        expected_TK = np.argsort(-scores_TE, axis=1, kind="stable")[:, : view.shape.top_k]
        with self.machine.lock:
            then = self._view(layer, Gate(scores_TE, expected_TK), ahead=True)
            self._locate(then)
            routed = route.route(then)
            rows = rows_of(routed)
            active = Active(rows, then)
            plan = self.system.assign.assign(then, active)
        check(plan, active, then)
        self.model.route_ahead(layer, routed.ids_TK)
        forms = self.cache.chosen_forms(layer) or plan.forms
        on_host = {
            e: self._ops.host_expert(layer, e, rows[e], early=True, form=forms.get(e, 0))
            for e in plan.host
        }
        self._ahead = Ahead(expected_TK, routed, plan, on_host)

    def _decide(self, view: LayerView, ahead: Ahead | None) -> Layer:
        """Let the system route the tokens and assign each active expert; check its plan."""
        system, layer = self.system, view.layer
        with self.machine.lock:
            if self._uploads:
                for key in self.transfers.take_uploaded():
                    system.admit.uploaded(key)
            self._locate(view)
            system.observe(view)
            routed = ahead.routed if ahead else system.route.route(view)
            rows = self.model.dispatch(layer, routed.ids_TK, routed.weigh_as_TK)
            if routed.weights_TK is not None:
                self.model.weigh(layer, routed.weights_TK)
            rest = {e: n for e, n in rows.items() if e not in ahead.on_host} if ahead else rows
            active = Active(rest, view)
            view.absent = active.absent
            plan = system.assign.assign(view, active)
            if self._hosts_in_flight and active.in_flight:
                plan = host_in_flight(view, active, plan)
            if system.admit.chooses and plan.load:
                plan = plan._replace(load=[self._admitted(view, fetch) for fetch in plan.load])
            keys = self.cache.keys(layer, rows)
            # An expert that the host computes may be evicted from the device at any time.
            there, coming = active.resident, active.in_flight
            forms = self.cache.chosen_forms(layer)
            if self._several:
                forms, there, coming = self._choose_forms(view, plan, rows, there)
            else:
                all_here = len(plan.device) == len(keys)
                self.cache.pin(keys if all_here else self.cache.keys(layer, plan.device))
                if self._lingers:
                    hits = system.evict.lingering(self.cache.keys(layer, there))
                    self.tally.by_phase[view.phase].lingering += hits
                system.evict.used(layer, rows)
        check(plan, active, view)
        self.machine.elapse(decisions=1)
        if self._reads_unfinished:
            there = [*there, *coming]
        here = tuple(there)
        if here != tuple(plan.device[: len(here)]):
            here = tuple(takewhile(there.__contains__, plan.device))
        return Layer(view, routed, rows, keys, active, plan, ahead, there, here, coming, forms)

    def _admitted(self, view: LayerView, fetch: Fetch) -> Fetch:
        """Return a fetch of the layer's plan as one that is dropped after use, if so decided."""
        if not fetch.keep or fetch.expert is None:
            return fetch
        stays = self.system.admit.admits(view, fetch.expert)
        return fetch if stays else fetch._replace(keep=False)

    def _choose_forms(
        self, view: LayerView, plan: Plan, rows: Iterable[int], resident: Iterable[int]
    ) -> tuple[dict[int, int], list[int], list[int]]:
        """Choose the form of each expert, where records have several, and protect these records.

        Returns:
            forms that are not 0, by expert; experts that are complete in their form, and those that
            are on their way in it.
        """
        forms, where = forms_of(plan, view), view.residency.forms
        for form in range(self.cache.forms):
            used = [e for e in rows if forms.get(e, 0) == form]
            here = [e for e in used if e in plan.device]
            self.cache.pin(self.cache.keys(view.layer, here, form))
            self.system.evict.used(form * self.model.shape.num_layers + view.layer, used)
        there = [e for e in resident if where[forms.get(e, 0)].is_resident(e)]
        coming = [e for e in plan.device if e not in there and where[forms.get(e, 0)].is_held(e)]
        return forms, there, coming

    def _load(self, now: Layer) -> Loads:
        """Submit the layer's transfers, before computations because they take longest."""
        arrivals, load = {}, now.plan.load
        if not (load or now.coming):
            return NO_LOADS
        for e in now.coming:
            if e in now.plan.device and e not in now.ready:
                arrivals[e] = self.transfers.arrival(now.view.layer, e, now.forms.get(e, 0))
        loaded = self.transfers.demand(load) if load else {}
        waiting = load[len(loaded) :]
        if self._several:  # an expert does not wait for a record in a form that it does not use
            loaded = {e: at for e, at in loaded.items() if at.op.form == now.forms.get(e, 0)}
        arrivals |= loaded
        for e in now.plan.again:
            again = self.transfers.again(now.view.layer, e, now.forms.get(e, 0))
            if e in arrivals:
                arrivals[e] = again
        return Loads(arrivals, waiting)

    def _compute_on_host(self, now: Layer) -> HostWork:
        layer, rows, plan = now.view.layer, now.rows, now.plan
        if not (plan.host or plan.deferred or now.ahead):
            return NOT_ON_HOST
        due = list(now.ahead.on_host.values()) if now.ahead else []
        # A layer routed ahead is not waited for at its gate, so that attention may still run.
        after = (self._attended,) if now.ahead else ()
        ops, forms = self._ops, now.forms
        if self._host_together and plan.host and not (plan.deferred or now.ahead or forms):
            return HostWork([ops.host_experts(layer, plan.host, [rows[e] for e in plan.host])], ())
        due += [ops.host_expert(layer, e, rows[e], after, form=forms.get(e, 0)) for e in plan.host]
        if not plan.deferred:
            return HostWork(due, ())
        self.model.defer(layer, plan.deferred)
        deferred = [
            ops.host_expert(layer, e, rows[e], after, form=forms.get(e, 0)) for e in plan.deferred
        ]
        return HostWork(due, deferred)

    def _compute_here(self, now: Layer) -> list[Span]:
        """Compute the leading resident experts of the plan, as one operation for each form."""
        if not now.leading_ready:
            return []
        here, rows = now.leading_ready, now.rows
        if not now.forms:
            each = tuple([rows[e] for e in here])
            return [self._ops.device_experts(Op(_EXPERT, now.view.layer, each, here))]
        done, forms = [], now.forms
        for form in sorted({forms.get(e, 0) for e in here}):
            experts = tuple([e for e in here if forms.get(e, 0) == form])
            each = tuple([rows[e] for e in experts])
            op = Op(_EXPERT, now.view.layer, each, experts, form=form)
            done.append(self._ops.device_experts(op))
        return done

    def _compute_shared(self, layer: int) -> None:
        if self.model.shape.shared_width:
            self._ops.common(_SHARED, layer, self._pass.rows, self.model.shared)

    def _wait(self, now: Layer, loads: Loads, on_host: HostWork) -> None:
        """Wait for the host's outputs, then for all of the layer's transfers, used or not."""
        view, host_ns, load_ns = now.view, 0, 0
        for back in on_host.due:
            self.machine.wait(back)
            host_ns = cast(int, back.end_ns)
        coming = [
            self.transfers.arrival(view.layer, e, form)
            for form, where in enumerate(view.residency.forms)
            for e in np.flatnonzero(where.in_flight_E).tolist()
        ]
        brought = [loads.arrivals[e] for e in map(EXPERT_OF, now.plan.load) if e in loads.arrivals]
        if coming or brought:  # the link keeps their order: the last one ends last
            self.machine.wait([*coming, *brought][-1])
        if brought:
            load_ns = cast(int, brought[-1].end_ns)
        self.system.assign.waited(view, now.plan, host_ns, load_ns)

    def _compute_arrivals(self, now: Layer, loads: Loads, reads: list[Span]) -> None:
        """Compute the device's remaining experts in plan order, each once its transfer ended."""
        rest = now.plan.device[len(now.leading_ready) :]
        due = [e for e in rest if e in loads.arrivals or e in now.ready]
        if loads.waiting:
            self.transfers.computed(reads)
            self._compute_in_turn(now, loads, due)
            return
        reads += [self._compute_arrival(now, e, loads.arrivals.get(e)) for e in due]
        self.transfers.computed(reads)

    def _compute_in_turn(self, now: Layer, loads: Loads, experts: Iterable[int]) -> None:
        """Compute experts of which more must be loaded than there are slots.

        Each waiting load is submitted as soon as an expert's computation has been submitted whose
        slot it can take: the control thread may wait for an expert, and the link need not.
        """
        due, waiting, arrivals = deque(experts), deque(loads.waiting), dict(loads.arrivals)
        while due or waiting:
            while waiting:
                arrival = self.transfers.demand_when_free(waiting[0], waits=not due)
                if arrival is None:
                    break
                e, form = cast(int, waiting[0].expert), waiting.popleft().form
                if e in now.plan.device and not (self._several and form != now.forms.get(e, 0)):
                    arrivals[e] = arrival
                    due.append(e)
            if due:
                e = due.popleft()
                self.transfers.computed([self._compute_arrival(now, e, arrivals.get(e))])

    def _compute_arrival(self, now: Layer, e: int, arrival: Span | None) -> Span:
        after = () if arrival is None else (arrival,)
        form = now.forms.get(e, 0) if now.forms else 0
        return self._ops.device_expert(now.view.layer, e, now.rows[e], after, form)

    def _combine(self, layer: int, on_host: HostWork) -> None:
        """Sum the expert outputs, once the host's are back, and those deferred one layer ago."""
        due, self._carried = [*on_host.due, *self._carried], on_host.deferred
        combined = self._ops.combine(layer, self._pass.rows, due)
        if self._synchronises:
            self.machine.wait(combined)

    def _close(self, now: Layer) -> None:
        """End the protection of the layer's experts, and count what happened to them."""
        view, routed, tally = now.view, now.routed, self.tally
        self.transfers.layer_ends(now.keys)
        if now.forms:
            keys = [self.cache.key(view.layer, e, form) for e, form in now.forms.items()]
            self.transfers.layer_ends(keys)
        tally.experts(view.phase, now.rows, now.active, now.plan)
        tally.prefetches(view, routed, now.rows, self.transfers.take_started(view.layer))
        if tally.routing(view, routed) and self._lossless:
            raise replaces_experts(self.system.route)
        if now.ahead:
            tally.routed_ahead(now.ahead.expected_TK, routed, view.topk_ids_TK)
        elif self._routes_passes and view.phase == "decode":
            tally.routed_ahead(routed.ids_TK, routed, view.topk_ids_TK)
        self._used.append(now.keys)

    def _admit(self, now: Layer) -> None:
        """Queue the background copies that the system chooses after a layer."""
        begun = list(now.ahead.on_host) if now.ahead else []
        on_host = (*begun, *now.plan.host, *now.plan.deferred)
        here = {*now.active.resident}
        missed = [expert for expert in on_host if expert not in here]
        self._upload(now.view.phase, self.system.admit.uploads(now.view, missed))

    def _upload(self, phase: Phase, wanted: Sequence[Fetch]) -> None:
        if wanted:
            queued = self.transfers.upload(wanted, self.system.admit.queue)
            counts = self.tally.by_phase[phase]
            counts.uploaded += queued
            counts.uploads_refused += len(wanted) - queued

    def _begin_divided(self, layer: int) -> Layer:
        """Gate and decide a layer of a pass that is divided into micro-batches."""
        self.machine.cancel(layer)
        return self._decide(self._view(layer, self.model.gate(layer)), None)

    def _end_divided(self, now: Layer) -> None:
        self._close(now)
        if self._uploads:
            self._admit(now)

    # ------------------------------------------------------------------ what policies see

    def _view(self, layer: int, gate: Gate, ahead: bool = False) -> LayerView:
        forward, shape = self._pass, self.model.shape
        if not ahead:
            forward.history.append(gate.ids_TK)
        return LayerView(
            layer=layer,
            next_layer=shape.next_moe_layers[layer],
            phase=forward.phase,
            shape=shape,
            forward=forward,
            alpha=self._alpha,
            scores_TE=gate.scores_TE,
            topk_ids_TK=gate.ids_TK,
            costs=self.timeline.costs,
            lanes=self.machine,
            ahead=ahead,
            whole_layers=self._whole_layers,
            hidden_TH=self.model.hidden(layer) if self._reads_hidden else None,
            norm_T=self.model.token_norms(layer) if self._reads_norms else None,
        )

    def _locate(self, view: LayerView) -> None:
        """Set the view's residency of the layer's experts to their state at this moment."""
        view.residency = self.cache.residency(view.layer, self.machine.now_ns())
