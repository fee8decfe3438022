"""Full tables of a paper's claims by hand: which there are, their rows, and what is said once."""

from moebench.reports.sections.claims_details import Block, details
from moebench.results.claims import Band, Tag, Verdict
from tests.reports.sections.claims_fixture import (
    BLIND,
    EXACT,
    HEADLINE,
    LINK,
    SHARES,
    SMOE,
    SOUND,
    UNMEASURED,
    claim,
    result,
)


def blocks(*claims: object) -> dict[str, Block]:
    return {one.title: one for one in details(result("smoe", "SMoE", *claims))}  # type: ignore


def test_tables_without_rows_are_left_out_and_the_others_in_reading_order() -> None:
    assert [one.title for one in details(SMOE)] == [
        "Fig. 11", "Fig. 12", "Verdicts with little evidence", "Why figures differ",
        "Claims without a verdict on their figure", "Verdicts that change within a range",
        "Values that the paper's figures imply", "Counter-experiments", "Reasons for the bands",
    ]  # fmt: skip
    plain = claim("A", Verdict.REPRODUCED, why="")
    assert [*blocks(plain)] == ["Fig. 11"]
    assert [one.title for one in details(SMOE) if one.below] == ["Fig. 11", "Fig. 12"]


def test_a_claims_row_has_its_figure_verdict_and_conditions() -> None:
    found = blocks(HEADLINE, SHARES, EXACT, UNMEASURED)
    table = found["Fig. 11"]
    assert table.headers == (
        "claim", "statement", "paper", "moebench", "verdict", "reproduced if", "over constants",
        "conditions",
    )  # fmt: skip
    headline, exact, unmeasured = table.rows
    assert headline[:3] == ["S-1 b1", "mean | TPOT", "-24 %"]
    assert headline[3].startswith("-0.19 % (")
    assert headline[4] == ("no effect; depends on host.gemv_bandwidth: reproduced below 31 GB/s")
    assert headline[5] == str(Band(low=-34, high=-14))
    assert headline[6:] == ["-23.7 to 1.5", "S1-S3; estimate"]
    assert exact[2:4] == ["2.4 GB", "2.4 GB (exact)"]
    assert exact[4] == f"reproduced ({Tag.BY_CONSTRUCTION})"
    assert exact[6] == "–"
    assert unmeasured[3] == "–"
    assert unmeasured[7] == "–"
    assert found["Fig. 12"].rows[0][0] == "S-1 b3"
    without = blocks(claim("A", Verdict.NO_EFFECT, reproduced=None, paper=None))
    assert without["Fig. 11"].rows[0][2] == "–"
    assert without["Fig. 11"].rows[0][5] == "–"


def test_the_interval_of_a_figure_has_its_samples() -> None:
    """Two samples of -20 and -21: their mean, 1.96 or more times their error, and how many."""
    (row,) = blocks(SOUND)["Fig. 11"].rows
    assert row[3].startswith("-20.5 % (")
    low, _, rest = row[3].partition("(")[2].rstrip(")").partition(" to ")
    high, _, samples = rest.partition(", ")
    assert float(low) + float(high) == -41
    assert samples.startswith("2 ")
    assert row[7] == "–; estimate"


def test_a_condition_on_which_a_verdict_turns() -> None:
    turning = HEADLINE.model_copy(update={"turns": "below 31 GB/s"})
    other = SHARES.model_copy(update={"turns": "at batch 3", "ranges": (LINK,)})
    block = blocks(turning, other, SOUND)["Verdicts, and the condition on which each turns"]
    assert block.headers == (
        "claim",
        "reported",
        "moebench",
        "over constants",
        "verdict",
        "condition",
    )
    assert block.said == "A condition is computed from the same cells as the figure."
    first, second = block.rows
    assert first[:2] == ["TPOT at batch 1 against the best baseline (S-1 b1)", "-24 %"]
    assert first[3:] == ["-23.7 to 1.5 (host.gemv_bandwidth)", "no effect", "below 31 GB/s"]
    assert second[0] == "mean | TPOT (S-1 b3)"
    assert second[5] == "at batch 3"
    assert blocks(SHARES.model_copy(update={"turns": "x"}))[block.title].rows[0][3] == "–"


def test_what_several_claims_share_is_said_once() -> None:
    found = blocks(HEADLINE, SHARES, EXACT, SOUND, BLIND, UNMEASURED)
    explained = found["Why figures differ"]
    assert explained.rows == [["S-1 b1, S-1 b3", "Baselines are as published."]]
    assert explained.headers == ("claims", "explanation")
    assert explained.said.startswith("Written after measuring")
    bands = found["Reasons for the bands"]
    assert bands.rows == [
        ["S-1 b1, S-4 size, S-5, S-6, S-7", "its spread"],
        ["S-1 b3", "another reason"],
    ]
    assert bands.said == "Written before measuring."
    assert found["Claims without a verdict on their figure"].rows == [
        ["S-6", "random substitution loses nothing either"],
        ["S-7", "a power meter"],
    ]
    sourced = [
        claim(name, Verdict.REPRODUCED, sources=sources)
        for name, sources in (("A", ("x", "y")), ("B", ()), ("C", ("x", "y")), ("D", ("x",)))
    ]
    block = blocks(*sourced)["Who reports it"]
    assert (block.headers, block.rows) == (("claims", "sources"), [["A, C", "x; y"], ["D", "x"]])


def test_verdicts_with_little_evidence_are_grouped_by_tag_and_reason() -> None:
    tagged = [
        claim(name, Verdict.REPRODUCED, tag=tag, tag_reason=why)
        for name, tag, why in (
            ("A", Tag.BY_CONSTRUCTION, "two"), ("B", Tag.BY_CONSTRUCTION, "one"),
            ("C", Tag.BY_CONSTRUCTION, "two"), ("D", None, ""),
        )
    ]  # fmt: skip
    block = blocks(*tagged)["Verdicts with little evidence"]
    assert block.headers == ("tag", "claims", "reason")
    name = str(Tag.BY_CONSTRUCTION)
    assert block.rows == [[name, "B", "one"], [name, "A, C", "two"]]


def test_counter_experiments_have_both_figures() -> None:
    block = blocks(HEADLINE, SHARES)["Counter-experiments"]
    assert block.headers == (
        "claim",
        "changed",
        "unchanged figure",
        "changed figure",
        "verdict then",
    )
    assert block.rows == [
        ["S-1 b1", "baselines as shipped (a reading of the paper)", "-0.2 %", "-18.7 %",
         "reproduced"],
        ["S-1 b1", "without HybriMoE (a reading of the paper)", "-0.2 %", "-39 %",
         "direction only"],
        ["S-1 b1", "lean software", "–", "-0.5 %", "no effect"],
    ]  # fmt: skip
    assert block.said == "Both figures are measured on the cells of --quick."


def test_crossings_and_implied_values_have_headers_for_their_cells() -> None:
    found = blocks(HEADLINE)
    for title, columns in (
        ("Verdicts that change within a range", 5), ("Values that the paper's figures imply", 4)
    ):  # fmt: skip
        assert len(found[title].headers) == columns
        assert all(len(line) == columns for line in found[title].rows)
        assert found[title].rows
        assert found[title].said
