"""Compares latencies of the simulated machine with their references, exactly.

The virtual clock has no noise: with the same code, profile and routing every figure is equal to the
last bit.  Replayed or drawn routing depends on the spec alone: this holds on every computer.
Computed routing depends on the arithmetic: other rounding may flip a decision.  A latency that
differs there is judged by the cell's *twin*, which has replayed or drawn routing.
"""

from collections.abc import Mapping
from typing import Any

from moebench.harness.guard.verdicts import Finding, Verdict

#: Means of a run, in ms; None if a replay has no prompt.
FIGURES = ("tpot_ms", "ttft_ms", "e2e_ms")
#: The `arithmetic` of a cell whose routing is replayed or drawn.
NOTHING_COMPUTED = "none"

Cell = Mapping[str, Any]


def latency(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the latencies of a run that are checked; None if they were measured."""
    if not document["simulated"]:
        return None
    metrics = document["metrics"]
    means = {name: metrics[name] and metrics[name]["mean"] for name in ("tpot_ms", "ttft_ms")}
    return means | {
        "e2e_ms": metrics["e2e_ms"],
        "profile_hash": document["provenance"]["profile_hash"],
    }


def compare_latencies(now: Mapping[str, Cell], references: Mapping[str, Cell]) -> list[Finding]:
    """Return the verdict on the latencies of each cell that has a reference for them.

    Args:
        now, references: as `harness.guard.verdicts.compare` takes them.
    """
    return [
        _judge(f"{name}: latency", cell, references[name], _twin(cell, now))
        for name, cell in now.items()
        if cell.get("latency")
        and (references.get(name) or {}).get("latency")
        and references[name]["data_hash"] == cell["data_hash"]
    ]


def _twin(cell: Cell, cells: Mapping[str, Cell]) -> str | None:
    """Return the name of a cell with the same system on the same machine, and nothing computed."""
    for name, other in cells.items():
        if other["arithmetic"] == NOTHING_COMPUTED and other.get("subject") == cell.get("subject"):
            return name
    return None


def _judge(name: str, now: Cell, reference: Cell, twin: str | None) -> Finding:
    new, old = now["latency"], reference["latency"]
    moved = [key for key in FIGURES if new[key] != old[key]]
    if not moved:
        return Finding(name, Verdict.PASS, "equal to the last bit", "latency")
    said = ", ".join(f"{key} {_text(old[key])} -> {_text(new[key])} ms" for key in moved)
    if new["profile_hash"] != old["profile_hash"]:
        said += "; the machine's profile is another one"
    if now["arithmetic"] != reference["arithmetic"]:
        said += "; sums round differently here, which may flip a choice of experts"
        if twin is not None:
            return Finding(name, Verdict.PASS, f"{said}; judged by {twin}", "latency")
        said += "; add the same cell with routing: drawn or a trace, whose latency is exact"
        return Finding(name, Verdict.NOT_MEASURED, said, "latency")
    shares = [_share(new[key], old[key]) for key in moved]
    verdict = Verdict.REGRESSED if max(shares) > 0 else Verdict.IMPROVED
    return Finding(name, verdict, said, "latency")


def _share(new: float | None, old: float | None) -> float:
    """Return the relative increase; infinite if either figure is missing."""
    return (new - old) / old if new is not None and old else float("inf")


def _text(value: float | None) -> str:
    return "none" if value is None else f"{value:.9g}"
