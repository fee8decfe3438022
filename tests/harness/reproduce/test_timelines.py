"""Spans of a few layers, as rows of exhibits."""

from typing import Any

import pytest

from moebench.harness.reproduce.evidence import MissingEvidenceError
from moebench.harness.reproduce.timelines import shifted, spans


def span(layer: int, start: float, lane: str = "device") -> dict[str, Any]:
    return {"lane": lane, "kind": "expert", "layer": layer, "start_us": start,
            "end_us": start + 2.5, "rows": [1]}  # fmt: skip


def test_time_starts_at_the_first_span_that_is_shown() -> None:
    """The first span of the chosen layers is not the first in the list."""
    records = [span(4, 10), span(5, 30), span(6, 21, "link"), span(7, 40)]
    assert shifted(records, (5, 6)) == [
        {"lane": "device", "kind": "expert", "layer": 5, "start": 9, "end": 11.5},
        {"lane": "link", "kind": "expert", "layer": 6, "start": 0, "end": 2.5},
    ]
    assert shifted(records, iter([9])) == []


def test_panels_show_three_layers_unless_another_number_is_asked() -> None:
    panels = {"a": [span(n, 10 * n) for n in range(9)], "b": [span(4, 5)]}
    rows = spans(panels, 3)
    assert [(row["panel"], row["layer"], row["start"]) for row in rows] == [
        ("a", 3, 0), ("a", 4, 10), ("a", 5, 20), ("b", 4, 0),
    ]  # fmt: skip
    assert [row["layer"] for row in spans(panels, 4, layers=1)] == [4, 4]
    with pytest.raises(MissingEvidenceError, match="no timeline was kept of b"):
        spans(panels, 3, layers=1)
