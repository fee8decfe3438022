"""Numbers printed in the papers, as data; `results/papers/README.md` names their sources."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from moebench.results.csvfile import TableRow, read_rows

FOLDER = Path(__file__).parent / "papers"

Percent = Annotated[float, Field(ge=0, le=100)]
Share = Annotated[float, Field(ge=0, le=1)]


class SmoeScore(TableRow):
    """One cell of SMoE's Table IV.

    Attributes:
        setting: S1, S2 or S3 (Table III).
        dataset: as printed; `workload_of` translates.
        alpha: the substitution threshold.
        score: accuracy in percent.
    """

    setting: Literal["S1", "S2", "S3"]
    dataset: str
    alpha: Share
    score: Percent


class SmoeChange(TableRow):
    """A change of TPOT or TTFT that SMoE's text (section VI-B) states.

    Attributes:
        setting: S1, S3, or "all" for the mean over S1-S3.
        change: against the best baseline, in percent; negative is faster.
    """

    source: str
    metric: Literal["tpot", "ttft"]
    setting: Literal["S1", "S2", "S3", "all"]
    batch: int = Field(gt=0)
    change: float = Field(ge=-100)


class DaopScore(TableRow):
    """One cell of DAOP's Table V or VI.

    Attributes:
        method: the model as published, or DAOP.
        cache_ratio: share of experts on the GPU (ECR); None where none is printed.
        metric: None in Table V, which names none.
        score: percent.
    """

    model: Literal["mixtral-8x7b", "phi-3.5-moe"]
    method: Literal["official", "daop"]
    cache_ratio: Share | None
    dataset: str
    metric: Literal["exact_match", "rouge_1", "rouge_2"] | None
    score: Percent


class _Dataset(TableRow):
    paper: Literal["smoe", "daop"]
    dataset: str
    workload: str


def smoe_table_4() -> list[SmoeScore]:
    """Read SMoE's Table IV: accuracy by α; 13 α, 5 datasets, 3 settings."""
    return read_rows(FOLDER / "smoe_table_4.csv", SmoeScore)


def smoe_figures() -> list[SmoeChange]:
    """Read the changes of TPOT and TTFT that SMoE's section VI-B states."""
    return read_rows(FOLDER / "smoe_figures.csv", SmoeChange)


def daop_table_5() -> list[DaopScore]:
    """Read DAOP's Table V: accuracy of the first generated token."""
    return read_rows(FOLDER / "daop_table_5.csv", DaopScore)


def daop_table_6() -> list[DaopScore]:
    """Read DAOP's Table VI: accuracy of whole generations by cache ratio."""
    return read_rows(FOLDER / "daop_table_6.csv", DaopScore)


@lru_cache
def workload_of(paper: Literal["smoe", "daop"], dataset: str) -> str:
    """Return the name of the workload that represents a paper's dataset.

    Raises KeyError: the paper has no such dataset.
    """
    rows = read_rows(FOLDER / "datasets.csv", _Dataset)
    return {(row.paper, row.dataset): row.workload for row in rows}[paper, dataset]
