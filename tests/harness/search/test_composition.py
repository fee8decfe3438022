"""The space of compositions: what may be chosen, and where published systems lie in it."""

from functools import cache
from typing import Any

import pytest
from optuna.trial import FixedTrial

from moebench.harness.search.composition import BASE, Space, refusal, space_of
from moebench.systems.options import build, describe
from moebench.systems.registry import DECISIONS, SYSTEMS
from moebench.systems.space import Dimension

#: Systems with decisions that a search does not choose: they know the future, train networks, hold
#: records in several forms or change what is computed.
OUTSIDE = {"belady", "pregated-moe", "flashmoe", "duoserve", "promoe", "sida", "hobbit", "edgemoe",
           "adapmoe"}  # fmt: skip


@cache
def space(lossy: bool = True, learned: bool = False) -> Space:
    return space_of(lambda sets: True, lossy, learned)


@pytest.mark.parametrize("name", SYSTEMS)
def test_published_systems_lie_in_the_space(name: str) -> None:
    """Their decisions are chosen by a trial; what it builds has the same ones."""
    system = build(name)
    params = space().params(system)
    assert (params is None) == (name in OUTSIDE)
    if params is None:
        return
    sets = space().suggest(FixedTrial(params))
    made = describe(build(BASE, sets))
    own = describe(system)
    for decision in DECISIONS:
        assert made[decision] == own[decision]
    for spaces in space().by_decision.values():
        for one in spaces[own[next(iter(spaces.values())).decision]].dimensions:
            if one.searched:
                assert near(one, made[one.key], own[one.key]), one.key


def near(one: Dimension, made: str, own: str) -> bool:
    """Whether an option's value is a system's own one, or the end of its range next to it."""
    if made == own or one.kind == "choice":
        return made == own
    assert one.search_low is not None
    assert one.search_high is not None
    return float(made) == pytest.approx(min(max(float(own), one.search_low), one.search_high))


class Chooses:
    """A trial that chooses one end of every range, and notes the names that it is asked for."""

    def __init__(self, last: bool) -> None:
        self.at, self.names = -1 if last else 0, list[str]()

    def suggest_categorical(self, name: str, choices: list[str]) -> str:
        self.names.append(name)
        return choices[self.at]

    def suggest_int(self, name: str, low: int, high: int, log: bool) -> int:
        self.names.append(name)
        return (low, high)[self.at]

    def suggest_float(self, name: str, low: float, high: float, log: bool = False) -> float:
        self.names.append(name)
        return (low, high)[self.at]


@pytest.mark.parametrize("last", [False, True])
def test_any_choice_is_a_system_or_is_refused_in_one_line(last: bool) -> None:
    trial: Any = Chooses(last)
    sets = space().suggest(trial)
    assert len({*trial.names}) == len(trial.names)
    why = refusal(sets, lossy=True)
    assert why is None or "\n" not in why


def test_lossless_spaces_have_no_lossy_policy() -> None:
    lossless = space(lossy=False).by_decision
    assert set(lossless["route"]) == {"exact"}
    assert len(space().by_decision["route"]) > 1
    for decision, spaces in lossless.items():
        for name in spaces:
            if refusal({decision: name}, lossy=True) is None:
                assert build(BASE, {decision: name}).lossless


def test_an_option_that_makes_it_lossy_is_refused() -> None:
    """`defer` adds an expert's output one layer later."""
    sets = {"assign": "hybrid", "assign.defer": "2"}
    assert refusal(sets, lossy=False) == "it changes the model's output"
    assert refusal(sets, lossy=True) is None
    assert refusal({"assign": "hybrid"}, lossy=False) is None


def test_policies_that_train_are_chosen_when_asked() -> None:
    assert "stride" not in space(lossy=False).by_decision["prefetch"]
    assert "stride" in space(lossy=False, learned=True).by_decision["prefetch"]


def test_what_the_place_cannot_run_is_left_out() -> None:
    found = space_of(lambda sets: sets.get("evict") != "lru", False, False)
    assert "lru" not in found.by_decision["evict"]
    assert "lru" in space(lossy=False).by_decision["evict"]


def test_bounds_are_never_chosen() -> None:
    for lossy in (False, True):
        chosen = space(lossy).by_decision
        assert "belady" not in chosen["evict"]
        assert not {"next-exact", "pre-gate"} & {*chosen["prefetch"]}
