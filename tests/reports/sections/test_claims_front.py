"""The front page's cells: counts, headlines with ranges and readings, winners at equal memory."""

from moebench.reports.sections.claims_front import (
    COUNTS,
    HEADLINES,
    WINNERS,
    front,
    made_of,
    readings,
    winners,
)
from moebench.results.claims import Verdict
from tests.reports.sections.claims_fixture import (
    BLIND,
    DAOP,
    EQUAL,
    HEADLINE,
    SHARES,
    SMOE,
    claim,
    counter,
    row,
)


def test_every_paper_is_counted_and_all_together() -> None:
    page = front([SMOE, DAOP])
    found = [dict(zip(page.columns, line, strict=True)) for line in page.counts]
    assert [line["paper"] for line in found] == ["SMoE", "DAOP", "all"]
    assert [line["reproduced, with evidence"] for line in found] == ["1", "1", "2"]
    assert [line["reproduced, by construction"] for line in found] == ["1", "0", "1"]
    assert found[0]["cannot show a loss"] == found[0]["no effect"] == "1"
    assert len(front([SMOE]).counts) == 1
    assert {"no verdict", "reproduced, cannot fail here"} == {*COUNTS} - {*page.columns} - {
        "not reproduced", "reproduced, same as another row"
    }  # fmt: skip
    for shown in (front([SMOE]), front([DAOP]), page):
        numbers = zip(*[line[2:] for line in shown.counts], strict=True)
        assert all(set(column) != {"0"} for column in numbers)


def test_a_headline_has_range_readings_verdict_and_cause() -> None:
    (paper, (line,)), (_, (other,)) = front([SMOE, DAOP]).headlines
    assert paper is SMOE
    assert dict(zip(HEADLINES, line, strict=True)) == {
        "claim": "TPOT at batch 1 against the best baseline (S-1 b1)", "paper": "-24 %",
        "moebench": "-0.19 % (-1.334 to 0.9536)",
        "over plausible constants": "-23.7 to 1.5 (host.gemv_bandwidth)",
        "other readings of the paper": "worst -39 (without HybriMoE); best -18.7 (baselines as "
        "shipped)",
        "verdict": "no effect", "depends on": "host.gemv_bandwidth: reproduced below 31 GB/s",
        "why it differs": "The host computes experts faster here than the paper's ablation "
        "implies.",
    }  # fmt: skip
    assert other[0] == "Tokens per second (D-1)"
    assert other[3] == other[4] == other[6] == other[7] == "–"


def test_only_readings_of_the_paper_count_as_such() -> None:
    assert "lean software" not in readings(HEADLINE)
    assert readings(SHARES) == "–"
    one = counter("prefill alone", -30, Verdict.REPRODUCED, reading=True)
    assert readings(claim("A", Verdict.NO_EFFECT, counters=(one,))) == "-30 (prefill alone)"
    assert readings(claim("A", Verdict.NO_EFFECT, counters=(one,), paper=None)) == "–"


def test_a_paper_without_headlines_has_no_table() -> None:
    bare = SMOE.model_copy(update={"claims": (SHARES, BLIND)})
    assert front([bare]).headlines == []


def test_how_it_was_made_is_said_once_if_all_papers_were_made_alike() -> None:
    assert made_of([SMOE, DAOP]) == ["Full run, commit 1bb8f1df, 2026-02-03."]
    other = DAOP.model_copy(update={"quick": True})
    first, second = made_of([SMOE, other])
    assert first == "SMoE: Full run, commit 1bb8f1df, 2026-02-03."
    assert second.startswith("DAOP: Run with --quick")


def test_winners_are_the_fastest_and_those_that_tie() -> None:
    first, second = winners(EQUAL.rows)
    assert dict(zip(WINNERS, first, strict=True)) == {
        "setting": "S3", "at equal memory": "qwen2-57b-a14b, a6000, 24 GB",
        "fastest": "daop ≈", "fastest lossless": "smoe = hybrimoe",
        "TPOT of the fastest (ms)": "daop ≈ 50, smoe 60, hybrimoe 60.9, lru 80",
    }  # fmt: skip
    assert second[0] == "S1"


def test_two_percent_is_a_tie_and_more_is_not() -> None:
    assert winners([row("a", 100.0), row("b", 102.0)])[0][2] == "a = b"
    assert winners([row("a", 100.0), row("b", 102.1)])[0][2] == "a"
    assert winners([row("a", 100.0, lossless=False)])[0][3] == "–"


def test_without_a_table_there_are_no_winners() -> None:
    assert front([SMOE]).winners == []
    found = front([SMOE], EQUAL)
    assert len(found.winners) == 2
    assert found.note.endswith("Batch 1.")
