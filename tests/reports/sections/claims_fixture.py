"""Results of two papers with everything that the pages of claims show, and a table of winners."""

from typing import Any

from moebench.results.claims import (
    Band,
    ClaimResult,
    Counter,
    Crossing,
    Exhibit,
    Measured,
    PaperResult,
    Point,
    Range,
    Tag,
    Verdict,
)

FIELD = "host.gemv_bandwidth"


def claim(name: str, verdict: Verdict, **of: Any) -> ClaimResult:
    """Return a claim about a change of TPOT, in the paper -24 %."""
    given = {
        "id": name, "place": "Fig. 11", "statement": "mean | TPOT", "paper": -24, "unit": "%",
        "reproduced": Band(low=-34, high=-14), "no_effect": Band(low=-6, high=6),
        "direction": Band(high=-6), "why": "its spread",
        "measured": Measured.of([-10, -12], "estimate", "S1-S3"), "verdict": verdict,
    }  # fmt: skip
    return ClaimResult(**(given | of))


def point(at: float, value: float, figure: float, verdict: Verdict) -> Point:
    """Return a point of a range on two machines of one value."""
    return Point(at=at, values={"a6000": value, "4060ti": value}, figure=figure, verdict=verdict)


#: The range of a headline's number: reproduced below 31 GB/s.
BANDWIDTH = Range(
    field=FIELD, unit="GB/s",
    points=(
        point(-1, 13, -23.7, Verdict.REPRODUCED), point(-0.5, 26, -22.6, Verdict.REPRODUCED),
        point(0, 78, -0.19, Verdict.NO_EFFECT), point(1, 90, 1.5, Verdict.NO_EFFECT),
    ),
    crossings=(
        Crossing(at=-0.4, values={"a6000": 31, "4060ti": 31}, below=Verdict.REPRODUCED,
                 above=Verdict.DIRECTION_ONLY),
        Crossing(at=-0.2, values={"a6000": 52.5, "4060ti": 52.5}, below=Verdict.DIRECTION_ONLY,
                 above=Verdict.NO_EFFECT),
    ),
    implied=({"a6000": 12.5, "4060ti": 14},),
)  # fmt: skip

#: A range within which nothing changes.
LINK = Range(
    field="link.pinned_h2d", unit="GB/s",
    points=(point(-1, 20, -1, Verdict.NO_EFFECT), point(0, 25, -0.19, Verdict.NO_EFFECT),
            point(1, 28, 0.4, Verdict.NO_EFFECT)),
)  # fmt: skip


def counter(name: str, value: float, verdict: Verdict, **of: Any) -> Counter:
    """Return a counter-experiment without an interval."""
    return Counter(name=name, measured=Measured.of([value], "estimate"), verdict=verdict, **of)


HEADLINE = claim(
    "S-1 b1", Verdict.NO_EFFECT, measured=Measured.of([-0.1, -0.28], "estimate", "S1-S3"),
    headline="TPOT at batch 1 against the best baseline", ranges=(BANDWIDTH, LINK),
    cause="The host computes experts faster here than the paper's ablation implies.",
    explanation="Baselines are as published.",
    counters=(
        counter("baselines as shipped", -18.7, Verdict.REPRODUCED, unchanged=-0.2, reading=True),
        counter("without HybriMoE", -39, Verdict.DIRECTION_ONLY, unchanged=-0.2, reading=True),
        counter("lean software", -0.5, Verdict.NO_EFFECT),
    ),
)  # fmt: skip
SHARES = claim("S-1 b3", Verdict.DIRECTION_ONLY, explanation="Baselines are as published.",
               place="Fig. 12", why="another reason")  # fmt: skip
EXACT = claim(
    "S-4 size", Verdict.REPRODUCED, paper=2.4, unit="GB", tag=Tag.BY_CONSTRUCTION,
    tag_reason="the size is the paper's own", reproduced=Band(low=2, high=3),
    measured=Measured.of([2.4], "counted", "exact: one size of each file"),
)  # fmt: skip
SOUND = claim("S-5", Verdict.REPRODUCED, measured=Measured.of([-20, -21], "estimate"))
BLIND = claim("S-6", Verdict.CANNOT_SHOW, reason="random substitution loses nothing either")
UNMEASURED = claim("S-7", Verdict.NOT_MEASURABLE, measured=None, reason="a power meter")


def result(paper: str, title: str, *claims: ClaimResult, **of: Any) -> PaperResult:
    """Return a paper's results of a full run."""
    given = {"quick": False, "provenance": {"commit": "1bb8f1df", "created": "2026-02-03T04:05"}}
    return PaperResult(paper=paper, title=title, claims=claims, **(given | of))


SMOE = result("smoe", "SMoE", HEADLINE, SHARES, EXACT, SOUND, BLIND, UNMEASURED)
DAOP = result("daop", "DAOP", claim("D-1", Verdict.REPRODUCED, headline="Tokens per second"))


def row(system: str, tpot_ms: float, lossless: bool = True, setting: str = "S3") -> dict[str, Any]:
    """Return a row of the table at equal memory."""
    return {"setting": setting, "model": "qwen2-57b-a14b", "machine": "a6000", "memory_gb": 24.0,
            "system": system, "tpot_ms": tpot_ms, "lossless": lossless}  # fmt: skip


EQUAL = Exhibit(
    id="equal-memory", place="", title="All systems at equal memory", form="table",
    badge="estimate", note="Batch 1.",
    rows=(row("lru", 80.0), row("daop", 50.0, lossless=False), row("hybrimoe", 60.9),
          row("smoe", 60.0), row("lru", 9.0, setting="S1")),
)  # fmt: skip
