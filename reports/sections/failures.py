"""Cells of sweeps without a run, as rows of text for the terminal, the page and the CSV file.

A cell *failed*, or it is *not possible here*: its system, model, routing or memory do not fit.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from moebench.results.document import routing_of, system_of
from moebench.results.store import Cell

HEADERS = ("cell", "what", "error", "traceback")


#: Columns of cells that are not possible here, by reason.
REASON_HEADERS = ("not possible here because", "cells", "which")
#: Most cells that are named for a reason.
NAMED = 3


def lines(cells: Sequence[Cell]) -> list[list[str]]:
    """Return one row per failed cell; the traceback is a file in the store's folder."""
    return [
        [c.cell_id, title(c.spec), c.error or "", c.traceback or ""]
        for c in cells if not c.impossible
    ]  # fmt: skip


def reasons(cells: Sequence[Cell]) -> list[list[str]]:
    """Return one row for each reason why cells are not possible here, the most frequent first."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        if cell.impossible:
            why, system = cell.error or "", str(cell.spec.get("system"))
            # Systems that lack the same are one reason.
            if why.startswith(f"{system} "):
                why = "the system" + why.removeprefix(system)
            found.setdefault(why, []).append(title(cell.spec))
    order = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        [
            why,
            str(len(which)),
            "; ".join(sorted(which)[:NAMED]) + ("; ..." if len(which) > NAMED else ""),
        ]
        for why, which in order
    ]


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
