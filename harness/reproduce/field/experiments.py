"""The sweeps that the field's claims are measured from.

All cells are simulated on consumer machines of parts, with routing drawn from the model's recipe
where texts do not matter.  Link rates are set as ``+link.pinned_h2d=X`` (GB/s) after a machine.
"""

from typing import Any

from moebench.harness.reproduce.claim import CounterExperiment
from moebench.harness.reproduce.evidence import Experiment

#: The desktop of most cells, and one with a faster card, host and memory.
DESKTOP, FASTER = "rtx-3090+ryzen-5950x", "rtx-4090+ryzen-9-7950x"

_DRAWN: dict[str, Any] = {
    "workload": "passages", "routing": "drawn", "prompts": 2, "new_tokens": 48,
    "allow_overcommit": True,
}  # fmt: skip
_QUICK_SIZE = {"prompts": 1, "new_tokens": 32}
_SEEDS = [0, 1, 2]


def at_link(gb_s: float) -> str:
    """Return the desktop with another rate of pinned copies, in GB/s."""
    return f"{DESKTOP}+link.pinned_h2d={gb_s:g}"


def on_demand(**options: str) -> dict[str, Any]:
    """Return the baseline that loads misses with other policies in place of its own."""
    return {"system": "moe-ondemand", "set": options} if options else {"system": "moe-ondemand"}


# -----------------------------------------------------------------------------

#: Systems that differ in what a miss costs: a load, a product on the host, or the better of both.
SPEED_SYSTEMS: list[Any] = [
    on_demand(), on_demand(assign="host"), on_demand(assign="balanced"),
    on_demand(prefetch="next-gate"), "ktransformers", "fiddler", "mixtral-offloading", "llamacpp",
    "freetoken", "kt-kernel", "pinned-profile", "lfru",
]  # fmt: skip

SPEED = Experiment(
    "field hits and speed",
    {
        "common": _DRAWN,
        "product": {
            "model": ["olmoe-1b-7b", "qwen3-30b-a3b"], "machine": [DESKTOP, FASTER],
            "cache_ratio": [0.25, 0.5], "system": SPEED_SYSTEMS, "seed": [0, 1],
        },
    },
    quick={
        "common": _QUICK_SIZE,
        "product": {
            "model": ["olmoe-1b-7b"], "machine": [DESKTOP], "cache_ratio": [0.25], "seed": [0],
        },
    },
    numbers=("host.gemv_bandwidth", "link.in_engine_efficiency"),
)  # fmt: skip

# -----------------------------------------------------------------------------

#: Rates of the link, GB/s, and shares of experts on the device; at 1 nothing is ever copied.
LINKS = (3.0, 6.0, 12.0, 26.0, 55.0)
SHARES = (0.25, 0.5, 0.75, 0.9, 1.0)

PREFETCH = Experiment(
    "field prefetch by link",
    {
        "common": _DRAWN,
        "product": {
            "model": ["olmoe-1b-7b", "qwen1.5-moe-a2.7b", "mixtral-8x7b"],
            "machine": [at_link(rate) for rate in LINKS], "cache_ratio": [*SHARES],
            "system": [on_demand(), on_demand(prefetch="next-gate")], "seed": [0, 1],
        },
    },
    quick={
        "common": _QUICK_SIZE,
        "product": {
            "model": ["olmoe-1b-7b"], "machine": [at_link(rate) for rate in (3.0, 12.0, 55.0)],
            "seed": [0],
        },
    },
    numbers=("software.launch",),
)  # fmt: skip

# -----------------------------------------------------------------------------

#: Shares of resident experts; kTransformers stages a whole layer, which needs a sixteenth.
RESIDENT = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75)

#: Placement by frequency, and two that place again for each prompt.
BY_FREQUENCY: dict[str, Any] = {"system": "ktransformers"}
UPDATED: dict[str, Any] = {
    "system": "ktransformers", "set": {"assign.threshold": "64", "assign.update": "True"},
}  # fmt: skip
SWAPPED: dict[str, Any] = {
    "system": "ktransformers",
    "set": {"assign": "by-sequence", "evict": "swap"},
}

PLACEMENT = Experiment(
    "field placement",
    {
        "common": _DRAWN | {"few_shot": 5},
        "product": {
            "model": ["olmoe-1b-7b", "qwen3-30b-a3b"], "machine": [DESKTOP],
            "cache_ratio": [*RESIDENT], "system": [BY_FREQUENCY, UPDATED, SWAPPED],
            "seed": _SEEDS,
        },
    },
    quick={
        "common": _QUICK_SIZE,
        "product": {
            "model": ["olmoe-1b-7b"], "cache_ratio": [0.125, 0.25, 0.5, 0.75], "seed": [0],
        },
    },
    numbers=("host.gemv_bandwidth",),
)  # fmt: skip

#: Recorded texts of gpt-oss-20b, the only model of which many were recorded.
RECORDED = CounterExperiment(
    "recorded texts of gpt-oss-20b (data folder), in place of drawn routing",
    {
        "routing": "real", "model": "gpt-oss-20b", "workload": None, "few_shot": None,
        "prompts": 4, "seed": 0,
    },
    always=True,
)  # fmt: skip

# -----------------------------------------------------------------------------

#: Shares of OLMoE's experts that fit in memory beyond 1 GB, and their size in GB.
PAGED = (0.25, 0.375, 0.5)
OLMOE_GB = 12.88


def _paged(share: float) -> list[dict[str, Any]]:
    """Return learned and LRU eviction on the device, and the page cache with as many bytes."""
    learned: dict[str, Any] = {"system": "flashmoe", "cache_ratio": share}
    pages = round(1.0 + share * OLMOE_GB, 2)
    return [
        learned | {"set": {"evict": "flashmoe"}},
        learned | {"set": {"evict": "lru"}},
        {"system": "flashmoe", "set": {"evict": "lru", "scope": "global"}, "cache_ratio": None,
         "slots": 8, "free_host_gb": pages},
    ]  # fmt: skip


PAGES = Experiment(
    "field page cache",
    {
        "common": {
            "setting": "F1", "workload": "facts", "routing": "drawn", "prompts": 4,
            "new_tokens": 48, "calibrate_texts": 256,
        },
        "product": {"system": [one for share in PAGED for one in _paged(share)], "seed": _SEEDS},
    },
    quick={
        "common": {"prompts": 2, "new_tokens": 32, "calibrate_texts": 64},
        "product": {"system": _paged(0.375), "seed": [0]},
    },
    numbers=("disk.queue1_bandwidth", "link.pinned_h2d"),
)  # fmt: skip

# -----------------------------------------------------------------------------

ALPHAS = (0.0, 0.15, 0.3, 0.45, 0.6, 0.8, 1.0)
LAMBDAS = (0.0, 0.02, 0.04, 0.07, 0.1, 0.2, 0.5, 1.0)

FRONT = Experiment(
    "field routing fronts",
    {
        "common": {
            "model": "olmoe-1b-7b", "workload": "passages", "prompts": 6, "new_tokens": 32,
            "allow_overcommit": True, "machine": DESKTOP,
        },
        "product": {
            "system": [
                *({"system": "moe-ondemand", "set": {"route": "expert-cache"}, "alpha": alpha}
                  for alpha in ALPHAS),
                *({"system": "moe-ondemand", "set": {"route": "cache-prior"}, "alpha": value}
                  for value in LAMBDAS),
            ],
            "cache_ratio": [0.25, 0.5],
            "seed": [0, 1],
        },
    },
    quick={"common": {"prompts": 3, "new_tokens": 24}, "product": {"seed": [0]}},
)  # fmt: skip

# -----------------------------------------------------------------------------

#: Rates of the link, GB/s, which make the host 0.5 to 8 times as fast as the link.
SPLIT_LINKS = (90.0, 45.0, 30.0, 22.0, 15.0, 11.0, 6.0)

#: FreeToken's two modes: all misses are copied, or divided by the overlapped bandwidths.
OFFLOAD: dict[str, Any] = {"system": "freetoken", "set": {"assign.mode": "offload"}}
HYBRID: dict[str, Any] = {"system": "freetoken", "set": {"assign.mode": "hybrid"}}

SPLIT = Experiment(
    "field hybrid or offload",
    {
        "common": _DRAWN,
        "product": {
            "model": ["olmoe-1b-7b", "qwen3-30b-a3b"], "cache_ratio": [0.25],
            "machine": [at_link(rate) for rate in SPLIT_LINKS], "system": [OFFLOAD, HYBRID],
            "seed": _SEEDS,
        },
    },
    quick={
        "common": _QUICK_SIZE,
        "product": {
            "model": ["olmoe-1b-7b"], "seed": [0],
            "machine": [at_link(rate) for rate in (90.0, 30.0, 15.0, 6.0)],
        },
    },
    numbers=("host.gemv_bandwidth", "host.shared_bandwidth"),
)  # fmt: skip

#: FreeToken's third mode in place of hybrid: the host computes all misses.
ALL_ON_HOST = CounterExperiment(
    "the host computes all misses (cpu), in place of hybrid",
    {"system": [OFFLOAD, {"system": "freetoken", "set": {"assign.mode": "cpu"}}]},
    always=True, reading=True,
)  # fmt: skip

#: The same engine in Python, which pays for each launch and hand-over.
IN_PYTHON = CounterExperiment(
    "Hugging Face's software in place of lean", {"software": "hf-eager"}, always=True
)
