"""The store of a user's runs: one SQLite file, each run one row, each write one transaction.

    .moebench/runs.sqlite     the store: `runs`, sweeps' `cells`, the view `metrics`
    .moebench/runs.sqlite-wal, -shm     SQLite's own, present while a process writes
    .moebench/samples/RUN_ID.parquet    see `results.samples`
    .moebench/failures/CELL_ID.txt      traceback of a cell that failed

Reading an absent store finds no runs and creates nothing.  Several processes may write:
SQLite's write-ahead log admits one at a time, and a killed writer leaves the rows unchanged.
"""

import difflib
import hashlib
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic_core import from_json

from moebench.results.document import is_run_id, without_details
from moebench.results.samples import samples_path
from moebench.results.schema import SCHEMA_VERSION, migrate
from moebench.results.store_hints import in_store, no_runs
from moebench.results.validation import picture, problem, spec_problem
from moebench.substrate.errors import InputError, IntegrityError, UnknownNameError, UsageError
from moebench.substrate.text import may_act, visible, visible_in

FILE_NAME = "runs.sqlite"
#: Seconds that a writer waits for other writers before it fails.
BUSY_S = 30.0
#: Runs that one query names: SQLite admits 999 values in all of its versions.
BATCH = 500
#: Most runs whose wall times are read for an estimate.
RECENT = 300

_INSERT = "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_CELL = "INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?)"
#: A cell that failed with other code, or before its inputs were hashed, has another id.
_FORGET_FAILURE = "DELETE FROM cells WHERE state != 'done' AND spec = ? AND cell_id != ?"

#: Note, and part of the badge, of a document whose text is not the one that was written.
CHANGED = "changed since it was written"

_BROKEN = "{} is damaged or not a moebench store ({}); move it away or give another --store"

#: Error messages by SQLite's primary result code.
_MEANINGS = {
    sqlite3.SQLITE_NOTADB: _BROKEN,
    sqlite3.SQLITE_CORRUPT: _BROKEN,
    sqlite3.SQLITE_ERROR: _BROKEN,
    sqlite3.SQLITE_FULL: "no space left to write {} ({}); free some or give another --store",
    sqlite3.SQLITE_IOERR: "{} cannot be used ({}); is the disk full? free some or give --store",
    sqlite3.SQLITE_READONLY: "{} is read-only ({}); give another --store",
    sqlite3.SQLITE_PERM: "{} is not accessible ({}); give another --store",
    sqlite3.SQLITE_CANTOPEN: "{} cannot be opened ({}); check its permissions or give --store",
    sqlite3.SQLITE_BUSY: "{} is held by another process ({}); wait for it and try again",
}

#: Result codes if SQLite cannot create its -shm file: read-only folder, full disk.
_NO_SHM = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR}


def run_key(spec: dict[str, Any], **hashes: str) -> str:
    """Return a run's id: 12 hex digits of a hash over its spec and its inputs' hashes.

    Pure: the order of keys does not matter, every value does.

    Raises IntegrityError: a value that JSON cannot hold (NaN included).
    """
    text = _dump({"spec": spec, "hashes": hashes}, "spec", sort=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def digest(text: str) -> str:
    """Return the digest of a document's text, which is stored beside it."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


State = Literal["queued", "done", "failed"]


class Cell(NamedTuple):
    """One configuration of a sweep, and the state of its run, which outlives the sweep.

    Attributes:
        cell_id: id of its run; on a local machine, where each measurement is a run of its own, an
            id that all measurements of the cell share.
        spec: the resolved spec.
        run_id: id of the latest run that finished it.
        error: error message in one line.
        traceback: file with the traceback, relative to the store's folder; None for a failed cell
            that cannot run here, which is no defect.
        updated: ISO 8601, UTC.
    """

    cell_id: str
    state: State
    spec: dict[str, Any]
    run_id: str | None = None
    error: str | None = None
    traceback: str | None = None
    updated: str = ""

    @property
    def impossible(self) -> bool:
        """Whether the cell cannot run here: its options, model, routing or memory do not fit."""
        return self.state == "failed" and self.traceback is None


class Store:
    """The run store of one directory.  It holds no connection between calls: workers may share it.

    Every method raises InputError, one line, where the file cannot be read or written.

    Args:
        directory: the user's `.moebench/`; created by the first `put`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / FILE_NAME
        #: Reasons why reading left out a run or cell, a line each.
        self.left_out: dict[str, str] = {}

    def put(
        self, document: dict[str, Any], timeline: list[dict[str, Any]] | None = None,
        cell: tuple[str, dict[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        """Store a run, replacing an earlier one of its id, and mark its cell as done.

        Args:
            document: a run's JSON; `run_id` and `provenance.created` (ISO 8601, UTC) must be there.
            timeline: span records of the timeline excerpt, times in microseconds.
            cell: the cell's id and resolved spec; None for those of the run.

        Raises IntegrityError: the document is not plain JSON (NaN included) or lacks those keys.
        """
        row = _row(document, timeline)
        cell_id, spec = cell or (document["run_id"], document.get("spec", {}))
        text = _dump(spec, "spec")
        done = (cell_id, "done", text, document["run_id"], None, None, _now())
        with self._transaction() as db:
            db.execute(_INSERT, row)
            db.execute(_INSERT_CELL, done)
            db.execute(_FORGET_FAILURE, (text, cell_id))
        with self._errors():
            self._traceback(cell_id).unlink(missing_ok=True)

    def queue(self, cells: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Mark cells (id, resolved spec) as queued, replacing their earlier states."""
        now = _now()
        rows = [(i, "queued", _dump(s, "spec"), None, None, None, now) for i, s in cells]
        with self._transaction() as db:
            db.executemany(_INSERT_CELL, rows)

    def fail(self, cell_id: str, spec: dict[str, Any], error: str, traceback: str | None) -> None:
        """Store a cell's failure: its message in the database, its traceback in a file.

        Args:
            traceback: None for a cell that cannot run here.
        """
        line, name = visible(" ".join(error.split())), None
        if traceback is not None:
            file = self._traceback(cell_id)
            with self._errors():
                file.parent.mkdir(parents=True, exist_ok=True)
                half_written = file.with_suffix(".partial")
                half_written.write_text(f"{line}\n\n{json.dumps(spec, indent=1)}\n\n{traceback}\n")
                os.replace(half_written, file)
            name = file.relative_to(self.directory).as_posix()
        with self._transaction() as db:
            text = _dump(spec, "spec")
            db.execute(_INSERT_CELL, (cell_id, "failed", text, None, line, name, _now()))
            db.execute(_FORGET_FAILURE, (text, cell_id))

    def cells(self, state: State | None = None) -> list[Cell]:
        """Return all cells, or those in one state, in the order of their last change."""
        states = ("queued", "done", "failed") if state is None else (state,)
        return self._cells(f"state IN ({_places(states)})", *states)

    def cells_of(self, run_ids: Iterable[str]) -> list[Cell]:
        """Return the cells that some runs finished."""
        some = _batches([*run_ids])
        return [cell for ids in some for cell in self._cells(f"run_id IN ({_places(ids)})", *ids)]

    def _cells(self, which: str, *values: str) -> list[Cell]:
        query = f"SELECT * FROM cells WHERE {which} ORDER BY updated, cell_id"
        cells = []
        for cell_id, kept, text, *rest in self._read(query, *values, since=2):
            spec = self._sound(f"cell {cell_id}", text, spec_problem)
            if spec is not None:
                cells.append(Cell(cell_id, kept, spec, *map(visible_in, rest)))
        return cells

    def failures(self) -> list[str]:
        """Return the ids of all cells with a traceback, whether or not their specs are valid."""
        query = "SELECT cell_id FROM cells WHERE traceback IS NOT NULL"
        return [cell_id for (cell_id,) in self._read(query, since=2)]

    def finished(self, cell_ids: Iterable[str]) -> dict[str, str]:
        """Return the id of the run that finished each of the cells, by the cell's id.

        A cell whose document was changed since it was written is not finished.
        """
        known = dict(
            self._read("SELECT cell_id, run_id FROM cells WHERE state = 'done'", since=2)
            or self._read("SELECT run_id, run_id FROM runs", before=2)
        )
        found = {cell_id: known[cell_id] for cell_id in cell_ids if cell_id in known}
        asked = "SELECT run_id FROM runs WHERE run_id IN ({}) AND {}"
        unchanged = "(digest IS NULL OR digest = digest_of(document))"
        kept: set[str] = set()
        for some in _batches([*dict.fromkeys(found.values())]):
            rows = self._read(asked.format(_places(some), unchanged), *some, since=5)
            rows += self._read(asked.format(_places(some), "1"), *some, before=5)
            kept.update(run_id for (run_id,) in rows)
        return {cell_id: run_id for cell_id, run_id in found.items() if run_id in kept}

    def wall_times(self, systems: Collection[str]) -> list[tuple[dict[str, Any], float]]:
        """Return specs and wall times (s) of the newest runs of some systems, evaluations excluded.

        At most `RECENT` runs: more would not make an estimate better.  Without a run of these
        systems, those of any system.
        """
        newest = "SELECT run_id FROM runs {} ORDER BY created DESC LIMIT ?"
        timed = (
            "SELECT run_id, spec, json_extract(document, '$.provenance.wall_s') FROM runs "
            "WHERE run_id IN ({}) AND CASE WHEN json_valid(document) "
            "THEN json_type(document, '$.evaluation') IS NULL ELSE 0 END"
        )
        where = f"WHERE system IN ({_places(systems)})"
        rows = self._read(timed.format(newest.format(where)), *systems, str(RECENT))
        rows = rows or self._read(timed.format(newest.format("")), str(RECENT))
        found = []
        for run_id, text, wall_s in rows:
            spec = self._sound(f"spec of run {run_id}", text, spec_problem)
            if spec is not None and isinstance(wall_s, int | float):
                found.append((spec, float(wall_s)))
        return found

    def get(self, run_id: str) -> dict[str, Any] | None:
        """Return a run's document, or None if there is none that is valid (`left_out` says why).

        A document that was changed since it was written says so in its badge and its notes.
        """
        found = list(self._documents("WHERE run_id = ?", run_id))
        return found[0] if found else None

    def reusable(self, run_id: str) -> dict[str, Any] | None:
        """Return a run's document if it is as it was written, so that it need not be computed."""
        found = self.get(run_id)
        return None if found is None or CHANGED in found["notes"] else found

    def timeline(self, run_id: str) -> list[dict[str, Any]] | None:
        """Return the span records stored with a run (microseconds), or None."""
        rows = self._read("SELECT timeline FROM runs WHERE run_id = ?", run_id)
        return picture(rows[0][0]) if rows else None

    def timelines(self, run_ids: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        """Return stored spans by run id, without instants, for the runs that have any."""
        found = {}
        for some in _batches([*run_ids]):
            rows = self._read(
                "SELECT run_id, timeline FROM runs WHERE timeline IS NOT NULL AND run_id IN "
                f"({_places(some)})", *some,
            )  # fmt: skip
            for run_id, kept in rows:
                spans = picture(kept) or []
                found[run_id] = [record for record in spans if not record.get("instant")]
        return found

    def runs(self, brief: bool = False) -> list[dict[str, Any]]:
        """Return the valid documents of all runs, oldest first; `left_out` names damaged ones.

        Args:
            brief: leave out what only a single run's view shows (`results.document.DETAILS`).
        """
        ids = self._read("SELECT run_id FROM runs ORDER BY created, run_id")
        found = []
        # Batches of texts: those of all runs take as much memory as their documents.
        for some in _batches([run_id for (run_id,) in ids]):
            which = f"WHERE run_id IN ({_places(some)}) ORDER BY created, run_id"
            for document in self._documents(which, *some):
                found.append(without_details(document) if brief else document)
        return found

    def _documents(self, which: str, *values: str) -> Iterator[dict[str, Any]]:
        """Yield the valid documents of a selection of runs, marked if they were changed."""
        rows = self._read(f"SELECT run_id, document, digest FROM runs {which}", *values, since=5)
        rows += self._read(f"SELECT run_id, document, NULL FROM runs {which}", *values, before=5)
        for run_id, text, written in rows:
            document = self._sound(f"run {run_id}", text, partial(problem, run_id=run_id))
            if document is None:
                continue
            if written is not None and written != digest(text):
                document["badge"] = f"{document.get('badge')}, {CHANGED}"
                document["notes"] = [CHANGED, *(document.get("notes") or ())]
            yield document

    def ids(self) -> list[str]:
        """Return all run ids in alphabetical order."""
        return [run_id for (run_id,) in self._read("SELECT run_id FROM runs ORDER BY run_id")]

    def find(self, prefix: str) -> dict[str, Any]:
        """Return the document of the run whose id is ``prefix``, or else begins with it.

        Raises:
            UnknownNameError, UsageError: as `find_id`.
            InputError: the document is damaged.
        """
        run_id = self.find_id(prefix)
        document = self.get(run_id)
        if document is None and f"run {run_id}" in self.left_out:
            raise InputError(f"{self.left_out[f'run {run_id}']}, or remove it with moebench rm")
        if document is None:  # removed by another process between the two reads
            raise UnknownNameError("run", prefix, [i for i in self.ids() if i != run_id])
        return document

    def find_id(self, prefix: str) -> str:
        """Return the id of the run whose id is ``prefix``, or else begins with it.

        Raises:
            UnknownNameError: no run's id begins with it.
            UsageError: several ids do, or the store holds no run.
        """
        ids = self.ids()
        if not ids:
            raise UsageError(no_runs(self.directory))
        matches = [prefix] if prefix in ids else [i for i in ids if i.startswith(prefix)]
        if not matches:
            near = difflib.get_close_matches(prefix, ids, n=5, cutoff=0.0)
            raise UnknownNameError(
                "run", prefix, near, hint=f"moebench report{in_store(self.directory)} lists all"
            )
        if len(matches) > 1:
            some = ", ".join(matches[:5]) + (", ..." if len(matches) > 5 else "")
            raise UsageError(f"run {prefix!r} is ambiguous: {some}; give more characters")
        return str(matches[0])

    def remove(self, run_ids: Sequence[str]) -> None:
        """Delete runs, the cells that they finished, and their samples."""
        ids = [(run_id,) for run_id in run_ids]
        with self._transaction() as db:
            db.executemany("DELETE FROM runs WHERE run_id = ?", ids)
            db.executemany("DELETE FROM cells WHERE run_id = ?", ids)
        with self._errors():
            for run_id in filter(is_run_id, run_ids):
                samples_path(self.directory, run_id).unlink(missing_ok=True)

    def compact(self) -> None:
        """Shrink the database file by the space of removed runs."""
        with self._errors(), closing(self._connect("rw")) as db:
            self._check(db)
            db.execute("VACUUM")

    def schema(self) -> int | None:
        """Return the version of the store's tables, or None if there is no store."""
        with self._errors():
            if not self.path.exists():
                return None
            found = self._read("PRAGMA user_version")
        return int(found[0][0]) if found else 0

    # ------------------------------------------------------------------ SQLite

    def _connect(self, mode: str) -> sqlite3.Connection:
        # The URI form: "rw" must not create an absent store.  Transactions are written out by hand.
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Context manager of one write transaction; creates and migrates the store."""
        with self._errors():
            self.directory.mkdir(parents=True, exist_ok=True)
            with closing(self._connect("rwc")) as db:
                self._check(db)
                # SQLite's busy timeout does not cover this switch by two processes at once.
                _retry(lambda: db.execute("PRAGMA journal_mode = WAL"))
                db.execute("BEGIN IMMEDIATE")
                migrate(db, _version(db))  # read again: another process may have migrated it
                yield db
                db.execute("COMMIT")

    def _check(self, db: sqlite3.Connection) -> int:
        """Return the version of the store; 0 if it has no table yet.

        Raises InputError: a newer moebench wrote it, or it is the database of another program.
        """
        # One read transaction: another process may be creating the table at this moment.
        db.execute("BEGIN")
        version = _version(db)
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        db.execute("COMMIT")
        if version > SCHEMA_VERSION:
            raise InputError(
                f"{self.path} was written by a newer moebench (schema {version}, this one knows "
                f"{SCHEMA_VERSION}); upgrade moebench or give another --store"
            )
        if version == 0 and tables:
            raise InputError(_BROKEN.format(self.path, "it holds other tables"))
        return version if tables else 0

    def _read(
        self, query: str, *values: str, since: int = 1, before: int = SCHEMA_VERSION + 1
    ) -> list[tuple[Any, ...]]:
        """Return a query's rows; none if the store is absent or of another version.

        Args:
            since, before: the first version that the query can read, and the first that it cannot.
        """
        versions = range(since, before)
        with self._errors():
            if not self.path.exists():
                return []
            try:
                return self._query("rw", query, values, versions)
            except sqlite3.OperationalError as error:
                if _code(error) not in _NO_SHM or not self._at_rest():
                    raise
                return self._query("ro&immutable=1", query, values, versions)

    def _at_rest(self) -> bool:
        """Return whether no process writes, so that reading without SQLite's locks is complete."""
        log = self.path.with_name(FILE_NAME + "-wal")
        return not log.exists() or log.stat().st_size == 0

    def _query(
        self, mode: str, query: str, values: tuple[str, ...], versions: range
    ) -> list[tuple[Any, ...]]:
        with closing(self._connect(mode)) as db:
            db.create_function("digest_of", 1, digest, deterministic=True)
            return db.execute(query, values).fetchall() if self._check(db) in versions else []

    def _traceback(self, cell_id: str) -> Path:
        return self.directory / "failures" / f"{cell_id}.txt"

    def _sound(
        self, what: str, text: str, wrong_with: Callable[[Any], str | None]
    ) -> dict[str, Any] | None:
        """Return a document, or None if it is damaged, with the reason in `left_out`."""
        try:
            document = _parsed(text)
            reason = wrong_with(document)
            if may_act(text):
                document = visible_in(document)
        except (ValueError, TypeError, RecursionError) as error:
            reason = f"not JSON ({error or type(error).__name__})"
        if reason is None:
            self.left_out.pop(what, None)
            return dict(document)
        self.left_out[what] = visible(f"{what} in {self.path}: {reason}; run it again with --force")
        return None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Context manager that turns errors of SQLite and the file system into an `InputError`."""
        try:
            yield
        except sqlite3.Error as error:
            meaning = _MEANINGS.get(_code(error), "{} cannot be used ({}); give another --store")
            raise InputError(meaning.format(self.path, error)) from error
        except UnicodeDecodeError as error:  # Python decodes SQLite's messages about a damaged file
            raise InputError(_BROKEN.format(self.path, error)) from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"{self.directory} cannot be used: {reason}; give --store") from error


def _retry(action: Callable[[], object]) -> None:
    """Repeat an action while another process holds the file, for at most `BUSY_S` seconds."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            action()
            return
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _version(db: sqlite3.Connection) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; errors raised by Python count as general ones."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _parsed(text: str) -> Any:
    """Return a JSON text's value; equal keys and short texts of all documents share their memory.

    Raises ValueError, TypeError, RecursionError: it is not JSON.
    """
    try:
        return from_json(text, cache_strings="all")
    except ValueError:  # not JSON, or what only Python's parser takes: halves of surrogate pairs
        return json.loads(text)


def _places(values: Collection[str]) -> str:
    """Return a question mark for each value, as a query names them."""
    return ", ".join("?" * len(values))


def _batches(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the values in batches that one query can name."""
    return (values[at : at + BATCH] for at in range(0, len(values), BATCH))


def _dump(value: object, what: str, sort: bool = False) -> str:
    try:
        return json.dumps(value, sort_keys=sort, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise IntegrityError(f"the run's {what} is not plain JSON: {error}") from error


def _row(document: dict[str, Any], timeline: list[dict[str, Any]] | None) -> tuple[object, ...]:
    try:
        run_id, created = document["run_id"], document["provenance"]["created"]
    except KeyError as error:
        raise IntegrityError(f"the run's document lacks {error}") from error
    spec = document.get("spec", {})
    names = [visible_in(spec.get(key)) for key in ("system", "setting", "workload")]
    texts = _dump(spec, "spec"), _dump(document, "document")
    # Spans are repetitive: compression saves nine tenths of the bytes.
    picture = None if timeline is None else zlib.compress(_dump(timeline, "timeline").encode())
    return (
        run_id,
        created,
        *names,
        visible_in(document.get("badge")),
        *texts,
        picture,
        digest(texts[1]),
    )
