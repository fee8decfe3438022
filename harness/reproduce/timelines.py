"""Timelines of several systems beside each other: the same layers of one decoded token."""

from collections.abc import Mapping
from typing import Any

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs

#: In the middle of a model: first layers may be routed otherwise.
LAYERS = 3


def spans(evidence: Evidence, runs: Mapping[str, Runs], first: int) -> list[dict[str, Any]]:
    """Rows of a timeline exhibit, from the kept pictures; time starts with each panel's first span.

    Args:
        runs: by the panel's title; the first run of each is shown.
        first: of the `LAYERS` layers that are shown, as layers of the model.

    Raises:
        MissingEvidenceError: no picture was kept of a run.
    """
    rows = []
    for title, ones in runs.items():
        kept = evidence.store.timeline(ones[0]["run_id"]) if len(ones) else None
        chosen = [one for one in kept or () if first <= one["layer"] < first + LAYERS]
        if not chosen:
            raise MissingEvidenceError(f"no timeline was kept of {title}")
        origin = min(one["start_us"] for one in chosen)
        rows += [
            {
                "panel": title, "lane": one["lane"], "kind": one["kind"], "layer": one["layer"],
                "start": one["start_us"] - origin, "end": one["end_us"] - origin,
            }
            for one in chosen
        ]  # fmt: skip
    return rows
