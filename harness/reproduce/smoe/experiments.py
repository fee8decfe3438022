"""The sweeps that SMoE's claims are measured from.

All have the same prompts and lengths, so that a cell that two sweeps need is run once.
"""

from typing import Any

from moebench.harness.reproduce.claim import CounterExperiment
from moebench.harness.reproduce.evidence import Experiment

SETTINGS = ["S1", "S2", "S3"]

#: Generated families that replace the paper's five kinds of workload.
FAMILIES = ["arithmetic", "equations", "facts", "inflection", "passages"]

#: The values of α in Table IV.
ALPHAS = [round(0.05 * step, 2) for step in range(13)]

#: Generated tokens of every experiment, in full runs and with ``--quick``.
LENGTHS: dict[str, Any] = {"new_tokens": 64}
QUICK_LENGTHS: dict[str, Any] = {"new_tokens": 24}

#: With ``--quick`` MoE-Infinity is fitted on few texts: generating them dominates the run time.
QUICK_SYSTEMS = [
    "smoe", {"system": "moe-infinity", "calibrate_texts": 8}, "llamacpp", "deepspeed", "hybrimoe",
]  # fmt: skip

#: Fig. 11 to 13: SMoE and four baselines.  S2 has no llama.cpp cell: XVERSE-MoE has no GGUF file.
MAIN = Experiment(
    "smoe main",
    {
        "common": LENGTHS,
        "product": {
            "setting": SETTINGS,
            "workload": FAMILIES,
            "system": ["smoe", "moe-infinity", "llamacpp", "deepspeed", "hybrimoe"],
            "seed": [0, 1, 2],
        },
        "zip": {"batch": [1, 3], "prompts": [8, 9]},
    },
    quick={
        "common": QUICK_LENGTHS,
        "product": {"workload": ["passages"], "system": QUICK_SYSTEMS, "seed": [0]},
        "zip": {"prompts": [2, 3]},
    },
)

_ONE: dict[str, Any] = {**LENGTHS, "system": "smoe", "batch": 1, "prompts": 8}
_QUICK_ONE: dict[str, Any] = {**QUICK_LENGTHS, "prompts": 2}
_QUESTIONS: dict[str, Any] = {"workload": ["passages"], "seed": [0, 1, 2]}
_QUICK_QUESTIONS: dict[str, Any] = {"seed": [0]}

#: Options of each step of Fig. 14; the paper's base has three possible readings.
STEPS: dict[str, dict[str, str]] = {
    "base, misses on the host": {
        "route": "exact", "evict": "static", "assign": "host", "prefetch": "none",
    },
    "base, misses loaded": {
        "route": "exact", "evict": "static", "assign": "load", "prefetch": "none",
    },
    "base, first in, first out": {
        "route": "exact", "evict": "fifo", "assign": "load", "prefetch": "none",
    },
    "+CE": {"route": "exact", "assign": "load", "prefetch": "none"},
    "+CR": {"assign": "load", "prefetch": "none"},
    "+Pre": {"assign": "load"},
    "+BA": {},
}  # fmt: skip

#: Runs for Fig. 14 to 18 and Table I.
ABLATION = Experiment(
    "smoe ablation",
    {"common": _ONE, "product": {"setting": SETTINGS, "set": [*STEPS.values()], **_QUESTIONS}},
    quick={"common": _QUICK_ONE, "product": _QUICK_QUESTIONS},
)

#: Option that predicts with the next gate on the residual stream before the experts.
FROM_RESIDUAL = {"prefetch.predict": "gate"}

#: Runs for Fig. 17.
PREDICTION = Experiment(
    "smoe prediction",
    {"common": _ONE, "product": {"setting": SETTINGS, "set": [{}, FROM_RESIDUAL], **_QUESTIONS}},
    quick={"common": _QUICK_ONE, "product": _QUICK_QUESTIONS},
)

#: Runs for Fig. 10.
THRESHOLDS = Experiment(
    "smoe thresholds",
    {"common": _ONE, "product": {"setting": SETTINGS, "alpha": ALPHAS, **_QUESTIONS}},
    quick={
        "common": _QUICK_ONE,
        "product": {"alpha": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6], **_QUICK_QUESTIONS},
    },
)

# ----------------------------------------------------------------------------- counter-experiments

#: Drawn traces predict the next layer only, while HybriMoE predicts three layers.
_ONE_AHEAD = {"system": "hybrimoe", "set": {"prefetch.layers": 1}}
_REPLAYED = ["smoe", "moe-infinity", "llamacpp", "deepspeed", _ONE_AHEAD]
_DRAWN = {"routing": "drawn", "system": _REPLAYED}

SHIPPED = CounterExperiment(
    "MoE-Infinity and HybriMoE as their authors' code runs them",
    {"system": [
        "smoe", {"system": "moe-infinity", "variant": "shipped"}, "llamacpp", "deepspeed",
        {"system": "hybrimoe", "variant": "shipped"},
    ]},
)  # fmt: skip
DRAWN = CounterExperiment(
    "with routing drawn as real models' (HybriMoE predicts one layer ahead, not three)", _DRAWN
)
DRAWN_LEAN = CounterExperiment(
    "the same, with software of few launches (lean) in place of Hugging Face's",
    {**_DRAWN, "software": "lean"},
)

LONG_PROMPTS = CounterExperiment(
    "with drawn routing, and prompts of about 250 tokens (five worked examples)",
    {**_DRAWN, "few_shot": 5, "batch": 1, "prompts": 2, "new_tokens": 4},
)

#: The first version loads every expert that a prompt misses (its §4.1).
LOADED_PREFILL = CounterExperiment(
    "all experts that a prompt misses are loaded (first version, §4.1)",
    {
        "system": [
            {"system": "smoe", "set": {"assign.prefill": "load"}},
            "moe-infinity",
            "llamacpp",
            "deepspeed",
            "hybrimoe",
        ]
    },
    always=True,
)

#: Option of predictions that pay their launches alone: the paper calls their cost minimal (§IV-C).
CHEAP_PREDICTIONS = {"prediction_python": "False"}
CHEAPLY_PREDICTED = CounterExperiment(
    "predictions that pay launches, and no Python of a layer",
    {"set": CHEAP_PREDICTIONS},
    always=True,
)

CHEAPLY_PREDICTED_BY_SMOE = CounterExperiment(
    "SMoE's predictions pay launches, and no Python of a layer",
    {"system": [
        {"system": "smoe", "set": CHEAP_PREDICTIONS}, "moe-infinity", "llamacpp", "deepspeed",
        "hybrimoe",
    ]},
)  # fmt: skip

#: Counter-experiments of claims that compare systems.
AGAINST_OTHERS = (SHIPPED, DRAWN, DRAWN_LEAN, CHEAPLY_PREDICTED_BY_SMOE)

#: Counter-experiments of claims about SMoE's own parts.
ALONE = (
    CounterExperiment("with routing drawn as real models'", {"routing": "drawn"}),
    CounterExperiment("with lean software", {"software": "lean"}),
)
