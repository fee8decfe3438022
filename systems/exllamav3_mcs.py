"""exllamav3 -mcs: in every MoE layer some experts stay on the host, and misses swap places.

Version ``published``: exllamav3 1.6.5 (PyPI) with ``-mcs N -mcpa``.  Version ``earlier``: 1.4.x
(turboderp-org/exllamav3@0cec381), which is also what 1.6.5 does without ``-mcpa``, except for the
number of tokens from which prefill streams.  Source: exllamav3/modules/block_sparse_mlp_cpu.py and
exllamav3/model/moe_cpu_host.py.  A worker process computes the host's experts (the *tail*) beside
the device's.  Which experts are where is found while the engine runs.

    engine                                             moebench
    ──────                                             ────────
    -mcs N, N experts of each layer on the host        ``place.n``; without it, as many as do not
                                                       fit: `on_host`
    the tail by id, or by counts of earlier runs       TailOnHost, ColdOnHost (``place.*-on-host``)
    -mcpa: promotion of missed experts                 PromoteOnMiss, ``admit=promote-on-miss``
    EXL3_MOE_CPU_PROMOTE=0: the sweep                  HitSweep, ``admit=hit-sweep``
    EXL3_MOE_CPU_SWAP=0: static                        ``admit=all``: nothing moves
    streamed prefill, EXL3_MOE_STREAM_T                SplitByResidence; `stream_tokens`
    -mcp profiles of the branch, commit 1149e2f0       ``place.profiles`` of ColdOnHost: `combined`

**Promotion.**  4 slots of each layer are *spare*: empty at the start.  At the beginning of each
forward pass of less than 32 rows (`promotions`): an expert that a layer routed and that the host
computed is promoted to a spare slot if its count is at least 1.5 · max(1, the least count among
the layer's residents that were not routed); at most 6 a pass, highest counts first, one a layer.
Counts are those of routed rows, × .98 a pass.  Once a promoted expert is complete, the resident
with the least count that was not routed goes to the host (`demotions`), and its slot is spare.

**Sweep** (`sweep`).  Each layer counts routed rows.  From 128 forward passes on a sweep is due; it
is made when the generator has no job left, or within a pass at 512.  The i-th least used resident
is exchanged with the i-th most used expert on the host where that has at least max(2 · max(hits of
the resident, 1), 8 · mean hits of the layer's experts), until a pair has less.  All layers share
64 exchanges, in their order; the hits of each layer that is swept are halved.

**Prefill.**  In a forward pass of 32 rows or more, an expert of the host is copied to the device
if at least ``stream_t`` tokens of the pass use it, and dropped after its use.

Deviations and readings:

- Counts reach the host one pass late: what a pass decides depends on the experts of the pass
  before the last.  "Routed" is a count above the last one read; after the decay, an expert with a
  count of 50 or more must gain 2 % of it.  Both are the code's.
- Equal counts: the code sorts with an unstable sort.  Here the lower layer and id is first.
- A demoted expert's copy stays in its slot until another expert is promoted to it.  The host
  computes the expert meanwhile; if it is promoted again, its old slot is used without a copy.  The
  copy of a demoted expert to the host, which takes the link's other direction, is not charged.
- Swapped experts are copied in the background, one after the other, while the host computes them.
  The code stops for a sweep and reads the experts from the checkpoint's file.  A sweep at the end
  of a batch is copied from the first MoE layer of the next batch on.
- The prompts of a batch are one pass here, whose rows are cut into chunks as in the code: each
  sequence for itself.  They count as forward passes.  An expert that is streamed in one chunk is
  computed on the device for all; a promotion is decided once, at the beginning.
- Streamed experts pass through ``ring`` slots.  The code has two buffers of 32 MiB, each with up to
  24 experts; larger experts are not streamed (``buffer_mib``).
- ``published`` starts from counts, as 1.6.5 does from its second start on; from those of the run's
  calibration texts.  1.4.x ignores counts unless it is static.
- All experts of a model have one shape here; the code skips pairs of unequal shapes (`sweep`).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

import numpy as np

from moebench.substrate.choices import HostKernels
from moebench.substrate.engine.decisions import Active, Fetch, LayerView, Plan
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import (
    Admission,
    Assignment,
    Eviction,
    Placement,
    Policy,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import RoutedSequence
from moebench.systems.policies.evict import OnlyNamed
from moebench.systems.policies.place import PlaceByPopularity
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting

Law = Literal["root", "linear"]

# --------------------------------------------------------------------------- the code's rules


def on_host(experts: int, n: int, counts: Sequence[float] | None = None) -> list[int]:
    """Return the n experts of a layer that the host keeps, at most all but one.

    They are the last ones by id, or if there are counts, of a stable descending order by counts.
    """
    order = list(range(experts))
    if counts is not None:
        order.sort(key=lambda expert: -counts[expert])
    return order[experts - max(0, min(n, experts - 1)) :]


def combined(
    profiles: Iterable[Sequence[Sequence[float]]], weights: Sequence[float] | None = None
) -> list[list[float]]:
    """Return counts ``[layer][expert]`` of several profiles: normalised per layer, then added."""
    given = [np.asarray(profile, dtype=float) for profile in profiles]
    total = np.zeros_like(given[0])
    for counts, weight in zip(given, weights or [1.0] * len(given), strict=True):
        sums = counts.sum(axis=1, keepdims=True)
        total += weight * np.divide(counts, sums, out=np.zeros_like(counts), where=sums > 0)
    return cast(list[list[float]], total.tolist())


def stream_tokens(gb_per_s: float, law: Law = "root") -> int:
    """Return from how many tokens on an expert is streamed over a link of this bandwidth.

    Args:
        law: ``root`` is 1.6.5's, ``linear`` 1.4.x's.
    """
    if law == "linear":
        return int(max(16, 16 * 25 / gb_per_s))
    return max(8, round(8 * math.sqrt(25 / max(gb_per_s, 0.5))))


def streamed(ids: np.ndarray, rows: int, tokens: int, min_rows: int = 32) -> list[int]:
    """Return the experts that ``tokens`` rows or more of a forward pass use, ascending.

    Args:
        ids: the experts of the pass's rows.
        rows: rows of the pass; with less than ``min_rows`` none is streamed.
    """
    if rows < min_rows:
        return []
    experts, counts = np.unique(ids, return_counts=True)
    return cast(list[int], experts[counts >= tokens].tolist())


def sweep_layer(
    hits: Sequence[float], resident: Sequence[bool], most: int,
    ratio: float = 2.0, floor: float = 8.0, shapes: Sequence[object] | None = None,
) -> list[tuple[int, int]]:  # fmt: skip
    """Return a layer's exchanges: (resident, expert of the host), at most ``most``.

    Args:
        hits: of each expert.
        ratio: least quotient of the hits of the host's expert and of the resident, or of 1.
        floor: least quotient of the hits of the host's expert and of the mean.
        shapes: of each expert; a pair of unequal ones is skipped, and does not count.
    """
    least = floor * sum(hits) / len(hits)
    by_hits = sorted(range(len(hits)), key=lambda expert: (hits[expert], expert))
    cold = [expert for expert in by_hits if resident[expert]]
    hot = [expert for expert in reversed(by_hits) if not resident[expert]]
    swaps: list[tuple[int, int]] = []
    for out, into in zip(cold, hot, strict=False):
        if len(swaps) >= most or hits[into] < max(ratio * max(hits[out], 1.0), least):
            break
        if shapes is None or shapes[out] == shapes[into]:
            swaps.append((out, into))
    return swaps


def sweep(
    hits_LE: np.ndarray, resident_LE: np.ndarray, most: int = 64,
    ratio: float = 2.0, floor: float = 8.0,
) -> list[tuple[int, int, int]]:  # fmt: skip
    """Return a sweep's exchanges (row of the layer, resident, expert of the host).

    Layers share ``most`` exchanges in their order.  The hits of each layer that is swept are halved
    in place; once no exchange is left, further layers are not swept.
    """
    swaps: list[tuple[int, int, int]] = []
    for row, (hits, resident) in enumerate(zip(hits_LE, resident_LE, strict=True)):
        if len(swaps) >= most:
            break
        pairs = sweep_layer(hits.tolist(), resident.tolist(), most - len(swaps), ratio, floor)
        swaps += [(row, *pair) for pair in pairs]
        hits *= 0.5
    return swaps


def promotions(
    counts_LE: np.ndarray, routed_LE: np.ndarray, resident_LE: np.ndarray, busy_LE: np.ndarray,
    spare: Sequence[int], most: int = 6, ratio: float = 1.5,
) -> list[tuple[int, int]]:  # fmt: skip
    """Return the experts (row of the layer, expert) that a pass promotes, highest counts first.

    Args:
        counts_LE: decayed counts.
        routed_LE, resident_LE: whether each expert was routed; whether the device computes it.
        busy_LE: whether it is being copied to the device or to the host.
        spare: spare slots of each layer.
    """
    quiet_LE = resident_LE & ~routed_LE & ~busy_LE
    least_L = np.maximum(np.where(quiet_LE, counts_LE, np.inf).min(axis=1), 1.0)
    missed_LE = routed_LE & ~resident_LE & ~busy_LE
    enough_LE = missed_LE & (counts_LE >= ratio * least_L[:, None])
    found: dict[int, int] = {}
    if not enough_LE.any():
        return []
    # The code looks at the best four times as many, of which others of the same layer are skipped.
    for at in np.argsort(-np.where(enough_LE, counts_LE, -1.0), axis=None, kind="stable")[
        : 4 * most
    ]:
        row, expert = divmod(int(at), counts_LE.shape[1])
        if not enough_LE[row, expert] or len(found) >= most:
            break
        if row not in found and spare[row]:
            found[row] = expert
    return list(found.items())


def demotions(counts_E: np.ndarray, quiet_E: np.ndarray, n: int) -> list[int]:
    """Return the n residents of a layer with the least counts among the quiet ones."""
    order = np.argsort(np.where(quiet_E, counts_E, np.inf), kind="stable")[:n]
    return [expert for expert in order.tolist() if quiet_E[expert]]


def passes(view: LayerView, chunk: int) -> list[slice]:
    """Return the rows of the code's forward passes: chunks of each prompt, or one decoding step."""
    if view.phase == "decode":
        return [slice(0, view.forward.rows)]
    found, start = list[slice](), 0
    for rows in view.forward.sequences:
        end = start + rows
        found += [slice(at, min(at + chunk, end)) for at in range(start, end, chunk)]
        start = end
    return found


def all_fit(shape: ModelShape, cache: ExpertCache) -> bool:
    """Return whether the device has slots for all experts: there is nothing to split then."""
    return cache.slots >= len(shape.moe_layers) * shape.num_experts


# --------------------------------------------------------------------------- placement


def placed(
    shape: ModelShape, slots: int, scope: Scope, n: int | None,
    counts: Sequence[Sequence[float]] | None = None,
) -> list[tuple[int, int]]:  # fmt: skip
    """Return equally many experts of each layer: those that `on_host` does not keep.

    Args:
        n: the fewest experts of each layer on the host; None is as few as there are no slots for.
    """
    if scope == "layer":
        raise UsageError(
            "exllamav3 gives each layer the same number of slots and streams through further ones, "
            "which layers share; allowed: --set scope=global"
        )
    experts, each = shape.num_experts, max(slots, 0) // len(shape.moe_layers)
    if each < 1:
        raise BudgetError(
            f"the device has {max(slots, 0)} slots for residents, {len(shape.moe_layers)} layers "
            "need one each; give a larger --capacity, or a smaller assign.ring or admit.spares"
        )
    if n is not None:
        each = min(each, experts - len(on_host(experts, n)))
    found = []
    for layer in shape.moe_layers:
        tail = on_host(experts, experts - each, None if counts is None else counts[layer])
        found += [(layer, expert) for expert in range(experts) if expert not in tail]
    return found


@dataclass(kw_only=True)
class TailOnHost(Placement):
    """Places the lowest ids of each layer: the host keeps the last N.

    Attributes:
        n: N (-mcs); null is as few as the device has no slots for.  All but one at most.
    """

    n: int | None = option(None, low=0, searched=(1, 128), scale="log")

    leaves_slots = True
    shares_slots = True

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return the lowest ids of each layer, equally many."""
        return placed(shape, slots, scope, self.n)


@dataclass(kw_only=True)
class ColdOnHost(PlaceByPopularity):
    """Places the most used experts of each layer: the host keeps the N with the least counts.

    Attributes:
        n: N (-mcs); null is as few as the device has no slots for.  All but one at most.
        profiles: count decoded tokens alone, and normalise the counts of each layer in each text
            before they are added, as the branch with -mcp does with its profiles.
    """

    n: int | None = option(None, low=0, searched=(1, 128), scale="log")
    profiles: bool = option(False, searched=True)

    leaves_slots = True
    shares_slots = True

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        """Count uses in all texts, or combine the counts of each text as profiles."""
        if not self.profiles:
            return super().calibrate(sequences, shape, artefacts, progress)
        each, tokens = [], 0
        for text in sequences:
            super().calibrate([text], shape, artefacts, progress)
            each.append(self._counts)
            tokens += self._tokens
        self._counts, self._tokens = combined(each), tokens
        return None

    def _counted(self, text: RoutedSequence) -> np.ndarray:
        """Return the routing of all tokens, or for a profile of decoded ones."""
        return text.ids_TLK[text.prefill :] if self.profiles else text.ids_TLK

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return the most used experts of each layer, equally many."""
        return placed(shape, slots, scope, self.n, self.counts(shape))


# --------------------------------------------------------------------------- assignment


@dataclass(kw_only=True)
class SplitByResidence(Assignment):
    """Computes residents on the device and the others on the host, or streams those of many rows.

    Attributes:
        law: how ``stream_t`` depends on the link's bandwidth: 1.6.5's ``root`` or 1.4.x's
            ``linear``.
        bandwidth: of the link, in GB/s; null is measured at the first layer.
        min_rows: fewest rows of a forward pass that streams.
        chunk: most rows of a forward pass in prefill.
        ring: slots of all layers for streamed experts; 0 streams none.
        buffer_mib: size of the largest expert that is streamed, in MiB.
    """

    law: Law = "root"
    bandwidth: float | None = option(None, low=0, above=True)
    min_rows: int = option(32, low=1, searched=(1, 512), scale="log")
    chunk: int = option(2048, low=1, searched=(256, 8192), scale="log")
    ring: int = option(2, low=0, searched=(0, 8))
    buffer_mib: int = option(32, low=0, searched=(8, 512), scale="log")

    loads = "none"

    uses_host = True
    reads_scores = False

    def __post_init__(self) -> None:
        super().__post_init__()
        #: By layer, experts that were given up although their slots still hold them.
        self.demoted: Mapping[int, Iterable[int]] = {}

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Decide whether experts are streamed; refuse a ring of all slots."""
        self._record_bytes = cache.slot_bytes // cache.capacity
        small = self._record_bytes <= self.buffer_mib << 20
        self.reserve = self.ring if small and not all_fit(shape, cache) else 0
        if self.reserve >= cache.slots:
            raise BudgetError(
                f"assign.ring={self.ring} keeps all {cache.slots} slots for streamed experts; give "
                "fewer, or a larger --capacity"
            )
        self._least: int | None = None

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Plan residents on the device; stream the absent experts that enough tokens use."""
        given_up = {*self.demoted.get(view.layer, ())}
        copies = Counter[int]()
        if self.reserve and view.forward.rows >= self.min_rows:
            least = self._tokens(view)
            for part in passes(view, self.chunk):
                ids, rows = view.topk_ids_TK[part], part.stop - part.start
                copies.update(streamed(ids, rows, least, self.min_rows))
        device = [e for e in active.resident if e not in given_up or copies[e]]
        device += [e for e in active.in_flight if copies[e]]
        once = [e for e in active.absent if copies[e]]
        host = [e for e in active.rows if e not in {*device, *once}]
        load = [Fetch(view.layer, e, keep=False) for e in once]
        again = [e for e in once for _ in range(copies[e] - 1)]
        return Plan([*device, *once], host, (), load, again)

    def _tokens(self, view: LayerView) -> int:
        """Return ``stream_t``; the bandwidth is measured once."""
        if self._least is None:
            bandwidth = self.bandwidth
            if bandwidth is None:  # bytes a nanosecond are GB/s
                bandwidth = self._record_bytes / max(view.costs.load_ns[0], 1.0)
            self._least = stream_tokens(max(bandwidth, 0.5), self.law)
        return self._least


# --------------------------------------------------------------------------- what moves


class _ByRow(Admission):
    """Base of admissions that decide at the beginning of a forward pass, over all MoE layers."""

    reads_scores = False

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Set all counts to zero."""
        self._cache, self._layers = cache, shape.moe_layers
        self._row, self._experts = shape.moe_rows, shape.num_experts
        self._size = (len(shape.moe_layers), shape.num_experts)
        self._wanted: list[Fetch] = []

    def _held(self, layer: int, expert: int) -> bool:
        return self._cache.holds(self._cache.key(layer, expert))

    def _rows_of(self, view: LayerView, part: slice) -> np.ndarray:
        """Return how many of the rows use each expert."""
        return np.bincount(view.topk_ids_TK[part].ravel(), minlength=self._experts)

    def uploads(self, view: LayerView, missed: Sequence[int]) -> Sequence[Fetch]:
        """Return the copies that were decided and have no slot yet: one may have been refused."""
        if self._wanted:
            self._wanted = [fetch for fetch in self._wanted if self._waits(fetch)]
        return self._wanted

    def _waits(self, fetch: Fetch) -> bool:
        """Return whether a copy has no slot yet.  A streamed expert has one of the ring for now."""
        if fetch.instead_of is not None:
            return self._held(fetch.layer, fetch.instead_of)
        return not self._held(fetch.layer, cast(int, fetch.expert))


@dataclass(kw_only=True)
class HitSweep(_ByRow):
    """Exchanges the least used residents with the most used experts of the host at intervals.

    Attributes:
        interval: forward passes from which on a sweep is due at the end of a batch; at four times
            as many it is made within one.
        most: exchanges of a sweep, over all layers.
        ratio, floor: see `sweep_layer`.
        chunk: most rows of a forward pass in prefill.
    """

    interval: int = option(128, low=1, searched=(16, 1024), scale="log")
    most: int = option(64, low=0, searched=(1, 512), scale="log")
    ratio: float = option(2.0, low=0, searched=(1, 8))
    floor: float = option(8.0, low=0, searched=(1, 64), scale="log")
    chunk: int = option(2048, low=1)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Set all hits and the counter of forward passes to zero."""
        super().start(shape, cache)
        self._hits_LE, self._passes = np.zeros(self._size, dtype=np.float32), 0

    def observe(self, view: LayerView) -> None:
        """Count forward passes in the first MoE layer, and routed rows in each."""
        if view.layer == self._layers[0]:
            self._passes += len(passes(view, self.chunk))
            if self._passes >= 4 * self.interval:
                self._sweep()
        self._hits_LE[self._row[view.layer]] += self._rows_of(view, slice(None))

    def end_sequences(self) -> None:
        """Make a sweep that is due."""
        if self._passes >= self.interval:
            self._sweep()

    def _sweep(self) -> None:
        self._passes = 0
        held = [[self._held(layer, e) for e in range(self._experts)] for layer in self._layers]
        swaps = sweep(self._hits_LE, np.array(held), self.most, self.ratio, self.floor)
        self._wanted = [Fetch(self._layers[row], into, instead_of=out) for row, out, into in swaps]


@dataclass(kw_only=True)
class PromoteOnMiss(_ByRow):
    """Promotes missed experts to spare slots, and demotes the least used residents for them.

    Attributes:
        spares: spare slots of each layer; each layer keeps a resident at least.
        most: promotions of a forward pass, over all layers; one a layer.
        ratio: least quotient of a promoted expert's count and of the least quiet resident's.
        decay: factor of all counts in each pass.
        min_rows: a pass of so many rows or more promotes nothing.
        chunk: most rows of a forward pass in prefill.
    """

    spares: int = option(4, low=1, searched=(1, 16), scale="log")
    most: int = option(6, low=0, searched=(1, 64), scale="log")
    ratio: float = option(1.5, low=0, searched=(1, 8))
    decay: float = option(0.98, low=0, high=1, above=True, searched=(0.8, 1.0))
    min_rows: int = option(32, low=1, searched=(1, 512), scale="log")
    chunk: int = option(2048, low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        #: A policy that has slots of its own, which the system sets.
        self.beside: Policy | None = None

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Reserve the spare slots of each layer, and set all counts to zero."""
        super().start(shape, cache)
        layers, others = len(self._layers), self.beside.reserve if self.beside else 0
        each = (cache.slots - others) // layers
        spares = 0 if all_fit(shape, cache) else min(self.spares, max(0, each - 1))
        self.reserve = spares * layers
        self._counts_LE = np.zeros(self._size, dtype=np.float32)
        #: The counts that were read last, and before that.
        self._read_LE, self._before_LE = self._counts_LE.copy(), self._counts_LE.copy()
        self._busy_LE = np.zeros(self._size, dtype=bool)
        self._resident_LE = self._busy_LE.copy()
        #: Of each layer: empty spare slots; experts whose slots are spare; slots that the host has.
        self._empty, self._vacated = [spares] * layers, [0] * layers
        self.demoted: dict[int, list[int]] = {layer: [] for layer in self._layers}
        self._arrived: list[tuple[int, int]] = []
        self._leaving: list[tuple[int, int]] = []
        self._begun = False

    def uploaded(self, key: int) -> None:
        """Note a promoted expert that is complete: it is resident from the next pass on."""
        layer, expert = self._cache.expert_of(key)
        self._arrived.append((self._row[layer], expert))

    def observe(self, view: LayerView) -> None:
        """Decide in the first MoE layer what moves, then count the rows of each layer."""
        row, parts = self._row[view.layer], passes(view, self.chunk)
        if not row:
            self._land()
            if self._begun and parts[0].stop < self.min_rows:
                self._decide()
            self._begun = True
        for part in parts:
            self._before_LE[row], self._read_LE[row] = self._read_LE[row], self._counts_LE[row]
            self._counts_LE[row] *= np.float32(self.decay)
            self._counts_LE[row] += self._rows_of(view, part)

    def _land(self) -> None:
        """Let the copies that are complete take effect."""
        if not self._begun:
            held = [[self._held(layer, e) for e in range(self._experts)] for layer in self._layers]
            self._resident_LE[:] = held
        for row, expert in self._arrived:
            self._resident_LE[row, expert], self._busy_LE[row, expert] = True, False
            self._vacated[row] += 1
        for row, expert in self._leaving:
            self._resident_LE[row, expert] = self._busy_LE[row, expert] = False
            self.demoted[self._layers[row]].append(expert)
        self._arrived, self._leaving = [], []

    def _decide(self) -> None:
        """Promote missed experts, and demote quiet residents for those that were promoted."""
        counts_LE, routed_LE = self._read_LE, self._read_LE > self._before_LE
        quiet_LE = self._resident_LE & ~routed_LE & ~self._busy_LE
        gone = [self.demoted[layer] for layer in self._layers]
        spare = [empty + len(left) for empty, left in zip(self._empty, gone, strict=True)]
        for row, expert in promotions(
            counts_LE, routed_LE, self._resident_LE, self._busy_LE, spare, self.most, self.ratio
        ):
            self._promote(row, expert)
        for row, n in enumerate(self._vacated):
            for expert in demotions(counts_LE[row], quiet_LE[row], n):
                self._vacated[row] -= 1
                self._busy_LE[row, expert] = True
                self._leaving.append((row, expert))

    def _promote(self, row: int, expert: int) -> None:
        """Copy an expert to a spare slot of its layer, or keep it where its old copy is."""
        layer, left = self._layers[row], self.demoted[self._layers[row]]
        self._busy_LE[row, expert] = True
        if expert in left:
            left.remove(expert)
            self._arrived.append((row, expert))
        elif left:
            self._wanted.append(Fetch(layer, expert, instead_of=left.pop()))
        else:
            self._empty[row] -= 1
            self._wanted.append(Fetch(layer, expert))


# --------------------------------------------------------------------------- the system


@dataclass(kw_only=True)
class ExLlamaV3Split(System):
    """exllamav3 1.6.5 with -mcs and -mcpa: missed experts are promoted to spare slots."""

    paper = "exllamav3 1.6.5, turboderp-org/exllamav3"

    place: Placement = field(default_factory=ColdOnHost)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=SplitByResidence)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    admit: Admission = field(default_factory=PromoteOnMiss)
    evict: Eviction = field(default_factory=OnlyNamed)
    host_kernels: HostKernels = "fused"
    host_together: bool = True  # one job of the worker for a layer

    @property
    def _ring(self) -> int:
        return self.assign.ring if isinstance(self.assign, SplitByResidence) else 0

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return E - N slots of each layer and the ring; None is all that fit."""
        n = getattr(self.place, "n", None)
        if n is None or not isinstance(self.place, TailOnHost | ColdOnHost):
            return None
        on_device = shape.num_experts - len(on_host(shape.num_experts, n))
        return on_device * len(shape.moe_layers) + self._ring

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Start the policies; refuse an N for which there are too few slots."""
        wanted = self.most_slots(shape)
        if wanted is not None and cache.slots < min(
            wanted, len(shape.moe_layers) * shape.num_experts
        ):
            raise BudgetError(
                f"place.n={getattr(self.place, 'n', None)} needs {wanted} slots, the device has "
                f"{cache.slots}; give a larger N, or a larger --capacity"
            )
        if isinstance(self.admit, PromoteOnMiss):
            self.admit.beside = self.assign  # it is started before
        super().start(shape, cache)
        if isinstance(self.admit, PromoteOnMiss) and isinstance(self.assign, SplitByResidence):
            self.assign.demoted = self.admit.demoted

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return a note with exllamav3's flag for this split."""
        layers, experts = len(shape.moe_layers), shape.num_experts
        each = experts if slots >= layers * experts else max(0, slots - self._ring) // layers
        flag = " -mcpa" if isinstance(self.admit, PromoteOnMiss) else ""
        return [f"exllamav3 -mcs {experts - each}{flag}"] if each < experts else ()


@dataclass(kw_only=True)
class EarlierExLlamaV3Split(ExLlamaV3Split):
    """exllamav3 1.4.x with -mcs: a sweep exchanges experts; the lowest ids are placed."""

    paper = "exllamav3 1.4.x, turboderp-org/exllamav3@0cec381"

    place: Placement = field(default_factory=TailOnHost)
    assign: Assignment = field(default_factory=lambda: SplitByResidence(law="linear"))
    admit: Admission = field(default_factory=HitSweep)
