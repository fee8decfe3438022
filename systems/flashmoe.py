"""FlashMoE: experts on the SSD, and a small network that decides who leaves.

"FlashMoE: Reducing SSD I/O Bottlenecks via ML-Based Cache Replacement for Mixture-of-Experts
Inference on Edge Devices" (B. Kim et al., arXiv 2601.17063).  Where a miss costs a read from disk,
a better victim is worth a network: it sees how recently and how often each expert was routed and
foretells how far away its next use is, as Belady's oracle would know.

    paper                      here
    ─────                      ────
    r_t, f_t, FFN input        learn.eviction_network.History                  §3.2
    ml_cache, dist_scores      learn.eviction_network.Network                  Algorithm 1
    cache.MaxDist              LearnedEviction.victim                          Algorithm 1
    training, Table 1          learn.eviction_network.trained                  §3.2
    Eq. 1, cache size          memory.capacity.plan, then `scope = "layer"`    §3.1

Storage (§3.1): one record for each expert, read on demand; nothing but the common weights is loaded
at the start.  Records lie on the disk when the host cannot hold them: settings with the paper's
`free_host_gb` of about 1.  Eq. 1 is what the device has left beside the common weights, in records,
shared equally by the layers; `--cache-ratio` asks for less.

Prefill (§3.1) reads each routed expert once a pass, and what stays is the policy's decision.
Decode is the same with one row.  The policy is evaluated while experts load; its cost is not
charged, for the paper hides it (about 0.1 ms beside 3 ms a load).

Deviations and readings, where the paper is silent:

- 113 KB a layer at 64 experts is 2E → 128 → 64 → E in fp32 and nothing near it with two hidden
  layers of 128 (165 KB): the second hidden layer is half as wide as the first.
- The scores at time t already count the experts routed at t, as in the paper's example.
- Time is counted from the start of each sequence.  A prompt's tokens are steps of their own, one
  after the other (those of a batch, too); a decoded batch is one step of all its experts.
- The current layer's experts cannot leave, whatever the network says (the substrate's rule).
- Weights are raw records and safetensors instead of pickled `.pt` files.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from moebench.substrate.engine.system import (
    Assignment,
    Eviction,
    LayerView,
    Placement,
    Prefetching,
    Routing,
    System,
)
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.models.shape import ModelShape
from moebench.systems.learn.eviction_network import (
    EvictionNetworkOptions,
    History,
    recorded,
    trained,
)
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.evict import least
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting

if TYPE_CHECKING:
    from moebench.substrate.terms import RoutedSequence

#: Where trained networks are kept unless the caller says, below the current directory.
ARTEFACTS = Path(".moebench") / "flashmoe"


@dataclass(kw_only=True)
class LearnedEviction(Eviction):
    """Algorithm 1: the cached expert with the largest predicted distance leaves.

    The networks are trained on first use and kept by the hash of topology, data and options.

    Attributes:
        trace: a recorded or imported trace to train on, its folder or the name of one that ships,
            instead of the calibration texts.
        tokens: at most so many of its tokens, in whole sequences.
        hidden: width of the first hidden layer (Table 1).
        epochs: at most; training stops early (§4.1).
        cached: label only experts that Belady's cache of ``cached`` slots a layer holds; 0 labels
            all.
        seed: of initial weights and shuffling.
    """

    trace: str = ""
    tokens: int = 65_536
    hidden: int = 128
    epochs: int = 200
    cached: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, floor in (("tokens", 1), ("hidden", 2), ("epochs", 1), ("cached", 0)):
            if getattr(self, name) < floor:
                raise UsageError(f"evict.{name} is {getattr(self, name)}; allowed: {floor} or more")

    @property
    def calibrates(self) -> bool:  # type: ignore[override]
        """Unless it was given a trace to learn from."""
        return not self.trace

    @property
    def learnt(self) -> Mapping[str, str]:
        """How the networks were trained."""
        return self._network.note if hasattr(self, "_network") else {}

    def calibrate(
        self,
        sequences: "Sequence[RoutedSequence]",
        shape: ModelShape,
        artefacts: Path = ARTEFACTS,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Train on these texts or, if one was named, on a trace; or take what was trained before.

        Raises:
            UsageError: the trace is another model's, or there is nothing to learn from.
            InputError: there is no such trace, or what was kept is broken.
        """
        if self.trace:
            known = recorded(self.trace, shape, self.tokens)
        else:
            known = [text.ids_TLK for text in sequences]
        options = EvictionNetworkOptions(self.hidden, self.epochs, self.cached, self.seed)
        self._network = trained(known, shape.num_experts, options, artefacts, progress)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Nothing was routed yet.

        Raises:
            UsageError: there was nothing to learn from, or it was another model's.
        """
        layers, experts = len(shape.moe_layers), shape.num_experts
        if not hasattr(self, "_network"):
            if not self.trace:
                raise UsageError(
                    "evict=flashmoe learns from recorded routing before it runs: calibrate it, or "
                    "name a trace: --set evict.trace=DIR"
                )
            self.calibrate((), shape)
        trained_for = self._network.biases[-1].shape
        if trained_for != (layers, experts):
            raise UsageError(
                f"evict=flashmoe was trained for {trained_for[0]} layers of {trained_for[1]} "
                f"experts, the model has {layers} of {experts}"
            )
        self._shape = shape
        self._number = {layer: i for i, layer in enumerate(shape.moe_layers)}
        self._by_key = np.zeros(shape.num_layers * experts, dtype=np.float32)
        self.sequence_begins()

    def sequence_begins(self) -> None:
        """Time starts anew in every layer."""
        self._history = History(len(self._number), self._shape.num_experts)
        self._told: set[int] = set()  # layers whose step `observe` has counted already
        self._stale: set[int] = set(self._number)

    def observe(self, view: LayerView) -> None:
        """A prompt: its tokens are the first steps of a sequence."""
        if view.phase == "decode":
            return
        layer = self._number[view.layer]
        if layer == 0:
            self.sequence_begins()
        for ids in view.own_TK:
            self._history.step(layer, ids)
        self._told.add(layer)

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """One step, unless a prompt's were counted."""
        number = self._number[layer]
        if number in self._told:
            self._told.remove(number)
        else:
            self._history.step(number, list(experts))
        self._stale.add(layer)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """MaxDist: the largest predicted distance of those that may leave."""
        experts = self._shape.num_experts
        for layer in self._stale & {incoming // experts, *_layers(allowed, experts)}:
            self._by_key[layer * experts : (layer + 1) * experts] = self._distances(layer)
            self._stale.remove(layer)
        return least(-self._by_key, allowed)

    def _distances(self, layer: int) -> np.ndarray:
        number = self._number[layer]
        return self._network.distances(number, self._history.features(number))


def _layers(allowed: Mask, experts: int) -> list[int]:
    """The layers of which an expert may leave."""
    found: list[int] = np.flatnonzero(allowed.reshape(-1, experts).any(axis=1)).tolist()
    return found


@dataclass(kw_only=True)
class PlaceNothing(Placement):
    """The device starts with the common weights alone (§3.1)."""

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """No expert."""
        return ()


@dataclass(kw_only=True)
class FlashMoE(System):
    """The complete system: equal slots for every layer, everything on demand.

    The paper compares evictions by swapping this one (Fig. 6, Fig. 7 b and e): --set evict=lru,
    lfu, lifo, arc, lecar.
    """

    place: Placement = field(default_factory=PlaceNothing)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=LearnedEviction)
    scope: Scope = "layer"
