"""Claims as rows of text and as a document."""

from typing import Any

from moebench.reports.sections.claims import (
    HEADERS,
    ends,
    figure,
    lines,
    markdown,
    paper_figure,
    summary,
)
from moebench.results.claims import Band, ClaimResult, Counter, Measured, PaperResult, Verdict

MISSING = "–"


def claim(name: str, verdict: Verdict, **of: Any) -> ClaimResult:
    given = {
        "id": name, "place": "Fig. 11", "statement": "mean | TPOT", "paper": -24, "unit": "%",
        "reproduced": Band(low=-34, high=-14), "direction": Band(high=0), "why": "its spread",
        "measured": Measured.of([-10, -12], "estimate", "S1-S3"), "verdict": verdict,
    }  # fmt: skip
    return ClaimResult(**(given | of))


DIFFERS = claim(
    "A", Verdict.DIRECTION_ONLY, explanation="Copies are pageable there.",
    counters=(Counter(name="pageable", measured=Measured.of([-21], "estimate"),
                      verdict=Verdict.REPRODUCED),),
)  # fmt: skip
HOLDS = claim("B", Verdict.REPRODUCED, measured=Measured.of([-20], "counted"), paper=None)
UNMEASURED = claim("C", Verdict.NOT_MEASURABLE, measured=None, reason="a power meter", unit="1")


def result(*claims: ClaimResult, quick: bool = False) -> PaperResult:
    return PaperResult(
        paper="smoe", title="SMoE", quick=quick, claims=claims,
        provenance={"created": "2026-02-03T04:05:06+00:00"},
    )  # fmt: skip


def line(one: ClaimResult) -> dict[str, str]:
    (cells,) = lines(result(one))
    return dict(zip(HEADERS, cells, strict=True))


def test_a_row_says_what_was_found_and_when_it_counts() -> None:
    found = line(DIFFERS)
    assert found["95 % interval"] == "-23.71 to 1.706 (2 seeds)"  # -11 ± 12.706 x 1
    del found["95 % interval"]
    assert found == {
        "claim": "A", "place": "Fig. 11", "statement": "mean | TPOT", "paper": "-24",
        "moebench": "-11", "unit": "%", "verdict": "direction only", "reproduced if": "-34 to -14",
        "direction if": "≤ 0", "badge": "estimate", "conditions": "S1-S3",
    }  # fmt: skip


def test_what_is_not_there_is_a_dash_and_never_a_zero() -> None:
    found = line(UNMEASURED)
    assert (found["moebench"], found["95 % interval"], found["badge"]) == (MISSING,) * 3
    assert found["conditions"] == "a power meter"
    assert (paper_figure(HOLDS), figure(None), ends(None)) == (MISSING,) * 3
    assert ends(HOLDS.measured) == MISSING


def test_a_figure_of_zero_is_one() -> None:
    assert figure(Measured.of([0], "counted")) == "0"
    assert paper_figure(claim("D", Verdict.REPRODUCED, paper=0)) == "0"


def test_verdicts_are_counted_over_papers_in_their_order() -> None:
    found = summary([result(HOLDS, UNMEASURED), result(DIFFERS, HOLDS)])
    assert found == "4 claims: 2 reproduced, 1 direction only, 1 not measurable here"
    assert summary([]).startswith("0 claims")


def test_a_document_explains_what_was_not_reproduced() -> None:
    text = markdown([result(DIFFERS, HOLDS, UNMEASURED)])
    assert "3 claims: 1 reproduced, 1 direction only, 1 not measurable here." in text
    assert "Full run, 2026-02-03." in text
    assert (
        "**A** (direction only). moebench: -11 % (interval -23.71 to 1.706 (2 seeds)), in the "
        "paper -24 %; reproduced if -34 to -14: its spread"
    ) in text
    assert "Copies are pageable there." in text
    assert "- pageable: -21 (interval –), reproduced" in text
    assert "**C** (not measurable here). a power meter" in text
    assert "**B**" not in text
    assert "Quick" not in text
    assert "With --quick: fewer prompts" in markdown([result(HOLDS, quick=True)])


def test_a_documents_tables_are_whole() -> None:
    """A bar inside a cell does not end it, and every row has as many cells as the head."""
    text = markdown([result(DIFFERS, HOLDS, UNMEASURED)])
    rows = [row.replace("\\|", "") for row in text.splitlines() if row.startswith("|")]
    assert len(rows) == 5
    assert {row.count("|") for row in rows} == {8}
