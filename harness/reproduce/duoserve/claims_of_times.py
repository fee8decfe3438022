"""DuoServe-MoE's claims about times and memory, with bands that were fixed before measuring.

A speed-up is reproduced from half to one and a half times the paper's gain, has its direction from
a quarter of the gain on, and is no effect below that.  The paper states no spreads.
"""

from functools import partial

from moebench.harness.reproduce.bands import Bands, at_least, every, half, sign, within
from moebench.harness.reproduce.claim import Claim, CounterExperiment
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


#: Another length of outputs, which the paper does not state.
_LONG = 256


def _gain(
    id: str, place: str, statement: str, paper: float, figure: Figure, said: str,
    long: Figure | None = None,
) -> Claim:  # fmt: skip
    """Return the claim of a speed-up; ``long`` is the figure for outputs of `_LONG` tokens."""
    why = "from half to one and a half times the paper's gain; direction: a quarter of it or more"
    return _claim(
        id, place, statement, paper, "×", half(paper, "×", why), m.of_both(figure, said),
        counters=e.OF_TIMES if long is None else (
            *e.OF_TIMES,
            CounterExperiment(
                f"outputs of {_LONG} tokens, from TTFT and TPOT", measure=m.of_both(long, said),
                always=True, reading=True,
            ),
        ),
    )  # fmt: skip


_CELLS = "U1 to U4, both workloads, both baselines"

_LATENCY = (
    _gain("U-1 TTFT least", "Fig. 5", "TTFT: least speed-up over ACC and MoESys", 1.78,
          m.least(TTFT), _CELLS),
    _gain("U-1 TTFT greatest", "Fig. 5", "TTFT: greatest speed-up over ACC and MoESys", 3.8,
          m.greatest(TTFT), _CELLS),
    _gain("U-1 end-to-end least", "Fig. 5", "end-to-end: least speed-up over ACC and MoESys",
          1.42, m.least(E2E), _CELLS, m.least(_LONG)),
    _gain("U-1 end-to-end greatest", "Fig. 5",
          "end-to-end: greatest speed-up over ACC and MoESys", 7.54, m.greatest(E2E), _CELLS,
          m.greatest(_LONG)),
    _claim(
        "U-1 order", "Fig. 5", "share of cells and baselines that are slower in both times", 1,
        "1", every("all of them; direction: half"), m.of_both(m.faster_share, _CELLS),
        counters=e.OF_TIMES,
    ),
    _claim(
        "U-1 MoESys", "§6.2", "share of cells in which MoESys is slowest, end-to-end", 1, "1",
        at_least(0.95, 0.5, '"much higher latency": in every cell; direction: half'),
        m.of_both(m.slower_than_acc, "U1 to U4, both workloads"), counters=e.OF_TIMES,
    ),
    *(
        _gain(f"U-2 {said}", "§6.2", f"end-to-end over ACC on {said}", paper,
              m.over_acc(workload=workload), f"{workload}, mean of U1 to U4",
              m.over_acc(_LONG, workload=workload))
        for (workload, said), paper in zip(e.DATASETS.items(), (1.52, 1.47), strict=True)
    ),
    *(
        _claim(
            f"U-2 {name}", "§6.2", f"end-to-end over ACC: {said}", paper, "×",
            _SIGN if paper is None else _BY_DATA_SET,
            m.of_both(difference(m.over_acc(**more), m.over_acc(**less))), counters=e.OF_TIMES,
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
    *(
        _claim(
            f"{number} copies in {said}", "Fig. 4",
            f"{said}: share of the time in which an expert is copied", None, "%",
            at_least(90, 50, '"constantly fetching new weights": nine tenths; direction: half'),
            m.of_both(figure, "U1 to U4, both workloads"), counters=e.OF_TIMES,
        )
        for number, said, figure in (
            ("U-1", "prefill", m.copying_in_prefill), ("U-3", "decode", m.copying_in_decode),
        )
    ),
    *(
        _claim(
            f"{number} fetch against compute", place,
            f"{phase}: time in which experts are fetched over time in which the device computes",
            None, "×",
            sign(0.25, "fetching is \"slower compared to the expert operator computation\": a "
                 "quarter longer; direction: a sixteenth longer", none=1),
            m.of_both(partial(m.fetching_over_computing, phase=phase), "U1 to U4, both workloads"),
            counters=e.OF_TIMES,
        )
        for number, place, phase in (("U-1", "§5.2", "prefill"), ("U-3", "§5.3", "decode"))
    ),
    _gain("U-3 least", "Fig. 6", "decode throughput: least speed-up", 1.78, m.least(TPOT), _CELLS),
    _gain("U-3 greatest", "Fig. 6", "decode throughput: greatest speed-up", 7.04,
          m.greatest(TPOT), _CELLS),
    _claim(
        "U-3 by card", "§6.2", "decode throughput: mean speed-up on the A5000 less on the A6000",
        None, "×", _SIGN,
        m.of_both(difference(m.card(("U1", "U3"), TPOT), m.card(("U2", "U4"), TPOT))),
        counters=e.OF_TIMES,
    ),
    _claim(
        "U-3 broader", "Fig. 6", "spread of decode throughput over the baselines' wider one",
        None, "×",
        sign(0.2, "a fifth more is seen in a chart; direction: a twentieth more", none=1),
        m.broader, counters=(*e.OF_TIMES, e.RECORDED),
    ),
)  # fmt: skip

#: Peak memory in GB by model: of each system, and of the whole model (``gpu-only``).
TABLE_2 = {
    "8x7B": {"moesys": 4.24, "acc": 3.63, "duoserve": 3.91, "gpu-only": 25.14},
    "8x22B": {"moesys": 9.13, "acc": 8.06, "duoserve": 8.44, "gpu-only": 138.0},
}  # fmt: skip


#: The experiment and the settings of each model.
OF_MODEL = {"8x7B": (e.SMALL, e.SMALL_CELLS), "8x22B": (e.LARGE, e.LARGE_CELLS)}


def _peak(model: str, system: str, paper: float) -> Claim:
    counted = system == "gpu-only"
    experiment, settings = OF_MODEL[model]
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
    experiment, settings = OF_MODEL[model]
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
    Claim(
        "U-4 8x7B non-MoE weights", "§1", "8x7B: weights that are of no expert", 2.15, "GB",
        within(2.15, 0.15, "bytes are counted: within 15 %; direction: from half to twice"),
        m.of_non_experts("mixtral-8x7b"),
        counters=(
            CounterExperiment(
                "non-MoE weights in 16 bits", measure=m.of_non_experts("mixtral-8x7b", "bf16"),
                always=True, reading=True,
            ),
        ),
    ),
    *(
        Claim(
            f"U-4 {model} non-MoE share", "§5.1", f"{model}: non-MoE weights over all weights", 10,
            "%", within(10, 0.25, '"about 10%": within a quarter; direction: from half to twice'),
            m.of_non_experts(name, share=True),
            counters=(
                CounterExperiment(
                    "non-MoE weights in 16 bits",
                    measure=m.of_non_experts(name, "bf16", share=True), always=True, reading=True,
                ),
            ),
        )
        for model, name in m.MODEL_OF.items()
    ),
    _of_whole("8x7B", "abstract", 15, Band(low=12, high=18), 30,
              "a small part, at most twice the figure"),
    _of_whole("8x22B", "Table 2", 6.1, Band(low=4.9, high=7.3), 15, "at most the abstract's 15 %"),
)  # fmt: skip

CLAIMS_OF_TIMES = (*_LATENCY, *_MEMORY)
