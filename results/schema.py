"""SQL tables of the run store, their versions, and migration; a new store takes every step."""

import sqlite3

from moebench.results.metrics import shown
from moebench.results.spec import OPTIONS

_RUNS = """
CREATE TABLE runs (
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

_CELLS = """
CREATE TABLE cells (
    cell_id   TEXT PRIMARY KEY,
    state     TEXT NOT NULL CHECK (state IN ('queued', 'done', 'failed')),
    spec      TEXT NOT NULL,
    run_id    TEXT,
    error     TEXT,
    traceback TEXT,
    updated   TEXT NOT NULL
)
"""

_CELLS_OF_RUNS = """
INSERT INTO cells SELECT run_id, 'done', spec, run_id, NULL, NULL, created FROM runs
"""

#: Columns of `runs`, which the view repeats.
_OWN = ("run_id", "created", "system", "setting", "workload", "badge")

#: Columns of the view that tell runs apart, and their paths in a run's document.
FACTS = {
    **{name: f"spec.{name}" for name, option in OPTIONS.items()
       if option.part != "follows" and option.plain is not dict and name not in _OWN},
    "measured_model": "measured.model",
    "code_hash": "provenance.code_hash",
    "weights_hash": "provenance.weights_hash",
}  # fmt: skip


def view() -> str:
    """Return the SQL of the view ``metrics``: a column for each fact and figure of a run."""
    paths = FACTS | {metric.key: metric.path for metric in shown("view")}
    columns = ", ".join(f"json_extract(document, '$.{path}') AS {c}" for c, path in paths.items())
    return f"CREATE VIEW metrics AS SELECT {', '.join(_OWN)}, {columns} FROM runs"


#: Statements that lead to each version from the one before.  Published steps never change.  No step
#: creates the view, which `migrate` keeps up to date: a new figure does not need a new version.
STEPS: dict[int, tuple[str, ...]] = {
    1: (_RUNS,),
    2: (_CELLS, _CELLS_OF_RUNS),
    3: (),  # the view had more columns
    4: (),  # timelines may be compressed, which earlier code cannot read
    5: ("ALTER TABLE runs ADD COLUMN digest TEXT",),  # of the document, see `results.store.digest`
}
SCHEMA_VERSION = max(STEPS)


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Bring a store of ``version`` (0: empty) to the present one, inside the caller's transaction.

    The view is made again if its SQL differs from `view`.

    Raises:
        sqlite3.Error: nothing is changed once the caller rolls back.
    """
    for step in range(version + 1, SCHEMA_VERSION + 1):
        for statement in STEPS[step]:
            db.execute(statement)
    if version < SCHEMA_VERSION:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    kept = db.execute("SELECT sql FROM sqlite_master WHERE name = 'metrics'").fetchone()
    if kept != (view(),):
        db.execute("DROP VIEW IF EXISTS metrics")
        db.execute(view())
