"""kt-kernel: the exact rules of the code that kTransformers' authors ship, with SGLang around it.

Version: kt-kernel 0.7.2 (PyPI; kvcache-ai/ktransformers@95009ea) and the authors' fork of SGLang
(PyPI sglang-kt; kvcache-ai/sglang@04653fa, python/sglang/srt/layers/moe/kt_ep_wrapper.py).
`systems.ktransformers` is the system of the paper (SOSP 2025); this module has the rules that the
code adds to it, or replaces.  N experts are on the device for good; the host computes the others.

    engine                                             moebench
    ──────                                             ────────
    --kt-gpu-experts-ratio, --kt-num-gpu-experts       ``place.ratio``, ``place.per_layer``: N by
                                                       `device_experts`; without them, all slots
    --kt-expert-placement-strategy uniform (default)   PlaceUniform, ``place=kt-uniform``
      frequency, --init-expert-location TABLE.pt       PlaceByFrequency, ``place=kt-frequency``
      front-loading                                    PlaceFrontLoading, ``place=kt-front-loading``
      random                                           PlaceShuffled, ``place=kt-random``
    --kt-max-deferred-experts-per-token                ``assign.defer``: `deferral`
    --kt-gpu-prefill-token-threshold (default: off)    ``assign.threshold``: ChunkedHybrid
    --chunked-prefill-size                             ``assign.chunk``
    --kt-enable-dynamic-expert-update                  ``assign.update``: `most_routed`

N is int(MoE layers · E · ratio), truncated, or ``per_layer`` of each MoE layer; a ratio overrides
the number for each layer.  Dense layers do not count.

Deferral: of each token's k experts, the k - d with the highest weights are protected, residents
included.  An expert that is protected for any token of the forward pass is computed at once for all
of them; the host adds the other ones to the next layer's output.  k - d <= 0 defers all, the last
layer defers none.  The phase does not matter: hybrid prefill defers, too.

Layer-wise prefill: a forward pass of ``threshold`` tokens or more, over its requests, brings all
experts of each layer to the device.  A pass is a chunk of the prompts, so a short last chunk stays
hybrid.  With ``update`` each long chunk then replaces the residents of a layer by the experts that
*its* tokens use most, as many as the layer had: the last long chunk decides.

Deviations and readings:

- All prompts of a batch are one pass in moebench, whose rows are cut into chunks here.  The
  experts that a layer lacks are copied once for each long chunk.  A short last chunk is computed
  with the long ones; experts that it alone uses are computed on the host.  With ``update``, all
  rows use the residents from before the prompt.
- In hybrid prefill an expert is immediate if it is so for any token of the pass, not of the chunk.
- ``chunk`` is that of the documentation's examples; SGLang otherwise chooses by the card's memory.
- torch.topk breaks ties between equal counts, as in the code, by its rule for the CPU.  The code
  counts on the card, where ties may fall otherwise; its comment promises the lower id.
- A pass's weights are ranked as the gate ranks its choice.  Where a correction bias changes that
  order (DeepSeek-V3), the code ranks by the weights without it.
- The code copies residents into the buffer of a staged layer, too, within the card; or from the
  host for 4-bit and FP8 weights.  Here only absent experts are copied, as in the code for BF16.
- The code does not update residents of MXFP4 weights.  Here the format makes no difference.
- ``place=kt-frequency`` counts the run's calibration texts.  Without a table the code counts every
  expert of an MoE layer as 1: ``place.popularity`` with ones.
- Also see the deviations of `systems.ktransformers` on buffers, hand-overs and the host's speed.
"""

import sys
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from moebench.substrate.choices import HostKernels
from moebench.substrate.engine.decisions import Active, LayerView, Plan
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.memory.cache import Scope
from moebench.substrate.models.shape import ModelShape
from moebench.systems.ktransformers import Hybrid, staged
from moebench.systems.policies.evict import OnlyNamed
from moebench.systems.policies.place import PlaceByPopularity
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting

#: The seed of the placement ``random``.
SEED = 42

# --------------------------------------------------------------------------- the code's rules


def device_experts(
    moe_layers: int, experts: int, ratio: float | None = None, per_layer: int | None = None
) -> int | None:
    """Return N, the number of experts on the device in all layers; None if neither is given."""
    if ratio is not None:
        return int(moe_layers * experts * ratio)
    return None if per_layer is None else per_layer * moe_layers


def uniform_counts(n: int, moe_layers: int, experts: int) -> list[int]:
    """Return how many experts of each MoE layer ``uniform`` places, which are the lowest ids.

    The first (n mod layers) MoE layers get one more than the others; no layer more than E.
    """
    each, rest = divmod(n, moe_layers)
    return [min(each + (row < rest), experts) for row in range(moe_layers)]


def front_loading_counts(n: int, moe_layers: int, experts: int) -> list[int]:
    """Return how many experts of each MoE layer ``front-loading`` places, lowest ids first."""
    return [min(max(n - row * experts, 0), experts) for row in range(moe_layers)]


def shuffled(n: int, seed: int = SEED) -> list[int]:
    """Return 0 to n - 1 in the order of ``torch.randperm`` on the CPU with this seed.

    Position i is exchanged with i + (next 32 bits of MT19937 mod n - i), for i from 0 to n - 2.
    """
    order = list(range(n))
    draws = np.random.RandomState(seed).randint(0, 1 << 32, max(n - 1, 0), dtype=np.uint32)
    for at, draw in enumerate(draws.tolist()):
        other = at + draw % (n - at)
        order[at], order[other] = order[other], order[at]
    return order


def most_frequent(table_LE: np.ndarray, n: int) -> np.ndarray:
    """Return the mask ``[L, E]`` of the n largest counts over all layers, ties as in torch.topk.

    Rows of dense layers compete as they are.
    """
    import torch

    counts = torch.tensor(table_LE, dtype=torch.float32).reshape(-1)
    chosen = torch.topk(counts, min(max(n, 0), len(counts)), sorted=False).indices
    mask = np.zeros(len(counts), dtype=bool)
    mask[chosen.numpy()] = True
    return mask.reshape(np.shape(table_LE))


def most_routed(ids: np.ndarray, experts: int, n: int) -> list[int]:
    """Return the n experts with most ids, ascending; ties as in torch.topk."""
    import torch

    counts = torch.from_numpy(np.bincount(ids[(ids >= 0) & (ids < experts)], minlength=experts))
    return sorted(cast(list[int], torch.topk(counts, min(n, experts)).indices.tolist()))


def deferral(
    ids_TK: np.ndarray, protected_k: int, weights_TK: np.ndarray | None = None
) -> tuple[set[int], set[int]]:
    """Return the experts that are computed at once, and those whose outputs are deferred.

    Args:
        ids_TK: the experts of each token of a forward pass.
        protected_k: how many of each token's experts are protected, those of highest weight.
        weights_TK: the experts' weights; None if each row of ``ids_TK`` is best first.
    """
    protected_k = max(0, min(protected_k, ids_TK.shape[1]))
    protected_TK = ids_TK[:, :protected_k]
    if weights_TK is not None:
        import torch

        best = torch.topk(torch.as_tensor(weights_TK), protected_k, dim=-1, sorted=False).indices
        protected_TK = np.take_along_axis(ids_TK, best.numpy(), axis=-1)
    immediate = set(protected_TK.ravel().tolist())
    return immediate, set(ids_TK.ravel().tolist()) - immediate


def chunks(rows: int, size: int) -> list[slice]:
    """Return the forward passes of ``rows`` prompt tokens: full chunks, then the rest."""
    return [slice(first, min(first + size, rows)) for first in range(0, rows, size)]


# --------------------------------------------------------------------------- placements


@dataclass(kw_only=True)
class Strategy(Placement):
    """Base of kt-kernel's placements, which choose N experts of the MoE layers.

    Attributes:
        ratio: N as a share of all experts of MoE layers; it overrides ``per_layer``.
        per_layer: N over the MoE layers.  Without both, N is as many as fit.
    """

    ratio: float | None = option(None, low=0, high=1, searched=(0, 1))
    per_layer: int | None = option(None, low=0)

    shares_slots = True

    def wanted(self, shape: ModelShape) -> int | None:
        """Return N as the options give it, at most all experts; None is as many as fit."""
        total = len(shape.moe_layers) * shape.num_experts
        n = device_experts(len(shape.moe_layers), shape.num_experts, self.ratio, self.per_layer)
        return None if n is None else min(n, total)

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return the pairs of the strategy; refuse an N for which there are too few slots."""
        n, slots = self.wanted(shape), max(slots, 0)
        if n is not None and n > slots:
            option = "ratio" if self.ratio is not None else "per_layer"
            raise BudgetError(
                f"place.{option}={getattr(self, option)} is {n} experts, the device has slots for "
                f"{slots}; give a smaller one, or a larger --capacity"
            )
        if scope == "layer" and not isinstance(self, PlaceUniform):
            raise UsageError(
                "this placement chooses among the experts of all layers, which share the device's "
                "slots; allowed: --set scope=global"
            )
        return self.chosen(shape, slots if n is None else n)

    @abstractmethod
    def chosen(self, shape: ModelShape, n: int) -> list[tuple[int, int]]:
        """Return at most n pairs (layer, expert)."""


def lowest_ids(shape: ModelShape, counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ``counts[l]`` lowest expert ids of each MoE layer."""
    each = zip(shape.moe_layers, counts, strict=True)
    return [(layer, expert) for layer, count in each for expert in range(count)]


@dataclass(kw_only=True)
class PlaceUniform(Strategy):
    """Places N / layers experts of each MoE layer, lowest ids, one more in the first ones."""

    def chosen(self, shape: ModelShape, n: int) -> list[tuple[int, int]]:
        """Return the lowest ids of each layer, as many as `uniform_counts` says."""
        return lowest_ids(shape, uniform_counts(n, len(shape.moe_layers), shape.num_experts))


@dataclass(kw_only=True)
class PlaceFrontLoading(Strategy):
    """Places all experts of the first MoE layer, then of the second, until N are placed."""

    def chosen(self, shape: ModelShape, n: int) -> list[tuple[int, int]]:
        """Return the lowest ids of the first layers."""
        return lowest_ids(shape, front_loading_counts(n, len(shape.moe_layers), shape.num_experts))


@dataclass(kw_only=True)
class PlaceShuffled(Strategy):
    """Places the first N experts of all MoE layers in the order of torch.randperm, seed 42."""

    seed: int = option(SEED, low=0, high=2**32 - 1)

    def chosen(self, shape: ModelShape, n: int) -> list[tuple[int, int]]:
        """Return the first n pairs of the shuffled ones."""
        pairs = [(layer, e) for layer in shape.moe_layers for e in range(shape.num_experts)]
        return [pairs[at] for at in shuffled(len(pairs), self.seed)[:n]]


@dataclass(kw_only=True)
class PlaceByFrequency(Strategy, PlaceByPopularity):
    """Places the N most activated experts of a table of counts, over all layers at once."""

    def chosen(self, shape: ModelShape, n: int) -> list[tuple[int, int]]:
        """Return the MoE layers' experts among the n largest counts of the table."""
        mask_LE = most_frequent(np.asarray(self.counts(shape)), n)
        return [(layer, e) for layer, e in np.argwhere(mask_LE).tolist() if layer in shape.moe_rows]


# --------------------------------------------------------------------------- assignment


@dataclass(kw_only=True)
class ChunkedHybrid(Hybrid):
    """Computes residents on the device and the others on the host; long chunks on the device only.

    Attributes:
        defer: d, how many of a token's experts may be added one MoE layer later.
        threshold: fewest tokens of a forward pass that is computed layer by layer; 0 is off.
        update: make the most used experts of each long chunk the residents; without a threshold no
            chunk is long.
        chunk: most tokens of a forward pass in prefill.
    """

    threshold: int = option(0, low=0, searched=(256, 8192), scale="log")
    chunk: int = option(16384, low=1, searched=(256, 16_384), scale="log")

    def __post_init__(self) -> None:
        # Not that of `Hybrid`: here ``update`` without a threshold is allowed, and does nothing.
        Assignment.__post_init__(self)
        self._expected = sys.maxsize

    @property
    def stages(self) -> bool:
        """Whether a chunk can be long enough for layer-wise prefill; true if nothing is known."""
        return super().stages and self.threshold <= self.chunk

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Plan each expert where it is, and in long chunks on the device."""
        rows = view.forward.rows
        passes = chunks(rows, self.chunk if view.phase == "prefill" else rows)
        long = [one for one in passes if 0 < self.threshold <= one.stop - one.start]
        device = [*active.resident, *active.in_flight]
        if not long:
            return Plan(device, *self._on_host(view, active.absent, slice(0, rows)))
        leaves = self._exchanged(view, long[-1]) if self.update else {}
        load = staged(view, leaves)
        copied = [cast(int, fetch.expert) for fetch in load]
        # Full chunks are first and of one size, so that all rows of long chunks are together.
        used = {*view.topk_ids_TK[: long[-1].stop].ravel().tolist(), *leaves}
        device += [e for e in copied if e in active.rows and e in used]
        of_short = [e for e in active.absent if e not in used]
        host, deferred = self._on_host(view, of_short, slice(long[-1].stop, rows))
        return Plan(device, host, deferred, load, copied * (len(long) - 1))

    def _on_host(
        self, view: LayerView, experts: Sequence[int], rows: slice
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Divide experts on the host, of these rows, into immediate and deferred ones."""
        if not self.defer or view.next_layer is None:
            return experts, ()
        immediate, _ = deferral(view.topk_ids_TK[rows], view.shape.top_k - self.defer)
        return ([e for e in experts if e in immediate], [e for e in experts if e not in immediate])

    def _exchanged(self, view: LayerView, rows: slice) -> Mapping[int, int]:
        """Return the new residents after a chunk of these rows, each with one that it replaces."""
        resident_E, coming_E = view.resident_E, view.in_flight_E
        n = int(resident_E.sum() + coming_E.sum())
        chosen = most_routed(view.topk_ids_TK[rows].ravel(), view.shape.num_experts, n)
        come = [e for e in chosen if not (resident_E[e] or coming_E[e])]
        leave = [e for e in np.flatnonzero(resident_E).tolist() if e not in chosen]
        return dict(zip(come, leave, strict=False))


@dataclass(kw_only=True)
class KTKernel(System):
    """kt-kernel with its default placement and without layer-wise prefill, which is its default."""

    paper = "kt-kernel 0.7.2, kvcache-ai/sglang@04653fa"

    place: Placement = field(default_factory=PlaceUniform)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=ChunkedHybrid)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=OnlyNamed)
    host_kernels: HostKernels = "fused"
    host_together: bool = True  # one submission to the CPU, one sync for a layer

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return N, and a staged layer where there is one; None is all that fit."""
        n = self.place.wanted(shape) if isinstance(self.place, Strategy) else None
        if n is None:
            return None
        return n + (
            shape.num_experts if isinstance(self.assign, Hybrid) and self.assign.stages else 0
        )

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return notes on slots reserved for layer-wise prefill, and on an update without it."""
        if not isinstance(self.assign, Hybrid):
            return ()
        if self.assign.stages:
            return [self.assign.remark(shape, slots)]
        no_effect = "assign.update=true has no effect: no chunk reaches assign.threshold"
        return [no_effect] if self.assign.update else ()
