"""SMoE's claims S-1 to S-4, against its four baselines (Fig. 11 to 13)."""

from functools import partial

from moebench.harness.reproduce.bands import Bands, at_least, near
from moebench.harness.reproduce.claim import Claim
from moebench.harness.reproduce.read import TPOT, TTFT, difference
from moebench.harness.reproduce.smoe.experiments import (
    AGAINST_OTHERS,
    LOADED_PREFILL,
    LONG_PROMPTS,
    MAIN,
    SETTINGS,
)
from moebench.harness.reproduce.smoe.measures import (
    BEGUN,
    COMPLETE,
    change,
    gain,
    least,
    main,
    ratio,
)
from moebench.results.claims import Band

_claim = partial(Claim, needs=(MAIN,), counters=AGAINST_OTHERS)


def _faster(paper: float) -> Bands:
    """Return the bands of a time that is shorter than the best baseline's, in percent."""
    why = "ten points around the paper's figure: its own settings differ by 14 at batch 1"
    return near(paper, 10, Band(high=0), why)


_TPOT = [
    _claim(
        f"S-1 b{batch}", "Fig. 11",
        f"mean TPOT against the best baseline at batch {batch}, over S1-S3 and five workloads",
        paper, "%", _faster(paper), main(change(TPOT, batch=batch)),
    )
    for batch, paper in ((1, -24), (3, -35))
] + [
    _claim(
        f"S-2 {setting} b{batch}", "Fig. 11",
        f"mean TPOT against the best baseline, {setting} at batch {batch}",
        paper, "%", _faster(paper), main(change(TPOT, setting=setting, batch=batch)),
    )
    for setting, batch, paper in (("S3", 1, -34), ("S3", 3, -48), ("S1", 1, -20), ("S1", 3, -27))
]  # fmt: skip

_ORDERS = [
    _claim(
        "S-1 b3 less b1", "Fig. 11", "the change of TPOT at batch 3 less that at batch 1", -11,
        "points",
        Bands(Band(low=-22, high=-3), Band(high=0),
              "from a quarter to twice the paper's difference; the direction is that batches gain "
              "more"),
        main(difference(change(TPOT, batch=3), change(TPOT, batch=1))),
    ),
    *(
        _claim(
            f"S-2 S3 less S1 b{batch}", "Fig. 11",
            f"the change of TPOT on S3 less that on S1, batch {batch}", paper, "points",
            Bands(Band(low=2 * paper, high=paper / 4), Band(high=0),
                  "from a quarter to twice the paper's difference; the direction is that S3 gains "
                  "more"),
            main(difference(change(TPOT, setting="S3", batch=batch),
                            change(TPOT, setting="S1", batch=batch))),
        )
        for batch, paper in ((1, -14), (3, -21))
    ),
]  # fmt: skip

_COUNTS = {
    "complete": (COMPLETE, "complete on the device when the gate is known"),
    "begun": (BEGUN, "a copy that has begun counts, as in the authors' code"),
}

_GAIN = "at least the paper's figure, less ten points; the direction is any gain"
_HITS = "the direction is that most active experts hit"

_RATIOS = [
    claim
    for count, (path, said) in _COUNTS.items()
    for claim in (
        *(
            _claim(
                f"S-3 {setting} {count}", "Fig. 12",
                f"cache ratio on {setting} above the best baseline's, relative ({said}); at least "
                "65 %", 65, "%", at_least(55, 1, _GAIN), main(gain(path, setting)),
            )
            for setting in SETTINGS
        ),
        _claim(
            f"S-3 v1 {count}", "first version, Fig. 13",
            f"the least of these gains over S1-S3 ({said}); at least 66 %", 66, "%",
            at_least(56, 1, _GAIN), main(least([gain(path, setting) for setting in SETTINGS])),
        ),
        _claim(
            f"S-3 absolute {count}", "abstract",
            f"the lowest cache ratio over S1-S3 ({said}); above 60 %", 60, "%",
            at_least(60, 50, f"the paper's own bound; {_HITS}"),
            main(least([ratio(path, setting) for setting in SETTINGS])),
        ),
        _claim(
            f"S-3 S3 71 {count}", "§I", f"cache ratio on S3 ({said})", 71, "%",
            near(71, 10, Band(low=50), f"ten points around the paper's figure; {_HITS}"),
            main(ratio(path, "S3")),
        ),
    )
]  # fmt: skip

_TTFTS = [
    _claim(
        f"S-4 {version}", place, "mean TTFT against the best baseline at batch 1", paper, "%",
        _faster(paper), main(change(TTFT, batch=1)),
        counters=(*AGAINST_OTHERS, LONG_PROMPTS, LOADED_PREFILL),
    )
    for version, place, paper in (("v2", "Fig. 13", -11), ("v1", "first version, Fig. 14", -23))
]  # fmt: skip

CLAIMS = (*_TPOT, *_ORDERS, *_RATIOS, *_TTFTS)
