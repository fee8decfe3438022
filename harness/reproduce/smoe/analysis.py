"""SMoE's claims S-11 to S-15: effects of α, gate scores, and the times of one expert."""

from functools import partial

from moebench.harness.reproduce.bands import Bands, at_least, at_most, half, near, sign
from moebench.harness.reproduce.claim import Claim, CounterExperiment
from moebench.harness.reproduce.smoe.components import (
    MACHINE,
    longest_limit,
    over_lane,
    over_one_row,
    prompt_over,
)
from moebench.harness.reproduce.smoe.experiments import (
    ABLATION,
    ALONE,
    CHEAPLY_PREDICTED,
    CONTROLS,
    SETTINGS,
    THRESHOLDS,
)
from moebench.harness.reproduce.smoe.importance import (
    falls_with_low_share,
    first_over_rival,
    inactive_reuse_falls,
    last_over_rival,
    of_gates,
    of_steps,
    reuse_falls,
)
from moebench.harness.reproduce.smoe.measures import measured
from moebench.harness.reproduce.smoe.thresholds import (
    LITTLE_UP_TO,
    above,
    accuracy,
    fall,
    largest,
    linearity,
    loss_unseen,
    of_curve,
    paper_changes,
    pick_error,
)
from moebench.results.claims import Band, Tag
from moebench.substrate.machines.protocol import Lane

#: The paper's names of the models, and the α that it chooses for each model.
MODELS = {"S1": "Deepseek", "S2": "Xverse", "S3": "Qwen"}
OWN_ALPHA = {"S1": 0.35, "S2": 0.3, "S3": 0.25}
DATASETS = ("GaoKao", "WiC", "triviaqa", "race", "gsm8k")


_of_alpha = partial(Claim, needs=(THRESHOLDS,), counters=(*ALONE, CHEAPLY_PREDICTED))
_of_gates = partial(Claim, needs=(ABLATION,), counters=ALONE)

# ----------------------------------------------------------------------------- Table IV

_LITTLE = at_most(
    3, 6,
    f"three points: the paper's own series change by up to 2.6 at α ≤ {LITTLE_UP_TO}; six would "
    "still be little",
)  # fmt: skip

_ACCURACY = [
    claim
    for setting, model in MODELS.items()
    for claim in (
        Claim(
            f"S-11 {setting}", "Table IV",
            f"{model}: change of mean accuracy over five workloads at its α, {OWN_ALPHA[setting]}",
            round(paper_changes(setting)[OWN_ALPHA[setting]], 2), "points",
            at_least(-2, -5,
                     "a loss of two points at most: about the standard error of the paper's 1,000 "
                     "prompts; five would still be a small one"),
            accuracy(setting, None, lambda changes, a=OWN_ALPHA[setting]: changes[a]),  # type: ignore[misc]
            needs=(CONTROLS,), control=loss_unseen(setting),
        ),
        Claim(
            f"S-11 {setting} above", "Table IV, §VI-B",
            f"{model}: mean change of accuracy at α above {LITTLE_UP_TO} less that up to it, over "
            "five workloads; the text calls the variation negligible below it alone",
            round(above(paper_changes(setting)), 2), "points",
            half(above(paper_changes(setting)), "points", "half to one and a half of the fall that "
                 "Table IV prints"),
            accuracy(setting, None, above), needs=(CONTROLS,), control=loss_unseen(setting),
        ),
        Claim(
            f"S-11 {setting} largest", "Table IV",
            f"{model}: largest change of the mean accuracy at α ≤ {LITTLE_UP_TO}",
            round(largest(paper_changes(setting)), 2), "points", _LITTLE,
            accuracy(setting, None, largest), needs=(CONTROLS,), control=loss_unseen(setting),
        ),
        *(
            Claim(
                f"S-11 {setting} {dataset}", "Table IV",
                f"{model} on {dataset}: largest change of accuracy at α ≤ {LITTLE_UP_TO}",
                round(largest(paper_changes(setting, dataset)), 2), "points", _LITTLE,
                accuracy(setting, dataset, largest),
            )
            for dataset in DATASETS
        ),
    )
]  # fmt: skip

# ----------------------------------------------------------------------------- Fig. 10

_CURVES = [
    claim
    for setting in SETTINGS
    for claim in (
        _of_alpha(
            f"S-12 {setting} linear", "Fig. 10",
            f"R² of a straight line through TPOT over α, {setting}: about linear", None, "1",
            at_least(0.9, 0.7, "nine tenths of the variance is about linear; the direction is most "
                     "of it"),
            measured(of_curve(linearity, setting), THRESHOLDS),
        ),
        _of_alpha(
            f"S-12 {setting} fall", "Fig. 10",
            f"change of TPOT from α = 0 to 0.6, {setting}: falls", None, "%",
            sign(-10, "the paper says falls without a figure: a tenth or more"),
            measured(of_curve(fall, setting), THRESHOLDS),
        ),
        _of_alpha(
            f"S-12 {setting} pick", "Eq. 5",
            f"how far the α that a fit of degree 2 picks for a TPOT budget is off, {setting}", None,
            "1", at_most(0.05, 0.1, "one step of Table IV's α; the direction is two"),
            measured(of_curve(pick_error, setting), THRESHOLDS),
        ),
    )
]  # fmt: skip

# ----------------------------------------------------------------------------- Fig. 4, 6, 8

_REUSE = [
    _of_gates(
        f"S-13 {setting} {which}", "Fig. 6 (first version: Fig. 11)",
        f"{MODELS[setting]}: rank correlation of the score's rank, {said}, with use in the next 3 "
        "iterations: higher is likelier", None, "1",
        at_least(strict, loose, "all but strictly falling; the direction is a clear trend"),
        of_gates(figure, setting),
    )
    for setting in SETTINGS
    for which, said, figure, strict, loose in (
        ("all", "active or not", reuse_falls, 0.95, 0.8),
        ("inactive", "inactive ones alone", inactive_reuse_falls, 0.9, 0.7),
    )
]  # fmt: skip

_FLAT = near(
    1, 0.1, Band(high=1.5), "a tenth is flat; the direction is much less than the number of rows"
)


def _six_cores(lane: Lane, rows: int) -> tuple[CounterExperiment, ...]:
    """Return the counter-experiment on the host of the first version, in place of Fig. 8's."""
    return (
        CounterExperiment(
            f"the 6 cores of the first version's §6.1 ({MACHINE}) in place of the figure's 8",
            measure=over_one_row(lane, rows, MACHINE), always=True, reading=True,
        ),
    )  # fmt: skip


_EXPERTS = [
    Claim(
        f"S-14 {side} b{rows}", "Fig. 8",
        f"an expert's time on the {side} for {rows} rows over that for one: flat", 1, "1",
        _FLAT, over_one_row(lane, rows),
        counters=_six_cores(lane, rows) if lane is Lane.HOST else (),
    ).tagged(Tag.CANNOT_FAIL, "the cost model's time is a roofline, flat until the products take "
             "longer than reading the weights")
    for side, lane, rows in (
        ("GPU", Lane.DEVICE, 3), ("GPU", Lane.DEVICE, 8), ("host", Lane.HOST, 3),
    )
] + [
    Claim(
        "S-14 host b8", "Fig. 8, first version §5.1",
        "an expert's time on the host for 8 rows over that for one: linear in rows", 8, "1",
        Bands(Band(low=4, high=12), None,
              "half to one and a half of the first version's line").effect(7, none=1),
        over_one_row(Lane.HOST, 8), counters=_six_cores(Lane.HOST, 8),
    ),
]  # fmt: skip

#: The host in prefill (first version, §4.1).
_PROMPTS = [
    Claim(
        "S-14 host prefill", "first version, §4.1",
        "an expert's time on the host in a prompt of 512 tokens over that in one of 256: linear in "
        "tokens", 2, "1",
        Bands(Band(low=1.75, high=2.25), None,
              "a quarter of the line's growth either way").effect(1, none=1),
        prompt_over(512, 256),
    ).tagged(Tag.CANNOT_FAIL, "the cost model's time is a roofline, linear as soon as the products "
             "take longer than reading the weights"),
    Claim(
        "S-14 host prefill limit", "first version, §4.1",
        "the longest prompt, over S1-S3, from which an expert takes longer on the host than its "
        "load: a certain threshold", None, "tokens",
        Bands(Band(low=2, high=512), Band(low=2, high=2048),
              "the paper states none: its workloads' prompts have some hundred tokens; the "
              "direction is that long prompts exceed it, and one token does not"),
        longest_limit,
    ),
]  # fmt: skip

_ONE_TO_TWO = "one to two orders of magnitude; the direction is half an order"
_ONE = "the nearest power of ten is ten; the direction is twice"

#: Fig. 3 with the words of both versions: side, place, words, bands.
_FIG_3 = [
    Claim(
        f"S-14 {side} over GPU, {version}", place,
        f"{said}, an expert and one token on the A6000, mean of three models", None, "×", bands,
        over_lane(lane), (ABLATION,),
    )
    for side, lane, version, place, said, bands in (
        ("PCIe", Lane.H2D, "v2", "Fig. 3, §III",
         "loading over PCIe against computing on the GPU: can be one to two orders slower",
         Bands(Band(low=10, high=100), Band(low=3.16), _ONE_TO_TWO)),
        ("CPU", Lane.HOST, "v2", "Fig. 3, §III",
         "computing on the CPU against the GPU: typically one order slower",
         Bands(Band(low=3.16, high=31.6), Band(low=2), _ONE)),
        ("PCIe", Lane.H2D, "v1", "first version, Fig. 6",
         "loading over PCIe against computing on the GPU: can be two orders slower",
         Bands(Band(low=31.6, high=316), Band(low=3.16),
               "the nearest power of ten is a hundred; the direction is half an order")),
        ("CPU", Lane.HOST, "v1", "first version, Fig. 6",
         "computing on the CPU against the GPU: typically one to two orders slower",
         Bands(Band(low=10, high=100), Band(low=3.16), _ONE_TO_TWO)),
    )
]  # fmt: skip

_FIG_3.append(
    Claim(
        "S-14 CPU over PCIe", "Fig. 3, §III",
        "computing on the CPU against loading over PCIe, an expert and one token on the A6000, "
        "mean of three models: one order above the GPU's time, where loading is one to two", None,
        "×",
        Bands(Band(low=0.1, high=0.8), None,
              "up to an order less, and at least a fifth less").effect(-0.2, none=1),
        over_lane(Lane.HOST, Lane.H2D), (ABLATION,),
    )
)  # fmt: skip

_ROUTER = [
    _of_gates(
        "S-6 router by low share", "Fig. 15, §VI-C",
        "rank correlation over S1-S3 of the share of low-score experts with the fall, by the "
        "router, of low-score experts off the device: grows more pronounced", 1, "1",
        Bands(Band(low=0.75), None,
              "the same order of the three settings, or nearly in the mean of seeds").effect(1),
        of_steps(falls_with_low_share("+CR", "+CE")),
    ),
]  # fmt: skip

_SCORES = [
    claim
    for setting in SETTINGS
    for claim in (
        _of_gates(
            f"S-15 {setting} first", "Fig. 4",
            f"{MODELS[setting]}: mean best score over that of the best inactive expert: high", None,
            "1", at_least(2, 1.3, "twice is clearly high; the direction is more than any α of "
                          "Table III would replace"),
            of_gates(first_over_rival, setting),
        ),
        _of_gates(
            f"S-15 {setting} last", "Fig. 4",
            f"{MODELS[setting]}: mean worst active score over the best inactive one's: similar",
            None, "1", at_most(1.2, 1.35, "a fifth is similar; the direction is within the largest "
                               "α of Table III"),
            of_gates(last_over_rival, setting),
        ),
    )
]  # fmt: skip

CLAIMS = (
    *_ACCURACY, *_CURVES, *_REUSE, *_EXPERTS, *_PROMPTS, *_FIG_3, *_ROUTER, *_SCORES,
)  # fmt: skip
