"""The sweeps that DAOP's claims are measured from.

Prompts of five examples have about 248 tokens, the paper's prompts 256.  Routing is drawn with the
statistics of real Mixtral.  Speeds at any output length are computed from TTFT and TPOT of the same
runs, which decode fewer tokens than the paper's.

Sensitivity of TPOT and TTFT in percent over the numbers' ranges, at the setting's cache ratio:

    number                  DAOP (D1)           Fiddler (D1)        MoE-OnDemand (D1)
    host.gemm_efficiency    TTFT +326           TTFT +389           0
    link.pageable_h2d       TTFT -12 to +0.4    TTFT +0.2 to +41    TPOT -20 to +0.8
    software.layer          TPOT -3.4 to +1.3   TPOT -6.8 to +2.6   TPOT -0.9 to +0.4
    host.gemv_bandwidth     TPOT -4.2 to +3.6   TPOT -3.8 to +3.3   0

``software.layer`` moves Phi's TPOT by -10 (DAOP) and -12 % (Fiddler).  ``host.gemv_bandwidth``
moves DAOP and Fiddler alike, and the claims rest on it; ``link.pinned_h2d`` moves DeepSpeed-MII
alone (-8 to +24 %); all others move a time by 6 % at most, DAOP's TTFT in most cases.

The paper's figures imply ``host.gemm_efficiency`` of .09 (Phi's speed at 46.9 %, all three gains
over Fiddler) and .20 (Mixtral's speed at 25 %); the profile has .7, the authors' scheduler .03.
"""

from dataclasses import replace
from typing import Any

from moebench.harness.reproduce.claim import LEAN, CounterExperiment
from moebench.harness.reproduce.controls import SEED, controls
from moebench.harness.reproduce.evidence import Experiment

#: The paper's names of the models, by setting.
MODELS = {"D1": "Mixtral 8x7B", "D2": "Phi-3.5-MoE"}

#: Systems of Fig. 9; the second and third run Mixtral only, as in Table IV.
SYSTEMS = ["daop", "deepspeed-mii", "mixtral-offloading", "moe-ondemand", "fiddler"]

#: Expert cache ratios of Fig. 10; in bf16 the GPU holds 52 % of Mixtral.
RATIOS = [0.25, 0.375, 0.469, 0.5]

_COMMON: dict[str, Any] = {
    "workload": "passages", "few_shot": 5, "routing": "drawn", "prompts": 2, "new_tokens": 96,
}  # fmt: skip
_QUICK: dict[str, Any] = {"common": {"prompts": 1, "new_tokens": 64}, "product": {"seed": [0]}}
_SEEDS = [0, 1, 2]

#: Numbers that move the claims' figures most, by the table above.
_NUMBERS = (
    "host.gemm_efficiency", "link.pageable_h2d", "software.layer", "host.gemv_bandwidth",
)  # fmt: skip

#: Runs for Fig. 9 and Table IV.
SPEED = Experiment(
    "daop speed",
    {
        "common": _COMMON,
        "product": {"setting": ["D1", "D2"], "system": SYSTEMS, "seed": _SEEDS},
        "exclude": [
            {"setting": "D2", "system": "deepspeed-mii"},
            {"setting": "D2", "system": "mixtral-offloading"},
        ],
    },
    quick=_QUICK,
    numbers=_NUMBERS,
)

#: Runs for Fig. 10.
BY_RATIO = Experiment(
    "daop by cache ratio",
    {
        "common": _COMMON,
        "product": {
            "setting": ["D1", "D2"], "cache_ratio": RATIOS, "system": ["daop", "fiddler"],
            "seed": _SEEDS,
        },
    },
    quick={**_QUICK, "product": {"seed": [0], "cache_ratio": [0.25, 0.469]}},
    numbers=_NUMBERS,
)  # fmt: skip

#: Runs for Fig. 8, which shows one more system; the pre-gates here are an oracle.
TIMELINES = Experiment(
    "daop timelines",
    {
        "common": {**_COMMON, "setting": "D1"},
        "product": {
            "system": ["moe-ondemand", "pregated-moe", "fiddler", "daop"], "seed": _SEEDS,
        },
    },
    quick=_QUICK,
)  # fmt: skip

#: Data sets of Table V, and those of ``--quick``.
_IN_PREFILL = ["hellaswag", "arc_easy", "arc_challenge", "piqa", "winogrande", "mmlu"]
_QUICK_IN_PREFILL = {"product": {"workload": ["arc_easy", "piqa", "winogrande"]}}

#: Questions of each data set of Table V, and with ``--quick``.
_FIRST, _QUICK_FIRST = 10, 3

#: Runs for Table V, without worked examples, calibrated on ShareGPT as in §V-A; ``moe-ondemand`` is
#: lossless, so that it scores as the model does.
FIRST_TOKEN = Experiment(
    "daop first token",
    {
        "common": {
            "scoring": "prefill", "cache_ratio": 0.25, "few_shot": 0, "prompts": _FIRST,
            "seed": SEED,
        },
        "product": {
            "setting": ["D1", "D2"], "workload": _IN_PREFILL,
            "system": [{"system": "daop", "calibrate_from": "sharegpt"}, "moe-ondemand"],
        },
    },
    quick={"common": {"prompts": _QUICK_FIRST}, **_QUICK_IN_PREFILL},
)  # fmt: skip

#: Generated families that replace the data sets of Table VI: GSM8K, and the others.
MATHS = ("arithmetic", "equations")
OTHERS = ("facts", "inflection", "passages")

_ANSWERING: list[dict[str, Any]] = [
    {"system": "moe-ondemand", "cache_ratio": 0.25}, {"system": "daop", "cache_ratio": 0.25},
    {"system": "daop", "cache_ratio": 0.375},
]  # fmt: skip

#: Questions of each family of Table VI: five lost ones of all families show a loss.
_ANSWERS = 8
_QUICK_ANSWERS = {"product": {"setting": ["D1"], "workload": ["equations", "passages"]}}

#: Runs for Table VI; ``moe-ondemand`` generates the same answers as the model.
WHOLE_ANSWERS = Experiment(
    "daop whole answers",
    {
        "common": {"scoring": "generation", "prompts": _ANSWERS, "seed": SEED},
        "product": {
            "setting": ["D1", "D2"],
            "workload": [*MATHS, *OTHERS],
            "system": [
                *_ANSWERING,
                {"system": "daop", "cache_ratio": 0.5},
                {"system": "daop", "cache_ratio": 0.625, "allow_overcommit": True},
            ],
        },
    },
    quick={"product": {**_QUICK_ANSWERS["product"], "system": _ANSWERING}},
)


def _quickly(experiment: Experiment, quick: dict[str, Any]) -> Experiment:
    """Return an experiment with fewer cells with ``--quick``."""
    return replace(experiment, quick={**experiment.quick, **quick})


#: Positive controls of both: the same questions, on which a loss must show.
FIRST_TOKEN_CONTROLS = _quickly(
    controls(
        "daop first token, controls", [*MODELS], _IN_PREFILL, "prefill", _FIRST,
        quick_prompts=_QUICK_FIRST,
    ),
    _QUICK_IN_PREFILL,
)  # fmt: skip
WHOLE_ANSWERS_CONTROLS = _quickly(
    controls(
        "daop whole answers, controls",
        [*MODELS],
        [*MATHS, *OTHERS],
        prompts=_ANSWERS,
        quick_prompts=_ANSWERS,
    ),
    _QUICK_ANSWERS,
)

# ----------------------------------------------------------------------------- counter-experiments

LIVE = CounterExperiment(
    "routing of the scale models in place of drawn, 16 new tokens",
    {"routing": "model", "prompts": 1, "new_tokens": 16, "seed": 0},
)
SHIPPED = CounterExperiment(
    "DAOP and Fiddler as their authors' code runs them",
    {"system": [
        {"system": "daop", "variant": "shipped"}, {"system": "fiddler", "variant": "shipped"},
        "moe-ondemand",
    ]},
    reading=True, always=True,
)  # fmt: skip
PINNED = CounterExperiment(
    "the card in SMoE's box: pinned copies, PCIe 4.0, as the paper names it", {"machine": "a6000"},
    reading=True, always=True,
)  # fmt: skip
CODE_COPIES = CounterExperiment(
    "the 210 ms for a copy of Mixtral's experts that the authors' code states: 1.68 GB/s",
    {"machine": "a6000@daop+link.pageable_h2d=1.68"}, reading=True, always=True,
)  # fmt: skip
CODE_ROWS = CounterExperiment(
    "the 3.5 ms a row on the host that the authors' scheduler counts: 3 % of its peak",
    {"machine": "a6000@daop+host.gemm_efficiency=0.03"}, reading=True, always=True,
)  # fmt: skip
RECORDED = CounterExperiment(
    "two recorded texts of Mixtral-8x7B-Instruct (data folder)", {"routing": "real"}
)

#: Changes of `WHOLE_ANSWERS` to real data sets: DAOP only, whose documents hold the agreement.
ON_REAL_SETS: dict[str, Any] = {
    "workload": ["gsm8k", "triviaqa"], "setting": "D1", "prompts": 4, "new_tokens": 48,
    "system": [{"system": "daop", "cache_ratio": 0.25}],
}  # fmt: skip

#: Counter-experiments of claims of speed and energy.
OF_SPEED = (PINNED, LEAN, LIVE, CODE_COPIES, CODE_ROWS)
