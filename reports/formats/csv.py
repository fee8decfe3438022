"""The report's tables as files: CSV with stored numbers, LaTeX with displayed text."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moebench.reports.compare.text import records
from moebench.reports.formats import latex
from moebench.reports.report import Report
from moebench.reports.sections import evaluations, failures
from moebench.reports.sections import history as histories
from moebench.reports.sections.accuracy import View
from moebench.reports.sections.history import Since
from moebench.reports.sections.runs import fields, rows
from moebench.results.accuracy_table import AccuracyRow
from moebench.results.csvfile import csv_text
from moebench.results.document import Document
from moebench.results.store import Cell
from moebench.substrate.files import write_text


def write_csv(
    runs: Sequence[Document], report: Report, directory: Path, accuracy: Sequence[View] = (),
    failed: Sequence[Cell] = (), history: Since | None = None,
) -> list[Path]:  # fmt: skip
    """Write ``runs.csv``, and files of comparisons, accuracy, failures and more, if any.

    Returns:
        The files written.

    Raises InputError: a file cannot be written.
    """
    files = {"runs.csv": _csv(_runs(runs))}
    if report.compared.tables:
        files["comparisons.csv"] = _csv(
            [line for table in report.compared.tables for line in records(table)]
        )
    if accuracy:
        cells = [row for view in accuracy for one in view.series for row in one.rows]
        names = list(AccuracyRow.model_fields)
        files["accuracy.csv"] = _csv(
            [{name: getattr(row, name) for name in names} for row in cells]
        )
    if found := evaluations.lines(runs):
        files["evaluations.csv"] = csv_text(evaluations.HEADERS, found)
    if lines := failures.lines(failed):
        files["failures.csv"] = csv_text(failures.HEADERS, lines)
    if reasons := failures.reasons(failed):
        files["not-possible.csv"] = csv_text(failures.REASON_HEADERS, reasons)
    if history is not None:
        files["history.csv"] = _csv([*histories.records(history)])
    return _write(directory, files)


def _runs(runs: Sequence[Document]) -> list[dict[str, Any]]:
    """Return a row per run: the report's columns, then every field of its spec."""
    return [
        {**row, **{f"spec.{name}": value for name, value in fields(run["spec"]).items()}}
        for run, row in zip(runs, rows(runs), strict=True)
    ]


def write_latex(report: Report, directory: Path) -> list[Path]:
    """Write each table as a file for ``\\input``, and ``report.tex``, a document with all tables.

    Returns:
        The files written.

    Raises InputError: a file cannot be written.
    """
    files = {f"{name}.tex": latex.latex(table, name) for name, table in report.tables.items()}
    files["report.tex"] = latex.document(report.tables)
    return _write(directory, files)


def _csv(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return CSV with a column for each key of any row; None is empty, numbers have all digits."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    texts = [
        ["" if (value := line.get(name)) is None else str(value) for name in names]
        for line in lines
    ]
    return csv_text(names, texts)


def _write(directory: Path, files: dict[str, str]) -> list[Path]:
    for name, text in files.items():
        write_text(directory / name, text)
    return [directory / name for name in files]
