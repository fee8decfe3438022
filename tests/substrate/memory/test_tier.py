"""A memory's budget: what each purpose reserved, what is free, and what is refused."""

import pytest

from moebench.substrate.errors import BudgetError
from moebench.substrate.memory.tier import Tier


def test_bytes_are_reserved_by_purpose() -> None:
    tier = Tier("device", 10_000_000_000)
    assert (tier.name, tier.budget_bytes, tier.free_bytes) == ("device", 10**10, 10**10)
    with pytest.raises(BudgetError) as caught:
        tier.reserve("KV cache", 10**10 + 1)
    assert str(caught.value) == ("device memory: KV cache needs 10 GB, 10 of 10 GB is free")
    tier.reserve("weights", 4 * 10**9)
    tier.reserve("KV cache", 10**9)
    tier.reserve("weights", 2 * 10**9)
    assert [tier.reserved(what) for what in ("weights", "KV cache", "other")] == [
        6 * 10**9, 10**9, 0,
    ]  # fmt: skip
    assert (tier.used_bytes, tier.peak_bytes, tier.free_bytes) == (7 * 10**9, 7 * 10**9, 3 * 10**9)
    with pytest.raises(BudgetError) as caught:
        tier.reserve("buffers", 3_500_000_000)
    assert str(caught.value) == (
        "device memory: buffers needs 3.5 GB, 3 of 10 GB is free (spent: weights 6 GB, "
        "KV cache 1 GB)"
    )
    tier.reserve("buffers", 3 * 10**9)  # all that is free
    assert tier.free_bytes == 0


def test_the_peak_stays_when_bytes_are_given_back() -> None:
    tier = Tier("host", 100)
    for size in (60, -50, 20):
        tier.reserve("batch", size)
    assert (tier.used_bytes, tier.peak_bytes, tier.reserved("batch")) == (30, 60, 30)
