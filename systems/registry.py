"""Registry of all systems and policies by name; their modules are imported on first use.

    system_class("smoe")
    system_class("smoe", "shipped")
    make("evict", "lru")

`moebench.systems.plugins` finds systems of other installed packages by name.

A policy of one paper is defined in that paper's file and also listed here, so that any system can
use it: `moebench run --system moe-ondemand --set evict=score`.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.systems.dynamic_imports import recorded
from moebench.systems.plugins import Plugins, plugins

if TYPE_CHECKING:
    from moebench.substrate.engine.policies import Policy
    from moebench.substrate.engine.system import System
    from moebench.systems.native.base import NativeSystem

#: name → (module in this package, class, one line)
SYSTEMS: dict[str, tuple[str, str, str]] = {
    "gpu-only": ("baselines", "GpuOnly", "everything resident on the device: no offloading"),
    "moe-ondemand": ("baselines", "MoEOnDemand", "load after the gate, LRU, no prefetch"),
    "acc": ("baselines", "ACC", "copy after the gate, compute, drop: pageable, nothing beside it"),
    "moesys": ("moesys", "MoESys", "fetch all experts of the next layer, two layer buffers"),
    "ktransformers": ("ktransformers", "KTransformers",
        "hot experts resident, the others on the host, none moved in decode"),
    "kt-kernel": ("kt_kernel", "KTKernel",
        "the code of kTransformers: N fixed residents, hybrid or layer-wise chunks"),
    "exllamav3-mcs": ("exllamav3_mcs", "ExLlamaV3Split",
        "each layer split between device and host; misses promoted to spare slots"),
    "accelerate": ("accelerate", "Accelerate",
        "device map in layer order, each module brought for each use"),
    "deepspeed": ("deepspeed", "DeepSpeed", "ZeRO-Inference: layers streamed in recorded order"),
    "deepspeed-mii": ("deepspeed", "DeepSpeedMII",
        "resident, or streamed by ZeRO-Inference where it does not fit"),
    "llamacpp": ("llamacpp", "LlamaCpp",
        "static layers on the device, the rest computed on the host"),
    "llamacpp-moe-cache": ("llamacpp_moe_cache", "LlamaCppMoeCache",
        "hits on the device beside misses on the host, copies after the second miss"),
    "llamacpp-capped-lru": ("llamacpp_capped_lru", "LlamaCppCappedLRU",
        "an LRU in each layer, two uploads a layer and step"),
    "smoe": ("smoe", "SMoE", "substitute low-score experts, prefetch top-score ones"),
    "daop": ("daop", "DAOP", "swap in prefill, compute on the host one layer ahead"),
    "duoserve": ("duoserve", "DuoServe", "stream through k slots, a learned path ahead"),
    "flashmoe": ("flashmoe", "FlashMoE", "experts on disk, a learned eviction a layer"),
    "promoe": ("promoe", "ProMoE",
        "learnt predictors two layers ahead, in chunks that give way to needed loads"),
    "finemoe": ("finemoe", "FineMoE", "fetch and evict by the most similar of past iterations"),
    "pregated-moe": ("pregated_moe", "PreGatedMoE",
        "each gate chooses for the next layer: timed with an oracle, on replays alone"),
    "belady": ("belady", "BeladyBound",
        "the offline bound: exact prediction, Belady's eviction, on replays alone"),
    "moe-infinity": ("moe_infinity", "MoEInfinity",
        "prefetch and evict by the most similar past requests"),
    "mixtral-offloading": ("mixtral_offloading", "MixtralOffloading",
        "LRU in each layer, the next gate's experts into shared buffers"),
    "adapmoe": ("adapmoe", "AdapMoE",
        "drop what matters little, divide slots by expected loads, fetch one expert ahead"),
    "hybrimoe": ("hybrimoe", "HybriMoE",
        "simulate each layer over CPU, GPU and link; prefetch by impact"),
    "fiddler": ("fiddler", "Fiddler",
        "popular experts stay; load the others or compute on the host"),
    "dali": ("dali", "DALI",
        "a greedy 0-1 program divides each layer; fetch the expert with most predicted tokens"),
    "hobbit": ("hobbit", "HOBBIT",
        "missing experts with low scores come as int4 or are skipped; four-term eviction"),
    "swapmoe": ("swapmoe", "SwapMoE",
        "tokens use residents alone, the most important experts are swapped in behind them"),
    "sida": ("sida", "SiDA",
        "a network predicts every layer's experts from the tokens, before a pass"),
    "edgemoe": ("edgemoe", "EdgeMoE",
        "one width per expert, preloading by activation paths, use over distance"),
    "lfru": ("lfru", "LFRUCache",
        "every miss copied to its layer's slots, the least uses by age evicted"),
    "cache-prior": ("cache_prior", "CachePriorSystem",
        "the router favours experts on the device, LRU a layer"),
    "freetoken": ("freetoken", "FreeToken",
        "one LRU for all layers; misses divided between link and host by bandwidth"),
    "pinned-profile": ("pinned_profile", "PinnedProfile",
        "the most used experts of each layer pinned, the others computed on the host"),
    "flexgen": ("flexgen", "FlexGen",
        "a fixed share of every layer stays, the rest streams through two layer buffers"),
    "moe-lightning": ("moe_lightning", "MoELightning",
        "micro-batches: attention on the host, the next layer's experts in pages between them"),
    "qvac-lru": ("qvac_lru", "QvacLRU",
        "one LRU of whole experts, every miss fetched, large dispatches bypass it"),
}  # fmt: skip

#: Variant of a system: the algorithm of its paper, or of an engine's newest version; the behaviour
#: of the paper's authors' code where it differs; an engine's earlier version.
Variant = Literal["published", "shipped", "earlier"]

#: Systems whose authors' code differs from their paper: name → (module, class, one line).
SHIPPED: dict[str, tuple[str, str, str]] = {
    "smoe": ("smoe_shipped", "ShippedSMoE",
        "substitutes in set order, FIFO, one prefetch, unfinished copies"),
    "daop": ("daop_shipped", "ShippedDAOP",
        "swaps paired by position, a placeholder in prefill, copies that block"),
    "moe-infinity": ("moe_infinity_shipped", "ShippedMoEInfinity",
        "on demand, one queue by id, the fewest visits ever leave"),
    "mixtral-offloading": ("mixtral_offloading_shipped", "ShippedMixtralOffloading",
        "no speculation; each load copies an expert back, and no copy overlaps"),
    "hybrimoe": ("hybrimoe_shipped", "ShippedHybriMoE",
        "a two-ended greedy by constants, staged prefill, no prefetch in decode"),
    "fiddler": ("fiddler_shipped", "ShippedFiddler",
        "constants for costs, their least sum, nothing overlaps"),
    "sida": ("sida", "ShippedSiDA",
        "all experts that are not predicted go back first, and every copy blocks"),
}  # fmt: skip

#: Engines of which an earlier version decided otherwise: name → (module, class, one line).
EARLIER: dict[str, tuple[str, str, str]] = {
    "exllamav3-mcs": ("exllamav3_mcs", "EarlierExLlamaV3Split",
        "1.4.x: each layer split, a sweep of exchanges every 128 passes"),
    "freetoken": ("freetoken", "EarlierFreeToken",
        "August's code: hybrid by itself where the host is twice as fast as the link"),
    "llamacpp-moe-cache": ("llamacpp_moe_cache", "EarlierMoeCache",
        "a copy at the first miss, and at one miss in eight when full"),
}  # fmt: skip

#: The tables of systems by variant.
VARIANTS: dict[Variant, dict[str, tuple[str, str, str]]] = {
    "published": SYSTEMS, "shipped": SHIPPED, "earlier": EARLIER,
}  # fmt: skip

#: Third-party packages that run a checkpoint themselves, on this computer: name → (module, class,
#: one line).  They do not consist of decisions, and ``all`` does not include them.
NATIVE: dict[str, tuple[str, str, str]] = {
    "native-accelerate": ("native.accelerate", "NativeAccelerate",
        "the package itself: weights on the disk or the host, brought by hooks"),
    "native-deepspeed": ("native.deepspeed", "NativeDeepSpeed",
        "the package itself: ZeRO-Inference from NVMe or the host"),
    "native-llamacpp": ("native.llamacpp", "NativeLlamaCpp",
        "the package itself: a GGUF file, mapped"),
}  # fmt: skip

#: decision → name → (module in this package, or in ``substrate``, and class)
POLICIES: dict[str, dict[str, tuple[str, str]]] = {
    "place": {
        "by-id": ("policies.place", "PlaceById"),
        "by-layer": ("smoe_shipped", "PlaceByLayer"),
        "front-loading": ("policies.place", "PlaceByFirstLayers"),
        "random": ("policies.place", "PlaceAtRandom"),
        "popular": ("policies.place", "PlacePopular"),
        "activation": ("daop", "PlaceByActivation"),
        "last-ids": ("policies.place", "PlaceLastIds"),
        "split": ("adapmoe", "PlaceBySplit"),
        "device-map": ("accelerate", "DeviceMap"),
        "kt-uniform": ("kt_kernel", "PlaceUniform"),
        "kt-frequency": ("kt_kernel", "PlaceByFrequency"),
        "kt-front-loading": ("kt_kernel", "PlaceFrontLoading"),
        "kt-random": ("kt_kernel", "PlaceShuffled"),
        "tail-on-host": ("exllamav3_mcs", "TailOnHost"),
        "cold-on-host": ("exllamav3_mcs", "ColdOnHost"),
        "n-cpu-moe": ("llamacpp", "CpuMoE"),
        "ngl": ("llamacpp", "GpuLayers"),
        "fit": ("llamacpp_place", "Fit"),
        "override": ("llamacpp_place", "Override"),
        "moe-cache": ("llamacpp_moe_cache", "CacheSlots"),
        "layer-slots": ("llamacpp_capped_lru", "LayerSlots"),
        "streamed": ("deepspeed", "Streamed"),
        "resident-or-streamed": ("deepspeed", "ResidentOrStreamed"),
        "percent": ("flexgen", "ByPercent"),
        "flexgen-lp": ("flexgen", "ByLinearProgram"),
        "share-of-each-layer": ("moe_lightning", "ShareOfEachLayer"),
        "none": ("policies.place", "PlaceNothing"),
        "slot-pools": ("freetoken", "SlotPools"),
        "pinned-profile": ("pinned_profile", "PinTopOfEachLayer"),
        "threshold-ilp": ("policies.place_threshold", "PlaceAboveThreshold"),
        "virtual-experts": ("swapmoe", "VirtualExperts"),
        "one-width": ("edgemoe", "OneWidthEach"),
    },
    "route": {
        "exact": ("policies.route", "ExactRouting"),
        "random": ("policies.route", "RandomSubstitution"),
        "expert-cache": ("smoe", "ExpertCacheRouter"),
        "set-order": ("smoe_shipped", "SetOrderRouter"),
        "predicted": ("daop", "PredictedRouting"),
        "adaptive": ("adapmoe", "AdaptiveGating"),
        "skip-missing": ("hobbit", "SkipMissing"),
        "cache-prior": ("cache_prior", "CachePrior"),
        "masked": ("swapmoe", "MaskedGating"),
        "hash-function": ("sida", "HashRouting"),
    },
    "assign": {
        "load": ("policies.assign", "LoadAll"),
        "host-or-copy": ("llamacpp", "HostOrCopy"),
        "beside-host": ("llamacpp_moe_cache", "BesideHost"),
        "published-copies": ("llamacpp_capped_lru", "PublishedCopies"),
        "one-use": ("policies.assign", "LoadForOneUse"),
        "host": ("policies.assign", "HostAll"),
        "balanced": ("policies.assign", "Balanced"),
        "optimal": ("policies.assign", "Optimal"),
        "earliest-end": ("policies.assign_control", "EarliestEnd"),
        "one-ended": ("smoe_shipped", "OneEnded"),
        "hybrid": ("ktransformers", "Hybrid"),
        "hybrid-chunked": ("kt_kernel", "ChunkedHybrid"),
        "split-by-residence": ("exllamav3_mcs", "SplitByResidence"),
        "by-sequence": ("daop", "AllocateBySequence"),
        "queue-by-id": ("moe_infinity_shipped", "QueueById"),
        "by-sequence-shipped": ("daop_shipped", "AllocateAsShipped"),
        "makespan": ("hybrimoe", "MakespanSchedule"),
        "two-ended": ("hybrimoe_shipped", "TwoEnded"),
        "greedy": ("dali", "GreedyAssignment"),
        "by-precision": ("hobbit", "LoadByPrecision"),
        "load-or-compute": ("fiddler", "LoadOrCompute"),
        "load-or-compute-shipped": ("fiddler_shipped", "LoadOrComputeAsShipped"),
        "load-by-rank": ("lfru", "LoadByRank"),
        "bandwidth-split": ("freetoken", "BandwidthSplit"),
        "bandwidth-split-earlier": ("freetoken", "EarlierSplit"),
        "cache-or-bypass": ("qvac_lru", "CacheOrBypass"),
        "micro-batches": ("moe_lightning", "InMicroBatches"),
    },
    "prefetch": {
        "none": ("policies.prefetch", "NoPrefetch"),
        "next-gate": ("policies.prefetch", "NextGate"),
        "next-exact": ("policies.prefetch", "NextExact"),
        "pre-gate": ("pregated_moe", "FetchChosen"),
        "whole-layer": ("moesys", "WholeLayer"),
        "block-schedule": ("flexgen", "BlockSchedule"),
        "paged-layers": ("moe_lightning", "PagedLayers"),
        "recorded": ("deepspeed", "RecordedOrder"),
        "top-score": ("smoe", "TopScorePrefetch"),
        "first-predicted": ("smoe_shipped", "FirstPredicted"),
        "first-missing": ("adapmoe", "FirstMissing"),
        "expert-mlp": ("duoserve", "LearnedPath"),
        "activation-match": ("moe_infinity", "MatchedPrefetch"),
        "impact": ("hybrimoe", "ImpactDriven"),
        "after-next": ("hybrimoe_shipped", "AfterNext"),
        "stride": ("promoe", "StridePrefetch"),
        "expert-map": ("finemoe", "MatchedMaps"),
        "residual": ("dali", "ResidualPrefetch"),
        "stacked-gates": ("hobbit", "StackedGates"),
        "fate": ("lfru", "Fate"),
        "activation-paths": ("edgemoe", "ActivationPaths"),
        "two-buffers": ("freetoken", "TwoBuffers"),
        "predicted-union": ("sida", "PredictedUnion"),
    },
    "admit": {
        "all": ("substrate.engine.system", "AdmitAll"),
        "after-misses": ("policies.admit", "AfterMisses"),
        "hit-sweep": ("exllamav3_mcs", "HitSweep"),
        "promote-on-miss": ("exllamav3_mcs", "PromoteOnMiss"),
        "moe-cache": ("llamacpp_moe_cache", "MissCounts"),
        "every-nth": ("llamacpp_moe_cache", "EveryNth"),
        "capped": ("llamacpp_capped_lru", "Capped"),
        "important-swaps": ("swapmoe", "ImportantSwaps"),
    },
    "evict": {
        "static": ("policies.evict", "NeverEvict"),
        "only-named": ("policies.evict", "OnlyNamed"),
        "lru": ("policies.evict", "LeastRecentlyUsed"),
        "row-lru": ("llamacpp_moe_cache", "RowLRU"),
        "heat": ("llamacpp_moe_cache", "Heat"),
        "layer-lru": ("llamacpp_capped_lru", "LayerLRU"),
        "lfu": ("policies.evict", "LeastFrequentlyUsed"),
        "staged-lru": ("policies.evict_staged", "StagedLRU"),
        "fifo": ("policies.evict", "FirstInFirstOut"),
        "lifo": ("policies.evict", "LastInFirstOut"),
        "arc": ("policies.caches", "AdaptiveReplacement"),
        "lecar": ("policies.caches", "LeastRegret"),
        "belady": ("policies.evict_belady", "Belady"),
        "flashmoe": ("flashmoe", "LearnedEviction"),
        "score": ("policies.evict", "LowestAverageScore"),
        "mrs": ("hybrimoe", "MinusRecentScore"),
        "mrs-shipped": ("hybrimoe_shipped", "LowestOfItsLayer"),
        "least-expected": ("finemoe", "LeastExpected"),
        "load-order": ("smoe_shipped", "LoadOrder"),
        "activation-aware": ("moe_infinity", "ActivationAware"),
        "fewest-visits": ("moe_infinity_shipped", "FewestVisits"),
        "dali-swap": ("dali", "WorkloadSwaps"),
        "multidimensional": ("hobbit", "Multidimensional"),
        "only-swapped": ("swapmoe", "OnlySwapped"),
        "swap": ("daop", "OnlySwaps"),
        "swap-placeholder": ("daop_shipped", "SwapsAndPlaceholder"),
        "placeholder": ("policies.evict", "OnePlaceholder"),
        "lfru": ("policies.evict_engines", "LFRU"),
        "least-stale": ("policies.evict_engines", "LeastStale"),
        "dali-window": ("policies.evict_engines", "WorkloadAware"),
        "lru-by-weight": ("cache_prior", "LRUByWeight"),
        "oldest-call": ("freetoken", "OldestCall"),
        "frequency-distance": ("edgemoe", "FrequencyOverDistance"),
        "dispatch-lru": ("qvac_lru", "DispatchLRU"),
        "first-not-predicted": ("sida", "FirstNotPredicted"),
        "next-use": ("next_use", "FarthestNextUse"),
        "guarded-lru": ("policies.evict_guarded", "GuardedLRU"),
        "guarded-lfu": ("policies.evict_guarded", "GuardedLFU"),
        "guarded-score": ("policies.evict_guarded", "GuardedScore"),
        "guarded-next-use": ("next_use", "GuardedNextUse"),
    },
}

DECISIONS = tuple(POLICIES)


def installed() -> Plugins:
    """Return the systems of other installed packages."""
    return plugins(SYSTEMS.keys())


def variants_of(name: str) -> tuple[Variant, ...]:
    """Return the variants in which a system exists."""
    others: list[Variant] = ["shipped", "earlier"]
    return ("published", *(v for v in others if name in VARIANTS[v]))


def _module(listed: str) -> str:
    """Return the full name of a module of the tables above."""
    return f"moebench.{listed}" if listed.startswith("substrate.") else f"moebench.systems.{listed}"


def _listed(module: str, name: str) -> Any:
    return getattr(import_module(_module(module)), name)


def system_class(name: str, variant: str = "published") -> "type[System]":
    """Return the class of a system's name, or of ``module:Class`` for one of your own.

    Raises:
        UnknownNameError: the system does not exist.
        UsageError: a foreign class cannot be imported, or the system does not have the variant.
    """
    if variant not in get_args(Variant):
        raise UsageError(f"--variant {variant}: allowed: {', '.join(get_args(Variant))}")
    if variant == "published" and ":" in name:
        return _foreign(name, f"--system {name}", _import_here)
    known = VARIANTS[cast(Variant, variant)]
    if name not in known:
        return _plugged_in(name, variant)
    return cast("type[System]", _listed(*known[name][:2]))


def needs_import(system: str, overrides: Mapping[str, str]) -> bool:
    """Return whether building a system imports code that does not ship with moebench.

    Readers of stored runs build no such system: a store may come from anybody.
    """
    return not (system in SYSTEMS or system in NATIVE) or any(
        ":" in str(value) for value in overrides.values()
    )


def native_class(name: str) -> "type[NativeSystem]":
    """Return the adapter class of a third-party package, by a name in `NATIVE`."""
    return cast("type[NativeSystem]", _listed(*NATIVE[name][:2]))


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
            f"--variant {variant}: {name} has none; systems that have one: "
            + (", ".join(VARIANTS[cast(Variant, variant)]) or "none")
        )
    plugin = found.usable[name]
    return _foreign(plugin.value, f"--system {name} (of {plugin.package})")


def _import_here(module: str) -> ModuleType:
    """Import a module, from the current folder if it is there.

    What it imports is looked up among libraries first: a file of the current folder with the name
    of a library would replace it for moebench too.
    """
    top, here = module.partition(".")[0], str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    spec = None if top in sys.modules else PathFinder.find_spec(top, [here])
    if spec is not None and spec.loader is not None:
        sys.modules[top] = found = module_from_spec(spec)
        try:
            spec.loader.exec_module(found)
        except BaseException:
            del sys.modules[top]
            raise
    return import_module(module)


def _foreign(
    value: str, said: str, load: Callable[[str], ModuleType] = import_module
) -> "type[System]":
    """Return the class ``module:Class`` of a foreign module; errors name the option ``said``."""
    from moebench.substrate.engine.system import System

    module, _, attribute = value.partition(":")
    try:
        with recorded():
            found = getattr(load(module), attribute, None)
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
    """Return the class of a policy's name; refuse a name that this decision does not have."""
    if decision not in POLICIES:
        raise UnknownNameError("decision", decision, POLICIES)
    known = POLICIES[decision]
    if name not in known:
        raise UnknownNameError(f"{decision} policy", name, known)
    return cast("type[Policy]", _listed(*known[name]))


def make(decision: str, name: str, **options: Any) -> "Policy":
    """Return a policy by name, with its options."""
    return policy_class(decision, name)(**options)


def name_of(decision: str, policy: "Policy") -> str:
    """Return a policy's name in the registry, or its class name if it is not listed."""
    kind = type(policy)
    for name, (module, attribute) in POLICIES[decision].items():
        if (kind.__module__, kind.__name__) == (_module(module), attribute):
            return name
    return kind.__name__
