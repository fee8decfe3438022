"""A table of text, for every output but the page: a terminal, Markdown, LaTeX."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

Mark = Literal["", "best", "second"]


class TextTable(NamedTuple):
    """Cells of text.

    Attributes:
        said: what holds for all of it, as one line under the title; may be empty.
        groups: rows, group by group; each has a cell for each header.
        marks: of the cells that are best or second best in their column, by group, row and column.
    """

    title: str
    headers: tuple[str, ...]
    groups: tuple[tuple[tuple[str, ...], ...], ...]
    said: str = ""
    marks: Mapping[tuple[int, int, int], Mark] = {}

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Of all groups."""
        return [row for group in self.groups for row in group]


def text_table(
    title: str, headers: Sequence[str], rows: Iterable[Sequence[str]], said: str = ""
) -> TextTable:
    """A table of one group without marks."""
    return TextTable(title, tuple(headers), (tuple(map(tuple, rows)),), said)


def markdown(table: TextTable) -> str:
    """For a document; the best of a column is bold, the second best in italics."""
    around = {"": "", "best": "**", "second": "*"}
    body = [
        [
            f"{(m := around[table.marks.get((g, r, c), '')])}{_plain(text)}{m}"
            for c, text in enumerate(row)
        ]
        for g, group in enumerate(table.groups)
        for r, row in enumerate(group)
    ]
    rows = [list(map(_plain, table.headers)), ["---"] * len(table.headers), *body]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    said = [_plain(table.said), ""] if table.said else []
    return "\n".join([f"### {_plain(table.title)}", "", *said, *lines, ""])


#: What Markdown would take for its own.
_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\|*_`<>[]"} | {"\n": " "})


def _plain(text: str) -> str:
    return text.translate(_SPECIAL)
