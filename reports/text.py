"""A table of text, for every output but the page: a terminal, Markdown, LaTeX."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

Mark = Literal["", "best", "second"]

#: How a cell of numbers begins, where it is not empty.
_NUMBER = re.compile(r"[-+−]?\d|–$|n/a$|$")


class TextTable(NamedTuple):
    """Cells of text.

    Attributes:
        said: what holds for all of it, as one line under the title; may be empty.
        groups: rows, group by group; each has a cell for each header.
        marks: of the cells that are best or second best in their column, by group, row and column.
        notes: how it is to be read, a sentence or two each.
    """

    title: str
    headers: tuple[str, ...]
    groups: tuple[tuple[tuple[str, ...], ...], ...]
    said: str = ""
    marks: Mapping[tuple[int, int, int], Mark] = {}
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Of all groups."""
        return [row for group in self.groups for row in group]

    @property
    def numbers(self) -> list[bool]:
        """Of each column, whether all of its cells are numbers."""
        return [all(map(_NUMBER.match, column)) for column in zip(*self.rows, strict=True)]


def text_table(
    title: str,
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    said: str = "",
    notes: Iterable[str] = (),
) -> TextTable:
    """A table of one group without marks."""
    return TextTable(title, tuple(headers), (tuple(map(tuple, rows)),), said, {}, tuple(notes))


def markdown(table: TextTable) -> str:
    """For a document; the best of a column is bold, the second best in italics."""
    around = {"": "", "best": "**", "second": "*"}
    lines = [
        [
            (mark := around[table.marks.get((g, r, c), "")]) + _plain(text) + mark
            for c, text in enumerate(row)
        ]
        for g, group in enumerate(table.groups)
        for r, row in enumerate(group)
    ]
    rules = ["---:" if number else "---" for number in table.numbers]
    rows = [[_plain(header) for header in table.headers], rules, *lines]
    drawn = ["| " + " | ".join(row) + " |" for row in rows]
    above = [_plain(table.said), ""] if table.said else []
    below = [text for note in table.notes for text in ("", _plain(note))]
    return "\n".join([f"### {_plain(table.title)}", "", *above, *drawn, *below, ""])


#: What Markdown would take for its own.
_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\|*_`<>[]"} | {"\n": " "})


def _plain(text: str) -> str:
    return text.translate(_SPECIAL)
