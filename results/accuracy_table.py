"""The committed accuracy tables: what α does to scores, agreement and KL on the scale models.

    results/accuracy/alpha.csv           a line a cell
    results/accuracy/alpha.items.csv     which questions each cell got right, for paired tests

Scores, standard errors and chance are in percent, agreement and cache ratio are shares, KL is in
nats per decoded token.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError

from moebench.results.csvfile import TableRow, csv_text, read_rows
from moebench.results.paper_tables import Percent, Share
from moebench.substrate.errors import InputError
from moebench.substrate.files import write_text

#: The committed α table (SMoE, Table IV, on the scale models).
ALPHA_TABLE = Path(__file__).parent / "accuracy" / "alpha.csv"


def _bool(value: object) -> object:
    """Only the two words that are written; pydantic alone would also take "yes" and "1"."""
    if isinstance(value, bool) or value in ("true", "false"):
        return value in (True, "true")
    raise ValueError("expected true or false")


class AccuracyRow(TableRow):
    """One cell: a system at one α on one workload.

    Attributes:
        generated: whether the questions are generated exercises rather than a real dataset.
        category: the workload's, as in SMoE section VI-A.
        alpha: SMoE's substitution threshold; 0 is the model's own top-k.
        scoring: what passed through the system: how the answers were produced.
        n: scored questions.
        score, stderr: percent of right answers and the standard error of that share.
        chance: percent that guessing scores; None where there are no options.
        agreement: share of decoded tokens that the lossless model would choose too.
        kl: mean KL divergence from the lossless model, nats per decoded token.
        cache_ratio: share of active experts found on the device during decode.
        cut: answers that reached the allowed length before they ended; None where none was written,
            and in tables of earlier versions, which do not say it.
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
    """What identifies a cell of a table, in the order in which cells are written."""

    setting: str
    generated: bool
    workload: str
    alpha: float
    scoring: str
    system: str


class ItemRow(TableRow):
    """Which questions a run got right: a 1 or a 0 each, in the order in which they were asked."""

    run_id: str
    items: str = Field(pattern="^[01]+$")


#: How many decimals each number is written with.
_DECIMALS = {
    "alpha": 4, "score": 4, "stderr": 4, "chance": 4, "agreement": 6, "kl": 6, "cache_ratio": 6,
}  # fmt: skip

#: Where a run's document holds what a row repeats.
_PATHS = {
    **{name: f"spec.{name}" for name in
       ("setting", "model", "system", "workload", "alpha", "scoring", "seed")},
    **{name: f"accuracy.{name}" for name in
       ("n", "score", "stderr", "chance", "agreement", "kl", "cut")},
    "cache_ratio": "metrics.cache_ratio",
    **{name: f"provenance.{name}" for name in ("data_hash", "weights_hash", "code_hash")},
    "run_id": "run_id",
    "torch": "provenance.versions.torch",
}  # fmt: skip


def key(row: AccuracyRow) -> Key:
    """The cell of a row."""
    return Key(**{name: getattr(row, name) for name in Key._fields})


def read_table(path: Path) -> list[AccuracyRow]:
    """The rows of a table, in its order.

    Raises:
        InputError: a column or a value is wrong, or two lines are the same cell; one line that
            names the file and the line.
    """
    rows = read_rows(path, AccuracyRow)
    _check_distinct(rows, str(path))
    return rows


def write_table(path: Path, rows: Iterable[AccuracyRow]) -> None:
    """Write a table in the order of its cells, numbers with fixed decimals, in one step.

    Raises:
        InputError: two rows are the same cell, or the file cannot be written; what was there before
            is untouched.
    """
    ordered = sorted(rows, key=key)
    _check_distinct(ordered, str(path))
    fields = list(AccuracyRow.model_fields)
    lines = [[_text(name, getattr(row, name)) for name in fields] for row in ordered]
    write_text(path, csv_text(fields, lines))


def row_from_run(document: Mapping[str, Any], *, generated: bool, category: str) -> AccuracyRow:
    """The row of a run's document; the rest says what the document does not hold.

    Raises:
        InputError: the run was not scored, has no α, or lacks another column's value.
    """
    values = {name: _dig(document, path) for name, path in _PATHS.items()}
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
    """Which questions a run got right, as "0110...".

    None where its document does not say, or where answers are worth something between 0 and 1.
    """
    items = _dig(document, "accuracy.items")
    if isinstance(items, str):
        return items or None
    values = [value for value in _dig(document, "accuracy.items.value") or () if value is not None]
    if not values or any(value not in (0, 1) for value in values):
        return None
    return "".join(str(int(value)) for value in values)


def items_path(table: Path) -> Path:
    """The file of items beside a table: ``alpha.csv`` has ``alpha.items.csv``."""
    return table.with_suffix(".items.csv")


def read_items(table: Path) -> dict[str, str]:
    """Right and wrong answers ("0110...") by run id, from the file beside a table; {} without one.

    Raises:
        InputError: a line is wrong, or a run stands there twice.
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
    """Write the items beside a table, by run id, in one step.

    Raises:
        InputError: it cannot be written.
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


def _dig(document: Mapping[str, Any], path: str) -> Any:
    value: Any = document
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value
