"""Comparisons as plain values for the page: tables and rows, for every choice of workload.

The page's tables and charts use the same rows.  One view is over all workloads, and one over each
workload, so that the page's filter need not average: only `reports.compare.rows` does.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from moebench.reports.compare.conditions import Settings, place_of
from moebench.reports.compare.rows import RATIO, Row, Value
from moebench.reports.compare.tables import Comparison, comparisons
from moebench.reports.compare.times import CELLS
from moebench.results.document import Document, dig, system_of
from moebench.results.metrics import Metric, shown, written

Plain = dict[str, Any]


def views(runs: Sequence[Document], at: Mapping[str, int], settings: Settings) -> list[Plain]:
    """Return the view of all workloads together, then of each if there are several.

    Args:
        runs: documents in the page's order.
        at: index of each run on the page, by its id.
        settings: what each setting states.
    """
    workloads = sorted({str(dig(run, "spec.workload")) for run in runs if "evaluation" not in run})
    found = [_view(runs, at, "", settings)]
    if len(workloads) > 1:
        for name in workloads:
            ones = [run for run in runs if str(dig(run, "spec.workload")) == name]
            found.append(_view(ones, at, name, settings))
    return found


def _view(
    runs: Sequence[Document], at: Mapping[str, int], workload: str, settings: Settings
) -> Plain:
    found = comparisons(runs, settings)
    by_id = {run["run_id"]: run for run in runs}
    often = Counter(_choice(run) for run in runs if "evaluation" not in run and "spec" in run)
    tables = list(map(_table, found.tables))
    _name_series(tables, found.tables)
    rows = [
        {"t": index} | _row(row, rank, by_id, at, often) | _ties(row, table)
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
    """Number the sets of tables that differ only in the horizontal axis of a line chart.

    Over batches the number of prompts may differ, over capacities the bytes of the device.
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
    row: Row, rank: int, by_id: Mapping[str, Document], at: Mapping[str, int],
    often: Counter[tuple[Any, ...]],
) -> Plain:  # fmt: skip
    """Return a system's row; ``usual`` is the number of runs in its group that chose its α."""
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
        "lossless": row.lossless,
        "remarks": [text for text in row.remarks if text != "lossy"],  # the page has a mark for it
        "differs": dict(row.differs),
        "runs": [at[run_id] for run_id in row.run_ids],
        "v": {figure.key: _value(row.values[figure.key], figure) | _ends(runs, figure)
              for figure in shown("compare") if figure.key in row.values},
        "parts": _parts(runs),
        "changes": changes,
        "usual": often[_choice(first)],
    }  # fmt: skip


def _ties(row: Row, table: Comparison) -> Plain:
    """Return the ranks of the systems whose TPOT cannot be told from the row's, if any."""
    tied = table.ties.get(row.system, frozenset())
    ranks = [rank for rank, other in enumerate(table.rows) if other.system in tied]
    return {"ties": ranks} if ranks else {}


def _value(value: Value, figure: Metric) -> Plain:
    """Return a mean with its text, interval and standard error, if it has them.

    ``sure`` is whether the interval is worth showing beside the mean.
    """
    found: Plain = {"mean": _short(value.mean), "text": figure.text(value.mean), "n": value.n}
    if value.interval is not None:
        low, high = value.interval
        found |= {"low": _short(low), "high": _short(high),
                  "half": figure.text((high - low) / 2)}  # fmt: skip
        if low < high and (value.n >= CELLS or figure.key == RATIO):
            found["sure"] = True
    if value.stderr is not None:
        found["stderr"] = written(value.stderr, ".2g")
    return found


def _ends(runs: Sequence[Document], figure: Metric) -> Plain:
    """Return the ends of a single run's interval over the profile's ranges, as text, if known."""
    ends = dig(runs[0], figure.ends) if len(runs) == 1 and figure.ends else None
    if not ends or ends.get("low") is None:
        return {}
    high = ends.get("high")
    return {"ends": [figure.text(ends["low"]), "?" if high is None else figure.text(high)]}


def _parts(runs: Sequence[Document]) -> Plain | None:
    """Return the device's time in a decoded token by part (ms), or None if unknown.

    Parts are busy time and waits by cause, scaled so that they add up to the runs' mean TPOT.
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
    """Return a system's name without its changed options."""
    return system_of(run["spec"]) + (" (oracle)" if run.get("oracle") else "")


def _choice(run: Document) -> tuple[Any, ...]:
    """Return a key of a run's group, system and α; the most frequent one has the usual α."""
    spec = run["spec"]
    return (place_of(run) if "simulated" in run else None, spec.get("system"),
            spec.get("variant"), spec.get("alpha"))  # fmt: skip


def _short(number: float) -> float:
    """Round to six significant digits."""
    return float(f"{number:.6g}")
