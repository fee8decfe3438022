"""Types of claims, counter-experiments and exhibits, and the rule by which a claim is reproduced.

A claim's bands and their reason are fixed before it is measured.  A figure in the first band
reproduces the claim; a figure with less than a quarter of the paper's effect has none; others may
have the paper's direction only.  Nothing is tuned towards a claim.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moebench.harness.reproduce.bands import NONE, Bands
from moebench.harness.reproduce.evidence import Evidence, Experiment
from moebench.results.claims import Exhibit, Measured, Paper, Tag, Verdict


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
        reading: whether it is another reading of the paper, which may be what its authors did: the
            front page shows the best and the worst of them.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    measure: Callable[[Evidence], Measured] | None = None
    always: bool = False
    reading: bool = False


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
        headline: short name on the front page, and ``cause``: of its difference in one sentence
            (`paper_claims`).
        not_measurable: why the claim cannot be measured; it then has no bands and no measure.
        tag, tag_reason: why a verdict is little evidence, if it is.
        control: the positive control of an accuracy claim: returns why a loss could not be seen, or
            "" if one is seen where there must be one.
        timed_here: whether the figure is a time of this computer, on which there is no verdict.
        sources: who reported it and where, for claims that are of no single paper.
        turns: returns the condition on which the claim turns as a sentence with measured numbers.
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
    headline: str = ""
    cause: str = ""
    not_measurable: str = ""
    tag: Tag | None = None
    tag_reason: str = ""
    control: Callable[[Evidence], str] | None = None
    timed_here: bool = False
    sources: tuple[str, ...] = ()
    turns: Callable[[Evidence], str] | None = None

    def judge(self, value: float) -> Verdict:
        """Return the verdict on a figure; its interval has no part in it."""
        if self.timed_here:
            return Verdict.NO_VERDICT
        bands = (
            (self.bands.reproduced, Verdict.REPRODUCED),
            (self.bands.no_effect, Verdict.NO_EFFECT),
            (self.bands.direction, Verdict.DIRECTION_ONLY),
        )
        for band, verdict in bands:
            if band is not None and band.holds(value):
                return verdict
        return Verdict.NOT_REPRODUCED

    def tagged(self, tag: Tag, reason: str) -> "Claim":
        """Return this claim with a tag and its reason."""
        return replace(self, tag=tag, tag_reason=reason)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Fields of the numbers over whose ranges the claim is measured."""
        return tuple(dict.fromkeys(name for one in self.needs for name in one.numbers))


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


@dataclass(frozen=True, slots=True)
class Headline:
    """A claim's place on the front page: its short name, and the cause of its difference.

    Attributes:
        name: what the figure is, in a few words, for readers who have not read the paper.
        cause: why ours differs, in one sentence; "" if it does not.
    """

    name: str
    cause: str = ""


def paper_claims(
    paper: Paper, title: str, claims: Iterable[Claim], exhibits: tuple[Show, ...],
    explanations: Mapping[str, str], headlines: Mapping[str, Headline],
) -> PaperClaims:  # fmt: skip
    """Collect a paper's claims, and give each its explanation of a difference.

    Args:
        explanations: by the leading words of claim ids; the longest match applies.
        headlines: by claim id, in the order of the front page.
    """

    def explained(claim: Claim) -> Claim:
        known = [k for k in explanations if f"{claim.id} ".startswith((f"{k} ", f"{k},"))]
        why = explanations[max(known, key=len)] if known else ""
        shown = headlines.get(claim.id, Headline(""))
        return replace(claim, explanation=why, headline=shown.name, cause=shown.cause)

    return PaperClaims(paper, title, tuple(map(explained, claims)), exhibits)
