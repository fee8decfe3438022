"""Spans of a few layers in the timelines of runs, as rows of timeline exhibits."""

from collections.abc import Iterable, Mapping
from typing import Any

from moebench.harness.one_run import opened, run
from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.results.spec import RunSpec

Record = Mapping[str, Any]

#: Number of layers that most exhibits show, from the middle of a model: first layers may be routed
#: differently.
LAYERS = 3


def decoded(evidence: Evidence, runs: Runs) -> list[Record]:
    """Return the kept spans of one decoded token of the first run; empty if none were kept."""
    kept = evidence.store.timeline(runs[0]["run_id"]) if len(runs) else None
    return list(kept or ())


def prefill(evidence: Evidence, spec: RunSpec) -> list[Record]:
    """Run the first prompt of a cell again and return the spans of its prefill, which runs drop."""
    shown = spec.model_copy(update={"prompts": 1, "new_tokens": 2})
    with opened(shown, evidence.data_dir) as session:
        records = run(session, evidence.scratch, keep_timeline=True).timeline.records()
    (first, *_) = (one for one in records if one["kind"] == "token")
    return [one for one in records if one["start_us"] < first["start_us"]]


def shifted(records: Iterable[Record], layers: Iterable[int]) -> list[dict[str, Any]]:
    """Return the spans of some layers as exhibit rows whose time starts at the first span."""
    shown = {*layers}
    chosen = [one for one in records if one["layer"] in shown]
    origin = min((one["start_us"] for one in chosen), default=0)
    return [
        {
            "lane": one["lane"], "kind": one["kind"], "layer": one["layer"],
            "start": one["start_us"] - origin, "end": one["end_us"] - origin,
        }
        for one in chosen
    ]  # fmt: skip


def spans(
    panels: Mapping[str, Iterable[Record]], first: int, layers: int = LAYERS
) -> list[dict[str, Any]]:
    """Return the exhibit rows of several panels, each starting at its first span.

    Args:
        panels: records of spans, by title.
        first: index of the first layer that is shown.
        layers: number of layers that are shown.

    Raises MissingEvidenceError: a panel has no span of these layers.
    """
    rows = []
    for title, records in panels.items():
        chosen = shifted(records, range(first, first + layers))
        if not chosen:
            raise MissingEvidenceError(f"no timeline was kept of {title}")
        rows += [{"panel": title, **row} for row in chosen]
    return rows
