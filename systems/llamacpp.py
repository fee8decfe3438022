"""llama.cpp: a static split of layers; weights on the host are computed on the host.

ggml-org/llama.cpp, the baseline that most papers omit.  It has no cache and no prediction, and
moves no experts in decode: its graph is split by the location of weights; splits run in order.

    llama.cpp                        moebench
    ─────────                        ────────
    --n-cpu-moe N, --cpu-moe         CpuMoE: experts of the first N layers on the host, all else on
                                       the device (``place=n-cpu-moe``)
    -ngl N                           GpuLayers: the last N layers on the device; the others, with
                                       attention and KV cache, on the host (``place=ngl``)
    --fit on                         Fit: the first layers' experts on the device (``place=fit``)
    -ot REGEX=CPU                    Override: experts of matching layers on the host
                                       (``place=override``, ``place.host``)
    op offload, for 32 rows and      HostOrCopy: used experts are copied, computed on the device and
      more (PR #15346)                 dropped; ``assign.min_batch``, GGML_OP_OFFLOAD_MIN_BATCH
    micro-batches (-ub 512)          ``assign.micro_batch``: each repeats the copies (Plan.again)
    -t N                             ``threads``; by default one for each core
    a split of the graph             ``host_together``: the host computes a layer's experts with one
                                       hand-over
    splits run in order              ``overlap=False``
    mmap: weights are pageable       ``pinned_copies=False``; --no-mmap is ``pinned_copies=true``

The default placement is --n-cpu-moe with the best N that fits, as a user would tune it, in the
bytes that every other system has; `place.n` sets it.  llama.cpp without flags does ``place=fit``
(`systems.llamacpp_place`).  Copied experts also need room: llama.cpp allocates one tensor at a
time, a matrix of all experts of a layer; so slots for a third of a layer stay free.  Its kind of
software is `--software ggml`; ik_llama.cpp, which has the same placements, is `--software ik`.

Deviations and readings:

- Recent builds count the head as one of -ngl's N; in moebench N counts layers, and the head and the
  embedding (which llama.cpp leaves on the host) are always on the device, in place of experts.
- A prompt's rows are split into micro-batches, sequence by sequence.  If the last one is too small
  for copies, experts that it alone uses are computed on the host; its other rows, and its part of
  the non-expert weights of -ngl, are charged with the micro-batches before.
- Attention of a large batch with -ngl is computed on the device; llama.cpp leaves the products with
  the KV cache to the host.
- Without room for a third of a layer the host computes prompts, too (--no-op-offload).
- Where experts are read from the disk, each of them has its own hand-over to the host.
- llama.cpp's control thread is C++.  moebench charges the costs of the run's kind of software;
  `--software ggml` is llama.cpp's.
- Weights have the run's precision; quantised files are other runs (`--precision 4bit`).
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from moebench.substrate.choices import HostKernels
from moebench.substrate.engine.decisions import Active, Fetch, LayerView, Plan
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.errors import BudgetError
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.memory.capacity import Budget, Home
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.evict import OnlyNamed
from moebench.systems.policies.place import experts_of
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting

#: Model families of llama.cpp's converter, by ``model_type``.  Sources: the map of
#: conversion/__init__.py at 00bdaa1; mistral3.py at 32e9e04 (mistral4); Kimi K2 has DeepSeek-V3's
#: architecture.  XVERSE-MoE is not among them: the converter maps XverseForCausalLM, whose graph
#: has no experts.
CONVERTED = frozenset({
    "bailing_moe_v2", "deepseek", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe", "gemma4",
    "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "granitemoehybrid", "hunyuan_v1_moe",
    "kimi_k2", "llama4_text", "minimax_m2", "mistral4", "mixtral", "nemotron_h", "olmoe", "phimoe",
    "qwen2_moe", "qwen3_5_moe", "qwen3_moe", "qwen3_next", "step3p5",
    # Converters in files of their own, newer than that map: laguna.py at 051139f, qwen4exp.py at
    # 0a32c5e, glm5next.py at e972e2c; DeepseekV4ForCausalLM in deepseek.py at 01a723d.
    "deepseek_v4", "glm5_next", "laguna", "qwen4_exp",
    # llama.cpp's architectures of models read from a GGUF file, where they have other names.
    "deepseek2", "deepseek4", "glm5next", "qwen4exp",
})  # fmt: skip


def no_gguf(shape: ModelShape) -> str | None:
    """Return why llama.cpp's converter has no GGUF file for a model; None if it has one."""
    if shape.family == "xverse":
        return (
            "no GGUF file: llama.cpp's converter refuses XverseMoeForCausalLM (its xverse has "
            "no experts)"
        )
    if shape.family not in CONVERTED:
        return f"no GGUF file: {shape.family} is not among llama.cpp's MoE families"
    return None


def staging(shape: ModelShape) -> int:
    """Return the slots for copied experts: one of the three matrices of each expert of a layer."""
    return -(-shape.num_experts // 3)


def shared_staging(shape: ModelShape, cache: ExpertCache) -> int:
    """Return the slots that stay free for copies beside a cache; 0 where each layer has its own."""
    return min(staging(shape), cache.slots) if cache.scope == "global" else 0


class Split(Placement):
    """Base of llama.cpp's static placements, which it spells as flags."""

    leaves_slots = True

    @abstractmethod
    def flags(self, shape: ModelShape) -> str:
        """Return llama.cpp's flags for the placement, and what they do, for a run's notes."""

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return the most experts on the device, after `homes`; None is all that fit."""
        return None


@dataclass(kw_only=True)
class StaticSplit(Split):
    """Base of splits at a layer: all experts of the layers from ``first`` on are on the device.

    Option ``n`` is N of llama.cpp's command-line ``flag``; None is the best that fits.
    """

    n: int | None = option(None, low=0, searched=(0, 64))

    shares_slots = True

    flag: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        #: The first layer whose experts are on the device, set by `homes`.
        self.first = 0

    @abstractmethod
    def homes_from(self, first: int, shape: ModelShape) -> Sequence[Home]:
        """Return the locations of non-expert weights if ``first`` is the first device layer."""

    @abstractmethod
    def count(self, first: int, shape: ModelShape) -> int:
        """Convert the first device layer to N, or N to the first device layer."""

    def flags(self, shape: ModelShape) -> str:
        """Return the flag with its N."""
        return f"{self.flag} {self.count(self.first, shape)}, of {shape.num_layers} layers"

    def fits(self, first: int, shape: ModelShape, budget: Budget) -> bool:
        """Return whether the device holds these layers and the copies of the others' experts."""
        homes = self.homes_from(first, shape)
        placed = sum(layer >= first for layer in shape.moe_layers) * shape.num_experts
        if placed < len(shape.moe_layers) * shape.num_experts:
            placed += staging(shape)
        placed += -(-max(budget.elsewhere(homes), default=0) // budget.expert_bytes)
        return placed <= budget.slots(homes)

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """Return locations of non-expert weights for the given N, which must fit, or the best."""
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
        """Return all experts of the layers from ``first`` on, as far as they fit."""
        layers = [layer for layer in shape.moe_layers if layer >= self.first]
        too_many = max(0, len(layers) - slots // shape.num_experts)
        return experts_of(layers[too_many:], shape, scope)


@dataclass(kw_only=True)
class CpuMoE(StaticSplit):
    """--n-cpu-moe N: the first N layers' experts are on the host, everything else on the device."""

    flag = "--n-cpu-moe"

    def homes_from(self, first: int, shape: ModelShape) -> Sequence[Home]:
        """Return ``device`` for every layer."""
        on_device: Home = "device"
        return (on_device,) * shape.num_layers

    def count(self, first: int, shape: ModelShape) -> int:
        """Return the number of layers before the first device layer; all layers is --cpu-moe."""
        return first


@dataclass(kw_only=True)
class GpuLayers(StaticSplit):
    """-ngl N: the last N layers are on the device, whole ones; the others are on the host."""

    flag = "-ngl"

    def homes_from(self, first: int, shape: ModelShape) -> Sequence[Home]:
        """Return ``host`` before the first device layer, ``device`` from it on."""
        return ["host" if layer < first else "device" for layer in range(shape.num_layers)]

    def count(self, first: int, shape: ModelShape) -> int:
        """Return the number of layers from the first device layer on."""
        return shape.num_layers - first


@dataclass(kw_only=True)
class HostOrCopy(Assignment):
    """Computes absent experts on the host, but copies them for micro-batches of many rows.

    Attributes:
        min_batch: fewest rows of a micro-batch that copies its experts to the device
            (GGML_OP_OFFLOAD_MIN_BATCH).
        micro_batch: most rows that are computed at a time (-ub).
    """

    min_batch: int = option(32, low=1, searched=(1, 512), scale="log")
    micro_batch: int = option(512, low=1, searched=(64, 4096), scale="log")

    loads = "passing"

    reads_scores = False
    uses_host = True

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Check whether the device has room for copies."""
        self._copies = cache.slots >= staging(shape)

    def _large(self, rows: int) -> list[slice]:
        """Return the micro-batches that copy experts to the device."""
        firsts = range(0, rows, self.micro_batch)
        parts = [slice(first, min(first + self.micro_batch, rows)) for first in firsts]
        return [part for part in parts if self._copies and part.stop - part.start >= self.min_batch]

    def host_copies(self, rows: int) -> int:
        """Return one copy for each large micro-batch."""
        return len(self._large(rows))

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Copy the experts of large micro-batches, for each anew; compute the others in place."""
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
    """llama.cpp with experts of the first layers on the host (--n-cpu-moe).

    Attributes:
        threads: of the host, which compute experts (-t); None is one for each core, and more than
            the machine's cores count as so many.
    """

    paper = "ggml-org/llama.cpp"

    place: Placement = field(default_factory=CpuMoE)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=HostOrCopy)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=OnlyNamed)
    overlap: bool = False
    pinned_copies: bool | None = False
    host_kernels: HostKernels = "fused"
    host_together: bool = True
    threads: int | None = option(None, low=1, searched=(1, 64), scale="log")

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return the most experts that the placement keeps on the device; None is all that fit."""
        return self.place.most_slots(shape) if isinstance(self.place, Split) else None

    def why_not(self, shape: ModelShape, batch: int) -> str | None:
        """Return why llama.cpp's converter has no GGUF file for the model, or None."""
        return no_gguf(shape) or super().why_not(shape, batch)

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return notes with llama.cpp's flags for this split."""
        said = ["llama.cpp is C++: its kind of software is --software ggml, ik_llama.cpp's ik"]
        if isinstance(self.place, Split):
            said.append(f"llama.cpp {self.place.flags(shape)}")
        return said
