"""DuoServe-MoE's claims, with bands that were fixed before measuring.

A speed-up is reproduced from half to one and a half times the paper's gain, has its direction from
a quarter of the gain on, and is no effect below that.  The paper states no spreads.
"""

from dataclasses import replace
from functools import partial

from moebench.harness.reproduce.bands import (
    Bands,
    at_least,
    at_most,
    every,
    half,
    half_to_twice,
    near,
    sign,
    within,
)
from moebench.harness.reproduce.claim import LEAN, Claim, CounterExperiment
from moebench.harness.reproduce.duoserve import experiments as e
from moebench.harness.reproduce.duoserve import measures as m
from moebench.harness.reproduce.read import E2E, TPOT, TTFT, Figure, difference
from moebench.results.claims import Band

_SIGN = sign(
    0.01, "the paper says it without a figure: a hundredth or more; direction: a quarter of that"
)
_BY_DATA_SET = Bands(
    Band(low=0.0125), None, "a quarter of the paper's difference or more: below that, no effect"
).effect(0.05)

_claim = partial(Claim, needs=e.BOTH)


def _gain(id: str, place: str, statement: str, paper: float, figure: Figure, said: str) -> Claim:
    why = "from half to one and a half times the paper's gain; direction: a quarter of it or more"
    return _claim(
        id, place, statement, paper, "×", half(paper, "×", why), m.of_both(figure, said),
        counters=(LEAN, e.RING, e.PINNED, e.PAGEABLE),
    )  # fmt: skip


_CELLS = "U1 to U4, both workloads, both baselines"

_LATENCY = (
    _gain("U-1 TTFT least", "Fig. 5", "TTFT: least speed-up over ACC and MoESys", 1.78,
          m.least(TTFT), _CELLS),
    _gain("U-1 TTFT greatest", "Fig. 5", "TTFT: greatest speed-up over ACC and MoESys", 3.8,
          m.greatest(TTFT), _CELLS),
    _gain("U-1 end-to-end least", "Fig. 5", "end-to-end: least speed-up over ACC and MoESys",
          1.42, m.least(E2E), _CELLS),
    _gain("U-1 end-to-end greatest", "Fig. 5",
          "end-to-end: greatest speed-up over ACC and MoESys", 7.54, m.greatest(E2E), _CELLS),
    _claim(
        "U-1 order", "Fig. 5", "share of cells and baselines that are slower in both times", 1,
        "1", every("all of them; direction: half"), m.of_both(m.faster_share, _CELLS),
        counters=(LEAN, e.RING),
    ),
    _claim(
        "U-1 MoESys", "§6.2", "share of cells in which MoESys is slowest, end-to-end", 1, "1",
        at_least(0.95, 0.5, '"much higher latency": in every cell; direction: half'),
        m.of_both(m.slower_than_acc, "U1 to U4, both workloads"), counters=(LEAN, e.RING),
    ),
    *(
        _gain(f"U-2 {said}", "§6.2", f"end-to-end over ACC on {said}", paper,
              m.over_acc(workload=workload), f"{workload}, mean of U1 to U4")
        for (workload, said), paper in zip(e.DATASETS.items(), (1.52, 1.47), strict=True)
    ),
    *(
        _claim(
            f"U-2 {name}", "§6.2", f"end-to-end over ACC: {said}", paper, "×",
            _SIGN if paper is None else _BY_DATA_SET,
            m.of_both(difference(m.over_acc(**more), m.over_acc(**less))), counters=(LEAN,),
        )
        for name, said, paper, more, less in (
            ("by data set", "Orca-Math's less SQuAD's", 0.05, {"workload": "equations"},
             {"workload": "passages"}),
            ("by model", "8x7B's less 8x22B's", None, {"setting": e.SMALL_CELLS},
             {"setting": e.LARGE_CELLS}),
            ("by card", "A6000's less A5000's", None, {"setting": ("U2", "U4")},
             {"setting": ("U1", "U3")}),
        )
    ),
    _gain("U-3 least", "Fig. 6", "decode throughput: least speed-up", 1.78, m.least(TPOT), _CELLS),
    _gain("U-3 greatest", "Fig. 6", "decode throughput: greatest speed-up", 7.04,
          m.greatest(TPOT), _CELLS),
    _claim(
        "U-3 by card", "§6.2", "decode throughput: mean speed-up on the A5000 less on the A6000",
        None, "×", _SIGN,
        m.of_both(difference(m.card(("U1", "U3"), TPOT), m.card(("U2", "U4"), TPOT))),
        counters=(LEAN,),
    ),
    _claim(
        "U-3 broader", "Fig. 6", "spread of decode throughput over the baselines' wider one",
        None, "×",
        sign(0.2, "a fifth more is seen in a chart; direction: a twentieth more", none=1),
        m.broader, counters=(LEAN, e.RECORDED),
    ),
)  # fmt: skip

#: Peak memory in GB by model: of each system, and of the whole model (``gpu-only``).
TABLE_2 = {
    "8x7B": {"moesys": 4.24, "acc": 3.63, "duoserve": 3.91, "gpu-only": 25.14},
    "8x22B": {"moesys": 9.13, "acc": 8.06, "duoserve": 8.44, "gpu-only": 138.0},
}  # fmt: skip


#: The experiment and the settings of each model.
_OF_MODEL = {"8x7B": (e.SMALL, e.SMALL_CELLS), "8x22B": (e.LARGE, e.LARGE_CELLS)}


def _peak(model: str, system: str, paper: float) -> Claim:
    counted = system == "gpu-only"
    experiment, settings = _OF_MODEL[model]
    return Claim(
        f"U-4 {model} {system}", "Table 2", f"{model}: peak device memory, {system}", paper, "GB",
        within(paper, 0.15, "bytes are counted: within 15 %; direction: from half to twice"),
        m.of_gpu_only(m.MODEL_OF[model]) if counted
        else m.of_one(experiment, m.peak_gb(system, settings)),
        () if counted else (experiment,),
    )  # fmt: skip


def _of_whole(
    model: str, place: str, paper: float, reproduced: Band, most: float, why: str
) -> Claim:
    experiment, settings = _OF_MODEL[model]
    return Claim(
        f"U-7 {model}", place, f"{model}: peak memory over that of the whole model", paper, "%",
        Bands(reproduced, Band(high=most), f"a fifth either way; direction: {why}"),
        m.of_one(experiment, m.share_of_model(settings, m.MODEL_OF[model])), (experiment,),
    )  # fmt: skip


_MEMORY = (
    *(_peak(model, s, paper) for model, row in TABLE_2.items() for s, paper in row.items()),
    _claim(
        "U-4 order", "§6.3", "share of settings in which ACC needs least and MoESys most", 1, "1",
        every("as stated; direction: half"), m.of_both(m.order_of_peaks),
    ),
    _of_whole("8x7B", "abstract", 15, Band(low=12, high=18), 30,
              "a small part, at most twice the figure"),
    _of_whole("8x22B", "Table 2", 6.1, Band(low=4.9, high=7.3), 15, "at most the abstract's 15 %"),
)  # fmt: skip

#: Hit rates of the predictor in percent: both experts right, and at least one.
TABLE_3 = {
    ("8x7B", "equations"): (66.85, 95.45), ("8x7B", "passages"): (60.23, 92.31),
    ("8x22B", "equations"): (56.21, 90.45), ("8x22B", "passages"): (54.16, 90.31),
}  # fmt: skip


def _hit(model: str, workload: str, kind: str, paper: float) -> Claim:
    experiment, _ = _OF_MODEL[model]
    if kind == "top-2":
        path = m.BOTH_RIGHT
        why = "ten points; direction: more than three times chance (1 in 28)"
        bands = near(paper, 10, Band(low=3 / 28 * 100), why)
    else:
        path = m.ONE_RIGHT
        why = "at most five points below; direction: above chance (13 in 28)"
        bands = at_least(paper - 5, 13 / 28 * 100, why)
    return Claim(
        f"U-5 {model} {e.DATASETS[workload]} {kind}", "Table 3",
        f"{model} on {e.DATASETS[workload]}: predictor, {kind}", paper, "%", bands,
        m.of_one(experiment, m.hits(path, workload), workload), (experiment,),
        (e.RECORDED,) if model == "8x7B" else (),
    )  # fmt: skip


_MB = within(300, 0.2, "a fifth either way; direction: half to twice")

_PREDICTOR = (
    *(
        _hit(model, workload, kind, paper)
        for (model, workload), row in TABLE_3.items()
        for kind, paper in zip(("top-2", "at least one"), row, strict=True)
    ),
    *(
        Claim(
            f"U-5 {model} by data set", "Table 3",
            f"{model}: top-2 hits on Orca-Math less on SQuAD", paper, "points",
            half_to_twice(
                paper, "from half to twice the paper's difference; direction: a quarter of it"
            ),
            m.of_one(experiment, m.orca_more(m.BOTH_RIGHT)), (experiment,),
            (
                CounterExperiment(
                    f"texts of GSM8K and SQuAD themselves (data folder), {setting}",
                    {**e.REAL_TEXTS, "setting": setting},
                    m.gsm8k_more(experiment),
                ),
            ),
        )
        for model, experiment, setting, paper in (
            ("8x7B", e.SMALL, "U1", 6.62), ("8x22B", e.LARGE, "U3", 2.05),
        )
    ),
    Claim(
        "U-6 memory", "§6.4", "predictor: memory", 300, "MB",
        replace(_MB, why=f"{_MB.why}.  It is an option whose default is the paper's figure"),
        m.reserved_mb, (e.SMALL,),
    ),
    Claim(
        "U-6 weights", "§6.4", "predictor: its seven layers' weights in fp32", 300, "MB", _MB,
        m.component("predictor's memory", "a5000@duoserve"),
        counters=(
            CounterExperiment(
                "a network of its own for each of 31 predicted layers",
                measure=m.component("predictor's memory", "a5000@duoserve", times=31),
            ),
        ),
    ),
    *(
        Claim(
            f"U-6 time {model}", "§6.4", f"predictor: time of a prediction, {model}", 0.6, "ms",
            Bands(Band(low=0.45, high=0.75), Band(low=0.15, high=1.2),
                  "a quarter either way; direction: a quarter to twice"),
            m.component("predictor", machine),
        )
        for model, machine in (("8x7B", "a5000@duoserve"), ("8x22B", "a6000@duoserve"))
    ),
    _claim(
        "U-6 hidden", "§6.4", "the most that predictions could add to a token", None, "%",
        at_most(5, 10, "minimised: at most a twentieth of a token; direction: a tenth"),
        m.of_both(m.predicting_share), counters=(LEAN,),
    ),
    *(
        Claim(
            f"U-6 epochs {model}", "§6.4", f"{model}: epochs that suffice", paper, "1",
            Bands(Band(low=low, high=high), Band(low=low / 3, high=2 * high),
                  "the paper's range; direction: from a third to twice"),
            m.sufficient(experiment), (experiment,),
        )
        for model, experiment, paper, low, high in (
            ("8x7B", e.SMALL, 17.5, 15, 20), ("8x22B", e.LARGE, 42.5, 40, 45),
        )
    ),
    _claim(
        "U-6 epochs order", "§6.4", "8x22B's epochs less 8x7B's", 25, "1",
        Bands(Band(low=12), None, "half of the paper's difference; direction: a quarter of it").effect(
            25
        ),
        m.more_epochs,
    ),
    Claim(
        "U-6 data", "§6.4", "share of the data set that the predictor is trained on", 2.5, "%",
        not_measurable="how little data suffices depends on the real model's routing; needs the "
        "real weights and all of Orca-Math: moebench run --system duoserve --setting U2 --weights "
        "DIR --data-dir hub: --workload orca_math --calibrate-texts N",
    ),
    Claim(
        "U-6 collection", "§6.4", "time to collect the predictor's data: 5 to 8 hours", 6.5, "h",
        not_measurable="needs the two cards and both models' 4-bit weights; here scale models "
        "write a few dozen texts",
    ),
)  # fmt: skip

_MATRICES = tuple(
    Claim(
        f"U-8 {name}", "Fig. 2", f"{said}, over the even share: visible, not concentrated", None,
        "×",
        Bands(Band(low=1.1, high=high), Band(low=1.025, high=8),
              "visible: a tenth above the even share; no effect: a quarter of that; not "
              f"concentrated: less than {high} times it",
              no_effect=Band(low=0.975, high=1.025)),
        measure, (e.SMALL,),
    )
    for name, said, measure, high in (
        ("popularity", "a layer's most popular expert", m.popular, 2),
        ("affinity", "the likeliest expert after another", m.affine, 3),
    )
)  # fmt: skip

CLAIMS = (*_LATENCY, *_MEMORY, *_PREDICTOR, *_MATRICES)
