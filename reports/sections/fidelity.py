"""Errors of calibrated hardware profiles against measurements, from their validation.

``results/fidelity/`` holds tables of `moebench validate`, each with the hash of its profile.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from moebench.results.document import Document, dig

TABLES = Path(__file__).parents[2] / "results" / "fidelity"


@lru_cache
def tables(folder: Path = TABLES) -> dict[str, Document]:
    """Return the stored validation tables by the hash of their profile."""
    found = (json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json")))
    return {table["profile_hash"]: table for table in found}


def notes(run: Document) -> list[str]:
    """Return a note on the errors of a run's profile; empty if it was not validated."""
    table: dict[str, Any] | None = tables(TABLES).get(dig(run, "provenance.profile_hash") or "")
    if table is None:
        return []
    summary, systems = table["summary"], ", ".join(row["system"] for row in table["rows"])
    return [
        f"its profile was validated on {table['provenance']['created'][:10]} with "
        f"{table['model']}: simulated TPOT is off by {summary['tpot_mean']:.1%} in the mean and "
        f"{summary['tpot_worst']:.1%} at worst, TTFT by {summary['ttft_worst']:.1%} at worst; rank "
        f"correlation {summary['rank_correlation']:g} ({systems})"
    ]


HEADERS = (
    "system", "TPOT measured (ms)", "TPOT simulated (ms)", "error (%)", "TTFT measured (ms)",
    "TTFT simulated (ms)", "error (%)", "spread of TPOT (%)", "resident token (%)",
)  # fmt: skip

CAPTION = (
    "Results of moebench validate that ship: the same systems, prompts and lengths, measured on a "
    "computer and simulated with its calibrated profile. They hold for that computer alone. "
    "Resident token: error for the resident model around or during a system's runs, which shows "
    "the computer's drift since its calibration."
)


def parts() -> list[tuple[str, tuple[str, ...], list[list[str]]]]:
    """Return each stored table as text: title, headers, a row per system."""
    return [(_title(one), HEADERS, list(map(_row, one["rows"]))) for one in tables(TABLES).values()]


def _title(table: Document) -> str:
    summary = table["summary"]
    mean, worst = summary["tpot_mean"], summary["tpot_worst"]
    return (
        f"{table['profile']}, {table['model']}: TPOT off by {mean:.1%} in the mean, "
        f"{worst:.1%} at worst; rank correlation {summary['rank_correlation']:g}"
    )


def _row(row: Document) -> list[str]:
    cells = [str(row["system"])]
    for name in ("tpot_ms", "ttft_ms"):
        found = row[name]
        cells += [f"{found['measured']:.1f}", f"{found['simulated']:.1f}",
                  f"{100 * found['error']:+.1f}"]  # fmt: skip
    moved = " ".join(f"{100 * error:+.1f}" for error in row.get("resident", ()))
    return [*cells, f"{100 * row['spread']:.1f}", moved or "–"]
