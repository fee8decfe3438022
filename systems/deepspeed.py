"""DeepSpeed ZeRO-Inference: layers stream through the device in the order of a recorded pass.

"DeepSpeed Inference: Enabling Efficient Inference of Transformer Models at Unprecedented Scale"
(R. Y. Aminabadi et al., SC 2022, arXiv 2207.00032), and DeepSpeed's code (ZeRO stage 3 with
``offload_param``, read at edaa722; measured with 0.19.8).  All weights are in pinned host memory.
A module's are gathered on the device before it runs and released after it; what came next in a
recorded pass is fetched behind them.  It is built for throughput: a large batch hides the stream.

    DeepSpeed                           here
    ─────────                           ────
    offload_param: cpu, pin_memory      Streamed, ``pinned_copies``
    offload_param: nvme, buffer_count   --set host_experts=5
    fetch_sub_module, then wait         LoadForOneUse, ``synchronises``
    release_sub_module                  Fetch(keep=False)
    leaf modules: whole MoE blocks      assign.experts: all experts of a layer, or the active ones
    trace: RECORD, COMPLETE, INVALID    RecordedOrder.opening and .observe
    stage3_prefetch_bucket_size         prefetch.bucket, in elements
    max_live_parameters                 prefetch.max_live, and the slots (DeepSpeed.most_slots)
    Python of hooks and coordinator     ``module_hooks``

Where a layer's experts are gathered as one, the order never changes.  Where each is a module of its
own, a token that routes differently from the recorded pass invalidates the trace: that pass goes on
without fetching ahead, and the next one records again.

Of Mixtral nothing is fetched ahead: a block's 1.4e9 elements are above ``max_live``.  Of a model
with small experts the bucket takes the next layer's attention and a few of them.

Deviations and readings:

- Which modules are gathered whole: DeepSpeed's list of leaf modules has the blocks of Mixtral,
  Qwen2 and Qwen3; Transformers 5 fuses the experts of all families that it has a class for, and
  ZeRO gathers fused tensors whole (measured).  DeepSeek v1's and XVERSE-MoE's own code has a module
  for each expert.
- What is fetched ahead is counted in experts and whole layers' common weights; DeepSpeed counts
  matrices.  As there, the last one may exceed the bucket.
- DeepSpeed fetches ahead at every module; here at every block of experts, when its sum is known,
  and no further than the next block.  One bucket keeps the link busy until attention has ended.
- The embedding stays on the device; ZeRO-3 gathers it, too, for every pass.
- Parameters below ``param_persistence_threshold`` (1e5 elements: norms, biases, Mixtral's gate)
  stay on the device; here they stream with their layer, at most 0.1 % of it.
- A tensor costs as much Python as with Accelerate's hooks; DeepSpeed's was measured twice as high
  (127 us a tensor against 60, `benchmarks/native_costs.py`).
- From NVMe, what is fetched ahead goes on to the device; DeepSpeed reads it into host buffers.
- SMoE (§6.2) counts DeepSpeed among systems that keep experts on the device and compute on the
  host; ZeRO-Inference does neither.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from moebench.substrate.engine.decisions import Fetch, Forecast, LayerView
from moebench.substrate.engine.policies import (
    Assignment,
    Eviction,
    Placement,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.memory.capacity import Budget, Home
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Phase
from moebench.systems.policies.assign import LoadForOneUse
from moebench.systems.policies.checks import require_at_least
from moebench.systems.policies.evict import OnlyNamed
from moebench.systems.policies.place import experts_of
from moebench.systems.policies.route import ExactRouting


@dataclass(kw_only=True)
class Streamed(Placement):
    """Nothing but the embedding is on the device: layers and head are streamed."""

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """All streamed."""
        streamed: Home = "stream"
        return (streamed,) * (shape.num_layers + 1)

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """No expert."""
        return ()


@dataclass(kw_only=True)
class RecordedOrder(Prefetching):
    """Fetches what a recorded pass used next, behind each layer's experts.

        fetch the block's parameters, wait
        while fetched < min(bucket, max_live - live):  fetch the next recorded parameters

    Attributes:
        bucket: elements to fetch ahead at a time; what exceeds it is the last.
        max_live: elements on the device at most, those of the block included.
    """

    bucket: int = 50_000_000
    max_live: int = 1_000_000_000

    discipline = "committed"
    reads_scores = False

    def __post_init__(self) -> None:
        require_at_least("prefetch", self, bucket=0, max_live=0)
        self._charged: ModelShape | None = None

    def full_size(self, shape: ModelShape) -> None:
        """Count this model's elements."""
        self._charged = shape

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Nothing is recorded."""
        self._sizes, self._slots = self._charged or shape, cache.slots
        self._trace: Literal["invalid", "record", "complete"] = "invalid"
        #: By layer, the experts that were gathered.
        self._recorded: dict[int, tuple[int, ...]] = {}

    def opening(self, phase: Phase, layer: int) -> Sequence[Fetch]:
        """A pass begins: it records, or follows what was recorded."""
        self._trace = "record" if self._trace == "invalid" else "complete"
        return self._follow(0, layer, live=0, held=0)

    def observe(self, view: LayerView) -> None:
        """Record which experts the layer gathers, or compare with what was recorded."""
        used = sorted({*view.topk_ids_TK.ravel().tolist()})
        gathered = tuple(range(view.shape.num_experts) if view.whole_layers else used)
        if self._trace == "record":
            self._recorded[view.layer] = gathered
        elif self._recorded.get(view.layer) != gathered:
            self._trace = "invalid"

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """What follows the layer's experts, as far as the next ones."""
        assert view.next_layer is not None
        # Experts that are modules of their own are released one by one.
        held = view.shape.num_experts if view.whole_layers else 1
        live = held * self._sizes.expert_params
        return self._follow(view.layer + 1, view.next_layer, live, held)

    def _follow(self, first: int, last: int, live: int, held: int) -> list[Fetch]:
        """Recorded parameters from one layer to another, while there is room.

        Args:
            live, held: elements and experts that are on the device now.
        """
        if self._trace != "complete":
            return []
        order: list[tuple[Fetch, int]] = []
        for layer in range(first, last + 1):
            order.append((Fetch(layer, None), self._sizes.layer_common_params(layer)))
            experts = self._recorded.get(layer, ())[: self._slots - held]
            order += [(Fetch(layer, e, keep=False), self._sizes.expert_params) for e in experts]
        room, ahead = min(self.bucket, self.max_live - live), []
        for fetch, elements in order:
            if room <= 0:
                break
            ahead.append(fetch)
            room -= elements
        return ahead


@dataclass(kw_only=True)
class DeepSpeed(System):
    """ZeRO-Inference."""

    paper = "SC 2022, arXiv 2207.00032"

    place: Placement = field(default_factory=Streamed)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadForOneUse)
    prefetch: Prefetching = field(default_factory=RecordedOrder)
    evict: Eviction = field(default_factory=OnlyNamed)
    pinned_copies: bool | None = True
    synchronises: bool = True
    module_hooks: bool = True

    def most_slots(self, shape: ModelShape) -> int | None:
        """What passes through at once: a block, and what may be live beside it."""
        block = shape.num_experts if self.assign.whole_layers(shape) else shape.top_k
        live = self.prefetch.max_live if isinstance(self.prefetch, RecordedOrder) else 0
        return max(block, -(-live // shape.expert_params))

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Which experts are gathered, and what that means for the recorded order."""
        if self.assign.whole_layers(shape):
            return [f"ZeRO gathers all {shape.num_experts} experts of a layer, as one leaf module"]
        return [
            "ZeRO gathers active experts alone, each a module: where routing differs from the "
            "recorded pass, the trace is invalid and nothing is fetched ahead"
        ]


@dataclass(kw_only=True)
class ResidentOrStreamed(Streamed):
    """Everything on the device if it fits, else nothing."""

    def __post_init__(self) -> None:
        self.fits = False  # as `homes` found

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """All on the device, or all streamed."""
        on_device: Home = "device"
        resident = (on_device,) * (shape.num_layers + 1)
        self.fits = budget.slots(resident) >= len(shape.moe_layers) * shape.num_experts
        return resident if self.fits else super().homes(shape, budget)

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """All experts, or none."""
        return experts_of(shape.moe_layers if self.fits else (), shape)


@dataclass(kw_only=True)
class DeepSpeedMII(DeepSpeed):
    """DeepSpeed-MII as papers' tables use the name.

    MII (FastGen) serves models that the device holds and offloads no experts.  DAOP lists it for
    models that do not fit (Fig. 9); what can run there is ZeRO-Inference, and the notes say so.
    """

    place: Placement = field(default_factory=ResidentOrStreamed)

    @property
    def resident(self) -> bool:
        """Whether everything fits, once the placement has seen what does."""
        return isinstance(self.place, ResidentOrStreamed) and self.place.fits

    def most_slots(self, shape: ModelShape) -> int | None:
        """All experts, or as many as ZeRO-Inference passes through at once."""
        return None if self.resident else super().most_slots(shape)

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Which of the two it is."""
        if self.resident:
            return ["DeepSpeed-MII: the model is resident"]
        return [
            "DeepSpeed-MII holds the whole model on the device or does not run; it does not fit: "
            "these are the times of ZeRO-Inference, which streams every layer",
            *super().remarks(shape, slots),
        ]
