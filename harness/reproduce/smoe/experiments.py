"""The sweeps that SMoE's claims are measured from.

All have the same prompts and lengths, so that a cell that two sweeps need is run once.  The
baselines lose no accuracy: they replay what the model chooses, which is recorded once, and take
exactly the times of live runs.  SMoE substitutes experts, and runs live.
"""

from typing import Any

from moebench.harness.reproduce import controls
from moebench.harness.reproduce.claim import CounterExperiment
from moebench.harness.reproduce.evidence import Experiment

SETTINGS = ["S1", "S2", "S3"]

#: Generated families that replace the paper's five kinds of workload.
FAMILIES = ["arithmetic", "equations", "facts", "inflection", "passages"]

#: Every second value of α in Table IV.
ALPHAS = [round(0.1 * step, 1) for step in range(7)]

#: Generated tokens of every experiment, in full runs and with ``--quick``.
LENGTHS: dict[str, Any] = {"new_tokens": 32}
QUICK_LENGTHS: dict[str, Any] = {"new_tokens": 16}

#: The baselines' options; MoE-Infinity is fitted on few texts, whose generation takes longest.
_REPLAYED: dict[str, Any] = {"routing": "replayed"}
MOE_INFINITY: dict[str, Any] = {"system": "moe-infinity", "calibrate_texts": 8, **_REPLAYED}
BASELINES: list[Any] = [
    MOE_INFINITY, *({"system": name, **_REPLAYED} for name in ("llamacpp", "deepspeed", "hybrimoe"))
]  # fmt: skip

#: Uncertain numbers that decide the systems' times.  On S3 the host's range moves TPOT by +25 and
#: -19 % of SMoE's at batch 1 and by +29 and -40 % at batch 3, of HybriMoE's at batch 3 by +38 and
#: -48 %; a layer's Python SMoE's by -9 to +6 % at batch 1 and both systems' by 3 % at batch 3; the
#: link's by 3 % of each.  All others move the systems alike, by less.
HOST, LINK, PYTHON = "host.gemv_bandwidth", "link.pinned_h2d", "software.layer"

#: Fig. 11 to 13: SMoE and four baselines.  S2 has no llama.cpp cell: XVERSE-MoE has no GGUF file.
MAIN = Experiment(
    "smoe main",
    {
        "common": LENGTHS,
        "product": {
            "setting": SETTINGS,
            "workload": FAMILIES,
            "system": ["smoe", *BASELINES],
            "seed": [0, 1, 2],
        },
        "zip": {"batch": [1, 3], "prompts": [2, 3]},
    },
    quick={"common": QUICK_LENGTHS, "product": {"workload": ["passages"], "seed": [0]}},
    numbers=(HOST, PYTHON),
)

_ONE: dict[str, Any] = {**LENGTHS, "system": "smoe", "batch": 1, "prompts": 2}
_QUICK_ONE: dict[str, Any] = QUICK_LENGTHS
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
    numbers=(HOST,),
)

#: Runs for Table I: the step before substitution on S3, where the host computes no expert.
TABLE_I = Experiment(
    "smoe table I",
    {"common": {**_ONE, "setting": "S3", "set": STEPS["+CE"]}, "product": _QUESTIONS},
    quick={"common": _QUICK_ONE, "product": _QUICK_QUESTIONS},
    numbers=(LINK,),
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
    quick={"common": _QUICK_ONE, "product": _QUICK_QUESTIONS},
)

_THREE: dict[str, Any] = {**LENGTHS, "system": "smoe", "batch": 3, "prompts": 3}

#: Runs of three texts at a time, for what the router does across rows (§VI-B); cells of `MAIN`.
BATCHES = Experiment(
    "smoe batches",
    {"common": _THREE, "product": {"setting": SETTINGS, **_QUESTIONS}},
    quick={"common": _QUICK_ONE, "product": _QUICK_QUESTIONS},
)

#: Options without and with the refinement of the first version (§5.4), beside its Algorithm 2.
UNREFINED: dict[str, str] = {"assign.by": "batch"}
REFINED: dict[str, str] = {**UNREFINED, "route.refine": "True"}

#: The same beside the second version's Algorithm 2, a counter-experiment.
REFINED_ALONE: dict[str, str] = {"route.refine": "True"}

#: Runs for the first version's refinement.
REFINEMENT = Experiment(
    "smoe refinement",
    {"common": _THREE, "product": {"setting": SETTINGS, "set": [UNREFINED, REFINED], **_QUESTIONS}},
    quick={"common": _QUICK_ONE, "product": _QUICK_QUESTIONS},
    numbers=(HOST,),
)

#: Generated families whose scores at α = 0 leave room for a loss, by setting (`alpha.csv`).
WITH_ROOM = {
    "S1": ("equations", "passages"), "S2": ("equations", "inflection"),
    "S3": ("equations", "facts"),
}  # fmt: skip

#: Positive controls of S-11, on the questions of the committed α table.
CONTROLS = controls.of_places(
    "smoe controls", [(place, name) for place, names in WITH_ROOM.items() for name in names]
)

# ----------------------------------------------------------------------------- counter-experiments

#: Drawn traces predict the next layer only, while HybriMoE predicts three layers.
_ONE_AHEAD = {"system": "hybrimoe", "set": {"prefetch.layers": 1}}
_ONE_LAYER = ["smoe", "moe-infinity", "llamacpp", "deepspeed", _ONE_AHEAD]
_DRAWN = {"routing": "drawn", "system": _ONE_LAYER}

_SHIPPED_BASELINES: list[Any] = [
    {**MOE_INFINITY, "variant": "shipped"},
    *BASELINES[1:3],
    {**BASELINES[3], "variant": "shipped"},
]  # fmt: skip
ALL_SHIPPED = CounterExperiment(
    "all systems as their authors' code runs them, SMoE too (llama.cpp and DeepSpeed have one "
    "variant)",
    {"system": [{"system": "smoe", "variant": "shipped"}, *_SHIPPED_BASELINES]},
    always=True, reading=True,
)  # fmt: skip
MIXED = CounterExperiment(
    "SMoE as its paper has it against MoE-Infinity and HybriMoE as their authors' code runs them: "
    "unlike variants",
    {"system": ["smoe", *_SHIPPED_BASELINES]},
)
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


def _smoe_with(options: dict[str, str]) -> dict[str, Any]:
    return {"system": [{"system": "smoe", "set": options}, *BASELINES]}


#: The first version loads every expert that a prompt misses (its §4.1).
LOADED_PREFILL = CounterExperiment(
    "all experts that a prompt misses are loaded (first version, §4.1)",
    _smoe_with({"assign.prefill": "load"}), always=True, reading=True,
)  # fmt: skip
FIRST_VERSION = CounterExperiment(
    "Algorithm 2 by batch size, the host's cost linear in it (first version)",
    _smoe_with({"assign.by": "batch"}), always=True, reading=True,
)  # fmt: skip
PRINTED = CounterExperiment(
    "Algorithm 2 as printed: the link counts as free when it begins",
    _smoe_with({"assign.link": "printed"}), always=True, reading=True,
)  # fmt: skip

#: Option of predictions that pay their launches alone: the paper calls their cost minimal (§IV-C).
CHEAP_PREDICTIONS = {"prediction_python": "False"}
CHEAPLY_PREDICTED = CounterExperiment(
    "predictions that pay launches, and no Python of a layer",
    {"set": CHEAP_PREDICTIONS},
    always=True,
    reading=True,
)

CHEAPLY_PREDICTED_BY_SMOE = CounterExperiment(
    "SMoE's predictions pay launches, and no Python of a layer",
    _smoe_with(CHEAP_PREDICTIONS), always=True, reading=True,
)  # fmt: skip

#: Counter-experiments of claims that compare systems; those that leave out a baseline are added by
#: `against_others`, because they measure the same runs.
AGAINST_OTHERS = (ALL_SHIPPED, MIXED, DRAWN, DRAWN_LEAN)

#: Readings of the paper that decide claims of TPOT against others.
READINGS_OF_TPOT = (CHEAPLY_PREDICTED_BY_SMOE, FIRST_VERSION, PRINTED)

BESIDE_ALGORITHM_2 = CounterExperiment(
    "beside the second version's Algorithm 2, by score", {"set": [{}, REFINED_ALONE]},
    always=True, reading=True,
)  # fmt: skip

#: Counter-experiments of claims about SMoE's own parts.
ALONE = (
    CounterExperiment("with routing drawn as real models'", {"routing": "drawn"}),
    CounterExperiment("with lean software", {"software": "lean"}),
)
