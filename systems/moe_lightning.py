"""MoE-Lightning: decode in micro-batches, weights in pages behind the states of these.

"MoE-Lightning: High-Throughput MoE Inference on Memory-constrained GPUs" (S. Cao et al., ASPLOS
2025, arXiv 2411.11217), and its code (caoshiyi/artifacts 6bc8600, branch asplos25).  All experts
are computed on the GPU, attention's core on the CPU, where the KV cache is.  A large batch is
decoded in q = N / μ micro-batches, so that GPU, CPU and both directions of the link work at once.

    paper                                    moebench
    ─────                                    ────────
    N, μ, q = N / μ                          ``--batch``, ``place.micro``
    r_w, share of resident experts           ``place.resident``: ids 0 to int(E · r_w) - 1
    A_g = 0, attention on the CPU            `InMicroBatches.divides`: KV cache on the host
    F_g = 1, experts on the GPU              `InMicroBatches`; r_c = 0, no KV cache on the GPU
    HRM, policy search                       `substrate.analysis.roofline`, ``machines roofline``
    weights paging: a layer in q pages       `PagedLayers`, ``prefetch.paged``
    W_CPUtoPin: a page to pinned memory      ``prefetch.staged``
    two layer buffers                        ``prefetch.buffers``, Fetch(keep=False)
    batching by length (Alg. 2)              `batches`, ``assign.cache_tokens``
    CGOPipe (Alg. 1)                         `substrate.engine.micro_batches.order`

For layer i and micro-batch j, each lane first in, first out:

    up: state (i, j), page (i + 1, j);  GPU: PostAttn (i, j), then PreAttn of the micro-batch after
    the next one;  down: its queries, keys and values;  CPU: its attention, then a page staged

PostAttn (i, 1) waits for the last page of layer i.  Pages are equal parts of all experts of the
layer that are not resident, not experts.  Routing is exact.

Deviations and readings:

- Without ``place.micro``, μ is the largest divisor of N for which the paper's formula of the GPU's
  memory holds with r_w = 0 and which leaves two micro-batches; μ = 1 if there is none.  The paper's
  search also prefers the largest μ: the GPU reads each expert once for each micro-batch.
- Without ``place.resident``, as many experts of each layer stay as the slots leave.  The paper's
  formulas also reserve room for the states of a prefill; moebench counts these for no system.
- Batches of 2 to 8, far below those of the paper, run as N micro-batches of one (or as the rule
  above says).  With one micro-batch the authors' code stops after a decode step; here its parts
  follow each other, beside the next layer's weights.
- A micro-batch reads the experts that its own rows use, and no others.
- The next pass's first layer arrives in pages behind the last layer.  A pass begins with an empty
  pipeline, as its first states are embeddings of tokens that the head of the last pass chose.
- Staging to page-locked memory reads and writes the page once on the CPU's lane, at the bandwidth
  of its products.  The page-locked buffers, two layers of weights, are not charged.
- Prefill is computed as one batch, by layers, with the next layer's experts on the way; the keys
  and values of each layer go down behind its attention.  The paper divides it by μ too.
- The paper's batching rejects a request that a micro-batch's cache has no room for.  moebench
  answers all requests of a batch, so that it refuses the run.
- If the device has no room for two buffers there is one, and decode loads a layer when its gate is
  known; MoE-Lightning does not run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from moebench.substrate.analysis.roofline import Policy, Sizes, Texts, device_need
from moebench.substrate.analysis.roofline_inputs import plain_sizes
from moebench.substrate.engine.decisions import Fetch, Prompts
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.memory.capacity import Budget, Home
from moebench.substrate.models.shape import ModelShape
from moebench.systems.flexgen import most_resident, slots_of
from moebench.systems.moesys import WholeLayer
from moebench.systems.policies.assign import LoadForOneUse
from moebench.systems.policies.evict import OnlyNamed
from moebench.systems.policies.route import ExactRouting

#: Layers' weights that pass through the device at once.
BUFFERS = 2

#: Batches up to this one are far below those of the paper, the smallest of which has 36 requests.
SMALL_BATCH = 8

# ----------------------------------------------------------------------------- batching


def batches(
    lengths: Sequence[int], size: int, most: int | None = None
) -> tuple[list[list[int]], list[int]]:
    """Divide requests into micro-batches of about equally many tokens.

    The longest request first, each into the micro-batch with the fewest tokens that is not full.

    Args:
        lengths: tokens of each request.
        size: requests of a full micro-batch.
        most: tokens that a micro-batch's cache has room for; None is any number.

    Returns:
        the requests of each micro-batch, and those for which its cache has no room.
    """
    count = -(-len(lengths) // size)
    groups: list[list[int]] = [[] for _ in range(count)]
    tokens, rejected = [0] * count, list[int]()
    for request in sorted(range(len(lengths)), key=lambda r: -lengths[r]):
        into = min((g for g in range(count) if len(groups[g]) < size), key=tokens.__getitem__)
        if most is not None and tokens[into] + lengths[request] > most:
            rejected.append(request)
            continue
        groups[into].append(request)
        tokens[into] += lengths[request]
    return groups, rejected


def largest_micro_batch(sizes: Sizes, texts: Texts, batch: int, device_bytes: float) -> int:
    """Return μ, the largest divisor of a batch that fits and leaves two micro-batches; at least 1.

    Args:
        device_bytes: device memory of weights, two layer buffers and the states of a prefill.
    """
    found = 1
    for size in range(2, batch // 2 + 1):
        if batch % size == 0:
            policy = Policy(batch=batch, micro_batch=size)
            if device_need(sizes, texts, policy).fixed > device_bytes:
                break
            found = size
    return found


# ----------------------------------------------------------------------------- decisions


@dataclass(kw_only=True)
class ShareOfEachLayer(Placement):
    """Places the lowest ids of each layer, and chooses μ: the policy (N, μ, r_w) of the paper.

    Attributes:
        resident: r_w, the share of each layer's experts that stays on the device; None is as many
            as the slots leave beside two layer buffers.
        micro: μ, requests of a micro-batch; None is the largest that fits, see the module.
    """

    resident: float | None = option(None, low=0, high=1, searched=(0, 1))
    micro: int | None = option(None, low=1, searched=(1, 64), scale="log")

    leaves_slots = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.texts, self._prompt, self._found = 1, 0, 1

    def expect(self, prompt_tokens: int, texts: int = 1) -> None:
        """Keep the number of requests and their mean length."""
        self.texts, self._prompt = texts, prompt_tokens // texts

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """Return ``device`` for every layer; choose μ by the memory of the device."""
        sizes = replace(plain_sizes(shape), expert_bytes=shape.num_experts * budget.expert_bytes)
        texts = Texts(prompt=self._prompt, new=0)
        self._found = largest_micro_batch(sizes, texts, self.texts, budget.device_bytes)
        return super().homes(shape, budget)

    @property
    def size(self) -> int:
        """The requests of a micro-batch: the option, or what `homes` found."""
        return self._found if self.micro is None else min(self.micro, self.texts)

    def stay(self, shape: ModelShape) -> int | None:
        """Return how many experts of each layer stay: int(E · r_w); None is as many as fit."""
        return None if self.resident is None else int(shape.num_experts * self.resident)

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return the lowest ids of each layer; refuse a share that does not fit."""
        stay, fits = self.stay(shape), max(slots, 0) // len(shape.moe_layers)
        if stay is not None and stay > fits:
            raise BudgetError(
                f"place.resident={self.resident:g} keeps {stay} experts of each of "
                f"{len(shape.moe_layers)} layers on the device, which has room for {fits} of each "
                "beside its layer buffers; give a smaller share, more memory, or a larger "
                "--capacity"
            )
        each = min(shape.num_experts, fits) if stay is None else stay
        return [(layer, expert) for layer in shape.moe_layers for expert in range(each)]


@dataclass(kw_only=True)
class InMicroBatches(LoadForOneUse):
    """Computes all experts on the device; decode passes in micro-batches of like token counts.

    Attributes:
        cache_tokens: prompt tokens that a micro-batch's cache has room for; None is any number.
    """

    experts: Literal["family", "all", "active"] = option("all", searched=True)
    cache_tokens: int | None = option(None, low=1)

    divides = True

    def __post_init__(self) -> None:
        super().__post_init__()
        #: The placement that chose μ; None leaves two micro-batches, or one for a single request.
        self.policy: ShareOfEachLayer | None = None

    def begin_sequences(self, prompts: Prompts) -> None:
        """Divide the requests of a batch by their lengths."""
        lengths = prompts.lengths
        size = -(-len(lengths) // 2) if self.policy is None else self.policy.size
        self._groups, rejected = batches(lengths, size, self.cache_tokens)
        if rejected:
            raise UsageError(
                f"assign.cache_tokens={self.cache_tokens}: {len(rejected)} of {len(lengths)} "
                f"requests find no room in micro-batches of {size}, the longest has "
                f"{max(lengths[r] for r in rejected)} tokens; give more, or a smaller place.micro"
            )

    def micro_batches(self, lengths: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return the micro-batches that were made when the batch began."""
        return self._groups


@dataclass(kw_only=True)
class PagedLayers(WholeLayer):
    """Fetches the next layer's experts: in decode as pages, one behind each micro-batch's state.

    In prefill, and where passes are not divided, it is `WholeLayer`.

    Attributes:
        paged: false is one transfer of the whole layer, before the states.
        staged: the CPU copies each page to page-locked memory before its transfer; false is weights
            that are page-locked from the start, as FlexGen's.
    """

    paged: bool = option(True, searched=True)
    staged: bool = option(True, searched=True)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Set up the ring, and reserve its slots."""
        super().start(shape, cache)
        stay = most_resident(shape, cache.slots, self._ahead)
        self.reserve = cache.slots - stay * len(self._layers)

    def pages(self, layer: int) -> Sequence[Fetch]:
        """Return all experts of a layer, if there is a buffer beside the current layer's."""
        return self._whole([layer]) if self._ahead >= BUFFERS and layer in self._row else ()


# ----------------------------------------------------------------------------- the system


@dataclass(kw_only=True)
class MoELightning(System):
    """MoE-Lightning with attention on the host: CGOPipe over micro-batches."""

    paper = "ASPLOS 2025, arXiv 2411.11217"

    place: Placement = field(default_factory=ShareOfEachLayer)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=InMicroBatches)
    prefetch: Prefetching = field(default_factory=PagedLayers)
    evict: Eviction = field(default_factory=OnlyNamed)
    pinned_copies: bool | None = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.place, ShareOfEachLayer) and isinstance(self.assign, InMicroBatches):
            self.assign.policy = self.place

    def why_not(self, shape: ModelShape, batch: int) -> str | None:
        """Return that the host's attention is not defined for a model, if it is not."""
        if self.divides and (shape.latent is not None or shape.bounds_context):
            return "defined for models whose layers all attend to the keys and values of all tokens"
        return super().why_not(shape, batch)

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return the slots of the given share and the ring; None without a given share."""
        place, ring = self.place, self.prefetch
        stay = place.stay(shape) if isinstance(place, ShareOfEachLayer) else None
        if stay is None or not isinstance(ring, PagedLayers):
            return None
        return slots_of(shape, stay, ring.buffers)

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return notes on micro-batches, on the share that stays, and on a missing buffer."""
        place, ring = self.place, self.prefetch
        notes = []
        if isinstance(place, ShareOfEachLayer) and self.divides:
            count = -(-place.texts // place.size)
            notes.append(f"{count} micro-batch(es) of {place.size}")
            if count == 1:
                notes.append(
                    "one micro-batch overlaps with the next layer's weights alone; the authors' "
                    "code stops after one decode step with it"
                )
            elif place.texts <= SMALL_BATCH:
                notes.append(
                    f"a batch of {place.texts} is far below those that MoE-Lightning is built for"
                )
        if isinstance(ring, PagedLayers):
            fits = ring.fitting(shape, slots)
            stay = most_resident(shape, slots, fits)
            notes.append(f"{stay} of {shape.num_experts} experts of each layer stay")
            if fits < min(ring.buffers, len(shape.moe_layers)):
                notes.append(f"{slots} slots hold {fits} of {ring.buffers} layer buffers")
        return notes
