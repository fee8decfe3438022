"""The table of figures: whole, and what every output reads."""

import copy
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.0, ".2f", "0.00"), (0.0004, ".2f", "0.0004"), (-0.001, ".2f", "-0.001"),
        (1.005, ".1f", "1.0"), (1234.4, ",.0f", "1,234"), (0.0, ".1%", "0.0"),
        (0.00001, ".1%", "0.001"), (0.5, ".1%", "50.0"), (1.0, ".1%", "100.0"),
        (0.9996, ".1%", "99.96"), (0.99999, ".1%", "99.999"), (0.994, ".0%", "99"),
        (0.996, ".0%", "99.60"), (1.2, ".0%", "120"), (-0.00001, ".1%", "-0.001"),
    ],
)  # fmt: skip
def test_only_zero_looks_like_zero_and_only_all_like_all(
    value: float, form: str, text: str
) -> None:
    assert metrics.written(value, form) == text


def test_derived_figures_by_hand() -> None:
    """The device decodes for 60 ms and waits for 40, of 100 ms; 5 GB for 100 tokens."""
    document = {
        "metrics": {
            "decode": {"stall_ms": {"load": 30.0, "host": 10.0}, "lanes": {"device": 60.0},
                       "bytes_h2d": 5 * 10**9},
            "decoded_tokens": 100, "e2e_ms": 400.0,
            "lanes": {"device": 40.0, "h2d": 30.0, "host": 20.0}, "stall_ms": {"load": 60.0},
        },
        "memory": {"slot_bytes": 3 * 10**9},
    }  # fmt: skip
    keys = ("device_idle", "gb_per_token", "slots_gb", "device_busy", "link_busy", "host_busy")

    def read(*path: str, value: object = None) -> list[float | None]:
        """Return the figures with another value at a path."""
        changed = copy.deepcopy(document)
        if path:
            inside: Any = changed
            for name in path[:-1]:
                inside = inside[name]
            inside[path[-1]] = value
        return [metric_of(key).read(changed) for key in keys]

    assert read() == [0.4, 0.05, 3.0, 0.4, 0.3, 0.2]
    assert read("metrics", "stall_ms", value={})[3:] == [0.1, 0.075, 0.05]
    assert read("metrics", "stall_ms", value=None)[3:] == [0.1, 0.075, 0.05]
    assert read("metrics", "lanes", value={"h2d": 30.0})[3:] == [None, 0.5, None]
    assert read("metrics", "decode", "lanes", value={"device": 0.0})[0] is None
    assert read("metrics", "decode", "stall_ms", value=None)[0] == 0.0
    assert read("metrics", "decode", "bytes_h2d", value=0)[1] == 0.0
    assert read("metrics", "decode", "bytes_h2d")[1] is None
    assert read("metrics", "decoded_tokens", value=0)[1] is None
    assert read("metrics", "process", value={})[2] is None
    assert read("memory", value={})[2] == 0.0


def test_ends_and_percentiles_of_a_time_stand_beside_it() -> None:
    names = [metric.key for metric in METRICS if metric.key.startswith(("tpot_", "tokens_per_s"))]
    assert names == ["tpot_ms", "tpot_low_ms", "tpot_high_ms", "tpot_p50_ms", "tpot_p90_ms",
                     "tpot_p99_ms", "tokens_per_s", "tokens_per_s_low",
                     "tokens_per_s_high"]  # fmt: skip
    document = {"interval": {"ttft_ms": {"low": 1.0, "high": 3.0}},
                "metrics": {"ttft_ms": {"mean": 2.0, "p90": 2.5}}}  # fmt: skip
    read = [metric_of(key).read(document) for key in
            ("ttft_low_ms", "ttft_ms", "ttft_high_ms", "ttft_p90_ms", "ttft_p99_ms")]  # fmt: skip
    assert read == [1.0, 2.0, 3.0, 2.5, None]
    for metric in METRICS:
        assert not metric.key.endswith(("_low_ms", "_high_ms", "_p50_ms")) or metric.time
    assert (metric_of("hit_ratio").factor, metric_of("bytes_h2d").factor) == (100, 1e-9)
    assert metric_of("tpot_ms").factor == 1


def test_each_figure_has_the_scale_of_its_unit() -> None:
    """Stored bytes are shown in GB, shares in percent; all else is stored in the unit shown."""
    for metric in METRICS:
        in_bytes = metric.unit == "GB" and metric.path != ""
        assert in_bytes == ("bytes" in metric.path.rpartition(".")[2])
        assert metric.scale == (1e9 if in_bytes else 1), metric.key
        share = metric.unit == "%" and metric.key != "score"
        assert metric.factor == (100 if share else 1e-9 if in_bytes else 1), metric.key


def test_brief_tables_pairs_and_means_hold_a_few_figures_each() -> None:
    def keys(where: metrics.Where) -> list[str]:
        return [metric.key for metric in shown(where)]

    accuracy = ["score", "perplexity", "agreement", "kl"]
    both = ["tpot_ms", "ttft_ms"]
    assert keys("pair") == [*both, "score", "agreement", "kl"]
    assert keys("seeds") == [*both, "e2e_ms", "tokens_per_s", "hit_ratio", *accuracy]
    assert keys("brief runs") == [
        "tpot_ms", "bound_ratio", "ttft_ms", "score", "perplexity", "stderr", "cut", "agreement",
    ]  # fmt: skip
    assert keys("brief compare") == [
        "tpot_ms", "ratio_best", "bound_ratio", "ttft_ms", "hit_ratio", "hit_ratio_begun",
        "gb_per_token", "tokens_per_kj", *accuracy,
    ]  # fmt: skip
    assert keys("compare") == [
        "tpot_ms", "ratio_best", "bound_ratio", "clairvoyant_ms", "information_ms", "ttft_ms",
        "hit_ratio", "hit_ratio_begun", "gb_per_token", "device_idle", "s_mbu", "s_mbu_host",
        "s_mbu_link", "s_mfu", "slots_gb", "tokens_per_kj", *accuracy,
    ]  # fmt: skip
    assert keys("runs") == [
        "tpot_ms", "tpot_low_ms", "tpot_high_ms", "bound_tpot_ms", "bound_ratio", "ttft_ms",
        "tokens_per_s", "hit_ratio", "hit_ratio_begun", "device_busy", "link_busy", "host_busy",
        "score", "perplexity", "stderr", "cut", "agreement", "kl", "repeated_4grams",
    ]  # fmt: skip
    assert keys("run") == [
        "tpot_ms", "bound_tpot_ms", "bound_ratio", "clairvoyant_ms", "information_ms", "ttft_ms",
        "tokens_per_s", "hit_ratio", "hit_ratio_begun", "bytes_h2d", "bytes_disk", "s_mbu",
        "s_mbu_host", "s_mbu_link", "s_mfu", "peak_device_bytes", "energy_j", "tokens_per_kj",
        "score", "perplexity", "cut", "agreement", "kl", "repeated_4grams",
    ]  # fmt: skip
    unseen = {m.key for m in METRICS if m.path and m.key != "perplexity"} - {*keys("view")}
    assert unseen == set(), "the view has every figure that a document stores"


def test_times_follow_the_speed_of_a_machine_and_shares_of_routing_do_not() -> None:
    times = {metric.key.partition("_")[0] for metric in METRICS if metric.time}
    assert times == {"tpot", "ttft", "e2e", "tokens", "bound", "clairvoyant", "information",
                     "load", "s"}  # fmt: skip
    assert [m.key for m in METRICS if m.key.startswith(("tokens", "bound")) and not m.time] == [
        "bound_ratio", "tokens_per_kj",
    ]  # fmt: skip
    less = [metric.key for metric in METRICS if metric.better == "less"]
    more = [metric.key for metric in METRICS if metric.better == "more"]
    assert less == ["tpot_ms", "ttft_ms", "e2e_ms", "gb_per_token", "device_idle", "perplexity",
                    "kl"]  # fmt: skip
    assert more == ["tokens_per_s", "hit_ratio", "hit_ratio_begun", "s_mbu", "s_mfu",
                    "tokens_per_kj", "score", "agreement"]  # fmt: skip
    of_questions = [metric.key for metric in METRICS if metric.of_questions]
    assert of_questions == ["score", "perplexity"]
