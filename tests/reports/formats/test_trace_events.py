"""Trace events, against the format's rules and a timeline that was computed by hand."""

import copy
from typing import Any

import pytest

from moebench.reports.formats.trace_events import trace_events
from tests.reports.trace_format import check_trace


def span(lane: str, kind: str, layer: int, experts: Any, start: float, end: float, **more: Any):
    return {"lane": lane, "kind": kind, "layer": layer, "experts": list(experts), "rows": [1],
            "start_us": start, "end_us": end, **more}  # fmt: skip


def note(lane: str, kind: str, layer: int, expert: int, at: float):
    return span(lane, kind, layer, [expert], at, at, instant=True)


#: Two layers from the disk, by hand.  Expert 7 is read, loaded, used twice; 3 is read and computed
#: on the host; layer 1's common weights are streamed; 9 is loaded in two chunks, and used.
RECORDS = [
    span("disk", "read", 0, [7], 0, 10),
    span("disk", "read", 0, [3], 10, 20),
    span("h2d", "load", 0, [7], 10, 14),
    span("h2d", "stream", 1, [], 14, 18),
    span("h2d", "load", 1, [9], 18, 20),
    span("h2d", "load", 1, [9], 22, 24),
    span("device", "attend", 0, [], 2, 8),
    span("device", "expert", 0, [5, 7], 14, 16, stall_us=6, waited_for="load"),
    span("host", "expert", 0, [3], 20, 30),
    span("d2h", "return", 0, [3], 30, 31),
    span("device", "attend", 1, [], 31, 33),
    span("device", "expert", 1, [9], 33, 34),
    span("device", "expert", 0, [7], 40, 41),
    note("device", "evict", 0, 1, 9),
    note("h2d", "cancel", 1, 2, 21),
    note("device", "token", -1, 4, 34),
]


@pytest.fixture
def trace() -> dict[str, Any]:
    return trace_events(RECORDS, {"run": "abc", "times": "simulated"})


def flows(trace: dict[str, Any]) -> list[list[tuple[str, int, float]]]:
    """Each flow's events as (phase, process, ts), in the order of their ids."""
    found: dict[int, list[tuple[str, int, float]]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] in "stf":
            found.setdefault(event["id"], []).append((event["ph"], event["pid"], event["ts"]))
    return [found[key] for key in sorted(found)]


def test_it_keeps_the_formats_rules(trace) -> None:
    check_trace(trace)
    assert trace["otherData"] == {"run": "abc", "times": "simulated"}


def test_a_process_for_each_group_of_lanes(trace) -> None:
    named = [e for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert [(e["pid"], e["args"]["name"]) for e in named] == [
        (1, "device"), (2, "link"), (3, "host"), (4, "disk"),
    ]  # fmt: skip
    meta = [e for e in trace["traceEvents"] if e["ph"] == "M"]
    assert all(e["ts"] == 0 for e in meta)
    assert all(e["tid"] == 0 for e in meta if e["name"].startswith("process"))
    sorted_by = {e["name"]: [] for e in meta}
    for event in meta:
        sorted_by[event["name"]].append(event["args"].get("sort_index"))
    assert sorted_by["process_sort_index"] == [1, 2, 3, 4]
    assert sorted_by["thread_sort_index"] == [*range(1, 9)]
    threads = {e["args"]["name"]: e["pid"] for e in trace["traceEvents"]
               if e["name"] == "thread_name"}  # fmt: skip
    assert threads == {
        "device": 1, "prediction": 1, "evictions": 1, "h2d: host to device": 2,
        "d2h: device to host": 2, "cancelled prefetches": 2, "host": 3, "disk": 4,
    }  # fmt: skip


def test_every_span_is_a_complete_event(trace) -> None:
    drawn = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert len(drawn) == len([r for r in RECORDS if not r.get("instant")])
    (one,) = [e for e in drawn if e["name"] == "expert L0 E5,7"]
    assert (one["ts"], one["dur"], one["pid"], one["cat"]) == (14, 2, 1, "expert")
    assert one["args"] == {
        "layer": 0, "experts": [5, 7], "rows": [1], "stall_us": 6, "waited_for": "load",
    }  # fmt: skip


def test_flows_lead_from_what_brings_to_what_uses(trace) -> None:
    device, link, host, disk = 1, 2, 3, 4
    assert flows(trace) == [
        [("s", disk, 0), ("f", link, 10)],  # the record of 7
        [("s", disk, 10), ("f", host, 20)],  # and that of 3
        [("s", link, 10), ("t", device, 14), ("f", device, 40)],  # 7 is used twice
        [("s", link, 14), ("f", device, 31)],  # layer 1's common weights
        [("s", link, 22), ("f", device, 33)],  # the last chunk of 9
    ]


def test_a_second_load_takes_over() -> None:
    records = [
        span("h2d", "load", 0, [1], 0, 2), span("device", "expert", 0, [1], 2, 3),
        span("h2d", "load", 0, [1], 5, 7), span("device", "expert", 0, [1], 7, 8),
        span("h2d", "load", 0, [2], 8, 9),
    ]  # fmt: skip
    trace = trace_events(records, {})
    check_trace(trace)
    # The load of 2, which nothing used, has no flow.
    assert flows(trace) == [[("s", 2, 0), ("f", 1, 2)], [("s", 2, 5), ("f", 1, 7)]]


def test_a_copy_that_is_read_unfinished_still_leads_to_its_use() -> None:
    trace = trace_events(
        [span("h2d", "load", 0, [1], 0, 5), span("device", "expert", 0, [1], 2, 3)], {}
    )
    check_trace(trace)
    assert flows(trace) == [[("s", 2, 0), ("f", 1, 2)]]


def test_common_weights_from_the_disk_lead_through_host_memory_to_the_device() -> None:
    trace = trace_events(
        [span("disk", "stream", 0, [], 0, 3), span("disk", "stream", 0, [], 3, 5),
         span("h2d", "stream", 0, [], 5, 8), span("h2d", "attend", 0, [], 8, 9),
         span("device", "attend", 0, [], 9, 11), span("device", "head", 0, [], 11, 12)], {},
    )  # fmt: skip
    check_trace(trace)
    # The second record of the disk is the one that is copied; a record uses no earlier one.
    assert flows(trace) == [[("s", 4, 3), ("f", 2, 5)], [("s", 2, 5), ("t", 1, 9), ("f", 1, 11)]]


def test_a_disk_that_stands_below_the_device_loads_at_once() -> None:
    """This computer without a link has one lane for loads, the disk's."""
    trace = trace_events(
        [span("disk", "load", 0, [1], 0, 5), span("device", "expert", 0, [1], 5, 6)], {}
    )
    assert flows(trace) == [[("s", 4, 0), ("f", 1, 5)]]


def test_evictions_cancellations_and_tokens_are_instants(trace) -> None:
    instants = [e for e in trace["traceEvents"] if e["ph"] == "i"]
    assert [(e["name"], e["ts"], e["s"]) for e in instants] == [
        ("evict L0 E1", 9, "t"), ("cancel L1 E2", 21, "t"), ("token 4", 34, "g"),
    ]  # fmt: skip


def test_records_of_older_runs_can_be_drawn() -> None:
    old = [{k: v for k, v in r.items() if k != "rows"} for r in RECORDS if not r.get("instant")]
    check_trace(trace_events(old, {}))


def test_every_field_of_each_kind_of_event() -> None:
    """Durations are whole nanoseconds; of events at one time, spans precede flows and instants."""
    found = trace_events(
        [span("device", "expert", 2, [5], 2.5, 3.73456, stall_us=1, kept=3),
         span("h2d", "load", 2, [5], 0, 2.5, waited_for="slot"),
         note("device", "evict", 2, 6, 2.5), note("host", "cancel", 3, 4, 1.5),
         note("device", "token", -1, 77, 4)],
        {"run": 5},
    )  # fmt: skip
    assert (found["displayTimeUnit"], found["otherData"]) == ("ms", {"run": "5"})
    threads = {(e["args"]["name"]): {"pid": e["pid"], "tid": e["tid"]}
               for e in found["traceEvents"] if e["name"] == "thread_name"}  # fmt: skip
    link, device = threads["h2d: host to device"], threads["device"]
    assert len({tuple(one.values()) for one in threads.values()}) == len(threads)
    flow = {"id": 1, "name": "load L2", "cat": "uses"}
    assert [event for event in found["traceEvents"] if event["ph"] != "M"] == [
        {"ph": "X", "name": "load L2 E5", "cat": "load", **link, "ts": 0, "dur": 2.5,
         "args": {"layer": 2, "experts": [5], "rows": [1], "waited_for": "slot"}},
        {"ph": "s", **flow, "ts": 0, **link},
        {"ph": "i", "cat": "cancel", "ts": 1.5, **threads["cancelled prefetches"], "s": "t",
         "name": "cancel L3 E4", "args": {"layer": 3, "expert": 4}},
        {"ph": "X", "name": "expert L2 E5", "cat": "expert", **device, "ts": 2.5, "dur": 1.235,
         "args": {"layer": 2, "experts": [5], "rows": [1], "stall_us": 1}},
        {"ph": "i", "cat": "evict", "ts": 2.5, **threads["evictions"], "s": "t",
         "name": "evict L2 E6", "args": {"layer": 2, "expert": 6}},
        {"ph": "f", **flow, "ts": 2.5, **device, "bp": "e"},
        {"ph": "i", "cat": "token", "ts": 4, **device, "s": "g", "name": "token 77"},
    ]  # fmt: skip


def test_nothing_is_a_trace_too() -> None:
    check_trace(trace_events([], {}))


@pytest.mark.parametrize(
    ("phase", "change", "said"),
    [
        ("X", {"ts": 0.0}, "in the order of time"),
        ("X", {"dur": 50.0}, "neither overlap nor nest"),
        ("X", {"tid": 77}, "a thread with a name"),
        ("X", {"pid": 77}, "a process with a name"),
        ("f", {"id": 99}, r"flow \d ends"),
        ("f", {"bp": "s"}, "it ends in the slice"),
        ("s", {"ph": "t"}, r"flow \d begins"),
        ("f", {"ts": 1e9}, "in a slice"),
    ],
)
def test_the_checker_can_disagree(trace, phase: str, change: dict[str, Any], said: str) -> None:
    broken = copy.deepcopy(trace)
    [e for e in broken["traceEvents"] if e["ph"] == phase][-1].update(change)
    if change.get("dur"):
        next(e for e in broken["traceEvents"] if e["ph"] == phase).update(change)
    with pytest.raises(AssertionError, match=said):
        check_trace(broken)
