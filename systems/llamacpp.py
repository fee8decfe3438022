"""llama.cpp: a static split between device and host; what lies on the host is computed there.

ggml-org/llama.cpp, the baseline that most papers omit.  No cache, no prediction, no expert moves in
decode: its graph is cut where weights lie, and its pieces run one after the other.

    llama.cpp                        here
    ─────────                        ────
    --n-cpu-moe N, --cpu-moe         CpuMoE: experts of the first N layers on the host, all else on
                                       the device (``place=n-cpu-moe``)
    -ngl N                           GpuLayers: the last N layers on the device; the others, with
                                       attention and KV cache, on the host (``place=ngl``)
    op offload, for 32 rows and      HostOrCopy: used experts are copied, computed on the device and
      more (PR #15346)                 dropped; ``assign.min_batch``, GGML_OP_OFFLOAD_MIN_BATCH
    micro-batches (-ub 512)          ``assign.micro_batch``: each copies anew (Plan.again)
    splits run in order              ``overlap=False``
    mmap: weights are pageable       ``pinned_copies=False``; --no-mmap is ``pinned_copies=true``

N is the best that fits, as a user would tune it, in the bytes that every other system has;
`place.n` sets it.  Copied experts need room, too: llama.cpp allocates one tensor at a time, a
matrix of all experts of a layer; so a third of a layer stays free.

Deviations and readings:

- Recent builds count the head as one of -ngl's N; here N counts layers, and the head is always on
  the device.  So is the embedding, which llama.cpp leaves on the host: it takes room from experts.
- A prompt's rows are cut into micro-batches, sequence after sequence.  Where the last one is too
  small to be copied for, experts that it alone uses are computed on the host; its other rows are
  counted with the micro-batches before, and so is its part of the common weights of -ngl.
- Attention of a large batch in -ngl is computed on the device, where llama.cpp leaves the products
  with the KV cache to the host.
- Without room for a third of a layer the host computes prompts as well (--no-op-offload).
- Each expert on the host has a hand-over of its own; llama.cpp has one for a layer.
- Its control thread is C++: about 3,000 launches of 5 us a token.  Here it pays what the run's kind
  of software does; `--software lean` is nearer to it than ``hf-eager``.
- Weights have the run's precision; quantised files are other runs (`--precision 4bit`).
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

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
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.memory.capacity import Budget, Home
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.checks import require_at_least
from moebench.systems.policies.evict import OnlyNamed
from moebench.systems.policies.place import experts_of
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting

#: Families that its converter knows (conversion/__init__.py).  XVERSE-MoE is none of them: what it
#: maps is XverseForCausalLM, whose graph has no experts.
CONVERTED = frozenset({
    "deepseek", "deepseek_v2", "glm4_moe", "gpt_oss", "llama4_text", "mixtral", "olmoe", "phimoe",
    "qwen2_moe", "qwen3_moe",
})  # fmt: skip


def staging(shape: ModelShape) -> int:
    """Slots for copied experts: one matrix of each of a layer's, of three."""
    return -(-shape.num_experts // 3)


@dataclass(kw_only=True)
class StaticSplit(Placement):
    """Base of the two: whole layers' experts on the device, from one layer on.

    Attributes:
        n: as llama.cpp counts it; None is the best that fits.
    """

    n: int | None = None

    #: How llama.cpp spells it.
    flag: ClassVar[str]

    def __post_init__(self) -> None:
        if self.n is not None and self.n < 0:
            raise UsageError(f"place.n is {self.n}; allowed: 0 or more, or null for the best")
        #: The first layer whose experts are on the device, as `homes` found it.
        self.first = 0

    @abstractmethod
    def homes_from(self, first: int, shape: ModelShape) -> Sequence[Home]:
        """Homes of common weights if the device has the experts from this layer on."""

    @abstractmethod
    def count(self, first: int, shape: ModelShape) -> int:
        """N for the first layer whose experts are on the device, and the other way round."""

    def fits(self, first: int, shape: ModelShape, budget: Budget) -> bool:
        """Whether the device holds these layers and what large batches copy of the others."""
        homes = self.homes_from(first, shape)
        placed = sum(layer >= first for layer in shape.moe_layers) * shape.num_experts
        if placed < len(shape.moe_layers) * shape.num_experts:
            placed += staging(shape)
        placed += -(-max(budget.elsewhere(homes), default=0) // budget.expert_bytes)
        return placed <= budget.slots(homes)

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """Of the most experts on the device that fit, or of those that were asked for.

        Raises:
            BudgetError: these do not fit.
        """
        layers = shape.num_layers
        best = next((f for f in range(layers) if self.fits(f, shape, budget)), layers)
        self.first = best if self.n is None else self.count(min(self.n, layers), shape)
        if self.first < best:
            raise BudgetError(
                f"place.n={self.n}: {layers - self.first} layers with their experts do not fit on "
                f"the device; the best that fits is {self.count(best, shape)} (place.n=null)"
            )
        return self.homes_from(self.first, shape)

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """All experts from that layer on."""
        layers = [layer for layer in shape.moe_layers if layer >= self.first]
        too_many = max(0, len(layers) - slots // shape.num_experts)
        return experts_of(layers[too_many:], shape, scope)


@dataclass(kw_only=True)
class CpuMoE(StaticSplit):
    """--n-cpu-moe N: experts of the first N layers are on the host, all common weights are not."""

    flag = "--n-cpu-moe"

    def homes_from(self, first: int, shape: ModelShape) -> Sequence[Home]:
        """All on the device."""
        on_device: Home = "device"
        return (on_device,) * shape.num_layers

    def count(self, first: int, shape: ModelShape) -> int:
        """The layers before it; all of them is --cpu-moe."""
        return first


@dataclass(kw_only=True)
class GpuLayers(StaticSplit):
    """-ngl N: the last N layers are on the device, whole ones; the others are on the host."""

    flag = "-ngl"

    def homes_from(self, first: int, shape: ModelShape) -> Sequence[Home]:
        """On the host before that layer."""
        return ["host" if layer < first else "device" for layer in range(shape.num_layers)]

    def count(self, first: int, shape: ModelShape) -> int:
        """The layers from it on."""
        return shape.num_layers - first


@dataclass(kw_only=True)
class HostOrCopy(Assignment):
    """Absent experts are computed on the host, but for micro-batches of many rows.

    Attributes:
        min_batch: rows from which on a micro-batch copies what it uses to the device.
        micro_batch: rows that are computed at a time.
    """

    min_batch: int = 32
    micro_batch: int = 512

    reads_scores = False

    def __post_init__(self) -> None:
        require_at_least("assign", self, min_batch=1, micro_batch=1)

    @property
    def uses_host(self) -> bool:  # type: ignore[override]
        """For small batches."""
        return True

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """See whether copies have room."""
        self._copies = cache.slots >= staging(shape)

    def _large(self, rows: int) -> list[slice]:
        """The micro-batches that copy."""
        firsts = range(0, rows, self.micro_batch)
        parts = [slice(first, min(first + self.micro_batch, rows)) for first in firsts]
        return [part for part in parts if self._copies and part.stop - part.start >= self.min_batch]

    def host_copies(self, rows: int) -> int:
        """Once for each large micro-batch."""
        return len(self._large(rows))

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Copy what large micro-batches use, each anew; compute the rest where it is."""
        absent, copied = {*active.absent}, list[int]()
        for part in self._large(view.forward.rows):
            copied += sorted(absent.intersection(view.topk_ids_TK[part].ravel().tolist()))
        once = list(dict.fromkeys(copied))
        again = [e for at, e in enumerate(copied) if e in copied[:at]]
        host = [e for e in active.absent if e not in once]
        load = [Fetch(view.layer, e, keep=False) for e in once]
        return Plan([*active.resident, *active.in_flight, *once], host, (), load, again)


@dataclass(kw_only=True)
class LlamaCpp(System):
    """The complete system."""

    paper = "ggml-org/llama.cpp"

    place: Placement = field(default_factory=CpuMoE)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=HostOrCopy)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=OnlyNamed)
    overlap: bool = False
    pinned_copies: bool | None = False

    def why_not(self, shape: ModelShape, batch: int) -> str | None:
        """It has a file format of its own, and a converter for some families."""
        if shape.family == "xverse":
            return (
                "no GGUF file: llama.cpp's converter refuses XverseMoeForCausalLM (its xverse has "
                "no experts)"
            )
        if shape.family not in CONVERTED:
            return f"no GGUF file: {shape.family} is not among llama.cpp's MoE families"
        return super().why_not(shape, batch)

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """How llama.cpp would be called for this split."""
        said = ["llama.cpp is C++: --software lean is nearer to it than hf-eager"]
        if isinstance(self.place, StaticSplit):
            n = self.place.count(self.place.first, shape)
            said.append(f"llama.cpp {self.place.flag} {n}, of {shape.num_layers} layers")
        return said
