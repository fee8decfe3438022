"""Parts of the page: charts of accuracy by whether texts are real, and of batches and searches."""

from moebench.reports.figures import search as search_charts
from moebench.reports.page.sections import accuracy, history, searches, tables
from moebench.reports.sections import search as of_searches
from moebench.reports.sections.accuracy import VERDICT_HEADERS, views
from moebench.results.searches import Searched
from tests.reports.alpha import ALPHAS, ITEMS, ROWS, generated, gsm8k
from tests.reports.sections.claims_fixture import DAOP, SMOE
from tests.results.test_searches import SEARCH


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


def test_each_place_of_each_search_has_two_charts_and_a_table() -> None:
    other = SEARCH["places"][0] | {"place": "S2", "validation": [], "held_out": []}
    one = Searched.model_validate(SEARCH | {"places": [*SEARCH["places"], other]})
    two = Searched.model_validate(SEARCH | {"history": SEARCH["history"][:1]})
    found = searches([one, two])
    assert [part["id"] for part in found] == ["search-1", "search-2", "search-3"]
    assert [part["second"] for part in found] == [f"search-{n}-candidates" for n in (1, 2, 3)]
    assert [part["title"] for part in found] == ["S1", "S2", "S1"]
    for part, (search, place) in zip(
        found, [(one, one.places[0]), (one, one.places[1]), (two, two.places[0])], strict=True
    ):
        assert part["rows"] == of_searches.history_rows(search)
        assert part["said"] == of_searches.said(search, place)
        across, rows = of_searches.candidate_rows(place)
        assert part["second_rows"] == rows
        assert part["spec"] == search_charts.trials()
        assert part["second_spec"] == search_charts.candidates(across)
        assert [*part["part"].rows] == [*of_searches.lines(place)]
        assert part["part"].headers == of_searches.HEADERS
    assert searches([]) == []


def test_claims_are_shown_where_there_are_results() -> None:
    found = tables([], [], [SMOE, DAOP], [])
    assert len(found["claims"].parts) > 0
    assert "claims" not in tables([], [], [], [])
