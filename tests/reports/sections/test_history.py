"""Histories as tables, CSV rows and JSON: every cell, by hand."""

from typing import Any

from moebench.reports.compare.conditions import ComparisonGroup, cell_of
from moebench.reports.compare.history import Change, Commit, History, Row
from moebench.reports.sections.history import CAPTION, Since, document, lines, records, table
from moebench.reports.text import MISSING
from moebench.results.intervals import Interval
from moebench.results.metrics import metric_of
from tests.reports.samples import run

#: 14 November 2023, 22:13:20 UTC; one day later; two days later.
COMMITS = [
    Commit("a" * 40, 1_700_000_000, "Begin"),
    Commit("b" * 40, 1_700_086_400, "Load ahead"),
    Commit("c" * 40, 1_700_172_800, "Rename it"),
]
PLACE = ComparisonGroup("S3", 1, "model", "qwen2-57b-a14b", "a6000", "bf16", simulated=True)


def row(at: int, value: float, *names: str, **fields: Any) -> Row:
    """Return a row of one run for each name, of the system ``lru`` unless given."""
    runs = [run(name, system=fields.pop("system", "lru")) for name in names]
    given: dict[str, Any] = {"committed": True, "conditions": {}, "libraries": {}, "interval": None}
    return Row(at=at, cells={cell_of(runs[0]): runs}, value=value, **(given | fields))


def times() -> History:
    """Three versions: the second slower by a tenth, the third, uncommitted, under a new torch."""
    slower = Change(0, 1.1, Interval(1.05, 1.15), differs=True, conditions={}, better=False)
    faster = Change(
        1, 0.5, None, differs=True, conditions={"torch": ("2", "3"), "seed": ("0", "1")},
        better=True,
    )  # fmt: skip
    rows = (
        row(0, 50.0, "r1"),
        row(1, 55.0, "r2", "r3", change=slower, interval=Interval(54.0, 56.5)),
        row(2, 27.5, "r4", system="lfu", committed=False, change=faster),
    )
    return History("lru", PLACE, metric_of("tpot_ms"), COMMITS, rows, untested=(0, 2))


def ratios() -> History:
    """Hit ratios of three versions: 40 %, 45.5 % and the same."""
    more = Change(0, 0.055, Interval(0.05, 0.06), differs=True, conditions={}, better=True)
    same = Change(1, 0.0, None, differs=False, conditions={}, better=None)
    other = Change(1, 0.0, None, differs=False, conditions={"seed": ("0", "1")}, better=None)
    rows = (row(0, 0.4, "r1"), row(1, 0.455, "r2", change=more), row(2, 0.455, "r3", change=same),
            row(2, 0.455, "r4", change=other))  # fmt: skip
    return History("lru", PLACE, metric_of("hit_ratio"), COMMITS, rows)


def test_a_table_has_a_line_for_each_version() -> None:
    found = times()
    assert [*lines(found)] == [
        ("a" * 10, "2023-11-14", "Begin", "1", "estimate", "50.00", *[MISSING] * 3, "first"),
        ("b" * 10, "2023-11-15", "Load ahead", "2", "estimate", "55.00", "54.00 to 56.50",
         "+10 % (+5 to +15)", "a" * 10, "step: slower"),
        ("c" * 10 + " + uncommitted", "2023-11-16", "Rename it (as lfu)", "1", "estimate",
         "27.50", MISSING, "-50 %", "b" * 10,
         "faster, no step of the system; changed conditions: torch 2 → 3; seed 0 → 1"),
    ]  # fmt: skip
    shown = table(found, "v1")
    assert shown.title == "TPOT: lru, S3, batch 1"
    assert shown.rows == [*lines(found)]
    assert shown.headers == ("commit", "date", "subject", "runs", "badge", "TPOT (ms)", "interval",
                             "change", "against", "verdict")  # fmt: skip
    assert shown.said == (
        f"TPOT over v1..{'c' * 10}, model qwen2-57b-a14b, machine a6000, precision bf16, "
        "times simulated, 1 step"
    )
    names = f"{'a' * 10}, {'c' * 10}"
    assert shown.notes == (f"Commits that made a version without a run: {names}.",)


def test_figures_that_are_no_times_change_by_points() -> None:
    first, more, same, other = lines(ratios())
    assert first[5:] == ("40.0", MISSING, MISSING, MISSING, "first")
    assert more[5:] == ("45.5", MISSING, "+5.5 points (+5 to +6)", "a" * 10, "step: better")
    assert same[5:] == ("45.5", MISSING, "+0 points", "b" * 10, "tied")
    assert other[-1] == "tied; changed conditions: seed 0 → 1"
    assert table(ratios(), "v1").notes == ()
    assert table(ratios(), "v1").said.endswith(", 1 step")
    worse = ratios()
    change = Change(0, -0.055, None, differs=True, conditions={}, better=False)
    rows = (worse.rows[0], row(1, 0.345, "r2", change=change))
    assert [*lines(worse._replace(rows=rows))][1][7:] == ("-5.5 points", "a" * 10, "step: worse")


def test_only_the_last_table_explains_itself() -> None:
    tables = Since("v1", [times(), ratios()]).tables
    assert [*tables] == ["history-1", "history-2"]
    assert CAPTION not in tables["history-1"].notes
    assert tables["history-2"].notes == (CAPTION,)
    assert Since("v1", []).tables == {}


def test_rows_of_a_csv_file_repeat_place_and_change() -> None:
    first, second, third = records(Since("v1", [times()]))
    shared = {
        "system": "lru", "where": "S3", "batch": 1, "routing": "model", "model": "qwen2-57b-a14b",
        "machine": "a6000", "precision": "bf16", "simulated": True, "figure": "tpot_ms",
    }  # fmt: skip
    assert first == shared | {
        "commit": "a" * 40, "committed": True, "date": "2023-11-14T22:13:20+00:00",
        "subject": "Begin", "ran_as": "lru", "runs": "r1", "badge": "estimate", "value": 50.0,
        "low": None, "high": None, "verdict": "first", "change.against": None,
        "change.value": None, "change.low": None, "change.high": None, "change.differs": None,
        "change.step": None, "change.conditions": "",
    }  # fmt: skip
    assert [*second] == [*first], "equal columns"
    assert second == shared | {
        "commit": "b" * 40, "committed": True, "date": "2023-11-15T22:13:20+00:00",
        "subject": "Load ahead", "ran_as": "lru", "runs": "r2 r3", "badge": "estimate",
        "value": 55.0, "low": 54.0, "high": 56.5, "verdict": "step: slower",
        "change.against": "a" * 10, "change.value": 1.1, "change.low": 1.05, "change.high": 1.15,
        "change.differs": True, "change.step": True, "change.conditions": "",
    }  # fmt: skip
    assert third == shared | {
        "commit": "c" * 40, "committed": False, "date": "2023-11-16T22:13:20+00:00",
        "subject": "Rename it", "ran_as": "lfu", "runs": "r4", "badge": "estimate",
        "value": 27.5, "low": None, "high": None,
        "verdict": "faster, no step of the system; changed conditions: torch 2 → 3; seed 0 → 1",
        "change.against": "b" * 10, "change.value": 0.5, "change.low": None, "change.high": None,
        "change.differs": True, "change.step": False,
        "change.conditions": "torch 2 → 3; seed 0 → 1",
    }  # fmt: skip


def test_a_document_holds_histories_with_untested_commits_and_notes() -> None:
    found = document(Since("v1", [times(), ratios()], ["one run is of no commit"]))
    assert (found["since"], found["notes"]) == ("v1", ["one run is of no commit"])
    assert [*found] == ["since", "histories", "notes"]
    one, other = found["histories"]
    assert one["system"] == "lru"
    assert one["place"] == PLACE._asdict()
    assert (one["figure"], other["figure"]) == ("tpot_ms", "hit_ratio")
    assert (one["untested"], other["untested"]) == (["a" * 40, "c" * 40], [])
    assert [row["runs"] for row in one["rows"]] == [["r1"], ["r2", "r3"], ["r4"]]
    assert [row["change"] for row in one["rows"]] == [
        None,
        {"against": "a" * 10, "value": 1.1, "low": 1.05, "high": 1.15, "differs": True,
         "step": True, "conditions": {}},
        {"against": "b" * 10, "value": 0.5, "low": None, "high": None, "differs": True,
         "step": False, "conditions": {"torch": ["2", "3"], "seed": ["0", "1"]}},
    ]  # fmt: skip
