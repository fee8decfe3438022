"""The table of figures: whole, and what every output reads."""

from pathlib import Path

import pytest

from moebench.harness.cli.list import Listing, markdown
from moebench.harness.cli.seeds import means, show_means
from moebench.reports.compare import pair
from moebench.reports.compare.tables import comparisons
from moebench.reports.compare.text import text_table
from moebench.reports.figures import comparison
from moebench.reports.formats.csv import write_csv
from moebench.reports.page.runs import listed
from moebench.reports.page.views import views
from moebench.reports.report import report
from moebench.reports.sections.run import figures
from moebench.reports.sections.runs import runs_table
from moebench.results import metrics
from moebench.results.metrics import METRICS, Metric, metric_of, shown
from moebench.results.schema import view
from moebench.results.validation import problem
from tests.reports.samples import run

ROOT = Path(__file__).parents[2]


def test_rows_are_whole() -> None:
    assert len({metric.key for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.says, metric.key
        assert metric.where, metric.key
        assert metric.path or metric.of or metric.key == "ratio_best"
        assert metric.path or "view" not in metric.where, "the view reads plain paths"
        assert f"{1234.5:{metric.form}}"
        assert metric.unit or not metric.time or metric.key == "bound_ratio"
        assert (metric.unit == "%") == metric.form.endswith("%") or metric.key == "score"


def test_the_documentation_holds_the_table() -> None:
    """Else: `moebench list metrics --long`, into `docs/store.md`."""
    assert markdown(Listing.metrics) in (ROOT / "docs" / "store.md").read_text(encoding="utf-8")


def test_a_figure_is_written_in_its_unit() -> None:
    assert metric_of("bytes_h2d").full(9_876_543_210) == "9.877 GB"
    assert metric_of("hit_ratio").full(0.4712) == "47.1 %"
    assert metric_of("bound_ratio").full(1.8382) == "1.84"


def test_axes_and_tooltips_of_charts_have_the_tables_labels_and_digits() -> None:
    tpot = metric_of("tpot_ms")
    for key in comparison.TRADES:
        spec = comparison.trade(key, {})
        assert spec["encoding"]["y"]["axis"]["title"] == metric_of(key).header
        shown_tpot, other = spec["encoding"]["tooltip"][-2:]
        assert (shown_tpot["title"], shown_tpot["format"]) == (tpot.header, tpot.form)
        assert (other["title"], other["format"]) == (metric_of(key).header, metric_of(key).form)


# ----------------------------------------------------------------------------- one more figure


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> Metric:
    """A figure that only this module has: one row more in the table."""
    everywhere = metrics.metric_of("tpot_ms").where
    metric = Metric(
        "swaps", "metrics.swaps", "swaps", "kilo", ".3f", "swaps", everywhere, scale=1e3,
        better="less", time=True,
    )  # fmt: skip
    monkeypatch.setattr(metrics, "METRICS", (*METRICS, metric))
    return metric


def test_a_new_row_is_in_every_output(
    more: Metric, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [run("a", seed=0), run("b", seed=1)]
    for at, one in enumerate(runs):
        one["metrics"]["swaps"] = 4000 + 2000 * at
        one["spec"]["overrides"] = {}
    assert more in shown("compare")
    assert "json_extract(document, '$.metrics.swaps') AS swaps" in view()
    assert "| swaps | metrics.swaps | swaps (kilo) | less |" in markdown(Listing.metrics)
    table = runs_table(runs, "runs", brief=True)
    assert [row[table.headers.index("swaps (kilo)")] for row in table.rows] == ["4.000", "6.000"]
    (compared,) = comparisons(runs).tables
    text = text_table(compared, brief=True)
    assert text.rows[0][text.headers.index("swaps (kilo)")] == "5.000"
    assert ("swaps", "4.000 kilo [estimate]") in [*figures(runs[0])]
    show_means(runs, means(runs))
    assert "swaps\t5.000 ± " in capsys.readouterr().out
    assert listed(runs, {}, {runs[0]["run_id"]})[0]["v"]["swaps"] == "4.000"
    assert views(runs, {"a": 0, "b": 1}, {})[0]["rows"][0]["v"]["swaps"]["text"] == "5.000"
    write_csv(runs, report(runs), tmp_path)
    assert "swaps" in (tmp_path / "runs.csv").read_text().splitlines()[0].split(",")
    assert "swaps.low" in (tmp_path / "comparisons.csv").read_text().splitlines()[0].split(",")
    found = pair.compare(runs[0], runs[1], (None, None), ["seed"] if "seed" in pair.NAMES else [])
    (line,) = [one for one in pair.lines(found) if one[0] == "swaps (kilo)"]
    assert line[1:4] == ["4.000", "6.000", "+2"]


def test_a_damaged_figure_is_found() -> None:
    document = run("a")
    assert problem(document, "a") is None
    document["metrics"]["energy_j"] = "much"
    assert problem(document, "a") == "metrics.energy_j is 'much', expected a number"


def test_what_limited_a_packages_memory_is_no_damage() -> None:
    document = run("a") | {"memory": {"slot_bytes": None, "limited_by": "cgroup"}}
    assert problem(document, "a") is None
