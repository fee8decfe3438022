"""Accelerate: a device map in layer order; what is not on the device comes for each use.

Hugging Face Accelerate, big model inference (read at 16cb6eb; measured with 1.15 and Transformers
5.23).  Not a system for experts: it offloads modules, and knows nothing of routing.  Papers compare
with it because it is what `device_map="auto"` does.

    Accelerate                     here
    ──────────                     ────
    infer_auto_device_map          DeviceMap.homes: embedding, then whole layers in order, while the
                                     largest one can still pass through; the others on the host,
    ... and the disk                 on the disk when that is full (DeviceMap.keep_on_host)
    AlignDevicesHook.pre_forward   LoadForOneUse: a module's weights come before its use;
                                     ``module_hooks``: a copy and some Python for each tensor
    AlignDevicesHook.post_forward  Fetch(keep=False): dropped after it; nothing is cached
    pageable copies that block     ``pinned_copies=False``, ``blocking_copies``
    on the only stream             ``overlap=False``
    lm_head, last in the map       a streamed head, unless everything fits

Attention, norms, gate and shared experts of a layer that is not on the device are one transfer
here, of as many copies as they are tensors, just before its attention.

Deviations and readings:

- Which experts a hook brings depends on the modelling code.  Transformers 5 fuses a layer's experts
  into two tensors of one module in every family that it has a class for, and a hook brings both
  whole (measured: 6.29 MB a token where a token's experts have 1.57 MB).  It has none for DeepSeek
  v1 and XVERSE-MoE: their own code loops over experts that have tokens, each with its own hooks (of
  XVERSE's a reading, its code was not at hand).  So did Transformers 4 in all families, once its
  loop left out idle experts (#32429): `assign.experts=active`.
- The device map counts weights alone; here the KV cache is in the same budget.  Accelerate reserves
  the largest layer; here one layer's experts, and two buffers for streamed common weights.
- A map that ends between the last layer and the head counts as one that ends before that layer.
- What host memory has left beside whole layers caches what is read from the disk, as the page cache
  does with memory-mapped files; reads go one at a time, as page faults do.
- Hooks of modules on the device, which move inputs at most, cost nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from moebench.substrate.engine.policies import (
    Assignment,
    Eviction,
    Placement,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.substrate.memory.cache import Scope
from moebench.substrate.memory.capacity import Budget, Home
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.assign import LoadForOneUse
from moebench.systems.policies.evict import OnlyNamed
from moebench.systems.policies.place import experts_of
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting


@dataclass(kw_only=True)
class DeviceMap(Placement):
    """Whole layers in order: on the device, then on the host, then on the disk."""

    def __post_init__(self) -> None:
        self._layers = 0  # on the device, as `homes` found

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """As many layers on the device as leave room for the experts of one more."""
        for layers in range(shape.num_layers, -1, -1):
            homes = self._homes(shape, layers)
            placed = sum(layer < layers for layer in shape.moe_layers) * shape.num_experts
            passing = shape.num_experts if layers < shape.num_layers else 0
            if placed + passing <= budget.slots(homes):
                break
        self._layers = layers
        return homes

    def _homes(self, shape: ModelShape, layers: int) -> list[Home]:
        homes: list[Home] = ["device"] * layers
        homes += ["stream"] * (shape.num_layers - layers)
        return [*homes, "device" if layers == shape.num_layers else "stream"]

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """All experts of the layers on the device."""
        layers = [layer for layer in shape.moe_layers if layer < self._layers]
        return experts_of(layers[: slots // shape.num_experts], shape, scope)

    def keep_on_host(self, shape: ModelShape, records: int) -> Iterable[tuple[int, int]]:
        """All experts of the layers that follow, as long as whole ones fit."""
        layers = [layer for layer in shape.moe_layers if layer >= self._layers]
        return experts_of(layers[: records // shape.num_experts], shape)


@dataclass(kw_only=True)
class Accelerate(System):
    """The complete system."""

    paper = "Hugging Face Accelerate 1.15"

    place: Placement = field(default_factory=DeviceMap)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadForOneUse)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=OnlyNamed)
    overlap: bool = False
    blocking_copies: bool = True
    parallel_reads: bool = False
    pinned_copies: bool | None = False
    module_hooks: bool = True

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Which experts its hooks bring."""
        if self.assign.whole_layers(shape):
            return [f"hooks bring all {shape.num_experts} experts of a layer: they are one module"]
        return ["hooks bring active experts alone: each is a module"]
