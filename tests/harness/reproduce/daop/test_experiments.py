"""All cells of this paper's experiments, on invented runs, beside the results that ship."""

import pytest

from moebench.harness.reproduce.daop import PAPER
from moebench.harness.reproduce.daop import experiments as e
from moebench.harness.reproduce.evidence import Evidence
from tests.harness.reproduce import shipped
from tests.harness.reproduce import test_measures as measures

both, full = measures.both, measures.full


def test_claims_read_as_many_runs_as_those_of_the_results_that_ship(full: Evidence) -> None:
    measures.check_claims(PAPER, full)


def test_tables_and_figures_are_those_of_the_results_that_ship_but_for_numbers(
    full: Evidence,
) -> None:
    measures.check_exhibits(PAPER, full)


def test_the_results_that_ship_were_measured_on_these_sweeps() -> None:
    shipped.check_sweeps(PAPER)


def test_counter_experiments_change_what_their_names_say() -> None:
    """Of those that ran for no claim of the results that ship, too."""
    assert e.LIVE.name == "routing of the scale models in place of drawn, 16 new tokens"
    assert e.LIVE.changes == {"routing": "model", "prompts": 1, "new_tokens": 16, "seed": 0}
    assert not e.LIVE.always
    assert e.PINNED.changes == {"machine": "a6000"}
    assert "1.68 GB/s" in e.CODE_COPIES.name
    assert e.CODE_COPIES.changes == {"machine": "a6000@daop+link.pageable_h2d=1.68"}
    assert "3 % of its peak" in e.CODE_ROWS.name
    assert e.CODE_ROWS.changes == {"machine": "a6000@daop+host.gemm_efficiency=0.03"}
    assert all(one.always and one.reading
               for one in (e.PINNED, e.CODE_COPIES, e.CODE_ROWS, e.SHIPPED))  # fmt: skip
    assert e.RECORDED.changes == {"routing": "real"}
    # 210 ms for 352 MB of an expert's three matrices in bf16.
    rate = 3 * 4096 * 14336 * 2 / 0.210 / 1e9
    assert rate == pytest.approx(1.68, abs=0.005)


def test_counter_experiments_are_those_of_the_results_that_ship() -> None:
    shipped.check_counters(PAPER, e)
