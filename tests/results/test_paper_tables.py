"""The papers' tables: complete, and with the numbers that the papers' own text repeats."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from moebench.results import paper_tables as papers
from moebench.results.paper_tables import (
    daop_table_5,
    daop_table_6,
    smoe_figures,
    smoe_table_4,
    workload_of,
)
from moebench.substrate.errors import InputError

ALPHAS = [step / 20 for step in range(13)]


def test_smoe_table_4_is_a_full_grid() -> None:
    cells = {(c.setting, c.dataset, c.alpha): c.score for c in smoe_table_4()}
    datasets = ("GaoKao", "WiC", "triviaqa", "race", "gsm8k")
    assert sorted(cells) == sorted(
        (s, d, a) for s in ("S1", "S2", "S3") for d in datasets for a in ALPHAS
    )
    # Read off the printed page: corners and a few cells between.
    assert cells["S1", "GaoKao", 0.0] == 27.2
    assert cells["S3", "GaoKao", 0.25] == 76.1
    assert cells["S2", "WiC", 0.5] == 50.0
    assert cells["S1", "triviaqa", 0.3] == 59.6
    assert cells["S2", "race", 0.4] == 82.9
    assert cells["S2", "gsm8k", 0.6] == 58.6
    assert cells["S3", "gsm8k", 0.6] == 83.3


def test_daop_tables_have_every_printed_cell() -> None:
    five = Counter((c.model, c.method, c.cache_ratio) for c in daop_table_5())
    assert five == {
        (model, method, ratio): 6
        for model in ("mixtral-8x7b", "phi-3.5-moe")
        for method, ratio in (("official", None), ("daop", 0.25))
    }
    six = Counter((c.model, c.cache_ratio) for c in daop_table_6())
    ratios = (1.0, 0.625, 0.5, 0.375, 0.25)
    assert six == {("mixtral-8x7b", r): 5 for r in ratios} | {("phi-3.5-moe", r): 4 for r in ratios}
    gsm8k = {
        c.cache_ratio: c.score
        for c in daop_table_6()
        if (c.model, c.dataset) == ("mixtral-8x7b", "GSM8K")
    }
    assert gsm8k[1.0] == 58.91  # section VI-B's exception
    assert gsm8k[0.25] == 33.51


def test_smoe_text_on_its_figures() -> None:
    said = {(c.metric, c.setting, c.batch, c.change) for c in smoe_figures()}
    assert {("tpot", "all", 1, -24), ("tpot", "all", 3, -35), ("tpot", "S3", 3, -48)} <= said


def test_every_dataset_is_a_workload() -> None:
    from moebench.workloads.catalogue import workload_names

    names = [("smoe", c.dataset) for c in smoe_table_4()]
    names += [("daop", c.dataset) for c in (*daop_table_5(), *daop_table_6())]
    assert {workload_of(*name) for name in names} <= set(workload_names())  # type: ignore[arg-type]
    assert workload_of("smoe", "race") == "race_middle"
    assert workload_of("daop", "Arc-c") == "arc_challenge"


SCORE = {"setting": "S1", "dataset": "WiC", "alpha": 0.5, "score": 50.0}
CHANGE = {"source": "text", "metric": "tpot", "setting": "all", "batch": 1, "change": -24.0}


@pytest.mark.parametrize(
    ("kind", "good", "name", "ends", "outside"),
    [
        (papers.SmoeScore, SCORE, "alpha", (0, 1), (-0.01, 1.01)),
        (papers.SmoeScore, SCORE, "score", (0, 100), (-0.1, 100.1)),
        (papers.SmoeChange, CHANGE, "batch", (1, 64), (0, -1)),
        # A time that is 100 % shorter is none; one that is longer has no limit.
        (papers.SmoeChange, CHANGE, "change", (-100, 250), (-100.5,)),
    ],
)
def test_printed_numbers_lie_within_what_they_can_be(
    kind: type[BaseModel], good: dict[str, Any], name: str, ends: tuple[float, ...],
    outside: tuple[float, ...],
) -> None:  # fmt: skip
    for value in ends:
        assert getattr(kind.model_validate(good | {name: value}), name) == value
    for value in outside:
        with pytest.raises(ValidationError, match=name):
            kind.model_validate(good | {name: value})


@pytest.mark.slow
def test_a_table_with_another_column_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smoe_table_4.csv").write_text("setting,dataset,alpha,accuracy\n")
    monkeypatch.setattr(papers, "FOLDER", tmp_path)
    with pytest.raises(InputError, match=r"smoe_table_4.csv:1: lacks the column score"):
        smoe_table_4()
