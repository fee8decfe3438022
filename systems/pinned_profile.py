"""Pinned profile: the most used experts of each layer stay on the device, all others on the host.

thecodacus/llama.cpp, a fork: its expert cache (pull request 5, July 2026, read at 063c563).  A run
of ``llama-moe-trace`` records which experts a model uses.  At load, each layer's most used ones are
copied to the device and never move.  A layer's used experts are then two chains of one graph: the
hits on the device, the misses on the host at the same time; one sum merges both.

    fork                                    moebench
    ────                                    ────────
    llama-moe-trace, --moe-cache-profile    PinTopOfEachLayer: the calibration texts;
                                              ``place.popularity`` gives counts by hand
    --moe-cache-slots N                     ``place.slots_each``; null is as many as fit
    decode rows of the trace (pos >= 0)     PinTopOfEachLayer counts decoded tokens
    sort by (-count, expert)                PlacePopular with ``equal_layers``, per layer
    ids_hot, ids_cold                       HostOrCopy: residents on the device, others on the host
    op offload, for 32 rows and more        ``assign.min_batch``: a prompt's misses are copied
    async CPU splits, on by default         ``overlap``; --no-sched-async-cpu is ``overlap=false``
    -ncmoe 99                               every layer's experts are in host memory
    GGML_CUDA_REGISTER_HOST=1               ``pinned_copies=true``

There is no eviction and no prefetch in decode, so no expert moves.

Deviations and readings:

- An expert that the profile never saw is not pinned, in the fork and here: its slot stays empty.
- A pack that does not fit disables the fork's cache, which then runs as plain llama.cpp.  Here too
  many ``place.slots_each`` are an error.
- Slots for a third of a layer stay free for copied experts, as in `systems.llamacpp`.
- ``overlap`` also lets copies of a prompt overlap with computations, as the fork does only with
  GGML_SCHED_PREFETCH_EXPERTS=1.
- The fork caches for qwen35moe, deepseek2 and laguna alone; other models run without the cache.
  Here every model with a GGUF file has it.
- Layers of which --n-cpu-moe leaves all experts on the device are not modelled: every layer has
  the same number of slots.
- A later option (--moe-cache-ring) refills some slots by a predicted routing; it is off by default
  and left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Placement
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.memory.cache import Scope
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import RoutedSequence
from moebench.systems.llamacpp import LlamaCpp, staging
from moebench.systems.policies.place import PlaceByPopularity, PlacePopular


def pinned_per_layer(slots: int, layers: int, experts: int, staged: int) -> int:
    """Return how many experts each layer can pin on a device.

    Args:
        slots: of the device.
        experts: of a layer.
        staged: slots that stay free for copies, unless the device has fewer than these.
    """
    room = slots - staged if slots >= staged else slots
    return min(max(room, 0) // layers, experts)


@dataclass(kw_only=True)
class PinTopOfEachLayer(PlaceByPopularity):
    """Places the most used experts of each layer, equally many, ties by lowest id.

    Experts are counted in the decoded tokens of the calibration texts; unused ones are not placed.

    Attributes:
        slots_each: experts of each layer; null is as many as fit.
    """

    slots_each: int | None = option(None, low=1, searched=(1, 128), scale="log")

    leaves_slots = True
    shares_slots = True

    def _counted(self, text: RoutedSequence) -> np.ndarray:
        """Return the routing of the text's decoded tokens."""
        return text.ids_TLK[text.prefill :]

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return the experts to pin, most used first; refuse more than fit."""
        if scope == "layer":
            raise UsageError(
                "place=pinned-profile keeps slots for copies that all layers share; allowed: "
                "--set scope=global"
            )
        layers = len(shape.moe_layers)
        fit = pinned_per_layer(slots, layers, shape.num_experts, staging(shape))
        each = fit if self.slots_each is None else min(self.slots_each, shape.num_experts)
        if each > fit:
            raise BudgetError(
                f"place.slots_each={self.slots_each}: the device has room for {fit} experts of "
                f"each of {layers} layers; give fewer, or a larger --capacity"
            )
        counts = self.counts(shape)
        top = PlacePopular(popularity=counts, equal_layers=True)
        ranked = top.place(shape, each * layers, scope)
        return [(layer, expert) for layer, expert in ranked if counts[layer][expert] > 0]


@dataclass(kw_only=True)
class PinnedProfile(LlamaCpp):
    """llama.cpp with the most used experts of each layer pinned on the device."""

    paper = "thecodacus/llama.cpp"

    place: Placement = field(default_factory=PinTopOfEachLayer)
    overlap: bool = True
