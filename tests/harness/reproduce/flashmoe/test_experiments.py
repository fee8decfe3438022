"""Figures that need no run, and cells of experiments, beside the results that ship."""

from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.flashmoe import PAPER
from moebench.harness.reproduce.flashmoe import experiments as e
from tests.harness.reproduce import shipped
from tests.harness.reproduce import test_measures as measures
from tests.harness.reproduce import test_registries as registries

both = measures.both


def test_figures_without_runs_are_those_of_the_results_that_ship(
    both: tuple[Evidence, Evidence],
) -> None:
    measures.test_figures_without_runs_are_those_of_the_results_that_ship(PAPER, both)


def test_the_results_that_ship_are_judged_by_these_bands() -> None:
    registries.test_the_results_that_ship_are_judged_by_these_bands(PAPER)


def test_the_results_that_ship_were_measured_on_these_sweeps() -> None:
    shipped.check_sweeps(PAPER)


def test_counter_experiments_are_those_of_the_results_that_ship() -> None:
    shipped.check_counters(PAPER, e)
