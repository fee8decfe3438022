"""Timelines of several systems beside each other: the same layers of one token, or of a prefill."""

from collections.abc import Iterable, Mapping
from typing import Any

from moebench.harness.one_run import opened, run
from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.results.spec import RunSpec

Record = Mapping[str, Any]

#: In the middle of a model: first layers may be routed otherwise.
LAYERS = 3


def decoded(evidence: Evidence, runs: Runs) -> list[Record]:
    """One decoded token of the first run, as it was kept; empty where none was."""
    kept = evidence.store.timeline(runs[0]["run_id"]) if len(runs) else None
    return list(kept or ())


def prefill(evidence: Evidence, spec: RunSpec) -> list[Record]:
    """The prefill of a cell's first prompt; runs keep none, so it is run once more."""
    shown = spec.model_copy(update={"prompts": 1, "new_tokens": 2})
    with opened(shown, evidence.data_dir) as session:
        records = run(session, evidence.scratch, keep_timeline=True).timeline.records()
    (first, *_) = (one for one in records if one["kind"] == "token")
    return [one for one in records if one["start_us"] < first["start_us"]]


def shifted(records: Iterable[Record], layers: Iterable[int]) -> list[dict[str, Any]]:
    """Rows of a timeline exhibit: the spans of some layers; time starts with the first one."""
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


def spans(panels: Mapping[str, Iterable[Record]], first: int) -> list[dict[str, Any]]:
    """Rows of a timeline exhibit of several panels; time starts with each panel's first span.

    Args:
        panels: records of spans, by title.
        first: of the `LAYERS` layers that are shown, as layers of the model.

    Raises:
        MissingEvidenceError: a panel has none of these layers.
    """
    rows = []
    for title, records in panels.items():
        chosen = shifted(records, range(first, first + LAYERS))
        if not chosen:
            raise MissingEvidenceError(f"no timeline was kept of {title}")
        rows += [{"panel": title, **row} for row in chosen]
    return rows
