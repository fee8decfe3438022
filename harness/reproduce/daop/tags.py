"""Reasons why verdicts on some of DAOP's claims are little evidence, by claim id."""

from moebench.harness.reproduce.daop.experiments import MODELS
from moebench.results.claims import Tag
from moebench.results.paper_tables import daop_table_5

_EXPERT_TIMES = (
    "the simulated host and link have the time of an expert and of its copy that DAOP's code states"
)
_ONE_TIME = (
    "speeds of both lengths are computed from one TTFT and one TPOT: a prefill that takes as long "
    "as six decoded tokens has this gain"
)
_SLOW_COPIES = (
    "more than half of the experts are on the host, and with the copy time of the authors' code "
    "a token's missing experts take more than a second"
)
_A_COUNT = "a count of the model's published shape"
_PREFILL_IS_EXACT = "DAOP approximates in decode only, so that prefill's scores cannot change"

#: Tag and reason of each claim whose verdict is little evidence.
TAGS: dict[str, tuple[Tag, str]] = {
    "D-1 C4": (
        Tag.BY_CONSTRUCTION,
        "Table II is a target by which the scale model's routing was trained",
    ),
    "D-3 block on the CPU": (
        Tag.BY_CONSTRUCTION,
        "the profile's host has the expert time that DAOP's code states",
    ),
    "D-3 expert migration": (
        Tag.BY_CONSTRUCTION,
        "the profile's rate of pageable copies is computed from this figure",
    ),
    "D-3 migration over block": (
        Tag.BY_CONSTRUCTION,
        "the migration is Table I's own figure, from which the profile's rate is computed",
    ),
    "D-3 activations over weights": (Tag.CANNOT_FAIL, _A_COUNT),
    "D-4 Mixtral 8x7B": (Tag.BY_CONSTRUCTION, _EXPERT_TIMES),
    "D-4 Phi-3.5-MoE": (Tag.BY_CONSTRUCTION, _EXPERT_TIMES),
    "D-4 over Fiddler": (Tag.BY_CONSTRUCTION, _EXPERT_TIMES),
    "D-4 no copies": (Tag.CANNOT_FAIL, "neither system ever copies an expert for a decoded token"),
    "D-5 MoE-OnDemand": (Tag.CANNOT_FAIL, _SLOW_COPIES),
    "D-5 DeepSpeed-MII": (
        Tag.CANNOT_FAIL,
        "every token copies all of a model of 93 GB, at 13 GB/s at most",
    ),
    "D-5 Mixtral-Offloading": (Tag.CANNOT_FAIL, _SLOW_COPIES),
    "D-6 over Fiddler": (
        Tag.SAME_ROW,
        "D-8 offloading: the abstract's 1.35 × is this gain of 35.4 %",
    ),
    "D-6 Mixtral 8x7B 25 %": (Tag.BY_CONSTRUCTION, _EXPERT_TIMES),
    "D-6 Phi-3.5-MoE 25 %": (Tag.BY_CONSTRUCTION, _EXPERT_TIMES),
    "D-7 Fiddler": (Tag.CANNOT_FAIL, _ONE_TIME),
    "D-7 DAOP": (Tag.CANNOT_FAIL, _ONE_TIME),
    "D-8 caching and prefetching": (Tag.BY_CONSTRUCTION, _EXPERT_TIMES),
    "D-8 offloading": (Tag.BY_CONSTRUCTION, _EXPERT_TIMES),
    "D-10 Mixtral 8x7B": (Tag.CANNOT_FAIL, _PREFILL_IS_EXACT),
    "D-10 Phi-3.5-MoE": (Tag.CANNOT_FAIL, _PREFILL_IS_EXACT),
    **{
        f"D-10 {model} {dataset}": (Tag.CANNOT_FAIL, _PREFILL_IS_EXACT)
        for model in MODELS.values()
        for dataset in dict.fromkeys(row.dataset for row in daop_table_5())
    },
    "D-13 one token": (Tag.CANNOT_FAIL, _A_COUNT),
    "D-13 beyond memory": (Tag.CANNOT_FAIL, "counts of published shapes and of the card's memory"),
}
