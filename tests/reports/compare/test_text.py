"""Comparisons as text and plain values: cells, marks, ties and remarks by hand."""

from typing import Any

from moebench.reports.compare.conditions import ComparisonGroup, InputSet
from moebench.reports.compare.rows import Marks, Row, Value
from moebench.reports.compare.tables import Comparison
from moebench.reports.compare.text import document, records, said, text_table
from moebench.results.intervals import Interval

GROUP = ComparisonGroup("S3", 1, "model", "qwen2", "a6000", "bf16", True)
CELLS = (InputSet("facts", "0", "d"), InputSet("gsm8k", "0", "d"))


def row(system: str, tpot: float | None = None, **of: Any) -> Row:
    values = {} if tpot is None else {"tpot_ms": Value(tpot, 2, Interval(tpot - 1, tpot + 1))}
    return Row(system, values | of.pop("values", {}), **{"badge": "estimate"} | of)


def table(*rows: Row, **of: Any) -> Comparison:
    given: dict[str, Any] = {
        "place": GROUP, "title": "S3, batch 1", "common": {}, "apart": {}, "cells": CELLS,
        "rows": rows, "marks": {}, "ties": {},
    }  # fmt: skip
    return Comparison(**(given | of))


def column(found: Any, header: str) -> list[str]:
    at = found.headers.index(header)
    return [line[at] for line in found.rows]


def test_a_figure_says_of_how_many_cells_it_is_and_its_errors() -> None:
    one = table(
        row("smoe", 10.0, values={"score": Value(40.62, 2, None, 6.138)}),
        row("lru", values={"tpot_ms": Value(20.0, 1)}),
    )
    found = text_table(one)
    assert found.headers == ("system", "TPOT (ms)", "score (%)")
    assert column(found, "TPOT (ms)") == ["10.00", "20.00 (1 of 2)"]
    assert column(found, "score (%)") == ["40.6 ± 6.1", "–"]
    assert column(text_table(one, intervals=True), "TPOT (ms)") == [
        "10.00 [9.00, 11.00]", "20.00 (1 of 2)"
    ]  # fmt: skip
    same = table(row("a", values={"tpot_ms": Value(5.0, 2, Interval(5.001, 5.002))}))
    assert column(text_table(same, intervals=True), "TPOT (ms)") == ["5.00"]


def test_a_figure_that_no_system_has_is_no_column() -> None:
    found = text_table(table(row("a", 1.0), row("b", 2.0)))
    assert found.headers == ("system", "TPOT (ms)")
    more = {"slots_gb": Value(2.5, 2), "hit_ratio": Value(0.5, 2)}
    one = table(row("a", 1.0, values=more))
    assert text_table(one).headers == (
        "system", "TPOT (ms)", "hit ratio, complete (%)", "slots (GB)"
    )  # fmt: skip
    assert text_table(one, brief=True).headers == (
        "system", "TPOT (ms)", "hit ratio, complete (%)"
    )  # fmt: skip
    short = text_table(one, paper=True)
    assert short.headers == ("system", "TPOT (ms)", "hits (%)", "slots (GB)")
    assert short.names == {"hits": "hit ratio, complete"}
    assert text_table(one).names == {}


def test_a_system_that_is_not_applicable_has_no_figures() -> None:
    gone = Row("sida", {}, missing="needs texts")
    found = text_table(table(row("a", 1.0, values={"kl": Value(0.1, 2)}), gone))
    assert found.rows[1] == ("sida", "n/a", "", "needs texts")
    assert found.headers[-1] == "remark"
    assert found.rows[0][-1] == ""


def test_badges_are_a_column_only_if_they_differ() -> None:
    gone = Row("sida", {}, missing="needs texts")
    same = table(row("a", 1.0), row("b", 2.0), gone)
    assert "badge" not in text_table(same).headers
    assert "all estimate" in said(same)
    two = table(row("a", 1.0), row("b", 2.0, badge="measured"))
    assert column(text_table(two), "badge") == ["estimate", "measured"]
    assert "all " not in said(two)


def test_remarks_that_all_rows_have_are_said_once() -> None:
    both = table(row("a", 1.0, remarks=("x",)), row("b", 2.0, remarks=("x",)))
    assert "remark" not in text_table(both).headers
    assert said(both).split("; ")[-1] == "x"
    one = table(
        row("a", 1.0, remarks=("x", "y")), row("b", 2.0, reference="knows the future"),
        row("c", 3.0, differs={"seed": "1", "batch": "3"}, remarks=("lossy",), lossless=False),
    )  # fmt: skip
    found = text_table(one)
    assert column(found, "remark") == [
        "x; y", "a bound: knows the future", "seed 1 ≠; batch 3 ≠; lossy"
    ]  # fmt: skip
    assert column(found, "system") == ["a", "b", "c ≠"]
    assert found.lossy == {(0, 2)}
    # In a paper a mark stands for the word.
    assert column(text_table(one, paper=True), "remark")[2] == "seed 1 ≠; batch 3 ≠"


def test_what_is_common_and_why_a_table_is_apart() -> None:
    one = table(row("a", 1.0), apart={"batch": ("3", "1")}, common={"batch": "3"})
    assert said(one).endswith("; all estimate; not comparable with the table above: batch 3, not 1")
    assert text_table(one).said == said(one)
    assert text_table(one).title == "S3, batch 1"


RANKED = table(
    row("a", 10.0), row("b", 10.001), row("c", 11.0), row("d", 12.0),
    marks={"tpot_ms": Marks(frozenset("ab"), frozenset("cd"))},
)  # fmt: skip


def test_best_and_second_best_are_marked_and_ties_of_other_texts() -> None:
    found = text_table(RANKED)
    assert found.marks == {
        (0, 0, 1): "best",
        (0, 1, 1): "best",
        (0, 2, 1): "second",
        (0, 3, 1): "second",
    }
    # Both best are written 10.00; the second ones differ in their text.
    assert found.ties == {(0, 2, 1), (0, 3, 1)}
    assert text_table(table(row("a", 1.0))).marks == {}


def test_records_have_every_figure_with_its_interval_and_place() -> None:
    rows = records(RANKED._replace(common={"seed": "0"}))
    assert [one["tpot_ms.place"] for one in rows] == [1, 1, 2, 2]
    first = rows[0]
    assert (first["table"], first["cells"], first["seed"]) == ("S3, batch 1", 2, "0")
    assert (first["where"], first["batch"], first["machine"]) == ("S3", 1, "a6000")
    assert (first["tpot_ms"], first["tpot_ms.low"], first["tpot_ms.high"]) == (10.0, 9.0, 11.0)
    assert (first["tpot_ms.n"], first["tpot_ms.stderr"]) == (2, None)
    assert first["kl"] is first["kl.low"] is first["kl.n"] is first["kl.place"] is None
    assert (first["apart"], first["bound"], first["remarks"], first["runs"]) == ("", "", "", "")
    (one,) = records(table(row("a", 1.0, run_ids=("x", "y"), remarks=("p", "q"), reference="r")))
    assert (one["runs"], one["remarks"], one["bound"]) == ("x y", "p; q", "r")


def test_a_document_has_plain_values() -> None:
    gone = Row("sida", {}, missing="needs texts")
    found = document(
        table(row("a", 10.0, run_ids=("x",), remarks=("p",), differs={"seed": "1"}), gone,
              apart={"batch": ("3", "1")}, common={"seed": "0"})
    )  # fmt: skip
    assert found["title"] == "S3, batch 1"
    assert found["place"]["machine"] == "a6000"
    assert found["conditions"] == {"seed": "0"}
    assert found["apart"] == {"batch": {"here": "3", "main": "1"}}
    assert found["cells"][1] == {"workload": "gsm8k", "seed": "0", "data": "d"}
    first, second = found["systems"]
    assert first == {
        "system": "a", "badge": "estimate", "runs": ["x"],
        "figures": {"tpot_ms": {"mean": 10.0, "n": 2, "interval": (9.0, 11.0), "stderr": None}},
        "bound": None, "remarks": ["p"], "differs": {"seed": "1"}, "not_applicable": None,
    }  # fmt: skip
    assert second["not_applicable"] == "needs texts"
    assert (second["figures"], second["runs"]) == ({}, [])
