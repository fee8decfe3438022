"""The checker finds what it is there to find: runs that are right, and one thing changed."""

from collections.abc import Callable

import pytest

from moebench.harness.conformance.invariants import BrokenError, check_order, check_timeline
from moebench.harness.conformance.watch import Again
from moebench.substrate.engine.decisions import Fetch, Plan, fetches, split
from moebench.substrate.machines.protocol import Lane, OpKind, Span
from tests.substrate.engine.fakes import Rig, small_shape
from tests.substrate.engine.own import (
    Chunks,
    Placed,
    Plans,
    Refuses,
    WritesBack,
    model_of,
    run,
    system,
)

ONE, TWO = small_shape(layers=1), small_shape(layers=2)
PLACED = Placed(pairs=[(0, 0), (0, 1), (1, 0), (1, 1)])


def the(ran: Rig, kind: OpKind, index: int = 0) -> Span:
    return [span for span in ran.spans if span.op.kind is kind][index]


def check(ran: Rig, **more) -> None:
    check_timeline(ran.spans, ran.events, num_experts=4, capacity=ran.cache.slots, **more)


def move(span: Span, by_ns: int) -> None:
    span.start_ns, span.end_ns = span.start_ns + by_ns, span.end_ns + by_ns


# ----------------------------------------------------------------------------- slots


def test_a_repeated_copy_needs_no_slot_of_its_own():
    plan = Plan([0, 2], load=fetches(0, [2]), again=[2, 2])
    place = Placed(pairs=[(0, 0), (0, 1)])
    made = system(place=place, assign=Plans(by=lambda view, active: plan))
    ran = run(made, model_of(ONE, [[[(0, 2)]]]), slots=4)
    assert [event.at for event in ran.events if isinstance(event, Again)] == [
        index for index, span in enumerate(ran.spans) if span.op.kind is OpKind.LOAD
    ][1:]  # fmt: skip
    check(ran)
    ran.events[:] = [event for event in ran.events if not isinstance(event, Again)]
    with pytest.raises(BrokenError, match="a transfer had no slot to go to"):
        check(ran)


def exchanged() -> Rig:
    """2 takes 0's slot, which is written back first: 33..68, then 68..108."""
    place = Placed(pairs=[(0, 0), (0, 1)])
    return run(system(place=place, evict=WritesBack()), model_of(ONE, [[[(1, 2)]]]), slots=2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ran: ran.spans.remove(the(ran, OpKind.WRITE_BACK)), "was not written back"),
        (lambda ran: move(the(ran, OpKind.LOAD), -1), "is in use until"),
        (lambda ran: ran.spans.remove(the(ran, OpKind.LOAD)), "nothing came"),
        (lambda ran: ran.spans.append(the(ran, OpKind.LOAD)), "two things|no slot to go to"),
        (lambda ran: ran.events.pop(), "has no slot"),
        (
            lambda ran: ran.events.append(ran.events.pop()._replace(victim=None)),
            "a slot has two owners",
        ),
        (lambda ran: ran.events.append(ran.events.pop()._replace(slot=1)), "leaves its own slot"),
    ],
)
def test_slots_and_write_backs(change: Callable[[Rig], object], says: str):
    check(exchanged(), writes_back=True)
    ran = exchanged()
    change(ran)
    with pytest.raises(AssertionError, match=says):
        check(ran, writes_back=True)


def test_write_backs_of_nobody():
    with pytest.raises(AssertionError, match="nobody had left"):
        check(exchanged())


def test_a_write_back_that_reads_too_early():
    shape = small_shape(layers=1, top_k=1)
    ran = run(system(evict=WritesBack()), model_of(shape, [[[(0,), (1,)]]]), slots=1, rows=2)
    span = the(ran, OpKind.WRITE_BACK)
    move(span, the(ran, OpKind.LOAD).end_ns - 1 - span.start_ns)
    with pytest.raises(AssertionError, match="reads before"):
        check(ran, writes_back=True)


def test_a_slot_that_is_given_away_before_its_expert_was_let_go():
    plans = Plans(by=lambda view, a: split(a, [Fetch(0, e, keep=False) for e in a.absent]))
    made = system(place=Placed(pairs=[(0, 0)]), assign=plans, evict=Refuses())
    ran = run(made, model_of(ONE, [[[(2, 3)]]]), slots=2)
    check(ran)
    ran.events[:] = ran.claims
    with pytest.raises(AssertionError, match="a slot has two owners"):
        check(ran)


def test_a_transfer_that_is_not_complete_without_its_last_chunk():
    made = system(place=PLACED, prefetch=Chunks(opens=[Fetch(1, 3)]))
    ran = run(made, model_of(TWO, [[[(0, 1)], [(0, 3)]]]), slots=8)
    ran.spans.remove(the(ran, OpKind.LOAD, -1))
    with pytest.raises(AssertionError, match="reads before"):
        check(ran)


# ----------------------------------------------------------------------------- order


def divided() -> Rig:
    """Layer 0 on the host, layer 1 streamed; 2 and 3 of layer 0 are the host's, 3 is deferred."""

    def plan(view, active):
        if view.layer == 0:
            return Plan([0], [2], [3])
        return split(active, fetches(1, active.absent))

    model = model_of(small_shape(layers=2, top_k=3, shared=True), [[[(0, 2, 3)], [(0, 1, 2)]]])
    homes = ("host", "stream")
    return run(
        system(place=PLACED, assign=Plans(by=plan)), model, slots=8, homes=homes,
        deferred=[(3,), ()],
    )  # fmt: skip


def host(ran: Rig, kind: OpKind, index: int = 0) -> Span:
    return [s for s in ran.spans if s.op.kind is kind and s.lane is Lane.HOST][index]


@pytest.mark.parametrize(
    "early",
    [
        lambda ran: the(ran, OpKind.GATE),
        lambda ran: the(ran, OpKind.EXPERT),
        lambda ran: host(ran, OpKind.EXPERT),
        lambda ran: host(ran, OpKind.SHARED),
        lambda ran: the(ran, OpKind.COMBINE),
        lambda ran: the(ran, OpKind.COMBINE, 1),
        lambda ran: the(ran, OpKind.ATTEND, 1),
        lambda ran: the(ran, OpKind.HEAD),
    ],
)
def test_what_begins_before_its_input(early: Callable[[Rig], Span]):
    right = divided()
    check_order(right.spans, ("host", "stream"), [(3,), ()])
    ran = divided()
    move(early(ran), -400)
    with pytest.raises(AssertionError):
        check_order(ran.spans, ("host", "stream"), [(3,), ()])


def test_deferred_outputs_are_for_the_next_sum():
    ran = divided()
    back = next(s for s in ran.spans if s.op.kind is OpKind.RETURN and s.op.experts == (3,))
    back.end_ns = the(ran, OpKind.COMBINE).start_ns + 1
    check_order(ran.spans, ("host", "stream"), [(3,), ()])
    with pytest.raises(AssertionError):
        check_order(ran.spans, ("host", "stream"), [(), ()])
    back.end_ns = the(ran, OpKind.COMBINE, 1).start_ns + 1
    with pytest.raises(AssertionError):
        check_order(ran.spans, ("host", "stream"), [(3,), ()])


def test_common_work_where_its_weights_are_not():
    with pytest.raises(AssertionError):
        check_order(divided().spans, ("device", "stream"), [(3,), ()])
    with pytest.raises(AssertionError):
        check_order(divided().spans, ("host", "device"), [(3,), ()])


def test_a_write_back_over_another_lane():
    ran = exchanged()
    the(ran, OpKind.WRITE_BACK).lane = Lane.H2D
    with pytest.raises(AssertionError, match="written back over another lane"):
        check(ran, writes_back=True)
