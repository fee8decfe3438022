"""The comparisons as plain values: tables, and a row a system, for every choice of workload.

Tables and charts of the page are drawn from the same rows.  A row's means are over all of its
cells; one view is over all workloads, and one over each by itself, so that the page's filter never
has to average: `reports.compare.rows` is the only place that does.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from moebench.reports.compare.conditions import place_of
from moebench.reports.compare.rows import Row, Value
from moebench.reports.compare.tables import Comparison, comparisons
from moebench.results.document import Document, dig, system_of
from moebench.results.metrics import shown, written

Plain = dict[str, Any]


def views(runs: Sequence[Document], at: Mapping[str, int]) -> list[Plain]:
    """All workloads together, then each by itself where there are several.

    Args:
        runs: in the order of the page.
        at: each run's place in it, by its id.
    """
    workloads = sorted({str(dig(run, "spec.workload")) for run in runs if "evaluation" not in run})
    found = [_view(runs, at, "")]
    if len(workloads) > 1:
        for name in workloads:
            ones = [run for run in runs if str(dig(run, "spec.workload")) == name]
            found.append(_view(ones, at, name))
    return found


def _view(runs: Sequence[Document], at: Mapping[str, int], workload: str) -> Plain:
    found = comparisons(runs)
    by_id = {run["run_id"]: run for run in runs}
    often = Counter(_choice(run) for run in runs if "evaluation" not in run and "spec" in run)
    tables = list(map(_table, found.tables))
    _name_series(tables, found.tables)
    rows = [
        {"t": index} | _row(row, rank, by_id, at, often)
        for index, table in enumerate(found.tables)
        for rank, row in enumerate(table.rows)
    ]
    return {"workload": workload, "tables": tables, "rows": rows, "leftOut": list(found.left_out)}


def _table(table: Comparison) -> Plain:
    place = table.place
    return {
        "title": table.title,
        "place": place.title,
        "where": place.where,
        "batch": place.batch,
        "model": place.model,
        "machine": place.machine,
        "simulated": place.simulated,
        "said": table.said,
        "reason": table.reason,
        "cells": [cell.title for cell in table.cells],
        "marks": {
            key: [sorted(marks.best), sorted(marks.second)] for key, marks in table.marks.items()
        },
    }


def _name_series(plain: list[Plain], tables: Sequence[Comparison]) -> None:
    """Number the sets of tables that differ in nothing but what a line is drawn over.

    Over batches the number of prompts may differ, over cache ratios the bytes of the device.
    """
    for name, loose in (
        ("overBatch", ("device-memory", "prompts")),
        ("overRatio", ("device-memory",)),
    ):
        known: dict[Any, int] = {}
        for one, table in zip(plain, tables, strict=True):
            place = table.place._replace(batch=0) if name == "overBatch" else table.place
            fixed = tuple((k, v) for k, v in table.common.items() if k not in (*loose,))
            one[name] = known.setdefault((place, fixed), len(known))


def _row(
    row: Row,
    rank: int,
    by_id: Mapping[str, Document],
    at: Mapping[str, int],
    often: Counter[tuple[Any, ...]],
) -> Plain:
    """A system of a table; ``usual`` is how many runs of its place chose its α."""
    if row.missing:
        return {"system": row.system, "base": row.system, "rank": rank, "missing": row.missing}
    runs = [by_id[run_id] for run_id in row.run_ids]
    first = runs[0]
    alpha = dig(first, "spec.alpha")
    changes = {
        key: value for key, value in (dig(first, "spec.overrides") or {}).items() if key != "alpha"
    }
    own = {part for part in row.system.split(" ") if part.startswith("alpha=")}
    return {
        "system": row.system,
        "base": base_of(first),
        "line": " ".join(part for part in row.system.split(" ") if part not in own),
        "alpha": alpha,
        "ratio": dig(first, "spec.cache_ratio"),
        "rank": rank,
        "badge": row.badge,
        "reference": row.reference,
        "differs": dict(row.differs),
        "runs": [at[run_id] for run_id in row.run_ids],
        "v": {figure.key: _value(row.values[figure.key], figure.form)
              for figure in shown("compare") if figure.key in row.values},
        "parts": _parts(runs),
        "changes": changes,
        "usual": often[_choice(first)],
    }  # fmt: skip


def _value(value: Value, form: str) -> Plain:
    """A mean and its text; the interval's ends where there is one."""
    found: Plain = {"mean": _short(value.mean), "text": written(value.mean, form), "n": value.n}
    if value.interval is not None:
        low, high = value.interval
        found |= {"low": _short(low), "high": _short(high),
                  "half": written((high - low) / 2, form)}  # fmt: skip
    if value.stderr is not None:
        found["stderr"] = written(value.stderr, ".2g")
    return found


def _parts(runs: Sequence[Document]) -> Plain | None:
    """What the device did in a decoded token (ms): worked, or waited for what; None if unknown.

    The device lane's time in decode, split as counted and scaled to the runs' mean TPOT.
    """
    each = []
    for run in runs:
        busy = dig(run, "metrics.decode.lanes.device")
        stalls = dig(run, "metrics.decode.stall_ms")
        tpot = dig(run, "metrics.tpot_ms.mean")
        if not busy or stalls is None or tpot is None:
            return None
        parts = {"device busy": busy} | {f"waits for {name}": ms for name, ms in stalls.items()}
        total = sum(parts.values())
        each.append({name: ms / total * tpot for name, ms in parts.items()})
    names = dict.fromkeys(name for one in each for name in one)
    return {name: _short(fmean(one.get(name, 0.0) for one in each)) for name in names}


def base_of(run: Document) -> str:
    """A system without what was chosen in it."""
    return system_of(run["spec"]) + (" (oracle)" if run.get("oracle") else "")


def _choice(run: Document) -> tuple[Any, ...]:
    """A system with its α in a place: how often it was run says which α is its usual one."""
    spec = run["spec"]
    return (place_of(run) if "simulated" in run else None, spec.get("system"),
            spec.get("variant"), spec.get("alpha"))  # fmt: skip


def _short(number: float) -> float:
    """Six digits: what is below them is rounding."""
    return float(f"{number:.6g}")
