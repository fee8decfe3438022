"""FlexGen: a fixed share of every layer on the GPU, the rest streams through two layer buffers.

"FlexGen: High-Throughput Generative Inference of Large Language Models with a Single GPU" (Y. Sheng
et al., ICML 2023, arXiv 2303.06865), and its code (FMInference/FlexLLMGen 004ffef).  Models with
experts are the variant that MoE-Lightning's authors measured (arXiv 2411.11217, their artifact).
FlexGen is built for throughput: a block of many sequences shares each copy of a layer's weights.

    FlexGen                                     moebench
    ───────                                     ────────
    --percent of weights on GPU, CPU            ``place.gpu``, ``place.cpu``; the rest is on the
                                                  disk, ``place.disk``
    init_weight_list: midpoint of a tensor      `homes_of`; an expert is one tensor, so that the
      in the cumulative size, get_choice          highest ids are on the GPU (`last_ids`)
    cost_model.py: linear program for w, c, h   `flexgen_policy.solve`, ``place=flexgen-lp``
    load_weight(i, j + 1) while layer j         BlockSchedule: all experts of a layer that are not
      computes, then sync()                       on the GPU, ``synchronises``
    weight_read_buf: two layers                 ``prefetch.buffers``, Fetch(keep=False)
    pin_weight                                  ``pinned_copies``
    --compress-weight: 4 bits, groups of 64     ``--set expert_precision=4bit-g64``; of all weights
                                                  ``--precision 4bit-g64``
    block = micro-batch x number of them        ``--batch``, up to 1,024; in the linear program
                                                  ``place.micro``, ``place.batches``

    for token i, layer j:  load layer j + 1;  compute layer j of the block;  wait for both

In moebench cache and activations are on the GPU.  Then only w is free in the linear program, and
the largest share of weights that fits is its solution.  Without ``place.gpu`` that share is taken
from the engine's count of memory; ``place=flexgen-lp`` takes it from FlexGen's formulas, which
leave a fifth of the memory empty.

Deviations and readings; the code was read, the paper was not:

- KV cache and activations are on the GPU.  FlexGen's --percent has four more numbers for them, and
  it can compute attention on the CPU (--cpu-cache-compute), as MoE-Lightning's authors ran it.
- A layer's non-expert weights are one tensor: on the GPU if its midpoint, 50 %, is in the GPU's
  interval.  FlexGen divides them by matrices.  The same holds for the head; the embedding is
  always on the GPU.
- Which tensors the Mixtral variant has is not known, as its code was not found: one of each expert.
- The engine computes a block as one micro-batch.  FlexGen computes several after each other, with
  one copy of the weights; the GPU then reads these once for each.
- Attention and experts of a layer are loaded together, as with --sep-layer 0.  FlexGen's default
  makes them two layers of the schedule.
- The next layer but one begins to load when a layer has been computed, which is FlexGen's moment:
  the layer between has then been loaded.  Only in a first token, layer 0 and 1 load together.
- Experts on the disk are read when their layer is loaded.  Non-expert weights are on the host.
- FlexGen dequantises compressed weights on the GPU before use; moebench charges fused products, and
  its computation is not quantised (``--expert-dtype int4`` is, in groups of 128).
- Experts on the GPU are computed once the gate is known; FlexGen waits for the whole layer first.
- If the device has no room for two buffers, there is one (`WholeLayer`); FlexGen does not run.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.memory.capacity import Budget, Home
from moebench.substrate.memory.host import READ_BUFFERS
from moebench.substrate.models.shape import ModelShape
from moebench.systems.deepspeed import everywhere
from moebench.systems.flexgen_policy import T4, Work, solve
from moebench.systems.moesys import WholeLayer
from moebench.systems.policies.assign import LoadForOneUse
from moebench.systems.policies.evict import OnlyNamed
from moebench.systems.policies.place import last_ids
from moebench.systems.policies.route import ExactRouting

#: Memories in the order in which they take a layer's tensors.
Memory = Literal["disk", "cpu", "gpu"]
MEMORIES: tuple[Memory, ...] = ("disk", "cpu", "gpu")

#: How far a sum of percentages may be from 100.
TOLERANCE = 1e-5

#: Layers' weights that pass through the device at once.
BUFFERS = 2

#: Bytes of a memory that has room for all.
NO_LIMIT = 1e18

#: The head's index in a fetch.
HEAD = -1

# ----------------------------------------------------------------------------- placement


def homes_of(sizes: Sequence[float], percent: Sequence[float]) -> list[Memory]:
    """Return the memory of each tensor of a layer.

    A tensor is in the first memory whose interval ends behind the tensor's midpoint, where both are
    in percent of the sizes added up in order.

    Args:
        sizes: of the tensors, in their order.
        percent: of disk, CPU and GPU.
    """
    total, ends = sum(sizes), list(accumulate(percent))
    homes: list[Memory] = []
    for size, behind in zip(sizes, accumulate(sizes), strict=True):
        midpoint = 100 * (behind - size / 2) / total
        behind_it = (m for m, end in zip(MEMORIES, ends, strict=True) if midpoint < end)
        homes.append(next(behind_it, MEMORIES[-1]))
    return homes


def percentages(gpu: float | None, cpu: float | None, disk: float | None) -> tuple[float, ...]:
    """Return the percentages of disk, CPU and GPU, of which some may be left out.

    A missing disk is 0, and a missing CPU or GPU is the rest to 100.  If both are missing, the GPU
    has 0.

    Raises UsageError: they do not sum to 100, or one is not 0 to 100.
    """
    disk = 0.0 if disk is None else disk
    if gpu is None:
        gpu = 0.0 if cpu is None else 100 - disk - cpu
    cpu = 100 - disk - gpu if cpu is None else cpu
    found = (disk, cpu, gpu)
    if abs(sum(found) - 100) > TOLERANCE or not all(0 <= p <= 100 for p in found):
        raise UsageError(
            f"place.gpu={gpu:g}, place.cpu={cpu:g} and place.disk={disk:g} are not percentages "
            "that sum to 100; allowed: 0 to 100 each, or leave out gpu or cpu, which is the rest"
        )
    return found


def slots_of(shape: ModelShape, resident: int, buffers: int) -> int:
    """Return the slots of ``resident`` experts a layer and of ``buffers`` for a layer's others."""
    layers = len(shape.moe_layers)
    return layers * resident + min(buffers, layers) * (shape.num_experts - resident)


def most_resident(shape: ModelShape, slots: int, buffers: int) -> int:
    """Return how many experts of every layer fit into ``slots`` beside the buffers; at least 0."""
    fits = (r for r in range(shape.num_experts, 0, -1) if slots_of(shape, r, buffers) <= slots)
    return next(fits, 0)


@dataclass(kw_only=True)
class StaticShare(Placement):
    """Base of placements that keep the same share of every layer on the GPU."""

    leaves_slots = True

    def __post_init__(self) -> None:
        super().__post_init__()
        #: How many experts of each layer fit, as far as `homes` has found out.
        self._fits = 0

    @property
    @abstractmethod
    def shares(self) -> tuple[float, float | None]:
        """Percentages of disk and GPU; None is the largest that fits."""

    def resident(self, shape: ModelShape) -> int | None:
        """Return how many experts of each layer are on the GPU; None is as many as fit."""
        gpu = self.shares[1]
        return None if gpu is None else self._memories(shape.num_experts, gpu).count("gpu")

    def on_disk(self, shape: ModelShape) -> int:
        """Return how many experts of each layer, the lowest ids, are on the disk."""
        return self._memories(shape.num_experts, 0.0).count("disk")

    def _memories(self, tensors: int, gpu: float) -> list[Memory]:
        disk = self.shares[0]
        return homes_of([1.0] * tensors, (disk, 100 - disk - gpu, gpu))

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """Return ``device`` for all layers if their midpoint is in the GPU's share, or ``stream``.

        If no share is given, it is the largest that leaves room for two buffers.
        """
        experts, gpu = shape.num_experts, self.shares[1]
        if gpu is not None:
            return self._common(shape, gpu)
        for resident in range(experts, -1, -1):
            self._fits, found = resident, self._common(shape, 100 * resident / experts)
            if slots_of(shape, resident, BUFFERS) <= budget.slots(found):
                break
        return found

    def _common(self, shape: ModelShape, gpu: float) -> Sequence[Home]:
        (memory,) = self._memories(1, gpu)
        return everywhere("device" if memory == "gpu" else "stream", shape)

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return the highest ids of each layer, equally many and no more than there are slots."""
        layers, wanted = len(shape.moe_layers), self.resident(shape)
        most = shape.num_experts if wanted is None else wanted
        return last_ids(shape, [min(max(slots, 0) // layers, most)] * layers)

    def keep_on_host(self, shape: ModelShape, records: int) -> Iterable[tuple[int, int]]:
        """Return the highest ids that are not on the GPU, equally many of each layer."""
        wanted = self.resident(shape)
        resident = self._fits if wanted is None else wanted
        ids = range(self.on_disk(shape), shape.num_experts - resident)
        each = min(len(ids), records // len(shape.moe_layers))
        return [(layer, e) for layer in shape.moe_layers for e in ids[len(ids) - each :]]

    def host_experts(self, shape: ModelShape) -> int | None:
        """Return how many records host memory has room for; None without a share on the disk."""
        disk, resident = self.on_disk(shape), self.resident(shape) or 0
        if not disk:
            return None
        return len(shape.moe_layers) * (shape.num_experts - disk - resident) + READ_BUFFERS


@dataclass(kw_only=True)
class ByPercent(StaticShare):
    """Places percentages of every layer, as ``--percent`` does.

    Attributes:
        gpu, cpu, disk: percentages that sum to 100.  ``gpu`` or ``cpu`` may be left out and is the
            rest, or 0 for the GPU if both are; ``disk`` left out is 0.  Without any of them, the
            GPU has the largest share that fits.
    """

    gpu: float | None = option(None, low=0, high=100, searched=(0, 100))
    cpu: float | None = option(None, low=0, high=100)
    disk: float | None = option(None, low=0, high=100, needs=("disk",))

    def __post_init__(self) -> None:
        super().__post_init__()
        percentages(self.gpu, self.cpu, self.disk)

    @property
    def shares(self) -> tuple[float, float | None]:
        """The given percentages of disk and GPU; None for the GPU if none is given."""
        disk, _, gpu = percentages(self.gpu, self.cpu, self.disk)
        return disk, None if self.gpu is self.cpu is self.disk is None else gpu

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return the highest ids of each layer; refuse a share that does not fit."""
        wanted, layers = self.resident(shape) or 0, len(shape.moe_layers)
        if wanted * layers > slots:
            raise BudgetError(
                f"place.gpu={self.shares[1]:g} keeps {wanted} experts of each of {layers} layers "
                f"on the device, which has room for {max(slots, 0) // layers} of each beside its "
                "layer buffers; give a smaller place.gpu, more memory, or a larger --capacity"
            )
        return super().place(shape, slots, scope)


@dataclass(kw_only=True)
class ByLinearProgram(StaticShare):
    """Places the share that FlexGen's linear program finds for the device's memory.

    Cache and activations are on the GPU, and host memory holds all else, so that only the share of
    weights is free.

    Attributes:
        prompt, new_tokens: tokens of a sequence before and in decode.
        micro: sequences that are computed together (``--gpu-batch-size``).
        batches: micro-batches that share a copy of a layer (``--num-gpu-batches``).
    """

    prompt: int = option(512, low=1)
    new_tokens: int = option(32, low=2)
    micro: int = option(1, low=1, searched=(1, 64), scale="log")
    batches: int = option(1, low=1, searched=(1, 64), scale="log")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._solved: float | None = None

    @property
    def shares(self) -> tuple[float, float | None]:
        """Percentages of disk, 0, and of the GPU: the solution, once `homes` has found it."""
        return 0.0, self._solved

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """Solve the program, and return the location of the non-expert weights."""
        rates = T4._replace(gpu_bytes=float(budget.device_bytes), cpu_bytes=NO_LIMIT)
        self._solved = 100 * solve(self.work(shape, budget), rates, on_gpu=True).w.gpu
        return super().homes(shape, budget)

    def work(self, shape: ModelShape, budget: Budget) -> Work:
        """Return a mean layer of the model, and the block."""
        layers, moe = shape.num_layers, len(shape.moe_layers)
        experts = moe * shape.num_experts * budget.expert_bytes
        active = sum(map(shape.layer_common_params, range(layers)))
        active += moe * shape.top_k * shape.expert_params
        return Work(
            layers=layers,
            layer_bytes=(sum(budget.layer_bytes) + experts) / layers,
            layer_flops=2 * active / layers,
            hidden=shape.hidden_size,
            ffn=shape.top_k * shape.expert_width,
            heads=shape.num_heads,
            kv_bytes=2 * shape.kv_values_per_token_layer,
            prompt=self.prompt,
            new_tokens=self.new_tokens,
            block=self.micro * self.batches,
            micro=self.micro,
        )


# ----------------------------------------------------------------------------- schedule


@dataclass(kw_only=True)
class BlockSchedule(WholeLayer):
    """Fetches a layer's weights that are not on the GPU, while the layer before it computes.

        for token i, layer j:  load layer j + 1;  compute layer j;  wait for both

    A layer is its non-expert weights, if they are streamed, and its experts.  `WholeLayer` gives
    the ring of buffers, which continues across tokens; experts that placement put on the GPU are on
    it already.  A buffer holds the other experts of a layer, so that placement leaves room for them
    (``reserve``).
    """

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Set up the ring, and reserve its slots."""
        super().start(shape, cache)
        resident = most_resident(shape, cache.slots, self._ahead)
        self.reserve = cache.slots - resident * len(self._layers)
        #: By layer with experts, the layers whose non-expert weights belong to it.
        self._with: dict[int, list[int]] = {}
        before = 0
        for layer in self._layers:
            self._with[layer] = [*range(before, layer + 1)]
            before = layer + 1
        self._tail = [*range(before, shape.num_layers), HEAD]

    def _whole(self, layers: Iterable[int]) -> list[Fetch]:
        found: list[Fetch] = []
        for layer in layers:
            found += [Fetch(one, None) for one in self._with[layer]]
            found += super()._whole([layer])
            if layer == self._layers[-1]:
                found += [Fetch(one, None) for one in self._tail]
        return found


# ----------------------------------------------------------------------------- the system


@dataclass(kw_only=True)
class FlexGen(System):
    """FlexGen at one device, with cache and activations on it."""

    paper = "ICML 2023, arXiv 2303.06865"

    place: Placement = field(default_factory=ByPercent)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=lambda: LoadForOneUse(experts="all"))
    prefetch: Prefetching = field(default_factory=BlockSchedule)
    evict: Eviction = field(default_factory=OnlyNamed)
    pinned_copies: bool | None = True
    synchronises: bool = True

    def full_size(self, shape: ModelShape) -> None:
        """Keep as many experts on the host as the placement's share on the disk leaves."""
        super().full_size(shape)
        if isinstance(self.place, StaticShare) and self.host_experts is None:
            self.host_experts = self.place.host_experts(shape)

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return the slots of the given share and the ring; None without a given share."""
        place, ring = self.place, self.prefetch
        resident = place.resident(shape) if isinstance(place, StaticShare) else None
        if resident is None or not isinstance(ring, BlockSchedule):
            return None
        return slots_of(shape, resident, ring.buffers)

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return a note on the share of each layer that stays, and on a missing buffer."""
        ring, experts = self.prefetch, shape.num_experts
        if not (isinstance(ring, BlockSchedule) and isinstance(self.place, StaticShare)):
            return ()
        fits = ring.fitting(shape, slots)
        stay = most_resident(shape, slots, fits)
        if stay == experts:
            return ()
        notes = [f"{stay} of {experts} experts of each layer stay, the others stream by layers"]
        if fits < min(ring.buffers, len(shape.moe_layers)):
            notes.append(f"{slots} slots hold {fits} of {ring.buffers} layer buffers")
        return notes
