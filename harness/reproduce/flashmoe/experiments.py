"""The sweeps that FlashMoE's claims are measured from.

The paper's traces (TriviaQA) are not published.  Routing is drawn with the statistics of OLMoE and
Qwen3, in sequences as long as the prompts of the generated family ``facts``.  Eviction networks are
trained on other drawn sequences, 512 as in the paper, which are the same for all seeds: recordings
hold five texts of OLMoE and one of Qwen3.
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


#: Numbers of the machine whose ranges move times most.  From its low to its high end, the rate of
#: single reads moves the TPOT of FlashMoE on F1 by +36 to -6 % and that of Fiddler by +16 to -3;
#: decisions move them by 0.5 and 0.8 % either way, and 6 others, which were tried, by at most 0.7.
NUMBERS = ("disk.queue1_bandwidth", "software.decision")


def _of_both_models(
    name: str, numbers: tuple[str, ...], common: dict[str, Any], product: dict[str, Any]
) -> Experiment:
    sizes, quick_sizes = (
        {"setting": ["F1", "F2"], "prompts": prompts, "calibrate_texts": texts}
        for prompts, texts in (([16, 8], [512, 512]), ([6, 2], [64, 64]))
    )
    common = {"workload": "facts", "routing": "drawn", **common, "new_tokens": 64}
    return Experiment(
        f"flashmoe {name}",
        {"common": common, "product": {"seed": [0, 1, 2], **product}, "zip": sizes},
        quick={"common": {"new_tokens": 32}, "product": {"seed": [0]}, "zip": quick_sizes},
        numbers=numbers,
    )


EVICTIONS = _of_both_models(
    "evictions", NUMBERS, {"system": "flashmoe"},
    {"set": [{"evict": name} for name in POLICIES]},
)  # fmt: skip

#: Runs for Fig. 7 a, c, d, f; FlashMoE's cell equals one of `EVICTIONS`, so that it runs once.
SYSTEMS = _of_both_models(
    "systems", NUMBERS, {},
    {"system": [{"system": "flashmoe", "set": {"evict": "flashmoe"}}, *OTHERS]},
)  # fmt: skip

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
