"""Options that declare what they allow: both sides of each limit, and what a search may vary."""

from dataclasses import dataclass
from typing import Literal

import pytest

from moebench.substrate.engine.options import Allowed, allowed_values, check_options, option
from moebench.substrate.errors import UsageError


@dataclass(kw_only=True)
class Sample:
    """Options of every kind."""

    window: int = option(8, low=1, high=64, scale="log", searched=(2, 32))
    share: float = option(0.5, low=0, high=1)
    rate: float = option(0.5, low=0, above=True)
    most: int | None = option(None, low=1)
    dropout: float = option(0.1, low=0, high=1, below=True)
    largest: int = option(0, high=10_000)
    tie: Literal["load", "host"] = option("load", searched=True)
    free: int = 3


@pytest.mark.parametrize(
    "given",
    [{"window": 1}, {"window": 64}, {"share": 0.0}, {"share": 1}, {"rate": 1e-9}, {"most": 1},
     {"most": None}, {"dropout": 0.0}, {"largest": 10_000}, {"largest": -5}, {"tie": "host"},
     {"free": -5}],
)  # fmt: skip
def test_values_at_the_limits_are_allowed(given: dict[str, object]) -> None:
    check_options(Sample(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"window": 0}, "evict.window is 0; allowed: 1 to 64"),
        ({"window": 65}, "evict.window is 65; allowed: 1 to 64"),
        ({"share": 1.01}, "evict.share is 1.01; allowed: 0 to 1"),
        ({"share": float("nan")}, "evict.share is nan; allowed: 0 to 1"),
        ({"rate": 0.0}, "evict.rate is 0.0; allowed: above 0"),
        ({"most": 0}, "evict.most is 0; allowed: 1 or more"),
        ({"dropout": 1.0}, "evict.dropout is 1.0; allowed: 0 to less than 1"),
        ({"largest": 10_001}, "evict.largest is 10001; allowed: 10000 or less"),
    ],
)
def test_other_values_are_refused_with_the_allowed_ones(
    given: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        check_options(Sample(**given), "evict.")  # type: ignore[arg-type]
    assert str(refused.value) == message


def test_only_declared_options_are_listed() -> None:
    found = allowed_values(Sample)
    assert list(found) == ["window", "share", "rate", "most", "dropout", "largest", "tie"]
    assert found["window"].searched == (2, 32)
    assert found["tie"].searched is True
    assert found["share"].searched is False


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({}, "any value"),
        ({"low": 2}, "2 or more"),
        ({"low": 0, "above": True}, "above 0"),
        ({"high": 5}, "5 or less"),
        ({"high": 5, "below": True}, "less than 5"),
        ({"low": 0, "high": 1}, "0 to 1"),
        ({"low": 0, "high": 1, "above": True}, "above 0 to 1"),
        ({"low": 0, "high": 1, "above": True, "below": True}, "above 0 to less than 1"),
    ],
)
def test_allowed_values_are_spelled_in_words(limits: dict[str, float], text: str) -> None:
    assert str(Allowed(**limits)) == text  # type: ignore[arg-type]
