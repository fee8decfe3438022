"""The runs' and the accuracy tables as CSV and LaTeX files, for a spreadsheet or a paper.

CSV holds numbers as they are stored, one table a file; LaTeX holds them as the report prints them,
one `tabular` (booktabs) a file, to be `\\input`.
"""

from collections.abc import Sequence
from pathlib import Path

from moebench.reports import evaluations, failures
from moebench.reports.accuracy import VERDICT_HEADERS, View
from moebench.reports.tables import COLUMNS, Document, cell, rows
from moebench.results.csvfile import csv_text
from moebench.results.store import Cell
from moebench.substrate.files import write_text

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "α": r"$\alpha$", "±": r"$\pm$", "–": "--", "<": r"$<$", ">": r"$>$", "·": r"$\cdot$",
}  # fmt: skip


def write_csv(
    runs: list[Document],
    directory: Path,
    accuracy: Sequence[View] | None = None,
    failed: Sequence[Cell] = (),
) -> list[Path]:
    """Write ``runs.csv``, and where there are any accuracy, evaluations and failures.

    Returns:
        The files written.

    Raises:
        InputError: one cannot be written.
    """
    lines = [["" if row[c.key] is None else str(row[c.key]) for c in COLUMNS] for row in rows(runs)]
    files = {"runs.csv": csv_text([column.key for column in COLUMNS], lines)}
    if accuracy:
        names = ("setting", "system", "scoring", "generated", "workload", "alpha", "n", "score",
                 "stderr", "chance", "agreement", "kl")  # fmt: skip
        cells = [row for view in accuracy for one in view.series for row in one.rows]
        values = [[getattr(row, name) for name in names] for row in cells]
        shown = [["" if v is None else str(v) for v in line] for line in values]
        files["accuracy.csv"] = csv_text(names, shown)
    if found := evaluations.lines(runs):
        files["evaluations.csv"] = csv_text(evaluations.HEADERS, found)
    if failed:
        files["failures.csv"] = csv_text(failures.HEADERS, failures.lines(failed))
    return _write(directory, files)


def write_latex(
    runs: list[Document], directory: Path, accuracy: Sequence[View] | None = None
) -> list[Path]:
    """Write ``runs.tex``, ``evaluations.tex`` and for each view ``accuracy-*``, ``verdict-*.tex``.

    Returns:
        The files written.

    Raises:
        InputError: one cannot be written.
    """
    lines = [[cell(column, row[column.key]) for column in COLUMNS] for row in rows(runs)]
    files = {"runs.tex": latex([column.header for column in COLUMNS], [lines])}
    if found := evaluations.lines(runs):
        files["evaluations.tex"] = latex(evaluations.HEADERS, [found])
    for view in accuracy or ():
        first = view.series[0]
        name = f"{first.setting}-{first.system}".replace("/", "-")
        groups = [block.text_lines for block in view.blocks]
        files[f"accuracy-{name}.tex"] = latex(view.headers, groups)
        verdicts = [view.verdict_lines]
        files[f"verdict-{name}.tex"] = latex(VERDICT_HEADERS, verdicts)
    return _write(directory, files)


def latex(headers: Sequence[str], groups: Sequence[Sequence[Sequence[str]]]) -> str:
    """A booktabs table of text cells, a rule between groups; every special character escaped."""
    body = "\\midrule\n".join("".join(map(_line, group)) for group in groups)
    columns = "l" * len(headers)
    top = f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{_line(headers)}\\midrule\n"
    return f"{top}{body}\\bottomrule\n\\end{{tabular}}\n"


def _line(cells: Sequence[str]) -> str:
    return " & ".join("".join(_SPECIAL.get(c, c) for c in text) for text in cells) + " \\\\\n"


def _write(directory: Path, files: dict[str, str]) -> list[Path]:
    for name, text in files.items():
        write_text(directory / name, text)
    return [directory / name for name in files]
