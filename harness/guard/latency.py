"""Compares latencies of the simulated machine with their references, exactly.

The virtual clock has no noise: of the same code, profile and routing every figure is equal to the
last bit.  Routing that is computed follows the arithmetic: on another one a decision may flip, and
a latency moves a little with it.  Routing that is replayed or drawn depends on the spec alone.
"""

from collections.abc import Mapping
from typing import Any

from moebench.harness.guard.verdicts import Finding, Verdict

#: Means of a run, in ms; None where a replay has no prompt.
FIGURES = ("tpot_ms", "ttft_ms", "e2e_ms")
#: How far a flipped decision moves a latency on other arithmetic, at most, as a share: our choice,
#: a fifth of what `harness.run.interval` calls much.
MOVED_BY_ROUNDING = 0.01

Cell = Mapping[str, Any]


def latency(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is guarded of a run's latencies; None where they were measured."""
    if not document["simulated"]:
        return None
    metrics = document["metrics"]
    means = {name: metrics[name] and metrics[name]["mean"] for name in ("tpot_ms", "ttft_ms")}
    return means | {
        "e2e_ms": metrics["e2e_ms"],
        "profile_hash": document["provenance"]["profile_hash"],
    }


def compare_latencies(now: Mapping[str, Cell], references: Mapping[str, Cell]) -> list[Finding]:
    """The verdict on the latencies of each cell that has a reference for them.

    Args:
        now, references: as `harness.guard.verdicts.compare` takes them.
    """
    return [
        _judge(f"{name}: latency", cell, references[name])
        for name, cell in now.items()
        if cell.get("latency")
        and (references.get(name) or {}).get("latency")
        and references[name]["data_hash"] == cell["data_hash"]
    ]


def _judge(name: str, now: Cell, reference: Cell) -> Finding:
    new, old = now["latency"], reference["latency"]
    moved = [key for key in FIGURES if new[key] != old[key]]
    if not moved:
        return Finding(name, Verdict.PASS, "equal to the last bit")
    said = ", ".join(f"{key} {_text(old[key])} -> {_text(new[key])} ms" for key in moved)
    if new["profile_hash"] != old["profile_hash"]:
        said += "; the machine's profile is another one"
    shares = [_share(new[key], old[key]) for key in moved]
    if _rounds_otherwise(now, reference) and max(map(abs, shares)) <= MOVED_BY_ROUNDING:
        return Finding(name, Verdict.PASS, f"{said}, as rounding may on other arithmetic")
    verdict = Verdict.REGRESSED if max(shares) > 0 else Verdict.IMPROVED
    return Finding(name, verdict, said)


def _rounds_otherwise(now: Cell, reference: Cell) -> bool:
    return bool(now["arithmetic"] != reference["arithmetic"])


def _share(new: float | None, old: float | None) -> float:
    """How much longer; a figure that came or went counts as a loss."""
    return (new - old) / old if new is not None and old else float("inf")


def _text(value: float | None) -> str:
    return "none" if value is None else f"{value:.9g}"
