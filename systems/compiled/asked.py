"""The decisions of a compiled replay that are made in Python: compiled code asks for them."""

import ctypes
from collections.abc import Hashable, Sequence
from typing import cast

import numpy as np

from moebench.substrate.engine.decisions import (
    Active,
    Fetch,
    Forecast,
    ForwardPass,
    LayerView,
    Plan,
)
from moebench.substrate.engine.in_flight import host_in_flight
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.policies import Eviction, Predictor
from moebench.substrate.engine.records import (
    check,
    check_form,
    check_upload,
    names_no_expert,
    replaces_experts,
    rows_of,
)
from moebench.substrate.errors import IntegrityError
from moebench.substrate.machines.protocol import Lane, Op
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.progress_events import report_phase
from moebench.substrate.terms import Ids, Lookahead, Phase, Purpose, Scores
from moebench.substrate.traces.passes import Stacked, chosen_scores, not_recorded
from moebench.systems.compiled.twins import Decided

#: ``Ask`` of replay.cpp.
ASK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)

#: How many durations can be told at once: ``COSTS_TOLD`` of replay.cpp.
COSTS_TOLD = 4096

_PURPOSES: tuple[Purpose, ...] = ("needed", "speculative", "committed", "upload")
_NONE, _FAILED = -1, -2


class _Lanes:
    """How busy the lanes are, by the clock of compiled code."""

    def __init__(self, machine: SimulatedMachine, clock: np.ndarray) -> None:
        self._machine, self._clock = machine, clock
        self._at = {lane: at for at, lane in enumerate(Lane, 1)}
        self.load_path = machine.load_path

    def backlog_ns(self, lane: Lane) -> int:
        """Return how long a lane will still be busy, in ns."""
        return max(0, int(self._clock[self._at[lane]]) - int(self._clock[0]))

    def estimate_ns(self, op: Op, lane: Lane) -> int:
        """Return the operation's time on a lane, in ns."""
        return self._machine.estimate_ns(op, lane)

    def control_ns(self, op: Op, lane: Lane) -> int:
        """Return the control thread's time for the operation, in ns."""
        return self._machine.control_ns(op, lane)


class _Recorded:
    """The predictions of a recorded batch, as a model returns them."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        self.batch: Stacked
        self.step = 0

    def ids(self, layer: int) -> Ids:
        """Return the experts that the pass's rows chose in a layer, ``[T, K]``."""
        row = self.shape.moe_rows[layer]
        found = self.batch.decoded_ids[self.step - 1] if self.step else self.batch.prefill_ids
        return cast(Ids, found[row])

    def predict(self, layer: int, later: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        """Return the recorded prediction ``[B, E]``; for `Lookahead.EXACT`, the later choice."""
        if lookahead is Lookahead.EXACT:
            return chosen_scores(self.ids(later), self.shape.num_experts)
        if not self.step:
            raise not_recorded(layer, later, lookahead)
        row = self.shape.moe_rows[layer]
        ahead = self.shape.moe_rows[later] - row - 1
        found = cast(Scores, self.batch.predicted[self.step - 1, ahead, row])
        if np.isnan(found).any():
            raise not_recorded(layer, later, lookahead)
        return found


def pass_of(lengths: Sequence[int], step: int, cached: int) -> ForwardPass:
    """Return the sizes of a pass, as `Engine._begin_pass`.

    Args:
        lengths: tokens of each prompt.
        step: 0 is the prefill, then the decoded token.
        cached: tokens of each text's KV cache before its prompt.
    """
    lengths = [n + step for n in lengths]
    rows = len(lengths) if step else sum(lengths)
    pairs = sum(n if step else n * (n + 1) // 2 for n in lengths) + cached * rows
    return ForwardPass(
        phase="decode" if step else "prefill",
        sequences=(1,) * rows if step else tuple(lengths),
        rows=rows,
        context=sum(lengths) + cached * len(lengths),
        pairs=pairs,
    )


class Asked:
    """Answers the questions of compiled code by a system's policies.

    Attributes:
        allowed, talk, clock, costs, told: arrays of ``Setup`` that both sides read and write.
        error: what a policy raised, if it did.
    """

    def __init__(self, engine: Engine, predictor: Predictor | None, decided: Decided) -> None:
        shape, cache = engine.model.shape, engine.cache
        self._engine, self._decided, self._shape = engine, decided, shape
        self._system, self._cache = engine.system, cache
        keys = shape.num_layers * shape.num_experts
        self.allowed = np.zeros(keys, bool)
        #: A prefetch may name any record; a plan has lists of experts, of which one repeats some.
        self.talk = np.zeros(3 * keys + 64 * shape.num_experts + 8, np.int64)
        self.clock = np.zeros(1 + len(Lane), np.int64)
        self.costs, self.told = np.zeros((COSTS_TOLD, 4)), np.zeros(1, np.int64)
        self.error: BaseException | None = None
        self._lanes = _Lanes(cast(SimulatedMachine, engine.machine), self.clock)
        self._recorded, self._predictor = _Recorded(shape), predictor
        #: Predictions in Python: one operation of each size, by number, and the last forecast.
        self.predictions: list[Op] = []
        self._numbers: dict[Hashable, int] = {}
        self._forecast: Forecast = {}
        self._view: LayerView
        self._active: Active
        self._tells_evict = type(self._system.evict).foresee is not Eviction.foresee
        self._questions = (
            self._layer, self._assign, self._fetch, self._open, self._used, self._arrived,
            self._left, self._grows, self._victim, self._missed, self._pass_ends, self._uploaded,
            self._foresee, self._pass_begins,
        )  # fmt: skip
        self.function = ASK(self._answer)

    def begin(self, batch: Stacked, lengths: Sequence[int]) -> None:
        """Begin a batch with prompts of these lengths."""
        self._batch, self._lengths = batch, lengths
        self._recorded.batch = batch
        self._step = -1

    def _answer(self, question: int, about: int, more: int) -> int:
        try:
            return self._questions[question](about, more)
        except BaseException as error:  # Ctrl-C, too: compiled code stops, the caller raises it
            self.error = error
            return _FAILED

    def _pass_begins(self, step: int, passes: int) -> int:
        report_phase("decode" if step else "prefill", step, passes if step else None)
        return 0

    # ------------------------------------------------------------------ a layer

    def _layer(self, layer: int, step: int) -> int:
        self._hear_costs()
        engine, batch = self._engine, self._batch
        if step != self._step:
            self._step = self._recorded.step = step
            self._forward = pass_of(self._lengths, step, engine.cached)
        row = self._shape.moe_rows[layer]
        ids_TK = self._recorded.ids(layer)
        scores_TE = batch.decoded_scores[step - 1, row] if step else batch.prefill_scores[row]
        self._forward.history.append(ids_TK)
        view = self._view = LayerView(
            layer=layer, next_layer=self._shape.next_moe_layers[layer], phase=self._forward.phase,
            shape=self._shape, forward=self._forward, alpha=self._system.alpha_in_use,
            scores_TE=scores_TE, topk_ids_TK=ids_TK, costs=engine.timeline.costs,
            lanes=self._lanes, whole_layers=self._system.assign.whole_layers(self._shape),
        )  # fmt: skip
        view.residency = self._cache.residency(layer, int(self.clock[0]))
        for policy in self._decided.observers:
            policy.observe(view)
        experts = self._shape.num_experts
        if self._decided.routing:
            routed = self._system.route.route(view)
            if engine.tally.routing(view, routed) and self._system.lossless:
                raise replaces_experts(self._system.route)
            self.talk[: 2 * experts] = 0
            rows = rows_of(routed)
            self.talk[[*rows]] = [*rows.values()]
            top = np.unique(ids_TK) if routed.top_score is None else [*routed.top_score]
            self.talk[experts + np.asarray(top, np.int64)] = 1
        else:
            rows = engine.model.dispatch(layer, ids_TK, ids_TK)
        self._active = Active(rows, view)
        view.absent = self._active.absent
        return 0

    def _hear_costs(self) -> None:
        """Add the durations of operations since the last question to the run's costs."""
        costs = self._engine.timeline.costs
        for kind, took, rows, first in self.costs[: self.told[0]].tolist():
            if kind == 0:
                costs.device_ns.append(took)
            elif kind == 1:
                costs.load_ns.append(took)
            else:
                costs.on_host(took, int(rows), bool(first))
        self.told[0] = 0

    def _assign(self, layer: int, more: int) -> int:
        system, view, active = self._system, self._view, self._active
        plan = system.assign.assign(view, active)
        if system.in_flight == "host" and system.assign.uses_host and active.in_flight:
            plan = host_in_flight(view, active, plan)
        if system.admit.chooses and plan.load:
            plan = plan._replace(load=[self._admitted(fetch) for fetch in plan.load])
        check(plan, active, view)
        if plan.deferred or plan.forms:
            raise IntegrityError(f"compiled code cannot carry out {plan}")
        self._plan = plan
        self._say_plan(plan)
        return 0

    def _admitted(self, fetch: Fetch) -> Fetch:
        if not fetch.keep or fetch.expert is None:
            return fetch
        stays = self._system.admit.admits(self._view, fetch.expert)
        return fetch if stays else fetch._replace(keep=False)

    def _say_plan(self, plan: Plan) -> None:
        numbers = [len(plan.device), *plan.device, len(plan.host), *plan.host]
        self._say([*numbers, *self._of(plan.load), len(plan.again), *plan.again])

    def _say(self, numbers: list[int]) -> None:
        if len(numbers) > len(self.talk):
            raise IntegrityError(f"{len(numbers)} numbers; at most {len(self.talk)} can be said")
        self.talk[: len(numbers)] = numbers

    def _of(self, wanted: Sequence[Fetch]) -> list[int]:
        numbers = [len(wanted)]
        for layer, expert, instead_of, keep, form in wanted:
            check_form(form, 1)
            assert expert is not None, "it was checked, or left out, where it can be"
            key = self._cache.key
            instead = _NONE if instead_of is None else key(layer, instead_of)
            numbers += (key(layer, expert), int(keep), instead)
        return numbers

    # ------------------------------------------------------------------ prefetches

    def _fetch(self, layer: int, predicted: int) -> int:
        self._hear_costs()
        policy, view, forecast = self._system.prefetch, self._view, cast(Forecast, {})
        if predicted:
            forecast = self._forecast if self._decided.predictions else self._predict(view)
            if self._tells_evict:
                self._system.evict.foresee(forecast)
        self._say(self._ahead(policy.prefetch(view, forecast)))
        return 0

    def _predict(self, view: LayerView) -> Forecast:
        assert self._predictor is not None, "it was asked for"
        return self._predictor.forecast(view, cast(Model, self._recorded), ())

    def _foresee(self, layer: int, more: int) -> int:
        """Make a prediction, and say what it costs; return its lane, or -1 if there is none."""
        view, predictor = self._view, self._predictor
        if predictor is None or (view.next_layer is None and not predictor.wraps):
            return _NONE
        if not predictor.asked(view):
            return _NONE
        op = predictor.op(view)
        self._forecast = self._predict(view)
        number = self._numbers.setdefault(op.sizes, len(self.predictions))
        if number == len(self.predictions):
            self.predictions.append(op)
        machine = cast(SimulatedMachine, self._engine.machine)
        price = machine.costs.price(op, predictor.lane)
        self._say([*price, number, int(predictor.in_background)])
        return [*Lane].index(predictor.lane)

    def _open(self, decode: int, more: int) -> int:
        self._hear_costs()
        phase: Phase = "decode" if decode else "prefill"
        first = self._shape.moe_layers[0]
        self._say(self._ahead(self._system.prefetch.opening(phase, first)))
        return 0

    def _ahead(self, wanted: Sequence[Fetch]) -> list[int]:
        """Return prefetches without those of non-expert weights, which are on the device."""
        named = [fetch for fetch in wanted if fetch.expert is not None]
        if len(named) < len(wanted) and self._system.prefetch.discipline == "speculative":
            raise names_no_expert()
        return self._of(named)

    # ------------------------------------------------------------------ copies in the background

    def _missed(self, layer: int, more: int) -> int:
        here = {*self._active.resident}
        missed = [e for e in (*self._plan.host, *self._plan.deferred) if e not in here]
        self._say(self._uploads(self._system.admit.uploads(self._view, missed)))
        return 0

    def _pass_ends(self, decode: int, more: int) -> int:
        phase: Phase = "decode" if decode else "prefill"
        self._say(self._uploads(self._system.admit.pass_ends(phase)))
        return 0

    def _uploads(self, wanted: Sequence[Fetch]) -> list[int]:
        for fetch in wanted:
            check_upload(fetch)
        return self._of(wanted)

    def _uploaded(self, key: int, more: int) -> int:
        self._system.admit.uploaded(key)
        return 0

    # ------------------------------------------------------------------ evictions

    def _used(self, layer: int, more: int) -> int:
        evict, resident = self._system.evict, self._active.resident
        hits = evict.lingering(self._cache.keys(layer, resident))
        self._engine.tally.by_phase[self._view.phase].lingering += hits
        evict.used(layer, self._active.rows)
        return 0

    def _arrived(self, key: int, purpose: int) -> int:
        self._of_evict(purpose).arrived(key)
        return 0

    def _left(self, key: int, purpose: int) -> int:
        self._of_evict(purpose).left(key)
        return 0

    def _grows(self, incoming: int, purpose: int) -> int:
        return int(self._of_evict(purpose).grows(incoming))

    def _victim(self, incoming: int, purpose: int) -> int:
        found = self._of_evict(purpose).victim(self.allowed, incoming)
        return _NONE if found is None else int(found)

    def _of_evict(self, purpose: int) -> Eviction:
        evict = self._system.evict
        evict.purpose = _PURPOSES[purpose]
        return evict
