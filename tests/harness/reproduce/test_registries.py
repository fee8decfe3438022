"""Properties of the claims of all four papers, and of the shipped results."""

from collections import Counter
from importlib import import_module

import pytest

from moebench.harness.reproduce.claim import PaperClaims
from moebench.results.claims import PAPERS, read

#: The letter of a paper's claims, and how many rows it has in the list of claims.
ROWS = {"smoe": ("S", 15), "daop": ("D", 12), "duoserve": ("U", 8), "flashmoe": ("F", 9)}

REGISTRIES = [
    pytest.param(import_module(f"moebench.harness.reproduce.{name}").PAPER, id=name)
    for name in PAPERS
]

#: The paper's figure is a limit from which the network's time keeps a distance.
NO_FIGURE_OF_ITS_BAND = {"F-8 time"}


@pytest.mark.parametrize("paper", REGISTRIES)
def test_every_claim_is_there_with_bands_and_a_reason(paper: PaperClaims) -> None:
    names = Counter(claim.id for claim in paper.claims)
    assert max(names.values()) == 1
    letter, rows = ROWS[paper.paper]
    assert {name.split()[0] for name in names} == {f"{letter}-{n}" for n in range(1, rows + 1)}
    for claim in paper.claims:
        if not claim.not_measurable:
            assert claim.measure is not None, claim.id
            assert claim.bands.reproduced is not None, claim.id
            assert claim.bands.why, claim.id


@pytest.mark.parametrize("paper", REGISTRIES)
def test_the_papers_figure_reproduces_itself(paper: PaperClaims) -> None:
    """A band without the figure that it is of would have the wrong sign or unit."""
    for claim in paper.claims:
        if claim.paper is not None and claim.bands.reproduced is not None:
            held = claim.bands.reproduced.holds(claim.paper)
            assert held or claim.id in NO_FIGURE_OF_ITS_BAND, claim.id


@pytest.mark.parametrize("paper", REGISTRIES)
def test_the_results_that_ship_are_judged_by_these_bands(paper: PaperClaims) -> None:
    (shipped,) = (result for result in read() if result.paper == paper.paper)
    known = {claim.id: claim for claim in paper.claims}
    assert [result.id for result in shipped.claims] == list(known)
    for result in shipped.claims:
        claim = known[result.id]
        assert (result.place, result.statement, result.paper, result.unit) == (
            claim.place, claim.statement, claim.paper, claim.unit,
        )  # fmt: skip
        assert result.why == claim.bands.why, result.id
        if claim.not_measurable:
            assert result.reason == claim.not_measurable, result.id
        if result.measured is not None:
            assert result.verdict == claim.judge(result.measured), result.id
        assert (result.reproduced, result.direction) == (
            claim.bands.reproduced,
            claim.bands.direction,
        )
