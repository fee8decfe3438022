"""Rows of published measurements: CSV files of rates that other people measured, read strictly.

``results/measured/README.md`` documents the columns.  An impossible number is refused.  A number
that is possible but not plausible is kept; the predictor remarks on it.
"""

import csv
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from moebench.harness.published.prediction import Phase
from moebench.substrate.errors import InputError
from moebench.substrate.files import brief_word, read_text

#: The rows that ship.
FOLDER = Path(__file__).parents[2] / "results" / "measured"

#: A file of ids beside the rows: only these are used for absolute predictions.
LISTED = "absolute.txt"
#: A file of one line for each group, beside the rows: it holds no measurements.
GROUPS = "groups.csv"

#: Values of ``abs_class`` whose rows name all that a prediction needs.
NAMED = ("strict", "stream")

_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_GITHUB = re.compile(r"https?://(?:www\.)?github\.com/([^/?#]+)")
_DOMAIN = re.compile(r"https?://(?:www\.)?([^/?#]+)")


def _number(given: Any) -> Any:
    """Return a cell as pydantic takes it: empty as None, and decimal numbers only."""
    if not isinstance(given, str):
        return given
    text = given.strip()
    if text and text != "all" and not _DECIMAL.fullmatch(text):
        raise ValueError("no decimal number")
    return text or None


_CELL = BeforeValidator(_number)
#: Field types of numbers; the description is the allowed range in error messages.
Above = Annotated[
    Annotated[float, Field(gt=0)] | None, _CELL, Field(description="a number above 0")
]
Share = Annotated[
    Annotated[float, Field(ge=0, le=1)] | None, _CELL, Field(description="a number from 0 to 1")
]
Count = Annotated[
    Annotated[int, Field(ge=0)] | None, _CELL, Field(description="a whole number from 0")
]
Several = Annotated[
    Annotated[int, Field(ge=1)] | None, _CELL, Field(description="a whole number from 1")
]
Layers = Annotated[
    Annotated[int, Field(ge=0)] | Literal["all"] | None, _CELL,
    Field(description="a whole number from 0, or all"),
]  # fmt: skip


class Row(BaseModel):
    """A published measurement; an empty cell is None as a number and "" as a text.

    Attributes:
        where: repository path at a commit, or URL.
        bits_per_weight: of the routed experts.
        gpu_mem_gb: GB of one GPU.
        ram_gb_s: bandwidth of the host's memory in GB/s, if the source states it.
        h2d_gb_s: rate of copies to the device in GB/s.
        n_cpu_moe: layers whose routed experts are on the host.
        batch: streams that are decoded at the same time.
        prefill_tok_s, decode_tok_s: central values, in tokens/s.
        decode_lo, decode_hi: ends of a range, or a bound, in tokens/s.
        group: rows of one machine that form a curve or a pair.
        listed: whether ``absolute.txt`` lists the row or does not exist; no column.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    id: str
    source: str = ""
    where: str = ""
    date: str = ""
    model: str = ""
    quant: str = ""
    bits_per_weight: Above = None
    gpu: str = ""
    n_gpu: Count = None
    gpu_mem_gb: Above = None
    cpu: str = ""
    sockets: Several = None
    ram_gb: Above = None
    ram_type: str = ""
    ram_channels: str = ""
    ram_gb_s: Above = None
    pcie_gen: Several = None
    pcie_lanes: Several = None
    h2d_gb_s: Above = None
    disk: str = ""
    system: str = ""
    n_cpu_moe: Layers = None
    cached_experts_or_slots: str = ""
    threads: Several = None
    ubatch: Several = None
    other_flags: str = ""
    batch: Several = None
    prompt_tokens: Count = None
    new_tokens: Count = None
    prefill_tok_s: Above = None
    decode_tok_s: Above = None
    decode_lo: Above = None
    decode_hi: Above = None
    hit_rate: Share = None
    group: str = ""
    kind: str = ""
    grade: str = ""
    confidence: str = ""
    abs_class: str = ""
    verified: str = ""
    notes: str = ""
    listed: bool = True

    @property
    def absolute(self) -> bool:
        """Whether the row counts for absolute predictions: everything named, and listed."""
        return self.abs_class.strip() in NAMED and self.listed

    @property
    def owner(self) -> str:
        """Owner of the source: the repository's, or the domain of another page."""
        where = self.where.strip()
        if found := _GITHUB.match(where) or _DOMAIN.match(where):
            return found[1]
        return where.partition("/")[0].partition("(")[0].strip()

    @property
    def cluster(self) -> str:
        """Machine and author, which are left out together: GPU, processor and owner."""
        machine = " + ".join(filter(None, (self.gpu.strip(), self.cpu.strip())))
        return f"{machine or 'machine not named'} ({self.owner or 'no source'})"

    @property
    def sweeps(self) -> bool:
        """Whether it was measured by llama-sweep-bench, whose prompt tokens are cached ones.

        Its prefill is one further chunk of ``ubatch`` tokens.
        """
        return "sweep" in f"{self.notes} {self.other_flags} {self.where} {self.source}".lower()

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Phases with a central value: decode, prefill, both or none."""
        both: tuple[Phase, ...] = ("decode", "prefill")
        return tuple(phase for phase in both if self.measured(phase) is not None)

    def measured(self, phase: Phase) -> float | None:
        """Return the central value in tokens/s; of a range the geometric mean; None for a bound."""
        if phase == "prefill":
            return self.prefill_tok_s
        if self.decode_tok_s is None and self.decode_lo and self.decode_hi:
            return math.sqrt(self.decode_lo * self.decode_hi)
        return self.decode_tok_s


#: Columns of a file, in the order of the template.
COLUMNS = tuple(name for name in Row.model_fields if name != "listed")


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a CSV file, or of all CSV files of a folder, in order.

    If ``absolute.txt`` is beside the rows, only ids that it lists are absolute.

    Raises InputError: a file is absent, empty or no CSV, its columns are not `COLUMNS`, a number is
        impossible, or an id is empty or occurs twice.
    """
    files = files_of(path)
    beside = (path if path.is_dir() else path.absolute().parent) / LISTED
    listed = set(read_text(beside).split()) if beside.is_file() else None
    rows, seen = [], dict[str, str]()
    for file in files:
        for line, row in parsed(file):
            at = f"{file}:{line}"
            if not row.id.strip():
                raise InputError(f"{at}: id is empty; allowed: a text that no other row has")
            if row.id in seen:
                raise InputError(
                    f"{at}: id {brief_word(row.id)} is also the id of {seen[row.id]}; give each "
                    "row its own"
                )
            seen[row.id] = at
            outside = listed is not None and row.id not in listed
            rows.append(row.model_copy(update={"listed": False}) if outside else row)
    if not rows:
        raise InputError(f"{path}: has no rows; write one: moebench validate --add-row FILE.csv")
    return rows


def files_of(path: Path) -> list[Path]:
    """Return the CSV files that hold rows: the file itself, or those of a folder, by name.

    Raises InputError: there is no such file or folder, or the folder has no such file.
    """
    if not path.is_dir():
        if not path.exists():
            raise InputError(f"{path}: no such file or folder")
        return [path]
    files = sorted(file for file in path.glob("*.csv") if file.name != GROUPS)
    if not files:
        raise InputError(f"{path}: has no CSV file of rows; give a file *.csv or its folder")
    return files


def shipped() -> Path:
    """Return the folder of the rows that ship.

    Raises InputError: this installation lacks it.
    """
    if not FOLDER.is_dir():
        raise InputError(
            "--published: this installation has no rows; give a file or folder of rows (a checkout "
            "of moebench has them in results/measured)"
        )
    return FOLDER


def parsed(file: Path) -> Iterator[tuple[int, Row]]:
    """Yield each row of one file with the number of its (last) line; ids may be empty.

    Raises InputError: as `read_rows`.
    """
    text = read_text(file).removeprefix("\ufeff")
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        names = _columns(file, next(lines, []))
        for cells in lines:
            if cells:
                yield lines.line_num, _row(f"{file}:{lines.line_num}", names, cells)
    except csv.Error as error:
        raise InputError(f"{file}:{lines.line_num}: not CSV: {error}") from error


def _columns(file: Path, names: list[str]) -> list[str]:
    """Return a file's columns, in any order, after checking that they are `COLUMNS`."""
    names = [name.strip() for name in names]
    if not any(names):
        raise InputError(f"{file}: is empty; write a row: moebench validate --add-row FILE.csv")
    known = [name for name in COLUMNS if name in names]
    if not known:
        raise InputError(
            f"{file}: is no CSV of published rows: its first line has none of their columns; "
            "results/measured/README.md lists these"
        )
    missing = [name for name in COLUMNS if name not in names]
    unknown = [name or "(no name)" for name in names if name not in COLUMNS]
    twice = [name for name in known if names.count(name) > 1]
    for problem, found in (
        ("lacks the column", missing), ("has the unknown column", unknown),
        ("has twice the column", twice),
    ):  # fmt: skip
        if found:
            raise InputError(
                f"{file}:1: {problem}{'s' * (len(found) > 1)} {', '.join(map(brief_word, found))}; "
                "results/measured/README.md lists the columns"
            )
    return names


def _row(at: str, names: list[str], cells: list[str]) -> Row:
    if len(cells) != len(names):
        raise InputError(f"{at}: has {len(cells)} cells; allowed: one for each of {len(names)}")
    given = dict(zip(names, cells, strict=True))
    try:
        return Row.model_validate(given)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        raise InputError(
            f"{at}: {name} {brief_word(given[name])}: cannot be; allowed: "
            f"{Row.model_fields[name].description}, or an empty cell"
        ) from error
