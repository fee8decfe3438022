"""DeepSpeed ZeRO-Inference: layers stream through the device in the order of a recorded pass.

"DeepSpeed Inference: Enabling Efficient Inference of Transformer Models at Unprecedented Scale"
(R. Y. Aminabadi et al., SC 2022, arXiv 2207.00032), and DeepSpeed's code (ZeRO stage 3 with
``offload_param``, read at edaa722; measured with 0.19.8).  All weights are in page-locked host
memory.  A module's weights are gathered on the device before it runs and released after it; then
the parameters that followed in a recorded pass are fetched.  ZeRO-Inference is built for
throughput: a large batch hides the transfers.

    DeepSpeed                           moebench
    ─────────                           ────────
    offload_param: cpu, pin_memory      Streamed, ``pinned_copies``
    offload_param: nvme, buffer_count   --set host_experts=5
    fetch_sub_module, then wait         LoadForOneUse, ``synchronises``
    release_sub_module                  Fetch(keep=False)
    leaf modules: whole MoE blocks      assign.experts: all experts of a layer, or the active ones
    trace: RECORD, COMPLETE, INVALID    RecordedOrder.opening and .observe
    stage3_prefetch_bucket_size         prefetch.bucket, in elements
    max_live_parameters                 prefetch.max_live, and the slots (DeepSpeed.most_slots)
    Python of hooks and coordinator     ``module_hooks``

If a layer's experts are gathered together, the order never changes.  If each is its own module, a
token that is routed differently from the recorded pass invalidates the trace: that pass continues
without fetching ahead, and the next one records again.

For Mixtral nothing is fetched ahead: a block's 1.4e9 elements exceed ``max_live``.  With small
experts the bucket covers the next layer's attention and a few experts.

Deviations and readings:

- Which modules are gathered whole: DeepSpeed's list of leaf modules has the blocks of Mixtral,
  Qwen2 and Qwen3; Transformers 5 fuses the experts of all families that it has a class for, and
  ZeRO gathers fused tensors whole (measured).  DeepSeek v1's and XVERSE-MoE's own code has a module
  for each expert.
- Prefetching counts experts and whole layers' non-expert weights; DeepSpeed counts matrices.  In
  both, the last one may exceed the bucket.
- DeepSpeed fetches ahead at every module; moebench at every block of experts, when its output is
  known, and no further than the next block.  One bucket keeps the link busy until attention ends.
- In moebench the embedding stays on the device; ZeRO-3 gathers it, too, for every pass.
- In DeepSpeed, parameters below ``param_persistence_threshold`` (1e5 elements: norms, biases,
  Mixtral's gate) stay on the device; in moebench they stream with their layer, at most 0.1 % of it.
- A tensor is charged the Python time of Accelerate's hooks; DeepSpeed's was measured twice as high
  (127 us a tensor against 60, `benchmarks/native_costs.py`).
- From NVMe, moebench prefetches to the device; DeepSpeed prefetches into host buffers.
- SMoE (§6.2) counts DeepSpeed among systems that keep experts on the device and compute on the
  host; ZeRO-Inference does neither.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from moebench.substrate.engine.decisions import Fetch, Forecast, LayerView
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.memory.capacity import Budget, Home
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Phase
from moebench.systems.policies.assign import LoadForOneUse
from moebench.systems.policies.evict import OnlyNamed
from moebench.systems.policies.place import experts_of
from moebench.systems.policies.route import ExactRouting


def everywhere(home: Home, shape: ModelShape) -> Sequence[Home]:
    """Return one location of the non-expert weights of every layer and of the head."""
    return (home,) * (shape.num_layers + 1)


@dataclass(kw_only=True)
class Streamed(Placement):
    """Places only the embedding on the device: layers and head are streamed."""

    leaves_slots = True

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """Return ``stream`` for every layer and the head."""
        return everywhere("stream", shape)

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return no expert."""
        return ()


@dataclass(kw_only=True)
class RecordedOrder(Prefetching):
    """Fetches the parameters that followed in a recorded pass, after each layer's experts.

        fetch the block's parameters, wait
        while fetched < min(bucket, max_live - live):  fetch the next recorded parameters

    Attributes:
        bucket: elements to fetch ahead at a time; the last parameter may exceed it.
        max_live: most elements on the device, the current block's included.
    """

    bucket: int = option(50_000_000, low=0, searched=(1_000_000, 1_000_000_000), scale="log")
    max_live: int = option(
        1_000_000_000, low=0, searched=(100_000_000, 10_000_000_000), scale="log"
    )

    discipline = "committed"
    reads_scores = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._charged: ModelShape | None = None

    def full_size(self, shape: ModelShape) -> None:
        """Keep the charged model, whose elements are counted."""
        self._charged = shape

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin without a recorded pass."""
        self._sizes, self._slots = self._charged or shape, cache.slots
        self._trace: Literal["invalid", "record", "complete"] = "invalid"
        #: The experts gathered in the recorded pass, by layer.
        self._recorded: dict[int, tuple[int, ...]] = {}

    def opening(self, phase: Phase, layer: int) -> Sequence[Fetch]:
        """Begin to record the pass, or fetch ahead to its first MoE layer as recorded."""
        self._trace = "record" if self._trace == "invalid" else "complete"
        return self._follow(0, layer, live=0, held=0)

    def observe(self, view: LayerView) -> None:
        """Record which experts the layer gathers, or compare them with the recorded pass."""
        used = sorted({*view.topk_ids_TK.ravel().tolist()})
        gathered = tuple(range(view.shape.num_experts) if view.whole_layers else used)
        if self._trace == "record":
            self._recorded[view.layer] = gathered
        elif self._recorded.get(view.layer) != gathered:
            self._trace = "invalid"

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return the recorded parameters after this layer's experts, up to the next block's."""
        assert view.next_layer is not None
        # Experts that are separate modules are released one by one.
        held = view.shape.num_experts if view.whole_layers else 1
        live = held * self._sizes.expert_params
        return self._follow(view.layer + 1, view.next_layer, live, held)

    def _follow(self, first: int, last: int, live: int, held: int) -> list[Fetch]:
        """Return recorded parameters of layers ``first`` to ``last`` beside ``live`` elements.

        ``held`` experts are now on the device.
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
    """ZeRO-Inference with weights in page-locked host memory."""

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
        """Return the experts of a gathered block, or of ``max_live`` elements if that is more."""
        block = shape.num_experts if self.assign.whole_layers(shape) else shape.top_k
        live = self.prefetch.max_live if isinstance(self.prefetch, RecordedOrder) else 0
        return max(block, -(-live // shape.expert_params))

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return a note on whether a layer's experts are gathered together or one by one."""
        if self.assign.whole_layers(shape):
            return [f"ZeRO gathers all {shape.num_experts} experts of a layer, as one leaf module"]
        return [
            "ZeRO gathers active experts alone, each a module: where routing differs from the "
            "recorded pass, the trace is invalid and nothing is fetched ahead"
        ]


@dataclass(kw_only=True)
class ResidentOrStreamed(Streamed):
    """Places everything on the device if it fits, else streams everything."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fits = False  # set by `homes`

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """Return ``device`` for every layer and the head if all fits, else ``stream``."""
        resident = everywhere("device", shape)
        self.fits = budget.slots(resident) >= len(shape.moe_layers) * shape.num_experts
        return resident if self.fits else super().homes(shape, budget)

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return all experts if the model fits, else none."""
        return experts_of(shape.moe_layers if self.fits else (), shape)


@dataclass(kw_only=True)
class DeepSpeedMII(DeepSpeed):
    """DeepSpeed-MII as tables in papers use the name: resident if it fits, else ZeRO-Inference.

    MII (FastGen) serves models that fit on the device and offloads no experts.  DAOP lists it for
    models that do not fit (Fig. 9); only ZeRO-Inference can run these, as the run's notes state.
    """

    place: Placement = field(default_factory=ResidentOrStreamed)

    @property
    def resident(self) -> bool:
        """Whether the whole model fits on the device; False before placement."""
        return isinstance(self.place, ResidentOrStreamed) and self.place.fits

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return None (all experts) if the model is resident, else ZeRO-Inference's limit."""
        return None if self.resident else super().most_slots(shape)

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return notes on whether the model is resident or streamed by ZeRO-Inference."""
        if self.resident:
            return ["DeepSpeed-MII: the model is resident"]
        return [
            "DeepSpeed-MII holds the whole model on the device or does not run; it does not fit: "
            "these are the times of ZeRO-Inference, which streams every layer",
            *super().remarks(shape, slots),
        ]
