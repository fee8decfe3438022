"""Types of claims, counter-experiments and exhibits, and the rule by which a claim is reproduced.

A claim's bands and their reason are fixed before it is measured.  A measurement in the first band
reproduces the claim; one in the second has the paper's direction only.  Nothing is tuned towards a
claim.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moebench.harness.reproduce.bands import NONE, Bands
from moebench.harness.reproduce.evidence import Evidence, Experiment
from moebench.results.claims import Exhibit, Measured, Paper, Verdict


@dataclass(frozen=True, slots=True, eq=False)
class CounterExperiment:
    """A measurement of a claim under changed conditions, to find what explains a difference.

    Attributes:
        name: description of the change.
        changes: fields of a sweep that replace those of the claim's experiments; a list replaces an
            axis.
        measure: measures another reading of the figure, in the claim's unit; by default the claim's
            own ``measure``.
        always: whether it is also run where the claim is reproduced, because the paper can be read
            in both ways.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    measure: Callable[[Evidence], Measured] | None = None
    always: bool = False


LEAN = CounterExperiment("lean software in place of Hugging Face's", {"software": "lean"})


@dataclass(frozen=True, slots=True)
class Claim:
    """One figure or statement of a paper, with its bands and the function that measures it.

    Attributes:
        id: claim number and figure: "S-2 S3 b1".
        place: figure, table or section of the paper.
        paper: the paper's figure, in ``unit``; None for an order or a shape in words.
        needs: the experiments that ``measure`` reads.
        counters: counter-experiments that run if the claim is not reproduced, or ``always``.
        explanation: the known reason for a difference (`paper_claims`).
        not_measurable: why the claim cannot be measured; it then has no bands and no measure.
    """

    id: str
    place: str
    statement: str
    paper: float | None
    unit: str
    bands: Bands = NONE
    measure: Callable[[Evidence], Measured] | None = None
    needs: tuple[Experiment, ...] = ()
    counters: tuple[CounterExperiment, ...] = ()
    explanation: str = ""
    not_measurable: str = ""

    def judge(self, measured: Measured) -> Verdict:
        """Return the verdict on a measurement, from its value and not from its interval."""
        if self.bands.reproduced is not None and self.bands.reproduced.holds(measured.value):
            return Verdict.REPRODUCED
        if self.bands.direction is not None and self.bands.direction.holds(measured.value):
            return Verdict.DIRECTION_ONLY
        return Verdict.NOT_REPRODUCED


@dataclass(frozen=True, slots=True)
class Show:
    """The function that makes a table or figure of a paper, and the experiments that it needs."""

    make: Callable[[Evidence], Exhibit]
    needs: tuple[Experiment, ...] = ()


@dataclass(frozen=True, slots=True)
class PaperClaims:
    """The claims, tables and figures of one paper that are measured again."""

    paper: Paper
    title: str
    claims: tuple[Claim, ...]
    exhibits: tuple[Show, ...] = ()


def paper_claims(
    paper: Paper, title: str, claims: Iterable[Claim], exhibits: tuple[Show, ...],
    explanations: Mapping[str, str],
) -> PaperClaims:  # fmt: skip
    """Collect a paper's claims, and give each its explanation of a difference.

    Args:
        explanations: by the leading words of claim ids; the longest match applies.
    """

    def explained(claim: Claim) -> Claim:
        known = [k for k in explanations if f"{claim.id} ".startswith((f"{k} ", f"{k},"))]
        return replace(claim, explanation=explanations[max(known, key=len)]) if known else claim

    return PaperClaims(paper, title, tuple(map(explained, claims)), exhibits)
