"""Failed cells of sweeps, as rows of text for the terminal, the page and the CSV file."""

from collections.abc import Mapping, Sequence
from typing import Any

from moebench.results.document import routing_of, system_of
from moebench.results.store import Cell

HEADERS = ("cell", "what", "error", "traceback")


def lines(cells: Sequence[Cell]) -> list[list[str]]:
    """Return one row per cell; the traceback is a file in the store's folder."""
    return [[c.cell_id, title(c.spec), c.error or "", c.traceback or ""] for c in cells]


def title(spec: Mapping[str, Any]) -> str:
    """Return a cell's title: the parts of its spec that usually differ between cells."""
    options = " ".join(f"{key}={value}" for key, value in (spec.get("overrides") or {}).items())
    place = spec.get("setting") or f"{spec.get('model')} on {spec.get('machine')}"
    batch = f"×{spec.get('batch', 1)}"
    routing = routing_of(spec)
    parts = [
        # A cell of a damaged store may lack every field.
        system_of({"system": "?", **spec}), options, place, spec.get("workload"),
        None if routing == "model" else routing, batch,
    ]  # fmt: skip
    return " ".join(filter(None, parts))
