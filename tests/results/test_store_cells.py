"""Cells of sweeps in the store, stores of older versions, and reading it with other tools."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from moebench.results import metrics
from moebench.results import store as results_store
from moebench.results import store as stores
from moebench.results.metrics import Metric, shown
from moebench.results.samples import TokenSample, write_samples
from moebench.results.schema import SCHEMA_VERSION, STEPS, view
from moebench.results.store import Store
from tests.results.documents import SPAN, document

SPEC = {"system": "smoe", "setting": "S3", "batch": 1}

#: The schema of version 1, word for word as it was published.
V1 = """
CREATE TABLE IF NOT EXISTS runs (
    run_id   TEXT PRIMARY KEY,
    created  TEXT NOT NULL,
    system   TEXT,
    setting  TEXT,
    workload TEXT,
    badge    TEXT,
    spec     TEXT NOT NULL,
    document TEXT NOT NULL,
    timeline TEXT
)
"""


def version_1(store: Store, *run_ids: str) -> None:
    store.directory.mkdir()
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(V1)
        db.execute("PRAGMA user_version = 1")
        for run_id in run_ids:
            run = document(run_id)
            names = ("2026-01-01", "smoe", "S3", "gsm8k", "datasheet", json.dumps(run["spec"]))
            row = (run_id, *names, json.dumps(run), json.dumps([SPAN]))
            db.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def version_of(store: Store) -> int:
    with closing(sqlite3.connect(store.path)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


# ---------------------------------------------------------------------- states


def test_a_cell_is_queued_then_done(store: Store) -> None:
    store.queue([("abc", SPEC)])
    assert [(c.cell_id, c.state, c.spec) for c in store.cells()] == [("abc", "queued", SPEC)]
    assert store.finished(["abc", "def"]) == {}
    store.put(document("abc"), None, ("abc", SPEC))
    (cell,) = store.cells()
    assert (cell.state, cell.run_id, cell.error) == ("done", "abc", None)
    assert store.finished(["abc", "def"]) == {"abc": "abc"}


def test_a_run_of_its_own_is_a_finished_cell(store: Store) -> None:
    store.put(document("abc"))
    assert store.finished(["abc", "def"]) == {"abc": "abc"}


def test_a_failure_is_a_line_and_a_file(store: Store) -> None:
    store.fail("abc", SPEC, "too\nlarge", "Traceback: here")
    (cell,) = store.cells("failed")
    assert (cell.error, cell.spec, cell.run_id) == ("too large", SPEC, None)
    text = (store.directory / str(cell.traceback)).read_text()
    assert "too large" in text
    assert "Traceback: here" in text
    assert json.dumps(SPEC, indent=1) in text
    assert store.finished(["abc", "def"]) == {}
    assert store.runs() == []


def test_success_forgets_the_failure(store: Store) -> None:
    store.fail("abc", SPEC, "no memory", "")
    # The same cell failed before its weights could be hashed: under another id.
    store.fail("before", SPEC, "no weights", "")
    store.fail("other", {**SPEC, "batch": 3}, "no memory", "")
    store.put(document("abc"), None, ("abc", SPEC))
    assert [cell.cell_id for cell in store.cells("failed")] == ["other"]
    assert not (store.directory / "failures" / "abc.txt").exists()


def test_a_cell_has_one_failure_whatever_its_id(store: Store) -> None:
    store.fail("old code", SPEC, "no memory", "")
    store.fail("new code", SPEC, "no memory", "")
    assert [cell.cell_id for cell in store.cells()] == ["new code"]


def test_measurements_of_one_cell_are_runs_of_their_own(store: Store) -> None:
    for run_id in ("first", "second"):
        store.put(document(run_id), None, ("local", SPEC))
    assert len(store.runs()) == 2
    assert store.finished(["local", "other"]) == {"local": "second"}


def test_many_cells_are_asked_for_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_store, "BATCH", 2)
    ids = [f"run{n}" for n in range(5)]
    for run_id in ids:
        store.put(document(run_id), [SPAN])
    assert store.finished(["absent", *reversed(ids)]) == dict(zip(ids, ids, strict=True))
    assert [run["run_id"] for run in store.runs()] == ids
    assert {cell.run_id for cell in store.cells_of(ids[1:])} == {*ids[1:]}
    assert store.timelines(ids[:3]) == {key: [SPAN] for key in ids[:3]}


def test_a_cell_whose_document_was_edited_is_not_finished(store: Store) -> None:
    for name in ("abc", "abd"):
        store.put(document(name))
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("UPDATE runs SET document = json_set(document, '$.extra', 1) "
                   "WHERE run_id = 'abc'")  # fmt: skip
    assert store.finished(["abc", "abd"]) == {"abd": "abd"}


def test_wall_times_are_those_of_the_systems_to_run(store: Store) -> None:
    for number, name in enumerate(("smoe", "daop", "daop")):
        one = document(f"run{number}")
        one["spec"]["system"] = name
        one["provenance"]["wall_s"] = 10.0 + number
        store.put(one | ({"evaluation": {}} if number == 2 else {}))
    assert [(s["system"], t) for s, t in store.wall_times({"daop"})] == [("daop", 11.0)]
    with closing(sqlite3.connect(store.path)) as db:
        db.execute("INSERT INTO runs (run_id, created, system, spec, document) "
                   "VALUES ('bad', '2026', 'daop', '{}', '{')")  # fmt: skip
        db.commit()
    assert [t for _, t in store.wall_times({"daop"})] == [11.0]
    found = sorted((s["system"], t) for s, t in store.wall_times({"gpu-only"}))
    assert found == [("daop", 11.0), ("smoe", 10.0)]


def test_wall_times_are_those_of_the_newest_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of their times of creation, not in that in which they were stored."""
    monkeypatch.setattr(stores, "RECENT", 3)
    for minute in (4, 0, 3, 1, 2):
        one = document(f"run{minute}", f"2026-01-01T00:0{minute}:00+00:00")
        one["provenance"]["wall_s"] = float(minute)
        store.put(one)
    for system in ("smoe", "another"):
        assert sorted(t for _, t in store.wall_times({system})) == [2.0, 3.0, 4.0]


# ---------------------------------------------------------------------- older stores


def test_a_store_of_version_1_is_read(store: Store) -> None:
    version_1(store, "abc", "def")
    assert [run["run_id"] for run in store.runs()] == ["abc", "def"]
    assert store.finished(["abc", "def"]) == {"abc": "abc", "def": "def"}
    assert store.cells() == []
    assert version_of(store) == 1  # reading changes nothing


def test_a_store_of_version_1_is_migrated_by_the_first_write(store: Store) -> None:
    version_1(store, "abc")
    store.put(document("def"))
    assert version_of(store) == SCHEMA_VERSION
    assert store.get("abc") == document("abc")
    assert store.timeline("abc") == [SPAN]
    assert {(c.cell_id, c.state, c.run_id) for c in store.cells()} == {
        ("abc", "done", "abc"),
        ("def", "done", "def"),
    }


def test_an_old_store_and_a_new_one_have_the_same_tables(store: Store, tmp_path: Path) -> None:
    version_1(store)
    fresh = Store(tmp_path / "fresh")
    tables = []
    for one in (store, fresh):
        one.queue([])
        with closing(sqlite3.connect(one.path)) as db:
            tables.append({
                (name, tuple(db.execute(f"PRAGMA table_info({name})").fetchall()))
                for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type != 'index'")
            })  # fmt: skip
    assert tables[0] == tables[1]
    assert {name for name, _ in tables[0]} == {"runs", "cells", "metrics"}


def sql_of_view(store: Store) -> str:
    with closing(sqlite3.connect(store.path)) as db:
        (sql,) = db.execute("SELECT sql FROM sqlite_master WHERE name = 'metrics'").fetchone()
    return str(sql)


def test_an_older_view_is_made_again_by_the_first_write(store: Store) -> None:
    version_1(store, "abc")
    old = (
        "CREATE VIEW metrics AS SELECT run_id, "
        "json_extract(document, '$.metrics.cache_ratio') AS cache_ratio FROM runs"
    )
    with closing(sqlite3.connect(store.path)) as db, db:
        for statement in (*STEPS[2], old):
            db.execute(statement)
        db.execute("PRAGMA user_version = 2")
    assert [run["run_id"] for run in store.runs()] == ["abc"]
    assert sql_of_view(store) == old, "reading changes nothing"
    store.put(document("def", metrics={"cache_ratio_begun": 0.75}))
    with closing(sqlite3.connect(store.path)) as db:
        rows = db.execute("SELECT run_id, hit_ratio_begun FROM metrics ORDER BY run_id")
        assert rows.fetchall() == [("abc", None), ("def", 0.75)]
    assert version_of(store) == SCHEMA_VERSION
    assert sql_of_view(store) == view()


def test_a_new_figure_is_a_column_without_a_new_version(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(document("abc", metrics={"swaps": 3}))
    more = Metric("swaps", "metrics.swaps", "swaps", "", ".0f", "swaps", frozenset({"view"}))
    monkeypatch.setattr(metrics, "METRICS", (*metrics.METRICS, more))
    store.put(document("def", metrics={"swaps": 4}))
    with closing(sqlite3.connect(store.path)) as db:
        rows = db.execute("SELECT run_id, swaps FROM metrics ORDER BY run_id").fetchall()
    assert rows == [("abc", 3), ("def", 4)]
    assert version_of(store) == SCHEMA_VERSION


def test_a_view_that_is_up_to_date_is_not_written_again(store: Store) -> None:
    def changes() -> int:
        with closing(sqlite3.connect(store.path)) as db:
            return int(db.execute("PRAGMA schema_version").fetchone()[0])

    store.put(document("abc"))
    before = changes()
    store.put(document("def"))
    assert changes() == before


def test_a_migration_that_fails_changes_nothing(store: Store) -> None:
    version_1(store, "abc")
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("CREATE TABLE metrics (taken TEXT)")  # in the way of the view
    with pytest.raises(Exception, match="damaged or not a moebench store"):
        store.put(document("def"))
    assert version_of(store) == 1
    assert [run["run_id"] for run in store.runs()] == ["abc"]


# ---------------------------------------------------------------------- other tools


def measured(store: Store, run_id: str, system: str, tpot_ms: float | None) -> None:
    spec = {"system": system, "setting": "S3", "workload": "gsm8k", "batch": 1}
    spread = None if tpot_ms is None else {"mean": tpot_ms, "p50": tpot_ms}
    store.put(document(run_id, spec=spec, metrics={"tpot_ms": spread}))
    write_samples(
        store.directory, run_id, [TokenSample(0, 0, 9, None), TokenSample(0, 1, 4, [8, 7])]
    )


def test_plain_sql_reads_the_metrics(store: Store) -> None:
    measured(store, "a", "smoe", 120.5)
    measured(store, "b", "moe-ondemand", 400.0)
    measured(store, "c", "gpu-only", None)
    with closing(sqlite3.connect(store.path)) as db:
        query = "SELECT system, tpot_ms, batch FROM metrics ORDER BY tpot_ms"
        rows = db.execute(query).fetchall()
        columns = [row[1] for row in db.execute("PRAGMA table_info(metrics)")]
    assert rows == [("gpu-only", None, 1), ("smoe", 120.5, 1), ("moe-ondemand", 400.0, 1)]
    assert {metric.key for metric in shown("view")} < {*columns}
    assert len(columns) == len(set(columns))


def test_pandas_reads_metrics_and_samples(store: Store) -> None:
    pandas = pytest.importorskip("pandas", reason="no pandas: pip install pandas")
    measured(store, "a", "smoe", 120.5)
    with closing(sqlite3.connect(store.path)) as db:
        metrics = pandas.read_sql("SELECT * FROM metrics", db)
    assert metrics.set_index("system").tpot_ms["smoe"] == 120.5
    (store.directory / "samples" / ".half.1.partial").write_bytes(b"PAR1 half")
    samples = pandas.read_parquet(store.directory / "samples")
    assert set(samples.run_id) == {"a"}
    assert samples[samples.step > 0].ns.mean() == 4
    assert samples.active[1].tolist() == [8, 7]
