"""FlashMoE: experts on the SSD, and a small network that chooses which expert to evict.

"FlashMoE: Reducing SSD I/O Bottlenecks via ML-Based Cache Replacement for Mixture-of-Experts
Inference on Edge Devices" (B. Kim et al., arXiv 2601.17063).  A miss costs a read from disk, so a
better eviction is worth running a network.  Its inputs are how recently and how often each expert
was routed; it predicts the distance of each expert's next use, which Belady's rule assumes known.

    paper                      moebench
    ─────                      ────────
    r_t, f_t, FFN input        learn.eviction_network.History                  §3.2
    ml_cache, dist_scores      learn.eviction_network.Network                  Algorithm 1
    cache.MaxDist              LearnedEviction.victim                          Algorithm 1
    training, Table 1          learn.eviction_network.trained                  §3.2
    512 samples                LearnedEviction.calibration_texts               §3.2
    Eq. 1, cache size          memory.capacity.plan, then `scope = "layer"`    §3.1

Storage (§3.1): one record (an expert's weights as bytes) for each expert, read on demand; only the
non-expert weights are loaded at the start.  Records are on the disk if host memory cannot hold
them: in settings with the paper's `free_host_gb` of about 1.  Records that were read stay in that
memory while there is room, as files do in Linux's page cache.  `torch.load` reads one record at a
time (`parallel_reads`).  Eq. 1 is the device memory left beside the non-expert weights, in records,
shared equally by the layers; `--capacity` lowers it, as in F1 and F2: 24 experts a layer.

Prefill (§3.1) reads each routed expert once a pass, and the eviction policy decides which of them
are kept.  Decode does the same with one row.  The policy is evaluated while experts load; its cost
is not charged, because the paper hides it (about 0.1 ms during 3 ms a load).

Deviations and readings, where the paper is silent:

- The second hidden layer is half as wide as the first: the paper's 113 KB a layer at 64 experts is
  2E → 128 → 64 → E in fp32; two hidden layers of 128 would have 165 KB.
- The scores at time t already count the experts routed at t, as in the paper's example.
- Time is counted from the start of each sequence.  Each token of a prompt is one step (also in a
  batch); a decoded batch is one step with all its experts.
- The engine protects the current layer's experts from eviction, whatever the network predicts.
- The paper's samples, up to 512 tokens each, and its evaluation prompts are from TriviaQA.  Here
  samples are from the train half of the workload: prompts up to 256 tokens, 64 new tokens.
- Weights are raw records and safetensors instead of pickled `.pt` files.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from moebench.substrate.engine.decisions import LayerView, Prompts
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import RoutedSequence
from moebench.systems.learn import eviction_network
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.checks import require_learnt_for
from moebench.systems.policies.evict import least
from moebench.systems.policies.place import PlaceNothing
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting


@dataclass(kw_only=True)
class LearnedEviction(Eviction):
    """Evicts the cached expert with the largest predicted distance (Algorithm 1).

    The networks are trained on first use and stored by the hash of topology, data and options.

    Attributes:
        trace: a trace to train on instead of the calibration texts: its folder, or the name of one
            that ships.
        tokens: most tokens to train on, in whole sequences.
        hidden: width of the first hidden layer (Table 1).
        epochs: most epochs; training stops early (§4.1).
        cached: label only experts that Belady's cache of ``cached`` slots a layer holds; 0 labels
            all.
        seed: random seed of initial weights and shuffling.
    """

    trace: str = ""
    tokens: int = option(65_536, low=1)
    hidden: int = option(128, low=2, high=8192)
    epochs: int = option(200, low=1, high=100_000)
    cached: int = option(0, low=0)
    seed: int = option(0, low=0)

    calibrates: ClassVar[bool] = True
    calibration_texts: ClassVar[int] = 512  # §3.2
    quick: ClassVar[Mapping[str, str]] = {"hidden": "4", "epochs": "1"}
    reads_scores = False  # `observe` reads chosen experts only

    @property
    def calibration_trace(self) -> str:  # type: ignore[override]
        """Trace to train on, named by ``trace``; "" for the calibration texts."""
        return self.trace

    @property
    def learnt(self) -> Mapping[str, str]:
        """Notes on the training of the networks, for the run's provenance."""
        return self.network.note if hasattr(self, "network") else {}

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:  # fmt: skip
        """Train the networks on these texts, or load those trained on them before."""
        known = eviction_network.first_tokens([text.ids_TLK for text in sequences], self.tokens)
        chosen = (self.hidden, self.epochs, self.cached, self.seed)
        options = eviction_network.EvictionNetworkOptions(*chosen)
        experts = shape.num_experts
        self.network = eviction_network.trained(known, experts, options, artefacts, progress)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin with an empty history; refuse to without networks trained for this model."""
        if not hasattr(self, "network"):
            raise UsageError("evict=flashmoe learns from recorded routing: calibrate it first")
        require_learnt_for("evict=flashmoe was trained for", shape, self.network.biases[-1].shape)
        self._shape = shape
        #: Negative predicted distances: the least belongs to the farthest next use.
        self._nearness = np.zeros(shape.num_layers * shape.num_experts, dtype=np.float32)
        self._scope = cache.scope
        self.begin_sequences(Prompts(()))

    def begin_sequences(self, prompts: Prompts) -> None:
        """Begin a new history in every layer."""
        layers, experts = len(self._shape.moe_layers), self._shape.num_experts
        self._history = eviction_network.History(layers, experts)
        self._in_prompt = False
        self._stale: set[int] = set(self._shape.moe_layers)

    def observe(self, view: LayerView) -> None:
        """Count a prompt's tokens, the first steps of a sequence."""
        self._in_prompt = view.phase == "prefill"
        if self._in_prompt:
            for ids in view.topk_ids_TK:
                self._history.step(self._shape.moe_rows[view.layer], ids)

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Count one decode step; `observe` counts a prompt's tokens one by one."""
        if not self._in_prompt:
            self._history.step(self._shape.moe_rows[layer], list(experts))
        self._stale.add(layer)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed key with the largest predicted distance (MaxDist)."""
        experts, layer = self._shape.num_experts, incoming // self._shape.num_experts
        if self._scope == "layer":  # all allowed keys belong to this layer
            self._predict({layer})
            first = layer * experts
            row = slice(first, first + experts)
            found = least(self._nearness[row], allowed[row])
            return None if found is None else first + found
        self._predict({layer, *_layers(allowed, experts)})
        return least(self._nearness, allowed)

    def _predict(self, layers: set[int]) -> None:
        """Bring the predicted distances of these layers up to date."""
        experts = self._shape.num_experts
        for layer in self._stale & layers:
            self._nearness[layer * experts : (layer + 1) * experts] = -self._distances(layer)
            self._stale.remove(layer)

    def _distances(self, layer: int) -> np.ndarray:
        row = self._shape.moe_rows[layer]
        return self.network.distances(row, self._history.features(row))


def _layers(allowed: Mask, experts: int) -> list[int]:
    """Return the layers of the allowed keys."""
    found: list[int] = np.flatnonzero(allowed.reshape(-1, experts).any(axis=1)).tolist()
    return found


@dataclass(kw_only=True)
class FlashMoE(System):
    """FlashMoE with the paper's policies: equal slots for every layer, loading on demand.

    The paper compares its eviction with others (Fig. 6, Fig. 7 b and e): --set evict=lru, lfu,
    lifo, arc, lecar.
    """

    paper = "arXiv 2601.17063"

    place: Placement = field(default_factory=PlaceNothing)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=LearnedEviction)
    scope: Scope = option("layer", searched=True)
    parallel_reads: bool = False
