"""DAOP's claims, with bands that were fixed before measuring.

A speed or an efficiency is reproduced within a quarter of the paper's figure and has its direction
from half to twice; a gain is reproduced from half to one and a half times, has its direction from a
quarter on, and is no effect below that.  The paper states no spreads.
"""

from moebench.harness.reproduce.bands import Bands, at_most, every, half, quarter, sign
from moebench.harness.reproduce.claim import Claim, CounterExperiment
from moebench.harness.reproduce.daop import experiments as e
from moebench.harness.reproduce.daop import measures as m
from moebench.results.claims import Band
from moebench.results.paper_tables import daop_table_5, daop_table_6

_HALF = "from half to one and a half times the paper's gain; direction: a quarter of it or more"
_OF_GAIN = (*e.OF_SPEED, e.SHIPPED)

#: Names of the models in `paper_tables`, by setting.
_TABLE_NAMES = {"D1": "mixtral-8x7b", "D2": "phi-3.5-moe"}

# ----------------------------------------------------------------------------- routing

_DATASETS = {"C4": ("c4", 90.05), "MATH": ("math", 90.37), "GSM8K": ("gsm8k", 91.74)}
_SIMILAR = Bands(
    Band(low=85.5, high=95.5), Band(low=80),
    "half of what lacks to 100 % either way; direction: similar, at least 80 %",
)  # fmt: skip

_ROUTING = (
    *(
        Claim(
            f"D-1 {name}", "Table II", f"{name}: expert use in prefill and decode, cosine", paper,
            "%", _SIMILAR, m.similarity(workload), counters=(e.RECORDED,),
        )
        for name, (workload, paper) in _DATASETS.items()
    ),
    Claim(
        "D-1 average", "Table II", "expert use in prefill and decode, mean of the three", 90.72,
        "%", _SIMILAR, m.similarity(*(workload for workload, _ in _DATASETS.values())),
        counters=(e.RECORDED,),
    ),
    Claim(
        "D-2 mean", "Fig. 5", "next layer's experts predicted by its gate on the current state",
        84.11, "%",
        Bands(Band(low=80, high=88), Band(low=62.5),
              "four points either way; direction: nearer to certainty than to chance (25 %)"),
        m.recall,
    ),
    Claim(
        "D-2 first layers", "Fig. 5", "predictions of the first layers less those of the others",
        None, "points",
        sign(-5, "five points or more are seen in a chart; direction: a quarter of that"),
        m.low_at_first,
    ),
    Claim(
        "D-12", "§VI-B", "similarity of 15-token windows on GSM8K against TriviaQA", -3.43, "%",
        Bands(Band(low=-5.15, high=-1.72), None, _HALF).effect(-3.43), m.windows_change,
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

#: Rows of Table I: name, the paper's figure in ms, and the charged component.
TABLE_1 = (
    ("block on the CPU", 8.02, "transformer block on the host: attention, 2 experts"),
    ("block on the GPU", 1.24, "transformer block on the device: attention, gate, 2 experts, sum"),
    ("expert migration", 39.87, "expert, host to device"),
    ("input or output", 0.02, m.ACTIVATION),
)

_TABLE_1 = tuple(
    Claim(
        f"D-3 {name}", "Table I", f"Mixtral on an A100: {name}", paper, "ms",
        quarter(paper, ".  The profile takes numbers from this table and from the authors' code"),
        m.charged(what), counters=(_THERE_AND_BACK,) if what == m.ACTIVATION else (),
    )
    for name, paper, what in TABLE_1
)  # fmt: skip

# ----------------------------------------------------------------------------- Fig. 9 and 10

#: DAOP's tokens/s by setting: for [256, 512], and for [256, 256] with 25 % of experts cached.
FIG_9, FIG_10 = {"D1": 4.52, "D2": 8.21}, {"D1": 3.23, "D2": 5.03}

_SPEED = (
    *(
        Claim(
            f"D-4 {e.MODELS[setting]}", "Fig. 9", f"{e.MODELS[setting]}, [256, 512], DAOP", paper,
            "tokens/s", quarter(paper),
            m.at_setting(m.speed(setting, "daop", 512), "for 512 tokens"), (e.SPEED,), e.OF_SPEED,
        )
        for setting, paper in FIG_9.items()
    ),
    Claim(
        "D-4 over Fiddler", "Fig. 9", "[256, 512], DAOP over Fiddler, mean of both models", 40.4,
        "%", half(40.4, "%", _HALF),
        m.at_setting(lambda runs: m.over_fiddler(m.of_shared_ratio(runs), 512), "for 512 tokens"),
        (e.SPEED,), _OF_GAIN,
    ),
    *(
        Claim(
            f"D-5 {said}", "Fig. 9", f"Mixtral, [256, 512], {said}: less than one token/s", 1,
            "tokens/s", at_most(1, 2, "as stated; direction: less than half of DAOP's 4.52"),
            m.at_setting(m.speed("D1", system, 512), "for 512 tokens"), (e.SPEED,), e.OF_SPEED,
        )
        for said, system in (
            ("MoE-OnDemand", "moe-ondemand"), ("DeepSpeed-MII", "deepspeed-mii"),
            ("Mixtral-Offloading", "mixtral-offloading"),
        )
    ),
    Claim(
        "D-6 over Fiddler", "Fig. 10", "[256, 256], DAOP over Fiddler, mean over cache ratios",
        35.4, "%", half(35.4, "%", _HALF),
        m.by_ratio(lambda runs: m.over_fiddler(runs, 256), "for 256 tokens"), (e.BY_RATIO,),
        _OF_GAIN,
    ),
    *(
        Claim(
            f"D-6 {e.MODELS[setting]} 25 %", "Fig. 10",
            f"{e.MODELS[setting]}, [256, 256], 25 % of experts cached, DAOP", paper, "tokens/s",
            quarter(paper), m.by_ratio(m.speed(setting, "daop", 256, 0.25), "for 256 tokens"),
            (e.BY_RATIO,), e.OF_SPEED,
        )
        for setting, paper in FIG_10.items()
    ),
    *(
        Claim(
            f"D-7 {said}", "Fig. 9", f"{said}: tokens/s of 512 tokens out over 128", None, "%",
            sign(3, "three percent or more are seen in a chart; direction: a quarter of that"),
            m.at_setting(
                lambda runs, system=system: m.gain_of_length(system, runs),  # type: ignore[misc]
                "TPOT is the same for both lengths",
            ),
            (e.SPEED,), (e.SHIPPED, e.LIVE),
        )
        for said, system in (("Fiddler", "fiddler"), ("DAOP", "daop"))
    ),
    Claim(
        "D-8 caching and prefetching", "abstract",
        "greatest speed-up over MoE-OnDemand and Mixtral-Offloading", 8.20, "×",
        half(8.20, "×", _HALF),
        m.at_setting(
            lambda runs: m.greatest_over(("moe-ondemand", "mixtral-offloading"), runs),
            "both models, 256 and 512 tokens",
        ),
        (e.SPEED,), _OF_GAIN,
    ),
    Claim(
        "D-8 offloading", "abstract", "speed-up over Fiddler, mean over cache ratios", 1.35, "×",
        half(1.35, "×", _HALF),
        m.by_ratio(lambda runs: 1 + m.over_fiddler(runs, 256) / 100, "for 256 tokens"),
        (e.BY_RATIO,), _OF_GAIN,
    ),
)  # fmt: skip

# ----------------------------------------------------------------------------- Table IV

#: The paper's tokens per kJ by setting and system.
TABLE_4 = {
    "D1": {
        "moe-ondemand": 2.63, "deepspeed-mii": 0.59, "mixtral-offloading": 2.13,
        "fiddler": 10.06, "daop": 14.37,
    },
    "D2": {"moe-ondemand": 6.94, "fiddler": 17.15, "daop": 27.07},
}  # fmt: skip

_ENERGY = (
    *(
        Claim(
            f"D-9 {e.MODELS[setting]} {system}", "Table IV",
            f"{e.MODELS[setting]}, [256, 256], {system}", paper, "tokens/kJ", quarter(paper),
            m.at_setting(m.efficiency(setting, system), "256 tokens, simulated powers"),
            (e.SPEED,), e.OF_SPEED,
        )
        for setting, row in TABLE_4.items()
        for system, paper in row.items()
    ),
    Claim(
        "D-9 over Fiddler", "Table IV", "tokens/kJ, DAOP over Fiddler, mean of both models", 1.50,
        "×", half(1.50, "×", _HALF),
        m.at_setting(m.efficiency_over_fiddler, "256 tokens, simulated powers"), (e.SPEED,),
        _OF_GAIN,
    ),
    Claim(
        "D-9 order", "Table IV", "share of other systems that use more energy a token than DAOP",
        1, "1", every("all of them; direction: half"),
        m.at_setting(m.most_efficient, "256 tokens, simulated powers"), (e.SPEED,), e.OF_SPEED,
    ),
)  # fmt: skip

# ----------------------------------------------------------------------------- Tables V and VI


def _table_5(setting: str) -> float:
    """Return the largest change of a score in the paper's Table V, in points."""
    rows = [row for row in daop_table_5() if row.model == _TABLE_NAMES[setting]]
    score = {(row.method, row.dataset): row.score for row in rows}
    return round(
        max(abs(score["daop", d] - score["official", d]) for _, d in score), 2
    )  # fmt: skip


def table_6(setting: str, dataset: str, metric: str, ratio: float) -> float:
    """Return the change of a score from that of the original model in Table VI, in points."""
    score = {
        row.cache_ratio: row.score
        for row in daop_table_6()
        if (row.model, row.dataset, row.metric) == (_TABLE_NAMES[setting], dataset, metric)
    }
    return round(score[ratio] - score[1.0], 2)


#: Columns of Table VI except GSM8K; Phi has no TriviaQA.
_OTHERS = {
    "D1": (("TriviaQA", "exact_match"), ("BBH", "exact_match"), ("TruthfulQA", "rouge_1"),
           ("TruthfulQA", "rouge_2")),
    "D2": (("BBH", "exact_match"), ("TruthfulQA", "rouge_1"), ("TruthfulQA", "rouge_2")),
}  # fmt: skip


def _mean_of_others(setting: str, ratio: float) -> float:
    changes = [table_6(setting, *column, ratio) for column in _OTHERS[setting]]
    return round(sum(changes) / len(changes), 2)


def _maths_less_others(setting: str) -> float:
    """Return how much more the score on GSM8K falls than the others at 25 %, in points."""
    return round(table_6(setting, "GSM8K", "exact_match", 0.25) - _mean_of_others(setting, 0.25), 2)


def _exception(setting: str) -> Bands:
    """Return the bands of how much more mathematics falls: five points, and above no effect."""
    paper = _maths_less_others(setting)
    why = "five points or more, but no less than a quarter of the paper's; below that, no effect"
    return Bands(Band(high=min(-5, paper / 4)), None, why).effect(paper)


_ACCURACY = (
    *(
        Claim(
            f"D-10 {e.MODELS[setting]}", "Table V",
            f"{e.MODELS[setting]}, 25 % cached: largest change of a score that prefill decides",
            _table_5(setting), "points",
            at_most(1.3, 3, "the paper's own largest change; direction: small"),
            m.first_token_change(setting), (e.FIRST_TOKEN,),
        )
        for setting in e.MODELS
    ),
    *(
        Claim(
            f"D-11 {e.MODELS[setting]} {100 * ratio:g} %", "Table VI",
            f"{e.MODELS[setting]}, {100 * ratio:g} % cached: mean change of whole answers' scores, "
            "all but mathematics",
            _mean_of_others(setting, ratio), "points",
            Bands(Band(low=-4, high=4), Band(low=-10),
                  "about what the paper's columns change; direction: a tenth is lost at most"),
            m.others_change(setting, ratio), (e.WHOLE_ANSWERS,),
        )
        for setting in e.MODELS
        for ratio in (0.375, 0.25)
    ),
    *(
        Claim(
            f"D-11 {e.MODELS[setting]} exception", "Table VI",
            f"{e.MODELS[setting]}, 25 % cached: mathematics' change less the others'",
            _maths_less_others(setting), "points",
            _exception(setting),
            m.maths_falls_more(setting), (e.WHOLE_ANSWERS,),
            (
                CounterExperiment(
                    "words written on GSM8K against TriviaQA (data folder): share unchanged",
                    e.ON_REAL_SETS,
                    m.words_change_more,
                ),
            ),
        )
        for setting in e.MODELS
    ),
    *(
        Claim(
            f"D-11 {e.MODELS[setting]} {dataset}{' ' + metric if 'rouge' in metric else ''}",
            "Table VI", f"{e.MODELS[setting]}, 25 % cached: change on {dataset}, {metric}",
            table_6(setting, dataset, metric, 0.25), "points",
            not_measurable=f"the scale model cannot answer {dataset}, so that a loss is not seen; "
            f"needs the real weights: moebench run --setting {setting} --system daop "
            "--cache-ratio 0.25 --scoring generation --weights DIR --data-dir DIR",
        )
        for setting in e.MODELS
        for dataset, metric in (*_OTHERS[setting], ("GSM8K", "exact_match"))
    ),
)  # fmt: skip

CLAIMS = (*_ROUTING, *_TABLE_1, *_SPEED, *_ENERGY, *_ACCURACY)
