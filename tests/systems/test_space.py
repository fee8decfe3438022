"""The space of compositions: every number is declared, limits hold, and ranges can be searched."""

import dataclasses
import json
import types
import typing
from collections.abc import Iterator

import pytest

from moebench.substrate.engine.options import Allowed, allowed_values
from moebench.substrate.engine.policies import Eviction, Policy
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.systems.options import options_of
from moebench.systems.registry import DECISIONS, POLICIES, VARIANTS, policy_class, system_class
from moebench.systems.space import NEEDS, Dimension, PolicySpace, dimensions, needs_of, policies
from tests.harness.commands import call

Owner = type[Policy] | type[System]
Option = tuple[str, Owner, str, Allowed]


def owners() -> Iterator[tuple[str, Owner, str]]:
    """Return each policy and system with a name, and with the prefix of its options' names."""
    for decision, names in POLICIES.items():
        for name in names:
            yield f"{decision}={name}", policy_class(decision, name), f"{decision}."
    for variant, listed in VARIANTS.items():
        for name in listed:
            yield f"{name} {variant}", system_class(name, variant), ""


def is_number(annotation: object) -> bool:
    """Return whether an option's values are numbers, or None."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return any(map(is_number, typing.get_args(annotation)))
    return annotation in (int, float)


def numbers() -> list[Option]:
    """Return (prefixed name, class, option, what is allowed) of each declared number."""
    return [
        (f"{name} {prefix}{option}", owner, option, allowed_values(owner)[option])
        for name, owner, prefix in owners()
        for option, annotation in options_of(owner).items()
        if is_number(annotation) and option in allowed_values(owner)
    ]


NUMBERS = numbers()
SPACE = policies()
DIMENSIONS = [dimension for one in SPACE for dimension in one.dimensions]


def beyond(owner: Owner, option: str, limit: float, step: int) -> float:
    """Return a value just beyond a limit: the next whole number, or a number close by."""
    whole = int in {*typing.get_args(options_of(owner)[option]), options_of(owner)[option]}
    return limit + step if whole else limit + step * 1e-6


def limits(one: Option) -> Iterator[tuple[float, float]]:
    """Return the outermost allowed value at each limit, and one that is not allowed."""
    _, owner, option, allowed = one
    if allowed.low is not None:
        inside = beyond(owner, option, allowed.low, 1) if allowed.above else allowed.low
        yield inside, allowed.low if allowed.above else beyond(owner, option, allowed.low, -1)
    if allowed.high is not None:
        inside = beyond(owner, option, allowed.high, -1) if allowed.below else allowed.high
        yield inside, allowed.high if allowed.below else beyond(owner, option, allowed.high, 1)


def test_every_number_is_declared() -> None:
    missing = {
        f"{name} {option}"
        for name, owner, _ in owners()
        for option, annotation in options_of(owner).items()
        if is_number(annotation) and option not in allowed_values(owner)
    }
    assert missing == set()
    assert len(NUMBERS) > 200


def test_a_number_is_told_from_other_values() -> None:
    assert all(map(is_number, (int, float, int | None, float | None)))
    assert not any(map(is_number, (bool, str, typing.Literal[1, 2], bool | None, tuple[int, ...])))


@pytest.mark.parametrize("one", NUMBERS, ids=lambda one: one[0])
def test_limits_are_allowed_and_values_beyond_are_not(one: Option) -> None:
    name, owner, option, allowed = one
    for inside, outside in limits(one):
        owner(**{option: inside})
        with pytest.raises(UsageError) as refused:
            owner(**{option: outside})
        message = str(refused.value)
        key = name.rpartition(" ")[2]
        assert message == f"{key} is {outside}; allowed: {allowed}"
        assert "\n" not in message


@pytest.mark.parametrize("one", NUMBERS, ids=lambda one: one[0])
def test_both_ends_of_a_searched_range_are_allowed(one: Option) -> None:
    _, owner, option, allowed = one
    if allowed.searched is False:
        return
    assert allowed.searched is not True, "a number is searched between two numbers"
    first, last = allowed.searched
    assert first < last
    assert first > 0 or allowed.scale == "linear"
    # A count is compared by ratios where its range spans more than a factor of 10.
    if options_of(owner)[option] in (int, int | None) and 0 < 10 * first < last:
        assert allowed.scale == "log"
    for end in allowed.searched:
        owner(**{option: end})


@pytest.mark.parametrize(
    "dimension", [d for d in DIMENSIONS if d.kind == "choice"], ids=lambda d: f"{d.policy} {d.key}"
)
def test_every_choice_is_a_value(dimension: Dimension) -> None:
    assert dimension.default in dimension.choices
    made = policy_class(dimension.decision, dimension.policy)
    for value in dimension.choices:
        made(**{dimension.option: value})


def test_the_space_has_all_policies_and_their_numbers() -> None:
    assert [(one.decision, one.name) for one in SPACE] == [
        (decision, name) for decision in DECISIONS for name in POLICIES[decision]
    ]
    of_policies = {name for name, owner, *_ in NUMBERS if issubclass(owner, Policy)}
    found = {f"{d.decision}={d.policy} {d.key}" for d in DIMENSIONS if d.kind != "choice"}
    assert found == of_policies


def test_enough_is_searched_and_no_seed() -> None:
    searched = [dimension for dimension in DIMENSIONS if dimension.searched]
    assert len(searched) >= 60
    not_searched = {"seed", "epochs", "tokens", "width", "trained_width", "memory_mb", "reading"}
    trained = {(d.policy, d.option) for d in searched if d.option in not_searched}
    assert trained == {("one-width", "width")}  # the bits of an expert, not a network's width
    for dimension in DIMENSIONS:
        ends = (dimension.search_low, dimension.search_high)
        numeric = dimension.searched and dimension.kind != "choice"
        assert (None not in ends) == numeric, dimension


def of(decision: str, name: str) -> PolicySpace:
    (found,) = [one for one in SPACE if (one.decision, one.name) == (decision, name)]
    return found


def test_dimensions_by_example() -> None:
    (window,) = of("evict", "score").dimensions
    assert window == Dimension(
        decision="evict", policy="score", option="window", kind="integer", default=8, low=0,
        high=4096, scale="log", searched=True, search_low=2, search_high=64,
    )  # fmt: skip
    assert window.key == "evict.window"
    survive, tie = of("evict", "lfu").dimensions
    assert (survive.kind, survive.choices, survive.searched) == ("choice", (False, True), True)
    assert (tie.choices, tie.default) == (("id", "lru"), "lru")
    full = of("admit", "after-misses").dimensions[1]
    assert (full.kind, full.choices, full.default) == ("integer", (None,), None)
    mode = of("assign", "bandwidth-split").dimensions[0]
    assert (mode.option, mode.needs) == ("mode", ("host",))
    # Options with texts or tables have no dimension.
    assert [d.option for d in of("evict", "flashmoe").dimensions if d.kind == "choice"] == []
    assert of("place", "override").dimensions == ()


def test_needs_by_example() -> None:
    expected: dict[tuple[str, str], set[str]] = {
        ("evict", "lru"): set(),
        ("evict", "score"): {"gate scores", "one form"},
        ("evict", "belady"): {"one form", "the future"},
        ("prefetch", "next-exact"): {"predictions", "the future"},
        ("prefetch", "impact"): {"host", "predictions"},
        ("prefetch", "stride"): {"hidden states", "texts"},
        ("prefetch", "expert-map"): {"gate scores", "prompt embeddings", "texts"},
        ("route", "adaptive"): {"gate scores", "sensitivities", "texts"},
        ("route", "hash-function"): {"texts", "token embeddings"},
        ("place", "one-width"): {"losses", "one form", "texts"},
        ("admit", "important-swaps"): {"gate scores", "token norms", "weight norms"},
        ("assign", "micro-batches"): {"one form"},
    }
    assert {key: set(of(*key).needs) for key in expected} == expected
    used = {word for one in SPACE for word in one.needs}
    assert used == set(NEEDS)
    # What a policy needs depends on its options.
    given = policy_class("place", "popular")(popularity=[[1.0]])  # type: ignore[call-arg]
    assert (of("place", "popular").needs, needs_of(given)) == (("texts",), ())


@pytest.mark.slow
def test_list_policies_prints_the_space() -> None:
    listed = call("list", "policies", "--json")
    assert (listed.code, listed.err) == (0, "")
    space = json.loads(json.dumps([dataclasses.asdict(one) for one in SPACE]))
    printed = listed.json
    for row in printed:
        row["dimensions"] = row.pop("space")
        options = [text.partition("=")[0] for text in row.pop("options").split()]
        assert {f"{row['decision']}.{one['option']}" for one in row["dimensions"]} <= {*options}
    assert printed == space
    header = call("list", "policies").out.splitlines()[0]
    assert header.split("\t") == ["decision", "name", "what", "options"]


def is_round(value: float) -> bool:
    """Whether a number is a power of two, or a digit times a power of ten; or one less."""
    if value < 0:
        return value == -1
    whole = value == int(value)
    if whole and {int(value), int(value) + 1} & {2**n for n in range(34)}:
        return True
    return len(f"{value:.12e}".partition("e")[0].rstrip("0").rstrip(".")) <= 1 or value == 0


@pytest.mark.parametrize("one", NUMBERS, ids=lambda one: one[0])
def test_limits_and_searched_ranges_are_round_numbers(one: Option) -> None:
    _, _, _, allowed = one
    ends = [allowed.low, allowed.high]
    if isinstance(allowed.searched, tuple):
        ends += allowed.searched
    assert all(end is None or is_round(end) for end in ends), ends


def test_round_numbers_are_told_from_others() -> None:
    assert all(map(is_round, (0, 1, -1, 2, 16, 1024, 65536, 2**32 - 1, 100, 0.05, 0.8, 5e-4, 1e9)))
    assert not any(map(is_round, (1025, 17, 11, 33, 0.11, 0.055, 101, 65537, 1.5, -2, 10001)))


def test_a_class_without_options_of_its_own_has_no_dimensions() -> None:
    class Plain(Eviction):
        def victim(self, allowed: object, incoming: int) -> int | None:
            return None

    assert not dataclasses.is_dataclass(Plain)
    assert dimensions("evict", "plain", Plain) == ()


@pytest.mark.parametrize(
    "dimension",
    [d for d in DIMENSIONS if d.search_low is not None],
    ids=lambda d: f"{d.policy} {d.key}",
)
def test_a_default_is_among_the_searched_values_or_no_number_of_its_own(
    dimension: Dimension,
) -> None:
    """None, 0 and -1 stand for something else, such as the model's top-k, or for nothing."""
    assert dimension.search_low is not None
    assert dimension.search_high is not None
    if dimension.default in (None, 0, -1):
        return
    assert dimension.search_low <= dimension.default <= dimension.search_high


@pytest.mark.parametrize("one", NUMBERS, ids=lambda one: one[0])
def test_every_number_has_a_least_value(one: Option) -> None:
    """Nothing that is counted, timed or shared is below some number, mostly 0 or 1."""
    assert one[3].low is not None
