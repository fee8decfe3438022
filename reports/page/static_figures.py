"""The page's charts for files: each spec with the rows that the page shows first.

The choices are those of `templates/js/figures.js`: main tables only, each system's usual α, and
changed decisions only in ablations.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from moebench.reports.compare.conditions import NO_SETTINGS, Settings
from moebench.reports.compare.tables import Matrix
from moebench.reports.figures import comparison
from moebench.reports.figures.heat import heat
from moebench.reports.figures.history import history_chart
from moebench.reports.figures.style import Spec, system_colours
from moebench.reports.figures.throughput import throughput
from moebench.reports.figures.timeline import LANES, timeline
from moebench.reports.page import sections
from moebench.reports.page.ablation import ablations
from moebench.reports.page.runs import speeds
from moebench.reports.page.views import views
from moebench.reports.sections.accuracy import View
from moebench.reports.sections.history import Since
from moebench.reports.sections.throughput import Curve
from moebench.results.document import Document
from moebench.results.metrics import metric_of

Plain = dict[str, Any]


class StaticFigure(NamedTuple):
    """A chart with its rows.

    Attributes:
        title: its section and table; also the file's name.
        shapes: shape of each system's points.
    """

    title: str
    spec: Spec
    rows: list[Plain]
    shapes: Mapping[str, str]


class _Table(NamedTuple):
    """A table of the page with its rows, which hold every mean under its figure's key."""

    plain: Plain
    rows: list[Plain]

    @property
    def usual(self) -> list[Plain]:
        """One row per unchanged system, with the α that most runs chose."""
        found: dict[str, Plain] = {}
        rows = [row for row in self.rows if "ratio_best" in row and not row["changes"]]
        for row in sorted(rows, key=lambda row: (-row["usual"], row["alpha"] or 0)):
            found.setdefault(row["line"], row)
        return sorted(found.values(), key=lambda row: row["rank"])


def static_figures(
    runs: Sequence[Document], beside: Matrix, accuracy: Sequence[View] = (),
    curves: Mapping[str, Curve] | None = None,
    timelines: Mapping[str, list[dict[str, Any]]] | None = None, settings: Settings = NO_SETTINGS,
) -> list[StaticFigure]:  # fmt: skip
    """Return every chart that has rows.

    Args:
        runs: documents that are complete by `reports.compare.conditions.lacks`.
        beside: ratios of the heat map.
        curves: distributions of decode throughput by run id.
        timelines: spans of one token by run id (microseconds).
        settings: what each setting of the papers states.
    """
    (whole, *_) = views(runs, {run["run_id"]: at for at, run in enumerate(runs)}, settings)
    tables = list(_tables(whole))
    main = [table for table in tables if not table.plain["reason"]]
    flat = [row for table in tables for row in table.rows]
    bases, lines = (
        system_colours(dict.fromkeys(row[key] for row in flat)) for key in ("base", "line")
    )
    shapes = {name: shape for name, (_, shape) in (bases | lines).items()}
    of_bases, of_lines = (
        {n: colour for n, (colour, _) in found.items()} for found in (bases, lines)
    )
    drawn: list[tuple[str, Spec, list[Plain]]] = []
    if len(beside.titles) > 1:
        drawn.append(("heat map", *heat(beside)))
    for table in main:
        title = table.plain["place"]
        for measure in comparison.TRADES:
            drawn.append(
                (f"{measure} {title}", comparison.trade(measure, of_bases), _trade(table, measure))
            )
        drawn += [
            (f"time {title}", comparison.where_time_goes(share=True), _times(table)),
            (f"bound {title}", comparison.bound(), _bounds(table)),
            (f"throughput {title}", throughput(of_lines), _speeds(table, runs, curves or {})),
            (f"timeline {title}", timeline(), _token(table, runs, timelines or {})),
        ]
    for table in tables:
        for base, rows in ablations(table.rows):
            title = table.plain["title" if table.plain["reason"] else "place"]
            drawn.append((f"ablation {base} {title}", comparison.ablation(), rows))
    for over in comparison.OVER:
        for title, rows in _over(main if over == "batch" else tables, over):
            drawn.append((f"{over} {title}", comparison.lines(over, of_lines), rows))
            if over == "ratio":
                hits = comparison.lines(over, of_lines, "hit_ratio")
                drawn.append((f"hits {title}", hits, rows))
    for one in sections.batches(runs):
        drawn.append((f"batches {one['title']}", one["spec"], one["rows"]))
    for index, view in enumerate(accuracy):
        for found in sections.accuracy(index, view)["figures"]:
            title = f"{view.title} {found['caption']}"
            drawn.append((title, found["spec"], found["rows"]))
    return [StaticFigure(title, spec, rows, shapes) for title, spec, rows in drawn if rows]


def history_figures(found: Since | None) -> list[StaticFigure]:
    """Return the chart of each history over commits."""
    shown = found.histories if found else ()
    return [StaticFigure(f"history {one.title}", *history_chart(one), {}) for one in shown]


def _tables(view: Plain) -> Iterator[_Table]:
    for index, table in enumerate(view["tables"]):
        rows = [row for row in view["rows"] if row["t"] == index and "missing" not in row]
        yield _Table(table, [_flat(table, row) for row in rows])


def _flat(table: Plain, row: Plain) -> Plain:
    alpha = "" if row["alpha"] is None else f" α={row['alpha']:g}"
    flat = row | {"table": table["title"], "batch": table["batch"], "short": row["line"] + alpha}
    for key, value in row["v"].items():
        flat[key] = value["mean"]
        # An interval that reaches below zero is over too few values to be shown.
        if value["n"] > 1 and value.get("low", 0) > 0:
            flat |= {f"{key}_low": value["low"], f"{key}_high": value["high"]}
    if "bound_ratio" in flat and "tpot_ms" in flat:
        flat["least"] = flat["tpot_ms"] / flat["bound_ratio"]
    return flat


def _trade(table: _Table, measure: str) -> list[Plain]:
    """Return points of speed and accuracy; ``front`` marks the Pareto front, without bounds."""
    rows = [row for row in table.rows if measure in row and "tpot_ms" in row and not row["changes"]]
    if len({row[measure] for row in rows}) < 2:
        return []
    sign = 1 if metric_of(measure).better == "less" else -1
    best, found = inf, []
    for row in sorted(rows, key=lambda row: (row["tpot_ms"], sign * row[measure])):
        front = not row["reference"] and sign * row[measure] < best
        best = sign * row[measure] if front else best
        found.append(row | {"front": front})
    return found


def _times(table: _Table) -> list[Plain]:
    rows = [row for row in table.usual if row["parts"]]
    parts = list(comparison.PARTS)
    return [
        {**{key: row[key] for key in ("system", "badge", "rank")}, "part": part, "ms": ms,
         "share": ms / sum(row["parts"].values()),
         "order": parts.index(part) if part in parts else len(parts)}
        for row in rows if len(rows) > 1
        for part, ms in row["parts"].items() if ms > 0
    ]  # fmt: skip


def _bounds(table: _Table) -> list[Plain]:
    rows = [row for row in table.usual if "least" in row]
    return rows if len(rows) > 1 else []


def _speeds(table: _Table, runs: Sequence[Document], curves: Mapping[str, Curve]) -> list[Plain]:
    found = []
    for row in table.usual:
        ones = [runs[at] for at in row["runs"]]
        for run, values in zip(ones, speeds(ones, curves), strict=True):
            last = max(len(values or ()) - 1, 1)
            found += [
                {**{key: row[key] for key in ("system", "line", "badge")}, "speed": speed,
                 "run": run["run_id"], "workload": run["spec"]["workload"], "portion": step / last}
                for step, speed in enumerate(values or ())
            ]  # fmt: skip
    return found


def _token(
    table: _Table, runs: Sequence[Document], timelines: Mapping[str, list[dict[str, Any]]]
) -> list[Plain]:
    """Return the spans of one decoded token, of the two fastest systems that kept one."""
    kept: dict[str, dict[str, Document]] = {}
    for row in table.usual:
        ones = {
            runs[at]["spec"]["workload"]: runs[at]
            for at in row["runs"]
            if timelines.get(runs[at]["run_id"])
        }
        if ones and len(kept) < 2:
            kept[row["base"]] = ones
    shared = sorted(set.intersection(*(set(ones) for ones in kept.values()))) if kept else []
    if len(kept) < 2 or not shared:
        return []
    return [
        {"row": f"{name} {span['lane']}", "rank": 100 * at + _rank(span["lane"]),
         "kind": span["kind"], "layer": span["layer"], "start": span["start_us"],
         "end": span["end_us"], "us": span["end_us"] - span["start_us"]}
        for at, (name, ones) in enumerate(kept.items())
        for span in timelines[ones[shared[0]]["run_id"]]
    ]  # fmt: skip


def _rank(lane: str) -> int:
    return LANES.index(lane) if lane in LANES else len(LANES)


def _over(tables: Sequence[_Table], over: str) -> Iterator[tuple[str, list[Plain]]]:
    """Yield titles and rows of line charts over batch, α or capacity."""
    group: Callable[[_Table], Any] = {
        "batch": lambda table: table.plain["overBatch"],
        "ratio": lambda table: table.plain["overRatio"],
        "alpha": id,
    }[over]
    groups: dict[Any, list[_Table]] = {}
    for table in tables:
        groups.setdefault(group(table), []).append(table)
    for ones in groups.values():
        if over == "batch":  # of several tables of one batch, take the one with most systems
            largest = sorted(ones, key=lambda table: len(table.rows))
            ones = list({table.plain["batch"]: table for table in largest}.values())
        rows = [
            row for table in ones
            for row in (table.rows if over == "alpha" else table.usual)
            if row[over] is not None and not row["changes"]
            and not (over == "ratio" and row["reference"])
        ]  # fmt: skip
        alphas: dict[str, set[Any]] = {}
        for row in rows:
            alphas.setdefault(row["line"], set()).add(row["alpha"])
        if over != "alpha":
            rows = [
                row if len(alphas[row["line"]]) == 1 else row | {"line": row["system"]}
                for row in rows
            ]
        points: dict[str, set[Any]] = {}
        for row in rows:
            points.setdefault(row["line"], set()).add(row[over])
        first = ones[0].plain
        title = first["where"] if over == "batch" else first["place"]
        yield f"{title} {first['model']}", [row for row in rows if len(points[row["line"]]) > 1]
