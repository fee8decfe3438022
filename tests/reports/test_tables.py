"""Rows of the report: the document's own numbers, dashes for what a run does not have."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.reports.sections.run import plus_minus
from moebench.reports.sections.runs import cell, columns, rows, runs_table
from moebench.reports.text import MISSING, TextTable, counted
from moebench.results.document import basis, dig, routing_of, system_of
from moebench.results.metrics import metric_of, shown, written
from tests.reports.samples import RUN, measured_run, run, traced_run

ROOT = Path(__file__).parents[2]
BY_KEY = {column.key: column for column in columns()}


def test_a_row_holds_the_documents_numbers() -> None:
    (row,) = rows([run()])
    assert row == {
        "run": "3fa9c04be712",
        "system": "smoe",
        "setting": "S3",
        "machine": "a6000",
        "software": "lean",
        "workload": "gsm8k",
        "batch": 1,
        "alpha": 0.25,
        "badge": "estimate",
        "model": "qwen2-57b-a14b",
        "tpot_ms": 61.23456,
        "tpot_low_ms": 52.05,
        "tpot_high_ms": 70.42,
        "repeated_4grams": 0.0625,
        "routing": "model",
        "bound_tpot_ms": 33.3125,
        "bound_ratio": 1.8382,
        "ttft_ms": 912.75,
        "tokens_per_s": 13.42,
        "hit_ratio": 0.4712,
        "hit_ratio_begun": 0.6108,
        "score": 40.62,
        "stderr": 8.68,
        "agreement": 0.962,
        "kl": 0.0213,
        "set": None,
        "perplexity": None,
        "floor": None,
        "cut": None,
        "device_busy": 0.4,  # of 40 s busy and 60 s of stalls
        "link_busy": 0.9,
        "host_busy": 0.25,
    }


def test_a_measured_row_names_the_model_that_ran() -> None:
    document = measured_run()
    assert rows([document])[0]["model"] == "qwen2-57b-a14b's scale model, 12.5 M parameters"
    assert basis(document) == "measured on qwen2-57b-a14b's scale model, 12.5 M parameters"
    assert basis(run()) == "estimate"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (65.0, 83.0, " ± 9"),
        (66.04, 83.26, " +9.3 −8"),
        (74.0, 1024.0, " +950 −0"),
        (73.999, 74.001, " ± 0.001"),
    ],
)
def test_an_interval_is_written_around_its_figure(low: float, high: float, text: str) -> None:
    assert plus_minus(74.0, {"low": low, "high": high}) == text
    assert plus_minus(74.0, None) == ""


def test_every_column_is_in_every_row_and_no_other() -> None:
    keys = [column.key for column in columns()]
    for row in rows([run(), traced_run()]):
        assert sorted(row) == sorted(keys)
    assert len(set(keys)) == len(keys)


def test_what_a_run_lacks_is_a_dash_and_not_a_zero() -> None:
    (row,) = rows([traced_run()])
    lacking = {key for key, value in row.items() if value is None}
    assert lacking == {
        "setting", "alpha", "tpot_ms", "tpot_low_ms", "tpot_high_ms", "bound_tpot_ms",
        "bound_ratio", "hit_ratio", "hit_ratio_begun", "repeated_4grams", "score", "stderr",
        "agreement", "kl", "device_busy", "link_busy", "host_busy", "set", "perplexity", "floor",
        "cut",
    }  # fmt: skip
    assert {cell(BY_KEY[key], row[key]) for key in lacking} == {MISSING}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("tpot_ms", 61.23456, "61.23"),
        ("tpot_ms", 0.0, "0.00"),
        ("hit_ratio", 0.4712, "47.1"),
        ("alpha", 0.25, "0.25"),
        ("batch", 16, "16"),
        ("device_busy", 1.0, "100"),
        ("system", "50%", "50%"),
        ("kl", 0.02125, "0.0213"),
        ("kl", 5e-06, "5e-06"),
        ("kl", 0.0, "0"),
        ("agreement", 0.99996, "99.996"),
        ("agreement", 1.0, "100.0"),
        ("score", 0.004, "0.004"),
        ("hit_ratio", 0.0004, "0.04"),
    ],
)
def test_cells_are_written_in_the_headers_unit(key: str, value: object, text: str) -> None:
    assert cell(BY_KEY[key], value) == text


def test_headers_name_units() -> None:
    assert BY_KEY["tpot_ms"].header == "TPOT (ms)"
    assert BY_KEY["system"].header == "system"
    assert all(metric.unit for metric in shown("runs") if metric.time)


def test_the_narrow_table_keeps_the_badge_beside_its_latencies() -> None:
    keys = {key for key, column in BY_KEY.items() if column.brief}
    assert {"run", "badge", "tpot_ms", "ttft_ms", "score"} <= keys < {*BY_KEY}


def test_without_stalls_shares_are_of_the_whole_run() -> None:
    document = run()
    document["metrics"]["stall_ms"] = {}
    busy = metric_of("device_busy").read(document)
    assert busy == RUN["metrics"]["lanes"]["device"] / RUN["metrics"]["e2e_ms"]


def test_alpha_may_stand_in_the_spec_itself() -> None:
    document = run(alpha=0.4)
    assert rows([document])[0]["alpha"] == 0.4


def test_dig_goes_through_nothing() -> None:
    assert dig({"a": {"b": 0}}, "a.b") == 0
    assert dig({"a": None}, "a.b.c") is None
    assert dig({"a": [1]}, "a.b") is None


@pytest.mark.parametrize(
    "module",
    [
        "moebench.reports.page.page",
        "moebench.reports.formats.csv",
        "moebench.reports.formats.trackers",
        "moebench.results.accuracy_table",
        "moebench.results.store",
    ],
)
def test_reports_and_results_import_nothing_heavy(module: str) -> None:
    """They know nothing of torch nor of what is above; of what is below, modules without torch.

    The options of a run (`results.spec`) name precisions, kinds of software and systems.
    """
    substrate = (
        "moebench.substrate.errors", "moebench.substrate.extensible", "moebench.substrate.files",
        "moebench.substrate.text",
    )  # fmt: skip
    of_spec = (
        "moebench.substrate.choices",
        "moebench.systems.registry",
        "moebench.systems.plugins", "moebench.systems.dynamic_imports",
    )  # fmt: skip
    folders = ("moebench.substrate", "moebench.systems")
    allowed = ("moebench.reports", "moebench.results", *substrate, *of_spec)
    script = (
        f"import sys, {module}\n"
        "bad = [m for m in sys.modules if m == 'torch' or m.startswith('moebench.')\n"
        f"       and not m.startswith({allowed}) and m not in {folders}]\n"
        "raise SystemExit(f'imported: {bad}' if bad else 0)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"system": "smoe"}, "smoe"),  # of an earlier version
        ({"system": "smoe", "variant": "published"}, "smoe"),
        ({"system": "smoe", "variant": "shipped"}, "smoe (shipped)"),
    ],
)
def test_a_run_says_which_variant_of_its_system_it_had(spec, said):
    assert system_of(spec) == said
    (row,) = rows([run(**spec)])
    assert row["system"] == said


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "model"),  # of an earlier version
        ({"routing": "model", "trace": None}, "model"),
        ({"routing": "drawn"}, "drawn"),
        ({"routing": "model", "trace": "traces/olmoe-1b-7b__facts"}, "trace olmoe-1b-7b__facts"),
    ],
)
def test_a_run_says_where_its_choice_of_experts_came_from(spec, said):
    assert routing_of(spec) == said
    (row,) = rows([run(**spec)])
    assert row["routing"] == said


@given(st.floats(0, 1, exclude_min=True, exclude_max=True), st.sampled_from([".1%", ".0%"]))
def test_a_share_between_nothing_and_all_never_looks_like_either(value: float, form: str) -> None:
    assert 0 < float(written(value, form)) < 100


def test_a_perplexity_is_no_score_and_a_floor_is_said() -> None:
    text, flat = run(), run()
    text["accuracy"] |= {"metric": "perplexity", "score": 12.5}
    flat["accuracy"] |= {"score": 0.0, "stderr": 0.0}
    one, two = rows([text, flat])
    assert (one["score"], one["perplexity"], one["floor"]) == (None, 12.5, None)
    assert (two["score"], two["perplexity"], two["floor"]) == (0.0, None, "yes")


# ---------------------------------------------------------------------- single runs


def column(table: TextTable, header: str) -> list[str]:
    return [row[table.headers.index(header)] for row in table.rows]


def test_runs_of_one_system_still_name_it_in_each_row() -> None:
    """What was chosen and is equal is said once above; ids, systems and figures never are."""
    table = runs_table([run("one"), run("two")], "runs")
    assert {"run", "system", "TPOT (ms)", "score (%)"} <= {*table.headers}
    assert "setting" not in table.headers
    assert "setting S3" in table.said
    assert "system" not in table.said
    assert {"setting", "run"} <= {*runs_table([run("one"), run("two")], "runs", once=False).headers}
    alone = runs_table([run("one")], "runs")
    assert "setting" in alone.headers


def test_rows_show_whatever_distinguishes_them() -> None:
    runs = [
        run("a", overrides={"evict": "lru", "alpha": "0.25"}),
        run("b", overrides={"evict": "lfu"}, seed=1),
        run("c", weights="mine", model="olmoe"),
    ]
    table = runs_table(runs, "runs")
    assert column(table, "set") == ["evict=lru", "evict=lfu", MISSING]
    assert column(table, "seed") == ["0", "1", "0"]
    assert column(table, "weights") == [MISSING, MISSING, "mine"]
    assert column(table, "model")[2] == "olmoe"


@settings(deadline=None)
@given(st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.sampled_from(["x", "y"]))))
def test_no_two_runs_of_different_specs_have_equal_rows(specs: set[Any]) -> None:
    runs = [
        run("same", system=system, prompts=prompts, overrides={"evict": evict})
        for system, prompts, evict in specs
    ]
    table = runs_table(runs, "runs")
    assert len({*table.rows}) == len(runs)


def test_what_is_equal_for_all_runs_is_said_once() -> None:
    runs = [run("a"), run("b", system="lru")]
    table = runs_table(runs, "runs")
    assert {"setting", "machine", "workload", "badge"}.isdisjoint(table.headers)
    assert "setting S3, machine a6000" in table.said
    whole = runs_table(runs, "runs", once=False)
    assert {"setting", "machine", "workload", "badge"} <= {*whole.headers}
    assert whole.said == ""
    assert "setting" in runs_table(runs[:1], "one").headers


def test_a_number_has_its_noun_in_the_right_form() -> None:
    assert [counted(n, "run") for n in (0, 1, 9)] == ["0 runs", "1 run", "9 runs"]
    assert counted(2000, "run") == "2,000 runs"
