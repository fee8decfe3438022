"""Results of the sweep of the field: one row for each system on a machine with a model and context.

`results/field/field.csv` has those that ship.  `rows_of` finds them in a store: simulated runs with
cached tokens (`--context`), and cells that are not possible.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

from moebench.results.csvfile import TableRow, csv_text, read_rows
from moebench.results.document import Document, dig, is_lossless, system_of
from moebench.results.store import Cell
from moebench.substrate.files import write_text

#: The rows that ship.
FILE = Path(__file__).parent / "field" / "field.csv"

#: Options that must be equal in a table, of which the most frequent values are shown.
EQUAL = ("batch", "prompts", "new_tokens", "workload", "routing", "seed")


class Place(NamedTuple):
    """Where systems are compared: a machine, a model with its format of weights, a context."""

    machine: str
    model: str
    bits: str
    context: int


def _bool(value: object) -> object:
    """Return a bool for "true" or "false" alone, and None for an empty cell."""
    if value in ("true", "false", True, False, None):
        return {"true": True, "false": False}.get(str(value), value)
    raise ValueError("expected true or false")


class FieldRow(TableRow):
    """A system at a place: its time, or why it cannot run there.

    Attributes:
        bits: format of the weights: that of ``--quant``, else the precision.
        context: tokens in the KV cache before each prompt.
        software: kind of software whose costs are charged.
        system: name, and variant if it is not the published one.
        options: changed policies and options, as ``key=value``.
        lossless: whether its tokens are the model's own; None if it did not run.
        tpot_ms: mean time of a decoded token; None if it did not run.
        reason: why it cannot run; None if it ran.
    """

    machine: str
    model: str
    bits: str
    context: int = Field(ge=0)
    software: str
    system: str
    options: str | None = None
    lossless: Annotated[bool | None, BeforeValidator(_bool)] = None
    tpot_ms: Annotated[float, Field(gt=0)] | None = None
    reason: str | None = None

    @property
    def place(self) -> Place:
        """Where it is compared with others."""
        return Place(self.machine, self.model, self.bits, self.context)

    @property
    def name(self) -> str:
        """System with its options: ``llamacpp place=fit``."""
        return " ".join(filter(None, (self.system, self.options)))


def rows_of(runs: Sequence[Document], cells: Iterable[Cell] = ()) -> list[FieldRow]:
    """Return the rows of a store: of simulated runs with a context, and of impossible cells.

    Runs of systems that know the future are left out, and of several lengths, workloads or seeds
    all but the most frequent.  A newer run replaces an older one of the same row.  Rows are in the
    order of their places, then of their systems' names.
    """
    kept = [run for run in runs if _counts(run["spec"]) and run["simulated"]
            and not run.get("oracle") and dig(run, "metrics.tpot_ms.mean")]  # fmt: skip
    failed = [cell for cell in cells if cell.impossible and _counts(cell.spec)]
    usual = Counter(_equal(run["spec"]) for run in kept).most_common(1)
    found: dict[tuple[Place, str], FieldRow] = {}
    for cell in failed:
        if not usual or _equal(cell.spec) == usual[0][0]:
            one = _row(cell.spec, reason=cell.error or "not possible")
            found[one.place, one.name] = one
    for run in kept:
        if _equal(run["spec"]) == usual[0][0]:
            tpot = float(f"{run['metrics']['tpot_ms']['mean']:.5g}")
            one = _row(run["spec"], lossless=is_lossless(run), tpot_ms=tpot)
            found[one.place, one.name] = one
    return [found[key] for key in sorted(found)]


def unfinished(cells: Iterable[Cell]) -> set[Place]:
    """Return the places at which a sweep has cells that have neither run nor failed."""
    waiting = [cell.spec for cell in cells if cell.state == "queued" and _counts(cell.spec)]
    return {_row(spec).place for spec in waiting}


def _counts(spec: Mapping[str, Any]) -> bool:
    return bool(spec.get("context")) and spec.get("setting") is None


def _equal(spec: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(spec.get(name) for name in EQUAL)


def _row(spec: Mapping[str, Any], **more: Any) -> FieldRow:
    options = (spec.get("overrides") or {}).items()
    return FieldRow(
        machine=spec["machine"], model=spec["model"], bits=_bits(spec), context=spec["context"],
        software=spec["software"], system=system_of(spec),
        options=" ".join(f"{key}={value}" for key, value in options) or None, **more,
    )  # fmt: skip


def _bits(spec: Mapping[str, Any]) -> str:
    return str(spec.get("quant") or spec.get("expert_dtype") or spec.get("precision"))


def read_field(path: Path = FILE) -> list[FieldRow]:
    """Read the rows of a file.

    Raises InputError: the file is absent, or holds other columns or impossible values.
    """
    return read_rows(path, FieldRow)


def write_field(rows: Sequence[FieldRow], path: Path = FILE) -> None:
    """Write rows as a CSV file, in the order of places and names."""
    ordered = sorted(rows, key=lambda row: (row.place, row.name))
    cells = [[_cell(value) for value in row.model_dump().values()] for row in ordered]
    write_text(path, csv_text(list(FieldRow.model_fields), cells))


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
