"""FlashMoE: experts on the SSD, and a small network that chooses the expert to evict.

"FlashMoE: Reducing SSD I/O Bottlenecks via ML-Based Cache Replacement for Mixture-of-Experts
Inference on Edge Devices" (B. Kim et al., arXiv 2601.17063).  Where a miss costs a read from disk,
a better victim is worth a network: it sees how recently and how often each expert was routed and
predicts how far away its next use is, which Belady's rule would have to know.

    paper                      here
    ─────                      ────
    r_t, f_t, FFN input        learn.eviction_network.History                  §3.2
    ml_cache, dist_scores      learn.eviction_network.Network                  Algorithm 1
    cache.MaxDist              LearnedEviction.victim                          Algorithm 1
    training, Table 1          learn.eviction_network.trained                  §3.2
    512 samples                LearnedEviction.calibration_texts               §3.2
    Eq. 1, cache size          memory.capacity.plan, then `scope = "layer"`    §3.1

Storage (§3.1): one record for each expert, read on demand; nothing but the common weights is loaded
at the start.  Records lie on the disk when the host cannot hold them: settings with the paper's
`free_host_gb` of about 1.  What was read stays in that memory while there is room, as files do in
Linux's page cache.  Each `torch.load` reads alone (`parallel_reads`).  Eq. 1 is what the device has
left beside the common weights, in records, shared equally by the layers; `--cache-ratio` asks for
less, as F1 and F2 do: 24 experts a layer.

Prefill (§3.1) reads each routed expert once a pass; which of them are kept is the policy's
decision.  Decode is the same with one row.  The policy is evaluated while experts load; its cost is
not charged, for the paper hides it (about 0.1 ms beside 3 ms a load).

Deviations and readings, where the paper is silent:

- 113 KB a layer at 64 experts is 2E → 128 → 64 → E in fp32 and nothing near it with two hidden
  layers of 128 (165 KB): the second hidden layer is half as wide as the first.
- The scores at time t already count the experts routed at t, as in the paper's example.
- Time is counted from the start of each sequence.  A prompt's tokens are steps of their own, one
  after the other (those of a batch, too); a decoded batch is one step of all its experts.
- The current layer's experts cannot be evicted, whatever the network says (the substrate's rule).
- The paper's samples are of TriviaQA, up to 512 tokens each, and so are its questions.  Here they
  are of the train half of the workload that is served: prompts up to 256 tokens and 64 new ones.
- Weights are raw records and safetensors instead of pickled `.pt` files.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from moebench.substrate.engine.decisions import LayerView, Prompts
from moebench.substrate.engine.policies import (
    Assignment,
    Eviction,
    Placement,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import RoutedSequence
from moebench.systems.learn.eviction_network import (
    EvictionNetworkOptions,
    History,
    first_tokens,
    trained,
)
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.checks import require_at_least, require_learnt_for
from moebench.systems.policies.evict import least
from moebench.systems.policies.place import PlaceNothing
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting


@dataclass(kw_only=True)
class LearnedEviction(Eviction):
    """Algorithm 1: evicts the cached expert with the largest predicted distance.

    The networks are trained on first use and kept by the hash of topology, data and options.

    Attributes:
        trace: a recorded or imported trace to train on, its folder or the name of one that ships,
            instead of the calibration texts.
        tokens: at most so many tokens are learnt from, in whole sequences.
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

    calibrates: ClassVar[bool] = True
    calibration_texts: ClassVar[int] = 512  # §3.2
    quick: ClassVar[Mapping[str, str]] = {"hidden": "4", "epochs": "1"}
    reads_scores = False  # it observes chosen experts alone

    def __post_init__(self) -> None:
        require_at_least("evict", self, tokens=1, hidden=2, epochs=1, cached=0)

    @property
    def calibration_trace(self) -> str:  # type: ignore[override]
        """What ``trace`` names."""
        return self.trace

    @property
    def learnt(self) -> Mapping[str, str]:
        """How the networks were trained."""
        return self.network.note if hasattr(self, "network") else {}

    def calibrate(
        self,
        sequences: Sequence[RoutedSequence],
        shape: ModelShape,
        artefacts: Path,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Train on these texts, or take what was trained on them before.

        Raises:
            UsageError: there is nothing to learn from.
            InputError: what was kept is broken.
        """
        known = first_tokens([text.ids_TLK for text in sequences], self.tokens)
        options = EvictionNetworkOptions(self.hidden, self.epochs, self.cached, self.seed)
        self.network = trained(known, shape.num_experts, options, artefacts, progress)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin with an empty history.

        Raises:
            UsageError: there was nothing to learn from, or it was another model's.
        """
        if not hasattr(self, "network"):
            raise UsageError("evict=flashmoe learns from recorded routing: calibrate it first")
        require_learnt_for("evict=flashmoe was trained for", shape, self.network.biases[-1].shape)
        self._shape = shape
        #: Predicted distances with the sign turned: the least is the farthest.
        self._nearness = np.zeros(shape.num_layers * shape.num_experts, dtype=np.float32)
        self._scope = cache.scope
        self.begin_sequences(Prompts(()))

    def begin_sequences(self, prompts: Prompts) -> None:
        """Begin a new history in every layer."""
        self._history = History(len(self._shape.moe_layers), self._shape.num_experts)
        self._in_prompt = False
        self._stale: set[int] = set(self._shape.moe_layers)

    def observe(self, view: LayerView) -> None:
        """Count a prompt's tokens, the first steps of a sequence."""
        self._in_prompt = view.phase == "prefill"
        if self._in_prompt:
            for ids in view.topk_ids_TK:
                self._history.step(self._shape.moe_rows[view.layer], ids)

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Count one step; a prompt's were counted token by token."""
        if not self._in_prompt:
            self._history.step(self._shape.moe_rows[layer], list(experts))
        self._stale.add(layer)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """MaxDist: the largest predicted distance of the allowed keys."""
        experts, layer = self._shape.num_experts, incoming // self._shape.num_experts
        if self._scope == "layer":  # whoever is allowed is of this layer
            self._predict({layer})
            first = layer * experts
            row = slice(first, first + experts)
            found = least(self._nearness[row], allowed[row])
            return None if found is None else first + found
        self._predict({layer, *_layers(allowed, experts)})
        return least(self._nearness, allowed)

    def _predict(self, layers: set[int]) -> None:
        """Bring the distances of these layers up to date."""
        experts = self._shape.num_experts
        for layer in self._stale & layers:
            self._nearness[layer * experts : (layer + 1) * experts] = -self._distances(layer)
            self._stale.remove(layer)

    def _distances(self, layer: int) -> np.ndarray:
        row = self._shape.moe_rows[layer]
        return self.network.distances(row, self._history.features(row))


def _layers(allowed: Mask, experts: int) -> list[int]:
    """The layers of the allowed keys."""
    found: list[int] = np.flatnonzero(allowed.reshape(-1, experts).any(axis=1)).tolist()
    return found


@dataclass(kw_only=True)
class FlashMoE(System):
    """The complete system: equal slots for every layer, everything on demand.

    The paper compares evictions by swapping this one (Fig. 6, Fig. 7 b and e): --set evict=lru,
    lfu, lifo, arc, lecar.
    """

    paper = "arXiv 2601.17063"

    place: Placement = field(default_factory=PlaceNothing)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=LearnedEviction)
    scope: Scope = "layer"
    parallel_reads: bool = False
