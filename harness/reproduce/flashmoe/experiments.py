"""The sweeps that FlashMoE's claims are measured from.

The paper's traces (TriviaQA) are not published.  Routing is drawn with the statistics of OLMoE and
Qwen3, in sequences as long as the prompts of the generated family ``facts``.  Eviction networks are
trained on other drawn sequences.
"""

from typing import Any

from moebench.harness.reproduce.claim import CounterExperiment
from moebench.harness.reproduce.evidence import Experiment

#: Policies of Fig. 6 and 7 b, e: the network, heuristics and adaptive policies.
POLICIES = ("flashmoe", "lru", "lfu", "lifo", "fifo", "arc", "lecar")
HEURISTICS = ("lfu", "lifo", "fifo")

#: Other systems of Fig. 7 c, f.
OTHERS = ("llamacpp", "fiddler", "daop")

MODELS = {"F1": "OLMoE", "F2": "Qwen3"}


def _of_both_models(name: str, common: dict[str, Any], product: dict[str, Any]) -> Experiment:
    sizes, quick_sizes = (
        {"setting": ["F1", "F2"], "prompts": prompts, "calibrate_texts": texts}
        for prompts, texts in (([16, 8], [512, 512]), ([6, 2], [64, 64]))
    )
    common = {"workload": "facts", "routing": "drawn", **common, "new_tokens": 64}
    return Experiment(
        f"flashmoe {name}",
        {"common": common, "product": {"seed": [0, 1, 2], **product}, "zip": sizes},
        quick={"common": {"new_tokens": 32}, "product": {"seed": [0]}, "zip": quick_sizes},
    )


EVICTIONS = _of_both_models(
    "evictions", {"system": "flashmoe"}, {"set": [{"evict": name} for name in POLICIES]}
)

#: Runs for Fig. 7 a, c, d, f; FlashMoE's cell equals one of `EVICTIONS`, so that it runs once.
SYSTEMS = _of_both_models(
    "systems", {}, {"system": [{"system": "flashmoe", "set": {"evict": "flashmoe"}}, *OTHERS]}
)

#: OLMoE's recordings hold few texts: half are replayed, the others train the network.
RECORDED = CounterExperiment(
    "routing recorded from OLMoE (data folder), in place of drawn",
    {
        "routing": "real", "workload": None, "setting": "F1", "prompts": 4,
        "calibrate_texts": None, "seed": 0,
    },
)  # fmt: skip

#: "Masked target data": the network learns to rank only what Belady's cache of that size holds.
MASKED = CounterExperiment(
    "labels masked: only experts that Belady's cache of 24 slots holds",
    {
        "set": [
            {"evict": "flashmoe", "evict.cached": "24"},
            *({"evict": name} for name in POLICIES if name != "flashmoe"),
        ]
    },
    reading=True,
)  # fmt: skip

#: Recordings hold fewer than 256 tokens of a text, so that longer prompts cannot be counted.
PROMPTS_RECORDED = CounterExperiment(
    "recorded texts of the model (data folder)", {"routing": "real"}
)

IN_MEMORY = CounterExperiment(
    "the whole model in host memory (no limit of 1 GB)", {"free_host_gb": 64.0}
)

ONE_READ = CounterExperiment(
    "Fiddler, DAOP and llama.cpp read one record at a time, as FlashMoE does",
    {"system": [
        {"system": "flashmoe", "set": {"evict": "flashmoe"}},
        *({"system": name, "set": {"parallel_reads": "false"}} for name in OTHERS),
    ]},
)  # fmt: skip
