"""The documents about reproduced claims: a front page, and one file of full tables for each paper.

``python -m moebench.reports.reproduction`` (``make reproduction``) writes the files of this
repository from ``results/claims/``: nothing is measured.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from moebench.reports.sections.claims import CAPTION, made, summary
from moebench.reports.sections.claims_details import Block, details
from moebench.reports.sections.claims_front import HEADLINES, HOW_TO_READ, WINNERS, front, made_of
from moebench.reports.text import MISSING, counted
from moebench.results.claims import EQUAL_MEMORY, Exhibit, PaperResult, read, read_exhibit
from moebench.substrate.files import write_text
from moebench.substrate.text import markdown as plain

GENERATED = "This page is generated from `results/claims/`: `make reproduction`."

#: Places of the documents in the repository.
FRONT_PAGE = "docs/reproduction.md"
FULL_TABLES = "docs/reproduction/{}.md"
README = "results/claims/README.md"

#: A source that is not a paper: its headlines are on its own page, with their conditions.
FIELD = "field"


def documents(
    results: Sequence[PaperResult], equal_memory: Exhibit | None = None
) -> dict[str, str]:
    """Return all documents by their paths in the repository."""
    found = {FRONT_PAGE: front_page(results, equal_memory)}
    found |= {FULL_TABLES.format(result.paper): full_tables(result) for result in results}
    return found | {README: readme(results)}


def write(root: Path, claims: Path) -> list[Path]:
    """Write all documents of a repository from a folder of claims; return their files.

    Raises InputError: the claims are damaged, or a file cannot be written.
    """
    found = documents(read(claims), read_exhibit(EQUAL_MEMORY, claims))
    for name, text in found.items():
        write_text(root / name, text)
    return [root / name for name in found]


def one_document(results: Sequence[PaperResult]) -> str:
    """Return the front page and the full tables of some papers as one Markdown document."""
    return "\n".join([
        front_page(results, linked=False), *(full_tables(one, linked=False) for one in results)
    ])  # fmt: skip


# ----------------------------------------------------------------------------- front page


def front_page(
    results: Sequence[PaperResult], equal_memory: Exhibit | None = None, linked: bool = True
) -> str:
    """Return the front page as Markdown.

    Args:
        linked: whether it is a page of the documentation, which links to the full tables.
    """
    found = front(results, equal_memory)
    parts = ["# The papers' claims, measured here", ""]
    if linked:
        parts += [GENERATED, "The same is in `moebench report --html`.", ""]
    parts += [
        *made_of(results),
        "",
        f"**{found.said}**",
        "",
        *_table(found.columns, found.counts),
        "",
    ]
    parts += ["How to read this page:", "", *(f"- {plain(line)}" for line in HOW_TO_READ), ""]
    for result, rows in found.headlines:
        parts += [f"## {plain(result.title)}", ""]
        if result.paper != FIELD:
            parts += [*_table(*_headlines(rows)), ""]
        elif linked:
            parts += ["What engines, users and abstracts disagree about.", ""]
        if linked:
            parts += [_link(result), ""]
    if found.winners:
        parts += ["## The fastest systems at equal memory", ""]
        parts += [*_table(WINNERS, map(_won, found.winners)), "", plain(found.note), ""]
    return "\n".join(parts)


def _link(result: PaperResult) -> str:
    return (
        f"[{plain(result.title)}: all {counted(len(result.claims), 'claim')}]"
        f"(reproduction/{result.paper}.md), with conditions, explanations and counter-experiments"
    )


def _headlines(rows: Iterable[Sequence[str]]) -> tuple[Sequence[str], list[list[str]]]:
    """Return headlines as Markdown cells; the number that a verdict depends on is with it."""
    verdict, depends = HEADLINES.index("verdict"), HEADLINES.index("depends on")
    cells = []
    for row in rows:
        line = list(map(plain, row))
        if row[depends] != MISSING:
            line[verdict] += f"; *depends on {line[depends]}*"
        cells.append([cell for i, cell in enumerate(line) if i != depends])
    return [name for name in HEADLINES if name != "depends on"], cells


def _won(row: Sequence[str]) -> list[str]:
    """Return a row of winners as Markdown cells; the fastest are bold."""
    bold = (WINNERS.index("fastest"), WINNERS.index("fastest lossless"))
    return [f"**{plain(cell)}**" if i in bold else plain(cell) for i, cell in enumerate(row)]


# ----------------------------------------------------------------------------- full tables


def full_tables(result: PaperResult, linked: bool = True) -> str:
    """Return all tables of a paper's claims as Markdown."""
    parts = [f"# {plain(result.title)}: all claims, measured here", ""]
    if linked:
        parts += [GENERATED, "The front page: [the papers' claims](../reproduction.md).", ""]
    parts += [plain(made(result)), "", f"{summary([result])}.", "", plain(CAPTION), ""]
    under = ""
    for block in details(result):
        if block.below and not under:
            under = "Claims"
            parts += [f"## {under}", ""]
        parts += _block(block)
    return "\n".join(parts)


def _block(block: Block) -> list[str]:
    head = "###" if block.below else "##"
    said = [plain(block.said), ""] if block.said else []
    rows = [list(map(plain, row)) for row in block.rows]
    return [f"{head} {plain(block.title)}", "", *said, *_table(block.headers, rows), ""]


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table of cells that are Markdown already."""
    return [_row(headers), _row(["---"] * len(headers)), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# ----------------------------------------------------------------------------- readme


def readme(results: Sequence[PaperResult]) -> str:
    """Return the README of the folder of claims: how its files were made."""
    head = ("file", "made by", "run", "claims")
    rows = [
        [f"`{one.paper}.json`", _command(one), plain(made(one)), plain(summary([one]))]
        for one in results
    ]
    return "\n".join([
        "# The papers' claims, measured here", "",
        GENERATED, "",
        *_table(head, rows), "",
        "The fields are described in `results/claims.py`; the verdicts, in",
        "[docs/reproduction.md](../../docs/reproduction.md).  `equal-memory.json`, if it is here,",
        "is the table of all systems at equal memory.  To renew the files, then the documents:", "",
        "```", "moebench reproduce all --data-dir DIR --out results/claims", "make reproduction",
        "```", "",
    ])  # fmt: skip


def _command(result: PaperResult) -> str:
    return "`moebench reproduce all" + (" --quick`" if result.quick else "`")


def main() -> None:
    """Write the documents of the repository in the current folder."""
    for file in write(Path(), Path("results/claims")):
        print(file)


if __name__ == "__main__":
    main()
