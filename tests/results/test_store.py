"""The store of runs: one row a run, each run whole or not there at all."""

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from moebench.results.store import CHANGED, FILE_NAME, SCHEMA_VERSION, Store, _retry, run_key
from moebench.results.validation import LANES
from moebench.substrate.errors import InputError, IntegrityError, UnknownNameError, UsageError
from moebench.substrate.machines.protocol import Lane
from tests.results.documents import SPAN, document

ROOT = Path(__file__).parents[2]


def child(script: str, *args: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", script, *map(str, args)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


# ---------------------------------------------------------------------- reading and writing


def test_reading_an_absent_store_finds_nothing_and_creates_nothing(store: Store) -> None:
    assert store.runs() == []
    assert store.get("abc") is None
    assert store.timeline("abc") is None
    assert not store.directory.exists()


def test_a_run_comes_back_as_it_was_put(store: Store) -> None:
    given = document(
        "abc", memory={"slot_bytes": None, "offered_device_bytes": 0.5}, notes=["größer, 专家 🧮"]
    )
    store.put(given, [SPAN])
    assert store.get("abc") == given
    assert list(store.get("abc") or {}) == list(given)
    assert store.timeline("abc") == [SPAN]
    assert store.get("abcd") is None


def test_a_run_without_a_picture_has_none(store: Store) -> None:
    store.put(document("abc"), None)
    assert store.timeline("abc") is None
    assert store.timelines(store.ids()) == {}


def test_pictures_are_small_and_come_back_together(store: Store) -> None:
    many = [SPAN | {"layer": layer} for layer in range(500)]
    store.put(document("abc"), many)
    store.put(document("def"), [SPAN])
    assert store.timelines(store.ids()) == {"abc": many, "def": [SPAN]}
    with closing(sqlite3.connect(store.path)) as db:
        (kept,) = db.execute("SELECT timeline FROM runs WHERE run_id = 'abc'").fetchone()
    assert len(kept) < len(json.dumps(many)) / 5


def test_a_damaged_picture_costs_itself(store: Store) -> None:
    store.put(document("abc"), [SPAN])
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("UPDATE runs SET timeline = x'00ff'")
    assert store.timeline("abc") is None
    assert store.timelines(store.ids()) == {"abc": []}
    assert store.runs() == [document("abc")]


def test_the_columns_can_be_queried(store: Store) -> None:
    store.put(document("abc"), None)
    with closing(sqlite3.connect(store.path)) as db:
        row = db.execute("SELECT run_id, created, system, setting, workload, badge FROM runs")
        expected = ("abc", "2026-01-01T00:00:00+00:00", "smoe", "S3", "gsm8k", "datasheet")
        assert row.fetchone() == expected
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_the_same_run_twice_is_one_row_the_later_one(store: Store) -> None:
    store.put(document("abc", notes=["first"]), [SPAN])
    store.put(document("abc", notes=["second"]), None)
    assert [run["notes"] for run in store.runs()] == [["second"]]
    assert store.timeline("abc") is None


def test_runs_are_listed_oldest_first(store: Store) -> None:
    for run_id, created in [("b", "2026-02-01"), ("c", "2026-01-01"), ("a", "2026-02-01")]:
        store.put(document(run_id, created), None)
    assert [run["run_id"] for run in store.runs()] == ["c", "a", "b"]


def test_a_folder_with_characters_that_a_uri_would_misread(tmp_path: Path) -> None:
    store = Store(tmp_path / "a?mode=ro#x% ü")
    store.put(document("abc"), None)
    assert store.path.is_file()
    assert len(store.runs()) == 1


def test_nothing_but_the_store_is_left_beside_it(store: Store) -> None:
    store.put(document("abc"), None)
    store.runs()
    assert [path.name for path in store.directory.iterdir()] == [FILE_NAME]


# ---------------------------------------------------------------------- finding by prefix


def test_find_resolves_a_unique_prefix(store: Store) -> None:
    for run_id in ("aa11", "aa22", "bb33", "bb"):
        store.put(document(run_id), None)
    assert store.find("aa2")["run_id"] == "aa22"
    assert store.find("bb")["run_id"] == "bb"  # the whole id wins over a prefix of another
    with pytest.raises(UsageError, match=r"'aa' is ambiguous: aa11, aa22; give more") as caught:
        store.find("aa")
    assert not isinstance(caught.value, UnknownNameError)


@pytest.mark.parametrize("prefix", ["aa33", "%", "_a", "aa11x"])
def test_find_names_the_nearest_where_there_is_none(store: Store, prefix: str) -> None:
    store.put(document("aa11"), None)
    with pytest.raises(UnknownNameError, match="aa11"):
        store.find(prefix)


def test_find_in_an_empty_store_says_how_to_fill_it(store: Store) -> None:
    with pytest.raises(UsageError, match=r"no runs in .*; run: moebench run --system smoe"):
        store.find("aa")


# ---------------------------------------------------------------------- whole or not at all

_DIE_AT_COMMIT = """
import os, sqlite3, sys
from pathlib import Path
from moebench.results.store import Store
connect = sqlite3.connect
def dying(*args, **options):
    db = connect(*args, **options)
    state = {"inserted": False}
    def watch(statement):
        state["inserted"] |= statement.startswith("INSERT")
        if statement == "COMMIT" and state["inserted"]:
            os._exit(9)
    db.set_trace_callback(watch)
    return db
sqlite3.connect = dying
run = {"run_id": sys.argv[2], "spec": {"system": "smoe"}, "notes": ["new"]}
run["provenance"] = {"created": "2027"}
Store(Path(sys.argv[1])).put(run, None)
"""


@pytest.mark.parametrize("run_id", ["abc", "other"])
def test_a_writer_that_dies_before_its_commit_changes_nothing(store: Store, run_id: str) -> None:
    before = document("abc", notes=["old"])
    store.put(before, [SPAN])
    assert child(_DIE_AT_COMMIT, store.directory, run_id).wait() == 9
    assert store.runs() == [before]
    assert store.timeline("abc") == [SPAN]
    store.put(document("next"), None)
    assert len(store.runs()) == 2


_WRITE_FOR_EVER = """
import sys
from itertools import count
from pathlib import Path
from moebench.results.store import Store
store = Store(Path(sys.argv[1]))
for turn in count():
    run = {"run_id": "abc", "spec": {"system": "smoe"}, "provenance": {"created": "2027"}}
    run["turns"] = [turn] * 100_000
    span = {"lane": "h2d", "kind": "load", "experts": [1], "start_us": 0, "end_us": 1}
    store.put(run, [span | {"layer": turn}])
    print(turn, flush=True)
"""


def test_a_killed_writer_leaves_a_whole_run(store: Store) -> None:
    writer = child(_WRITE_FOR_EVER, store.directory)
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(3)]
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    (run,) = store.runs()
    assert len(set(run["turns"])) == 1
    assert run["turns"][0] >= acknowledged[-1]
    (span,) = store.timeline("abc") or []
    assert span["layer"] == run["turns"][0]
    with closing(sqlite3.connect(store.path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


_WRITE_MANY = """
import sys
from pathlib import Path
from moebench.results.store import Store
store = Store(Path(sys.argv[1]))
sys.stdin.readline()
for turn in range(int(sys.argv[3])):
    run = {"spec": {"system": "smoe"}, "text": sys.argv[2] * 20_000}
    run["provenance"] = {"created": "2027"}
    store.put(run | {"run_id": f"{sys.argv[2]}{turn}"}, None)
    store.put(run | {"run_id": "shared"}, [])
"""


def test_two_processes_write_at_once_into_a_store_not_yet_there(store: Store) -> None:
    command = [sys.executable, "-c", _WRITE_MANY, str(store.directory)]
    writers = [
        subprocess.Popen([*command, name, "15"], cwd=ROOT, stdin=subprocess.PIPE) for name in "ab"
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()  # both wait for this line
    assert [writer.wait() for writer in writers] == [0, 0]
    names = {run["run_id"] for run in store.runs()}
    assert names == {f"{name}{turn}" for name in "ab" for turn in range(15)} | {"shared"}
    assert len(store.runs()) == 31


class Contended(sqlite3.Connection):
    """Refuses the switch to the write-ahead log twice, as when two processes create a store."""

    refusals = 2

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if "journal_mode" in statement and self.refusals:
            self.refusals -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        return super().execute(statement, *values)


def test_creating_a_store_waits_for_another_creator(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = sqlite3.connect

    def connect(database: Any, *given: Any, **more: Any) -> sqlite3.Connection:
        """Open the store's database as a contended one, and any other as it is."""
        ours = str(store.directory) in str(database)
        return own(database, *given, **more, factory=Contended if ours else sqlite3.Connection)

    monkeypatch.setattr(sqlite3, "connect", connect)
    store.put(document("abc"), None)
    assert len(store.runs()) == 1


# ---------------------------------------------------------------------- keys


def test_a_run_key_depends_on_values_and_not_on_order() -> None:
    spec = {"system": "smoe", "options": {"alpha": 0.25, "evict": "lru"}}
    same = {"options": {"evict": "lru", "alpha": 0.25}, "system": "smoe"}
    key = run_key(spec, weights="w", data="d")
    assert key == run_key(same, data="d", weights="w")
    assert len(key) == 12
    assert set(key) <= set("0123456789abcdef")
    others = [
        run_key(spec, weights="w2", data="d"),
        run_key(spec, weights="w"),
        run_key(spec | {"seed": 1}, weights="w", data="d"),
        run_key(json.loads(json.dumps(spec).replace("0.25", "0.250001")), weights="w", data="d"),
    ]
    assert len({key, *others}) == 5


def test_a_run_key_needs_plain_json() -> None:
    with pytest.raises(IntegrityError, match="spec"):
        run_key({"alpha": float("nan")})


def test_the_lanes_of_stored_spans_are_those_of_the_machine() -> None:
    assert {lane.value for lane in Lane} == LANES


def test_compacting_gives_the_space_of_removed_runs_back(store: Store) -> None:
    for n in range(20):
        store.put(document(f"{n:012x}", notes=["x" * 50_000]))
    full = store.path.stat().st_size
    store.remove([f"{n:012x}" for n in range(19)])
    assert store.path.stat().st_size == full
    store.compact()
    with closing(sqlite3.connect(store.path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert store.path.stat().st_size < full / 4
    assert store.ids() == [f"{19:012x}"]


# ---------------------------------------------------------------------- a folder without locks


def failing(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("no shared memory")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    "code",
    [sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR,
     sqlite3.SQLITE_IOERR_SHMMAP],
)  # fmt: skip
@pytest.mark.parametrize("log", [None, b"", b"pages"])
def test_a_store_that_cannot_be_locked_is_read_while_nobody_writes(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int, log: bytes | None
) -> None:
    """Whoever writes has a log that is not empty beside the file."""
    store.put(document("abc"))
    file = store.path.with_name(FILE_NAME + "-wal")
    file.unlink(missing_ok=True)
    if log is not None:
        file.write_bytes(log)
    tried: list[str] = []

    def query(mode: str, *_: object) -> list[tuple[str]]:
        tried.append(mode)
        if mode == "rw":
            raise failing(code)
        return [("a row",)]

    monkeypatch.setattr(store, "_query", query)
    if log:
        with pytest.raises(InputError, match="no shared memory"):
            store._read("SELECT 1")
        assert tried == ["rw"]
    else:
        assert store._read("SELECT 1") == [("a row",)]
        assert tried == ["rw", "ro&immutable=1"]


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_ERROR])
def test_another_error_is_not_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store.put(document("abc"))
    tried: list[str] = []

    def query(mode: str, *_: object) -> list[tuple[str]]:
        tried.append(mode)
        raise failing(code)

    monkeypatch.setattr(store, "_query", query)
    with pytest.raises(InputError):
        store.get("abc")
    assert tried == ["rw"]


def test_a_store_is_read_without_locks_as_with_them(store: Store) -> None:
    store.put(document("abc"))
    query, versions = "SELECT run_id FROM runs", range(1, SCHEMA_VERSION + 1)
    for mode in ("rw", "ro&immutable=1"):
        assert store._query(mode, query, (), versions) == [("abc",)]
    assert store._query("rw", query, (), range(SCHEMA_VERSION)) == []


def test_a_run_that_is_removed_while_it_is_looked_up_is_unknown(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("abc", "abd"):
        store.put(document(name))
    monkeypatch.setattr(Store, "get", lambda self, run_id: None)
    with pytest.raises(UnknownNameError, match="unknown run 'abc'; nearest: abd") as caught:
        store.find("abc")
    assert "nearest: abc" not in str(caught.value)


def test_bytes_that_are_no_text_in_sqlites_messages_are_a_damaged_file(store: Store) -> None:
    store.put(document("abc"))
    problem = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    with pytest.raises(InputError, match=r"runs\.sqlite.*invalid start byte") as caught, \
            store._errors():  # fmt: skip
        raise problem
    assert caught.value.__cause__ is problem
    for given, said in ((OSError(28, "No space left on device"), "No space left on device"),
                        (OSError("odd"), "odd")):  # fmt: skip
        with pytest.raises(InputError, match=f"cannot be used: {said}; give --store"), \
                store._errors():  # fmt: skip
            raise given


def test_a_busy_store_is_tried_again_and_other_errors_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("moebench.results.store.time.sleep", lambda seconds: None)
    outcomes = [failing(sqlite3.SQLITE_BUSY), failing(sqlite3.SQLITE_BUSY), None]
    calls = 0

    def action() -> None:
        nonlocal calls
        calls += 1
        problem = outcomes.pop(0)
        if problem is not None:
            raise problem

    _retry(action)
    assert (calls, outcomes) == (3, [])
    outcomes = [failing(sqlite3.SQLITE_READONLY), None]
    with pytest.raises(sqlite3.OperationalError):
        _retry(action)
    assert outcomes == [None]
    monkeypatch.setattr("moebench.results.store.BUSY_S", -1.0)
    outcomes = [failing(sqlite3.SQLITE_BUSY), None]
    with pytest.raises(sqlite3.OperationalError):
        _retry(action)
    assert outcomes == [None], "the time is over"


def test_a_document_that_was_edited_says_so_before_its_own_notes(store: Store) -> None:
    for name, notes in (("abc", ["mine"]), ("abd", None)):
        store.put(document(name, notes=notes))
    store.put(document("abe", notes=["kept"]))
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("UPDATE runs SET document = json_set(document, '$.extra', 1) "
                   "WHERE run_id < 'abe'")  # fmt: skip
    first, second, third = store.runs()
    assert (first["notes"], second["notes"], third["notes"]) == (
        [CHANGED, "mine"], [CHANGED], ["kept"],
    )  # fmt: skip
    assert (first["badge"], third["badge"]) == (f"datasheet, {CHANGED}", "datasheet")
