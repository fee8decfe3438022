"""DuoServe-MoE's claims, with bands that were written before measuring.

Rules: of a speed-up half to one and a half times the paper's gain is reproduced, faster at all is
its direction.  The paper gives no spreads.
"""

from typing import Any

from moebench.harness.reproduce.claim import Claim, CounterExperiment
from moebench.harness.reproduce.duoserve import measures as m
from moebench.harness.reproduce.duoserve.experiments import (
    BOTH,
    DATASETS,
    LARGE,
    LARGE_CELLS,
    LEAN,
    PINNED,
    REAL_TEXTS,
    RECORDED,
    RING,
    SMALL,
    SMALL_CELLS,
)
from moebench.harness.reproduce.duoserve.explained import explanation
from moebench.results.claims import Band

_HALF = "from half to one and a half times the paper's gain; direction: faster"
_SIGN = (
    "the paper says it without a figure: a hundredth or more; direction: its sign (this edge was 0 "
    "before it was measured: no difference has no direction)"
)


def _claim(id: str, place: str, statement: str, paper: float | None, **of: Any) -> Claim:
    return Claim(
        id=id, place=place, statement=statement, paper=paper, explanation=explanation(id),
        **({"unit": "×", "needs": BOTH} | of),
    )  # fmt: skip


def _gain(id: str, place: str, statement: str, paper: float, figure: m.Figure, said: str) -> Claim:
    return _claim(
        id, place, statement, paper, measure=m.of_both(figure, said), counters=(LEAN, RING, PINNED),
        reproduced=Band(low=1 + (paper - 1) / 2, high=1 + 1.5 * (paper - 1)),
        direction=Band(low=1), why=_HALF,
    )  # fmt: skip


_CELLS = "U1 to U4, both workloads, both baselines"

_LATENCY = (
    _gain("U-1 TTFT least", "Fig. 5", "TTFT: least speed-up over ACC and MoESys", 1.78,
          m.least(m.TTFT), _CELLS),
    _gain("U-1 TTFT greatest", "Fig. 5", "TTFT: greatest speed-up over ACC and MoESys", 3.8,
          m.greatest(m.TTFT), _CELLS),
    _gain("U-1 end-to-end least", "Fig. 5", "end-to-end: least speed-up over ACC and MoESys",
          1.42, m.least(m.E2E), _CELLS),
    _gain("U-1 end-to-end greatest", "Fig. 5",
          "end-to-end: greatest speed-up over ACC and MoESys", 7.54, m.greatest(m.E2E), _CELLS),
    _claim(
        "U-1 order", "Fig. 5", "share of cells and baselines that are slower in both times", 1,
        unit="1", measure=m.of_both(m.faster_share, _CELLS), reproduced=Band(low=1),
        direction=Band(low=0.5), why="all of them; direction: half", counters=(LEAN, RING),
    ),
    _claim(
        "U-1 MoESys", "§6.2", "share of cells in which MoESys is slowest, end-to-end", 1, unit="1",
        measure=m.of_both(m.slower_than_acc, "U1 to U4, both workloads"),
        reproduced=Band(low=0.95), direction=Band(low=0.5), counters=(LEAN, RING),
        why='"much higher latency": in every cell; direction: half',
    ),
    *(
        _gain(f"U-2 {said}", "§6.2", f"end-to-end over ACC on {said}", paper,
              m.over_acc(workload=workload), f"{workload}, mean of U1 to U4")
        for (workload, said), paper in zip(DATASETS.items(), (1.52, 1.47), strict=True)
    ),
    *(
        _claim(
            f"U-2 {name}", "§6.2", f"end-to-end over ACC: {said}", paper,
            measure=m.of_both(m.difference(m.over_acc(**more), m.over_acc(**less))),
            reproduced=Band(low=0.01), direction=Band(low=0.001), why=_SIGN, counters=(LEAN,),
        )
        for name, said, paper, more, less in (
            ("by data set", "Orca-Math's less SQuAD's", 0.05, {"workload": "equations"},
             {"workload": "passages"}),
            ("by model", "8x7B's less 8x22B's", None, {"setting": SMALL_CELLS},
             {"setting": LARGE_CELLS}),
            ("by card", "A6000's less A5000's", None, {"setting": ("U2", "U4")},
             {"setting": ("U1", "U3")}),
        )
    ),
    _gain("U-3 least", "Fig. 6", "decode throughput: least speed-up", 1.78, m.least(m.TPOT),
          _CELLS),
    _gain("U-3 greatest", "Fig. 6", "decode throughput: greatest speed-up", 7.04,
          m.greatest(m.TPOT), _CELLS),
    _claim(
        "U-3 by card", "§6.2", "decode throughput: mean speed-up on the A5000 less on the A6000",
        None, reproduced=Band(low=0.01), direction=Band(low=0.001), why=_SIGN, counters=(LEAN,),
        measure=m.of_both(
            m.difference(m.card(("U1", "U3"), m.TPOT), m.card(("U2", "U4"), m.TPOT))
        ),
    ),
    _claim(
        "U-3 broader", "Fig. 6", "spread of decode throughput over the baselines' wider one",
        None, measure=m.broader, reproduced=Band(low=1.2), direction=Band(low=1),
        why="a fifth more is seen in a chart; direction: wider", counters=(LEAN, RECORDED),
    ),
)  # fmt: skip

#: Peak GB by model: of systems, and of the whole model.
TABLE_2 = {
    "8x7B": {"moesys": 4.24, "acc": 3.63, "duoserve": 3.91, "gpu-only": 25.14},
    "8x22B": {"moesys": 9.13, "acc": 8.06, "duoserve": 8.44, "gpu-only": 138.0},
}  # fmt: skip


def _peak(model: str, system: str, paper: float) -> Claim:
    counted = system == "gpu-only"
    experiment = SMALL if model == "8x7B" else LARGE
    return _claim(
        f"U-4 {model} {system}", "Table 2", f"{model}: peak device memory, {system}", paper,
        unit="GB", needs=() if counted else (experiment,),
        measure=m.of_gpu_only(m.MODEL_OF[model]) if counted
        else m.of_one(experiment, m.peak_gb(system, m.settings_of(model))),
        reproduced=Band(low=0.85 * paper, high=1.15 * paper),
        direction=Band(low=paper / 2, high=2 * paper),
        why="bytes are counted: within 15 %; direction: from half to twice",
    )  # fmt: skip


_MEMORY = (
    *(_peak(model, s, paper) for model, row in TABLE_2.items() for s, paper in row.items()),
    _claim(
        "U-4 order",
        "§6.3",
        "share of settings in which ACC needs least and MoESys most",
        1,
        unit="1",
        measure=m.of_both(m.order_of_peaks),
        reproduced=Band(low=1),
        direction=Band(low=0.5),
        why="as stated; direction: half",
    ),
    _claim(
        "U-7 8x7B",
        "abstract",
        "8x7B: peak memory over that of the whole model",
        15,
        unit="%",
        measure=m.of_one(SMALL, m.share_of_model(SMALL_CELLS, "mixtral-8x7b")),
        needs=(SMALL,),
        reproduced=Band(low=12, high=18),
        direction=Band(high=30),
        why="a fifth either way; direction: a small part, at most twice the figure",
    ),
    _claim(
        "U-7 8x22B",
        "Table 2",
        "8x22B: peak memory over that of the whole model",
        6.1,
        unit="%",
        measure=m.of_one(LARGE, m.share_of_model(LARGE_CELLS, "mixtral-8x22b")),
        needs=(LARGE,),
        reproduced=Band(low=4.9, high=7.3),
        direction=Band(high=15),
        why="a fifth either way; direction: at most the abstract's 15 %",
    ),
)

#: Top-2 and at least one, in percent.
TABLE_3 = {
    ("8x7B", "equations"): (66.85, 95.45), ("8x7B", "passages"): (60.23, 92.31),
    ("8x22B", "equations"): (56.21, 90.45), ("8x22B", "passages"): (54.16, 90.31),
}  # fmt: skip


def _hit(model: str, workload: str, kind: str, paper: float) -> Claim:
    experiment = SMALL if model == "8x7B" else LARGE
    both = kind == "top-2"
    return _claim(
        f"U-5 {model} {DATASETS[workload]} {kind}", "Table 3",
        f"{model} on {DATASETS[workload]}: predictor, {kind}", paper, unit="%",
        needs=(experiment,), counters=(RECORDED,) if model == "8x7B" else (),
        measure=m.of_one(
            experiment, m.hits(m.BOTH_RIGHT if both else m.ONE_RIGHT, workload), workload
        ),
        reproduced=Band(low=paper - 10, high=paper + 10) if both else Band(low=paper - 5),
        direction=Band(low=3 / 28 * 100) if both else Band(low=13 / 28 * 100),
        why=f"{'ten' if both else 'five'} points; direction: more than three times chance "
        "(1 in 28)" if both else "at most five points below; direction: above chance (13 in 28)",
    )  # fmt: skip


_PREDICTOR = (
    *(
        _hit(model, workload, kind, paper)
        for (model, workload), row in TABLE_3.items()
        for kind, paper in zip(("top-2", "at least one"), row, strict=True)
    ),
    *(
        _claim(
            f"U-5 {model} by data set", "Table 3",
            f"{model}: top-2 hits on Orca-Math less on SQuAD", paper, unit="points",
            needs=(experiment,), measure=m.of_one(experiment, m.orca_more(m.BOTH_RIGHT)),
            reproduced=Band(low=paper / 2, high=2 * paper), direction=Band(low=0),
            why="from half to twice the paper's difference; direction: its sign",
            counters=(
                CounterExperiment(
                    f"texts of GSM8K and SQuAD themselves (data folder), {setting}",
                    {**REAL_TEXTS, "setting": setting},
                    m.gsm8k_more(experiment),
                ),
            ),
        )
        for model, experiment, setting, paper in (
            ("8x7B", SMALL, "U1", 6.62), ("8x22B", LARGE, "U3", 2.05),
        )
    ),
    _claim(
        "U-6 memory", "§6.4", "predictor: memory", 300, unit="MB", needs=(SMALL,),
        measure=m.reserved_mb, reproduced=Band(low=240, high=360),
        direction=Band(low=150, high=600),
        why="a fifth either way; direction: half to twice.  It is an option whose default is the "
        "paper's figure",
    ),
    _claim(
        "U-6 weights", "§6.4", "predictor: its seven layers' weights in fp32", 300, unit="MB",
        needs=(), measure=m.component("predictor's memory", "a5000@duoserve"),
        reproduced=Band(low=240, high=360), direction=Band(low=150, high=600),
        why="a fifth either way; direction: half to twice",
        counters=(
            CounterExperiment(
                "a network of its own for each of 31 predicted layers",
                measure=m.component("predictor's memory", "a5000@duoserve", times=31),
            ),
        ),
    ),
    *(
        _claim(
            f"U-6 time {model}", "§6.4", f"predictor: time of a prediction, {model}", 0.6,
            unit="ms", needs=(), measure=m.component("predictor", machine),
            reproduced=Band(low=0.45, high=0.75), direction=Band(low=0.15, high=1.2),
            why="a quarter either way; direction: a quarter to twice",
        )
        for model, machine in (("8x7B", "a5000@duoserve"), ("8x22B", "a6000@duoserve"))
    ),
    _claim(
        "U-6 hidden", "§6.4", "the most that predictions could add to a token", None, unit="%",
        measure=m.of_both(m.predicting_share), reproduced=Band(high=5), direction=Band(high=10),
        why="minimised: at most a twentieth of a token; direction: a tenth", counters=(LEAN,),
    ),
    *(
        _claim(
            f"U-6 epochs {model}", "§6.4", f"{model}: epochs that suffice", paper, unit="1",
            needs=(experiment,), measure=m.sufficient(experiment),
            reproduced=Band(low=low, high=high), direction=Band(low=low / 3, high=2 * high),
            why="the paper's range; direction: from a third to twice",
        )
        for model, experiment, paper, low, high in (
            ("8x7B", SMALL, 17.5, 15, 20), ("8x22B", LARGE, 42.5, 40, 45),
        )
    ),
    _claim(
        "U-6 epochs order", "§6.4", "8x22B's epochs less 8x7B's", 25, unit="1",
        measure=m.more_epochs,
        reproduced=Band(low=12), direction=Band(low=0),
        why="half of the paper's difference or more; direction: its sign",
    ),
    _claim(
        "U-6 data", "§6.4", "share of the data set that the predictor is trained on", 2.5,
        unit="%", needs=(),
        not_measurable="how little data suffices depends on the real model's routing; needs the "
        "real weights and all of Orca-Math: moebench run --system duoserve --setting U2 --weights "
        "DIR --data-dir hub: --workload orca_math --calibrate-texts N",
    ),
    _claim(
        "U-6 collection", "§6.4", "time to collect the predictor's data: 5 to 8 hours", 6.5,
        unit="h", needs=(),
        not_measurable="needs the two cards and both models' 4-bit weights; here scale models "
        "write a few dozen texts",
    ),
)  # fmt: skip

_VISIBLE = "visible: a tenth above the even share; not concentrated: less than {} times it"

_MATRICES = tuple(
    _claim(
        f"U-8 {name}",
        "Fig. 2",
        f"{said}, over the even share: visible, not concentrated",
        None,
        measure=measure,
        needs=(SMALL,),
        reproduced=Band(low=1.1, high=high),
        direction=Band(low=1.02, high=8),
        why=_VISIBLE.format(high),
    )
    for name, said, measure, high in (
        ("popularity", "a layer's most popular expert", m.popular, 2),
        ("affinity", "the likeliest expert after another", m.affine, 3),
    )
)

CLAIMS = (*_LATENCY, *_MEMORY, *_PREDICTOR, *_MATRICES)
