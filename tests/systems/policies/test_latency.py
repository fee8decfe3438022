"""Latency estimates from measured costs, by hand."""

import pytest

from moebench.systems.policies.latency import host_line, host_ns_per_token, mean_of_last
from tests.systems.views import costs


def on_host(*samples: tuple[int, float, bool]):
    """Return host costs from (tokens, ns, first of its layer), oldest first."""
    return costs(
        host=[ns for _, ns, _ in samples],
        per_row=[ns / tokens for tokens, ns, _ in samples],
        first=[first for _, _, first in samples],
    )


def test_a_mean_of_the_last():
    assert mean_of_last([1000, 10, 20], 2) == 15
    assert mean_of_last([1000, 10, 20], 3) == mean_of_last([1000, 10, 20], 9) == 1030 / 3
    assert mean_of_last(costs(load=[7, 5]).load_ns, 1) == 5


def test_time_over_tokens_not_the_mean_of_ratios():
    # 60 ns of 6 tokens; the ratios are 30, 10 and 6.7.
    measured = on_host((9, 1, False), (1, 30, False), (2, 20, False), (3, 10, False))
    assert host_ns_per_token(measured, 3) == 10
    assert host_ns_per_token(measured, 1) == pytest.approx(10 / 3)


def test_a_line_with_a_dearer_first():
    # 5 a token and 7 once in a layer.
    measured = on_host((1, 12, True), (2, 10, False), (4, 20, False), (3, 22, True), (1, 5, False))
    assert host_line(measured, 10) == pytest.approx((5, 7))
    # Of the last two, (3, 22) is first: 22 - 3 · 5 = 7.
    assert host_line(measured, 2) == pytest.approx((5, 7))
    assert host_line(measured, 1) == (5, 0)


def test_a_first_that_cannot_be_told_from_the_others():
    assert host_line(on_host((1, 12, True), (2, 18, True)), 10) == pytest.approx((10, 0))
    assert host_line(on_host((1, 12, False)), 10) == (12, 0)
    # A first that is faster is not dearer.
    assert host_line(on_host((1, 2, True), (1, 5, False)), 10) == (5, 0)
