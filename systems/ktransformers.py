"""kTransformers: hot experts on the device, all others computed on the host, none moved in decode.

"KTransformers: Unleashing the Full Potential of CPU/GPU Hybrid Inference for MoE Models" (H. Chen
et al., SOSP 2025, doi 10.1145/3731569.3764843), and what its authors ship: kt-kernel and their fork
of SGLang (kvcache-ai/ktransformers 95009ea).  The host computes experts faster than the link brings
them, so a token moves activations alone; the device computes attention, shared experts and its
residents beside the host.

    paper and code                                     here
    ──────────────                                     ────
    GPU expert mask, --kt-num-gpu-experts              what fits beside the staged layer:
                                                       ``--slots``, ``--cache-ratio``
    --kt-expert-placement-strategy uniform             PlaceById: n of each layer, lowest ids
      frequency                                        ``place=popular``
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
is every expert that is immediate for any token of the batch.  The others, where they are the
host's, are added to the next MoE layer's output; the last layer defers none.  The host then works
through the next attention, and the outputs are not the model's any more: d > 0 is lossy.

Layer-wise prefill: prompts of ``threshold`` tokens or more, over the batch, go layer by layer
through a buffer of all E experts, to which the host's are copied, chosen or not.  With ``update``
the layer's n residents are from then on the n that the prompt used most; those that come were in
the buffer already, so that costs no transfer.

Deviations and readings:

- The threshold's default is the documentation's for BF16 (GLM-4.7); its other examples have 400 to
  2048, the command line 4096, and SGLang alone has none.  0 switches layer-wise prefill off.
- The buffer is memory for one layer's experts and stays empty in between.  It is one of the slots
  that every system gets, so a tight budget has fewer residents.
- In layer-wise prefill an expert is computed as it comes, where the code waits for the whole layer;
  a resident is computed where it is, where the code copies it into the buffer, too.
- With ``update``, an expert that is to stay is copied to the slot of the resident that leaves, once
  that one has been computed, where the code copies within the device.
- Deferral is decode's, as the paper reports it.  The code does not ask for the phase: its hybrid
  prefill defers what is immediate for no token of the prompt.
- Host memory keeps all experts, resident ones too (issues 2023, 2084); so it does here.
- What the host reaches is the machine's: no AMX or NUMA kernels.  One CUDA graph for all of decode
  is nearest to ``--software lean``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from moebench.substrate.engine.decisions import Active, Fetch, LayerView, Plan
from moebench.substrate.engine.policies import (
    Assignment,
    Eviction,
    Placement,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.evict import OnlyNamed
from moebench.systems.policies.place import PlaceById
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting

#: Prompt tokens from which layer-wise prefill is worth its transfers: the documentation's.
THRESHOLD = 1024


@dataclass(kw_only=True)
class Hybrid(Assignment):
    """Residents on the device, all others on the host; long prompts layer by layer on the device.

    Attributes:
        defer: d, how many of a token's experts may be added one MoE layer later, in decode.
        threshold: tokens of a prefill, over the batch, from which it is layer-wise; 0 is never.
        update: a layer-wise prefill makes its most used experts the residents.
    """

    defer: int = 0
    threshold: int = THRESHOLD
    update: bool = False

    reads_scores = False

    def __post_init__(self) -> None:
        for option in ("defer", "threshold"):
            if getattr(self, option) < 0:
                raise UsageError(
                    f"assign.{option} is {getattr(self, option)}; allowed: 0 (none) or more"
                )
        if self.update and not self.threshold:
            raise UsageError(
                "assign.update=true counts in layer-wise prefill, which assign.threshold=0 "
                "switches off; give a threshold"
            )

    @property
    def uses_host(self) -> bool:  # type: ignore[override]
        """For all that is not on the device."""
        return True

    @property
    def lossless(self) -> bool:  # type: ignore[override]
        """Unless outputs come a layer late."""
        return not self.defer

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Keep room for one layer, or for one expert of each where layers do not share slots.

        Raises:
            BudgetError: there is none.
        """
        staged = len(shape.moe_layers) if cache.scope == "layer" else shape.num_experts
        self.reserve = staged if self.threshold else 0
        if self.reserve > cache.slots:
            raise BudgetError(
                f"layer-wise prefill stages {self.reserve} experts, the device has {cache.slots} "
                "slots; give a larger --cache-ratio, or --set assign.threshold=0"
            )

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Where each expert is, but for long prompts; d > 0 defers the least important."""
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
        """Brings all of the layer; residents compute meanwhile."""
        absent = np.flatnonzero(~(view.resident_E | view.in_flight_E)).tolist()
        leaves = self._updated(view) if self.update else {}
        passing = [e for e in absent if e not in leaves]
        # What replaces a resident waits for that one's computation: it comes last.
        load = [Fetch(view.layer, e, keep=False) for e in passing]
        load += [Fetch(view.layer, e, instead_of=resident) for e, resident in leaves.items()]
        brought = [e for e in (*passing, *leaves) if e in active.rows]
        return Plan([*active.resident, *active.in_flight, *brought], load=load)

    def _updated(self, view: LayerView) -> Mapping[int, int]:
        """The experts that become residents, each with the one whose place it takes."""
        resident_E = view.resident_E
        tokens_E = np.bincount(view.topk_ids_TK.ravel(), minlength=view.shape.num_experts)
        # Of experts with equally many tokens, those that are there; then the lowest ids.
        by_tokens = np.lexsort((~resident_E, -tokens_E)).tolist()
        n = int(resident_E.sum())
        come = [e for e in by_tokens[:n] if not resident_E[e] and not view.in_flight_E[e]]
        leave = [e for e in by_tokens[n:] if resident_E[e]]
        return dict(zip(come, leave, strict=False))


@dataclass(kw_only=True)
class KTransformers(System):
    """The complete system."""

    paper = "SOSP 2025, doi 10.1145/3731569.3764843"

    place: Placement = field(default_factory=PlaceById)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=Hybrid)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=OnlyNamed)

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """How many of the slots hold no resident."""
        if isinstance(self.assign, Hybrid) and self.assign.threshold:
            return [
                f"{shape.num_experts} of {slots} slots stage one layer's experts for prompts of "
                f"{self.assign.threshold} tokens or more, and are empty in decode"
            ]
        return ()
