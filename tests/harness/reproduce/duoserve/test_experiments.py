"""All cells of this paper's experiments, on invented runs, beside the results that ship."""

from moebench.harness.reproduce.duoserve import PAPER
from moebench.harness.reproduce.duoserve import experiments as e
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


def test_counter_experiments_are_those_of_the_results_that_ship() -> None:
    shipped.check_counters(PAPER, e)
