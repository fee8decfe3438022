"""The check of host memory on spans by hand: right ones, and one thing changed."""

import pytest

from moebench.harness.conformance.host_memory import check_host_memory
from moebench.harness.conformance.invariants import BrokenError
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span


def read(expert: int, start_ns: int) -> Span:
    return Span(Op(OpKind.READ, 0, experts=(expert,)), Lane.DISK, start_ns, start_ns + 10)


def load(expert: int, start_ns: int) -> Span:
    return Span(Op(OpKind.LOAD, 0, experts=(expert,)), Lane.H2D, start_ns, start_ns + 10)


def on_host(expert: int, start_ns: int) -> Span:
    return Span(Op(OpKind.EXPERT, 0, (1,), experts=(expert,)), Lane.HOST, start_ns, start_ns + 10)


PLACED = [(0, 0, 0), (0, 0, 1)]


def test_least_recently_used_with_two_records() -> None:
    spans = [load(0, 0), read(2, 5), load(2, 20), on_host(2, 40), read(1, 60), on_host(1, 70)]
    check_host_memory(spans, PLACED, 2)


@pytest.mark.parametrize(
    ("spans", "says"),
    [
        ([read(2, 0), load(2, 9)], "before its record is read"),
        ([read(2, 0), on_host(2, 9)], "before its record is read"),
        ([load(2, 0)], "not though it was not"),
        ([read(0, 0), load(0, 20)], "read though it was there"),
        # 1 was used last, so 0 had to make place.
        ([load(1, 0), read(2, 20), load(2, 40), read(1, 60), load(1, 80)], "though it was there"),
        ([read(2, 0), read(3, 0), read(4, 0), *(load(e, 90) for e in (2, 3, 4))], "than fit"),
    ],
)
def test_what_breaks_a_rule_is_found(spans: list[Span], says: str) -> None:
    with pytest.raises(BrokenError, match=says):
        check_host_memory(spans, PLACED, 2)
