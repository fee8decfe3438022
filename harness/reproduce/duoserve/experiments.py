"""The sweeps that DuoServe-MoE's claims are measured from.

Routing is that of scale models: drawn routing does not depend on the layer before, from which the
predictor learns.  Generated sums and sequences replace Orca-Math, passages replace SQuAD.  With
``--quick`` the predictor is trained on few texts.
"""

from typing import Any

from moebench.harness.reproduce.claim import CounterExperiment
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
_LARGE: dict[str, Any] = {"system": "duoserve", "set": {"prefetch.epochs": 45}}

#: Number of training texts with ``--quick``, for 20 epochs at most.
QUICK_TEXTS = 8
_QUICKLY: dict[str, Any] = {"system": "duoserve", "calibrate_texts": QUICK_TEXTS}

_COMMON = {"new_tokens": 64, "prompts": 16}
_PRODUCT = {"workload": [*DATASETS], "seed": [0, 1, 2]}


def _of_model(name: str, settings: tuple[str, ...], system: Any) -> Experiment:
    systems = {"setting": [*settings], "system": [system, *_BASELINES]}
    return Experiment(
        f"duoserve {name}", {"common": _COMMON, "product": {**_PRODUCT, **systems}},
        quick={
            "common": {"new_tokens": 16, "prompts": 2},
            "product": {"seed": [0], "system": [_QUICKLY, *_BASELINES]},
        },
    )  # fmt: skip


#: Runs for Fig. 5 and 6 and Tables 2 and 3.
SMALL = _of_model("8x7B", SMALL_CELLS, "duoserve")
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
)
PAGEABLE = CounterExperiment(
    "MoESys and DuoServe with pageable copies that block, as ACC's are; a predictor of few texts",
    {"system": [
        {**_QUICKLY, "set": {"pinned_copies": "false"}}, "acc",
        {**_MOESYS, "set": {**_MOESYS["set"], "pinned_copies": "false"}},
    ]},
)  # fmt: skip
#: Changes of the two models' cells to real texts, in one setting each, with DuoServe only.
REAL_TEXTS = {"workload": ["gsm8k", "squad"], "system": [_QUICKLY], "seed": 0}
PINNED = CounterExperiment(
    "ACC with pinned copies that do not block, as DuoServe's are; a predictor of few texts",
    {"system": [
        _QUICKLY, {"system": "acc", "set": {"pinned_copies": "true", "blocking_copies": "false"}},
        _MOESYS,
    ]},
)  # fmt: skip
