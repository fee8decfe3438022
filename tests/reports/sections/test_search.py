"""The report's section on searches: its points, its table and its sentence."""

import pytest

from moebench.reports.sections import search
from moebench.results.searches import Searched
from tests.results.test_searches import SEARCH

ONE = Searched.model_validate(SEARCH)
(PLACE,) = ONE.places


def test_trials_are_points_in_their_order_with_the_best_so_far() -> None:
    rows = search.history_rows(ONE)
    assert [row["kind"] for row in rows] == ["published", "stopped early", "composition"]
    assert [row["best"] for row in rows] == [1.0, 1.0, 0.9]
    assert [row["ratio"] for row in rows] == [1.0, 3.5, 0.9]
    assert [row["drawn"] for row in rows] == [1.0, 2.0, 0.9]
    assert [row["name"] for row in rows] == ["fiddler", "trial 1", "trial 2"]


def test_a_trial_beyond_the_limit_is_never_the_best() -> None:
    history = [{"trial": 0, "values": [1.0, 0.0]}, {"trial": 1, "values": [0.5, 0.9]},
               {"trial": 2, "values": [0.8, 0.1]}]  # fmt: skip
    lossy = Searched.model_validate(SEARCH | {"limit_kl": 0.2, "history": history})
    assert [row["best"] for row in search.history_rows(lossy)] == [1.0, 1.0, 0.8]


def test_candidates_are_drawn_over_kl_where_it_was_computed() -> None:
    across, rows = search.candidate_rows(PLACE)
    assert across == "memory"
    assert [(row["name"], row["memory"], row["tpot"]) for row in rows] == [
        ("trial 2", 8.0, 9.0), ("fiddler", 8.5, 10.0),
    ]  # fmt: skip
    first = SEARCH["places"][0]["validation"][0] | {"kl": 1e-4}
    lossy = Searched.model_validate(
        SEARCH | {"places": [SEARCH["places"][0] | {"validation": [first]}]}
    )
    assert search.candidate_rows(lossy.places[0])[0] == "kl"


def test_the_table_says_what_is_not_clear_and_what_was_refused() -> None:
    assert search.lines(PLACE) == [
        ["prompts", "9.00", "fiddler", "10.00", "0.900"],
        ["link × 0.7", "9.90", "fiddler", "10.00", "0.990 (not clear)"],
        ["machine a100", "", "it does not fit", "", ""],
    ]


@pytest.mark.parametrize(
    "part",
    ["10.0% faster than fiddler", "predicted ratios: 60%", "7.0 ms (clairvoyant), 8.0 ms",
     "2 compositions were evaluated", "assign=host evict=lfru"],
)  # fmt: skip
def test_the_sentence_names_all_that_matters(part: str) -> None:
    assert part in search.said(ONE, PLACE)


def of(*history: dict[str, object], **more: object) -> list[dict[str, object]]:
    trials = [{"trial": at, **one} for at, one in enumerate(history)]
    return search.history_rows(Searched.model_validate(SEARCH | {"history": trials} | more))


def test_without_a_trial_within_the_limit_the_best_is_that_of_the_published() -> None:
    rows = of({"values": [0.5, 0.9]}, {"values": [0.4, 0.8]}, limit_kl=0.2)
    assert [row["best"] for row in rows] == [1.0, 1.0]
    assert of() == []


def test_a_trial_at_exactly_the_limit_holds_it() -> None:
    rows = of({"values": [1.0, 0.0]}, {"values": [0.5, 0.2]}, limit_kl=0.2)
    assert [row["best"] for row in rows] == [1.0, 0.5]
    # A trial without KL, and a search without a limit, exceed none.
    assert [row["best"] for row in of({"values": [0.5]}, limit_kl=0.2)] == [0.5]
    assert [row["best"] for row in of({"values": [0.5, 9.0]}, limit_kl=None)] == [0.5]


def test_what_stopped_early_or_came_first_is_drawn_at_the_largest() -> None:
    rows = of({"values": [3.0], "stopped": True}, {"values": [2.5]}, {"values": [1.5]})
    assert [row["best"] for row in rows] == [2.0, 2.0, 1.5]
    assert [row["drawn"] for row in rows] == [2.0, 2.0, 1.5]
    assert [row["trial"] for row in rows] == [0, 1, 2]


def test_candidates_without_a_time_or_the_figure_are_no_points() -> None:
    ones = [
        {"name": "a", "published": True, "tpot_ms": 1.0, "kl": None, "memory_gb": 2.0},
        {"name": "b", "published": False, "tpot_ms": None, "kl": 0.1, "memory_gb": 2.0},
        {"name": "c", "published": False, "tpot_ms": 3.0, "kl": 0.2, "memory_gb": None},
    ]
    place = PLACE.model_validate(SEARCH["places"][0] | {"validation": ones})
    assert search.candidate_rows(place) == (
        "kl", [{"name": "c", "tpot": 3.0, "kl": 0.2, "memory": None, "kind": "composition"}]
    )  # fmt: skip
    place = PLACE.model_validate(SEARCH["places"][0] | {"validation": ones[:1]})
    assert search.candidate_rows(place) == (
        "memory", [{"name": "a", "tpot": 1.0, "kl": None, "memory": 2.0, "kind": "published"}]
    )  # fmt: skip


def test_the_sentence_leaves_out_what_is_not_known() -> None:
    place = PLACE.model_copy(update={"probability_faster": None, "found": None,
                                     "bound": type(PLACE.bound)(clairvoyant_ms=7.0)})  # fmt: skip
    one = ONE.model_copy(update={"trials": {}})
    assert search.said(one, place) == f"{PLACE.verdict}. 0 compositions were evaluated."
    assert search.MOST_DRAWN == 2.0, "as the caption says"
