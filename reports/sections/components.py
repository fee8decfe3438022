"""The table of components as text: published times and the cost model's charges for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HEADERS = (
    "component", "model", "machine", "software", "published", "charged", "ratio", "why", "source"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """Rows as text, and a sentence with the number of rows that agree."""

    rows: list[tuple[str, ...]]
    summary: str


def table(components: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of components from `substrate.analysis.components.documents`."""
    agree = sum(row["agrees"] for row in components)
    return Table(
        list(map(_row, components)),
        f"{agree} of {len(components)} within 15 % of the published time; the column 'why' "
        f"explains the other {len(components) - agree}",
    )


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    unit = "" if row["unit"] == "1" else f" {row['unit']}"
    published = " to ".join(f"{figure:.4g}" for figure in row["published"])
    return (
        row["what"], row["model"], row["machine"], row["software"], f"{published}{unit}",
        f"{row['charged']:.4g}{unit}", f"{row['ratio']:.2f}", row["why"] or "", row["source"],
    )  # fmt: skip
