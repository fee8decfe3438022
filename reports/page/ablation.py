"""Ablations among a table's rows: chains of systems with one changed decision less per step."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

Plain = dict[str, Any]


def ablations(rows: Sequence[Plain]) -> Iterator[tuple[str, list[Plain]]]:
    """Yield the name and the steps of each system with a chain of three or more.

    Other bases come first.  `ablations` in templates/js/figures.js does the same.
    """
    families: dict[str, list[Plain]] = {}
    for row in rows:
        if "tpot_ms" in row:
            families.setdefault(row["base"], []).append(row)
    for base, ones in families.items():
        chain, others = _chain(ones)
        if len(chain) > 2:
            first = [_step(row, f"other base: {_named(row)}", None) for row in others]
            steps = [_step(chain[0], _named(chain[0]), None)]
            for before, row in pairwise(chain):
                own = [key for key in before["changes"] if key not in row["changes"]]
                steps.append(_step(row, f"+ its own {' and '.join(own)}", before))
            yield base, [step | {"rank": rank} for rank, step in enumerate([*first, *steps])]


def _chain(rows: Sequence[Plain]) -> tuple[list[Plain], list[Plain]]:
    """Return the longest chain from the most reduced to the whole system, and the other rows."""
    whole = min(
        (row for row in rows if not row["changes"]),
        key=lambda row: (-row["usual"], row["alpha"] or 0),
        default=None,
    )
    if whole is None:
        return [], []
    # Steps have the whole system's α, or none if they route exactly.
    parts = [row for row in rows if row["changes"] and row["alpha"] in (whole["alpha"], None)]
    parts.sort(key=lambda row: len(row["changes"]))
    chains = [[whole]]
    for row in parts:
        below = [chain for chain in chains if chain[0]["changes"].items() < row["changes"].items()]
        if below:
            chains.append([row, *max(below, key=len)])
    chain = max(chains, key=len)
    return chain, [row for row in parts if row not in chain]


def _named(row: Plain) -> str:
    """Return the changed decisions, two a line."""
    texts = [f"{key}={value}" for key, value in row["changes"].items()]
    return "|".join(" ".join(texts[at : at + 2]) for at in range(0, len(texts), 2))


def _step(row: Plain, name: str, before: Plain | None) -> Plain:
    text, kind = f"{row['v']['tpot_ms']['text']} ms", "base"
    if before is not None:
        change = row["tpot_ms"] / before["tpot_ms"] - 1
        text += f", {'+' if change > 0 else '−'}{abs(change):.1%}".replace("%", " %")
        kind = "faster" if change <= 0 else "slower"
    return {
        "step": name, "tpot": row["tpot_ms"], "text": text, "kind": kind,
        "system": row["system"], "badge": row["badge"],
    }  # fmt: skip
