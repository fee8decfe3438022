"""What can go from a store: all that no run refers to, and never a run."""

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from moebench.results import garbage
from moebench.results.garbage import Garbage
from moebench.results.store import Store
from moebench.substrate.errors import InputError, UsageError
from tests.results.documents import document

RUN, GONE, CELL = "0123456789ab", "ba9876543210", "00000000000c"
HASH = "0123456789abcdef"

#: What a run refers to.
WANTED = (
    f"samples/{RUN}.parquet",
    f"failures/{CELL}.txt",
    f"calibration/routing-{HASH}.safetensors",
    f"experts/{HASH}-float32.bin",
    f"native/{HASH}-f32.gguf",
    f"routing/drawn-{HASH}-{HASH}/trace.json",
)
#: What none does, or was left half-written.
UNWANTED = (
    f"samples/{GONE}.parquet",
    f"samples/.{RUN}.17.partial",
    f"failures/{GONE}.txt",
    f"failures/{CELL}.partial",
    f"evaluations/{GONE}/requests.jsonl",
    f"calibration/state-mlp-{HASH[::-1]}.safetensors",
    f"calibration/routing-{HASH}.17.partial",
    f"experts/{HASH[::-1]}-float32.bin",
    f"experts/{HASH}-float32.partial",
    f"native/{HASH[::-1]}-f32.gguf",
    "native/native-llamacpp-17.log",
    f"routing/real-{HASH}-{HASH}/trace.json",
    "disk-test.bin",
)
#: What is not moebench's to remove, whatever it is.
OTHERS = (
    "samples/mine.parquet",
    "failures/notes.txt",
    "calibration/README.md",
    "claims/smoe.json",
    "weights/olmoe/model.safetensors",
    f"models/{RUN}/config.json",
)


def filled(directory: Path) -> Store:
    """A store of one run and one failed cell, with all of these files, none of them recent."""
    store = Store(directory)
    kept = [name for name in WANTED if name.split("/")[0] not in ("samples", "failures", "routing")]
    kept.append(f"routing/drawn-{HASH}-{HASH}")
    run = document(RUN)
    run["provenance"]["kept"] = kept
    store.put(run)
    store.fail(CELL, {"a": 1}, "it failed", "where")
    for name in (*WANTED, *UNWANTED, *OTHERS):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("x")
    age(directory, 2 * garbage.RECENT_S)
    return store


def age(directory: Path, seconds: float) -> None:
    then = time.time() - seconds
    for path in (directory, *directory.rglob("*")):
        os.utime(path, (then, then))


def files(directory: Path) -> set[str]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix() for path in found} - {"runs.sqlite"}


def test_what_no_run_refers_to_goes_and_all_else_stays(tmp_path: Path) -> None:
    store = filled(tmp_path)
    before = store.runs(), store.cells()
    found = garbage.find(store)
    assert files(tmp_path) == {*WANTED, *UNWANTED, *OTHERS}, "looking removes nothing"
    garbage.remove(found.garbage)
    assert files(tmp_path) == {*WANTED, *OTHERS}
    assert (store.runs(), store.cells()) == before
    assert garbage.find(store) == ([], [])


def test_what_another_process_removed_meanwhile_is_no_error(tmp_path: Path) -> None:
    found = garbage.find(filled(tmp_path))
    for one in found.garbage:
        if one.path.is_file():
            one.path.unlink()
    garbage.remove(found.garbage)
    assert files(tmp_path) == {*WANTED, *OTHERS}


def test_what_changed_within_the_hour_stays(tmp_path: Path) -> None:
    store = filled(tmp_path)
    recent = garbage.find(store, now=time.time() - 1.5 * garbage.RECENT_S)
    assert recent.garbage == []
    assert recent.notes[0].startswith(f"{len(UNWANTED)} more changed within the last hour")
    # A folder is as recent as the last of its files.
    os.utime(tmp_path / f"routing/real-{HASH}-{HASH}/trace.json")
    assert len(garbage.find(store).garbage) == len(UNWANTED) - 1


def test_runs_that_do_not_say_what_they_used_keep_all_that_was_prepared(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.put(document("older"))
    found = garbage.find(store)
    folders = {one.path.relative_to(tmp_path).parts[0] for one in found.garbage}
    gone = {one.path.relative_to(tmp_path).as_posix() for one in found.garbage}
    assert folders >= {"samples", "failures", "evaluations"}
    assert not any("earlier version" not in note for note in found.notes)
    assert f"experts/{HASH[::-1]}-float32.bin" not in gone
    assert f"experts/{HASH}-float32.partial" in gone


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / f"{GONE}.parquet").write_text("x")
    store = Store(tmp_path / "store")
    store.put(document(RUN))
    (store.directory / "samples").symlink_to(elsewhere)
    assert garbage.find(store, now=time.time() + 1e6).garbage == []


def test_a_folder_without_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / f"{GONE}.parquet").write_text("x")
    with pytest.raises(UsageError, match="no store in"):
        garbage.find(Store(tmp_path))


@pytest.mark.parametrize("text", ["{}", "not JSON", '{"run_id": "other"}'])
def test_files_of_a_damaged_run_stay_until_it_is_removed(tmp_path: Path, text: str) -> None:
    store = filled(tmp_path)
    with closing(sqlite3.connect(store.path)) as db:
        db.execute("UPDATE runs SET document = ?", (text,))
        db.execute("UPDATE cells SET spec = ?", (text,))
        db.commit()
    found = garbage.find(store)
    assert "1 runs are damaged" in found.notes[0]
    garbage.remove(found.garbage)
    assert set(WANTED) <= files(tmp_path)
    store.remove([RUN])
    garbage.remove(garbage.find(store).garbage)
    assert f"samples/{RUN}.parquet" not in files(tmp_path)
    assert f"experts/{HASH}-float32.bin" not in files(tmp_path)


def test_two_recent_files_beside_an_old_one_are_counted(tmp_path: Path) -> None:
    store = filled(tmp_path)
    for name in UNWANTED[:2]:
        os.utime(tmp_path / name)
    found = garbage.find(store)
    assert len(found.garbage) == len(UNWANTED) - 2
    assert found.notes[0].startswith("2 more changed within the last hour")


def test_what_cannot_be_removed_is_named_after_what_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (tmp_path / name for name in ("a.gguf", "b", "c"))
    for path in (first, third, tmp_path / "a.lock"):
        path.touch()
    second.mkdir()
    for problem, said in ((OSError(16, "Device or resource busy"), "Device or resource busy"),
                          (OSError("odd"), "odd")):  # fmt: skip

        def refused(path: Path, error: OSError = problem) -> None:
            raise error

        monkeypatch.setattr("moebench.results.garbage.shutil.rmtree", refused)
        entries = [Garbage(path, 0, "") for path in (first, second, third)]
        with pytest.raises(InputError, match=f"^{second}: cannot be removed: {said}$"):
            garbage.remove(entries)
        assert [path.exists() for path in (first, second, third)] == [False, True, True]
    assert not (tmp_path / "a.lock").exists()
