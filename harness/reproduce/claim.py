"""What a claim is, and when it counts as reproduced.

A claim's bands are written down, with their reason, before it is measured.  A measurement in the
first band reproduces it; one in the second has the paper's direction only.  Nothing is tuned
towards a claim.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moebench.harness.reproduce.bands import NONE, Bands
from moebench.harness.reproduce.evidence import Evidence, Experiment
from moebench.results.claims import Exhibit, Measured, Paper, Verdict


@dataclass(frozen=True, slots=True, eq=False)
class CounterExperiment:
    """The same claim under other conditions, to see what explains a difference.

    Attributes:
        name: what is changed, in words.
        changes: fields of a sweep that replace those of the claim's experiments; a list replaces an
            axis.
        measure: the figure under another reading, in the claim's unit; by default the claim's own.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    measure: Callable[[Evidence], Measured] | None = None


LEAN = CounterExperiment("lean software in place of Hugging Face's", {"software": "lean"})


@dataclass(frozen=True, slots=True)
class Claim:
    """One figure or statement of a paper.

    Attributes:
        id: of the claim, and which of its figures: "S-2 S3 b1".
        place: where in the paper.
        statement: what the paper says.
        paper: its figure, in ``unit``; None where it is an order or a shape in words.
        bands: the measured figures that reproduce it or have its direction, and why.
        measure: the figure, from evidence.
        needs: the experiments that it reads.
        counters: carried out where the claim is not reproduced.
        explanation: what explains a difference, as far as it was found (`paper_claims`).
        not_measurable: why it cannot be measured here; then it has no bands and no measure.
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
        """The verdict on a measurement: its value alone counts, not its interval."""
        if self.bands.reproduced is not None and self.bands.reproduced.holds(measured.value):
            return Verdict.REPRODUCED
        if self.bands.direction is not None and self.bands.direction.holds(measured.value):
            return Verdict.DIRECTION_ONLY
        return Verdict.NOT_REPRODUCED


@dataclass(frozen=True, slots=True)
class Show:
    """A table or figure of a paper: how its data are made, from which experiments."""

    make: Callable[[Evidence], Exhibit]
    needs: tuple[Experiment, ...] = ()


@dataclass(frozen=True, slots=True)
class PaperClaims:
    """All that is measured again of one paper."""

    paper: Paper
    title: str
    claims: tuple[Claim, ...]
    exhibits: tuple[Show, ...] = ()


def paper_claims(
    paper: Paper, title: str, claims: Iterable[Claim], exhibits: tuple[Show, ...],
    explanations: Mapping[str, str],
) -> PaperClaims:  # fmt: skip
    """Collect a paper's claims, each with what explains a difference.

    Args:
        explanations: by whole words with which the ids of claims begin; the longest one counts.
    """

    def explained(claim: Claim) -> Claim:
        known = [k for k in explanations if f"{claim.id} ".startswith((f"{k} ", f"{k},"))]
        return replace(claim, explanation=explanations[max(known, key=len)]) if known else claim

    return PaperClaims(paper, title, tuple(map(explained, claims)), exhibits)
