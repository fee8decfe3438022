"""Measured claims, tables and figures of the papers, as data models and JSON files.

There is one JSON file for each paper:

    results/claims/smoe.json       what ships, from a full run
    .moebench/claims/smoe.json     a user's own

`field` is no paper: its claims are what users, engines and abstracts report and disagree about.

`moebench reproduce` writes them; reports read them.  A folder may also hold tables that are of no
single paper, such as `EQUAL_MEMORY`, one `Exhibit` a file.  Files of earlier versions are read:
a field that they lack has its default.
"""

import math
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from moebench.results.intervals import mean_interval
from moebench.substrate.errors import InputError
from moebench.substrate.files import write_text

#: Results that ship with moebench.
FOLDER = Path(__file__).parent / "claims"

Paper = Literal["smoe", "daop", "duoserve", "flashmoe", "field"]
PAPERS: tuple[Paper, ...] = ("smoe", "daop", "duoserve", "flashmoe", "field")

#: Id of the table of all systems at equal memory.  Fields of its rows: ``setting``, ``model``,
#: ``machine``, ``memory_gb`` (GB), ``system``, ``tpot_ms`` (ms), ``lossless``.
EQUAL_MEMORY = "equal-memory"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Verdict(StrEnum):
    """Verdict on a claim after its measurement.

    NO_EFFECT: less than a quarter of the paper's effect, in either direction.
    CANNOT_SHOW: an accuracy claim whose positive control shows no loss either, or whose scores are
    at a floor or a ceiling.
    NO_VERDICT: a time of this computer, which differs between computers.
    """

    REPRODUCED = "reproduced"
    DIRECTION_ONLY = "direction only"
    NO_EFFECT = "no effect"
    NOT_REPRODUCED = "not reproduced"
    CANNOT_SHOW = "cannot show a loss"
    NO_VERDICT = "no verdict"
    NOT_MEASURABLE = "not measurable here"


class Tag(StrEnum):
    """Reason why a verdict is little evidence for its claim."""

    BY_CONSTRUCTION = "by construction"
    CANNOT_FAIL = "cannot fail here"
    SAME_ROW = "same as another row"


class Band(_Part):
    """A range of values from ``low`` to ``high``, both included; None where there is no limit."""

    low: float | None = None
    high: float | None = None

    def holds(self, value: float) -> bool:
        """Return whether a value is in the band."""
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.low is None:
            return f"≤ {self.high:g}"
        return f"≥ {self.low:g}" if self.high is None else f"{self.low:g} to {self.high:g}"


class Measured(_Part):
    """A measured figure of a claim, in the claim's unit.

    Attributes:
        samples: one value for each seed, text or whatever ``over`` names; ``value`` is their mean.
        low, high: 95 % confidence interval (Student's t over the samples); None for one sample.
        over: what there is a sample of: "seeds", "workloads".
        badge: the lowest badge of the runs; "counted" if the figure contains no time.
        conditions: conditions of the measurement, in words.
    """

    value: float
    samples: tuple[float, ...]
    low: float | None = None
    high: float | None = None
    over: str = "seeds"
    badge: str
    conditions: str = ""

    @classmethod
    def of(
        cls, samples: Iterable[float], badge: str, conditions: str = "", over: str = "seeds"
    ) -> "Measured":
        """Return the mean of some samples with its interval."""
        values = tuple(map(_short, samples))
        low, high = map(_short, mean_interval(values) or (math.nan, math.nan))
        several = len(values) > 1
        return cls(
            value=_short(math.fsum(values) / len(values)), samples=values,
            low=low if several else None, high=high if several else None, over=over,
            badge=badge, conditions=conditions,
        )  # fmt: skip


def _short(value: float) -> float:
    """Round to six significant digits."""
    return float(f"{value:.6g}")


class Counter(_Part):
    """A counter-experiment: a claim measured again under other conditions.

    Attributes:
        name: what was changed.
        changes: fields of the sweeps of ``--quick`` that were changed, and their values.
        unchanged: the claim's figure on the cells of ``--quick`` without the change.
        reading: whether it is another reading of the paper, not a question of ours.
    """

    name: str
    changes: dict[str, Any] = {}
    measured: Measured
    verdict: Verdict
    unchanged: float | None = None
    reading: bool = False
    runs: tuple[str, ...] = ()


class Point(_Part):
    """A claim's figure where one number of the machines has another value.

    Attributes:
        at: place in the number's range on every machine: -1 is its low end, 0 the profile's
            value, 1 its high end; geometric between them.
        values: the number on each machine, in ``Range.unit``.
    """

    at: float
    values: dict[str, float]
    figure: float
    verdict: Verdict


class Crossing(_Part):
    """A place in a number's range at which a claim's verdict changes.

    Attributes:
        at, values: as in `Point`.
        below, above: verdicts on either side.
    """

    at: float
    values: dict[str, float]
    below: Verdict
    above: Verdict


class Range(_Part):
    """A claim's figure and verdict over the range of one uncertain number of the machines.

    All machines of the claim's cells are moved together, each within its own range.

    Attributes:
        field: the number's path in profiles, such as ``host.gemv_bandwidth``.
        unit: unit of the number, of all ``values``.
        points: figures in ascending order of ``at``; they include both ends and the profile's
            value.
        crossings: where the verdict changes, found by bisection.
        implied: where the figure equals the paper's, for each such place; as in `Crossing`,
            ``values`` alone.
    """

    field: str
    unit: str
    points: tuple[Point, ...]
    crossings: tuple[Crossing, ...] = ()
    implied: tuple[dict[str, float], ...] = ()


class ClaimResult(_Part):
    """A claim of a paper with its measurement and verdict.

    Attributes:
        id: id of the claim and of one of its figures: "S-2 S3 b1".
        place: table, figure or section of the paper.
        paper: the paper's figure; None if the paper states an order or a shape in words.
        unit: unit of all figures.
        reproduced, no_effect, direction: bands that were fixed before measuring, with their reason
            ``why``; the first that holds decides.
        reason: why the claim has no verdict, cannot show a loss or is not measurable; else empty.
        explanation: what explains a difference, as far as it is known.
        headline: short name of a claim that stands on the front page; else empty.
        cause: the cause of a headline's difference, in one sentence.
        tag, tag_reason: why the verdict is little evidence; None if it is evidence.
        sources: who reported it, where several have.
        turns: the condition on which the claim turns, with measured numbers; else empty.
        ranges: the figure over the ranges of the uncertain numbers that matter.
        runs: ids of the runs that it was measured with.
    """

    id: str
    place: str
    statement: str
    paper: float | None
    unit: str
    reproduced: Band | None
    direction: Band | None
    no_effect: Band | None = None
    why: str
    measured: Measured | None
    verdict: Verdict
    reason: str = ""
    explanation: str = ""
    headline: str = ""
    cause: str = ""
    tag: Tag | None = None
    tag_reason: str = ""
    sources: tuple[str, ...] = ()
    turns: str = ""
    counters: tuple[Counter, ...] = ()
    ranges: tuple[Range, ...] = ()
    runs: tuple[str, ...] = ()

    @property
    def depends_on(self) -> tuple[Range, ...]:
        """The ranges within which the verdict changes."""
        return tuple(one for one in self.ranges if one.crossings)


class Axis(_Part):
    """One axis of a figure, or one column of a table."""

    field: str
    title: str
    unit: str = ""
    log: bool = False


Form = Literal["table", "bars", "stacked", "lines", "points", "heat", "timeline"]


class Exhibit(_Part):
    """A table or a figure of a paper, as data.

    Attributes:
        id: "smoe-fig-11".
        place: "Fig. 11".
        form: kind of chart, or a table, which shows `columns`.
        x, y: a figure's axes; ``y`` of a heat map is its rows, ``colour`` its values.
        series: the field that tells lines or colours apart.
        facet: the field that tells panels apart.
        rows: measured values, by field.
        paper_rows: values that the paper states, with the same fields.
        note: caption.
    """

    id: str
    place: str
    title: str
    form: Form
    columns: tuple[Axis, ...] = ()
    x: Axis | None = None
    y: Axis | None = None
    colour: Axis | None = None
    series: str | None = None
    facet: str | None = None
    rows: tuple[dict[str, Any], ...]
    paper_rows: tuple[dict[str, Any], ...] = ()
    badge: str
    note: str = ""
    runs: tuple[str, ...] = ()


class Sweeps(_Part):
    """The sweeps of an experiment, as `moebench sweep` reads them from a file.

    Attributes:
        cells: what claims, tables and figures were measured on.
        quick: the smaller sweep of ``--quick``, of counter-experiments and of ranges.
    """

    cells: dict[str, Any]
    quick: dict[str, Any]


class PaperResult(_Part):
    """All measured claims, tables and figures of one paper.

    Attributes:
        experiments: the sweeps, by the experiment's name.
        quick: whether fewer prompts were used than for the results that ship.
        provenance: versions, commit, hashes, when; wall time in seconds; ``costs``, what the run
            took by experiment (`harness.reproduce.costs`).
    """

    paper: Paper
    title: str
    quick: bool
    provenance: dict[str, Any]
    experiments: dict[str, Sweeps] = {}
    claims: tuple[ClaimResult, ...]
    exhibits: tuple[Exhibit, ...] = ()


def read(folder: Path = FOLDER) -> list[PaperResult]:
    """Read a folder's results by paper, in the order of `PAPERS`, without papers that have no file.

    Raises InputError: a file is damaged.
    """
    return [_read(file) for paper in PAPERS if (file := folder / f"{paper}.json").exists()]


def write(result: PaperResult, folder: Path) -> Path:
    """Write a paper's results to its file in a folder, replacing an earlier file.

    Raises InputError: it cannot be written.
    """
    file = folder / f"{result.paper}.json"
    write_text(file, result.model_dump_json(indent=1) + "\n")
    return file


def read_exhibit(name: str, folder: Path = FOLDER) -> Exhibit | None:
    """Read a table that is of no single paper; None if the folder has no such file.

    Raises InputError: the file is damaged, or one of `EQUAL_MEMORY`'s rows lacks a field.
    """
    file = folder / f"{name}.json"
    if not file.exists():
        return None
    found = _parsed(file, Exhibit, "write it again")
    for number, row in enumerate(found.rows):
        if missing := _FIELDS.get(name, frozenset()) - frozenset(row):
            raise InputError(f"{file}: rows.{number}: without {', '.join(sorted(missing))}")
    return found


def write_exhibit(exhibit: Exhibit, folder: Path) -> Path:
    """Write a table that is of no single paper to a file named after its id.

    Raises InputError: it cannot be written.
    """
    file = folder / f"{exhibit.id}.json"
    write_text(file, exhibit.model_dump_json(indent=1) + "\n")
    return file


#: Fields that every row of a table must have.
_FIELDS = {
    EQUAL_MEMORY: frozenset(
        ("setting", "model", "machine", "memory_gb", "system", "tpot_ms", "lossless")
    )
}


def _read(file: Path) -> PaperResult:
    return _parsed(file, PaperResult, f"write it again: moebench reproduce {file.stem}")


_Parsed = TypeVar("_Parsed", bound=_Part)


def _parsed(file: Path, kind: type[_Parsed], remedy: str) -> _Parsed:
    try:
        return kind.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    except ValidationError as error:
        detail = error.errors()[0]
        where = ": ".join([str(file), *filter(None, [".".join(map(str, detail["loc"]))])])
        raise InputError(f"{where}: {detail['msg']}; {remedy}") from error
