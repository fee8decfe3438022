"""The grid of the advice page: answers computed beforehand, and their compact file.

A `Grid` holds answers for combinations of machine, model, format and context.  Its file is JSON
with one array for each field; each text is listed once, and numbers have three digits.
`grid_build` builds the grid that ships.
"""

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from moebench.substrate.errors import InputError
from moebench.substrate.files import write_bytes

#: The grid that ships.
FILE = Path(__file__).with_name("grid.json.gz")

#: Version of the file's format.
FORMAT = 1

#: Most answers of a point.
MOST_ROWS = 8

#: Stands for the number of tokens of the context in a command.
CONTEXT_MARK = "{context}"


class GridMachine(NamedTuple):
    """A machine of the grid, as its two choices and in words."""

    card: str
    memory: str
    about: str


class GridRow(NamedTuple):
    """An answer: an engine with its configuration, rates, memory, and commands.

    Attributes:
        config: the configuration in words.
        decode, decode_low, decode_high: tokens/s, and the ends of the interval of 80 %.
        prefill, prefill_low, prefill_high: tokens/s of a prompt.
        device_gib, host_gib, disk_gib: weights, caches and buffers by place, in GiB.
        binds: what the time of a decoded token depends on most.
        verdict: whether it fits.
        remarks: what was assumed, one a line.
        lossless: whether it computes what the file's weights define.
        checked: whether rates of this kind were compared with published ones.
        command: lines to type; `CONTEXT_MARK` stands for the context.
        notes: on the command, one a line.
    """

    engine: str
    config: str
    decode: float | None
    decode_low: float | None
    decode_high: float | None
    prefill: float | None
    prefill_low: float | None
    prefill_high: float | None
    device_gib: float | None
    host_gib: float | None
    disk_gib: float | None
    quality: str
    binds: str
    verdict: str
    remarks: str
    lossless: bool
    checked: bool
    command: str
    notes: str


class Point(NamedTuple):
    """The answers to one question, best first.

    Attributes:
        machine: index of the machine in the grid.
        context: tokens that the KV cache has room for.
        fits: whether an answer fits into the memories.
        verdict: a sentence with the numbers that decide.
        largest_context: tokens that fit on the device, if that is known.
        left_out: engines without an answer and their reasons, one a line.
    """

    machine: int
    model: str
    quant: str
    context: int
    fits: bool
    verdict: str
    largest_context: int | None
    left_out: str
    rows: tuple[GridRow, ...]


class Ties(NamedTuple):
    """Factors between two requests' times, within which 80 % of such ratios are.

    Attributes:
        decode, prefill: of the rates of two engines.
        same: of two configurations of one engine.
        paging: in addition, where one of both reads a mapped file.
    """

    decode: float
    prefill: float
    same: float
    paging: float


class InterpolationError(NamedTuple):
    """Errors of interpolated rates, as shares of the computed ones.

    Attributes:
        figures: number of compared rates.
        median, p90, largest: of the absolute errors.
    """

    phase: str
    figures: int
    median: float
    p90: float
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Answers for all combinations of the page's choices.

    Attributes:
        version: of moebench.
        lengths: what prompts and answers the rates are of, in words.
        ties: when two rows do not differ.
        between: contexts that the page offers in addition, by interpolation.
        errors: of interpolation, by phase; empty if they were not measured.
    """

    version: str
    lengths: str
    ties: Ties
    machines: tuple[GridMachine, ...]
    points: tuple[Point, ...]
    between: tuple[int, ...] = ()
    errors: tuple[InterpolationError, ...] = ()


#: Fields of rows by how they are stored.
_TEXTS = ("engine", "config", "quality", "binds", "verdict", "remarks", "command", "notes")
_POINT_TEXTS = ("model", "quant", "verdict", "left_out")
_FLAGS = ("lossless", "checked")


class _Texts:
    """The list of all texts, each once."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.index = {text: at for at, text in enumerate(known)}

    def __call__(self, text: str) -> int:
        return self.index.setdefault(text, len(self.index))


def to_columns(grid: Grid) -> dict[str, Any]:
    """Return the grid as JSON values: for each field of points and rows one array."""
    texts = _Texts()
    rows = [row for point in grid.points for row in point.rows]
    points = {name: [getattr(point, name) for point in grid.points] for name in Point._fields}
    points |= {name: [*map(texts, points[name])] for name in _POINT_TEXTS}
    points |= {"fits": [*map(int, points["fits"])], "rows": [len(p.rows) for p in grid.points]}
    columns: dict[str, list[Any]] = {}
    for name in GridRow._fields:
        values = [getattr(row, name) for row in rows]
        kind = texts if name in _TEXTS else int if name in _FLAGS else rounded
        columns[name] = [*map(kind, values)]
    return {
        "format": FORMAT,
        "version": grid.version,
        "lengths": grid.lengths,
        "ties": [*map(rounded, grid.ties)],
        "machines": [[*machine] for machine in grid.machines],
        "between": [*grid.between],
        "errors": [[one.phase, one.figures, *map(rounded, one[2:])] for one in grid.errors],
        "points": points,
        "rows": columns,
        "texts": [*texts.index],
    }


def from_columns(found: Any, source: str = "grid") -> Grid:
    """Return the grid of JSON values that `to_columns` made.

    Raises InputError: they are no grid, or of another version.
    """
    try:
        if found["format"] != FORMAT:
            raise InputError(f"{source}: format {found['format']!r}; allowed: {FORMAT}; build it "
                             "again: make advice")  # fmt: skip
        texts: list[str] = found["texts"]
        columns = dict(found["rows"])
        columns |= {name: [texts[at] for at in columns[name]] for name in _TEXTS}
        columns |= {name: [*map(bool, columns[name])] for name in _FLAGS}
        rows = iter([GridRow(*one) for one in _zipped(columns, GridRow._fields)])
        points = dict(found["points"])
        points |= {name: [texts[at] for at in points[name]] for name in _POINT_TEXTS}
        points["fits"] = [*map(bool, points["fits"])]
        points["rows"] = [tuple(next(rows) for _ in range(count)) for count in points["rows"]]
        return Grid(
            version=found["version"], lengths=found["lengths"], ties=Ties(*found["ties"]),
            machines=tuple(GridMachine(*one) for one in found["machines"]),
            points=tuple(Point(*one) for one in _zipped(points, Point._fields)),
            between=tuple(found["between"]),
            errors=tuple(InterpolationError(*one) for one in found["errors"]),
        )  # fmt: skip
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{source}: is no grid of advice; build it again: make advice") from error


def _zipped(columns: dict[str, list[Any]], fields: Sequence[str]) -> Iterable[tuple[Any, ...]]:
    return zip(*(columns[name] for name in fields), strict=True)


def rounded(value: float | None) -> float | int | None:
    """Return a number with three significant digits, as an integer where it is one."""
    if value is None:
        return None
    short = float(f"{value:.3g}")
    return int(short) if short.is_integer() else short


def write_grid(path: Path, grid: Grid) -> None:
    """Write the grid's file, compressed if its name ends with ``.gz``, in one atomic step.

    Raises InputError: the file cannot be written.
    """
    text = json.dumps(to_columns(grid), ensure_ascii=False, separators=(",", ":")).encode()
    write_bytes(path, gzip.compress(text, 9, mtime=0) if path.suffix == ".gz" else text)


def read_grid(path: Path = FILE) -> Grid:
    """Read a grid's file.

    Raises InputError: there is no such file, or it is no grid.
    """
    try:
        content = path.read_bytes()
        text = gzip.decompress(content) if path.suffix == ".gz" else content
        return from_columns(json.loads(text), str(path))
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; build it: make advice") from error
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path}: is no grid of advice; build it again: make advice") from error


def choices_of(grid: Grid) -> list[tuple[int, str, str]]:
    """Return each machine, model and format of the grid's points, in their order."""
    return [*dict.fromkeys((one.machine, one.model, one.quant) for one in grid.points)]
