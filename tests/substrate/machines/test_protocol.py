"""Operations and the sizes by which they are priced, and spans."""

import pytest

from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span, op_of


def test_an_operation_of_nothing_else() -> None:
    op = Op(OpKind.GATE, 3)
    assert (op.kind, op.layer, op.rows, op.experts) == (OpKind.GATE, 3, (), ())
    assert (op.context, op.pairs, op.network, op.form) == (0, 0, (), 0)
    assert (op.chunk, op.queued) == (None, False)


#: An operation, and others whose price may differ.
LOAD = {"layer": 1, "rows": (1,), "experts": (4,), "context": 5, "pairs": 6, "network": (7, 8),
        "form": 1, "chunk": (0, 2), "queued": True}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "alike"),
    [
        ({"layer": 2}, True), ({"experts": (4, 5)}, True), ({"rows": (2,)}, False),
        ({"context": 0}, False), ({"pairs": 0}, False), ({"network": (7,)}, False),
        ({"form": 0}, False), ({"chunk": (1, 2)}, False), ({"queued": False}, False),
    ],
)  # fmt: skip
def test_operations_of_equal_sizes_cost_alike(changed: dict, alike: bool) -> None:
    one, other = Op(OpKind.LOAD, **LOAD), Op(OpKind.LOAD, **LOAD | changed)
    assert (one.sizes == other.sizes) == alike
    assert one != other  # what it is of counts for equality
    assert one == Op(OpKind.LOAD, **LOAD)
    assert one.sizes != Op(OpKind.READ, **LOAD).sizes
    assert (op_of(**PLAIN).sizes is op_of(**PLAIN | {"experts": (9,)}).sizes) is True


PLAIN = {"kind": OpKind.LOAD, "layer": 1, "rows": (1,)}


@pytest.mark.parametrize(
    "changed", [{"form": 1}, {"chunk": (0, 2)}, {"queued": True}, {"rows": ()}]
)
def test_cached_operations_are_told_apart_by_their_sizes(changed: dict) -> None:
    one, other = op_of(**PLAIN), op_of(**PLAIN | changed)
    assert one is op_of(**PLAIN)
    assert one == Op(**PLAIN)
    assert other == Op(**PLAIN | changed)
    assert one.sizes != other.sizes


def test_streams_differ_by_layer_and_pages_by_their_experts() -> None:
    streams = [Op(OpKind.STREAM, layer).sizes for layer in (1, 1, 2)]
    assert streams[0] == streams[1] != streams[2]
    pages = [
        Op(OpKind.PAGE, layer, (), experts, chunk=chunk).sizes
        for layer, experts, chunk in (
            (1, (0, 1), (0, 2)), (2, (3, 4), (0, 2)), (1, (0, 1, 2), (0, 2)), (1, (0, 1), (1, 2)),
        )
    ]  # fmt: skip
    assert pages[0] == pages[1]
    assert len({*pages}) == 3


def test_a_span_has_a_duration_once_it_has_ended() -> None:
    span = Span(Op(OpKind.LOAD, 3, (), (7,)), Lane.H2D)
    assert (span.start_ns, span.end_ns, span.stall_ns, span.cause) == (None, None, 0, "")
    assert (span.late_ns, span.moved_bytes) == (0, 0)
    assert repr(span) == "<load [7] on h2d, layer 3, None..None>"
    for start, end in ((None, 5), (5, None)):
        span.start_ns, span.end_ns = start, end
        with pytest.raises(RuntimeError, match="load on h2d has not ended"):
            _ = span.duration_ns
    span.start_ns, span.end_ns = 0, 5
    assert span.duration_ns == 5
    assert Span(Op(OpKind.LOAD, 0), Lane.H2D, 2, 9).duration_ns == 7
