"""DAOP's claims, with bands that were written before measuring.

Rules: a speed or an efficiency within a quarter of the paper's figure is reproduced, within half
to twice it has its direction; of a gain half to one and a half times, and its sign.  The paper
gives no spreads.
"""

from typing import Any

from moebench.harness.reproduce.claim import Claim, CounterExperiment
from moebench.harness.reproduce.daop import measures as m
from moebench.harness.reproduce.daop.experiments import (
    BY_RATIO,
    FIRST_TOKEN,
    LIVE,
    MODELS,
    OF_SPEED,
    ON_REAL_SETS,
    RECORDED,
    SHIPPED,
    SPEED,
    WHOLE_ANSWERS,
)
from moebench.harness.reproduce.daop.explained import explanation
from moebench.results.claims import Band
from moebench.results.paper_tables import daop_table_5, daop_table_6

_QUARTER = "within a quarter of the paper's figure; direction: from half to twice"
_HALF = "from half to one and a half times the paper's gain; direction: its sign"

#: As `paper_tables` names them.
_TABLE_NAMES = {"D1": "mixtral-8x7b", "D2": "phi-3.5-moe"}


def _claim(id: str, place: str, statement: str, paper: float | None, **of: Any) -> Claim:
    return Claim(
        id=id, place=place, statement=statement, paper=paper, explanation=explanation(id), **of
    )


def _near(id: str, place: str, statement: str, paper: float, **of: Any) -> Claim:
    given: dict[str, Any] = {
        "reproduced": Band(low=0.75 * paper, high=1.25 * paper),
        "direction": Band(low=paper / 2, high=2 * paper), "why": _QUARTER, "unit": "tokens/s",
        "counters": OF_SPEED,
    }  # fmt: skip
    return _claim(id, place, statement, paper, **(given | of))


def _gain(id: str, place: str, statement: str, paper: float, **of: Any) -> Claim:
    """In percent, or of how many times something is faster."""
    zero = 1.0 if of.get("unit") == "×" else 0.0
    size = paper - zero
    given: dict[str, Any] = {
        "reproduced": Band(low=zero + size / 2, high=zero + 1.5 * size),
        "direction": Band(low=zero), "why": _HALF, "unit": "%", "counters": (*OF_SPEED, SHIPPED),
    }  # fmt: skip
    return _claim(id, place, statement, paper, **(given | of))


# ----------------------------------------------------------------------------- routing

_DATASETS = {"C4": ("c4", 90.05), "MATH": ("math", 90.37), "GSM8K": ("gsm8k", 91.74)}
_SIMILAR: dict[str, Any] = {
    "unit": "%", "reproduced": Band(low=85.5, high=95.5), "direction": Band(low=80),
    "counters": (RECORDED,),
    "why": "half of what lacks to 100 % either way; direction: similar, at least 80 %",
}  # fmt: skip

_ROUTING = (
    *(
        _claim(
            f"D-1 {name}", "Table II", f"{name}: expert use in prefill and decode, cosine", paper,
            measure=m.similarity(workload), **_SIMILAR,
        )
        for name, (workload, paper) in _DATASETS.items()
    ),
    _claim(
        "D-1 average", "Table II", "expert use in prefill and decode, mean of the three", 90.72,
        measure=m.similarity(*(workload for workload, _ in _DATASETS.values())), **_SIMILAR,
    ),
    _claim(
        "D-2 mean", "Fig. 5", "next layer's experts predicted by its gate on the current state",
        84.11, unit="%", measure=m.recall, reproduced=Band(low=80, high=88),
        direction=Band(low=62.5),
        why="four points either way; direction: nearer to certainty than to chance (25 %)",
    ),
    _claim(
        "D-2 first layers", "Fig. 5", "predictions of the first layers less those of the others",
        None, unit="points", measure=m.low_at_first, reproduced=Band(high=-5),
        direction=Band(high=0),
        why="five points or more are seen in a chart; direction: lower at all",
    ),
    _claim(
        "D-12", "§VI-B", "similarity of 15-token windows on GSM8K against TriviaQA", -3.43,
        unit="%", measure=m.windows_change, reproduced=Band(low=-5.15, high=-1.72),
        direction=Band(high=0), why=_HALF,
        counters=(
            CounterExperiment(
                "recordings of other models (data folder): mathematics against dialogue and prose",
                measure=m.recorded_windows_change,
            ),
        ),
    ),
)  # fmt: skip

# ----------------------------------------------------------------------------- Table I

_THERE_AND_BACK = CounterExperiment(
    "input and output, one after the other", measure=m.charged(m.ACTIVATION, times=2)
)

_TABLE_1 = tuple(
    _near(
        f"D-3 {name}", "Table I", f"Mixtral on an A100: {name}", paper, unit="ms",
        measure=m.charged(what),
        counters=(_THERE_AND_BACK,) if what == m.ACTIVATION else (),
        why=_QUARTER + ".  The profile takes numbers from this table and from the authors' code",
    )
    for name, paper, what in (
        ("block on the CPU", 8.02, "transformer block on the host: attention, 2 experts"),
        ("block on the GPU", 1.24,
         "transformer block on the device: attention, gate, 2 experts, sum"),
        ("expert migration", 39.87, "expert, host to device"),
        ("input or output", 0.02, m.ACTIVATION),
    )
)  # fmt: skip

# ----------------------------------------------------------------------------- Fig. 9 and 10

_SPEED = (
    *(
        _near(
            f"D-4 {MODELS[setting]}", "Fig. 9", f"{MODELS[setting]}, [256, 512], DAOP", paper,
            measure=m.at_setting(m.speed(setting, "daop", 512), "for 512 tokens"), needs=(SPEED,),
        )
        for setting, paper in (("D1", 4.52), ("D2", 8.21))
    ),
    _gain(
        "D-4 over Fiddler", "Fig. 9", "[256, 512], DAOP over Fiddler, mean of both models", 40.4,
        measure=m.at_setting(
            lambda runs: m.over_fiddler(m.of_shared_ratio(runs), 512), "for 512 tokens"
        ),
        needs=(SPEED,),
    ),
    *(
        _claim(
            f"D-5 {said}", "Fig. 9", f"Mixtral, [256, 512], {said}: less than one token/s", 1,
            unit="tokens/s", reproduced=Band(high=1), direction=Band(high=2),
            why="as stated; direction: less than half of DAOP's 4.52", needs=(SPEED,),
            measure=m.at_setting(m.speed("D1", system, 512), "for 512 tokens"), counters=OF_SPEED,
        )
        for said, system in (
            ("MoE-OnDemand", "moe-ondemand"), ("DeepSpeed-MII", "deepspeed-mii"),
            ("Mixtral-Offloading", "mixtral-offloading"),
        )
    ),
    _gain(
        "D-6 over Fiddler", "Fig. 10", "[256, 256], DAOP over Fiddler, mean over cache ratios",
        35.4, needs=(BY_RATIO,),
        measure=m.by_ratio(lambda runs: m.over_fiddler(runs, 256), "for 256 tokens"),
    ),
    *(
        _near(
            f"D-6 {MODELS[setting]} 25 %", "Fig. 10",
            f"{MODELS[setting]}, [256, 256], 25 % of experts cached, DAOP", paper,
            measure=m.by_ratio(m.speed(setting, "daop", 256, 0.25), "for 256 tokens"),
            needs=(BY_RATIO,),
        )
        for setting, paper in (("D1", 3.23), ("D2", 5.03))
    ),
    *(
        _claim(
            f"D-7 {said}", "Fig. 9", f"{said}: tokens/s of 512 tokens out over 128", None,
            unit="%", reproduced=Band(low=3), direction=Band(low=0),
            why="three percent or more are seen in a chart; direction: a gain", needs=(SPEED,),
            measure=m.at_setting(
                lambda runs, system=system: m.gain_of_length(system, runs),  # type: ignore[misc]
                "TPOT is the same for both lengths",
            ),
            counters=(SHIPPED, LIVE),
        )
        for said, system in (("Fiddler", "fiddler"), ("DAOP", "daop"))
    ),
    _gain(
        "D-8 caching and prefetching", "abstract",
        "greatest speed-up over MoE-OnDemand and Mixtral-Offloading", 8.20, unit="×",
        measure=m.at_setting(
            lambda runs: m.greatest_over(("moe-ondemand", "mixtral-offloading"), runs),
            "both models, 256 and 512 tokens",
        ),
        needs=(SPEED,),
    ),
    _gain(
        "D-8 offloading", "abstract", "speed-up over Fiddler, mean over cache ratios", 1.35,
        unit="×", needs=(BY_RATIO,),
        measure=m.by_ratio(lambda runs: 1 + m.over_fiddler(runs, 256) / 100, "for 256 tokens"),
    ),
)  # fmt: skip

# ----------------------------------------------------------------------------- Table IV

#: Tokens per kJ by setting and system.
TABLE_4 = {
    "D1": {
        "moe-ondemand": 2.63, "deepspeed-mii": 0.59, "mixtral-offloading": 2.13,
        "fiddler": 10.06, "daop": 14.37,
    },
    "D2": {"moe-ondemand": 6.94, "fiddler": 17.15, "daop": 27.07},
}  # fmt: skip

_ENERGY = (
    *(
        _near(
            f"D-9 {MODELS[setting]} {system}", "Table IV",
            f"{MODELS[setting]}, [256, 256], {system}", paper, unit="tokens/kJ",
            measure=m.at_setting(m.efficiency(setting, system), "256 tokens, simulated powers"),
            needs=(SPEED,),
        )
        for setting, row in TABLE_4.items()
        for system, paper in row.items()
    ),
    _gain(
        "D-9 over Fiddler", "Table IV", "tokens/kJ, DAOP over Fiddler, mean of both models", 1.50,
        unit="×", needs=(SPEED,),
        measure=m.at_setting(m.efficiency_over_fiddler, "256 tokens, simulated powers"),
    ),
    _claim(
        "D-9 order", "Table IV", "share of other systems that use more energy a token than DAOP",
        1, unit="1", reproduced=Band(low=1), direction=Band(low=0.5),
        why="all of them; direction: half", needs=(SPEED,), counters=OF_SPEED,
        measure=m.at_setting(m.most_efficient, "256 tokens, simulated powers"),
    ),
)  # fmt: skip

# ----------------------------------------------------------------------------- Tables V and VI


def _table_5(setting: str) -> float:
    """The largest change that the paper's own table has."""
    rows = [row for row in daop_table_5() if row.model == _TABLE_NAMES[setting]]
    score = {(row.method, row.dataset): row.score for row in rows}
    return round(
        max(abs(score["daop", d] - score["official", d]) for _, d in score), 2
    )  # fmt: skip


def table_6(setting: str, dataset: str, metric: str, ratio: float) -> float:
    """The paper's change of a score against the model as published, in points."""
    score = {
        row.cache_ratio: row.score
        for row in daop_table_6()
        if (row.model, row.dataset, row.metric) == (_TABLE_NAMES[setting], dataset, metric)
    }
    return round(score[ratio] - score[1.0], 2)


#: Columns of Table VI but GSM8K's; Phi has no TriviaQA.
_OTHERS = {
    "D1": (("TriviaQA", "exact_match"), ("BBH", "exact_match"), ("TruthfulQA", "rouge_1"),
           ("TruthfulQA", "rouge_2")),
    "D2": (("BBH", "exact_match"), ("TruthfulQA", "rouge_1"), ("TruthfulQA", "rouge_2")),
}  # fmt: skip


def _mean_of_others(setting: str, ratio: float) -> float:
    changes = [table_6(setting, *column, ratio) for column in _OTHERS[setting]]
    return round(sum(changes) / len(changes), 2)


_ACCURACY = (
    *(
        _claim(
            f"D-10 {MODELS[setting]}", "Table V",
            f"{MODELS[setting]}, 25 % cached: largest change of a score that prefill decides",
            _table_5(setting), unit="points", measure=m.first_token_change(setting),
            reproduced=Band(high=1.3), direction=Band(high=3), needs=(FIRST_TOKEN,),
            why="the paper's own largest change; direction: small",
        )
        for setting in MODELS
    ),
    *(
        _claim(
            f"D-11 {MODELS[setting]} {100 * ratio:g} %", "Table VI",
            f"{MODELS[setting]}, {100 * ratio:g} % cached: mean change of whole answers' scores, "
            "all but mathematics",
            _mean_of_others(setting, ratio), unit="points", needs=(WHOLE_ANSWERS,),
            measure=m.others_change(setting, ratio), reproduced=Band(low=-4, high=4),
            direction=Band(low=-10),
            why="about what the paper's columns change; direction: a tenth is lost at most",
        )
        for setting in MODELS
        for ratio in (0.375, 0.25)
    ),
    *(
        _claim(
            f"D-11 {MODELS[setting]} exception", "Table VI",
            f"{MODELS[setting]}, 25 % cached: mathematics' change less the others'",
            round(table_6(setting, "GSM8K", "exact_match", 0.25) - _mean_of_others(setting, 0.25),
                  2),
            unit="points", measure=m.maths_falls_more(setting), needs=(WHOLE_ANSWERS,),
            reproduced=Band(high=-5),
            direction=Band(high=-0.1),
            why="five points or more; direction: it falls more (this edge was 0 before it was "
            "measured: no change at all has no direction)",
            counters=(
                CounterExperiment(
                    "words written on GSM8K against TriviaQA (data folder): share unchanged",
                    ON_REAL_SETS,
                    m.words_change_more,
                ),
            ),
        )
        for setting in MODELS
    ),
    *(
        _claim(
            f"D-11 {MODELS[setting]} {dataset}{' ' + metric if 'rouge' in metric else ''}",
            "Table VI", f"{MODELS[setting]}, 25 % cached: change on {dataset}, {metric}",
            table_6(setting, dataset, metric, 0.25), unit="points",
            not_measurable=f"the scale model cannot answer {dataset}, so that a loss is not seen; "
            f"needs the real weights: moebench run --setting {setting} --system daop "
            "--cache-ratio 0.25 --scoring generation --weights DIR --data-dir DIR",
        )
        for setting in MODELS
        for dataset, metric in (*_OTHERS[setting], ("GSM8K", "exact_match"))
    ),
)  # fmt: skip

CLAIMS = (*_ROUTING, *_TABLE_1, *_SPEED, *_ENERGY, *_ACCURACY)
