"""kTransformers: hot experts on the device, all others computed on the host.

"KTransformers: Unleashing the Full Potential of CPU/GPU Hybrid Inference for MoE Models" (H. Chen
et al., SOSP 2025, doi 10.1145/3731569.3764843).  The host computes experts faster than the link
copies them, so decode moves activations only; the device computes attention, shared experts and its
residents concurrently with the host.  `systems.kt_kernel` has the exact rules of the code that the
authors ship, kt-kernel with their fork of SGLang; options have the names of that code.

    paper, and names of the code                       moebench
    ────────────────────────────                       ────────
    GPU expert mask, --kt-num-gpu-experts              all slots, except a staged layer's:
                                                       ``--slots``, ``--capacity``
    --kt-expert-placement-strategy frequency           PlacePopular: the most used of all layers
      uniform, the default                             ``place=by-id``: n of each layer, lowest ids
      front-loading                                    ``place=front-loading``
      random                                           ``place=random`` (seed 42)
    hybrid: submit to CPU, compute on GPU, sync, add   Hybrid.assign: Plan.host beside Plan.device
    Expert Deferral,
      --kt-max-deferred-experts-per-token              ``assign.defer``: Plan.deferred
    layer-wise prefill, a shared full layer on GPU     Hybrid._layer_wise: Fetch(keep=False)
      --kt-gpu-prefill-token-threshold                 ``assign.threshold``, Hybrid.reserve
      --kt-enable-dynamic-expert-update                ``assign.update``: Fetch(instead_of=...)
    --kt-method AMXINT4, FP8, BF16                     ``expert_precision``; the run's by default

Expert deferral: of a token's k experts the k - d with the highest weights are *immediate*, and so
is every expert that is immediate for any token of the batch.  The outputs of the host's other
experts are added to the next MoE layer's output; the last layer defers none.  The host then also
computes during the next attention, and outputs differ from the model's: d > 0 is lossy.

Layer-wise prefill: prompts of ``threshold`` tokens or more, over the batch, are computed layer by
layer in a buffer of all E experts, to which the host's experts are copied, chosen or not.  With
``update`` the layer's n residents become the n experts that the prompt used most; the new ones were
already in the buffer, so this needs no transfer.

Deviations and readings:

- The documentation calls *frequency* the strategy with the "best performance when activation
  statistics are available" (experts-sched-Tutorial), and *uniform* its default without them.  A run
  has statistics for every system, so frequency is the default here.
- The default threshold is that of the documentation for BF16 (GLM-4.7); its other examples have 400
  to 2048, the command line 4096, and SGLang alone has none.  0 disables layer-wise prefill.
- The buffer holds one layer's experts and is empty outside layer-wise prefill.  It is part of the
  slots that every system has, so a tight budget leaves fewer residents.  Runs whose prompts cannot
  reach the threshold do not reserve it.
- In layer-wise prefill moebench computes an expert when it has arrived, and a resident in its own
  slot; the code waits for the whole layer and copies residents into the buffer, too.
- With ``update``, moebench copies a new resident from the host to the slot of the one it replaces,
  once that one has been computed; the code copies within the device.
- Deferral is limited to decode, as the paper reports it; the code's hybrid prefill defers, too.
- The whole prompt is counted, for the threshold and for ``update``; the code counts each chunk.
- With deferral each expert on the host has its own hand-over; the code has two for a layer.
- Host memory keeps all experts, including residents (issues 2023, 2084), in the code and here.
- The machine sets the host's speed: there are no AMX or NUMA kernels.  ``--software kt`` is the
  nearest to one CUDA graph for all of decode.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from moebench.substrate.choices import HostKernels
from moebench.substrate.engine.decisions import Active, Fetch, LayerView, Plan
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.evict import OnlyNamed
from moebench.systems.policies.place import PlacePopular
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting

#: Fewest prompt tokens for layer-wise prefill, as the documentation recommends.
THRESHOLD = 1024


def staged(view: LayerView, leaves: Mapping[int, int]) -> list[Fetch]:
    """Return the loads of all experts of a layer that the device lacks.

    Args:
        leaves: the experts that become residents, each with the one that it replaces.
    """
    absent = np.flatnonzero(~(view.resident_E | view.in_flight_E)).tolist()
    # A new resident's load waits for the computation of the one it replaces: queue it last.
    load = [Fetch(view.layer, e, keep=False) for e in absent if e not in leaves]
    return load + [Fetch(view.layer, e, instead_of=left) for e, left in leaves.items()]


@dataclass(kw_only=True)
class Hybrid(Assignment):
    """Computes residents on the device and the others on the host; long prompts on the device only.

    Attributes:
        defer: d, how many of a token's experts may be added one MoE layer later, in decode.
        threshold: fewest tokens, over the batch, of a layer-wise prefill; 0 disables it.
        update: make the most used experts of a layer-wise prefill the residents.
    """

    defer: int = option(0, low=0, searched=(0, 8))
    threshold: int = option(THRESHOLD, low=0, searched=(64, 8192), scale="log")
    update: bool = option(False, searched=True)

    loads = "none"

    reads_scores = False
    uses_host = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expected = sys.maxsize
        if self.update and not self.threshold:
            raise UsageError(
                "assign.update=true counts in layer-wise prefill, which assign.threshold=0 "
                "switches off; give a threshold"
            )

    @property
    def lossless(self) -> bool:  # type: ignore[override]
        """Whether no output is deferred to a later layer."""
        return not self.defer

    def expect(self, prompt_tokens: int, texts: int = 1) -> None:
        """Keep the most tokens of a batch's prompts, on which depends whether a layer is staged."""
        self._expected = prompt_tokens

    @property
    def stages(self) -> bool:
        """Whether a prompt can be long enough for layer-wise prefill; true if nothing is known."""
        return 0 < self.threshold <= self._expected

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Reserve slots of one staged layer, or one of each layer's pool; refuse too few slots."""
        staged = len(shape.moe_layers) if cache.scope == "layer" else shape.num_experts
        self.reserve = staged if self.stages else 0
        if self.reserve > cache.slots:
            raise BudgetError(
                f"layer-wise prefill stages {self.reserve} experts, the device has {cache.slots} "
                "slots; give a larger --capacity, or --set assign.threshold=0"
            )

    def remark(self, shape: ModelShape, slots: int) -> str:
        """Return a note on how many slots are reserved for layer-wise prefill."""
        return (
            f"{shape.num_experts} of {slots} slots stage one layer's experts for prompts of "
            f"{self.threshold} tokens or more, and are empty in decode"
        )

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Plan each expert where it is, except in long prompts; d > 0 defers the lowest weights."""
        if view.phase == "prefill" and 0 < self.threshold <= view.forward.rows:
            return self._layer_wise(view, active)
        device = [*active.resident, *active.in_flight]
        if not self.defer or view.phase == "prefill" or view.next_layer is None:
            return Plan(device, active.absent)
        best_TK = view.topk_ids_TK[:, : max(0, view.shape.top_k - self.defer)]
        immediate = set(best_TK.ravel().tolist())
        host = [e for e in active.absent if e in immediate]
        return Plan(device, host, [e for e in active.absent if e not in immediate])

    def _layer_wise(self, view: LayerView, active: Active) -> Plan:
        """Plan to load all absent experts of the layer while residents compute."""
        load = staged(view, self._updated(view) if self.update else {})
        brought = [fetch.expert for fetch in load if fetch.expert in active.rows]
        return Plan([*active.resident, *active.in_flight, *cast(list[int], brought)], load=load)

    def _updated(self, view: LayerView) -> Mapping[int, int]:
        """Return the experts that become residents, each with the one that it replaces."""
        resident_E = view.resident_E
        tokens_E = np.bincount(view.topk_ids_TK.ravel(), minlength=view.shape.num_experts)
        # Among experts with equally many tokens, residents are first, then the lowest ids.
        by_tokens = np.lexsort((~resident_E, -tokens_E)).tolist()
        n = int(resident_E.sum())
        come = [e for e in by_tokens[:n] if not resident_E[e] and not view.in_flight_E[e]]
        leave = [e for e in by_tokens[n:] if resident_E[e]]
        return dict(zip(come, leave, strict=False))


@dataclass(kw_only=True)
class KTransformers(System):
    """kTransformers with its hybrid assignment and the most used experts as fixed residents."""

    paper = "SOSP 2025, doi 10.1145/3731569.3764843"

    place: Placement = field(default_factory=PlacePopular)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=Hybrid)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=OnlyNamed)
    host_kernels: HostKernels = "fused"
    host_together: bool = True  # one submission to the CPU, one sync for a layer

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return a note on how many slots are reserved for layer-wise prefill."""
        if isinstance(self.assign, Hybrid) and self.assign.stages:
            return [self.assign.remark(shape, slots)]
        return ()
