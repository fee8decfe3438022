"""DAOP's claims about routing and accuracy, with bands that were fixed before measuring."""

from collections.abc import Callable
from functools import partial

from moebench.harness.reproduce.bands import Bands, at_most, sign
from moebench.harness.reproduce.claim import Claim, CounterExperiment
from moebench.harness.reproduce.controls import blind
from moebench.harness.reproduce.daop import experiments as e
from moebench.harness.reproduce.daop import measures_of_routing as m
from moebench.harness.reproduce.daop.claims_of_times import HALF
from moebench.harness.reproduce.evidence import Evidence
from moebench.results.claims import Band
from moebench.results.paper_tables import daop_table_5, daop_table_6, workload_of

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
        "D-1 all texts", "Fig. 4", "C4: a layer's most popular expert, over the even share", None,
        "×", at_most(1.5, 2, '"nearly uniform": at most half more; direction: less than twice'),
        m.most_popular,
    ),
    Claim(
        "D-1 single texts", "Fig. 4",
        "C4: a layer's most popular expert over the even share, in single texts less in all", None,
        "×", sign(0.5, '"significant": half of the even share or more; direction: a quarter of it'),
        m.more_in_one,
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
        Bands(Band(low=-5.15, high=-1.72), None, HALF).effect(-3.43),
        m.windows_change(m.successive),
        counters=(
            CounterExperiment(
                "each window against its text's whole decode, in place of the next window",
                measure=m.windows_change(m.to_the_whole), always=True, reading=True,
            ),
            CounterExperiment(
                "recordings of other models (data folder): mathematics against dialogue and prose",
                measure=m.recorded_windows_change,
            ),
        ),
    ),
)  # fmt: skip

# ----------------------------------------------------------------------------- Fig. 1 and 2

_SHARE = Bands(
    Band(low=26.4, high=28.4), Band(low=13.7, high=54.8),
    "a point either way, as its own Table III gives the figure; direction: half to twice",
)  # fmt: skip

_SIZES = (
    Claim(
        "D-13 one token", "§I, Fig. 1 and 2",
        "Mixtral 8x7B: share of its parameters that one token uses", 27.4, "%", _SHARE, m.of_token,
    ),
    Claim(
        "D-13 one sequence", "§I, Fig. 1 and 2",
        "Mixtral 8x7B: share of its parameters that one input sequence uses, as the text says",
        27.4, "%", _SHARE, m.of_sequences, counters=(e.RECORDED,),
    ),
    Claim(
        "D-13 beyond memory", "§I, Fig. 1 and 2",
        "the parameters in bf16 over the A6000's memory, the smaller of both models: not all "
        "experts fit", None, "×",
        sign(0.25, "the paper says limited without a figure: a quarter more than the memory or "
             "above", none=1),
        m.over_memory,
    ),
)  # fmt: skip

# ----------------------------------------------------------------------------- Tables V and VI


def table_5(setting: str, dataset: str) -> float:
    """Return DAOP's change of a score in the paper's Table V, in points."""
    score = {
        row.method: row.score
        for row in daop_table_5()
        if (row.model, row.dataset) == (_TABLE_NAMES[setting], dataset)
    }
    return round(score["daop"] - score["official"], 2)


#: Data sets of Table V, as printed.
TABLE_5 = tuple(dict.fromkeys(row.dataset for row in daop_table_5()))


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


def _control(setting: str, families: tuple[str, ...]) -> Callable[[Evidence], str]:
    """Return the positive control of some families' whole answers."""
    return partial(blind, experiment=e.WHOLE_ANSWERS_CONTROLS, setting=setting, workloads=families)


_ACCURACY = (
    *(
        Claim(
            f"D-10 {e.MODELS[setting]}", "Table V",
            f"{e.MODELS[setting]}, 25 % cached: largest change of a score that prefill decides",
            max(abs(table_5(setting, dataset)) for dataset in TABLE_5), "points",
            at_most(1.3, 3, "the paper's own largest change; direction: small"),
            m.first_token_change(setting), (e.FIRST_TOKEN, e.FIRST_TOKEN_CONTROLS),
            control=partial(blind, experiment=e.FIRST_TOKEN_CONTROLS, setting=setting),
        )
        for setting in e.MODELS
    ),
    *(
        Claim(
            f"D-10 {e.MODELS[setting]} {dataset}", "Table V",
            f"{e.MODELS[setting]} on {dataset}, 25 % cached: change of the score that prefill "
            "decides",
            table_5(setting, dataset), "points",
            Bands(Band(low=-1.3, high=1.3), Band(low=-3, high=3),
                  "the paper's own largest change, either way; direction: small"),
            m.first_token_cell(setting, workload_of("daop", dataset)),
            (e.FIRST_TOKEN, e.FIRST_TOKEN_CONTROLS),
            control=partial(
                blind, experiment=e.FIRST_TOKEN_CONTROLS, setting=setting,
                workloads=(workload_of("daop", dataset),),
            ),
        )
        for setting in e.MODELS
        for dataset in TABLE_5
    ),
    *(
        Claim(
            f"D-11 {e.MODELS[setting]} {100 * ratio:g} %", "Table VI",
            f"{e.MODELS[setting]}, {100 * ratio:g} % cached: mean change of whole answers' scores, "
            "all but mathematics",
            _mean_of_others(setting, ratio), "points",
            Bands(Band(low=-4, high=4), Band(low=-10),
                  "about what the paper's columns change; direction: a tenth is lost at most"),
            m.others_change(setting, ratio), (e.WHOLE_ANSWERS, e.WHOLE_ANSWERS_CONTROLS),
            control=_control(setting, e.OTHERS),
        )
        for setting in e.MODELS
        for ratio in (0.625, 0.5, 0.375, 0.25)
    ),
    *(
        Claim(
            f"D-11 {e.MODELS[setting]} exception", "Table VI",
            f"{e.MODELS[setting]}, 25 % cached: mathematics' change less the others'",
            _maths_less_others(setting), "points",
            _exception(setting),
            m.maths_falls_more(setting), (e.WHOLE_ANSWERS, e.WHOLE_ANSWERS_CONTROLS),
            control=_control(setting, (*e.MATHS, *e.OTHERS)),
            counters=(
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

CLAIMS_OF_ROUTING = (*_ROUTING, *_SIZES, *_ACCURACY)
