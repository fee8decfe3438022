"""Accelerate: modules fill the device in layer order; the others are loaded for each use.

Hugging Face Accelerate, big model inference (read at 16cb6eb; measured with 1.15 and Transformers
5.23).  It offloads modules and does not treat experts or routing specially.  Papers compare with it
because `device_map="auto"` runs it.

    Accelerate                     moebench
    ──────────                     ────────
    infer_auto_device_map          DeviceMap.homes: embedding, then whole layers in order, while the
                                     largest one can still be streamed; the others on the host,
    ... and the disk                 on the disk when the host is full (DeviceMap.keep_on_host)
    AlignDevicesHook.pre_forward   LoadForOneUse: a module's weights are copied before its use;
                                     ``module_hooks``: a copy and some Python for each tensor
    AlignDevicesHook.post_forward  Fetch(keep=False): dropped after the use; nothing is cached
    pageable copies that block     ``pinned_copies=False``, ``blocking_copies``
    on the only stream             ``overlap=False``
    lm_head, last in the map       a streamed head, unless everything fits

Attention, norms, gate and shared experts of a layer that is not on the device are one transfer,
with one copy for each tensor, just before the layer's attention.

Deviations and readings:

- Which experts a hook loads depends on the modelling code.  Transformers 5 fuses a layer's experts
  into two tensors of one module in every family that it has a class for, and a hook loads both
  whole (measured: 6.29 MB a token where a token's experts have 1.57 MB).  It has no class for
  DeepSeek v1 and XVERSE-MoE: their own code loops over the experts that have tokens, each with its
  own hooks (an assumption for XVERSE, whose code was not available).  Transformers 4 did the same
  in all families once its loop skipped idle experts (#32429): `assign.experts=active`.
- Accelerate's device map counts weights only; moebench counts the KV cache in the same budget.
  Accelerate reserves room for the largest layer; moebench for one layer's experts and two buffers
  of streamed non-expert weights.
- A map that ends between the last layer and the head is treated as ending before that layer.
- Host memory that whole layers leave free caches what is read from the disk, as the page cache does
  with memory-mapped files.  Reads are made one at a time, as page faults are.
- Hooks of modules on the device, which at most move inputs, cost nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
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
    """Places whole layers in order: on the device, then on the host, then on the disk."""

    leaves_slots = True
    shares_slots = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._layers = 0  # leading layers on the device; set by `homes`

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """Put as many leading layers on the device as leave room for one more layer's experts."""
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
        """Return all experts of the layers on the device."""
        layers = [layer for layer in shape.moe_layers if layer < self._layers]
        return experts_of(layers[: slots // shape.num_experts], shape, scope)

    def keep_on_host(self, shape: ModelShape, records: int) -> Iterable[tuple[int, int]]:
        """Return all experts of the layers after the device's, while whole layers fit."""
        layers = [layer for layer in shape.moe_layers if layer >= self._layers]
        return experts_of(layers[: records // shape.num_experts], shape)


@dataclass(kw_only=True)
class Accelerate(System):
    """Accelerate with ``device_map="auto"``: blocking, pageable copies for each use."""

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
        """Return a note on whether hooks load all experts of a layer or the active ones."""
        if self.assign.whole_layers(shape):
            return [f"hooks bring all {shape.num_experts} experts of a layer: they are one module"]
        return ["hooks bring active experts alone: each is a module"]
