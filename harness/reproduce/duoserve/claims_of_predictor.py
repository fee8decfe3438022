"""DuoServe-MoE's claims about its predictor and matrices, with bands fixed before measuring."""

from dataclasses import replace

from moebench.harness.reproduce.bands import Bands, at_least, at_most, half_to_twice, near, within
from moebench.harness.reproduce.claim import LEAN, Claim, CounterExperiment
from moebench.harness.reproduce.duoserve import experiments as e
from moebench.harness.reproduce.duoserve import measures as m
from moebench.harness.reproduce.duoserve import measures_of_predictor as mp
from moebench.harness.reproduce.duoserve.claims_of_times import OF_MODEL
from moebench.results.claims import Band

#: Hit rates of the predictor in percent: both experts right, and at least one.
TABLE_3 = {
    ("8x7B", "equations"): (66.85, 95.45), ("8x7B", "passages"): (60.23, 92.31),
    ("8x22B", "equations"): (56.21, 90.45), ("8x22B", "passages"): (54.16, 90.31),
}  # fmt: skip


def _hit(model: str, workload: str, kind: str, paper: float) -> Claim:
    experiment, _ = OF_MODEL[model]
    if kind == "top-2":
        path = mp.BOTH_RIGHT
        why = "ten points; direction: more than three times chance (1 in 28)"
        bands = near(paper, 10, Band(low=3 / 28 * 100), why)
    else:
        path = mp.ONE_RIGHT
        why = "at most five points below; direction: above chance (13 in 28)"
        bands = at_least(paper - 5, 13 / 28 * 100, why)
    return Claim(
        f"U-5 {model} {e.DATASETS[workload]} {kind}", "Table 3",
        f"{model} on {e.DATASETS[workload]}: predictor, {kind}", paper, "%", bands,
        m.of_one(experiment, mp.hits(path, workload), workload), (experiment,),
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
            m.of_one(experiment, mp.orca_more(mp.BOTH_RIGHT)), (experiment,),
            (
                CounterExperiment(
                    f"texts of GSM8K and SQuAD themselves (data folder), {setting}",
                    {**e.REAL_TEXTS, "setting": setting},
                    mp.gsm8k_more(experiment),
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
        mp.reserved_mb, (e.SMALL,),
    ),
    Claim(
        "U-6 weights", "§6.4", "predictor: its seven layers' weights in fp32", 300, "MB", _MB,
        mp.component("predictor's memory", "a5000@duoserve"),
        counters=(
            CounterExperiment(
                "a network of its own for each of 31 predicted layers",
                measure=mp.component("predictor's memory", "a5000@duoserve", times=31), always=True,
                reading=True,
            ),
        ),
    ),
    *(
        Claim(
            f"U-6 time {model}", "§6.4", f"predictor: time of a prediction, {model}", 0.6, "ms",
            Bands(Band(low=0.45, high=0.75), Band(low=0.15, high=1.2),
                  "a quarter either way; direction: a quarter to twice"),
            mp.component("predictor", machine),
        )
        for model, machine in (("8x7B", "a5000@duoserve"), ("8x22B", "a6000@duoserve"))
    ),
    Claim(
        "U-6 hidden", "§6.4", "the most that predictions could add to a token", None, "%",
        at_most(5, 10, "minimised: at most a twentieth of a token; direction: a tenth"),
        m.of_both(mp.predicting_share), e.BOTH,
        (
            LEAN,
            CounterExperiment(
                "the paper's 0.6 ms a prediction in place of launches alone",
                measure=m.of_both(mp.predicting_share_at(0.6)), always=True, reading=True,
            ),
        ),
    ),
    *(
        Claim(
            f"U-6 epochs {model}", "§6.4", f"{model}: epochs that suffice", paper, "1",
            Bands(Band(low=low, high=high), Band(low=low / 3, high=2 * high),
                  "the paper's range; direction: from a third to twice"),
            mp.sufficient(experiment), (experiment,),
        )
        for model, experiment, paper, low, high in (
            ("8x7B", e.SMALL, 17.5, 15, 20), ("8x22B", e.LARGE, 42.5, 40, 45),
        )
    ),
    Claim(
        "U-6 epochs order", "§6.4", "8x22B's epochs less 8x7B's", 25, "1",
        Bands(Band(low=12), None, "half of the paper's; direction: a quarter of it").effect(25),
        mp.more_epochs, e.BOTH,
    ),
    Claim(
        "U-6 data", "§6.4", "share of the data set that the predictor is trained on", 2.5, "%",
        not_measurable="how little data suffices depends on the real model's routing; needs the "
        "real weights and all of Orca-Math: moebench run --system duoserve --setting U2 --weights "
        "DIR --data-dir hub: --workload orca_math --calibrate-texts N",
    ),
    Claim(
        "U-6 collection", "§6.4",
        "time to collect the predictor's data with ACC's schedule, 2.5 % of a data set", 6.5, "h",
        Bands(Band(low=5, high=8), Band(low=2.5, high=16),
              "the paper's 5 to 8 hours, of devices and models; direction: from half to twice"),
        m.of_both(m.collection_hours(), "a text times 2,190 and 5,001 texts, mean of cells"),
        e.BOTH,
        (
            e.VLLM,
            CounterExperiment(
                "outputs of 256 tokens, from TTFT and TPOT",
                measure=m.of_both(m.collection_hours(256), "outputs of 256 tokens"), always=True,
                reading=True,
            ),
        ),
    ),
    Claim(
        "U-6 preprocessing", "§6.4", "time of the whole preprocessing: at most 9 hours", 9, "h",
        not_measurable="the collection (U-6 collection) and the training, whose computer, number "
        "of tokens and batches are not stated: what it would take there cannot be charged",
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
        ("popularity", "a layer's most popular expert", mp.popular, 2),
        ("affinity", "the likeliest expert after another", mp.affine, 3),
    )
)  # fmt: skip

CLAIMS_OF_PREDICTOR = (*_PREDICTOR, *_MATRICES)
