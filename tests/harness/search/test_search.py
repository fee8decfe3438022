"""What a search compares with, what names it, and its document."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.search import search as module
from moebench.harness.search.outcome import Outcome
from moebench.harness.search.question import Question, Seeds
from moebench.harness.search.rounds import Candidate, Place
from moebench.harness.search.search import Request, Result, jobs_here, systems_of
from moebench.substrate.errors import UsageError
from moebench.systems.options import build
from moebench.systems.registry import SYSTEMS
from tests.harness.search.stages import trial


def test_all_systems_but_bounds_and_what_is_resident() -> None:
    found = systems_of(["all"], None)
    assert found == [
        name for name in SYSTEMS
        if not build(name).clairvoyant and not build(name).all_resident
    ]  # fmt: skip
    assert "belady" not in found
    assert len(found) < len(SYSTEMS)
    assert systems_of(["lfru", "all", "lfru"], None) == ["lfru", *(n for n in found if n != "lfru")]
    assert systems_of(["smoe", "fiddler"], "smoe") == ["smoe", "fiddler"]
    assert systems_of(["smoe"], "fiddler") == ["smoe", "fiddler"]
    with pytest.raises(UsageError, match="--systems belady: it knows the future"):
        systems_of(["smoe", "belady"], None)


@pytest.mark.parametrize(("asked", "found"), [(3, 3), (1, 1), (0, 1), (-2, 1), (None, 5)])
def test_trials_at_once(asked: int | None, found: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    assert jobs_here(asked) == found


QUESTION = Question(name="S1", given={"setting": "S1"})


def request(**changes: Any) -> Request:
    given: dict[str, Any] = {"questions": (QUESTION,), "systems": ("lfru",), "limit": None,
                             "learned": False, "trials": 9, "hours": 1.0, "seed": 0,
                             "jobs": 2}  # fmt: skip
    return Request(**given | changes)


def test_a_search_is_lossless_endless_and_learns_nothing_unless_asked() -> None:
    plain = Request(questions=(QUESTION,), systems=("lfru",), trials=9)
    assert (plain.limit, plain.learned, plain.hours) == (None, False, float("inf"))
    assert (plain.jobs, plain.seed) == (1, 0)


def test_equal_searches_have_equal_names() -> None:
    """How long it lasts makes no other search."""
    name = request().name
    assert len(name) == 12
    assert request(trials=5, hours=2.0).name == name
    others = [
        {"seed": 1}, {"jobs": 3}, {"limit": 0.1}, {"learned": True}, {"systems": ("lru",)},
        {"questions": (replace(QUESTION, name="other"),)},
        {"questions": (QUESTION.with_("S1", batch=2),)}, {"questions": (QUESTION, QUESTION)},
    ]  # fmt: skip
    assert len({name, *(request(**one).name for one in others)}) == len(others) + 1


def test_the_order_of_options_makes_no_other_search() -> None:
    changed = {"evict": "lru", "assign": "greedy"}
    both = changed, dict(reversed(changed.items()))
    one, other = (
        request(questions=(Question(name="S1", given={"setting": "S1", "overrides": sets}),)).name
        for sets in both
    )
    assert one == other


def test_the_document_of_a_result() -> None:
    place = Place(question=QUESTION, seeds=Seeds((3, 4), 5))
    found = Candidate(name="trial 2", system="moe-ondemand", sets={"evict": "lru"}, trial=2)
    best = Candidate(name="lfru", system="lfru")
    row = {"place": "prompts", "ratio": 0.5, "clear": True}
    outcome = Outcome(
        place=place,
        found=found,
        best=best,
        rows=[{"name": "lfru"}],
        places=[row],
        ablation=[{"decision": "evict"}],
        bounds={"of": 1},
        live={"kl": 0},
        regret={"ratio": 1.1},
    )
    none = replace(outcome, found=None, places=[])
    asked = request(limit=0.1)
    result = Result(request=asked, outcomes=[outcome, none], systems=({"name": "lfru"},),
                    refused={"smoe": "no"}, counts={"evaluated": 3}, history=[{"trial": 1}],
                    seconds=1.26)  # fmt: skip
    shared = {"place": "S1", "best_published": "lfru", "seeds": {"search": (3, 4), "validation": 5},
              "validation": [{"name": "lfru"}], "ablation": [{"decision": "evict"}],
              "bound": {"of": 1}, "live": {"kl": 0}, "regret": {"ratio": 1.1}}  # fmt: skip
    assert result.document() == {
        "search": asked.name, "limit_kl": 0.1, "trials": {"evaluated": 3}, "seconds": 1.3,
        "systems": [{"name": "lfru"}], "refused": {"smoe": "no"}, "history": [{"trial": 1}],
        "places": [
            {**shared, "verdict": outcome.verdict, "better": True, "ratio": 0.5,
             "probability_faster": outcome.probability, "held_out": [row],
             "found": {"name": "trial 2", "set": {"evict": "lru"}}},
            {**shared, "verdict": none.verdict, "better": False, "ratio": None,
             "probability_faster": None, "held_out": [], "found": None},
        ],
    }  # fmt: skip
    assert result.rule() is found


def test_the_history_of_trials() -> None:
    known = trial(0, [1.0], {}, system="lfru")
    own = trial(4, [0.9], {"evict": "lru"}, stopped=True)
    history = module._history(SimpleNamespace(done=lambda: [known, own]))  # type: ignore[arg-type]
    assert history == [
        {"trial": 0, "values": [1.0], "system": "lfru", "stopped": False},
        {"trial": 4, "values": [0.9], "system": None, "stopped": True},
    ]
