"""One HTML page about some runs: readable without a network, without a server, for years.

The page holds the drawing libraries once and every figure as JSON.  Whatever a run's document
says is shown as text, never as markup; the page's own policy forbids it to fetch anything.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from moebench.reports import accuracy as alpha
from moebench.reports import evaluations, failures, fidelity, figures, throughput
from moebench.reports.components import HEADERS, table
from moebench.reports.tables import COLUMNS, Document, Row, badge_of, cell, dig, rows
from moebench.results.store import Cell
from moebench.substrate.errors import UsageError
from moebench.substrate.files import write_text

TEMPLATES = Path(__file__).parent / "templates"

#: What a badge promises about a latency.
BADGES = {
    "measured": "wall-clock time on the machine that is named",
    "emulated link": "host memory is this computer's too, behind a copy thread of a limited rate",
    "noisy": "it spreads from batch to batch by more than a tenth of its median",
    "calibrated": "simulated, with a hardware profile fitted to measurements on that machine",
    "datasheet": "simulated, and published figures of the hardware decide it; never run there",
    "estimate": "simulated, and estimates in the hardware profile decide it; never run there",
    "computed": "worked out from a hardware profile: the limit of a measured time",
}


def render(
    runs: list[Document],
    timelines: Mapping[str, list[dict[str, Any]]],
    out: Path,
    source: str = "the store",
    accuracy: Sequence[alpha.View] | None = None,
    failed: Sequence[Cell] = (),
    curves: Mapping[str, throughput.Curve] | None = None,
    components: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write the report.

    Args:
        runs: run documents in the order in which they are shown.
        timelines: span records by run id, for the runs that kept a picture (microseconds).
        out: the page; its folder is created.
        source: where the runs come from, for the page and for the error.
        accuracy: the accuracy table, from `reports.accuracy.load`; None leaves its section out.
        failed: cells of sweeps that have no run.
        curves: distributions of decode throughput, from `reports.throughput.load`.
        components: from `substrate.analysis.components.documents`; none leaves their section out.

    Raises:
        UsageError: there is no run.
        InputError: the page cannot be written.
    """
    if not runs:
        raise UsageError(f"no runs in {source}; run: moebench run --system smoe --setting S3")
    text = page(runs, timelines, source, accuracy, failed, curves, components)
    write_text(out, text)


def page(
    runs: list[Document],
    timelines: Mapping[str, list[dict[str, Any]]],
    source: str,
    accuracy: Sequence[alpha.View] | None = None,
    failed: Sequence[Cell] = (),
    curves: Mapping[str, throughput.Curve] | None = None,
    components: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The report as one string; pure."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections = [
        _section(index, run, row, timelines.get(run["run_id"], []))
        for index, (run, row) in enumerate(zip(runs, rows(runs), strict=True))
    ]
    badges = (section[key] for section in sections for key in ("badge", "bound_badge"))
    shown = {part for badge in badges for part in badge.split(", ")}
    return environment.get_template("report.html.j2").render(
        source=source,
        tables=[[c for c in COLUMNS if c.group in ("run", kind)] for kind in ("latency", "detail")],
        cell=cell,
        sections=sections,
        overview=_figure(figures.latencies(runs)),
        throughput=_throughput(runs, curves or {}),
        badges={badge: text for badge, text in BADGES.items() if badge in shown},
        simulated=sum(bool(run["simulated"]) for run in runs),
        evaluation_headers=evaluations.HEADERS,
        evaluations=evaluations.lines(runs),
        evaluation_caption=evaluations.CAPTION,
        failure_headers=failures.HEADERS,
        failures=failures.lines(failed),
        components=table(components) if components else None,
        component_headers=HEADERS,
        accuracy=[_view(index, view) for index, view in enumerate(accuracy or ())],
        caveat=alpha.CAVEAT,
        method=alpha.METHOD,
        verdict_headers=alpha.VERDICT_HEADERS,
        library=Markup(figures.library()),  # the pinned package's own script
    )


def _section(index: int, run: Document, row: Row, records: list[dict[str, Any]]) -> dict[str, Any]:
    """What the template shows of one run."""
    return {
        "anchor": f"run-{index + 1}",
        "run": run,
        "row": row,
        "badge": badge_of(run),
        # A bound is never measured: beside a measured time it must not borrow its badge.
        "bound_badge": run["badge"] if run["simulated"] else "computed",
        "simulated": run["simulated"],
        "interval": run.get("interval") or {},
        "latencies": [
            ("TPOT", dig(run, "metrics.tpot_ms")),
            ("TTFT", dig(run, "metrics.ttft_ms")),
        ],
        "metrics": dig(run, "metrics") or {},
        "accuracy": run.get("accuracy"),
        "bound": run.get("bound") or {},
        "notes": [*(run.get("notes") or []), *fidelity.notes(run)],
        "timeline": _figure(figures.timeline(records, run["simulated"]), len(records))
        if records
        else None,
        "shares": _figure(figures.shares(run)),
        "spec": _definitions(run["spec"]),
        "provenance": _definitions(run.get("provenance") or {}),
        "json": json.dumps(run, indent=2, ensure_ascii=False),
    }


def _throughput(
    runs: list[Document], curves: Mapping[str, throughput.Curve]
) -> list[dict[str, Any]]:
    """What the template shows of decode throughput: a figure for each set of comparable runs."""
    return [
        {
            "name": f"throughput-{index}",
            "figure": _figure(
                figures.throughput(ones, curves), sum(len(curves[run["run_id"]]) for run in ones)
            ),
            "title": common.title,
            "simulated": ones[0]["simulated"],
        }
        for index, (common, ones) in enumerate(throughput.groups(runs, curves).items(), 1)
    ]


def _view(index: int, view: alpha.View) -> dict[str, Any]:
    """What the template shows of one setting's accuracy: its tables and small multiples."""
    drawn = []
    for generated, what in ((False, "real datasets"), (True, "generated exercises")):
        chosen = [one for one in view.series if one.generated == generated]
        for measure in figures.MEASURES:
            name = f"accuracy-{index + 1}-{measure}-{'generated' if generated else 'real'}"
            spec = figures.curves(chosen, measure)
            if spec is not None:
                drawn.append((name, _figure(spec), f"{measure} against α, {what}"))
    return {"anchor": f"accuracy-{index + 1}", "view": view, "figures": drawn}


def _figure(spec: figures.Spec | None, bars: int = 0) -> dict[str, Any] | None:
    renderer = "canvas" if bars > figures.SVG_LIMIT else "svg"
    return None if spec is None else {"spec": spec, "renderer": renderer}


def _definitions(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Names and values as text; what is nested gets a dotted name."""
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found += _definitions(value, f"{prefix}{name}.")
        else:
            plain = isinstance(value, str)
            found.append((prefix + name, value if plain else json.dumps(value, ensure_ascii=False)))
    return found
