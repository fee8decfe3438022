"""A timeline in Chrome's trace-event format; opens in Perfetto (ui.perfetto.dev).

A group of lanes is a process, a lane a thread.  Spans are complete events (``X``).
Flows (``s``, ``t``, ``f``) lead from a transfer of weights to its uses: from a disk read
to the copies and host computations of its record, from a load to the computations of its expert,
from a stream of non-expert weights to the attention or head that waits for it.  Tokens, evictions
and cancelled prefetches are instants (``i``).

The format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Record = Mapping[str, Any]
Event = dict[str, Any]

#: Lanes of each process.
GROUPS = {
    "device": ("device", "predict"), "link": ("h2d", "d2h"), "host": ("host",), "disk": ("disk",),
}  # fmt: skip

#: Names of threads whose lane's name is too short.
THREADS = {"h2d": "h2d: host to device", "d2h": "d2h: device to host", "predict": "prediction"}

#: Instants by kind, with the thread that they are on.
INSTANTS = {"evict": "evictions", "cancel": "cancelled prefetches"}


class _Row(NamedTuple):
    """Process and thread of a lane's events."""

    pid: int
    tid: int


def _rows() -> tuple[dict[str, _Row], list[Event]]:
    """Return process and thread of every lane and kind of instant, and their naming events."""
    rows: dict[str, _Row] = {}
    named: list[Event] = []
    beside = {"device": ("evict",), "link": ("cancel",)}
    tid = 0
    for pid, (group, lanes) in enumerate(GROUPS.items(), start=1):
        named += _named("process", group, _Row(pid, 0), pid)
        for lane in (*lanes, *beside.get(group, ())):
            tid += 1
            rows[lane] = _Row(pid, tid)
            title = INSTANTS.get(lane) or THREADS.get(lane, lane)
            named += _named("thread", title, rows[lane], tid)
    return rows, named


def _named(what: str, name: str, row: _Row, index: int) -> list[Event]:
    common = {"ph": "M", "ts": 0, **row._asdict()}
    return [
        {"name": f"{what}_name", "args": {"name": name}, **common},
        {"name": f"{what}_sort_index", "args": {"sort_index": index}, **common},
    ]


def trace_events(records: Iterable[Record], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the file, as JSON values.

    Args:
        records: span records of `Timeline.picture`, or from the store.
        about: description of the run, for ``otherData``.
    """
    rows, events = _rows()
    every = sorted(records, key=lambda record: record["start_us"])
    spans = [record for record in every if not record.get("instant")]
    found = [_span(record, rows) for record in spans]
    found += [_instant(record, rows) for record in every if record.get("instant")]
    found += [event for flow in enumerate(_flows(spans)) for event in _flow(*flow, rows)]
    # A flow's event must follow its span.
    found.sort(key=lambda event: (event["ts"], event["ph"] != "X"))
    return {
        "traceEvents": events + found,
        "displayTimeUnit": "ms",
        "otherData": {key: str(value) for key, value in about.items()},
    }


def _span(record: Record, rows: Mapping[str, _Row]) -> Event:
    experts = ",".join(map(str, record["experts"]))
    told = ("layer", "experts", "rows", "stall_us", "waited_for")
    return {
        "ph": "X",
        "name": f"{record['kind']} L{record['layer']}" + (f" E{experts}" if experts else ""),
        "cat": record["kind"],
        **rows[record["lane"]]._asdict(),
        "ts": record["start_us"],
        # Rounded to the nanosecond, as the next span may begin at this span's end.
        "dur": round(record["end_us"] - record["start_us"], 3),
        "args": {key: record[key] for key in told if key in record},
    }


def _instant(record: Record, rows: Mapping[str, _Row]) -> Event:
    kind, layer, experts = record["kind"], record["layer"], record["experts"]
    row = rows[kind if kind in INSTANTS else record["lane"]]
    common = {"ph": "i", "cat": kind, "ts": record["start_us"], **row._asdict()}
    if kind == "token":
        return {**common, "s": "g", "name": f"token {experts[0]}"}
    name = f"{kind} L{layer} E{experts[0]}"
    return {**common, "s": "t", "name": name, "args": {"layer": layer, "expert": experts[0]}}


# ----------------------------------------------------------------------------- flows


class _Flow(NamedTuple):
    """A span that transfers weights, and the spans that use them, in order."""

    source: Record
    uses: list[Record]


def _flows(spans: Sequence[Record]) -> list[_Flow]:
    """Return every transfer that has a use.

    A span uses the last transfer of its expert that began before it: a system that reads
    unfinished copies begins before their end.
    """
    flows: list[_Flow] = []
    #: The last transfer by destination, layer and expert.
    last: dict[tuple[str, int, int | None], _Flow] = {}
    for span in spans:
        for key in _used(span):
            if key in last:
                last[key].uses.append(span)
        brought = _brought(span)
        if brought is not None:
            last[brought] = _Flow(span, [])
            flows.append(last[brought])
    return [flow for flow in flows if flow.uses]


def _brought(span: Record) -> tuple[str, int, int | None] | None:
    """Return destination, layer and expert of the weights that a span transfers, or None."""
    kind, layer, lane = span["kind"], span["layer"], span["lane"]
    if kind in ("load", "read"):
        return ("host" if kind == "read" else "device"), layer, span["experts"][0]
    if kind == "stream":
        return ("host" if lane == "disk" else "device"), layer, None
    return None


def _used(span: Record) -> list[tuple[str, int, int | None]]:
    """Return location, layer and expert of the weights that a span uses."""
    kind, layer, lane = span["kind"], span["layer"], span["lane"]
    if kind == "expert":
        return [("host" if lane == "host" else "device", layer, e) for e in span["experts"]]
    if kind == "load" and lane == "h2d":
        return [("host", layer, span["experts"][0])]
    if kind == "stream" and lane == "h2d":
        return [("host", layer, None)]
    if kind in ("attend", "head") and lane == "device":
        return [("device", layer, None)]
    return []


def _flow(number: int, flow: _Flow, rows: Mapping[str, _Row]) -> list[Event]:
    """Return a flow's events: start, steps and end, each at the beginning of its span."""
    name = f"{flow.source['kind']} L{flow.source['layer']}"
    spans = [flow.source, *flow.uses]
    phases = ["s", *["t"] * (len(flow.uses) - 1), "f"]
    return [
        {
            "ph": phase, "id": number + 1, "name": name, "cat": "uses", "ts": span["start_us"],
            **rows[span["lane"]]._asdict(), **({"bp": "e"} if phase == "f" else {}),
        }
        for phase, span in zip(phases, spans, strict=True)
    ]  # fmt: skip
