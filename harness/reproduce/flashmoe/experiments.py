"""What FlashMoE's claims are measured from.

The paper's traces (TriviaQA) are not published.  Routing is drawn with the statistics of OLMoE's
and Qwen3's own, in sequences as long as the prompts of the generated family ``facts``.  Evictions
learn from other drawn sequences.
"""

from moebench.harness.reproduce.claim import CounterExperiment
from moebench.harness.reproduce.evidence import Experiment

#: Fig. 6 and 7 b, e: the network, heuristics, and policies that adapt.
POLICIES = ("flashmoe", "lru", "lfu", "lifo", "fifo", "arc", "lecar")
HEURISTICS = ("lfu", "lifo", "fifo")

#: Fig. 7 c, f.
OTHERS = ("llamacpp", "fiddler", "daop")

MODELS = {"F1": "OLMoE", "F2": "Qwen3"}

_COMMON = {"workload": "facts", "routing": "drawn"}
_SIZES = {"setting": ["F1", "F2"], "prompts": [32, 16], "calibrate_texts": [512, 256]}
_QUICK_COMMON = {"new_tokens": 32}
_QUICK_SIZES = {"setting": ["F1", "F2"], "prompts": [6, 2], "calibrate_texts": [32, 8]}

EVICTIONS = Experiment(
    "flashmoe evictions",
    {
        "common": {**_COMMON, "system": "flashmoe", "new_tokens": 64},
        "product": {"seed": [0, 1, 2], "set": [{"evict": name} for name in POLICIES]},
        "zip": _SIZES,
    },
    quick={"common": _QUICK_COMMON, "product": {"seed": [0]}, "zip": _QUICK_SIZES},
)

SYSTEMS = Experiment(
    "flashmoe systems",
    {
        "common": {**_COMMON, "new_tokens": 64},
        "product": {
            "seed": [0, 1, 2],
            # As in EVICTIONS: one cell for both.
            "system": [{"system": "flashmoe", "set": {"evict": "flashmoe"}}, *OTHERS],
        },
        "zip": _SIZES,
    },
    quick={"common": _QUICK_COMMON, "product": {"seed": [0]}, "zip": _QUICK_SIZES},
)

#: OLMoE's recordings hold few texts: half are replayed, the network learns from the others.
RECORDED = CounterExperiment(
    "routing recorded from OLMoE (data folder), in place of drawn",
    {
        "routing": "real", "workload": None, "setting": "F1", "prompts": 4,
        "calibrate_texts": None, "seed": 0,
    },
)  # fmt: skip

#: Of Qwen3, whose network is shown fewest texts with ``--quick``.
MORE_TEXTS = CounterExperiment(
    "the network shown 32 texts",
    {
        "setting": "F2", "prompts": 2, "calibrate_texts": 32, "seed": 0,
        "set": [{"evict": "flashmoe"}, {"evict": "lru"}],
    },
)  # fmt: skip

#: Recordings end before 256 tokens of a text: only what they hold can be counted.
PROMPTS_RECORDED = CounterExperiment(
    "recorded texts of the model (data folder)", {"routing": "real"}
)

LEAN = CounterExperiment("lean software in place of Hugging Face's", {"software": "lean"})
IN_MEMORY = CounterExperiment(
    "the whole model in host memory (no limit of 1 GB)", {"free_host_gb": 64.0}
)
