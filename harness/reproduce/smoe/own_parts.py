"""SMoE's claims S-5 to S-10: the effect of each of its parts (Fig. 14 to 18, Table I)."""

from functools import partial

from moebench.harness.reproduce import bands
from moebench.harness.reproduce.bands import Bands, at_least, at_most, half_to_twice, near, sign
from moebench.harness.reproduce.claim import Claim, CounterExperiment
from moebench.harness.reproduce.read import LINK, TPOT
from moebench.harness.reproduce.smoe import measures as m
from moebench.harness.reproduce.smoe.components import EIGHT_CORES, OTHER_MACHINE, host_over_load
from moebench.harness.reproduce.smoe.experiments import (
    ABLATION,
    ALONE,
    CHEAPLY_PREDICTED,
    FROM_RESIDUAL,
    PREDICTION,
    TABLE_I,
)
from moebench.harness.reproduce.smoe.importance import (
    Kind,
    lowered,
    more_lowered,
    of_steps,
    of_table_1,
)
from moebench.harness.reproduce.smoe.measures import BEGUN, COMPLETE
from moebench.results.claims import Band, Tag

HOST_BASE, LOADED_BASE, FIFO_BASE = (
    "base, misses on the host", "base, misses loaded", "base, first in, first out",
)  # fmt: skip

_claim = partial(Claim, needs=(ABLATION,), counters=ALONE)
_steps = partial(m.measured, said="mean over S1-S3")

# ----------------------------------------------------------------------------- Fig. 14


def _faster(id: str, after: str, before: str, paper: float) -> Claim:
    return _claim(
        id, "Fig. 14", f"TPOT of {after} against {before}, batch 1", paper, "%",
        bands.change(
            paper, max(5.0, abs(paper) / 2),
            "from half to one and a half times the paper's change, and at least ten points wide",
        ),
        _steps(m.step(TPOT, after, before), ABLATION), counters=(*ALONE, CHEAPLY_PREDICTED),
    )  # fmt: skip


def _fuller(id: str, after: str, before: str, paper: float, path: str, said: str = "") -> Claim:
    return _claim(
        id, "Fig. 14", f"cache ratio of {after} against {said or before}, relative, batch 1", paper,
        "%",
        half_to_twice(paper, "from half to twice the paper's change; the direction is its sign"),
        _steps(m.step(path, after, before), ABLATION),
    )  # fmt: skip


#: The tag of the two figures that S3's host bandwidth was chosen by.
_IMPLIES = Tag.BY_CONSTRUCTION, "the host bandwidth in S3's profile is the one that it implies"

_STEPS = [
    _faster("S-5 +CE TPOT, host base", "+CE", HOST_BASE, -8).tagged(*_IMPLIES),
    _faster("S-5 +CE TPOT, loaded base", "+CE", LOADED_BASE, -8),
    _fuller("S-5 +CE ratio, host base", "+CE", HOST_BASE, 11, COMPLETE),
    _fuller("S-5 +CE ratio, loaded base", "+CE", LOADED_BASE, 11, COMPLETE),
    _faster("S-5 +CR TPOT", "+CR", "+CE", -20),
    _fuller("S-5 +CR ratio", "+CR", "+CE", 60, COMPLETE),
    _faster("S-5 +Pre TPOT", "+Pre", "+CR", -14),
    _fuller("S-5 +Pre ratio complete", "+Pre", "+CR", 12, COMPLETE),
    _fuller("S-5 +Pre ratio begun", "+Pre", "+CR", 12, BEGUN, "+CR (copies that have begun count)"),
    _faster("S-5 +BA TPOT", "+BA", "+Pre", -34).tagged(*_IMPLIES),
    _fuller("S-5 +BA ratio complete", "+BA", "+Pre", -3, COMPLETE),
    _fuller("S-5 +BA ratio begun", "+BA", "+Pre", -3, BEGUN, "+Pre (copies that have begun count)"),
    *(
        _claim(
            f"S-5 every step, {short}", "Fig. 14",
            f"share of the four steps from the {base}, on S1-S3, in which TPOT falls", 1, "1",
            at_least(0.9, 0.6, "one of twelve may be noise; the direction is that most do"),
            m.measured(m.faster_steps(base), ABLATION), counters=(*ALONE, CHEAPLY_PREDICTED),
        )
        for short, base in (("host base", HOST_BASE), ("loaded base", LOADED_BASE))
    ),
]  # fmt: skip

# ----------------------------------------------------------------------------- Fig. 15 to 18

_FALL = sign(-5, "the paper says lower without a figure: a fall of 5 % or more is seen in a chart")

_LOWERED: tuple[tuple[str, str, Kind], ...] = (
    ("+CE", HOST_BASE, "top"), ("+CE", HOST_BASE, "low"), ("+CR", "+CE", "low"),
    ("+Pre", "+CR", "top"),
)  # fmt: skip

_OFF_DEVICE = [
    _claim(
        f"S-6 {after} {kind}", "Fig. 15",
        f"share of active {kind}-score experts off the device, {after} against {before}: lower",
        None, "%", _FALL, of_steps(lowered(kind, after, before)),
    )
    for after, before, kind in _LOWERED
] + [
    _claim(
        "S-6 +CE top less low", "Fig. 15",
        "+CE lowers the share off the device more for top-score than for low-score experts", None,
        "points", sign(-2, "the paper says more notable without a figure: two points or more"),
        of_steps(more_lowered("+CE", HOST_BASE)),
    ),
]  # fmt: skip

_LINK = [
    _claim(
        "S-7 link", "Fig. 16", "the link's busy time in decode, +Pre against +CR: longer", None,
        "%", sign(2, "the paper says longer without a figure: 2 % or more"),
        _steps(m.step(LINK, "+Pre", "+CR"), ABLATION),
    ),
    _claim(
        "S-7 TPOT", "Fig. 16", "TPOT of +Pre against +CR: shorter", None, "%",
        sign(-2, "the paper says shorter without a figure here: 2 % or more"),
        _steps(m.step(TPOT, "+Pre", "+CR"), ABLATION), counters=(*ALONE, CHEAPLY_PREDICTED),
        tag=Tag.SAME_ROW, tag_reason="the figure of S-5 +Pre TPOT, with the band of a sign",
    ),
    _claim(
        "S-7 both", "Fig. 16",
        "share of S1-S3 on which +Pre makes the link busier and TPOT shorter", 1, "1",
        at_least(1, 0.5, "every setting; the direction is most"),
        m.measured(m.busier_yet_faster, ABLATION), counters=(*ALONE, CHEAPLY_PREDICTED),
    ),
]  # fmt: skip

_PUBLISHED: dict[str, str] = {}

_PREDICTION = [
    _claim(
        "S-8 top", "Fig. 17", "share of prefetched experts that are top-score", 82, "%",
        near(82, 10, Band(low=50),
             "ten points around the paper's figure; the direction is more than half"),
        _steps(lambda runs: m.top_share(runs.of(set=_PUBLISHED)), PREDICTION), needs=(PREDICTION,),
    ),
    _claim(
        "S-8 active", "Fig. 17",
        "share of prefetched experts that are active, of those that are not top-score", 95, "%",
        at_least(85, 50, "ten points below the paper's figure, or better; the direction is more "
                 "than half"),
        m.measured(lambda runs: m.active_share(runs.of(set=_PUBLISHED)), PREDICTION,
                 said="S1-S3 together"),
        needs=(PREDICTION,),
    ),
    _claim(
        "S-8 against the residual", "Fig. 17",
        "share of prefetched experts that are top-score, less that of predicting from the residual "
        "stream alone: significantly better", None, "points",
        sign(5, "the paper says significantly without a figure: five points or more"),
        _steps(
            lambda runs: m.top_share(runs.of(set=_PUBLISHED))
            - m.top_share(runs.of(set=FROM_RESIDUAL)),
            PREDICTION,
        ),
        needs=(PREDICTION,), counters=(),
    ),
]  # fmt: skip

_BALANCE = [
    _claim(
        "S-9 gap", "Fig. 18",
        "what +BA does to the difference of link and host time a token: narrower", None, "%",
        sign(-20, "the paper says minimises without a figure: a fifth or more"),
        _steps(m.gap_change, ABLATION),
    ),
    _claim(
        "S-9 covered", "Fig. 18",
        "the host's busy time over the link's with +BA: fully covered", 1, "1",
        at_most(1, 1.25, "covered is at most 1; the direction allows a quarter more"),
        _steps(m.host_to_link, ABLATION),
    ),
    Claim(
        "S-9 third", "Fig. 18", "an expert on the host over its load, S3", 0.333, "1",
        Bands(
            Band(low=0.25, high=0.42), Band(high=0.75),
            "a quarter either way; the direction is clearly below 1",
        ),
        host_over_load(), (ABLATION,),
        (
            CounterExperiment(
                f"another box with the same card ({OTHER_MACHINE}), whose profile takes no number "
                "from SMoE",
                {}, host_over_load(OTHER_MACHINE), always=True,
            ),
            CounterExperiment(
                f"the host of Fig. 8, which has 8 cores ({EIGHT_CORES}); takes no number from SMoE",
                {}, host_over_load(EIGHT_CORES), always=True,
            ),
        ),
    ),
    _claim(
        "S-9 third in total", "Fig. 18",
        "the host's busy time over the link's with +BA, S3: the other reading of \"CPU time in S3 "
        "being only one-third of load time\"", 0.333, "1",
        Bands(
            Band(low=0.25, high=0.42), Band(high=0.75),
            "a quarter either way; the direction is clearly below 1",
        ),
        m.measured(m.host_to_link_on("S3"), ABLATION, said="S3"),
    ),
]  # fmt: skip

_TABLE_1 = [
    _claim(
        f"S-10 {what}", "Table I", f"share of TPOT, S3 before substitution: {what}", paper, "%",
        near(paper, 10, direction, f"ten points around the paper's figure; {why}"),
        of_table_1(lambda row, what=what: row[what]),  # type: ignore[misc]
        needs=(TABLE_I,),
    )
    for what, paper, direction, why in (
        ("low-score loading", 42, Band(low=25), "the direction is at least a quarter"),
        ("top-score loading", 29, Band(low=10), "the direction is at least a tenth"),
        ("GPU computing", 29, Band(high=50), "the direction is less than half"),
    )
] + [
    _claim(
        "S-10 order", "Table I",
        "low-score loading less the larger of the other two shares: it is the main part", 13,
        "points",
        Bands(Band(low=4), None,
              "ten points below the paper's figure, and more than a quarter of it").effect(13),
        of_table_1(
            lambda row: row["low-score loading"]
            - max(row["top-score loading"], row["GPU computing"])
        ),
        needs=(TABLE_I,),
    ),
]  # fmt: skip

CLAIMS = (*_STEPS, *_OFF_DEVICE, *_LINK, *_PREDICTION, *_BALANCE, *_TABLE_1)
