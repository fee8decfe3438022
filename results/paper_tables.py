"""The papers' own tables; `results/papers/README.md` says where each number stands in print."""

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
    """What SMoE's text (section VI-B) says of a figure.

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
        score: in percent.
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
    """SMoE, Table IV: accuracy by α; 13 α, 5 datasets, 3 settings."""
    return read_rows(FOLDER / "smoe_table_4.csv", SmoeScore)


def smoe_figures() -> list[SmoeChange]:
    """SMoE, section VI-B: changes of TPOT and TTFT that the text states of its figures."""
    return read_rows(FOLDER / "smoe_figures.csv", SmoeChange)


def daop_table_5() -> list[DaopScore]:
    """DAOP, Table V: accuracy of the first generated token."""
    return read_rows(FOLDER / "daop_table_5.csv", DaopScore)


def daop_table_6() -> list[DaopScore]:
    """DAOP, Table VI: accuracy of whole generations by cache ratio."""
    return read_rows(FOLDER / "daop_table_6.csv", DaopScore)


@lru_cache
def workload_of(paper: Literal["smoe", "daop"], dataset: str) -> str:
    """The workload that stands for a paper's dataset.

    Raises:
        KeyError: the paper has no such dataset.
    """
    rows = read_rows(FOLDER / "datasets.csv", _Dataset)
    return {(row.paper, row.dataset): row.workload for row in rows}[paper, dataset]
