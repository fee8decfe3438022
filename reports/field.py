"""The page of the field sweep, `docs/field.md`.

``make field`` writes it from ``results/field/field.csv``: nothing is run.  ``python -m
moebench.reports.field STORE`` first writes the file from a store that holds the sweep.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from moebench.reports.sections import field
from moebench.reports.text import counted, markdown, text_table
from moebench.results.field import FILE, FieldRow, read_field, rows_of, unfinished, write_field
from moebench.results.store import Store
from moebench.substrate.errors import MoeBenchError, UsageError
from moebench.substrate.files import write_text
from moebench.substrate.models.catalogue import model_shape
from moebench.systems.options import build

PAGE = "docs/field.md"
GENERATED = "This page is generated from `results/field/field.csv`: `make field`."


def page(rows: Sequence[FieldRow]) -> str:
    """Return the page as Markdown."""
    places = len({row.place for row in rows})
    systems = len({row.name for row in rows})
    tables = [
        text_table(field.TITLE, field.HEADERS, field.lines(rows), notes=[field.caption()]),
        text_table(field.SUMMARY_TITLE, field.SUMMARY, field.summary(rows)),
        text_table(field.REASONS_TITLE, field.REASONS, field.reasons(rows)),
    ]
    drawn = [markdown(table).replace("### ", "## ", 1) for table in tables if table.rows]
    return "\n".join([
        "# Rivals and papers on six machines", "", GENERATED,
        f"The sweep `field` ([sweeps](sweeps.md)) has {counted(systems, 'system')} at "
        f"{counted(places, 'place')}.", "", *drawn,
    ])  # fmt: skip


def refusals(rows: Sequence[FieldRow], batch: int = 1) -> list[FieldRow]:
    """Return a row for each system and place without one, if the system refuses the model.

    A sweep leaves such cells out before it stores anything.
    """
    known = {(row.place, row.name) for row in rows}
    places = dict.fromkeys(row.place for row in rows)
    systems = {row.name: row for row in rows}
    found = []
    for place in places:
        for name, row in systems.items():
            why = None if (place, name) in known else _why_not(row, place.model, batch)
            if why is not None:
                given = {"lossless": None, "tpot_ms": None, "reason": why}
                found.append(row.model_copy(update={**place._asdict(), **given}))
    return found


def _why_not(row: FieldRow, model: str, batch: int) -> str | None:
    """Return why a system refuses a model, or None."""
    name, _, variant = row.system.partition(" (")
    overrides = dict(pair.split("=", 1) for pair in (row.options or "").split())
    try:
        made = build(name, overrides, variant.rstrip(")") or "published")
        return made.why_not(model_shape(model), batch)
    except MoeBenchError:
        return None


def from_store(folder: Path) -> list[FieldRow]:
    """Return the rows of a store's field sweep, of places at which all cells have ended.

    Raises UsageError: the store holds none.
    """
    store = Store(folder)
    waiting = unfinished(store.cells("queued"))
    found = rows_of(store.runs(brief=True), store.cells("failed"))
    rows = [row for row in found if row.place not in waiting]
    if not any(row.tpot_ms for row in rows):
        raise UsageError(
            f"{folder}: no place with a context where all cells have ended; make them: "
            f"moebench sweep field --store {folder}"
        )
    return [*rows, *refusals(rows)]


def main(arguments: Sequence[str]) -> int:
    """Write the page in the current folder; before that the file, if a store is given.

    Returns:
        the exit code: 2, and one line, for a store without the sweep.
    """
    try:
        if arguments:
            write_field(from_store(Path(arguments[0])))
        write_text(Path(PAGE), page(read_field(FILE)))
    except MoeBenchError as error:
        print(f"moebench: {error}", file=sys.stderr)
        return 2
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
