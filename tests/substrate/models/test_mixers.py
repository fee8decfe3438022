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


@pytest.mark.parametrize(
    ("kind", "name", "least", "greatest"),
    [
        (mixers.LinearAttention, "params", 1, mixers.MOST_PARAMS),
        (mixers.LinearAttention, "state_values", 0, mixers.MOST_PARAMS),
        (mixers.LinearAttention, "conv_values", 0, mixers.MOST_PARAMS),
        (mixers.Indexer, "pool", 1, mixers.MOST_WIDTH),
        (mixers.CompressedCache, "ratio", 2, mixers.MOST_WIDTH),
        (mixers.CompressedCache, "index_values", 0, mixers.MOST_WIDTH),
        (mixers.CompressedCache, "top_k", 1, mixers.MOST_WIDTH),
    ],
)
def test_other_numbers_have_limits_of_their_own(
    kind: type[BaseModel], name: str, least: int, greatest: int
) -> None:
    """A layer without convolution or index has none of their values; one token is no group."""
    good: dict[str, Any] = {
        mixers.LinearAttention: {"kind": "any", "layers": (1,), "params": 5, "state_values": 6},
        mixers.CompressedCache: {"layers": (1,), "ratio": 4},
    }.get(kind) or GOOD[kind]
    for value in (least, greatest):
        assert getattr(kind.model_validate(good | {name: value}), name) == value
    for value in (least - 1, greatest + 1):
        with pytest.raises(ValidationError, match=name):
            kind.model_validate(good | {name: value})


def test_greatest_numbers_and_what_is_left_out() -> None:
    assert (mixers.MOST_WIDTH, mixers.MOST_PARAMS) == (1_000_000_000, 10_000_000_000_000)
    linear = mixers.LinearAttention(kind="any", layers=(1,), params=5, state_values=6)
    assert linear.conv_values == 0
    heads = mixers.OtherHeads.model_validate(GOOD[mixers.OtherHeads])
    assert not heads.one_projection, "keys and values have projections of their own"
    indexer = mixers.Indexer.model_validate(GOOD[mixers.Indexer])
    assert (indexer.layers, indexer.pool) == (None, 1)
    cache = mixers.CompressedCache(layers=(1,), ratio=4)
    assert (cache.index_values, cache.top_k) == (0, None)
