"""Checks a document against the rules of Chrome's trace-event format that viewers rely on."""

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

#: How far a double's microseconds may be off, in µs.
ROUNDING = 1e-3


def check_trace(document: dict[str, Any]) -> None:
    """Assert that a trace is well-formed; ``json.loads`` of its file, or what is to be written."""
    assert json.loads(json.dumps(document)) == document, "plain JSON"
    events = document["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    latest: dict[tuple[int, int], float] = {}
    slices: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    flows: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        assert event["ph"] in ("M", "X", "i", "s", "t", "f"), event
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        row = event["pid"], event["tid"]
        if event["ph"] == "M":
            continue
        assert event["pid"] in processes, "a process with a name"
        assert row in threads, "a thread with a name"
        assert event["cat"]
        assert event["ts"] >= latest.get(row, 0), "in the order of time on each thread"
        latest[row] = event["ts"]
        if event["ph"] == "X":
            assert event["dur"] >= 0
            slices[row].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
        else:
            flows[event["id"]].append(event)
    assert len(set(threads.values())) == len(threads), "names that tell threads apart"
    for row, spans in slices.items():
        for (_, end), (start, _) in pairwise(spans):
            assert end <= start + ROUNDING, f"slices of {threads[row]} neither overlap nor nest"
    for number, chain in flows.items():
        chain.sort(key=lambda e: (e["ts"], "stf".index(e["ph"])))
        phases = "".join(event["ph"] for event in chain)
        assert phases[0] == "s", f"flow {number} begins"
        assert phases[-1] == "f", f"flow {number} ends"
        assert set(phases[1:-1]) <= {"t"}, f"flow {number} begins and ends once"
        assert chain[-1]["bp"] == "e", "it ends in the slice that is open, not in the next"
        assert len({(e["name"], e["cat"]) for e in chain}) == 1, "a flow's events are of one kind"
        for event in chain:
            spans = slices[event["pid"], event["tid"]]
            assert any(start <= event["ts"] <= end for start, end in spans), "in a slice"
