"""``moebench accuracy``: cells become rows of a table that can grow."""

from pathlib import Path

import pytest

from moebench.harness.guard.accuracy_table import cells, scoring_of
from moebench.results.accuracy_table import read_items, read_table
from moebench.workloads.catalogue import workload
from tests.harness.commands import Called, call

pytestmark = pytest.mark.usefixtures("tiny_models")


def table(*arguments: str) -> Called:
    small = ("--settings", "S3", "--workloads", "inflection", "--prompts", "2", "--jobs", "1")
    return call("accuracy", *small, *arguments)


@pytest.mark.slow
def test_a_table_grows_and_keeps_its_other_cells() -> None:
    out = Path(".moebench/alpha.csv")
    assert table("--alphas", "0,0.6").code == 0
    first = {row.alpha: row for row in read_table(out)}
    assert table("--alphas", "0.3,0.6").code == 0
    rows = {row.alpha: row for row in read_table(out)}
    assert sorted(rows) == [0.0, 0.3, 0.6]
    assert rows[0.0] == first[0.0]
    assert rows[0.6] == first[0.6], "a stored cell is not computed again"
    assert set(read_items(out)) == {row.run_id for row in rows.values()}
    lossless = rows[0.0]
    assert (lossless.n, lossless.agreement, lossless.kl, lossless.generated) == (2, 1, 0, True)
    assert 0 < rows[0.3].kl <= rows[0.6].kl


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--alphas", "a"), "--alphas a: allowed: numbers separated by commas"),
        (("--workloads", "text"), "no reference answers to score"),
        (("--alphas", "2"), "alpha is 2"),
    ],
)
def test_invalid_options_are_refused_in_one_line(arguments: tuple[str, ...], says: str) -> None:
    called = table(*arguments)
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert says in called.err


def test_a_table_that_cannot_be_written_is_refused_before_anything_runs() -> None:
    Path("taken").mkdir()
    called = table("--alphas", "0", "--out", "taken")
    assert called.code == 2
    assert "--out" in called.err
    assert not Path(".moebench").exists()


@pytest.mark.slow
def test_answers_to_single_questions_are_in_the_table_and_nowhere_else() -> None:
    assert table("--alphas", "0").code == 0
    assert not Path(".moebench/samples").exists()


def test_cells_are_scored_by_generation_or_by_the_likelihood_of_options() -> None:
    found = cells(None, ["facts", "arithmetic"], ["S3"], [0.0, 0.2], {"system": "smoe"})
    assert [(one.workload, one.setting, one.scoring) for one in found] == [
        (name, "S3", "generation") for name in ("facts", "facts", "arithmetic", "arithmetic")
    ]
    assert [float(str(one.overrides["alpha"])) for one in found] == [0.0, 0.2] * 2
    for name, how in (("arithmetic", "generation"), ("mmlu", "likelihood")):
        assert scoring_of(workload(name)) == how
