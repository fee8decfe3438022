"""Builders of exhibits: tables, figures and timelines as data, and the axes that papers share."""

from collections.abc import Iterable
from typing import Any

from moebench.results.claims import Axis, Exhibit, Form

Row = dict[str, Any]


def axis(field: str, title: str = "", unit: str = "", *, log: bool = False) -> Axis:
    """Return an axis; its title is the name of its field by default."""
    return Axis(field=field, title=title or field, unit=unit, log=log)


MODEL, SYSTEM, SETTING = axis("model"), axis("system"), axis("setting")


def table(
    id: str, place: str, title: str, columns: Iterable[Axis], rows: Iterable[Row],
    paper: Iterable[Row] = (), badge: str = "counted", note: str = "",
) -> Exhibit:  # fmt: skip
    """Return a table exhibit; ``paper`` holds the rows that the paper prints."""
    return Exhibit(
        id=id, place=place, title=title, form="table", columns=tuple(columns), rows=tuple(rows),
        paper_rows=tuple(paper), badge=badge, note=note,
    )  # fmt: skip


def figure(
    id: str, place: str, title: str, form: Form, axes: tuple[Axis, Axis], rows: Iterable[Row],
    badge: str = "counted", *, paper: Iterable[Row] = (), **more: Any,
) -> Exhibit:  # fmt: skip
    """Return a figure exhibit with an x and a y axis.

    Args:
        paper: the rows that the paper states.
        more: other fields of `Exhibit`: series, facet, colour, note.
    """
    return Exhibit(
        id=id, place=place, title=title, form=form, x=axes[0], y=axes[1], rows=tuple(rows),
        paper_rows=tuple(paper), badge=badge, **more,
    )  # fmt: skip


def timeline(
    id: str, place: str, title: str, rows: Iterable[Row], badge: str, note: str,
    facet: str | None = "panel",
) -> Exhibit:  # fmt: skip
    """Return a timeline exhibit, with a bar for each span and a line for each lane."""
    axes = axis("start", "time", "µs"), Axis(field="lane", title="")
    return figure(
        id, place, title, "timeline", axes, rows, badge, series="kind", facet=facet, note=note
    )


def heat_rows(shares: Iterable[Iterable[float]], y: str, x: str) -> list[Row]:
    """Return the rows of a heat map, in percent, from a matrix of shares."""
    return [
        {y: row, x: column, "share": round(100 * float(share), 2)}
        for row, of_row in enumerate(shares)
        for column, share in enumerate(of_row)
    ]
