"""`moebench run --seeds N`: N runs, and means with intervals."""

import statistics
from pathlib import Path

import pytest

from tests.harness.commands import SMALL, call, refused, run

pytestmark = pytest.mark.usefixtures("tiny_models")

ASKED = ("run", "--system", "smoe", *SMALL)

#: Student's t for 95 % and two degrees of freedom, from a printed table.
T_2 = 4.303
#: For one.
T_1 = 12.7062


def test_means_and_intervals_are_those_of_the_runs(here: Path) -> None:
    singly = [run("smoe", "--seed", seed) for seed in ("4", "5", "6")]
    called = call(*ASKED, "--seed", "4", "--seeds", "3", "--json")
    assert called.code == 0
    assert called.err.count("was stored") == 3, "each is a run like any other"
    assert called.json["runs"] == singly
    tpot = called.json["means"]["metrics.tpot_ms.mean"]
    values = [document["metrics"]["tpot_ms"]["mean"] for document in singly]
    assert len(set(values)) > 1
    half = T_2 * statistics.stdev(values) / 3**0.5
    assert tpot["n"] == 3
    assert tpot["mean"] == pytest.approx(statistics.fmean(values))
    assert tpot["high"] - tpot["mean"] == pytest.approx(half, rel=1e-3)
    assert tpot["mean"] - tpot["low"] == pytest.approx(half, rel=1e-3)


def test_the_table_has_a_mean_of_every_figure_with_its_badge(here: Path) -> None:
    shown = call(*ASKED, "--seeds", "2")
    assert shown.code == 0
    rows = dict(line.split("\t") for line in shown.out.splitlines())
    assert rows["figure"] == "mean"
    documents = [run("smoe", "--seed", seed) for seed in ("0", "1")]
    values = [document["metrics"]["tpot_ms"]["mean"] for document in documents]
    half = T_1 * statistics.stdev(values) / 2**0.5
    assert rows["TPOT"] == f"{statistics.fmean(values):.2f} ± {half:.2f} ms [estimate]"
    assert "[" not in rows["agreement"]
    *_, explained, named = shown.err.splitlines()
    assert explained == (
        "± is half the 95% interval of the mean (Student's t) over seeds 0 to 1, which draw the "
        "prompts; the profile's own uncertainty is not in it"
    )
    assert named == f"runs {documents[0]['run_id']}, {documents[1]['run_id']}"


def test_figures_that_a_run_lacks_have_no_mean(here: Path) -> None:
    called = call(
        "run", "--system", "moe-ondemand", "--setting", "S3", "--routing", "drawn", "--prompts",
        "1", "--new-tokens", "3", "--seeds", "2", "--json",
    )  # fmt: skip
    assert called.code == 0, called.err
    assert "metrics.tpot_ms.mean" in called.json["means"]
    assert "accuracy.score" not in called.json["means"]


@pytest.mark.parametrize("options", [("--seeds", "1"), ("--seeds", "x"),
                                     ("--seeds", "2", "--timeline", "out.json")])  # fmt: skip
def test_what_cannot_be_is_one_line(here: Path, options: tuple[str, ...]) -> None:
    assert "--seeds" in refused(*ASKED, *options)
    assert list(here.iterdir()) == []
