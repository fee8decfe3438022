"""``moebench calibrate``: measures this computer with one model and writes a hardware profile.

Only components are measured: operations of the device by rows and cached tokens, experts by rows on
either side, copies one by one and in a row, what the control thread spends between them, and the
disk by block size and depth.  No end-to-end time enters; the *error* that the profile states is how
far the sum of its parts is from a resident model's token that took no part in the measurement.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moebench.harness.machines.disk import disk_rates
from moebench.harness.machines.profile import profile_of
from moebench.harness.stage.local import DTYPE
from moebench.substrate.engine.loop import Engine
from moebench.substrate.machines.local import LocalMachine
from moebench.substrate.machines.measured_times import Measured, Point, interpolated, shape_hash
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.machines.records import (
    DiskRecords,
    EmulatedLink,
    MemoryRecords,
)
from moebench.substrate.machines.records import (
    rows as memory_rows,
)
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.slots import SlotExperts
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.expert_store import ExpertStore
from moebench.substrate.models.imported import open_checkpoint
from moebench.substrate.models.weights import Checkpoint
from moebench.systems.options import build

#: Rows of one expert that are timed, and how often.
ROWS = (*range(1, 17), 20, 24, 32, 48, 64)
TRIALS = 9

#: How often all passes are made: a computer is not equally fast from minute to minute.
ROUNDS = 3

#: Prompt lengths of the passes whose operations are timed, their batches, and tokens after each.
PROMPTS, BATCHES, NEW_TOKENS = (8, 40, 120), (1, 3), 12

#: The length that takes no part, by which the sum of the parts is checked.
HELD_OUT = 72

#: Copies that are timed one by one, and in a row.
LOADS = 16

#: Decoded texts with copies beside them and without, and copies beside one at most.
PAIRS, MOST_COPIES = 5, 2048


def calibrate(weights: Path, link_gb_s: float | None, scratch: Path) -> dict[str, Any]:
    """Measure this computer with a checkpoint; the profile as a YAML file holds it.

    Args:
        link_gb_s: the emulated link's rate; None has the disk below the device.
        scratch: a folder on the disk that is meant.

    Raises:
        CheckpointError, BudgetError: the checkpoint cannot be read, or does not fit into memory.
    """
    torch.set_num_threads(1)
    disk = disk_rates(scratch)
    with ExitStack() as stack, torch.inference_mode():
        rig = _Rig(open_checkpoint(weights), link_gb_s, scratch, stack)
        passes = [
            (n, batch, rig.generate([n] * batch, NEW_TOKENS))
            for _ in range(ROUNDS)
            for batch in BATCHES
            for n in rig.lengths(PROMPTS)
        ]
        experts = rig.experts_by_rows()
        operation_ns, one_row = _in_decode(spans for *_, spans in passes)
        more_rows = [p for p in experts[Lane.DEVICE] if p.rows > 1]
        device = _by_kind(passes) | {OpKind.EXPERT: (one_row, *more_rows)}
        gaps = _gaps(spans for *_, spans in passes)
        copies = rig.copies()
        measured = Measured(
            shape=shape_hash(rig.shape),
            what=f"{weights.resolve().name}, fp32, one thread a side",
            device=device,
            host={OpKind.EXPERT: experts[Lane.HOST]} if Lane.HOST in experts else {},
            operation_ns=operation_ns,
            read_alone_ns=rig.read_alone_ns(),
            return_ns=rig.return_ns() if Lane.HOST in experts else 0.0,
            beside_copies=rig.beside_copies(copies["load_after_ns"]),
            **copies,
            **gaps,
        )
        (held_out,) = rig.lengths((HELD_OUT,))
        error = _error(measured, rig.generate([held_out], NEW_TOKENS))
        record_bytes = rig.shape.expert_params * DTYPE.itemsize
    return profile_of(measured, record_bytes, rig.shape, disk, error, link_gb_s)


class _Rig:
    """A model that is all resident on a local machine, and the parts of it that are timed."""

    def __init__(
        self, checkpoint: Checkpoint, link_gb_s: float | None, scratch: Path, stack: ExitStack
    ) -> None:
        stack.callback(checkpoint.close)
        shape = self.shape = checkpoint.shape
        records: MemoryRecords | DiskRecords
        self._one_read: DiskRecords | None = None
        if link_gb_s is not None:
            records = MemoryRecords(checkpoint, DTYPE, EmulatedLink(link_gb_s * 1e9))
        else:
            path = scratch / "experts" / f"{checkpoint.content_hash()}-float32.bin"
            store = ExpertStore.build(checkpoint, path, DTYPE)
            records = DiskRecords(store)
            self._one_read = stack.enter_context(DiskRecords(store, in_flight=1))
        stack.enter_context(records)
        slots = len(shape.moe_layers) * shape.num_experts
        tier = Tier("device", slots * records.stride_bytes)
        cache = ExpertCache(shape, slots, "global", tier, records.stride_bytes)
        self._timeline = Timeline(keep_all=True)
        self._machine = stack.enter_context(LocalMachine(records, slots, self._timeline))
        on_host = records.on_host if isinstance(records, MemoryRecords) else None
        self._decoder = Decoder(
            shape, checkpoint.common(DTYPE), SlotExperts(cache, self._machine.slots, on_host)
        )
        self._engine = Engine(
            build("gpu-only"), self._decoder, self._machine, cache, self._timeline
        )
        self._engine.start()
        self._draw = np.random.default_rng(0)

    def lengths(self, wanted: Iterable[int]) -> list[int]:
        """Prompt lengths that the model has positions for."""
        most = self.shape.max_positions - NEW_TOKENS
        return [min(n, most) for n in wanted]

    def generate(self, lengths: Sequence[int], new_tokens: int) -> list[Span]:
        """Spans of the device while so many tokens follow prompts of random tokens."""
        prompts = [self._draw.integers(2, self.shape.vocab_size, n).tolist() for n in lengths]
        first = len(self._timeline.spans)
        self._engine.generate(prompts, new_tokens)
        return [s for s in self._timeline.spans[first:] if s.lane is Lane.DEVICE]

    def experts_by_rows(self) -> dict[Lane, tuple[Point, ...]]:
        """One expert at a time, others in between, so that no cache holds it."""
        lanes = [Lane.DEVICE, *([Lane.HOST] if self._machine.has_host_lane else [])]
        return {
            lane: tuple(
                _point(self._expert_times(lane, rows), rows)
                for rows in ROWS
                if rows < self.shape.max_positions
            )
            for lane in lanes
        }

    def _expert_times(self, lane: Lane, rows: int) -> list[int]:
        decoder, machine, shape = self._decoder, self._machine, self.shape
        prompt = self._draw.integers(2, shape.vocab_size, rows).tolist()
        decoder.begin([prompt], 1)
        decoder.embed("prefill")
        times = []
        on_host = lane is Lane.HOST
        work: Callable[..., None] = decoder.compute_on_host if on_host else decoder.compute
        for trial in range(TRIALS):
            layer = shape.moe_layers[trial % len(shape.moe_layers)]
            expert = trial * 7 % shape.num_experts
            decoder.gate(layer)
            ids_TK = (np.arange(shape.top_k) + expert)[None].repeat(rows, 0) % shape.num_experts
            decoder.dispatch(layer, ids_TK, ids_TK)
            op = Op(OpKind.EXPERT, layer, (rows,), (expert,))
            asked = time.perf_counter_ns()
            span = machine.submit(op, lane, (), work, layer, (expert,))
            asked = time.perf_counter_ns() if on_host else asked
            machine.wait(span)
            assert span.start_ns is not None
            assert span.end_ns is not None
            # On the host, from when the control thread has handed it over.
            times.append(span.end_ns - min(asked, span.start_ns) if on_host else span.duration_ns)
        return times

    def read_alone_ns(self) -> float:
        """A record from the disk in one read; 0 where records are in memory."""
        if self._one_read is None:
            return 0.0
        size, times = self._one_read.stride_bytes, []
        (slot,) = memory_rows(1, size, "a record")
        for op in self._loads(LOADS):
            began = time.perf_counter_ns()
            self._one_read.copy(op.layer, op.experts[0], slot, 0, size)
            times.append(time.perf_counter_ns() - began)
        return statistics.median(times)

    def return_ns(self) -> float:
        """From the end of an expert on the host until its output is back."""
        layer, times = self.shape.moe_layers[0], []
        for _ in range(TRIALS):
            expert = self._machine.submit(Op(OpKind.GATE, layer, (1,)), Lane.HOST)
            back = self._machine.submit(Op(OpKind.RETURN, layer, (1,)), Lane.D2H, (expert,))
            self._machine.wait(back)
            assert back.end_ns is not None
            assert expert.end_ns is not None
            times.append(back.end_ns - expert.end_ns)
        return statistics.median(times)

    def beside_copies(self, load_ns: float) -> float:
        """How many times as long operations of decode take while records are copied, at least 1.

        Decoded tokens with copies and without follow each other, so that both meet the computer at
        one speed; the median of several such pairs.
        """
        (length,) = self.lengths((PROMPTS[-1],))
        ratios = []
        for _ in range(PAIRS):
            alone = self.generate([length], NEW_TOKENS)
            known = defaultdict(list)
            for span in alone:
                known[_alike(span.op)].append(span.duration_ns)
            took_ns = (alone[-1].end_ns or 0) - (alone[0].start_ns or 0)
            loads = self._loads(min(MOST_COPIES, 1 + round(took_ns / load_ns)))
            copied = [self._machine.load(op, _Slots()) for op in loads]
            beside = self.generate([length], NEW_TOKENS)
            self._machine.wait(copied[-1])
            until = copied[-1].end_ns or 0
            pairs = [
                (span.duration_ns, statistics.median(known[_alike(span.op)]))
                for span in beside
                if (span.end_ns or 0) <= until and _alike(span.op) in known
            ]
            if pairs:
                ratios.append(sum(a for a, _ in pairs) / sum(b for _, b in pairs))
        return max(1.0, round(statistics.median(ratios), 4)) if ratios else 1.0

    def _loads(self, count: int) -> list[Op]:
        """So many records, spread over layers and experts."""
        ops = [
            Op(OpKind.LOAD, layer, (), (expert,))
            for layer in self.shape.moe_layers
            for expert in range(self.shape.num_experts)
        ]
        return [ops[n * 5 % len(ops)] for n in range(count)]

    def copies(self) -> dict[str, float]:
        """Records to the device, one by one and in a row, and what they cost the control thread."""
        machine, client = self._machine, _Slots()
        chosen = self._loads(LOADS)
        alone, submit, wake = [], [], []
        for op in chosen:
            began = time.perf_counter_ns()
            span = machine.load(op, client)
            handed = time.perf_counter_ns()
            machine.wait(span)
            assert span.end_ns is not None
            wake.append(time.perf_counter_ns() - span.end_ns)
            submit.append(handed - began)
            alone.append(span.end_ns - handed)
        train = [machine.load(op, client) for op in chosen]
        machine.wait(train[-1])
        ends = [span.end_ns or 0 for span in train]
        return {
            "load_ns": statistics.median(alone),
            "load_after_ns": statistics.median(b - a for a, b in pairwise(ends)),
            "submit_ns": statistics.median(submit),
            "wake_ns": statistics.median(wake),
        }


class _Slots:
    """Sends every record to the first slot."""

    def claim(self, op: Op, now_ns: int) -> tuple[Span, ...] | None:
        """Nothing is prefetched."""
        return None

    def under_way(self, op: Op, span: Span) -> None:
        """Nothing to remember."""

    def arrived(self, op: Op, start_ns: int, end_ns: int) -> None:
        """Nothing to remember."""

    def slot_of(self, op: Op) -> int:
        """The first."""
        return 0


# ------------------------------------------------------------------ spans to points


def _alike(op: Op) -> tuple[OpKind, tuple[int, ...]]:
    """Equal for operations that take equally long: any layer, any experts of equal rows."""
    return op.kind, op.rows


def _point(times: Sequence[float], rows: int, pairs: int = 0) -> Point:
    low, median, high = np.percentile(times, (25, 50, 75))
    return Point(
        rows=rows, pairs=pairs, ns=round(float(median)),
        spread=round(float((high - low) / median), 4),
    )  # fmt: skip


def _by_kind(
    passes: Sequence[tuple[int, int, Sequence[Span]]],
) -> dict[OpKind, tuple[Point, ...]]:
    """Points of everything but experts.

    Attention of a prefill has rows of its own; in decode, a prompt length and a batch are a point.
    """
    times: dict[tuple[OpKind, int, tuple[int, int]], list[int]] = defaultdict(list)
    products: dict[tuple[OpKind, int, tuple[int, int]], list[int]] = defaultdict(list)
    for length, batch, spans in passes:
        for span in spans:
            op = span.op
            if op.kind is OpKind.EXPERT:
                continue
            line = (length, batch) if op.kind is OpKind.ATTEND else (0, 0)
            key = (op.kind, op.rows[0], line)
            times[key].append(span.duration_ns)
            products[key].append(op.pairs)
    found: dict[OpKind, list[Point]] = defaultdict(list)
    for (kind, rows, line), samples in times.items():
        pairs = round(statistics.median(products[kind, rows, line]))
        found[kind].append(_point(samples, rows, pairs))
    return {kind: tuple(points) for kind, points in found.items()}


def _in_decode(passes: Iterable[Sequence[Span]]) -> tuple[float, Point]:
    """An operation of n experts of one row each takes a + b·n: a, and b as a point."""
    times: dict[int, list[int]] = defaultdict(list)
    for spans in passes:
        for span in spans:
            if span.op.kind is OpKind.EXPERT and set(span.op.rows) == {1}:
                times[len(span.op.rows)].append(span.duration_ns)
    experts = np.concatenate([np.full(len(t), n) for n, t in times.items()])
    took = np.concatenate([np.array(t) for t in times.values()])
    # Medians of each n, weighed by how often it came.
    middle = np.concatenate([np.full(len(t), np.median(t)) for t in times.values()])
    each, once = np.polyfit(experts, middle, 1) if len(times) > 1 else (middle[0] / experts[0], 0)
    # Small experts are computed together, and several may take no longer than two.
    once = max(0.0, float(once)) if each > 0 else 0.0
    return once, _point(list((took - once) / experts), 1)


def _gaps(passes: Iterable[Sequence[Span]]) -> dict[str, float]:
    """The control thread's time between two operations, and before a layer's first expert."""
    before: dict[bool, list[int]] = defaultdict(list)
    for spans in passes:
        for one, following in pairwise(spans):
            assert one.end_ns is not None
            assert following.start_ns is not None
            before[following.op.kind is OpKind.EXPERT].append(following.start_ns - one.end_ns)
    gap, first = (statistics.median(before[expert]) for expert in (False, True))
    return {"gap_ns": gap, "decision_ns": max(0.0, first - gap)}


def _error(measured: Measured, spans: Sequence[Span]) -> float:
    """How far the parts' sum is from a token's time that took no part, as a share of it."""
    heads = [n for n, span in enumerate(spans) if span.op.kind is OpKind.HEAD]
    shares = []
    for first, last in pairwise(heads):
        token = spans[first + 1 : last + 1]
        whole = (spans[last].end_ns or 0) - (spans[first].end_ns or 0)
        expected = 0.0
        for span in token:
            op, table = span.op, measured.device[span.op.kind]
            if op.kind is OpKind.EXPERT:
                each = sum(interpolated(table, n) for n in op.rows)
                expected += measured.operation_ns + each + measured.decision_ns
            else:
                expected += interpolated(table, op.rows[0], op.pairs)
            expected += measured.gap_ns
        shares.append(expected / whole - 1)
    return statistics.median(shares)
