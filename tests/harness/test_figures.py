"""The table of figures is complete, and every output reads it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.cli import list as listing
from moebench.harness.cli.seeds import means
from moebench.harness.one_run import prepare, run
from moebench.harness.run.interval import add_interval
from moebench.harness.run.live import LiveSession
from moebench.harness.run.rules import resolve
from moebench.reports.compare.tables import comparisons
from moebench.reports.compare.text import text_table
from moebench.reports.formats.csv import write_csv
from moebench.reports.report import report
from moebench.reports.sections.run import figures
from moebench.reports.sections.runs import runs_table
from moebench.results import metrics
from moebench.results.metrics import BY_KEY, METRICS, Metric, shown, written

ROOT = Path(__file__).parents[2]

#: Parts of a document whose numbers are no figures of their own, with the reason.
OPEN = {
    "metrics.tpot_ms": "the percentiles of a spread; the mean is a figure",
    "metrics.ttft_ms": "the percentiles of a spread; the mean is a figure",
    "metrics.lanes": "keys are lanes: reports/sections/run.py shows them",
    "metrics.stall_ms": "keys are causes: reports/sections/run.py shows them",
    "metrics.decode": "lanes, stalls and bytes of decode alone",
    "metrics.experts": "counts: `moebench compare RUN RUN` shows them for each token",
    "metrics.prefetch": "counts of prefetches",
    "metrics.routed_ahead": "counts of layers that were routed ahead",
    "metrics.host_memory": "counts of the host memory cache, where experts are on disk",
    "metrics.energy": "energy of each part",
    "interval": "ends of intervals: each belongs to its figure (`Metric.ends`)",
    "accuracy.items": "values of each example",
    "accuracy.n": "the number of examples, which is shown with the score",
    "accuracy.chance": "the score of guessing, which decides whether a score is at chance level",
}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory, tiny_models: None) -> dict[str, Any]:
    """Return the document of a live run with a score."""
    spec = resolve(
        None, system="smoe", setting="S3", workload="arithmetic", prompts=2, new_tokens=3,
        scoring="generation", cache_ratio=0.25,
    )  # fmt: skip
    session = prepare(spec, None)
    assert isinstance(session, LiveSession)
    found = run(session, tmp_path_factory.mktemp("scratch")).document
    add_interval(found, session, tmp_path_factory.mktemp("interval"))
    session.close()
    return found


def numbers(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all numbers in a document."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from numbers(below, f"{path}.{name}".lstrip("."))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def without_row(document: dict[str, Any], rows: tuple[Metric, ...]) -> set[str]:
    """Return the numbers of a document that are neither figures nor in an open part."""
    known = {metric.path for metric in rows}
    parts = ("metrics", "accuracy", "bound", "interval")
    found = {path for part in parts for path in numbers(document[part], part)}
    return {
        path for path in found - known
        if not any(path == part or path.startswith(f"{part}.") for part in OPEN)
    }  # fmt: skip


def test_every_number_of_a_document_is_a_figure_or_in_an_open_part(
    document: dict[str, Any],
) -> None:
    assert without_row(document, METRICS) == set()
    less = tuple(metric for metric in METRICS if metric.key != "e2e_ms")
    assert without_row(document, less) == {"metrics.e2e_ms"}


def test_rows_are_consistent() -> None:
    assert len(BY_KEY) == len(METRICS)
    for metric in METRICS:
        assert metric.path or metric.derived, metric.key
        assert metric.path or "view" not in metric.where, f"{metric.key}: SQL reads paths alone"
        assert metric.says, metric.key
        assert not metric.form.endswith("%") or metric.unit == "%", metric.key
        for narrow in ("brief runs", "brief compare"):
            assert narrow not in metric.where or narrow.split()[1] in metric.where


def test_the_documentation_has_the_table() -> None:
    """Else: `moebench list figures --long`, into `docs/store.md`."""
    text = (ROOT / "docs" / "store.md").read_text(encoding="utf-8")
    assert listing.markdown(listing._figures()) in text


def test_outputs_read_labels_and_digits_from_the_table(
    document: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = BY_KEY["tpot_ms"]._replace(label="step time", form=".5f", unit="msec")
    rows = tuple(other if metric.key == "tpot_ms" else metric for metric in METRICS)
    monkeypatch.setattr(metrics, "METRICS", rows)
    monkeypatch.setitem(BY_KEY, "tpot_ms", other)
    value = written(document["metrics"]["tpot_ms"]["mean"], ".5f")
    table = runs_table([document], "runs", once=False)
    assert dict(zip(table.headers, table.rows[0], strict=True))["step time (msec)"] == value
    (compared,) = comparisons([document]).tables
    table = text_table(compared)
    assert dict(zip(table.headers, table.rows[0], strict=True))["step time (msec)"] == value
    assert dict(figures(document))["step time"].startswith(f"{value} msec")
    assert "metrics.tpot_ms.mean" in means([document, document])
    assert "step time (msec)" in {metric.header for metric in shown("pair")}
    write_csv([document], report([document]), tmp_path)
    assert "tpot_ms" in (tmp_path / "runs.csv").read_text().splitlines()[0].split(",")
