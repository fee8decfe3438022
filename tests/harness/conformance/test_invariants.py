"""Invariants of a run on spans that are written out: what just holds, and what just does not.

A span is written ``kind layer[/experts] [@lane] start-end`` and, of a transfer, `b` with its bytes,
`f` with its form and `c` with its chunk.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from moebench.harness.conformance.invariants import (
    BrokenError,
    check_counts,
    check_lanes,
    check_micro_batches,
    check_order,
    check_timeline,
    check_times,
    must,
    times,
)
from moebench.harness.conformance.watch import Again, Claim, LetGo
from moebench.substrate.engine.counts import Counts
from moebench.substrate.engine.records import Generation
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.machines.timeline import Timeline

#: Lanes of kinds that are not the device's, unless another one is written.
LANES = {"load": Lane.H2D, "page": Lane.H2D, "stream": Lane.H2D, "return": Lane.H2D,
         "write_back": Lane.D2H, "read": Lane.DISK, "qkv": Lane.D2H, "core": Lane.HOST}  # fmt: skip


def spans(text: str) -> list[Span]:
    """Return the spans that are written in a text, separated by semicolons."""
    found = []
    for one in filter(None, map(str.strip, text.split(";"))):
        kind, place, *rest = one.split()
        layer, _, experts = place.partition("/")
        lane, more = LANES.get(kind, Lane.DEVICE), dict[str, Any]()
        moved, start, end = 0, 0, 0
        for word in rest:
            if word[0] == "@":
                lane = Lane(word[1:])
            elif word[0] == "b":
                moved = int(word[1:])
            elif word[0] == "f":
                more["form"] = int(word[1:])
            elif word[0] == "r":
                more["rows"] = (int(word[1:]),)
            elif word[0] == "c":
                more["chunk"] = tuple(map(int, word[1:].split("of")))
            else:
                start, end = map(int, word.split("-"))
        op = Op(OpKind(kind), int(layer), experts=tuple(map(int, filter(None, experts.split(",")))),
                **more)  # fmt: skip
        found.append(Span(op, lane, start, end, moved_bytes=moved))
    return found


def changed(text: str, old: str, new: str) -> list[Span]:
    """Return the spans of a text with one part of it exchanged."""
    assert old in text
    return spans(text.replace(old, new) if old else text)


def expect(says: str | None, check: Callable[[], None]) -> None:
    """Check that nothing is wrong, or that what is said is."""
    if says is None:
        check()
    else:
        with pytest.raises(BrokenError, match=says):
            check()


def test_a_condition_is_checked_without_assertions_too() -> None:
    must(True, "never said")
    with pytest.raises(BrokenError, match="said"):
        must(False, "said")


def test_a_span_without_a_start_or_an_end_has_no_time() -> None:
    op = Op(OpKind.HEAD, 0)
    assert times(Span(op, Lane.DEVICE, 3, 4)) == (3, 4)
    for start, end in ((None, 4), (3, None)):
        with pytest.raises(BrokenError, match="has no time"):
            times(Span(op, Lane.DEVICE, start, end))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("head 0 0-0; head 0 0-5; head 0 5-6", None),
        ("head 0 0-5; load 0/1 3-6", None),  # two lanes
        ("head 0 5-9; head 0 0-5", None),  # submitted in another order
        ("head 0 5-9; head 0 0-6", "device does two things at 5"),
        ("load 0/1 0-9; head 0 0-5; load 0/1 2-5", "h2d does two things at 2"),
        ("head 0 5-4", "ends before it starts"),
        ("head 0 -1-4", "ends before it starts"),
    ],
)
def test_a_lane_does_one_thing_at_a_time(text: str, says: str | None) -> None:
    made = spans(text.replace(" -1-4", " 1-4"))
    if " -1-4" in text:
        made[0].start_ns = -1
    expect(says, lambda: check_lanes(made))


# --------------------------------------------------------------------------- slots


def claim(
    before: int, key: int, slot: int, victim: int | None = None, placed: bool = False
) -> Claim:
    return Claim(before, key, slot, victim, placed)


PLACED = claim(0, 1, 0, placed=True)
#: Expert 1 comes to slot 0 and is computed; 2 takes its slot.
ONE_SLOT = "load 0/1 0-10; expert 0/1 10-15; load 0/2 15-25; expert 0/2 25-30"
TAKES = [claim(0, 1, 0), claim(2, 2, 0, 1)]
#: As before, and 1 is sent back before.
BACK = "load 0/1 0-10; expert 0/1 10-12; write_back 0/1 12-15; load 0/2 15-25; expert 0/2 25-30"
CHUNKS = "load 0/1 2-5 c0of2 b4; load 0/1 6-10 c1of2 b6; expert 0/1 10-15"
UNFINISHED: dict[str, Any] = {"reads_unfinished": True}
SENDS: dict[str, Any] = {"writes_back": True}


@pytest.mark.parametrize(
    ("text", "events", "options", "says"),
    [
        (ONE_SLOT, TAKES, {}, None),
        (ONE_SLOT, [claim(0, 1, 0), claim(2, 2, 1)], {"capacity": 2}, None),
        (ONE_SLOT, [claim(0, 1, 0), claim(2, 2, 1)], {}, "a slot that there is not"),
        (ONE_SLOT, [claim(0, 1, 0), claim(2, 2, 0)], {}, "a slot has two owners"),
        (ONE_SLOT, [claim(0, 1, 0), claim(2, 2, 1, 1)], {"capacity": 2}, "leaves its own slot"),
        (ONE_SLOT, TAKES[:1], {}, "reads an expert that has no slot"),
        (ONE_SLOT, [TAKES[0], claim(3, 2, 0, 1)], {}, "began before it had a slot"),
        (ONE_SLOT.replace("10-15", "9-15"), TAKES, {}, "reads before 10"),
        (ONE_SLOT.replace("10-15", "9-15"), TAKES, UNFINISHED, None),
        (ONE_SLOT.replace("15-25", "14-25"), TAKES, {},
         "slot 0: 2 comes at 14, 1 is in use until 15"),
        # The host reads no slot; what is there before the run is complete at once.
        ("expert 0/1 @host 0-5", [], {}, None),
        ("expert 0/1 0-5", [PLACED], {}, None),
        ("expert 0/1 0-5; load 0/2 5-9", [PLACED, claim(1, 2, 0, 1)], {}, None),
        ("expert 0/1 0-5", [PLACED, claim(0, 1, 1, placed=True)], {"capacity": 2},
         "an expert has two slots"),
        # The last use counts, though another one was submitted after it.
        ("expert 0/1 20-25; expert 0/1 10-15; load 0/2 25-29", [PLACED, claim(2, 2, 0, 1)], {},
         None),
        ("expert 0/1 20-25; expert 0/1 10-15; load 0/2 24-29", [PLACED, claim(2, 2, 0, 1)], {},
         "in use until 25"),
        # Two experts in one operation.
        ("load 0/1 0-9; expert 0/0,1 9-12", [claim(0, 1, 0)], {}, "has no slot"),
        # Layers have keys of their own.
        ("load 1/1 0-9; expert 1/1 9-12", [claim(0, 5, 0)], {}, None),
        ("load 1/1 0-9; expert 1/1 9-12", [claim(0, 1, 0)], {}, "nothing came"),
        # Transfers and claims belong together, one by one.
        ("load 0/1 0-9", [], {}, "a transfer had no slot to go to"),
        ("", [claim(0, 1, 0)], {}, "nothing came"),
        ("", [claim(0, 1, 0)], {"queued": [1]}, None),
        ("", [claim(0, 1, 0)], {"queued": [2]}, "nothing came"),
        ("expert 0/1 0-9", [claim(0, 1, 0)], {"queued": [1]}, "reads before"),
        ("load 0/1 0-9; load 0/1 9-18", [claim(0, 1, 0), Again(1)], {}, None),
        ("load 0/1 0-9; load 0/1 9-18", [claim(0, 1, 0)], {}, "had no slot to go to"),
        # In chunks it is complete when the last one is there.
        (CHUNKS, [claim(0, 1, 0)], {"record_bytes": [10]}, None),
        (CHUNKS.replace("10-15", "9-15"), [claim(0, 1, 0)], {}, "reads before 10"),
        (CHUNKS.replace("c1of2", "c0of2"), [claim(0, 1, 0)], {}, "chunks in another order"),
        (CHUNKS, [claim(0, 1, 0)], {"record_bytes": [11]},
         "a transfer of 10 bytes, a record in its form has 11"),
        ("load 0/1 2-5 c0of2 b4", [claim(0, 1, 0)], {"record_bytes": [10]}, None),
        ("load 0/1 2-5 c0of2 b4; expert 0/1 6-8", [claim(0, 1, 0)], {}, "reads before"),
        # A chunk takes its slot from the first one on.
        ("expert 0/0 0-3;" + CHUNKS, [claim(0, 0, 0, placed=True), claim(1, 1, 0, 0)], {},
         "comes at 2, 0 is in use until 3"),
        # A page is a part of several records; the host's copy of it into pinned memory is none.
        ("page 0/0,1 @host 0-1; page 0/0,1 1-9 b20", [claim(0, 0, 0), claim(0, 1, 1)],
         {"capacity": 2, "record_bytes": [10]}, None),
        ("page 0/0,1 1-9 b10", [claim(0, 0, 0), claim(0, 1, 1)],
         {"capacity": 2, "record_bytes": [10]}, "a transfer of 10 bytes.* has 20"),
        # An expert that is let go leaves its slot.
        ("load 0/1 0-9; expert 0/1 9-12; load 0/2 12-20",
         [claim(0, 1, 0), LetGo(2, 1), claim(2, 2, 0)], {}, None),
        ("load 0/1 0-9; expert 0/1 9-12; expert 0/1 12-15", [claim(0, 1, 0), LetGo(2, 1)], {},
         "has no slot"),
        # What is still to happen after the last span.
        ("load 0/1 0-9", [claim(0, 1, 0), LetGo(1, 1), claim(1, 2, 0)], {"queued": [2]}, None),
    ],
)  # fmt: skip
def test_slots(text: str, events: list[Any], options: dict[str, Any], says: str | None) -> None:
    given = {"num_experts": 4, "capacity": 1} | options
    expect(says, lambda: check_timeline(spans(text), events, **given))


@pytest.mark.parametrize(
    ("text", "events", "options", "says"),
    [
        (BACK, [claim(0, 1, 0), claim(2, 2, 0, 1)], SENDS, None),
        (BACK, [claim(0, 1, 0), claim(2, 2, 0, 1)], {}, "nobody had left who was written back"),
        (ONE_SLOT, TAKES, SENDS, "was not written back"),
        (BACK, [claim(0, 1, 0), claim(3, 2, 0, 1)], SENDS, "written back before it left"),
        (BACK.replace("12-15", "@h2d 12-15"), [claim(0, 1, 0), claim(2, 2, 0, 1)], SENDS,
         "written back over another lane"),
        (BACK.replace("12-15", "10-15"), [claim(0, 1, 0), claim(2, 2, 0, 1)], SENDS, None),
        (BACK.replace("12-15", "9-15"), [claim(0, 1, 0), claim(2, 2, 0, 1)], SENDS,
         "reads before 10"),
        (BACK.replace("15-25", "14-25"), [claim(0, 1, 0), claim(2, 2, 0, 1)], SENDS,
         "in use until 15"),
        # Until a later read of the slot, if that ends after the copy.
        (BACK.replace("10-12", "10-20"), [claim(0, 1, 0), claim(2, 2, 0, 1)], SENDS,
         "in use until 20"),
        # Sent back at the start of a pass, and let go of when that is known.
        (BACK, [claim(0, 1, 0), LetGo(3, 1), claim(3, 2, 0)], SENDS, None),
        (BACK, [claim(0, 1, 0), LetGo(2, 1), claim(3, 2, 0)], SENDS, "nobody had left"),
        (BACK.replace("15-25", "14-25"), [claim(0, 1, 0), LetGo(3, 1), claim(3, 2, 0)], SENDS,
         "in use until 15"),
        # A placed expert's copy may begin at once.
        ("write_back 0/1 0-3; load 0/2 3-9", [PLACED, claim(0, 2, 0, 1)], SENDS, None),
        # Twice: each copy belongs to one leaving.
        ("write_back 0/1 0-3; load 0/2 3-9; write_back 0/2 9-10; load 0/1 10-13;"
         "write_back 0/1 13-14; load 0/3 14-15",
         [PLACED, claim(0, 2, 0, 1), claim(2, 1, 0, 2), claim(4, 3, 0, 1)], SENDS, None),
    ],
)  # fmt: skip
def test_write_backs(
    text: str, events: list[Any], options: dict[str, Any], says: str | None
) -> None:
    expect(says, lambda: check_timeline(spans(text), events, num_experts=4, capacity=1, **options))


#: Two layers of two experts in two forms of 10 and 4 bytes: keys are 0 to 3 and 4 to 7.
FORMS: dict[str, Any] = {"num_experts": 2, "num_layers": 2, "capacity": 2, "record_bytes": (10, 4)}
TWO_FORMS = "load 1/1 0-9 b10; load 1/1 9-12 f1 b4; expert 1/1 9-10; expert 1/1 f1 12-13"
OWN = "load 0/1 0-9 f1 b4; expert 0/1 f1 9-12; load 1/0 12-15 b10; expert 1/0 15-16"
OWN_EVENTS = [claim(0, 1, 0), claim(2, 2, 0, 1)]


@pytest.mark.parametrize(
    ("text", "events", "options", "says"),
    [
        (TWO_FORMS, [claim(0, 3, 0), claim(1, 7, 1)], {}, None),
        (TWO_FORMS, [claim(0, 7, 0), claim(1, 3, 1)], {}, "began before it had a slot"),
        (TWO_FORMS.replace("b4", "b10"), [claim(0, 3, 0), claim(1, 7, 1)], {}, "has 4"),
        ("load 0/0 0-9 b10; load 0/1 9-12 f1 b4", [claim(0, 0, 0), claim(1, 5, 0, 0)], {},
         "slot 0 held several forms"),
        # Bytes at one instant: 10 and 4 at once, and 3 of all else.
        (TWO_FORMS, [claim(0, 3, 0), claim(1, 7, 1)], {"budget_bytes": 17, "common_bytes": 3},
         None),
        (TWO_FORMS, [claim(0, 3, 0), claim(1, 7, 1)], {"budget_bytes": 16, "common_bytes": 3},
         "more bytes than the device has"),
        (TWO_FORMS, [claim(0, 3, 0), claim(1, 7, 1)], {"budget_bytes": 13}, "more bytes"),
        (TWO_FORMS, [claim(0, 3, 0), claim(1, 7, 1)], {"budget_bytes": 1, "record_bytes": ()},
         None),
        # One after the other: one comes when the other one is no longer read.
        ("load 0/0 0-9 b10; expert 0/0 9-12; load 0/1 12-13 f1 b4",
         [claim(0, 0, 0), claim(2, 5, 1)], {"budget_bytes": 10}, None),
        ("load 0/0 0-9 b10; expert 0/0 9-12; load 0/1 11-13 f1 b4",
         [claim(0, 0, 0), claim(2, 5, 1)], {"budget_bytes": 13}, "more bytes"),
        # A record of which chunks are still to come stays.
        ("load 0/0 0-9 c0of2 b5; load 0/1 9-13 f1 b4",
         [claim(0, 0, 0), claim(1, 5, 1)], {"budget_bytes": 13}, "more bytes"),
        # Each expert in a form of its own: keys are those of the first form, and slots are shared.
        (OWN, OWN_EVENTS, {"one_form": True, "capacity": 1}, None),
        (OWN, OWN_EVENTS, {"capacity": 1}, "nothing came"),
        (OWN.replace("expert 0/1 f1", "expert 0/1"), OWN_EVENTS, {"one_form": True},
         "is in another form than this expert's record"),
        (OWN + "; read 1/0 f1 20-30", OWN_EVENTS, {"one_form": True}, "in another form"),
        (OWN + "; load 1/0 f1 20-30", OWN_EVENTS, {"one_form": True}, "in another form"),
        (OWN, OWN_EVENTS, {"one_form": True, "budget_bytes": 10}, None),
        (OWN, OWN_EVENTS, {"one_form": True, "budget_bytes": 9}, "more bytes"),
        (OWN.partition("; load")[0], OWN_EVENTS[:1], {"one_form": True, "budget_bytes": 4}, None),
    ],
)  # fmt: skip
def test_records_in_forms(
    text: str, events: list[Any], options: dict[str, Any], says: str | None
) -> None:
    expect(says, lambda: check_timeline(spans(text), events, **(FORMS | options)))


def test_lanes_of_a_timeline_are_checked() -> None:
    with pytest.raises(BrokenError, match="two things"):
        check_timeline(spans("head 0 0-5; head 0 4-6"), [], num_experts=1, capacity=0)


# --------------------------------------------------------------------------- order

#: A layer: expert 2 is the host's, 1 the device's, beside a shared one; another layer; the head.
LAYER = (
    "attend 0 0-2; gate 0 2-3; expert 0/1 3-5; expert 0/2 @host 3-9; return 0 @d2h 3-4;"
    "shared 0 5-7; return 0/2 9-10; combine 0 10-11; dense 1 11-12; head 1 12-13"
)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "", None),
        ("gate 0 2-3", "gate 0 1-3", "begins before its input is there, at 2"),
        ("expert 0/1 3-5", "expert 0/1 2-5", "at 3"),
        ("expert 0/2 @host 3-9", "expert 0/2 @host 2-9", "at 3"),
        ("shared 0 5-7", "shared 0 2-7", "at 3"),
        ("shared 0 5-7", "shared 0 5-10", None),
        ("shared 0 5-7", "shared 0 5-11", "combine .* at 11"),
        ("expert 0/1 3-5", "expert 0/1 3-11", "combine .* at 11"),
        ("return 0/2 9-10", "return 0/2 8-10", "at 9"),
        ("return 0/2 9-10", "return 0/2 9-11", "combine .* at 11"),
        ("combine 0 10-11", "combine 0 10-12", "dense .* at 12"),
        ("dense 1 11-12", "dense 1 11-13", "head .* at 13"),
        ("head 1 12-13", "head 1 12-13; attend 0 12-13", "at 13"),
        ("gate 0 2-3", "gate 0 @host 2-3", "runs where its weights are not"),
        ("shared 0 5-7", "shared 0 @h2d 5-7", "runs where its weights are not"),
        ("combine 0 10-11;", "", "experts of no sum"),
        # Neither the next prediction nor a copy of an expert is part of the order.
        ("gate 0 2-3", "gate 0 2-3; load 0/1 0-1; predict 0 0-9", None),
    ],
)
def test_parts_of_a_layer_follow_each_other(old: str, new: str, says: str | None) -> None:
    expect(says, lambda: check_order(changed(LAYER, old, new)))


#: Layer 0 computes on the host, layer 1 is streamed, and so is the head.
HOMES = (
    "stream 1 0-9; attend 0 @host 0-4; dense 0 @host 4-5; attend 1 9-10; dense 1 10-11;"
    "stream -1 9-12; head 1 12-13"
)


@pytest.mark.parametrize(
    ("old", "new", "homes", "says"),
    [
        ("", "", ("host", "stream"), None),
        ("", "", ("host", "device"), "are streamed that have another home"),
        ("", "", ("device", "stream"), "runs where its weights are not"),
        ("", "", ("host", "host"), "are streamed that have another home"),
        ("attend 1 9-10", "attend 1 8-10", ("host", "stream"), "at 9"),
        ("head 1 12-13", "head 1 11-13", ("host", "stream"), "at 12"),
        ("stream 1 0-9;", "", ("host", "stream"), "runs before its weights came"),
        # Each copy serves one pass.
        ("head 1 12-13", "head 1 12-13; attend 1 14-15", ("host", "stream"), "before its weights"),
        ("stream 1 0-9; attend 0 @host 0-4", "stream 1 0-3; attend 0 @host 0-10",
         ("host", "stream"), "at 10"),
    ],
)  # fmt: skip
def test_weights_come_before_their_layer_runs(
    old: str, new: str, homes: Sequence[Any], says: str | None
) -> None:
    expect(says, lambda: check_order(changed(HOMES, old, new), (*homes, "stream")))


#: Expert 2 of layer 0 is due in the sum of layer 1.
LATE = (
    "gate 0 0-1; expert 0/1 1-2; expert 0/2 @host 1-6; return 0/2 6-8; combine 0 2-3;"
    "gate 1 3-4; expert 1/0 4-5; combine 1 8-9; head 1 9-10"
)


@pytest.mark.parametrize(
    ("old", "new", "deferred", "says"),
    [
        ("", "", [(2,), ()], None),
        ("", "", [], "combine .* at 8"),
        ("", "", [(), (2,)], "combine .* at 8"),
        ("combine 1 8-9", "combine 1 7-9", [(2,), ()], "combine .* at 8"),
        ("combine 0 2-3", "combine 0 1-3", [(2,), ()], "combine .* at 2"),
        # It is due once: neither in a later sum nor in the next pass.
        ("combine 1 8-9; head 1 9-10", "combine 1 8-9; combine 2 9-10; head 1 10-11", [(2,), ()],
         None),
    ],
)  # fmt: skip
def test_deferred_outputs_are_due_one_sum_later(
    old: str, new: str, deferred: Sequence[tuple[int, ...]], says: str | None
) -> None:
    expect(says, lambda: check_order(changed(LATE, old, new), (), deferred))


def test_the_head_ends_what_is_due() -> None:
    """The last sum of a pass defers nothing that the next pass waits for."""
    text = "gate 0 0-1; expert 0/1 1-50; combine 0 1-2; head 0 2-3; gate 0 3-4; combine 0 4-5"
    check_order(spans(text), (), [(1,), ()])


# --------------------------------------------------------------------------- micro-batches

#: Two micro-batches in a layer: attention on the host, states up, sums; then the next layer.
MICRO = (
    "project 0 0-1; project 0 1-2; qkv 0 r1 1-3; qkv 0 r1 3-4; core 0 3-6; core 0 6-8;"
    "return 0 6-7; return 0 8-9; page 0/0,1 0-5; output 0 7-8; output 0 9-10;"
    "combine 0 8-9; combine 0 10-11; project 1 9-10; project 1 11-12; head 1 12-13"
)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "", None),
        ("qkv 0 r1 3-4", "qkv 0 r1 1-4", "begins before its input is there, at 2"),
        ("core 0 6-8", "core 0 3-8", "at 4"),
        ("return 0 8-9", "return 0 7-9", "at 8"),
        ("output 0 9-10", "output 0 8-10", "at 9"),
        ("project 1 11-12", "project 1 10-12", "at 11"),
        ("page 0/0,1 0-5", "page 0/0,1 0-7", None),
        ("page 0/0,1 0-5", "page 0/0,1 0-8", "output .* at 8"),
        ("page 0/0,1 0-5", "page 1/0,1 0-8", None),  # another layer's
        ("page 0/0,1 0-5", "page 0/0,1 @host 0-8", None),  # staged, not there
        ("project 0 1-2;", "", "qkv .* comes before what it needs"),
        ("combine 0 10-11;", "", "project .* comes before what it needs"),
        ("project 1 11-12;", "", "a micro-batch lacks a part"),
        ("output 0 9-10;", "", "a micro-batch lacks a part"),
        # A prompt's cache goes down without a projection before it.
        ("qkv 0 r1 1-3", "qkv 0 r0 0-1; qkv 0 r1 1-3", None),
        ("combine 0 8-9; combine 0 10-11", "dense 0 8-9; dense 0 10-11", None),
        ("project 1 9-10", "project 1 8-10", "at 9"),
        # Activations on their way down are no state.
        ("page 0/0,1 0-5", "return 0 @d2h 0-1; page 0/0,1 0-5", None),
        # The next pass counts from its own first micro-batch on.
        ("head 1 12-13", "head 1 12-13; project 0 13-14; qkv 0 r1 14-15; head 1 15-16", None),
        ("head 1 12-13", "head 1 12-13; qkv 0 r1 14-15", "qkv .* comes before what it needs"),
    ],
)  # fmt: skip
def test_micro_batches(old: str, new: str, says: str | None) -> None:
    expect(says, lambda: check_micro_batches(changed(MICRO, old, new)))


# --------------------------------------------------------------------------- counts and times

#: A prefill of three experts, one of them the host's, and a decoded token of two.
COMPUTED = (
    "expert 0/1,2 0-1; expert 0/3 @host 0-1; return 0/3 1-2; return 0 @d2h 0-0; combine 0 2-3;"
    "head 0 3-4; expert 0/1 4-5; expert 0/2 5-6; combine 0 6-7; head 0 7-8"
)
PREFILL = {"active": 3, "hits": 1, "loads": 1, "host": 1}
DECODE = {"active": 2, "hits": 1, "in_flight": 1}


@pytest.mark.parametrize(
    ("text", "prefill", "decode", "used", "says"),
    [
        (COMPUTED, {}, {}, 2, None),
        # In a second sum of a pass, another micro-batch's, an expert is computed once more.
        (COMPUTED.replace("combine 0 6-7", "combine 0 6-7; expert 0/1,2 7-8; combine 0 8-9"),
         {}, {}, 2, None),
        (COMPUTED.replace("combine 0 6-7", "expert 0/1 7-8; combine 0 8-9"), {}, {}, 2,
         "computed twice, or not at all"),
        (COMPUTED.replace("combine 0 6-7", "combine 0 6-7; expert 1/1 7-8"), {}, {}, 2,
         "computed twice, or not at all"),
        (COMPUTED.replace("expert 0/2 5-6;", ""), {}, {}, 2, "computed twice, or not at all"),
        (COMPUTED.replace("return 0/3 1-2;", ""), {}, {}, 2, "did not come back once"),
        (COMPUTED.replace("return 0/3 1-2", "return 0/3 1-2; return 0/3 2-3"), {}, {}, 2,
         "did not come back once"),
        (COMPUTED.replace("expert 0/3 @host", "expert 0/3"), {}, {}, 2, "computed twice"),
        (COMPUTED, {"hits": 2}, {}, 2, "prefill: active experts are not those hit"),
        (COMPUTED, {}, {"in_flight": 0}, 2, "decode: active experts are not those hit"),
        (COMPUTED, {}, {}, 3, "decode's active experts are not those it used"),
        (COMPUTED, {"host_resident": 1, "deferred": 1}, {}, 2, None),
        (COMPUTED, {"host_resident": 2, "deferred": 1}, {}, 2, "more on the host than there"),
        (COMPUTED, {"prefetched": 2, "prefetched_active": 1, "prefetched_used": 2, "replaced": 1},
         {}, 2, None),
        (COMPUTED, {"prefetched": 3, "prefetched_active": 1, "prefetched_used": 3, "replaced": 1},
         {}, 2, "more prefetches were used than were active"),
        (COMPUTED, {"prefetched": 1, "prefetched_active": 2}, {}, 2, "active than were made"),
        (COMPUTED, {"prefetched": 1, "prefetched_used": 2, "replaced": 2}, {}, 2,
         "active than were made"),
    ],
)  # fmt: skip
def test_counts_are_those_of_the_spans(
    text: str, prefill: dict[str, int], decode: dict[str, int], used: int, says: str | None
) -> None:
    counts = {"prefill": Counts(**(PREFILL | prefill)), "decode": Counts(**(DECODE | decode))}
    ran = Generation([[0, 0]], 0, [4, 8], used=[[[1], [*range(used - 1)]]])
    expect(says, lambda: check_counts(spans(text), counts, [ran]))  # type: ignore[arg-type]


def finished(stall_ns: int = 2, h2d: str = "load 0/1 0-9") -> Timeline:
    """Three operations of 3, 3 and 2 ns on the device, which waits for 2 ns, and a copy."""
    made = Timeline(keep_all=True)
    device = spans("attend 0 0-3; expert 0/1 5-8; head 0 8-10")
    device[1].stall_ns, device[1].cause = stall_ns, "load"
    for span in [*device, *spans(h2d)]:
        made.add(span)
    return made


@pytest.mark.parametrize(
    ("batches", "timeline", "says"),
    [
        ([(0, [4, 6]), (6, [8, 10])], {}, None),
        ([(0, [4, 6]), (5, [8, 10])], {}, "a batch begins before the one before has ended"),
        ([(-1, [4, 10])], {}, "a batch begins before the one before has ended"),
        ([(4, [4, 10])], {}, "a first token takes no time"),
        ([(0, [10, 10])], {}, "a token takes no time"),
        ([(0, [4, 9])], {}, "the device was busy and idle for 10 ns of 10, of 9"),
        ([(0, [4, 11])], {}, None),  # the last token comes after the device's last work
        ([(0, [4, 10])], {"stall_ns": 1}, "the device was busy and idle for 9 ns of 10"),
        ([(0, [4, 10])], {"h2d": "load 0/1 0-10"}, None),
        ([(0, [4, 10])], {"h2d": "load 0/1 0-11"}, "the lane h2d was busy for 11 ns of 10"),
        ([(0, [4, 10])], {"h2d": "load 0/1 9-3"}, "the lane h2d was busy for -6 ns of 10"),
    ],
)
def test_times_of_tokens_and_lanes(
    batches: list[tuple[int, list[int]]], timeline: dict[str, Any], says: str | None
) -> None:
    ran = [Generation([[0] * len(ends)], start, ends) for start, ends in batches]
    expect(says, lambda: check_times(finished(**timeline), ran))
