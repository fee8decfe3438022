"""The table of single runs: each cell of a run, and what is written once above the table."""

import pytest

from moebench.reports.sections.runs import fields, runs_table
from moebench.reports.text import MISSING
from tests.reports.samples import RUN, run

#: A run's cells by header, what was run first.
CHOICES = {
    "run": "3fa9c04be712", "system": "smoe", "set": MISSING, "setting": "S3", "machine": "a6000",
    "software": "lean", "workload": "gsm8k", "routing": "model", "model": "qwen2-57b-a14b",
    "batch": "1", "α": "0.25", "badge": "estimate",
}  # fmt: skip
#: The lanes are busy for 40, 90 and 25 of 100 s.
FIGURES = {
    "TPOT (ms)": "61.23", "TPOT, low end (ms)": "52.05", "TPOT, high end (ms)": "70.42",
    "TPOT bound (ms)": "33.31", "× bound": "1.84", "TTFT (ms)": "912.8",
    "throughput (tokens/s)": "13.42", "hit ratio, complete (%)": "47.1",
    "hit ratio, complete or under way (%)": "61.1", "device busy (%)": "40", "link busy (%)": "90",
    "host busy (%)": "25", "score (%)": "40.6", "perplexity": MISSING, "± stderr": "8.7",
    "answers cut": MISSING, "agreement (%)": "96.2", "KL (nats/token)": "0.0213",
    "repeated 4-grams (%)": "6.2", "at chance level": MISSING,
}  # fmt: skip


def test_every_column_of_a_run() -> None:
    table = runs_table([run()], "a title", once=False)
    assert dict(zip(table.headers, table.rows[0], strict=True)) == CHOICES | FIGURES
    assert table.headers == (*CHOICES, *FIGURES)
    assert (table.title, table.said, table.marks) == ("a title", "", {})
    # Without `once=False`, what no run has is left out.
    short = runs_table([run()], "a title")
    assert [*short.headers] == [
        name for name, text in (CHOICES | FIGURES).items() if text != MISSING
    ]


def test_a_brief_table_has_few_figures() -> None:
    table = runs_table([run(), run("b", system="lru")], "t", brief=True)
    assert table.headers == (
        "run", "system", "TPOT (ms)", "× bound", "TTFT (ms)", "score (%)", "± stderr",
        "agreement (%)",
    )  # fmt: skip
    assert table.rows[1] == ("b", "lru", "61.23", "1.84", "912.8", "40.6", "8.7", "96.2")
    assert table.said == (
        "all: setting S3, machine a6000, software lean, workload gsm8k, routing model, "
        "model qwen2-57b-a14b, batch 1, α 0.25, badge estimate"
    )


def test_what_was_run_differs_in_columns_of_its_own() -> None:
    oracle = run("b", system="belady", alpha=0.5) | {"oracle": True}
    changed = {"evict": "lfu", "alpha": "0.5", "assign": "host"}
    other = run("c", overrides=changed, new_tokens=8, device={"a": {"b": 1}, "c": None})
    table = runs_table([run("a"), oracle, other], "t")
    found = {header: [row[at] for row in table.rows] for at, header in enumerate(table.headers)}
    assert found["system"] == ["smoe", "belady (oracle)", "smoe"]
    assert found["set"] == [MISSING, MISSING, "assign=host evict=lfu"]
    assert found["α"] == ["0.25", "0.5", "0.25"]
    assert found["new_tokens"] == ["64", "64", "8"]
    assert found["device.a.b"] == [MISSING, MISSING, "1"]
    assert "device.c" not in found, "it is nothing in all runs"
    assert not {"seed", "prompts", "options.evict", "variant", "overrides"} & found.keys()
    # Fields without a column stand between what was run and the figures.
    order = [*table.headers]
    assert order.index("α") < order.index("new_tokens") < order.index("TPOT (ms)")


def test_a_run_at_chance_level_says_so() -> None:
    floor = run("b")
    floor["accuracy"] |= {"score": 25.0, "chance": 25.0}
    table = runs_table([run("a"), floor], "t")
    assert [row[-1] for row in table.rows] == [MISSING, "yes"]
    assert table.headers[-1] == "at chance level"


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({}, {}),
        ({"a": None, "b": 0, "c": False}, {"a": "", "b": "0", "c": "False"}),
        ({"a": {"b": {"c": 1.5}, "d": "x"}}, {"a.b.c": "1.5", "a.d": "x"}),
        ({"a": {}}, {}),
    ],
)
def test_nested_fields_have_dotted_names(spec: dict[str, object], found: dict[str, str]) -> None:
    assert fields(spec) == found
    assert fields(spec, "spec.") == {f"spec.{name}": text for name, text in found.items()}


def test_the_sample_is_left_as_it_was() -> None:
    before = repr(RUN)
    runs_table([RUN, run("b")], "t")
    assert repr(RUN) == before
