"""Tables of text for terminal, Markdown and LaTeX."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from moebench.substrate.text import markdown as plain

Mark = Literal["", "best", "second"]

MISSING = "–"  # an en dash, the usual mark of an empty cell

#: Beginning of a cell in a column of numbers, or an empty cell.
_NUMBER = re.compile(r"[-+−]?\d|–$|n/a$|$")


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 run``, ``2,000 runs``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class TextTable(NamedTuple):
    """A table of text with groups of rows and marked cells.

    Attributes:
        said: facts about the whole table, as one line under the title; may be empty.
        groups: rows by group, with a cell for each header.
        marks: best and second best cells of their column, by group, row and column.
        notes: explanations below the table.
        ties: cells that share the best or second rank with others.
        lossy: rows of lossy systems, by group and row; a table for a paper marks them.
        names: what short headers stand for.
    """

    title: str
    headers: tuple[str, ...]
    groups: tuple[tuple[tuple[str, ...], ...], ...]
    said: str = ""
    marks: Mapping[tuple[int, int, int], Mark] = {}
    notes: tuple[str, ...] = ()
    ties: frozenset[tuple[int, int, int]] = frozenset()
    lossy: frozenset[tuple[int, int]] = frozenset()
    names: Mapping[str, str] = {}

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The rows of all groups."""
        return [row for group in self.groups for row in group]

    @property
    def numbers(self) -> list[bool]:
        """For each column, whether all of its cells are numbers."""
        return [all(map(_NUMBER.match, column)) for column in zip(*self.rows, strict=True)]


def text_table(
    title: str, headers: Sequence[str], rows: Iterable[Sequence[str]], said: str = "",
    notes: Iterable[str] = (),
) -> TextTable:  # fmt: skip
    """Return a table of one group without marks."""
    return TextTable(title, tuple(headers), (tuple(map(tuple, rows)),), said, {}, tuple(notes))


def markdown(table: TextTable) -> str:
    """Return a table as Markdown; the best of a column is bold, the second best in italics."""
    around = {"": "", "best": "**", "second": "*"}
    lines = [
        [
            (mark := around[table.marks.get((g, r, c), "")]) + plain(text) + mark
            for c, text in enumerate(row)
        ]
        for g, group in enumerate(table.groups)
        for r, row in enumerate(group)
    ]
    rules = ["---:" if number else "---" for number in table.numbers]
    rows = [[plain(header) for header in table.headers], rules, *lines]
    drawn = ["| " + " | ".join(row) + " |" for row in rows]
    above = [plain(table.said), ""] if table.said else []
    below = [text for note in table.notes for text in ("", plain(note))]
    return "\n".join([f"### {plain(table.title)}", "", *above, *drawn, *below, ""])
