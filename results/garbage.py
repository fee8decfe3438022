"""Unreferenced and half-written files in a run store.

Runs themselves are never garbage, nor are files of other programs: only files whose names match
the patterns below are considered.
"""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from moebench.results.samples import FOLDER as SAMPLES
from moebench.results.store import Store
from moebench.substrate.errors import InputError, UsageError

#: A file that changed less than this long ago may belong to an unfinished run.
RECENT_S = 3600.0

_RUN = "[0-9a-f]{12}"
#: File names by folder that belong to one run or cell, whose id is the group.
_OWNED = {
    SAMPLES: re.compile(rf"({_RUN})\.parquet"),
    "failures": re.compile(rf"({_RUN})\.txt"),
    "evaluations": re.compile(rf"({_RUN})"),
}
#: File names by folder that are prepared or trained before runs, whose documents name them.
_PREPARED = {
    "calibration": re.compile(r"[a-z-]+-[0-9a-f]{16}\.safetensors"),
    "experts": re.compile(r"[\w.-]+\.bin"),
    "routing": re.compile(r"(drawn|real)-[0-9a-f]+-[0-9a-f]+"),
    "native": re.compile(r"[\w.-]+\.gguf"),
}
#: Temporary file names by folder, and files of third-party packages' processes.
_HALF_WRITTEN = {
    SAMPLES: re.compile(rf"\.{_RUN}\.\d+\.partial"),
    "failures": re.compile(rf"{_RUN}\.partial"),
    "calibration": re.compile(r"[\w.-]+(\.\d+\.partial|\.lock)"),
    "experts": re.compile(r"[\w.-]+\.partial"),
    "routing": re.compile(r"\.(drawn|real)-[\w.-]+\.part"),
    "native": re.compile(r"[\w.-]+\.partial|native-[a-z]+-\d+(\.log)?"),
    ".": re.compile(r"disk-test\.bin"),
}


class Garbage(NamedTuple):
    """A file or folder that can be removed.

    Attributes:
        size: bytes of all files in it.
        why: reason in a few words.
    """

    path: Path
    size: int
    why: str


class Found(NamedTuple):
    """Result of `find`.

    Attributes:
        notes: reasons for keeping files that may be unused, a line each.
    """

    garbage: list[Garbage]
    notes: list[str]


def find(store: Store, now: float | None = None) -> Found:
    """Find the garbage in a store's folder without removing it.

    Args:
        now: seconds since 1970; None is the present.

    Raises:
        UsageError: there is no store.
        InputError: it cannot be read.
    """
    if store.schema() is None:
        raise UsageError(f"no store in {store.directory}; give the --store that is meant")
    now = time.time() if now is None else now
    # A damaged document keeps its files: its id can be read, although what it says cannot.
    runs, ids = store.runs(), set(store.ids())
    owners = {SAMPLES: ids, "failures": set(store.failures()), "evaluations": ids}
    damaged = len(ids) - len(runs)
    silent = [run for run in runs if "kept" not in run.get("provenance", {})]
    named = {name for run in runs for name in run.get("provenance", {}).get("kept", [])}
    notes = []
    if silent:
        notes.append(
            f"{len(silent)} runs of an earlier version do not say what they used: "
            f"{', '.join(_PREPARED)} stay as they are"
        )
    if damaged:
        notes.append(f"{damaged} runs are damaged: {', '.join(_PREPARED)} stay as they are")
    garbage, recent = [], 0
    for path, why in _candidates(
        store.directory, owners, named, keep_prepared=bool(silent or damaged)
    ):
        size, changed = _size(path)
        if now - changed < RECENT_S:
            recent += 1
        else:
            garbage.append(Garbage(path, size, why))
    if recent:
        notes.append(
            f"{recent} more changed within the last hour: they may be those of a run that is not "
            "over, and stay"
        )
    return Found(garbage, notes)


def _candidates(
    directory: Path, owners: dict[str, set[str]], named: set[str], keep_prepared: bool
) -> Iterator[tuple[Path, str]]:
    for folder, pattern in _OWNED.items():
        for path in _matching(directory / folder, pattern):
            if path.stem not in owners[folder]:
                what = "cell" if folder == "failures" else "run"
                yield path, f"no {what} of this id"
    for folder, pattern in _PREPARED.items():
        for path in () if keep_prepared else _matching(directory / folder, pattern):
            if path.relative_to(directory).as_posix() not in named:
                yield path, "no run names it"
    for folder, pattern in _HALF_WRITTEN.items():
        for path in _matching(directory / folder, pattern):
            yield path, "half-written, or left by a process"


def _matching(folder: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
    if folder.is_dir() and not folder.is_symlink():
        for path in sorted(folder.iterdir()):
            if pattern.fullmatch(path.name) and not path.is_symlink():
                yield path


def _size(path: Path) -> tuple[int, float]:
    """Return the bytes of a file or folder, and the last time that it changed."""
    inside = [path, *(path.rglob("*") if path.is_dir() else ())]
    states = [one.lstat() for one in inside]
    return sum(s.st_size for s in states), max(s.st_mtime for s in states)


def remove(garbage: list[Garbage]) -> None:
    """Remove what `find` found; a file that is already gone is not an error.

    Raises InputError: something cannot be removed; the entries before it are removed.
    """
    for path, _, _ in garbage:
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
                path.with_suffix(".lock").unlink(missing_ok=True)  # of a GGUF file
        except OSError as error:
            raise InputError(f"{path}: cannot be removed: {error.strerror or error}") from error
