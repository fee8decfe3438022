"""Stores that cannot be used: one clear line each, and nothing is changed."""

import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from moebench.results.store import SCHEMA_VERSION, Store
from moebench.substrate.errors import InputError, IntegrityError
from tests.results.documents import SPAN, document


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def plain_user() -> Iterator[None]:
    """The superuser may write everywhere: step down to nobody, and only inside the test.

    Between a test's phases, tools that measure it write files of their own.
    """
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def one_line(error: "pytest.ExceptionInfo[InputError]") -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    "content", [b"this is no database, whatever its name says" * 50, b"\0" * 4096]
)
def test_a_file_that_is_no_database(store: Store, content: bytes) -> None:
    store.directory.mkdir()
    store.path.write_bytes(content)
    for action in (store.runs, lambda: store.put(document("abc"), None), lambda: store.get("abc")):
        with pytest.raises(InputError, match="damaged or not a moebench store") as caught:
            action()
        assert str(store.path) in one_line(caught)
    assert store.path.read_bytes() == content


@pytest.mark.parametrize("keep", [0.6, 0.3])
def test_a_truncated_store(store: Store, keep: float) -> None:
    for index in range(20):
        store.put(document(f"run{index}", notes=["x" * 5000]), None)
    content = store.path.read_bytes()
    store.path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(InputError, match="damaged") as caught:
        store.runs()
    one_line(caught)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("substr(document, 1, 20)", "not JSON"),
        ("'[]'", "expected an object"),
        ("replace(document, 'abc', 'xyz')", "run_id is 'xyz'"),
        ("replace(document, '\"smoe\"', '3')", "spec.system is 3, expected text"),
    ],
)
def test_a_broken_document_costs_its_own_row(store: Store, change: str, says: str) -> None:
    store.put(document("abc"), None)
    store.put(document("whole"), None)
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute(f"UPDATE runs SET document = {change} WHERE run_id = 'abc'")
    assert [run["run_id"] for run in store.runs()] == ["whole"]
    (line,) = store.left_out.values()
    assert line.startswith("run abc in ")
    assert says in line


def test_somebody_elses_database_is_not_touched(store: Store) -> None:
    store.directory.mkdir()
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("CREATE TABLE songs (title TEXT)")
    before = store.path.read_bytes()
    for action in (store.runs, lambda: store.put(document("abc"), None)):
        with pytest.raises(InputError, match="other tables"):
            action()
    assert store.path.read_bytes() == before


def test_a_store_of_a_newer_version_says_so(store: Store) -> None:
    store.put(document("abc"), None)
    with closing(sqlite3.connect(store.path)) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    said = rf"newer moebench \(schema {SCHEMA_VERSION + 1}, this one knows {SCHEMA_VERSION}\)"
    for action in (store.runs, lambda: store.put(document("abc"), None)):
        with pytest.raises(InputError, match=said):
            action()


def test_an_empty_file_is_an_empty_store(store: Store) -> None:
    store.directory.mkdir()
    store.path.touch()
    assert store.runs() == []
    store.put(document("abc"), None)
    assert len(store.runs()) == 1


def test_a_full_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(document("abc"), None)
    connect = sqlite3.connect

    def small(*args: Any, **options: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*args, **options)
        db.execute("PRAGMA max_page_count = 8")  # SQLite then reports what a full disk does
        return db

    full = r"no space left to write .*disk is full"
    # Only here: coverage keeps its data in SQLite, too.
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", small)
        with pytest.raises(InputError, match=full) as caught:
            store.put(document("big", notes=["x" * 100_000]), None)
    assert "--store" in one_line(caught)
    assert [run["run_id"] for run in store.runs()] == ["abc"]


def test_a_folder_that_cannot_be_created(open_folder: Path) -> None:
    locked = open_folder / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    denied = "cannot be used: Permission denied; give --store"
    with plain_user(), pytest.raises(InputError, match=denied):
        Store(locked / "inner").put(document("abc"), None)


def test_a_read_only_store_is_read_but_not_written(open_folder: Path) -> None:
    store = Store(open_folder / "store")
    with plain_user():
        store.put(document("abc"), [SPAN])
        store.path.chmod(0o444)
        store.directory.chmod(0o555)
        try:
            assert [run["run_id"] for run in store.runs()] == ["abc"]
            assert store.timeline("abc") == [SPAN]
            with pytest.raises(InputError, match=r"read-only|cannot be opened") as caught:
                store.put(document("def"), None)
            assert str(store.path) in one_line(caught)
        finally:
            store.directory.chmod(0o755)


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=os.strerror(errno.EEXIST)):
        Store(tmp_path / "file").put(document("abc"), None)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, Path("x")])
def test_a_document_that_is_no_json_is_our_bug_and_changes_nothing(
    store: Store, value: Any
) -> None:
    with pytest.raises(IntegrityError, match="not plain JSON"):
        store.put(document("abc", energy_j=value), None)
    assert not store.directory.exists()


def test_a_document_without_its_id_is_our_bug(store: Store) -> None:
    with pytest.raises(IntegrityError, match="run_id"):
        store.put({"spec": {}}, None)
