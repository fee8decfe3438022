"""Decode passes that are divided into micro-batches, with the core of attention on the host.

    device  project, ...                      output, gate, experts, sum      (before, after)
    d2h        queries, keys, values
    host             core over the KV cache            next layer's experts staged
    h2d                   state, a page of the next layer's experts

`order` is the schedule as data: which part of which micro-batch is submitted when.  Each lane is
first in, first out, so that with its dependencies this decides all times.  `MicroBatches` submits
it.  What micro-batches compute is computed once a layer, for all rows, because rows do not depend
on each other; times are charged for each micro-batch.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import chain
from typing import NamedTuple

from moebench.substrate.engine.decisions import Fetch, ForwardPass, Routed
from moebench.substrate.engine.operations import Operations
from moebench.substrate.engine.records import Layer, rows_of
from moebench.substrate.engine.system import System
from moebench.substrate.engine.transfers import Transfers
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, Machine, Op, OpKind, Span, op_of
from moebench.substrate.models.protocol import Model

#: How many micro-batches' attention is submitted ahead of the experts.
AHEAD = 2


class Part(Enum):
    """A part of a micro-batch's way through a layer."""

    PROJECT = "project"  # device: before the core
    QKV = "qkv"  # down
    CORE = "core"  # host
    STATE = "state"  # up: the core's output
    FINISH = "finish"  # device: from the output's product to the layer's sum
    STAGE = "stage"  # host: a page of a layer's experts, copied to page-locked memory
    PAGE = "page"  # up: that page


class Task(NamedTuple):
    """A part of a layer for one micro-batch, both from 0.

    The layer behind the last one is the first of the next pass.
    """

    part: Part
    layer: int
    micro_batch: int


def order(layers: int, micro_batches: int, paged: bool = True) -> Iterator[Task]:
    """Yield the tasks of a pass in the order of their submission.

    Args:
        paged: cut a layer's experts into one page for each micro-batch, behind its state;
            otherwise they are one transfer, before all states.
    """
    ahead = min(AHEAD, micro_batches)

    def attention(layer: int, micro_batch: int) -> Iterator[Task]:
        if not paged and micro_batch == 0:  # its transfer does not wait for this core
            yield Task(Part.STAGE, layer + 1, 0)
        for part in (Part.PROJECT, Part.QKV, Part.CORE):
            yield Task(part, layer, micro_batch)
        if paged:
            yield Task(Part.STAGE, layer + 1, micro_batch)

    for first in range(ahead):
        yield from attention(0, first)
    for layer in range(layers):
        if not paged:
            yield Task(Part.PAGE, layer + 1, 0)
        for micro_batch in range(micro_batches):
            yield Task(Part.STATE, layer, micro_batch)
            if paged:
                yield Task(Part.PAGE, layer + 1, micro_batch)
            yield Task(Part.FINISH, layer, micro_batch)
            wraps, then = divmod(micro_batch + ahead, micro_batches)
            if layer + wraps < layers:
                yield from attention(layer + wraps, then)


class MicroBatches:
    """Submits the micro-batches of a run's decode passes.

    Args:
        decide: routes a layer and plans it, when its first micro-batch needs its experts.
        close: ends the layer, when its last micro-batch has been submitted.
    """

    def __init__(
        self, system: System, model: Model, machine: Machine, transfers: Transfers,
        ops: Operations, decide: Callable[[int], Layer], close: Callable[[Layer], None],
    ) -> None:  # fmt: skip
        self._assign, self._prefetch, self._model = system.assign, system.prefetch, model
        self._machine, self._transfers, self._ops = machine, transfers, ops
        self._synchronises = system.synchronises
        self._decide, self._close = decide, close

    def keep_cache(self, layer: int, rows: int, attended: Span) -> None:
        """Submit the transfer of a prompt's keys and values to the host, behind its attention."""
        self._machine.submit(Op(OpKind.QKV, layer, (0, rows)), Lane.D2H, (attended,))

    def run(self, forward: ForwardPass, lengths: Sequence[int], cached: int) -> None:
        """Submit one pass, all but the head.

        Args:
            lengths: tokens of each text, this pass's included.
            cached: tokens of each text's cache before its prompt.
        """
        self._groups = [list(texts) for texts in self._assign.micro_batches(lengths)]
        if sorted(chain(*self._groups)) != list(range(forward.rows)):
            raise UsageError(
                f"{type(self._assign).__name__} divides {forward.rows} texts into {self._groups}; "
                "allowed: each text in one micro-batch"
            )
        #: Cached tokens that each micro-batch's attention reads.
        self._contexts = [sum(lengths[t] + cached for t in texts) for texts in self._groups]
        self._spans: dict[Task, Span] = {}
        self._wanted: dict[int, list[Fetch]] = {}
        submits = {
            Part.PROJECT: self._project, Part.QKV: self._qkv, Part.CORE: self._core,
            Part.STATE: self._state, Part.FINISH: self._finish, Part.STAGE: self._stage,
            Part.PAGE: self._page,
        }  # fmt: skip
        layers = self._model.shape.num_layers
        for task in order(layers, len(self._groups), self._prefetch.paged):
            span = submits[task.part](task.layer, task.micro_batch)
            if span is not None:
                self._spans[task] = span

    def _of(self, part: Part, layer: int, micro_batch: int) -> tuple[Span, ...]:
        """Return the span of a task, or nothing if it had nothing to do."""
        span = self._spans.get(Task(part, layer, micro_batch))
        return () if span is None else (span,)

    # ------------------------------------------------------------------ attention

    def _project(self, layer: int, j: int) -> Span:
        after = self._of(Part.FINISH, layer - 1, j)
        if j == 0:
            after += tuple(self._ops.copies(layer))
        op = op_of(OpKind.PROJECT, layer, (len(self._groups[j]),))
        return self._ops.device(op, after, None)

    def _qkv(self, layer: int, j: int) -> Span:
        rows = len(self._groups[j])
        after = self._of(Part.PROJECT, layer, j)
        return self._machine.submit(op_of(OpKind.QKV, layer, (rows, rows)), Lane.D2H, after)

    def _core(self, layer: int, j: int) -> Span:
        context = self._contexts[j]
        op = Op(OpKind.CORE, layer, (len(self._groups[j]),), (), context, context)
        return self._machine.submit(op, Lane.HOST, self._of(Part.QKV, layer, j))

    def _state(self, layer: int, j: int) -> Span:
        op = op_of(OpKind.RETURN, layer, (len(self._groups[j]),))
        return self._machine.submit(op, Lane.H2D, self._of(Part.CORE, layer, j))

    # ------------------------------------------------------------------ pages

    def _stage(self, layer: int, j: int) -> Span | None:
        shape = self._model.shape
        if j == 0:
            fetches = self._prefetch.pages(layer % shape.num_layers)
            self._wanted[layer] = self._transfers.absent(fetches)
        op = self._page_op(layer, j) if self._prefetch.staged else None
        return None if op is None else self._machine.submit(op, Lane.HOST)

    def _page(self, layer: int, j: int) -> Span | None:
        after = self._of(Part.STAGE, layer, j)
        if j == 0:
            self._wanted[layer], free = self._transfers.claim_pages(self._wanted[layer])
            after += free
        op = self._page_op(layer, j)
        if op is None:
            return None
        span = self._machine.submit(op, Lane.H2D, after)
        if j == self._pages - 1:
            first = span if j == 0 else self._of(Part.PAGE, layer, 0)[0]
            self._transfers.pages_arrive(self._wanted[layer], first, span)
        return span

    def _page_op(self, layer: int, j: int) -> Op | None:
        wanted = self._wanted[layer]
        if not wanted:
            return None
        experts = tuple([fetch.expert for fetch in wanted if fetch.expert is not None])
        return op_of(OpKind.PAGE, wanted[0].layer, (), experts, 0, (j, self._pages))

    @property
    def _pages(self) -> int:
        return len(self._groups) if self._prefetch.paged else 1

    # ------------------------------------------------------------------ experts

    def _finish(self, layer: int, j: int) -> Span:
        """Submit all that follows the core: the output, the experts of these rows, their sum."""
        shape, rows = self._model.shape, len(self._groups[j])
        after = self._of(Part.STATE, layer, j)
        if j == 0:
            self._model.attend(layer)
        if layer not in shape.moe_rows:
            if j == 0:
                self._model.dense(layer)
            self._ops.device(op_of(OpKind.OUTPUT, layer, (rows,)), after, None)
            return self._ops.device(op_of(OpKind.DENSE, layer, (rows,)), (), None)
        if j == 0:
            self._begin_layer(layer)
            after += self._arrivals
        self._ops.device(op_of(OpKind.OUTPUT, layer, (rows,)), after, None)
        self._ops.device(op_of(OpKind.GATE, layer, (rows,)), (), None)
        ids_TK = self._layer.routed.ids_TK[self._groups[j]]
        used = rows_of(Routed(ids_TK, ids_TK))
        if used:
            op = Op(OpKind.EXPERT, layer, tuple(used.values()), tuple(used))
            self._reads.append(self._ops.device(op, (), None))
        if shape.shared_width:
            self._ops.device(op_of(OpKind.SHARED, layer, (rows,)), (), None)
        summed = self._ops.device(op_of(OpKind.COMBINE, layer, (rows,)), (), None)
        if self._synchronises:
            self._machine.wait(summed)
        if j == len(self._groups) - 1:
            self._transfers.computed(self._reads)
            self._transfers.drop_unused(layer)
            self._close(self._layer)
        return summed

    def _begin_layer(self, layer: int) -> None:
        """Decide the layer, wait for its experts, and compute it for all rows."""
        model, transfers = self._model, self._transfers
        now = self._layer = self._decide(layer)
        if now.plan.host or now.plan.deferred:
            raise UsageError(
                f"layer {layer}: the plan leaves experts to the host; allowed in a pass that is "
                "divided into micro-batches: none"
            )
        spans = [transfers.arrival(layer, expert) for expert in now.coming]
        for fetch in now.plan.load:
            span = transfers.demand_when_free(fetch)
            spans += [] if span is None else [span]
        self._arrivals, self._reads = tuple(spans), list[Span]()
        model.compute(layer, list(now.rows))
        if model.shape.shared_width:
            model.shared(layer)
        model.combine(layer)
