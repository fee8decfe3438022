"""SMoE's claims S-1 to S-4, against its four baselines (Fig. 11 to 13)."""

from typing import Any

from moebench.harness.reproduce import bands
from moebench.harness.reproduce.bands import Bands, at_least, near
from moebench.harness.reproduce.claim import Claim, CounterExperiment
from moebench.harness.reproduce.read import TPOT, TTFT, Figure, difference
from moebench.harness.reproduce.smoe.experiments import (
    AGAINST_OTHERS,
    LOADED_PREFILL,
    LONG_PROMPTS,
    MAIN,
    READINGS_OF_TPOT,
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
    without,
)
from moebench.results.claims import Band, Tag

#: Baselines that are left out once each, with the reason where the paper gives one.
_LEFT_OUT = {
    "hybrimoe": "without HybriMoE, which the first version's related work (§7) says is not a "
    "baseline; its §6.1 and the second version name it as one, with the same TPOT figures",
    "moe-infinity": "without MoE-Infinity",
    "llamacpp": "without llama.cpp",
    "deepspeed": "without DeepSpeed",
}


def _claim(
    id: str, place: str, statement: str, paper: float, unit: str, within: Bands, figure: Figure,
    *more: CounterExperiment, **changed: Any,
) -> Claim:  # fmt: skip
    """Return a claim against the best baseline, with a counter-experiment without each of them."""
    left_out = tuple(
        CounterExperiment(
            said, {}, main(without(figure, name), said), always=True, reading=name == "hybrimoe"
        )
        for name, said in _LEFT_OUT.items()
    )
    return Claim(
        id, place, statement, paper, unit, within, main(figure), (MAIN,),
        (*AGAINST_OTHERS, *left_out, *more), **changed,
    )  # fmt: skip


def _faster(paper: float) -> Bands:
    """Return the bands of a time that is shorter than the best baseline's, in percent."""
    why = "ten points around the paper's figure: its own settings differ by 14 at batch 1"
    return bands.change(paper, 10, why)


_TPOT = [
    _claim(
        f"S-1 b{batch}", "Fig. 11",
        f"mean TPOT against the best baseline at batch {batch}, over S1-S3 and five workloads",
        paper, "%", _faster(paper), change(TPOT, batch=batch), *READINGS_OF_TPOT,
    )
    for batch, paper in ((1, -24), (3, -35))
] + [
    _claim(
        f"S-2 {setting} b{batch}", "Fig. 11",
        f"mean TPOT against the best baseline, {setting} at batch {batch}",
        paper, "%", _faster(paper), change(TPOT, setting=setting, batch=batch), *READINGS_OF_TPOT,
    )
    for setting, batch, paper in (("S3", 1, -34), ("S3", 3, -48), ("S1", 1, -20), ("S1", 3, -27))
]  # fmt: skip

_DIFFERS = "from more than a quarter to twice the paper's difference"


def _by_more(paper: float, low: float, high: float) -> Bands:
    """Return the bands of a difference of two changes, in points."""
    return Bands(Band(low=low, high=high), None, _DIFFERS).effect(paper)


_ORDERS = [
    _claim(
        "S-1 b3 less b1", "Fig. 11", "the change of TPOT at batch 3 less that at batch 1", -11,
        "points", _by_more(-11, -22, -3),
        difference(change(TPOT, batch=3), change(TPOT, batch=1)), *READINGS_OF_TPOT,
    ),
    *(
        _claim(
            f"S-2 S3 less S1 b{batch}", "Fig. 11",
            f"the change of TPOT on S3 less that on S1, batch {batch}", paper, "points",
            _by_more(paper, 2 * paper, paper / 4),
            difference(change(TPOT, setting="S3", batch=batch),
                       change(TPOT, setting="S1", batch=batch)),
            *READINGS_OF_TPOT,
        )
        for batch, paper in ((1, -14), (3, -21))
    ),
]  # fmt: skip

_COUNTS = {
    "complete": (COMPLETE, "complete on the device when the gate is known"),
    "begun": (BEGUN, "a copy that has begun counts, as in the authors' code"),
}

_HITS = "the direction is that most active experts hit"


def _fuller(paper: float) -> Bands:
    """Return the bands of a cache ratio's gain over the best baseline's, in percent."""
    return Bands(
        Band(low=paper - 10), None, "at least the paper's figure, less ten points"
    ).effect(paper)  # fmt: skip


_RATIOS = [
    claim
    for count, (path, said) in _COUNTS.items()
    for claim in (
        *(
            _claim(
                f"S-3 {setting} {count}", "Fig. 12",
                f"cache ratio on {setting} above the best baseline's, relative ({said}); at least "
                "65 %", 65, "%", _fuller(65), gain(path, setting),
            )
            for setting in SETTINGS
        ),
        _claim(
            f"S-3 v1 {count}", "first version, Fig. 13",
            f"the least of these gains over S1-S3 ({said}); at least 66 %", 66, "%",
            _fuller(66), least([gain(path, setting) for setting in SETTINGS]),
            tag=Tag.SAME_ROW,
            tag_reason=f"the least of S-3 S1 {count}, S-3 S2 {count} and S-3 S3 {count}",
        ),
        _claim(
            f"S-3 absolute {count}", "abstract",
            f"the lowest cache ratio over S1-S3 ({said}); above 60 %", 60, "%",
            at_least(60, 50, f"the paper's own bound; {_HITS}"),
            least([ratio(path, setting) for setting in SETTINGS]),
        ),
        _claim(
            f"S-3 S3 71 {count}", "§I", f"cache ratio on S3 ({said})", 71, "%",
            near(71, 10, Band(low=50), f"ten points around the paper's figure; {_HITS}"),
            ratio(path, "S3"),
        ),
    )
]  # fmt: skip

_TTFTS = [
    _claim(
        f"S-4 {version}", place, "mean TTFT against the best baseline at batch 1", paper, "%",
        _faster(paper), change(TTFT, batch=1), LONG_PROMPTS, LOADED_PREFILL,
    )
    for version, place, paper in (("v2", "Fig. 13", -11), ("v1", "first version, Fig. 14", -23))
]  # fmt: skip

CLAIMS = (*_TPOT, *_ORDERS, *_RATIOS, *_TTFTS)
