"""The report's tables as text: which there are, in what order, and their notes."""

from types import SimpleNamespace
from typing import Any, cast

from moebench.reports.report import BESIDE, COMPARED, INTERVALS, _by_name, report
from moebench.reports.sections import accuracy, failures, field
from moebench.reports.text import text_table
from moebench.results.store import Cell
from tests.reports.compare.test_tables import ran
from tests.reports.samples import run
from tests.reports.sections.claims_fixture import DAOP, SMOE
from tests.reports.sections.test_evaluations import evaluated
from tests.results.test_field import SPEC
from tests.results.test_field import run as field_run


def test_ratios_stand_before_comparisons_and_notes_under_the_last() -> None:
    runs = [
        ran("a", 50.0), ran("b", 100.0), ran("a", 30.0, setting="S1", model="deepseek-v2-lite"),
        ran("c", 90.0, setting="S1", model="deepseek-v2-lite"),
    ]  # fmt: skip
    found = report(runs)
    names = list(found.tables)
    assert names[0] == "ratios"
    assert [name.split("-")[0] for name in names] == ["ratios", "comparison", "comparison", "runs"]
    ratios = found.tables["ratios"]
    assert (ratios.title, ratios.notes) == ("TPOT, × best", (BESIDE,))
    columns = [table.title for table in found.compared.tables]
    assert ratios.headers == ("system", *columns)
    cells = {line[0]: dict(zip(columns, line[1:], strict=True)) for line in ratios.groups[0]}
    one, other = sorted(columns, key=lambda title: title.startswith("S1"))
    assert cells == {
        "a": {one: "1.00", other: "1.00"}, "b": {one: "2.00", other: "–"},
        "c": {one: "–", other: "3.00"},
    }  # fmt: skip
    first, last = names[1:3]
    assert COMPARED not in found.tables[first].notes
    assert found.tables[last].notes == (COMPARED,)
    with_intervals = report(runs, intervals=True)
    assert with_intervals.tables[last].notes == (COMPARED, INTERVALS)
    assert with_intervals.tables[last].groups != found.tables[last].groups
    assert found.left_out == ()
    assert found.tables["runs"].title == "4 runs"


def test_one_comparison_has_no_table_of_ratios() -> None:
    found = report([ran("a", 50.0), ran("b", 100.0)])
    assert [name.split("-")[0] for name in found.tables] == ["comparison", "runs"]
    brief = report([ran("a", 50.0), ran("b", 100.0)], brief=True)
    for name, table in found.tables.items():
        assert len(brief.tables[name].headers) < len(table.headers)


def test_claims_evaluations_runs_and_failures_follow_in_this_order() -> None:
    failed = [
        Cell("c1", "failed", run()["spec"], None, "KeyError: 'x'", "failures/c1.txt"),
        Cell("c2", "failed", run()["spec"], None, "smoe lacks room"),
    ]
    found = report([evaluated()], failed=failed, reproduced=[SMOE, DAOP])
    assert list(found.tables) == [
        "claims-smoe", "claims-daop", "evaluations", "runs", "failures", "not-possible",
    ]  # fmt: skip
    titles = {name: table.title for name, table in found.tables.items()}
    assert titles["evaluations"] == "results of evaluators"
    assert titles["runs"] == "1 run"
    assert titles["failures"] == "failed cells"
    assert titles["not-possible"] == "not possible here"
    assert [line[0] for line in found.tables["failures"].groups[0]] == ["c1"]
    assert found.tables["failures"].headers == tuple(failures.HEADERS)
    assert found.tables["not-possible"].headers == tuple(failures.REASON_HEADERS)
    assert found.tables["evaluations"].notes
    brief = report([], reproduced=[SMOE], brief=True)
    assert list(brief.tables) == ["claims-smoe"]
    assert len(brief.tables["claims-smoe"].headers) < len(found.tables["claims-smoe"].headers)
    assert report([]).tables == {}


def test_the_field_comes_first_and_of_failed_cells_too() -> None:
    rows = [field_run(40.0), field_run(20.0, system="ktransformers", overrides={})]
    for one in rows:
        one |= {"run_id": f"{one['metrics']['tpot_ms']['mean']}", "badge": "estimate"}
        one["provenance"] = {"created": "2026-01-01T12:00:00+00:00"}
    failed = [Cell("c", "failed", SPEC | {"system": "deepspeed"}, None, "deepspeed lacks room")]
    found = report(rows, failed=failed)
    (name, table), *_ = found.tables.items()
    assert (name, table.title) == ("field", field.TITLE)
    assert table.headers == tuple(field.HEADERS)
    assert table.notes == (field.caption(),)
    # A run without its system or badge has no row anywhere.
    nameless = {key: value for key, value in rows[1].items() if key != "badge"}
    without = report([rows[0], nameless])
    assert len(without.tables["runs"].groups[0]) == 1
    assert without.left_out == without.compared.left_out != ()


def test_tables_of_alpha_and_of_its_verdicts() -> None:
    blocks = [
        SimpleNamespace(title="ours", text_lines=[["gsm8k", "20", "40"]]),
        SimpleNamespace(title="the paper's", text_lines=[["gsm8k", "20", "50"], ["x", "1", "2"]]),
    ]
    view = SimpleNamespace(
        title="S1, smoe", origin="a file", headers=["workload", "n", "α"], blocks=blocks,
        verdict_lines=[["gsm8k", "falls"]], summary="all fall",
        series=[SimpleNamespace(setting="S1", system="smoe")],
    )  # fmt: skip
    found = report([], views=[cast(Any, view)]).tables
    assert list(found) == ["accuracy-S1-smoe", "verdict-S1-smoe"]
    alpha, verdicts = found.values()
    assert (alpha.title, alpha.headers) == ("S1, smoe", ("workload", "n", "α"))
    assert alpha.groups == ((("gsm8k", "20", "40"),), (("gsm8k", "20", "50"), ("x", "1", "2")))
    assert alpha.said == "a file. Groups: ours; the paper's"
    assert alpha.notes == (accuracy.CAVEAT,)
    assert (verdicts.title, verdicts.said) == ("S1, smoe: change with α", "a file")
    assert verdicts.headers == tuple(accuracy.VERDICT_HEADERS)
    assert verdicts.groups == ((("gsm8k", "falls"),),)
    assert verdicts.notes == ("all fall", accuracy.METHOD)


def test_names_are_those_of_files_and_distinct() -> None:
    titles = ["a b/c", "a-b c", "..x..", "a b c", "x" * 90, "S1.5, α"]
    found = _by_name((title, text_table(str(n), [], [])) for n, title in enumerate(titles))
    assert list(found) == ["a-b-c", "a-b-c--2", "x", "a-b-c--3", "x" * 80, "S1.5"]
    assert [table.title for table in found.values()] == ["0", "1", "2", "3", "4", "5"]
