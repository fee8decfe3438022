"""Limits of numbers that describe layers other than usual attention."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from moebench.substrate.models import mixers

#: Numbers of each description that are possible.
GOOD: dict[type[BaseModel], dict[str, Any]] = {
    mixers.OtherHeads: {"layers": (0, 2), "num_heads": 8, "num_kv_heads": 2, "head_dim": 64},
    mixers.Indexer: {"heads": 4, "head_dim": 32, "top_k": 2048},
}


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_numbers_lie_between_one_and_the_greatest_width(kind: type[BaseModel]) -> None:
    kind.model_validate(GOOD[kind])
    numbers = [name for name, value in GOOD[kind].items() if isinstance(value, int)]
    assert len(numbers) == 3
    for name in numbers:
        for value in (1, mixers.MOST_WIDTH):
            assert getattr(kind.model_validate(GOOD[kind] | {name: value}), name) == value
        for value in (0, -1, mixers.MOST_WIDTH + 1):
            with pytest.raises(ValidationError, match=name):
                kind.model_validate(GOOD[kind] | {name: value})
    with pytest.raises(ValidationError, match="extra"):
        kind.model_validate(GOOD[kind] | {"extra": 1})
