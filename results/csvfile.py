"""CSV files: strict reading into frozen models, and writing that is safe for spreadsheets."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from moebench.substrate.errors import InputError
from moebench.substrate.text import is_formula, spreadsheet


class TableRow(BaseModel):
    """Base class of a CSV row: the file's columns are the model's fields, in their order."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Row = TypeVar("Row", bound=TableRow)


def read_rows(path: Path, row: type[Row]) -> list[Row]:
    """Read every row of a file, in order; an empty cell is None.

    The last columns may be absent if their fields have defaults.

    Raises:
        InputError: the file is absent or not UTF-8, its columns are not the model's, or a value is
            out of range; one line that names the file and the line.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = csv.reader(file, strict=True)
            names = _columns(path, next(lines, []), row)
            return [
                _parse(path, lines.line_num, [*map(_as_written, cells)], names, row)
                for cells in lines
            ]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error.reason}") from error
    except csv.Error as error:
        raise InputError(f"{path}:{lines.line_num}: not CSV: {error}") from error


def csv_text(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return header and rows as CSV with line feeds; what looks like a formula is quoted."""
    text = io.StringIO()
    safe = ([spreadsheet(cell) for cell in row] for row in [header, *rows])
    csv.writer(text, lineterminator="\n").writerows(safe)
    return text.getvalue()


def _as_written(cell: str) -> str:
    """Return a cell without the apostrophe that `spreadsheet` adds."""
    return cell[1:] if cell.startswith("'") and is_formula(cell[1:]) else cell


def _columns(path: Path, found: list[str], row: type[TableRow]) -> list[str]:
    """Return a file's columns after checking that they are the model's, in order."""
    wanted = list(row.model_fields)
    while wanted and wanted[-1] not in found and not row.model_fields[wanted[-1]].is_required():
        wanted.pop()
    missing = [name for name in wanted if name not in found]
    unknown = [name for name in found if name not in wanted]
    for problem, names in (("lacks the column", missing), ("has the unknown column", unknown)):
        if names:
            raise InputError(f"{path}:1: {problem} {', '.join(names)}; wanted: {','.join(wanted)}")
    if found != wanted:
        raise InputError(f"{path}:1: the columns must be, in this order: {','.join(wanted)}")
    return wanted


def _parse(path: Path, line: int, cells: list[str], names: list[str], row: type[Row]) -> Row:
    if len(cells) != len(names):
        raise InputError(f"{path}:{line}: {len(cells)} cells, {len(names)} columns")
    try:
        return row.model_validate(dict(zip(names, (cell or None for cell in cells), strict=True)))
    except ValidationError as error:
        raise InputError(f"{path}:{line}: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    """Return the first error that pydantic reports, in one line."""
    detail = error.errors()[0]
    where = ".".join(map(str, detail["loc"]))
    shown = "an empty cell" if detail["input"] is None else repr(detail["input"])
    return f"{where}: {shown}: {detail['msg']}" if where else detail["msg"]
