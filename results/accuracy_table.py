"""The committed accuracy tables: scores, agreement and KL of the scale models by α.

    results/accuracy/alpha.csv           one row per cell (system, workload, α)
    results/accuracy/alpha.items.csv     which examples each cell got right, for paired tests

Scores, standard errors and chance are in percent, agreement and cache ratio are shares, KL is in
nats per decoded token.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError

from moebench.results.csvfile import TableRow, csv_text, read_rows
from moebench.results.document import dig
from moebench.results.paper_tables import Percent, Share
from moebench.results.spec import RunSpec
from moebench.substrate.errors import InputError
from moebench.substrate.files import write_text

#: The committed α table (SMoE, Table IV, on the scale models).
ALPHA_TABLE = Path(__file__).parent / "accuracy" / "alpha.csv"


def _bool(value: object) -> object:
    """Return a bool for "true" or "false" alone; pydantic would also accept "yes" and "1"."""
    if isinstance(value, bool) or value in ("true", "false"):
        return value in (True, "true")
    raise ValueError("expected true or false")


class AccuracyRow(TableRow):
    """A row of the accuracy table: a system's scores at one α on one workload.

    Attributes:
        generated: whether the examples are generated exercises rather than a real dataset.
        category: category of the workload in SMoE section VI-A.
        alpha: SMoE's substitution threshold; 0 is the model's own top-k.
        scoring: how the answers were produced.
        n: scored examples.
        score, stderr: percent of right answers and the standard error of that share.
        chance: score of guessing in percent; None if there are no options to choose from.
        agreement: share of decoded tokens that the lossless model would choose too.
        kl: mean KL divergence from the lossless model, nats per decoded token.
        cache_ratio: share of active experts found on the device during decode.
        cut: answers that reached the allowed length before they ended; None if none was generated,
            and in tables of earlier versions.
    """

    setting: str
    model: str
    system: str
    workload: str
    generated: Annotated[bool, BeforeValidator(_bool)]
    category: str
    alpha: float = Field(ge=0)
    scoring: str
    n: int = Field(ge=1)
    score: Percent
    stderr: float = Field(ge=0, le=50)
    chance: Percent | None
    agreement: Share | None
    kl: float | None = Field(ge=0)
    cache_ratio: Share | None
    seed: int = Field(ge=0)
    data_hash: str
    weights_hash: str
    code_hash: str
    run_id: str
    torch: str
    cut: int | None = Field(default=None, ge=0)


class Key(NamedTuple):
    """Fields that identify a row of the table, in sorting order."""

    setting: str
    generated: bool
    workload: str
    alpha: float
    scoring: str
    system: str


class ItemRow(TableRow):
    """Right (1) and wrong (0) answers of a run, in the order of its examples."""

    run_id: str
    items: str = Field(pattern="^[01]+$")


#: Decimals of each number.
_DECIMALS = {
    "alpha": 4, "score": 4, "stderr": 4, "chance": 4, "agreement": 6, "kl": 6, "cache_ratio": 6,
}  # fmt: skip

#: Path in a run's document of each column that a row repeats.
_PATHS = {
    **{name: f"spec.{name}" for name in AccuracyRow.model_fields if name in RunSpec.model_fields},
    "alpha": "spec.alpha",
    **{name: f"accuracy.{name}" for name in
       ("n", "score", "stderr", "chance", "agreement", "kl", "cut")},
    "cache_ratio": "metrics.cache_ratio",
    **{name: f"provenance.{name}" for name in ("data_hash", "weights_hash", "code_hash")},
    "run_id": "run_id",
    "torch": "provenance.versions.torch",
}  # fmt: skip


def key(row: AccuracyRow) -> Key:
    """Return the key of a row."""
    return Key(**{name: getattr(row, name) for name in Key._fields})


def read_table(path: Path) -> list[AccuracyRow]:
    """Read the rows of a table, in order.

    Raises:
        InputError: a column or a value is wrong, or two lines are the same cell; one line that
            names the file and the line.
    """
    rows = read_rows(path, AccuracyRow)
    _check_distinct(rows, str(path))
    return rows


def write_table(path: Path, rows: Iterable[AccuracyRow]) -> None:
    """Write a table atomically, sorted by `Key`, with fixed decimals.

    Raises:
        InputError: two rows are the same cell, or the file cannot be written; the former
            file is untouched.
    """
    ordered = sorted(rows, key=key)
    _check_distinct(ordered, str(path))
    fields = list(AccuracyRow.model_fields)
    lines = [[_text(name, getattr(row, name)) for name in fields] for row in ordered]
    write_text(path, csv_text(fields, lines))


def row_from_run(document: Mapping[str, Any], *, generated: bool, category: str) -> AccuracyRow:
    """Return the table row of a run's document; the other arguments are not in the document.

    Raises InputError: the run was not scored, has no α, or lacks another column's value.
    """
    values = {name: dig(document, path) for name, path in _PATHS.items()}
    values |= {"generated": generated, "category": category}
    try:
        return AccuracyRow.model_validate(values)
    except ValidationError as error:
        detail = error.errors()[0]
        name = str(detail["loc"][0])
        raise InputError(
            f"run {document.get('run_id')} has no row in an accuracy table: "
            f"{_PATHS.get(name, name)} is {detail['input']!r}: {detail['msg']}"
        ) from error


def items_from_run(document: Mapping[str, Any]) -> str | None:
    """Return a run's right and wrong answers as "0110...".

    None if its document does not hold them, or if answers score between 0 and 1.
    """
    items = dig(document, "accuracy.items")
    if isinstance(items, str):
        return items or None
    values = [value for value in dig(document, "accuracy.items.value") or () if value is not None]
    if not values or any(value not in (0, 1) for value in values):
        return None
    return "".join(str(int(value)) for value in values)


def items_path(table: Path) -> Path:
    """Return the path of a table's items: ``alpha.items.csv`` for ``alpha.csv``."""
    return table.with_suffix(".items.csv")


def read_items(table: Path) -> dict[str, str]:
    """Read a table's right and wrong answers ("0110...") by run id; {} without such a file.

    Raises InputError: a line is wrong, or a run is listed twice.
    """
    path = items_path(table)
    if not path.exists():
        return {}
    found: dict[str, str] = {}
    for row in read_rows(path, ItemRow):
        if row.run_id in found:
            raise InputError(f"{path}: run {row.run_id} stands there twice")
        found[row.run_id] = row.items
    return found


def write_items(table: Path, items: Mapping[str, str]) -> None:
    """Write a table's right and wrong answers by run id, atomically.

    Raises InputError: it cannot be written.
    """
    write_text(items_path(table), csv_text(list(ItemRow.model_fields), sorted(items.items())))


def _check_distinct(rows: list[AccuracyRow], where: str) -> None:
    first: dict[Key, int] = {}
    for line, row in enumerate(rows, start=2):  # the header is line 1
        if (other := first.setdefault(key(row), line)) != line:
            cell = f"{row.setting} {row.system} {row.workload} α {row.alpha:g} {row.scoring}"
            raise InputError(f"{where}:{line}: {cell} stands already in line {other}")


def _text(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.{_DECIMALS[name]}f}" if name in _DECIMALS else str(value)
