"""Registry of all systems and policies by name; their modules are imported on first use.

    system_class("smoe")
    system_class("smoe", "shipped")
    make("evict", "lru")

`moebench.systems.plugins` finds systems of other installed packages by name.

A policy of one paper is defined in that paper's file and also listed here, so that any system can
use it: `moebench run --system moe-ondemand --set evict=score`.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.systems.plugins import Plugins, plugins

if TYPE_CHECKING:
    from moebench.substrate.engine.policies import Policy
    from moebench.substrate.engine.system import System
    from moebench.systems.native.base import NativeSystem

#: name → (module, class, one line)
SYSTEMS: dict[str, tuple[str, str, str]] = {
    "gpu-only": (
        "moebench.systems.baselines",
        "GpuOnly",
        "everything resident on the device: no offloading",
    ),
    "moe-ondemand": (
        "moebench.systems.baselines",
        "MoEOnDemand",
        "load after the gate, LRU, no prefetch",
    ),
    "acc": (
        "moebench.systems.baselines",
        "ACC",
        "copy after the gate, compute, drop: pageable, nothing beside it",
    ),
    "moesys": (
        "moebench.systems.moesys",
        "MoESys",
        "fetch all experts of the next layer, two layer buffers",
    ),
    "ktransformers": (
        "moebench.systems.ktransformers",
        "KTransformers",
        "hot experts resident, the others on the host, none moved in decode",
    ),
    "accelerate": (
        "moebench.systems.accelerate",
        "Accelerate",
        "device map in layer order, each module brought for each use",
    ),
    "deepspeed": (
        "moebench.systems.deepspeed",
        "DeepSpeed",
        "ZeRO-Inference: layers streamed in recorded order",
    ),
    "deepspeed-mii": (
        "moebench.systems.deepspeed",
        "DeepSpeedMII",
        "resident, or streamed by ZeRO-Inference where it does not fit",
    ),
    "llamacpp": (
        "moebench.systems.llamacpp",
        "LlamaCpp",
        "static layers on the device, the rest computed on the host",
    ),
    "smoe": (
        "moebench.systems.smoe",
        "SMoE",
        "substitute low-score experts, prefetch top-score ones",
    ),
    "daop": (
        "moebench.systems.daop",
        "DAOP",
        "swap in prefill, compute on the host one layer ahead",
    ),
    "duoserve": (
        "moebench.systems.duoserve",
        "DuoServe",
        "stream through k slots, a learned path ahead",
    ),
    "flashmoe": (
        "moebench.systems.flashmoe",
        "FlashMoE",
        "experts on disk, a learned eviction a layer",
    ),
    "promoe": (
        "moebench.systems.promoe",
        "ProMoE",
        "learnt predictors two layers ahead, in chunks that give way to needed loads",
    ),
    "finemoe": (
        "moebench.systems.finemoe",
        "FineMoE",
        "fetch and evict by the most similar of past iterations",
    ),
    "pregated-moe": (
        "moebench.systems.pregated_moe",
        "PreGatedMoE",
        "each gate chooses for the next layer: timed with an oracle, on replays alone",
    ),
    "belady": (
        "moebench.systems.belady",
        "BeladyBound",
        "the offline bound: exact prediction, Belady's eviction, on replays alone",
    ),
    "moe-infinity": (
        "moebench.systems.moe_infinity",
        "MoEInfinity",
        "prefetch and evict by the most similar past requests",
    ),
    "mixtral-offloading": (
        "moebench.systems.mixtral_offloading",
        "MixtralOffloading",
        "LRU in each layer, the next gate's experts into shared buffers",
    ),
    "adapmoe": (
        "moebench.systems.adapmoe",
        "AdapMoE",
        "drop what matters little, divide slots by expected loads, fetch one expert ahead",
    ),
    "hybrimoe": (
        "moebench.systems.hybrimoe",
        "HybriMoE",
        "simulate each layer over CPU, GPU and link; prefetch by impact",
    ),
    "fiddler": (
        "moebench.systems.fiddler",
        "Fiddler",
        "popular experts stay; load the others or compute on the host",
    ),
}

#: Variant of a system: the algorithm of its paper, or the behaviour of its authors' code.
Variant = Literal["published", "shipped"]

#: Systems whose authors' code differs from their paper: name → (module, class, one line).
SHIPPED: dict[str, tuple[str, str, str]] = {
    "smoe": (
        "moebench.systems.smoe_shipped",
        "ShippedSMoE",
        "substitutes in set order, FIFO, one prefetch, unfinished copies",
    ),
    "daop": (
        "moebench.systems.daop_shipped",
        "ShippedDAOP",
        "swaps paired by position, a placeholder in prefill, copies that block",
    ),
    "moe-infinity": (
        "moebench.systems.moe_infinity_shipped",
        "ShippedMoEInfinity",
        "on demand, one queue by id, the fewest visits ever leave",
    ),
    "mixtral-offloading": (
        "moebench.systems.mixtral_offloading_shipped",
        "ShippedMixtralOffloading",
        "no speculation; each load copies an expert back, and no copy overlaps",
    ),
    "hybrimoe": (
        "moebench.systems.hybrimoe_shipped",
        "ShippedHybriMoE",
        "a two-ended greedy by constants, staged prefill, no prefetch in decode",
    ),
    "fiddler": (
        "moebench.systems.fiddler_shipped",
        "ShippedFiddler",
        "constants for costs, their least sum, nothing overlaps",
    ),
}

#: Third-party packages that run a checkpoint themselves, on this computer: name → (module, class,
#: one line).  They do not consist of five decisions, and ``all`` does not include them.
NATIVE: dict[str, tuple[str, str, str]] = {
    "native-accelerate": (
        "moebench.systems.native.accelerate",
        "NativeAccelerate",
        "the package itself: weights on the disk or the host, brought by hooks",
    ),
    "native-deepspeed": (
        "moebench.systems.native.deepspeed",
        "NativeDeepSpeed",
        "the package itself: ZeRO-Inference from NVMe or the host",
    ),
    "native-llamacpp": (
        "moebench.systems.native.llamacpp",
        "NativeLlamaCpp",
        "the package itself: a GGUF file, mapped",
    ),
}

#: decision → name → (module, class)
POLICIES: dict[str, dict[str, tuple[str, str]]] = {
    "place": {
        "by-id": ("moebench.systems.policies.place", "PlaceById"),
        "by-layer": ("moebench.systems.smoe_shipped", "PlaceByLayer"),
        "front-loading": ("moebench.systems.policies.place", "PlaceByFirstLayers"),
        "random": ("moebench.systems.policies.place", "PlaceAtRandom"),
        "popular": ("moebench.systems.policies.place", "PlacePopular"),
        "activation": ("moebench.systems.daop", "PlaceByActivation"),
        "last-ids": ("moebench.systems.policies.place", "PlaceLastIds"),
        "split": ("moebench.systems.adapmoe", "PlaceBySplit"),
        "device-map": ("moebench.systems.accelerate", "DeviceMap"),
        "n-cpu-moe": ("moebench.systems.llamacpp", "CpuMoE"),
        "ngl": ("moebench.systems.llamacpp", "GpuLayers"),
        "streamed": ("moebench.systems.deepspeed", "Streamed"),
        "resident-or-streamed": ("moebench.systems.deepspeed", "ResidentOrStreamed"),
        "none": ("moebench.systems.policies.place", "PlaceNothing"),
    },
    "route": {
        "exact": ("moebench.systems.policies.route", "ExactRouting"),
        "expert-cache": ("moebench.systems.smoe", "ExpertCacheRouter"),
        "set-order": ("moebench.systems.smoe_shipped", "SetOrderRouter"),
        "predicted": ("moebench.systems.daop", "PredictedRouting"),
        "adaptive": ("moebench.systems.adapmoe", "AdaptiveGating"),
    },
    "assign": {
        "load": ("moebench.systems.policies.assign", "LoadAll"),
        "host-or-copy": ("moebench.systems.llamacpp", "HostOrCopy"),
        "one-use": ("moebench.systems.policies.assign", "LoadForOneUse"),
        "host": ("moebench.systems.policies.assign", "HostAll"),
        "balanced": ("moebench.systems.policies.assign", "Balanced"),
        "optimal": ("moebench.systems.policies.assign", "Optimal"),
        "one-ended": ("moebench.systems.smoe_shipped", "OneEnded"),
        "hybrid": ("moebench.systems.ktransformers", "Hybrid"),
        "by-sequence": ("moebench.systems.daop", "AllocateBySequence"),
        "queue-by-id": ("moebench.systems.moe_infinity_shipped", "QueueById"),
        "by-sequence-shipped": ("moebench.systems.daop_shipped", "AllocateAsShipped"),
        "makespan": ("moebench.systems.hybrimoe", "MakespanSchedule"),
        "two-ended": ("moebench.systems.hybrimoe_shipped", "TwoEnded"),
        "load-or-compute": ("moebench.systems.fiddler", "LoadOrCompute"),
        "load-or-compute-shipped": ("moebench.systems.fiddler_shipped", "LoadOrComputeAsShipped"),
    },
    "prefetch": {
        "none": ("moebench.systems.policies.prefetch", "NoPrefetch"),
        "next-gate": ("moebench.systems.policies.prefetch", "NextGate"),
        "next-exact": ("moebench.systems.policies.prefetch", "NextExact"),
        "pre-gate": ("moebench.systems.pregated_moe", "FetchChosen"),
        "whole-layer": ("moebench.systems.moesys", "WholeLayer"),
        "recorded": ("moebench.systems.deepspeed", "RecordedOrder"),
        "top-score": ("moebench.systems.smoe", "TopScorePrefetch"),
        "first-predicted": ("moebench.systems.smoe_shipped", "FirstPredicted"),
        "first-missing": ("moebench.systems.adapmoe", "FirstMissing"),
        "expert-mlp": ("moebench.systems.duoserve", "LearnedPath"),
        "activation-match": ("moebench.systems.moe_infinity", "MatchedPrefetch"),
        "impact": ("moebench.systems.hybrimoe", "ImpactDriven"),
        "after-next": ("moebench.systems.hybrimoe_shipped", "AfterNext"),
        "stride": ("moebench.systems.promoe", "StridePrefetch"),
        "expert-map": ("moebench.systems.finemoe", "MatchedMaps"),
    },
    "evict": {
        "static": ("moebench.systems.policies.evict", "NeverEvict"),
        "only-named": ("moebench.systems.policies.evict", "OnlyNamed"),
        "lru": ("moebench.systems.policies.evict", "LeastRecentlyUsed"),
        "lfu": ("moebench.systems.policies.evict", "LeastFrequentlyUsed"),
        "staged-lru": ("moebench.systems.policies.evict_staged", "StagedLRU"),
        "fifo": ("moebench.systems.policies.evict", "FirstInFirstOut"),
        "lifo": ("moebench.systems.policies.evict", "LastInFirstOut"),
        "arc": ("moebench.systems.policies.caches", "AdaptiveReplacement"),
        "lecar": ("moebench.systems.policies.caches", "LeastRegret"),
        "belady": ("moebench.systems.policies.evict_belady", "Belady"),
        "flashmoe": ("moebench.systems.flashmoe", "LearnedEviction"),
        "score": ("moebench.systems.policies.evict", "LowestAverageScore"),
        "mrs": ("moebench.systems.hybrimoe", "MinusRecentScore"),
        "mrs-shipped": ("moebench.systems.hybrimoe_shipped", "LowestOfItsLayer"),
        "least-expected": ("moebench.systems.finemoe", "LeastExpected"),
        "load-order": ("moebench.systems.smoe_shipped", "LoadOrder"),
        "activation-aware": ("moebench.systems.moe_infinity", "ActivationAware"),
        "fewest-visits": ("moebench.systems.moe_infinity_shipped", "FewestVisits"),
        "swap": ("moebench.systems.daop", "OnlySwaps"),
        "swap-placeholder": ("moebench.systems.daop_shipped", "SwapsAndPlaceholder"),
        "placeholder": ("moebench.systems.policies.evict", "OnePlaceholder"),
    },
}

DECISIONS = tuple(POLICIES)


def installed() -> Plugins:
    """Return the systems of other installed packages."""
    return plugins(SYSTEMS.keys())


def variants_of(name: str) -> tuple[Variant, ...]:
    """Return the variants in which a system exists."""
    return ("published", "shipped") if name in SHIPPED else ("published",)


def system_class(name: str, variant: str = "published") -> "type[System]":
    """Return the class of a system's name, or of ``module:Class`` for one of your own.

    Raises:
        UnknownNameError: the system does not exist.
        UsageError: a foreign module cannot be imported or lacks the class, or the system does not
            have the variant.
    """
    if variant not in get_args(Variant):
        raise UsageError(f"--variant {variant}: allowed: {', '.join(get_args(Variant))}")
    if variant == "published" and ":" in name:
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return _foreign(name, f"--system {name}")
    known = SYSTEMS if variant == "published" else SHIPPED
    if name not in known:
        return _plugged_in(name, variant)
    module, attribute, _ = known[name]
    return cast("type[System]", getattr(import_module(module), attribute))


def native_class(name: str) -> "type[NativeSystem]":
    """Return the adapter class of a third-party package, by a name in `NATIVE`."""
    module, attribute, _ = NATIVE[name]
    return cast("type[NativeSystem]", getattr(import_module(module), attribute))


def _plugged_in(name: str, variant: str) -> "type[System]":
    """Return the class of another package's system, or fail for an unknown name."""
    if name in NATIVE:
        raise UsageError(
            f"--system {name}: a package that runs by itself, without decisions of ours; it can "
            f"be run alone: moebench run --system {name} --machine local"
        )
    found = installed()
    if name in found.refused and name not in SYSTEMS:
        raise UsageError(f"--system {name}: {found.refused[name]}")
    if ":" not in name and name not in SYSTEMS and name not in found.usable:
        known = [*SYSTEMS, *NATIVE, *found.usable]
        raise UnknownNameError("system", name, known, "see: moebench list systems")
    if variant != "published":
        raise UsageError(
            f"--variant {variant}: {name} has none; systems that have one: {', '.join(SHIPPED)}"
        )
    plugin = found.usable[name]
    return _foreign(plugin.value, f"--system {name} (of {plugin.package})")


def _foreign(value: str, said: str) -> "type[System]":
    """Return the class ``module:Class`` of a module outside moebench.

    Args:
        said: the user's option, for error messages.
    """
    from moebench.substrate.engine.system import System

    module, _, attribute = value.partition(":")
    try:
        found = getattr(import_module(module), attribute, None)
    except (Exception, SystemExit) as error:  # importing such a module can raise anything
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"{said}: cannot import {module} ({reason})") from error
    if not (isinstance(found, type) and issubclass(found, System)):
        raise UsageError(
            f"{said}: {value} is not a System; write module:Class, where the class is a subclass "
            "of moebench.System"
        )
    return found


def policy_class(decision: str, name: str) -> "type[Policy]":
    """Return the class of a policy's name.

    Raises:
        UnknownNameError: the policy does not exist for this decision.
    """
    if decision not in POLICIES:
        raise UnknownNameError("decision", decision, POLICIES)
    known = POLICIES[decision]
    if name not in known:
        raise UnknownNameError(f"{decision} policy", name, known)
    module, attribute = known[name]
    return cast("type[Policy]", getattr(import_module(module), attribute))


def make(decision: str, name: str, **options: Any) -> "Policy":
    """Return a policy by name, with its options."""
    return policy_class(decision, name)(**options)


def name_of(decision: str, policy: "Policy") -> str:
    """Return a policy's name in the registry, or its class name if it is not listed."""
    for name, (module, attribute) in POLICIES[decision].items():
        if (type(policy).__module__, type(policy).__name__) == (module, attribute):
            return name
    return type(policy).__name__
