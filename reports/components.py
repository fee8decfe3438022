"""The table of components: published times beside what the cost model charges for them."""

from dataclasses import dataclass
from typing import Any

from moebench.substrate.analysis.components import TOLERANCE, Comparison, compare, components

HEADERS = (
    "component",
    "model",
    "machine",
    "software",
    "published",
    "charged",
    "ratio",
    "why",
    "source",
)


@dataclass(frozen=True, slots=True)
class Line:
    """One row as text, and whether it agrees."""

    cells: tuple[str, ...]
    agrees: bool


def rows() -> list[Line]:
    """Every component as text, in the order of the catalogue."""
    return [_line(compare(component)) for component in components()]


def documents() -> list[dict[str, Any]]:
    """Every component with its charge, ratio and verdict; figures in the component's unit."""
    found = map(compare, components())
    return [
        {
            **one.component.model_dump(mode="json", exclude={"ops", "over"}),
            "charged": one.charged,
            "ratio": one.ratio,
            "agrees": one.agrees,
        }
        for one in found
    ]


def summary(lines: list[Line]) -> str:
    """How many agree, in one sentence."""
    agree = sum(line.agrees for line in lines)
    return (
        f"{agree} of {len(lines)} within {TOLERANCE:.0%} of what is published; of the other "
        f"{len(lines) - agree} the column says why not"
    )


def _line(one: Comparison) -> Line:
    c = one.component
    unit = "" if c.unit == "1" else f" {c.unit}"
    published = " to ".join(f"{figure:.4g}" for figure in c.published)
    return Line(
        (
            c.what, c.model, c.machine, c.software, f"{published}{unit}",
            f"{one.charged:.4g}{unit}", f"{one.ratio:.2f}", c.why or "", c.source,
        ),
        one.agrees,
    )  # fmt: skip
