"""``moebench calibrate``: measures this computer, or its GPU, and writes a hardware profile.

Only components are measured: device operations by rows and cached tokens, experts by rows on device
and host, single and queued copies, the control thread's time between operations, and the disk by
block size and queue depth.  No end-to-end time is used.  The profile's *error* is the relative
difference between the summed components and a resident model's token time on a held-out prompt.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moebench.harness.machines.copies import copy_rate
from moebench.harness.machines.disk import disk_rates
from moebench.harness.machines.profile import profile_of
from moebench.harness.stage.card import DTYPES, OnCard
from moebench.substrate.engine.loop import Engine
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.accelerator import Accelerator
from moebench.substrate.machines.cuda import CardRecords, CudaMachine
from moebench.substrate.machines.local import LocalMachine
from moebench.substrate.machines.measured_times import Measured, Point, interpolated, shape_hash
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.machines.records import (
    DiskRecords,
    EmulatedLink,
    MemoryRecords,
    RecordsInMemory,
)
from moebench.substrate.machines.records import rows as memory_rows
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.slots import SlotExperts
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.device import CPU
from moebench.substrate.models.expert_store import ExpertStore
from moebench.substrate.models.opening import open_checkpoint
from moebench.systems.options import build

#: Numbers of rows with which one expert is timed, and trials of each.
ROWS = (*range(1, 17), 20, 24, 32, 48, 64)
TRIALS = 9

#: Repetitions of all passes, because a computer's speed varies from minute to minute.
ROUNDS = 3

#: Prompt lengths, batch sizes and generated tokens of the passes whose operations are timed.
PROMPTS, BATCHES, NEW_TOKENS = (8, 40, 120), (1, 3), 12

#: Held-out prompt length, on which the sum of the components is checked.
HELD_OUT = 72

#: Number of expert copies that are timed one by one, and again queued.
LOADS = 16

#: Pairs of decoded texts with and without concurrent copies, and most copies during one text.
PAIRS, MOST_COPIES = 5, 2048


def calibrate(
    weights: Path, link_gb_s: float | None, scratch: Path, card: Accelerator | None = None,
    precision: str = "fp32",
) -> dict[str, Any]:  # fmt: skip
    """Measure this computer with a checkpoint and return the content of its hardware profile.

    On a GPU an operation's time is that between two events, so it includes the launches for which
    the GPU waited.

    Args:
        link_gb_s: the emulated link's rate in GB/s; None loads experts from disk to the device.
        scratch: a folder on the disk to measure.
        card: the GPU to measure, whose experts are in pinned host memory; None measures the
            processor.
        precision: of weights and computation; the processor has fp32 only.

    Raises:
        CheckpointError, BudgetError: the checkpoint cannot be read, or exceeds the memory.
        UsageError: the device does not compute in this precision.
    """
    allowed = DTYPES if card is not None else ["fp32"]
    if precision not in allowed:
        raise UsageError(f"--precision {precision}: not measured; allowed: {', '.join(allowed)}")
    torch.set_num_threads(1)
    disk = disk_rates(scratch)
    with ExitStack() as stack, torch.inference_mode():
        checkpoint = open_checkpoint(weights)
        rig = _Rig(checkpoint, DTYPES[precision], link_gb_s, scratch, card, stack)
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
            what=f"{weights.resolve().name}, {precision}, one thread a side",
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
        record_bytes = rig.shape.expert_params * DTYPES[precision].itemsize
        rate = None if card is None else copy_rate(card, record_bytes, pinned=False)
    return profile_of(measured, record_bytes, rig.shape, disk, error, link_gb_s, card, rate)


class _Rig:
    """A fully resident model on a local machine, with methods that time its components."""

    def __init__(
        self, checkpoint: Checkpoint, dtype: torch.dtype, link_gb_s: float | None, scratch: Path,
        card: Accelerator | None, stack: ExitStack,
    ) -> None:  # fmt: skip
        stack.callback(checkpoint.close)
        shape = self.shape = checkpoint.shape
        slots = len(shape.moe_layers) * shape.num_experts
        self._timeline = Timeline(keep_all=True)
        self._one_read: DiskRecords | None = None
        records: MemoryRecords | DiskRecords | CardRecords
        common: Mapping[str, Tensor] = checkpoint.common(dtype)
        if card is not None:
            records = stack.enter_context(CardRecords(checkpoint, dtype, card))
            self._machine: LocalMachine = CudaMachine(records, slots, self._timeline, card)
            common = OnCard(common, card)
        else:
            if link_gb_s is not None:
                records = MemoryRecords(checkpoint, dtype, EmulatedLink(link_gb_s * 1e9))
            else:
                path = scratch / "experts" / f"{checkpoint.content_hash()}-float32.bin"
                store = ExpertStore.build(checkpoint, path, dtype)
                records = DiskRecords(store)
                self._one_read = stack.enter_context(DiskRecords(store, in_flight=1))
            stack.enter_context(records)
            self._machine = LocalMachine(records, slots, self._timeline)
        machine = stack.enter_context(self._machine)
        tier = Tier("device", slots * records.stride_bytes)
        cache = ExpertCache(shape, slots, "global", tier, records.stride_bytes)
        on_host = records.on_host if isinstance(records, RecordsInMemory) else None
        experts = SlotExperts(cache, machine.slots, on_host)
        self._decoder = Decoder(shape, common, experts, device=card or CPU)
        self._engine = Engine(build("gpu-only"), self._decoder, machine, cache, self._timeline)
        self._engine.start()
        self._draw = np.random.default_rng(0)

    def lengths(self, wanted: Iterable[int]) -> list[int]:
        """Return prompt lengths, reduced to the positions that the model has."""
        most = self.shape.max_positions - NEW_TOKENS
        return [min(n, most) for n in wanted]

    def generate(self, lengths: Sequence[int], new_tokens: int) -> list[Span]:
        """Generate tokens after random prompts, and return the spans of device operations."""
        prompts = [self._draw.integers(2, self.shape.vocab_size, n).tolist() for n in lengths]
        first = len(self._timeline.spans)
        self._engine.generate(prompts, new_tokens)
        return [s for s in self._timeline.spans[first:] if s.lane is Lane.DEVICE]

    def experts_by_rows(self) -> dict[Lane, tuple[Point, ...]]:
        """Time experts by rows on device and host, alternating experts to avoid CPU cache hits."""
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
            # A host expert's time starts when the control thread has submitted it.
            times.append(span.end_ns - min(asked, span.start_ns) if on_host else span.duration_ns)
        return times

    def read_alone_ns(self) -> float:
        """Return the median time of reading a record from disk; 0 if records are in memory."""
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
        """Return the median time from a host operation's end until its output is back."""
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
        """Return the slowdown of decode operations while records are copied, at least 1.

        Texts are decoded in pairs, without and with copies, so that the computer's speed is about
        the same for both; the result is the median over the pairs.
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
        """Return ``count`` load operations, spread over layers and experts."""
        ops = [
            Op(OpKind.LOAD, layer, (), (expert,))
            for layer in self.shape.moe_layers
            for expert in range(self.shape.num_experts)
        ]
        return [ops[n * 5 % len(ops)] for n in range(count)]

    def copies(self) -> dict[str, float]:
        """Return median times (ns) of single and queued copies, and of submitting and waking up."""
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
    """Client of the machine's loads that puts every record into the first slot."""

    def claim(self, op: Op, now_ns: int) -> tuple[Span, ...] | None:
        """Return None: no prefetches are queued."""
        return None

    def under_way(self, op: Op, span: Span) -> None:
        """Do nothing: no state depends on loads."""

    def arrived(self, op: Op, start_ns: int, end_ns: int) -> None:
        """Do nothing: no state depends on loads."""

    def slot_of(self, op: Op) -> int:
        """Return the first slot for every load."""
        return 0


# ------------------------------------------------------------------ spans to points


def _alike(op: Op) -> tuple[OpKind, tuple[int, ...]]:
    """Return an operation's kind and rows, which are equal for operations of equal duration."""
    return op.kind, op.rows


def _point(times: Sequence[float], rows: int, pairs: int = 0) -> Point:
    low, median, high = np.percentile(times, (25, 50, 75))
    # A clock that is coarser than the operation shows none of its spread.
    spread = (high - low) / median if median else 0.0
    return Point(
        rows=rows, pairs=pairs, ns=round(float(median)), spread=round(float(spread), 4)
    )  # fmt: skip


def _by_kind(passes: Sequence[tuple[int, int, Sequence[Span]]]) -> dict[OpKind, tuple[Point, ...]]:
    """Return measured points of all operations but experts, by kind.

    Attention has one point per prompt length and batch size.
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
    """Fit a + b·n to the time of n experts of one row each; return a (ns) and b as a point."""
    times: dict[int, list[int]] = defaultdict(list)
    for spans in passes:
        for span in spans:
            if span.op.kind is OpKind.EXPERT and set(span.op.rows) == {1}:
                times[len(span.op.rows)].append(span.duration_ns)
    experts = np.concatenate([np.full(len(t), n) for n, t in times.items()])
    took = np.concatenate([np.array(t) for t in times.values()])
    # Fit to the median of each n, weighted by the number of samples.
    middle = np.concatenate([np.full(len(t), np.median(t)) for t in times.values()])
    each, once = np.polyfit(experts, middle, 1) if len(times) > 1 else (middle[0] / experts[0], 0)
    # Small experts are computed together, so the time may not grow with n.
    once = max(0.0, float(once)) if each > 0 else 0.0
    return once, _point(list((took - once) / experts), 1)


def _gaps(passes: Iterable[Sequence[Span]]) -> dict[str, float]:
    """Return the control thread's median time between operations, and extra before experts."""
    before: dict[bool, list[int]] = defaultdict(list)
    for spans in passes:
        for one, following in pairwise(spans):
            assert one.end_ns is not None
            assert following.start_ns is not None
            before[following.op.kind is OpKind.EXPERT].append(following.start_ns - one.end_ns)
    gap, first = (statistics.median(before[expert]) for expert in (False, True))
    return {"gap_ns": gap, "decision_ns": max(0.0, first - gap)}


def _error(measured: Measured, spans: Sequence[Span]) -> float:
    """Return the relative error of summed component times against measured tokens (median)."""
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
