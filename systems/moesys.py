"""MoESys: whole layers of experts stream through a ring of layer buffers.

"SE-MoE: A Scalable and Efficient Mixture-of-Experts Distributed Training and Inference System"
(L. Shen et al., arXiv 2205.10034), later MoESys (D. Yu et al., IEEE Transactions on Services
Computing, 2024).  It does not wait for gates: while one layer computes, all E experts of the next
layer are copied to the device, into the buffer of the previous layer.

    as described                                              moebench
    ────────────                                              ────────
    dense parameters on the device, sparse ones on the host   PlaceNothing
    while layer l runs, fetch all experts of layer l + 1      WholeLayer.prefetch
    ring of two layer buffers                                 ``prefetch.buffers``, most_slots
    layer l's buffer is free after its use                    Fetch(keep=False)
    hierarchical storage: SSD behind host memory              ``--free-host-gb``, ``host_experts``

E / k times as many bytes cross the link as on demand: 4 times for Mixtral, 8 or more for
fine-grained models.  In prefill few copies are useless, because nearly all experts are used.

Deviations and readings; the paper itself was not read, only descriptions of it in surveys and in
DuoServe-MoE (arXiv 2509.07379):

- The ring continues across passes: the last layers' buffers are filled with the first layers of the
  next pass.  Only the first request of a run waits for all of layer 0's copies.  Copies for a pass
  after the run's last one do not count.
- A buffer is freed expert by expert, as each is computed or turns out to be unused.
- An expert is one copy; a layer in one block of memory would need fewer launches.
- By DuoServe-MoE, MoESys "prefetches all experts for each layer into GPU memory" (§6.1) and holds
  E - k experts more than on-demand loading (Table 2): one buffer, ``prefetch.buffers=1``.  The next
  layer's copies then wait for this layer's gate.
- MoESys is reported to keep the most used experts in host memory, in front of the SSD: hits are
  counted against a threshold, and the counts decay.  That is not modelled: if not all experts fit
  into host memory, it keeps those that were read last (docs/architecture.md).  The ring requests
  every expert in turn, so this finds none of them unless all fit, while counts could keep some:
  with a disk, moebench's MoESys reads more than the published one.
- Training, and parallelism over several devices, are not modelled.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from moebench.substrate.engine.decisions import Fetch, Forecast, LayerView
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Phase
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.evict import FirstInFirstOut
from moebench.systems.policies.place import PlaceNothing
from moebench.systems.policies.route import ExactRouting


@dataclass(kw_only=True)
class WholeLayer(Prefetching):
    """Fetches all experts of a layer, by id, into the buffer of the layer computed last.

    With N ``buffers`` this is the layer N later, in both phases and without a prediction: N layers'
    experts are on the device or under way to it, fewer if the device has no room for N.  No expert
    is kept after its layer, unless there are buffers for all layers.
    """

    buffers: int = option(2, low=1, searched=(1, 8))

    shares_slots = True

    discipline = "committed"
    whole_layers = True
    reads_scores = False

    def slots(self, shape: ModelShape) -> int:
        """Return the number of experts that the buffers hold."""
        return min(self.buffers, len(shape.moe_layers)) * shape.num_experts

    def fitting(self, shape: ModelShape, slots: int) -> int:
        """Return how many whole buffers fit into ``slots``."""
        return min(self.buffers, slots // shape.num_experts)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Set up the ring of buffers; at least one must fit, in slots that layers share."""
        if cache.scope == "layer" and min(cache.pools) < shape.num_experts:
            raise UsageError(
                "prefetch=whole-layer hands slots from layer to layer: leave out scope=layer"
            )
        self._ahead = self.fitting(shape, cache.slots)
        if not self._ahead:
            raise BudgetError(
                f"prefetch=whole-layer needs {shape.num_experts} slots for each of its buffers; "
                f"the device has {cache.slots}; give --slots {self.slots(shape)}, or a larger "
                "--capacity"
            )
        self._layers, self._row = shape.moe_layers, shape.moe_rows
        self._experts = range(shape.num_experts)

    def opening(self, phase: Phase, layer: int) -> Sequence[Fetch]:
        """Return the first layers' experts; the engine skips those that the last pass fetched."""
        return self._whole(self._layers[: self._ahead])

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return all experts of the layer, or the next pass's layer, that reuses this buffer."""
        follows = (self._row[view.layer] + self._ahead) % len(self._layers)
        return self._whole(self._layers[follows : follows + 1])

    def _whole(self, layers: Iterable[int]) -> list[Fetch]:
        keep = self._ahead >= len(self._layers)
        return [Fetch(layer, e, keep=keep) for layer in layers for e in self._experts]


@dataclass(kw_only=True)
class MoESys(System):
    """MoESys: whole layers fetched into a ring of two layer buffers."""

    paper = "arXiv 2205.10034"

    place: Placement = field(default_factory=PlaceNothing)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=WholeLayer)
    evict: Eviction = field(default_factory=FirstInFirstOut)

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return the slots of the ring; None (no limit) with another prefetching policy."""
        ring = self.prefetch
        return ring.slots(shape) if isinstance(ring, WholeLayer) else None

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return a note if the slots hold fewer layer buffers than configured."""
        ring = self.prefetch
        if not isinstance(ring, WholeLayer) or slots >= ring.slots(shape):
            return ()
        return [
            f"{slots} slots hold {ring.fitting(shape, slots)} of {ring.buffers} layer buffers of "
            f"{shape.num_experts} experts"
        ]
