"""From spans of measured passes to points, by hand."""

import pytest

from moebench.harness.machines.calibrate import _alike, _by_kind, _error, _gaps, _in_decode, _point
from moebench.substrate.machines.measured_times import Measured, Point
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.substrate.machines.timeline import Span


def span(kind: OpKind, start_ns: int, took_ns: int, rows: tuple[int, ...] = (1,), pairs: int = 0):
    op = Op(kind=kind, layer=0, rows=rows, pairs=pairs)
    made = Span(op, Lane.DEVICE)
    made.start_ns, made.end_ns = start_ns, start_ns + took_ns
    return made


def experts(count: int, took_ns: int):
    return span(OpKind.EXPERT, 0, took_ns, (1,) * count)


def test_a_point_is_the_median_with_its_middle_half():
    found = _point([10, 20, 30, 40, 50], 4, 7)
    assert (found.rows, found.pairs, found.ns) == (4, 7, 30)
    assert found.spread == pytest.approx(20 / 30, abs=1e-4)


def test_the_time_of_experts_is_a_line_over_their_number():
    passes = [[experts(n, 5_000 + 2_000 * n) for n in (1, 2, 4)] * 3]
    once, each = _in_decode(passes)
    assert once == pytest.approx(5_000)
    assert (each.ns, each.rows) == (2_000, 1)


def test_one_number_of_experts_leaves_nothing_that_is_taken_once():
    once, each = _in_decode([[experts(2, 8_000), experts(2, 8_000)]])
    assert (once, each.ns) == (0, 4_000)


def test_experts_of_several_rows_are_no_decode():
    prefill = span(OpKind.EXPERT, 0, 10**9, (3, 1))
    once, each = _in_decode([[experts(1, 7_000), experts(2, 9_000), prefill]])
    assert (once, each.ns) == (pytest.approx(5_000), 2_000)


def test_a_time_that_falls_with_the_number_has_no_constant_part():
    once, each = _in_decode([[experts(1, 9_000), experts(4, 8_000)]])
    assert once == 0
    assert each.ns == pytest.approx((9_000 + 2_000) / 2)


def test_a_time_that_the_clock_does_not_resolve_has_no_spread():
    found = _point([0, 0, 0, 0], 8, 36)
    assert (found.ns, found.spread) == (0, 0.0)


def test_points_are_by_kind_rows_and_for_attention_by_length():
    passes = [
        (8, 1, [span(OpKind.ATTEND, 0, 100, pairs=36), span(OpKind.GATE, 0, 7), experts(1, 999)]),
        (24, 1, [span(OpKind.ATTEND, 0, 300, pairs=300), span(OpKind.GATE, 0, 9)]),
    ]
    found = _by_kind(passes)
    assert set(found) == {OpKind.ATTEND, OpKind.GATE}
    assert [(p.ns, p.pairs) for p in found[OpKind.ATTEND]] == [(100, 36), (300, 300)]
    assert [(p.rows, p.ns) for p in found[OpKind.GATE]] == [(1, 8)]


def test_gaps_before_experts_are_decisions():
    spans = [
        span(OpKind.ATTEND, 0, 10), span(OpKind.GATE, 13, 5), span(OpKind.EXPERT, 28, 20),
        span(OpKind.ATTEND, 51, 10), span(OpKind.GATE, 64, 5), span(OpKind.EXPERT, 79, 20),
    ]  # fmt: skip
    assert _gaps([spans]) == {"gap_ns": 3, "decision_ns": 7}


def test_the_error_is_that_of_a_token_s_parts():
    device = {
        OpKind.EXPERT: (Point(rows=1, ns=100),), OpKind.GATE: (Point(rows=1, ns=50),),
        OpKind.HEAD: (Point(rows=1, ns=30),),
    }  # fmt: skip
    measured = Measured(
        shape="", what="", device=device, operation_ns=10, load_ns=0, load_after_ns=0, submit_ns=0,
        gap_ns=5, decision_ns=20, wake_ns=0,
    )  # fmt: skip
    token = [(OpKind.GATE, (1,)), (OpKind.EXPERT, (1, 1)), (OpKind.HEAD, (1,))]
    # 50 + 5, 10 + 200 + 20 + 5, 30 + 5: 325 ns; the clock says 300 a token
    spans = [span(OpKind.HEAD, 0, 100)]
    for n in (1, 2):
        at = 100 + 300 * (n - 1)
        spans += [span(kind, at, 10, rows) for kind, rows in token[:2]]
        spans.append(span(OpKind.HEAD, at + 200, 100))
    assert _error(measured, spans) == pytest.approx(325 / 300 - 1)


def test_operations_of_one_kind_and_equal_rows_are_alike():
    one = Op(OpKind.EXPERT, 0, (1, 1), experts=(2, 3))
    assert _alike(one) == _alike(Op(OpKind.EXPERT, 5, (1, 1), experts=(0, 7)))
    assert _alike(one) != _alike(Op(OpKind.EXPERT, 0, (2, 1), experts=(2, 3)))
    assert _alike(one) != _alike(Op(OpKind.LOAD, 0, (1, 1), experts=(2, 3)))
