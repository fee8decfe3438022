"""Claims of one module beside the results that ship."""

import json
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

from moebench.harness.reproduce.claim import Claim, CounterExperiment, PaperClaims
from moebench.harness.reproduce.run_claims import sweeps
from moebench.results.claims import Exhibit, Verdict, read

DIFFERING = (Verdict.DIRECTION_ONLY, Verdict.NO_EFFECT, Verdict.NOT_REPRODUCED)

#: Counter-experiments of claims that ship without them, and why.
NOT_SHIPPED = {
    "U-3 broader": "its predictor of few texts was not trained",
    "F-7 Qwen3 growth": "there is no recording of the model",
}

#: Claims that need all texts, so that they have no figure over the ranges of numbers.
NO_RANGES = {"U-6 epochs 8x7B", "U-6 epochs 8x22B", "U-6 epochs order"}


def as_json(value: Any) -> Any:
    """Return a value as JSON holds it."""
    return json.loads(json.dumps(value))


def check_sweeps(paper: PaperClaims) -> None:
    """Check that results that ship were measured on the sweeps that are run now."""
    (shipped,) = (result for result in read() if result.paper == paper.paper)
    ours = {name: as_json(one.model_dump()) for name, one in sweeps(paper).items()}
    assert {name: one.model_dump() for name, one in shipped.experiments.items()} == ours


def check_counters(paper: PaperClaims, module: ModuleType) -> None:
    """Check that a module's counter-experiments change what those of the results that ship do."""
    (shipped,) = (result for result in read() if result.paper == paper.paper)
    known = {one.name: one for result in shipped.claims for one in result.counters}
    ours = [one for one in vars(module).values() if isinstance(one, CounterExperiment)]
    compared = [one for one in ours if one.name in known]
    assert compared
    for one in compared:
        assert as_json(one.changes) == known[one.name].changes, one.name
        assert one.reading == known[one.name].reading, one.name


def check(paper: str, claims: Iterable[Claim]) -> None:
    """Check that claims are those of the results that ship, in all that needs no run."""
    (shipped,) = (result for result in read() if result.paper == paper)
    known = {result.id: result for result in shipped.claims}
    whole = import_module(f"moebench.harness.reproduce.{paper}").PAPER.claims
    ids = [claim.id for claim in claims]
    names = set(ids)
    assert 0 < len(names) == len(ids), "each claim once"
    for claim in whole:
        if claim.id not in names:
            continue
        result = known[claim.id]
        assert (claim.place, claim.statement, claim.paper, claim.unit, claim.sources) == (
            result.place, result.statement, result.paper, result.unit, result.sources,
        ), claim.id  # fmt: skip
        bands = claim.bands
        assert (bands.reproduced, bands.direction, bands.no_effect, bands.why) == (
            result.reproduced, result.direction, result.no_effect, result.why,
        ), claim.id  # fmt: skip
        assert bool(result.turns) == (claim.turns is not None), claim.id
        if result.tag is not None:
            assert (claim.tag, claim.tag_reason) == (result.tag, result.tag_reason), claim.id
        elif claim.tag is not None:
            assert result.verdict in (Verdict.CANNOT_SHOW, Verdict.NOT_MEASURABLE), claim.id
        assert result.verdict is not Verdict.CANNOT_SHOW or claim.control is not None, claim.id
        differs, measured = result.verdict in DIFFERING, result.measured
        tried = [(one.name, one.reading) for one in claim.counters
                 if differs or (one.always and measured is not None)]  # fmt: skip
        made = [(one.name, one.reading) for one in result.counters]
        assert made == tried[: len(tried) - (claim.id in NOT_SHIPPED)], claim.id
        changes = {one.name: as_json(one.changes) for one in claim.counters}
        assert all(one.changes == changes[one.name] for one in result.counters), claim.id
        moved = [one.field for one in result.ranges]
        judged = differs or result.verdict is Verdict.REPRODUCED
        if judged and measured is not None and measured.badge != "counted":
            assert moved == ([] if claim.id in NO_RANGES else [*claim.numbers]), claim.id
        else:
            assert moved == [], claim.id
    assert names <= {claim.id for claim in whole}


def check_words(found: Exhibit) -> None:
    """Check that an exhibit is the one that ships, but for rows that were measured."""
    known = {one.id: one for result in read() for one in result.exhibits}
    numbers: dict[str, Any] = {"rows": (), "badge": "", "runs": ()}
    expected = known[found.id].model_copy(update=numbers)
    assert found.model_copy(update=numbers) == expected
