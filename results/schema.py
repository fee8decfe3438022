"""The store's tables, version by version: a new store takes the same steps as an old one."""

import sqlite3
from collections.abc import Iterable

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

#: Column of the view → path in a run's document.  Units are in the names.
METRICS = {
    "model": "spec.model",
    "measured_model": "measured.model",
    "machine": "spec.machine",
    "batch": "spec.batch",
    "prompts": "spec.prompts",
    "new_tokens": "spec.new_tokens",
    "alpha": "spec.alpha",
    "seed": "spec.seed",
    "scoring": "spec.scoring",
    "tpot_ms": "metrics.tpot_ms.mean",
    "tpot_p50_ms": "metrics.tpot_ms.p50",
    "tpot_p90_ms": "metrics.tpot_ms.p90",
    "tpot_p99_ms": "metrics.tpot_ms.p99",
    "tpot_low_ms": "interval.tpot_ms.low",
    "tpot_high_ms": "interval.tpot_ms.high",
    "ttft_ms": "metrics.ttft_ms.mean",
    "ttft_low_ms": "interval.ttft_ms.low",
    "ttft_high_ms": "interval.ttft_ms.high",
    "e2e_ms": "metrics.e2e_ms",
    "tokens_per_s": "metrics.tokens_per_s",
    "cache_ratio": "metrics.cache_ratio",
    "cache_ratio_begun": "metrics.cache_ratio_begun",
    "bytes_h2d": "metrics.bytes_h2d",
    "bytes_disk": "metrics.bytes_disk",
    "peak_device_bytes": "metrics.peak_device_bytes",
    "energy_j": "metrics.energy_j",
    "load_ms": "metrics.load_ms",
    "bound_tpot_ms": "bound.tpot_ms",
    "bound_ratio": "bound.ratio",
    "repeated_4grams": "metrics.repeated_4grams",
    "score": "accuracy.score",
    "stderr": "accuracy.stderr",
    "agreement": "accuracy.agreement",
    "kl": "accuracy.kl",
    "wall_s": "provenance.wall_s",
    "code_hash": "provenance.code_hash",
    "weights_hash": "provenance.weights_hash",
}

#: Columns that came with version 3.
_SINCE_3 = (
    "cache_ratio_begun", "tpot_low_ms", "tpot_high_ms", "ttft_low_ms", "ttft_high_ms",
    "measured_model", "repeated_4grams",
)  # fmt: skip


def _view(columns: Iterable[str]) -> str:
    paths = ", ".join(f"json_extract(document, '$.{METRICS[c]}') AS {c}" for c in columns)
    return (
        "CREATE VIEW metrics AS "
        f"SELECT run_id, created, system, setting, workload, badge, {paths} FROM runs"
    )


_METRICS_2 = _view(column for column in METRICS if column not in _SINCE_3)

#: What leads to each version from the one before.  Published steps never change.
STEPS = {
    1: (_RUNS,),
    2: (_CELLS, _CELLS_OF_RUNS, _METRICS_2),
    3: ("DROP VIEW metrics", _view(METRICS)),
    4: (),  # timelines may be compressed, which earlier code cannot read
}
SCHEMA_VERSION = max(STEPS)


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
