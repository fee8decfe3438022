"""Parts of the page: charts of accuracy by whether texts are real, and of batches and searches."""

from moebench.reports.page.sections import accuracy, history
from moebench.reports.sections.accuracy import VERDICT_HEADERS, views
from tests.reports.alpha import ALPHAS, ITEMS, ROWS, generated, gsm8k


def test_real_datasets_and_generated_exercises_have_charts_of_their_own() -> None:
    (view,) = views(ROWS, ITEMS)
    found = accuracy(1, view)
    assert found["anchor"] == "accuracy-2"
    assert found["view"] is view
    assert found["headers"] == VERDICT_HEADERS
    charts = {one["id"]: one for one in found["figures"]}
    assert [*charts] == [
        f"accuracy-2-{measure}-{kind}" for kind in ("real", "generated")
        for measure in ("score", "agreement", "kl")
    ]  # fmt: skip
    for name, one in charts.items():
        measure, kind = name.split("-")[2:]
        what = "real datasets" if kind == "real" else "generated exercises"
        assert one["caption"] == f"{measure} against α, {what}"
        assert ({row["workload"] for row in one["rows"]} <= {"facts", "passages"}) is (
            kind == "generated"
        )
        assert [row["alpha"] for row in one["rows"]][: len(ALPHAS)] == [*ALPHAS]
    assert {row["workload"] for row in charts["accuracy-2-score-real"]["rows"]} == {"gsm8k"}


def test_a_kind_of_text_that_a_table_lacks_has_no_chart() -> None:
    (real,) = views(gsm8k(), ITEMS)
    assert {one["id"].rpartition("-")[2] for one in accuracy(0, real)["figures"]} == {"real"}
    (made,) = views(generated(), ITEMS)
    assert {one["id"].rpartition("-")[2] for one in accuracy(0, made)["figures"]} == {"generated"}


def test_without_commits_there_is_no_history() -> None:
    assert history(None) == []
