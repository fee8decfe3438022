"""Claims as rows of text, and counts of verdicts with and without evidence."""

from typing import Any

from moebench.reports.sections.claims import (
    HEADERS,
    ends,
    figure,
    lines,
    made,
    paper_figure,
    summary,
    table,
)
from moebench.results.claims import Counter, Measured, PaperResult, Tag, Verdict
from tests.reports.sections.claims_fixture import BLIND, EXACT, HEADLINE, SMOE, claim

MISSING = "–"

DIFFERS = claim(
    "A", Verdict.DIRECTION_ONLY, explanation="Copies are pageable there.",
    counters=(Counter(name="pageable", measured=Measured.of([-21], "estimate"),
                      verdict=Verdict.REPRODUCED),),
)  # fmt: skip
HOLDS = claim("B", Verdict.REPRODUCED, measured=Measured.of([-20], "counted"), paper=None)
UNMEASURED = claim("C", Verdict.NOT_MEASURABLE, measured=None, reason="a power meter", unit="1")


def result(*claims: Any, quick: bool = False) -> PaperResult:
    return PaperResult(
        paper="smoe", title="SMoE", quick=quick, claims=claims,
        provenance={"created": "2026-02-03T04:05:06+00:00"},
    )  # fmt: skip


def line(one: Any) -> dict[str, str]:
    (cells,) = lines(result(one))
    return dict(zip(HEADERS, cells, strict=True))


def test_a_row_says_what_was_found_and_when_it_counts() -> None:
    found = line(DIFFERS)
    assert found["95 % interval"] == "-23.71 to 1.706 (2 seeds)"  # -11 ± 12.706 x 1
    del found["95 % interval"]
    assert found == {
        "claim": "A", "place": "Fig. 11", "statement": "mean | TPOT", "paper": "-24",
        "moebench": "-11", "unit": "%", "verdict": "direction only", "depends on": MISSING,
        "little evidence": MISSING, "reproduced if": "-34 to -14", "no effect if": "-6 to 6",
        "direction if": "≤ -6", "badge": "estimate", "conditions": "S1-S3",
    }  # fmt: skip


def test_a_row_says_on_what_its_verdict_depends_and_why_it_is_little_evidence() -> None:
    found = line(HEADLINE)["depends on"]
    assert found == "host.gemv_bandwidth: reproduced below 31 GB/s"
    assert line(EXACT)["little evidence"] == "by construction: the size is the paper's own"


def test_what_is_not_there_is_a_dash_and_never_a_zero() -> None:
    found = line(UNMEASURED)
    assert (found["moebench"], found["95 % interval"], found["badge"]) == (MISSING,) * 3
    assert found["conditions"] == "a power meter"
    assert (paper_figure(HOLDS), figure(None), ends(None)) == (MISSING,) * 3
    assert ends(HOLDS.measured) == MISSING
    assert ends(EXACT.measured) == "exact"


def test_a_figure_of_zero_is_one() -> None:
    assert figure(Measured.of([0], "counted")) == "0"
    assert paper_figure(claim("D", Verdict.REPRODUCED, paper=0)) == "0"


def test_verdicts_are_counted_over_papers_in_their_order() -> None:
    found = summary([result(HOLDS, UNMEASURED), result(DIFFERS, HOLDS)])
    assert found == (
        "4 claims: 2 reproduced with evidence, 1 direction only, 1 not measurable here"
    )
    assert summary([]).startswith("0 claims")


def test_little_evidence_is_counted_apart() -> None:
    same = claim("E", Verdict.REPRODUCED, tag=Tag.SAME_ROW, tag_reason="as S-4")
    other = claim("F", Verdict.DIRECTION_ONLY, tag=Tag.SAME_ROW, tag_reason="as S-4")
    assert summary([result(EXACT, same, EXACT, HOLDS, other, BLIND)]) == (
        "6 claims: 1 reproduced with evidence, 3 reproduced with little evidence (2 by "
        "construction, 1 same as another row), 1 direction only, 1 cannot show a loss"
    )
    assert summary([result(EXACT)]).startswith("1 claim: 1 reproduced with little evidence")


def test_a_result_says_how_it_was_made() -> None:
    assert made(SMOE) == "Full run, commit 1bb8f1df, 2026-02-03."
    said = made(result(HOLDS, quick=True))
    assert said == "Run with --quick: fewer prompts, workloads and seeds, 2026-02-03."


def test_a_brief_table_has_what_verdicts_depend_on_but_no_bands() -> None:
    headers = table(SMOE, brief=True).headers
    assert headers[-2:] == ("depends on", "little evidence")
    assert table(SMOE).headers == HEADERS
