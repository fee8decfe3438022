"""The sweeps that DuoServe-MoE's claims are measured from.

Routing is that of scale models: drawn routing does not depend on the layer before, from which the
predictor learns.  Generated sums and sequences replace Orca-Math, passages replace SQuAD.

A predictor is trained for each model and workload; both cards, all seeds and all
counter-experiments of one kind share it.  Training takes most of the time: 64 texts, the default,
take two minutes for 8x7B.  On sums of seed 0 both experts are right at 28 % of predictions with 8
texts, and at 47 % with 64.

Sensitivity in percent over the numbers' ranges, on the A6000:

    number                       DuoServe TPOT      ACC TPOT
    link.pageable_h2d            0                  -14.2 to +66.2
    link.pinned_h2d              -10.3 to +6.1      0
    link.in_engine_efficiency    -13.6 to 0         -13.2 to 0
    software.copy_submit         +2.0               +1.5
    software.layer               -0.2 to +0.1       -2.5 to +0.9

``link.in_engine_efficiency`` moves all systems alike, so that no speed-up depends on it.
"""

from typing import Any

from moebench.harness.reproduce.claim import LEAN, CounterExperiment
from moebench.harness.reproduce.evidence import Experiment

#: The paper's names of the model and the GPU, by setting.
CELLS = {
    "U1": ("Mixtral 8x7B", "A5000"), "U2": ("Mixtral 8x7B", "A6000"),
    "U3": ("Mixtral 8x22B", "A5000"), "U4": ("Mixtral 8x22B", "A6000"),
}  # fmt: skip
SMALL_CELLS, LARGE_CELLS = ("U1", "U2"), ("U3", "U4")

#: The paper's data sets, by the workload that replaces them.
DATASETS = {"equations": "Orca-Math", "passages": "SQuAD"}

#: MoESys holds the experts of one layer, as the memory in the paper's Table 2 shows.
_MOESYS: dict[str, Any] = {"system": "moesys", "slots": 8, "set": {"prefetch.buffers": 1}}
_BASELINES: list[Any] = ["acc", _MOESYS]

#: DuoServe on 8x22B: the authors trained for 40 to 45 epochs (§6.4).
_LARGE: dict[str, Any] = {"set": {"prefetch.epochs": 45}}

#: Number of training texts in a full run, and with ``--quick``.
TEXTS, QUICK_TEXTS = 32, 8
_QUICKLY: dict[str, Any] = {"system": "duoserve", "calibrate_texts": QUICK_TEXTS}

#: No system substitutes experts: each takes the times of a live run.
_COMMON = {"new_tokens": 32, "prompts": 2, "routing": "replayed"}
_PRODUCT = {"workload": [*DATASETS], "seed": [0, 1, 2]}


#: Numbers that move the speed-ups most, by the table above.
_NUMBERS = ("link.pageable_h2d", "link.pinned_h2d")


def _of_model(name: str, settings: tuple[str, ...], more: dict[str, Any]) -> Experiment:
    own = {"system": "duoserve", "calibrate_texts": TEXTS, **more}
    systems = {"setting": [*settings], "system": [own, *_BASELINES]}
    return Experiment(
        f"duoserve {name}", {"common": _COMMON, "product": {**_PRODUCT, **systems}},
        quick={
            "common": {"new_tokens": 16, "prompts": 1},
            "product": {"seed": [0], "system": [_QUICKLY, *_BASELINES]},
        },
        numbers=_NUMBERS,
    )  # fmt: skip


#: Runs for Fig. 5 and 6 and Tables 2 and 3.
SMALL = _of_model("8x7B", SMALL_CELLS, {})
LARGE = _of_model("8x22B", LARGE_CELLS, _LARGE)
BOTH = (SMALL, LARGE)


# ----------------------------------------------------------------------------- counter-experiments

RECORDED = CounterExperiment(
    "routing recorded from Mixtral-8x7B-Instruct (data folder), few texts to learn from",
    {
        "routing": "real", "workload": None, "setting": "U1", "prompts": 2, "new_tokens": 16,
        "calibrate_texts": None, "seed": 0,
    },
)  # fmt: skip
RING = CounterExperiment(
    "MoESys with two layers' buffers, as its own paper has it; a predictor of few texts",
    {"system": [_QUICKLY, "acc", {"system": "moesys", "slots": 16}]},
    always=True,
    reading=True,
)
PAGEABLE = CounterExperiment(
    "MoESys and DuoServe with pageable copies that block, as ACC's are; a predictor of few texts",
    {"system": [
        {**_QUICKLY, "set": {"pinned_copies": "false"}}, "acc",
        {**_MOESYS, "set": {**_MOESYS["set"], "pinned_copies": "false"}},
    ]},
    always=True, reading=True,
)  # fmt: skip
#: Changes of the two models' cells to real texts, in one setting each, with DuoServe only.
REAL_TEXTS = {"workload": ["gsm8k", "squad"], "system": [_QUICKLY], "seed": 0}
PINNED = CounterExperiment(
    "ACC with pinned copies that do not block, as DuoServe's are; a predictor of few texts",
    {"system": [
        _QUICKLY, {"system": "acc", "set": {"pinned_copies": "true", "blocking_copies": "false"}},
        _MOESYS,
    ]},
    always=True, reading=True,
)  # fmt: skip

VLLM = CounterExperiment(
    "vLLM's costs in place of Hugging Face's: the paper's systems ran in vLLM (§6.1)",
    {"software": "vllm"}, always=True, reading=True,
)  # fmt: skip

#: Counter-experiments of claims of times; four of them are readings of the paper.
OF_TIMES = (LEAN, VLLM, RING, PINNED, PAGEABLE)
