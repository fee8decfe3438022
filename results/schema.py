"""The store's tables, version by version: a new store takes the same steps as an old one."""

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

#: Statements that lead to each version from the one before.  Published steps never change.  The
#: view belongs to no version: `migrate` makes it again if its SQL differs, as after a new figure.
STEPS = {
    1: (_RUNS,),
    2: (_CELLS, _CELLS_OF_RUNS),
    3: (),  # more columns in the view
    4: (),  # timelines may be compressed, which earlier code cannot read
}
SCHEMA_VERSION = max(STEPS)

#: Columns of `runs` that the view repeats.
_OWN = ("run_id", "created", "system", "setting", "workload", "badge")


def view() -> str:
    """Return the SQL of the view ``metrics``: a run's options, figures and hashes in columns."""
    paths = {
        option.name: f"spec.{option.name}" for option in OPTIONS.values()
        if option.part != "follows" and option.plain is not dict and option.name not in _OWN
    }  # fmt: skip
    paths |= {"measured_model": "measured.model"}
    paths |= {metric.key: metric.path for metric in shown("view")}
    paths |= {name: f"provenance.{name}" for name in ("code_hash", "weights_hash")}
    columns = ", ".join(
        f"json_extract(document, '$.{path}') AS {name}" for name, path in paths.items()
    )
    return f"CREATE VIEW metrics AS SELECT {', '.join(_OWN)}, {columns} FROM runs"


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Bring a store of ``version`` (0: empty) to the present one, inside the caller's transaction.

    Raises:
        sqlite3.Error: nothing is changed once the caller rolls back.
    """
    for step in range(version + 1, SCHEMA_VERSION + 1):
        for statement in STEPS[step]:
            db.execute(statement)
    if version < SCHEMA_VERSION:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    found = db.execute("SELECT sql FROM sqlite_master WHERE name = 'metrics'").fetchone()
    if found != (view(),):
        db.execute("DROP VIEW IF EXISTS metrics")
        db.execute(view())
