"""SMoE's tables on runs by hand."""

from pathlib import Path

import pytest

from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.smoe import tables
from moebench.harness.reproduce.smoe.experiments import ABLATION, TABLE_I
from moebench.results.store import Store
from tests.harness.reproduce.given import with_runs
from tests.harness.reproduce.smoe.test_own_parts import runs
from tests.harness.reproduce.test_smoe import document


@pytest.fixture
def made(tmp_path: Path) -> Evidence:
    return Evidence(Store(tmp_path), None, tmp_path, True)


def test_steps_are_changes_against_the_step_before(
    made: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 7, 16 and 20 ms to 8, then 4, 3 and 2 ms; ratios .2, .25, .1, .3, .6, .9 and .45."""
    asked = with_runs(monkeypatch, *runs())
    found = tables._fig_14_steps(made)
    assert asked == [ABLATION]
    assert [tuple(row[key] for key in ("step", "tpot", "ratio")) for row in found.rows] == [
        ("+CE from base, misses on the host", 14.3, 50.0),
        ("+CE from base, misses loaded", -50.0, 20.0),
        ("+CE from base, first in, first out", -60.0, 200.0), ("+CR", -50.0, 100.0),
        ("+Pre", -25.0, 50.0), ("+BA", -33.3, -50.0),
    ]  # fmt: skip
    assert found.badge == "estimate"
    assert {row["step"]: (row["tpot"], row["ratio"]) for row in found.paper_rows} == {
        "+CE": (-8, 11), "+CR": (-20, 60), "+Pre": (-14, 12), "+BA": (-34, -3),
    }  # fmt: skip


def test_shares_of_table_1_are_means_over_seeds(
    made: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = {
        0: {"low-score loading": 10.0, "top-score loading": 30.0, "GPU computing": 60.0},
        1: {"low-score loading": 20.0, "top-score loading": 20.0, "GPU computing": 60.0},
    }
    monkeypatch.setattr(tables, "table_1", lambda evidence: shares)
    asked = with_runs(monkeypatch, document())
    found = tables._table_1(made)
    assert [(row["part"], row["share"]) for row in found.rows] == [
        ("low-score loading", 15), ("top-score loading", 25), ("GPU computing", 60),
    ]  # fmt: skip
    assert sum(row["share"] for row in found.paper_rows) == 100
    assert (asked, found.badge) == ([TABLE_I], "estimate")


def test_sizes_of_table_3_are_those_of_weights_in_bf16(made: Evidence) -> None:
    """DeepSeek-MoE-16B has 16.4 billion parameters, and the RTX 3080 Ti 12 GB."""
    first, _, third = tables._table_3(made).rows
    assert (first["setting"], first["model"]) == ("S1", "deepseek-moe-16b")
    assert first["model_gib"] == pytest.approx(16.4e9 * 2 / 2**30, abs=0.2)
    assert third["model_gib"] == pytest.approx(57.4e9 * 2 / 2**30, abs=0.2)
    assert 10 < first["memory_gib"] <= 12
