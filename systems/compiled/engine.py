"""The engine of a replay whose decisions and virtual clock run in compiled code.

It takes over an engine in Python that has placed its experts, and gives that engine's tally,
timeline and clock the same contents as it would have had.  The whole run is compiled: prompts and
decoded tokens, policies (`twins`), slots and lanes.  Python prepares arrays of a batch's routing
and prices, and reads the results.

Decisions that compiled code does not repeat are asked in Python (`asked`).
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from moebench.substrate.engine.decisions import ForwardPass, LayerView, Prompts
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.records import Generation, no_room
from moebench.substrate.errors import IntegrityError
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.machines.timeline import Computed, Note, NoteKind, Totals
from moebench.substrate.terms import Lookahead, Phase
from moebench.substrate.traces.passes import Stacked, TracedModel, not_recorded
from moebench.systems.compiled.asked import ASK, Asked, pass_of
from moebench.systems.compiled.library import library
from moebench.systems.compiled.twins import READS_BEST, READS_MEAN, decided, ours, repeated, why_not
from moebench.systems.dali import ResidualPrefetch, best_probabilities
from moebench.systems.policies.predict import NextLayer

_INT, _REAL, _AT = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


class Setup(ctypes.Structure):
    """``Setup`` of replay.cpp."""

    _fields_ = (
        *[(n, _INT) for n in ("layers", "experts", "top_k", "pools", "capacity")],
        *[(n, _AT) for n in ("moe_row", "next_moe", "pool_of", "pool_ends")],
        *[(n, _INT) for n in (
            "has_shared", "has_predictor", "predicts_attention", "decision_ns", "sync_ns",
            "load_submit_ns", "copy_submit_ns", "record_ns", "record_bytes", "waits_each_layer",
            "blocking_copies", "host_together", "overlaps", "launch_ns", "expert_control_ns",
            "host_control_ns", "host_dispatch_ns",
        )],
        *[(n, _REAL) for n in (
            "host_handoff_ns", "lost_beside_copies", "lost_together", "device_estimate",
            "load_estimate", "host_estimate",
        )],
        *[(n, _INT) for n in (
            "assign", "evict", "prefetch", "history", "minimise_sum", "by_rows", "tie_host",
            "from_backlog", "load_prompts", "fill", "window", "top", "hot", "survive",
            "oldest_first",
        )],
        ("smoothing", _REAL),
        *[(n, _INT) for n in (
            "fetches", "impact_history", "whole_prompt_layers", "next_only", "commits",
        )],
        ("band", _REAL),
        *[(n, _INT) for n in (
            "asks_layers", "asks_routing", "asks_growth", "asks_predictions", "asks_uploads",
            "most_queued", "transient",
        )],
        ("ask", ASK),
        *[(n, _AT) for n in ("held", "ready", "allowed", "talk", "clock", "costs", "costs_told")],
    )  # fmt: skip


class Batch(ctypes.Structure):
    """``Batch`` of replay.cpp."""

    _fields_ = (
        *[(n, _INT) for n in ("passes", "texts", "ahead", "notes", "most_spans")],
        *[(n, _AT) for n in (
            "rows", "prices", "device_products", "host_products", "return_ns", "ids", "ids_at",
            "best", "mean", "predicted", "worth", "ends", "used", "used_count",
        )],
        ("most", _INT),
    )  # fmt: skip


#: The kinds of replay.cpp in its order, and those of `common` operations among them.
_KINDS = (
    OpKind.ATTEND, OpKind.GATE, OpKind.SHARED, OpKind.COMBINE, OpKind.DENSE, OpKind.HEAD,
    OpKind.PREDICT, OpKind.EXPERT, OpKind.LOAD, OpKind.RETURN,
)  # fmt: skip
_COMMON = 6
_LANES = (*Lane,)
_CAUSES = ("", "control", "load", "host", "device", "predict")
_NOTES: tuple[NoteKind, ...] = ("evict", "cancel")
_PHASES: tuple[Phase, Phase] = ("prefill", "decode")
_COUNTS = (
    "active", "hits", "in_flight", "begun", "loads", "host", "host_resident", "unchosen",
    "prefetched", "prefetched_top_score", "prefetched_active", "prefetched_used", "asked",
    "asked_all", "asked_any", "uploaded", "uploads_refused",
)  # fmt: skip
#: The parts of the results in the order of `replay_part`, each with the numbers of an entry.
_PARTS = {"spans": 12, "named": 2, "events": 5, "alike": 3}
#: The most spans at the end of a token before the ones without a reader are dropped.
MOST_SPANS = 1 << 18
_SUMS = ("busy", "stall", "stalled", "moved", "counts", "now", "slots_used")


def compiled(engine: Engine) -> Engine:
    """Return an engine that replays in compiled code, or the given one where it cannot.

    The given engine has placed its experts and not generated anything.
    """
    if not (repeated() and ours(engine.system)) or why_not(engine) is not None:
        return engine
    if library() is None:
        return engine
    return CompiledEngine(engine)


class CompiledEngine(Engine):
    """An engine in Python whose batches are replayed in compiled code."""

    def __init__(self, engine: Engine) -> None:
        vars(self).update(vars(engine))
        loaded = library()
        assert loaded is not None, "`compiled` has asked for it"
        if (loaded.size_of_setup(), loaded.size_of_batch()) != (
            ctypes.sizeof(Setup), ctypes.sizeof(Batch)
        ):  # fmt: skip
            raise IntegrityError("replay.cpp and its structures in engine.py differ")
        self._library, self._kept = loaded, list[np.ndarray]()
        self._decided = decided(self.system, self.model.shape)
        self._asked = Asked(self, self._predictor, self._decided)
        self._sums_before: dict[str, np.ndarray] = {}
        self._products: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._common_prices: dict[int, np.ndarray] = {}
        self._charged = len(self.cache.owners)
        self._replay = ctypes.c_void_p(loaded.replay_new(ctypes.byref(self._setup())))
        placed = np.array(self.cache.owners, np.int64)
        loaded.replay_place(self._replay, self._pointer(placed), _INT(len(placed)))

    def __del__(self) -> None:
        if hasattr(self, "_replay"):
            self._library.replay_delete(self._replay)

    def _pointer(self, array: np.ndarray) -> Any:
        """Return an array's address, and keep the array alive until the next batch."""
        self._kept.append(array)
        return ctypes.c_void_p(array.ctypes.data)

    def _setup(self) -> Setup:
        machine, system, cache = cast(SimulatedMachine, self.machine), self.system, self.cache
        shape, costs, predictor = self.model.shape, machine.costs, system.prefetch.predictor
        one = Op(OpKind.EXPERT, 0, (1,), (0,))
        launch, on_device, _ = costs.price(one, Lane.DEVICE)
        copy_submit = costs.copy_submit_ns
        load = Op(OpKind.LOAD, 0)
        layers = range(shape.num_layers)
        pool = [shape.moe_rows.get(layer, 0) if cache.scope == "layer" else 0 for layer in layers]
        numbers: dict[str, Any] = {
            "layers": shape.num_layers, "experts": shape.num_experts, "top_k": shape.top_k,
            "pools": len(cache.pools), "capacity": cache.capacity,
            "moe_row": [shape.moe_rows.get(layer, -1) for layer in layers],
            "next_moe": [_next(shape.moe_layers, layer) for layer in layers],
            "pool_of": pool, "pool_ends": np.cumsum([0, *cache.pools]),
            "has_shared": bool(shape.shared_width),
            "has_predictor": predictor is not None and not self._decided.predictions,
            "predicts_attention": isinstance(predictor, NextLayer),
            "next_only": isinstance(predictor, NextLayer),
            "decision_ns": costs.decision_ns, "sync_ns": costs.sync_ns,
            "load_submit_ns": costs.load_submit_ns, "copy_submit_ns": copy_submit,
            "record_ns": costs.ns(load, Lane.H2D), "record_bytes": costs.record_bytes,
            "waits_each_layer": costs.waits_each_layer,
            "blocking_copies": bool(machine.blocking_copies), "host_together": self._host_together,
            "overlaps": system.overlap,
            "launch_ns": launch, "expert_control_ns": on_device,
            "host_control_ns": costs.control_ns(one, Lane.HOST) - copy_submit,
            "host_dispatch_ns": costs.host_begins_ns(2) - costs.host_begins_ns(1),
            "host_handoff_ns": costs.host_begins_ns(0),
            "lost_beside_copies": costs.lost_beside_copies, "lost_together": costs.lost_together,
            "device_estimate": self.timeline.costs.device_ns[0],
            "load_estimate": self.timeline.costs.load_ns[0],
            "host_estimate": self.timeline.costs.host_ns[0],
        }  # fmt: skip
        decided = self._decided
        numbers |= decided.numbers
        numbers |= {name: getattr(decided, name) for name in ("assign", "evict", "prefetch")}
        numbers |= {
            "commits": system.prefetch.discipline == "committed",
            "asks_layers": decided.asks_layers, "asks_routing": decided.routing,
            "asks_growth": decided.growth, "transient": system.evict.transient,
            "asks_predictions": decided.predictions, "asks_uploads": decided.uploads,
            "most_queued": -1 if system.admit.queue is None else system.admit.queue,
        }  # fmt: skip
        asked = self._asked
        shared = {
            "held": cache.held_all, "ready": cache.ready_all, "allowed": asked.allowed,
            "talk": asked.talk, "clock": asked.clock, "costs": asked.costs,
            "costs_told": asked.told,
        }  # fmt: skip
        setup = Setup(ask=asked.function)
        for name, kind in cast(Any, Setup._fields_):
            if name in shared:
                setattr(setup, name, self._pointer(shared[name]))
            elif kind is _AT:
                setattr(setup, name, self._pointer(np.array(numbers[name], np.int64)))
            elif kind is not ASK:
                value = numbers.get(name, 0)
                setattr(setup, name, int(value) if kind is _INT else value)
        self._kept_always = self._kept  # read in every batch
        return setup

    # ------------------------------------------------------------------ a batch of prompts

    def steps(
        self, prompts: Sequence[Sequence[int]], new_tokens: int,
        forced: Sequence[Sequence[int]] = (), end: int | None = None,
        stop: Callable[[Sequence[list[int]]], bool] | None = None,
    ) -> Iterator[Generation]:  # fmt: skip
        """Replay a batch; `end` and `stop` are refused, as a recorded text does not depend on them.

        Yields once, when all tokens are done.
        """
        assert end is None, "a recorded text ends where it ended"
        assert stop is None, "a recorded text ends where it ended"
        model = cast(TracedModel, self.model)
        model.begin(prompts, new_tokens, forced)
        predictor = self.system.prefetch.predictor
        ahead = 0 if predictor is None else predictor.layers
        kind = None if predictor is None else predictor.lookahead
        if kind in (Lookahead.NONE, Lookahead.EXACT):
            kind = None
        recorded = model.stacked(new_tokens, kind, ahead)
        self._kept = []
        lengths = [len(p) for p in prompts]
        embedding = model.embedding() if self._reads_embedding else None
        self.system.begin_sequences(Prompts(lengths, embedding))
        self._asked.begin(recorded, lengths)
        batch, ends, used, counts = self._batch(recorded, lengths)
        started_ns = self.machine.now_ns()
        failed = self._library.replay_run(self._replay, ctypes.byref(batch))
        if failed < 0:
            error, self._asked.error = self._asked.error, None
            assert error is not None, "compiled code stops for nothing else"
            raise error
        if failed:
            raise no_room(self.system.evict, failed - 1)
        self._read(ends)
        out = Generation([list(t) for t in zip(*recorded.chosen, strict=True)], started_ns)
        out.token_ends_ns = ends.tolist()
        keys, numbers = used[1:, :, : counts[1:].max(initial=0)].tolist(), counts[1:].tolist()
        out.used = [
            [of_layer[:n] for of_layer, n in zip(of_pass, many, strict=True)]
            for of_pass, many in zip(keys, numbers, strict=True)
        ]
        out.paused_ns = [0] * (len(ends) - 1)
        self.system.end_sequences()
        yield out

    def _batch(
        self, recorded: Stacked, lengths: Sequence[int]
    ) -> tuple[Batch, np.ndarray, np.ndarray, np.ndarray]:
        """Return the arrays of a batch: its input, and those for token ends and used keys."""
        system, shape = self.system, self.model.shape
        passes, texts = 1 + len(recorded.decoded_ids), len(lengths)
        rows = np.array([sum(lengths)] + [texts] * (passes - 1), np.int64)
        self._lengths, self._rows = [*lengths], rows
        layers, experts = len(shape.moe_layers), shape.num_experts
        prefill, decoded = recorded.prefill_ids, recorded.decoded_ids
        ids_at = np.concatenate([[0], prefill.size + np.arange(passes - 1) * decoded[:1].size])
        predictor = system.prefetch.predictor
        ahead = 0 if predictor is None or self._decided.predictions else predictor.layers
        kept = min(self.timeline.kept_tokens, passes + 1)
        batch = Batch(passes, texts, ahead, notes=kept, most_spans=MOST_SPANS)
        most = min(experts, int(rows.max()) * shape.top_k)
        ends = np.zeros(passes, np.int64)
        used = np.zeros((passes, layers, most), np.int64)
        counts = np.zeros((passes, layers), np.int64)
        device, host, back = self._of_experts(int(rows.max()))
        arrays = {
            "rows": rows, "prices": self._prices(rows, ahead),
            "device_products": device, "host_products": host, "return_ns": back,
            "ids": np.concatenate([prefill.ravel(), decoded.ravel()]), "ids_at": ids_at,
            "ends": ends, "used": used, "used_count": counts,
        }  # fmt: skip
        if self._decided.assign and isinstance(system.assign, READS_BEST):
            arrays["best"] = _over_rows(recorded, np.max)
        if self._decided.evict and isinstance(system.evict, READS_MEAN):
            arrays["mean"] = _over_rows(recorded, np.mean)
        if ahead and self._decided.prefetch:
            self._check_recorded(recorded.predicted)
            arrays["predicted"] = recorded.predicted.astype(np.float64)
        if isinstance(system.prefetch, ResidualPrefetch) and "predicted" in arrays:
            arrays["predicted"], arrays["worth"] = self._corrected(recorded.predicted)
        for name, array in arrays.items():
            setattr(batch, name, self._pointer(np.ascontiguousarray(array)))
        batch.most = most
        return batch, ends, used, counts

    def _of_experts(self, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return, by rows up to ``most``, products of an expert and the time of its output."""
        if self._products is None or len(self._products[0]) <= most:
            costs = cast(SimulatedMachine, self.machine).costs
            each = [costs.expert_products(max(n, 1)) for n in range(most + 1)]
            back = [costs.ns(Op(OpKind.RETURN, 0, (n,)), Lane.D2H) for n in range(most + 1)]
            device, host = np.array(each, np.float64).T.copy()
            self._products = device, host, np.array(back, np.int64)
        return self._products

    def _prices(self, rows: np.ndarray, ahead: int) -> np.ndarray:
        """Return the prices of the passes' common operations, ``[passes, 6 + ahead, 3]``."""
        machine = cast(SimulatedMachine, self.machine)
        found = np.zeros((len(rows), _COMMON + ahead, 3), np.int64)
        attends = isinstance(self.system.prefetch.predictor, NextLayer)
        shape = self.model.shape
        for step, n in enumerate(rows.tolist()):
            if n not in self._common_prices:
                table = self._common_prices[n] = np.zeros((_COMMON + ahead, 3), np.int64)
                for at, kind in enumerate(_KINDS[1:_COMMON], 1):
                    if kind is OpKind.SHARED and not shape.shared_width:
                        continue
                    heads = len(self._lengths) if kind is OpKind.HEAD else n
                    table[at] = machine.costs.price(Op(kind, 0, (heads,)), Lane.DEVICE)
                for later in range(ahead if not attends else 0):
                    op = Op(OpKind.PREDICT, 0, (n,) * (later + 1))
                    table[_COMMON + later] = machine.costs.price(op, Lane.DEVICE)
            found[step] = self._common_prices[n]
            forward = self._pass_of(step)
            reads = forward.context, forward.pairs
            attend = Op(OpKind.ATTEND, 0, (n,), (), *reads)
            found[step, 0] = machine.costs.price(attend, Lane.DEVICE)
            if attends:
                op = Op(OpKind.PREDICT, 0, (n,), (), *reads)
                found[step, _COMMON] = machine.costs.price(op, Lane.DEVICE)
        return found

    def _pass_of(self, step: int) -> ForwardPass:
        return pass_of(self._lengths, step, self.cached)

    # ------------------------------------------------------------------ predictions

    def _seen(self, layer: int, step: int) -> LayerView:
        """Return the view of a decoded layer, as far as predictors read it."""
        shape, none = self.model.shape, np.empty((0, 0))
        return LayerView(
            layer=layer, next_layer=shape.next_moe_layers[layer], phase="decode", shape=shape,
            forward=self._pass_of(step), alpha=self._alpha, scores_TE=none, topk_ids_TK=none,
            costs=self.timeline.costs, lanes=self.machine,
        )  # fmt: skip

    def _check_recorded(self, predicted: np.ndarray) -> None:
        """Raise NotRecordedError if a prediction is missing that compiled code will read."""
        layers, predictor = self.model.shape.moe_layers, self.system.prefetch.predictor
        for row, layer in enumerate(layers):
            for later, then in enumerate(layers[row + 1 : row + 1 + predicted.shape[1]]):
                if isinstance(predictor, NextLayer) and then != layer + 1:
                    continue
                if np.isnan(predicted[:, later, row]).any():
                    assert predictor is not None, "it reads predictions"
                    raise not_recorded(layer, then, predictor.lookahead)

    def _corrected(self, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return corrected predictions of `ResidualPrefetch`, and each expert's worth over rows."""
        policy, shape = cast(ResidualPrefetch, self.system.prefetch), self.model.shape
        corrected = np.zeros(predicted.shape)
        for row, then in enumerate(shape.moe_layers[1:]):
            of_layer = np.ascontiguousarray(predicted[:, 0, row])
            corrected[:, 0, row] = policy.corrected(then, of_layer, shape)
        return corrected, best_probabilities(corrected)

    # ------------------------------------------------------------------ results

    def _part(self, name: str) -> np.ndarray:
        """Return a part of the results, as an array that is valid until the next batch."""
        length = _INT()
        number = [*_PARTS, *_SUMS].index(name)
        at = self._library.replay_part(self._replay, _INT(number), ctypes.byref(length))
        size = length.value * _PARTS.get(name, 1)
        if not size:
            return np.zeros((0, _PARTS.get(name, 1)), np.int64)
        numbers = np.ctypeslib.as_array((_INT * size).from_address(at))
        return numbers.reshape(length.value, -1) if name in _PARTS else numbers

    def _read(self, ends: np.ndarray) -> None:
        """Add a batch's results to the tally, the timeline, the device's memory and the clock."""
        machine = cast(SimulatedMachine, self.machine)
        sums = {name: self._part(name).copy() for name in _SUMS}
        before = self._sums_before or {name: np.zeros_like(n) for name, n in sums.items()}
        new = {name: (sums[name] - before[name]).reshape(2, -1).tolist()
               for name in ("busy", "stall", "moved", "counts")}  # fmt: skip
        stalled = sums["stalled"].reshape(2, -1).tolist()
        self._sums_before = sums
        machine.pass_to(int(sums["now"][0]))
        spans, named = self._part("spans"), self._part("named").tolist()
        alike = self._part("alike").tolist()
        late = np.flatnonzero(spans[:, 7] > ends[-1]).tolist()

        def span_of(row: list[int]) -> Span:
            kind, lane, layer, step, first, experts, *times = row
            start, end, idle, cause, behind, moved = times
            op = self._op(_KINDS[kind], layer, step, first, named[first : first + experts])
            return Span(op, _LANES[lane], start, end, idle, _CAUSES[cause], behind, moved)

        totals = {phase: Totals() for phase in _PHASES}
        for phase, busy, stall, touched, moved, counted in zip(
            _PHASES, new["busy"], new["stall"], stalled, new["moved"], new["counts"], strict=True
        ):
            of = totals[phase]
            of.busy_ns |= dict(zip(_LANES, busy, strict=True))
            of.moved_bytes |= dict(zip(_LANES, moved, strict=True))
            causes = zip(_CAUSES, stall, touched, strict=True)
            of.stall_ns |= {cause: ns for cause, ns, was in causes if was}
            tally = self.tally.by_phase[phase]
            for name, n in zip(_COUNTS, counted, strict=True):
                setattr(tally, name, getattr(tally, name) + n)
        for at, lane, times in alike:
            row = spans[at].tolist()
            op = span_of(row).op
            of_lane = totals[_PHASES[row[3] > 0]].computed[_LANES[lane]]
            of_lane.setdefault(op.sizes, Computed(op, [0])).times[0] += times
        self._keep(spans, ends, span_of)
        outlasting = [(_PHASES[row[3] > 0], span_of(row)) for row in spans[late].tolist()]
        self.timeline.replayed(totals, outlasting)
        used = int(sums["slots_used"][0])
        self.cache.charge(used - self._charged)
        self._charged = max(self._charged, used)

    def _keep(
        self, spans: np.ndarray, ends: np.ndarray, span_of: Callable[[list[int]], Span]
    ) -> None:
        """Give the timeline the ends of tokens, and the spans and events of those that it keeps."""
        events, passes = self._part("events"), np.arange(len(ends) + 2)
        since_ns = self.timeline.pictured_since(ends.tolist())
        firsts, first_events = (np.searchsorted(of, passes) for of in (spans[:, 3], events[:, 4]))

        def notes_of(step: int) -> list[Note]:
            found = events[first_events[step] : first_events[step + 1], :4].tolist()
            return [Note(_NOTES[kind], *where) for kind, *where in found]

        for step, end_ns in enumerate(ends.tolist()):
            self.timeline.begin(_PHASES[step > 0])
            if self.timeline.keeping:
                rows = spans[firsts[step] : firsts[step + 1]]
                rows = rows[rows[:, 7] > since_ns].tolist()
                self.timeline.keep([span_of(row) for row in rows], notes_of(step))
            self.timeline.token(step, end_ns)
        if self.timeline.keeping:
            self.timeline.keep((), notes_of(len(ends)))

    def _op(
        self, kind: OpKind, layer: int, step: int, number: int, named: Sequence[Sequence[int]]
    ) -> Op:
        """Return a span's operation; ``number`` is a prediction's among those made in Python."""
        experts, each = tuple(e for e, _ in named), tuple(rows for _, rows in named)
        n, context, pairs = int(self._rows[step]), 0, 0
        if kind is OpKind.EXPERT:
            return Op(kind, layer, each, experts)
        if kind is OpKind.LOAD:
            return Op(kind, layer, (), experts)
        if kind is OpKind.RETURN:
            return Op(kind, layer, each[:1], experts)
        rows = (n,)
        if kind is OpKind.HEAD:
            rows = (len(self._lengths),)
        elif kind is OpKind.ATTEND:
            forward = self._pass_of(step)
            context, pairs = forward.context, forward.pairs
        elif kind is OpKind.PREDICT and self._decided.predictions:
            op = self._asked.predictions[number]
            return Op(kind, layer, op.rows, op.experts, op.context, op.pairs, op.network)
        elif kind is OpKind.PREDICT:
            predictor = self.system.prefetch.predictor
            assert predictor is not None, "it made the operation"
            return predictor.op(self._seen(layer, step))
        return Op(kind, layer, rows, (), context, pairs)


def _next(layers: Sequence[int], layer: int) -> int:
    """Return the first MoE layer after a layer, or -1."""
    return next((later for later in layers if later > layer), -1)


def _over_rows(recorded: Stacked, reduce: Callable[..., np.ndarray]) -> np.ndarray:
    """Return gate scores reduced over the rows of each pass, ``[passes, MoE layers, E]``."""
    prefill, decoded = recorded.prefill_scores, recorded.decoded_scores
    first = prefill[:, 0] if prefill.shape[1] == 1 else reduce(prefill, axis=1)
    then = decoded[:, :, 0] if decoded.shape[2] == 1 else reduce(decoded, axis=2)
    return np.concatenate([first[None], then]).astype(np.float32, copy=False)
