"""The space of compositions: what may be chosen, and where published systems lie in it."""

from functools import cache
from typing import Any

import pytest
from optuna.trial import FixedTrial

from moebench.harness.search.composition import (
    _DEFAULTS,
    _NUMBER,
    BASE,
    RUNTIME,
    Space,
    _param,
    _suggest,
    refusal,
    space_of,
)
from moebench.substrate.engine.system import System
from moebench.systems.options import build, describe
from moebench.systems.registry import DECISIONS, SYSTEMS
from moebench.systems.space import Dimension, dimensions

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


# ----------------------------------------------------------------------------- options by hand


def dimension(kind: Any, default: Any, low: float = 0, high: float = 9, **more: Any) -> Dimension:
    base: dict[str, Any] = {
        "decision": "evict", "policy": "lru", "option": "x", "kind": kind,
        "default": default, "search_low": low, "search_high": high, "scale": "linear",
        "choices": (),
    }  # fmt: skip
    return Dimension(**{**base, **more})


class Noted:
    """A trial that notes what it is asked for, and answers with given values in turn."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = [*answers], list[Any]()

    def suggest_categorical(self, name: str, choices: list[str]) -> Any:
        self.asked.append((name, choices))
        return self.answers.pop(0)

    def suggest_int(self, name: str, low: int, high: int, log: bool) -> Any:
        self.asked.append((name, "int", low, high, log))
        return self.answers.pop(0)

    def suggest_float(self, name: str, low: float, high: float, log: bool) -> Any:
        self.asked.append((name, "float", low, high, log))
        return self.answers.pop(0)


NAME = "evict=lru.x"


@pytest.mark.parametrize(
    ("one", "answers", "text", "asked"),
    [
        (dimension("choice", "a", choices=("a", None, 2)), ["null"], "null",
         [(NAME, ["a", "null", "2"])]),
        (dimension("integer", 3), [5], "5", [(NAME, "int", 0, 9, False)]),
        (dimension("integer", 3, low=1, scale="log"), [5], "5", [(NAME, "int", 1, 9, True)]),
        (dimension("integer", 3, low=0, scale="log"), [5], "5", [(NAME, "int", 0, 9, False)]),
        (dimension("number", 0.5, 0.25, 4, scale="log"), [1.23456], "1.235",
         [(NAME, "float", 0.25, 4, True)]),
        (dimension("number", 0.5, 0.25, 4), [2.0], "2", [(NAME, "float", 0.25, 4, False)]),
        # A default outside the range is chosen by its name, or a number of the range.
        (dimension("integer", None, 1), ["null"], "null", [(f"{NAME}?", ["null", "number"])]),
        (dimension("integer", 0, 1), ["number", 4], "4",
         [(f"{NAME}?", ["0", "number"]), (NAME, "int", 1, 9, False)]),
        (dimension("integer", 10, 1), ["10"], "10", [(f"{NAME}?", ["10", "number"])]),
        (dimension("integer", 9, 1), [9], "9", [(NAME, "int", 1, 9, False)]),
    ],
)  # fmt: skip
def test_an_option_is_asked_for_by_its_kind_and_range(
    one: Dimension, answers: list[Any], text: str, asked: list[Any]
) -> None:
    trial: Any = Noted(*answers)
    assert _NUMBER == "number"
    assert _suggest(trial, one) == text
    assert trial.asked == asked


@pytest.mark.parametrize(
    ("one", "value", "params"),
    [
        (dimension("choice", "a", choices=("a", None)), None, {NAME: "null"}),
        (dimension("integer", 3), 5, {NAME: 5}), (dimension("integer", 3), 12, {NAME: 9}),
        (dimension("integer", 3, 1), -4, {NAME: 1}),
        (dimension("number", 2, 1, 2.5), 9, {NAME: 2.5}),
        (dimension("integer", None, 1), None, {f"{NAME}?": "null"}),
        (dimension("integer", None, 1), 4, {f"{NAME}?": "number", NAME: 4}),
        (dimension("integer", 0, 1), 0, {f"{NAME}?": "0"}),
    ],
)  # fmt: skip
def test_a_value_is_the_parameters_that_choose_it(
    one: Dimension, value: Any, params: dict[str, Any]
) -> None:
    assert _param(one, value) == params
    assert {type(found) for found in _param(one, value).values()} <= {
        str, int if one.kind == "integer" else float
    }  # fmt: skip


def test_a_systems_own_defaults_are_the_first_values_that_a_search_knows():
    defaults = {one.option: one.default for one in dimensions("", "", System)}
    written = {name: "null" if defaults[name] is None else str(defaults[name]) for name in RUNTIME}
    assert written == {name: values[0] for name, values in RUNTIME.items()}
    assert written == _DEFAULTS
