"""What came of a paper's claims, tables and figures when they were measured here.

One JSON file a paper:

    results/claims/smoe.json       what ships, from a full run
    .moebench/claims/smoe.json     a user's own

`moebench reproduce` writes them; reports read them.
"""

import math
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from moebench.results.intervals import mean_interval
from moebench.substrate.errors import InputError
from moebench.substrate.files import write_text

#: What ships.
FOLDER = Path(__file__).parent / "claims"

Paper = Literal["smoe", "daop", "duoserve", "flashmoe"]
PAPERS: tuple[Paper, ...] = ("smoe", "daop", "duoserve", "flashmoe")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Verdict(StrEnum):
    """What a claim's measurement says of it."""

    REPRODUCED = "reproduced"
    DIRECTION_ONLY = "direction only"
    NOT_REPRODUCED = "not reproduced"
    NOT_MEASURABLE = "not measurable here"


class Band(_Part):
    """Values from ``low`` to ``high``, both included; None is open."""

    low: float | None = None
    high: float | None = None

    def holds(self, value: float) -> bool:
        """Whether the value is in the band."""
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.low is None:
            return f"≤ {self.high:g}"
        return f"≥ {self.low:g}" if self.high is None else f"{self.low:g} to {self.high:g}"


class Measured(_Part):
    """A figure of ours, in the claim's unit.

    Attributes:
        samples: one for each seed, text or whatever ``over`` names; the value is their mean.
        low, high: its 95 % confidence interval (Student's t over the samples); None for one sample.
        over: what the samples are of: "seeds", "workloads".
        badge: the lowest one of the runs; "counted" where no time is in it.
        conditions: under which it was measured, in words.
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
        """The mean of some samples, with its interval."""
        values = tuple(map(_short, samples))
        low, high = map(_short, mean_interval(values) or (math.nan, math.nan))
        several = len(values) > 1
        return cls(
            value=_short(math.fsum(values) / len(values)), samples=values,
            low=low if several else None, high=high if several else None, over=over,
            badge=badge, conditions=conditions,
        )  # fmt: skip


def _short(value: float) -> float:
    """Six digits: what is below them is rounding."""
    return float(f"{value:.6g}")


class Counter(_Part):
    """A counter-experiment: the same claim under other conditions.

    Attributes:
        name: what was changed.
    """

    name: str
    measured: Measured
    verdict: Verdict
    runs: tuple[str, ...] = ()


class ClaimResult(_Part):
    """A claim, what it was measured as, and the verdict.

    Attributes:
        id: of the paper's claim, and which of its figures: "S-2 S3 b1".
        place: where in the paper.
        paper: the paper's figure; None where it states an order or a shape in words.
        unit: of all figures.
        reproduced, direction: bands that were fixed before measuring, with their reason ``why``.
        reason: why it is not measurable; empty otherwise.
        explanation: what explains a difference, as far as it is known.
        runs: ids of the runs behind it.
    """

    id: str
    place: str
    statement: str
    paper: float | None
    unit: str
    reproduced: Band | None
    direction: Band | None
    why: str
    measured: Measured | None
    verdict: Verdict
    reason: str = ""
    explanation: str = ""
    counters: tuple[Counter, ...] = ()
    runs: tuple[str, ...] = ()


class Axis(_Part):
    """What an exhibit shows along one direction."""

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
        form: how it is drawn; a table shows `columns`.
        x, y: a figure's axes; ``y`` of a heat map is its rows, ``colour`` its values.
        series: the field that tells lines or colours apart.
        facet: the field that tells panels apart.
        rows: ours, by field.
        paper_rows: what the paper states, with the same fields.
        note: what a reader must know.
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


class PaperResult(_Part):
    """All of a paper.

    Attributes:
        quick: whether fewer prompts were used than for what ships.
        provenance: versions, commit, hashes, when; wall time in seconds.
    """

    paper: Paper
    title: str
    quick: bool
    provenance: dict[str, Any]
    claims: tuple[ClaimResult, ...]
    exhibits: tuple[Exhibit, ...] = ()


def read(folder: Path = FOLDER) -> list[PaperResult]:
    """The papers of a folder, in the order of `PAPERS`; those without a file are left out.

    Raises:
        InputError: a file is not what `write` writes.
    """
    return [_read(file) for paper in PAPERS if (file := folder / f"{paper}.json").exists()]


def write(result: PaperResult, folder: Path) -> Path:
    """Put a paper's results into a folder; what was there of it is replaced.

    Raises:
        InputError: it cannot be written.
    """
    file = folder / f"{result.paper}.json"
    write_text(file, result.model_dump_json(indent=1) + "\n")
    return file


def _read(file: Path) -> PaperResult:
    try:
        return PaperResult.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    except ValidationError as error:
        detail = error.errors()[0]
        where = ": ".join([str(file), *filter(None, [".".join(map(str, detail["loc"]))])])
        raise InputError(
            f"{where}: {detail['msg']}; write it again: moebench reproduce {file.stem}"
        ) from error
