"""Properties of the claims of all papers and of the field, and of the shipped results."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import pytest

from moebench.harness.reproduce.claim import PaperClaims
from moebench.harness.reproduce.evidence import Evidence, Experiment, MissingEvidenceError
from moebench.results.claims import PAPERS, Tag, Verdict, read
from moebench.results.store import Store
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.machines.profile_ranges import uncertain
from tests.harness.reproduce.shipped import check

#: The letter of a paper's claims, and how many rows it has in the list of claims.
ROWS = {
    "smoe": ("S", 16), "daop": ("D", 13), "duoserve": ("U", 8), "flashmoe": ("F", 12),
    "field": ("R", 8),
}  # fmt: skip

REGISTRIES = [
    pytest.param(import_module(f"moebench.harness.reproduce.{name}").PAPER, id=name)
    for name in PAPERS
]

#: Those whose results ship.
SHIPPED = [one for one in REGISTRIES if one.id in {found.paper for found in read()}]

#: The paper's figure is a limit from which the measured one keeps a distance.
NO_FIGURE_OF_ITS_BAND = {"F-8 time", "F-11 epochs"}


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


def test_the_results_of_all_papers_ship() -> None:
    assert {one.id for one in SHIPPED} >= set(PAPERS) - {"field"}


@pytest.mark.slow
@pytest.mark.parametrize("paper", SHIPPED)
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
            judged = (claim.judge(result.measured.value), Verdict.CANNOT_SHOW)
            assert result.verdict in judged[: 1 + (claim.control is not None)], result.id
            tagged = result.tag is not None
            assert result.tag == (claim.tag if tagged else None), result.id
        assert (result.reproduced, result.no_effect, result.direction) == (
            claim.bands.reproduced,
            claim.bands.no_effect,
            claim.bands.direction,
        )


@pytest.mark.parametrize("paper", SHIPPED)
def test_the_results_that_ship_have_these_counter_experiments_and_ranges(
    paper: PaperClaims,
) -> None:
    """All of a claim's where it differs; else those that are always tried."""
    check(paper.paper, paper.claims)


@pytest.mark.parametrize("paper", SHIPPED)
def test_the_results_that_ship_are_said_in_these_words(paper: PaperClaims) -> None:
    (shipped,) = (result for result in read() if result.paper == paper.paper)
    assert shipped.title == paper.title
    for claim, result in zip(paper.claims, shipped.claims, strict=True):
        assert (result.headline, result.cause) == (claim.headline, claim.cause), claim.id
        assert result.sources == claim.sources, claim.id
        assert bool(result.turns) == (claim.turns is not None), claim.id
        if result.tag is not None:
            assert result.tag_reason == claim.tag_reason, claim.id
        elif claim.tag is not None:
            assert result.verdict in (Verdict.CANNOT_SHOW, Verdict.NOT_MEASURABLE), claim.id
        differs = result.verdict in (
            Verdict.DIRECTION_ONLY, Verdict.NO_EFFECT, Verdict.NOT_REPRODUCED,
        )  # fmt: skip
        assert result.explanation == (claim.explanation if differs else ""), claim.id
        blind = result.verdict is Verdict.CANNOT_SHOW
        assert not blind or claim.control is not None, claim.id


@pytest.mark.parametrize("paper", REGISTRIES)
def test_no_band_ends_where_there_is_no_effect(paper: PaperClaims) -> None:
    """The smallest change of a figure would flip its verdict."""
    for claim in paper.claims:
        none = {"%": 0.0, "points": 0.0, "×": 1.0}.get(claim.unit)
        bands = (claim.bands.reproduced, claim.bands.no_effect, claim.bands.direction)
        ends = [end for band in bands if band for end in (band.low, band.high) if end is not None]
        assert none not in ends, claim.id


@pytest.mark.parametrize("paper", REGISTRIES)
def test_what_reproduces_a_claim_has_an_effect(paper: PaperClaims) -> None:
    for claim in paper.claims:
        nothing, band = claim.bands.no_effect, claim.bands.reproduced
        if nothing is not None and nothing.low is not None and nothing.high is not None:
            assert band is not None
            assert not band.holds((nothing.low + nothing.high) / 2), claim.id


@pytest.mark.parametrize("paper", REGISTRIES)
def test_a_tag_has_a_reason_and_names_a_row_that_exists(paper: PaperClaims) -> None:
    names = {claim.id for claim in paper.claims}
    for claim in paper.claims:
        assert (claim.tag is None) == (not claim.tag_reason), claim.id
        if claim.tag is Tag.SAME_ROW:
            assert any(name in claim.tag_reason for name in names - {claim.id}), claim.id


@pytest.mark.parametrize("paper", REGISTRIES)
def test_three_to_five_claims_are_headlines(paper: PaperClaims) -> None:
    """The field's are one for each of its eight disagreements."""
    named = [claim for claim in paper.claims if claim.headline]
    assert len(named) in ((8,) if paper.paper == "field" else (3, 4, 5))
    assert all("\n" not in claim.cause for claim in named)


@pytest.mark.parametrize("paper", REGISTRIES)
def test_numbers_of_experiments_are_uncertain_on_a_machine_that_they_use(
    paper: PaperClaims, tmp_path: Path
) -> None:
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    experiments = {one.name: one for claim in paper.claims for one in claim.needs if one.numbers}
    assert experiments
    for experiment in experiments.values():
        known = {
            number.field
            for spec in evidence.specs(experiment)
            for number in uncertain(load_profile(spec.machine, spec.software))
        }
        assert set(experiment.numbers) <= known, experiment.name


#: Claims and a figure that read no run and take a second to count or to price.
COUNTED = ("S-14 host prefill limit", "D-3 block on the CPU", "F-6 FFN", "F-7 ", "F-9 search",
           "used_experts")  # fmt: skip

#: Claims that price experts or read a table.  Their experiment says over which numbers' ranges.
PRICED = {"S-9 third", "S-14 PCIe over GPU, v2", "S-14 CPU over GPU, v2", "S-14 PCIe over GPU, v1",
          "S-14 CPU over GPU, v1", "S-14 CPU over PCIe"}  # fmt: skip


@pytest.mark.parametrize("paper", REGISTRIES)
def test_claims_and_exhibits_need_the_experiments_that_they_ask_for(
    paper: PaperClaims, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells of experiments that are not named as needed would not be run beforehand.

    Measures end at the first experiment that they ask for, which here has no runs.
    """
    asked: list[str] = []

    def missing(self: Evidence, *experiments: Experiment) -> NoReturn:
        asked.extend(experiment.name for experiment in experiments)
        raise MissingEvidenceError("no runs")

    for name in ("runs", "present", "jobs", "specs"):
        monkeypatch.setattr(Evidence, name, missing)
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=False)

    def asked_by(*made: Callable[[Evidence], object] | None) -> set[str]:
        asked.clear()
        for make in filter(None, made):
            with suppress(MissingEvidenceError):
                make(evidence)
        return set(asked)

    for claim in paper.claims:
        if claim.measure is not None and not claim.id.startswith(COUNTED):
            found = asked_by(claim.measure, claim.control)
            needed = {one.name for one in claim.needs}
            assert found == (set() if claim.id in PRICED else needed), claim.id
            assert needed or claim.id not in PRICED, claim.id
    for show in paper.exhibits:
        if show.make.__name__ in COUNTED:
            continue
        found, needed = asked_by(show.make), {one.name for one in show.needs}
        first = show.make.__name__ == "_table" and found < needed  # of two, one after the other
        assert found == needed or first, show.make.__name__
