"""Prefetching policies that several systems share, by hand; scores in 32nds, k = 3."""

import numpy as np
import pytest

from moebench.substrate.errors import UsageError
from moebench.systems.policies.prefetch import NextGate, ranked
from tests.systems.views import fetched, view

ROW = [8, 5.5, 5, 4, 3.5, 3, 2, 1]
OTHER = [1, 12, 1, 1, 1, 1, 9, 6]


def test_next_gate_brings_the_top_k_over_all_rows():
    seen = view([[1] * 8])
    forecast = {1: np.array([ROW, OTHER], dtype=np.float32) / 32}
    # Best over rows: 0: 8, 1: 12, 2: 5, 3: 4, 4: 3.5, 5: 3, 6: 9, 7: 6.
    assert fetched(1, NextGate().prefetch(seen, forecast)) == [1, 6, 0]
    assert fetched(1, NextGate(experts=5).prefetch(seen, forecast)) == [1, 6, 0, 7, 2]
    assert fetched(1, NextGate().prefetch(seen, {})) == []


def test_no_negative_number_of_experts():
    with pytest.raises(UsageError, match=r"prefetch\.experts is -1"):
        NextGate(experts=-1)


def test_among_many_equal_scores_the_lowest_ids_come_first():
    scores = np.random.default_rng(0).integers(1, 4, (2, 400)) / 4
    best = scores.max(axis=0)
    assert ranked(scores) == sorted(range(400), key=lambda e: (-best[e], e))
