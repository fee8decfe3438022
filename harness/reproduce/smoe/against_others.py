"""S-1 to S-4: SMoE against its four baselines (Fig. 11 to 13)."""

from moebench.harness.reproduce.claim import Claim, CounterExperiment
from moebench.harness.reproduce.smoe.experiments import (
    AGAINST_OTHERS,
    LONG_PROMPTS,
    MAIN,
    SETTINGS,
)
from moebench.harness.reproduce.smoe.explained import explanation
from moebench.harness.reproduce.smoe.measures import (
    BEGUN,
    COMPLETE,
    TPOT,
    TTFT,
    Figure,
    change,
    difference,
    gain,
    least,
    main,
    ratio,
)
from moebench.results.claims import Band

_TEN_POINTS = "ten points around the paper's figure: its own settings differ by 14 at batch 1"


def _claim(
    id: str, place: str, statement: str, paper: float, figure: Figure, reproduced: Band,
    direction: Band, why: str, unit: str = "%",
    counters: tuple[CounterExperiment, ...] = AGAINST_OTHERS,
) -> Claim:  # fmt: skip
    return Claim(
        id=id, place=place, statement=statement, paper=paper, unit=unit, reproduced=reproduced,
        direction=direction, why=why, measure=main(figure), needs=(MAIN,), counters=counters,
        explanation=explanation(id),
    )  # fmt: skip


def _faster(
    id: str, place: str, what: str, paper: float, figure: Figure,
    counters: tuple[CounterExperiment, ...] = AGAINST_OTHERS,
) -> Claim:  # fmt: skip
    """A time that is so much shorter than the best baseline's."""
    around = Band(low=paper - 10, high=paper + 10)
    return _claim(
        id, place, what, paper, figure, around, Band(high=0), _TEN_POINTS, counters=counters
    )


_TPOT = [
    _faster(
        f"S-1 b{batch}", "Fig. 11",
        f"mean TPOT against the best baseline at batch {batch}, over S1-S3 and five workloads",
        paper, change(TPOT, batch=batch),
    )
    for batch, paper in ((1, -24), (3, -35))
] + [
    _faster(
        f"S-2 {setting} b{batch}", "Fig. 11",
        f"mean TPOT against the best baseline, {setting} at batch {batch}",
        paper, change(TPOT, setting=setting, batch=batch),
    )
    for setting, batch, paper in (("S3", 1, -34), ("S3", 3, -48), ("S1", 1, -20), ("S1", 3, -27))
]  # fmt: skip

_ORDERS = [
    _claim(
        "S-1 b3 less b1", "Fig. 11", "the change of TPOT at batch 3 less that at batch 1", -11,
        difference(change(TPOT, batch=3), change(TPOT, batch=1)),
        Band(low=-22, high=-3), Band(high=0),
        "from a quarter to twice the paper's difference; the direction is that batches gain more",
        "points",
    ),
    *(
        _claim(
            f"S-2 S3 less S1 b{batch}", "Fig. 11",
            f"the change of TPOT on S3 less that on S1, batch {batch}", paper,
            difference(change(TPOT, setting="S3", batch=batch),
                       change(TPOT, setting="S1", batch=batch)),
            Band(low=2 * paper, high=paper / 4), Band(high=0),
            "from a quarter to twice the paper's difference; the direction is that S3 gains more",
            "points",
        )
        for batch, paper in ((1, -14), (3, -21))
    ),
]  # fmt: skip

_COUNTS = {
    "complete": (COMPLETE, "complete on the device when the gate is known"),
    "begun": (BEGUN, "a copy that has begun counts, as in the authors' code"),
}

_RATIOS = [
    claim
    for count, (path, said) in _COUNTS.items()
    for claim in (
        *(
            _claim(
                f"S-3 {setting} {count}", "Fig. 12",
                f"cache ratio on {setting} above the best baseline's, relative ({said}); at least "
                "65 %", 65, gain(path, setting), Band(low=55), Band(low=1),
                "at least the paper's figure, less ten points; the direction is any gain",
            )
            for setting in SETTINGS
        ),
        _claim(
            f"S-3 v1 {count}", "first version, Fig. 13",
            f"the least of these gains over S1-S3 ({said}); at least 66 %", 66,
            least([gain(path, setting) for setting in SETTINGS]), Band(low=56), Band(low=1),
            "at least the paper's figure, less ten points; the direction is any gain",
        ),
        _claim(
            f"S-3 absolute {count}", "abstract",
            f"the lowest cache ratio over S1-S3 ({said}); above 60 %", 60,
            least([ratio(path, setting) for setting in SETTINGS]), Band(low=60), Band(low=50),
            "the paper's own bound; the direction is that most active experts hit",
        ),
        _claim(
            f"S-3 S3 71 {count}", "§I", f"cache ratio on S3 ({said})", 71, ratio(path, "S3"),
            Band(low=61, high=81), Band(low=50),
            "ten points around the paper's figure; the direction is that most active experts hit",
        ),
    )
]  # fmt: skip

_TTFTS = [
    _faster(
        f"S-4 {version}", place, "mean TTFT against the best baseline at batch 1", paper,
        change(TTFT, batch=1), (*AGAINST_OTHERS, LONG_PROMPTS),
    )
    for version, place, paper in (("v2", "Fig. 13", -11), ("v1", "first version, Fig. 14", -23))
]  # fmt: skip

CLAIMS = (*_TPOT, *_ORDERS, *_RATIOS, *_TTFTS)
