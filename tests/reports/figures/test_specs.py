"""Charts are drawn as they were when somebody looked at them: their specs, in ``specs.json``.

Whoever changes a chart looks at it, and writes the file again: ``python -m
tests.reports.figures.test_specs``.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from moebench.reports.figures import comparison, exhibits, roofline, search
from moebench.reports.figures.batches import over_batches
from moebench.reports.figures.throughput import throughput
from moebench.reports.figures.timeline import timeline
from moebench.results.claims import Axis, Exhibit

FILE = Path(__file__).parent / "specs.json"

COLOURS = {"smoe": "#0072b2", "daop": "#e69f00"}


def exhibit(form: Any, **more: Any) -> Exhibit:
    """Return a figure of two rows of ours, and one of the paper."""
    rows = ({"model": "a", "system": "x", "ms": 1.5, "share": 30.0, "at": 2},
            {"model": "b", "system": "y", "ms": 40.0, "share": 60.0, "at": 5})  # fmt: skip
    given = {
        "id": "smoe-fig-1", "place": "Fig. 1", "title": "A figure", "form": form,
        "x": Axis(field="system", title="system"), "rows": rows, "badge": "estimate",
        "y": Axis(field="ms", title="time", unit="ms", log=True), "facet": "model",
        "paper_rows": ({"model": "a", "system": "x", "ms": 2.0, "share": 20.0, "at": 2},),
    }  # fmt: skip
    return Exhibit(**(given | more))


AT, SHARE = (
    Axis(field="at", title="at", unit="tokens"),
    Axis(field="share", title="share", unit="%"),
)
SPANS = tuple(
    {"panel": "a", "lane": lane, "kind": "expert", "layer": 3, "start": 1.0 * n, "end": n + 2.5}
    for n, lane in enumerate(("device", "h2d"))
)
FIGURES = {
    "bars": exhibit("bars", series="system"), "plain bars": exhibit("bars", facet=None),
    "stacked": exhibit("stacked", series="system"),
    "lines": exhibit("lines", x=AT, series="system"), "points": exhibit("points", x=SHARE),
    "heat": exhibit("heat", x=AT, y=Axis(field="system", title="system"), colour=SHARE),
    "timeline": exhibit(
        "timeline", x=Axis(field="start", title="time", unit="µs"), y=Axis(field="lane", title=""),
        series="kind", facet="panel", rows=SPANS, paper_rows=(),
    ),
}  # fmt: skip


def specs() -> Mapping[str, Any]:
    """Return the spec of each chart, as JSON holds it."""
    found = {
        "roofline": roofline.roofline(), "search trials": search.trials(),
        "search by KL": search.candidates("kl"), "search by memory": search.candidates("memory"),
        "batches": over_batches(COLOURS), "throughput": throughput(COLOURS),
        "timeline": timeline(), "time": comparison.where_time_goes(False),
        "share of time": comparison.where_time_goes(True), "ablation": comparison.ablation(),
        "bound": comparison.bound(),
    }  # fmt: skip
    found |= {f"trade by {of}": comparison.trade(of, COLOURS) for of in ("kl", "score")}
    found |= {f"lines over {of}": comparison.lines(of, COLOURS) for of in ("alpha", "batch")}
    found |= {f"figure: {name}": exhibits.spec(one) for name, one in FIGURES.items()}
    made: Mapping[str, Any] = json.loads(json.dumps(found))
    return made


KNOWN = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


@pytest.mark.parametrize("name", sorted({*KNOWN, *specs()}))
def test_a_chart_is_drawn_as_before(name: str) -> None:
    assert specs().get(name) == KNOWN.get(name)


if __name__ == "__main__":
    FILE.write_text(json.dumps(specs(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
