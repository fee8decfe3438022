"""What a claim is, and when it counts as reproduced.

A claim's bands are written down, with their reason, before it is measured.  A measurement in the
first band reproduces it; one in the second has the paper's direction only.  Nothing is tuned
towards a claim.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moebench.harness.reproduce.evidence import Evidence, Experiment
from moebench.results.claims import Band, Exhibit, Measured, Paper, Verdict


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One figure or statement of a paper.

    Attributes:
        id: of the claim, and which of its figures: "S-2 S3 b1".
        place: where in the paper.
        statement: what the paper says.
        paper: its figure, in ``unit``; None where it is an order or a shape in words.
        reproduced: the measured figures that reproduce it.
        direction: those that have its direction only; None where there is nothing between.
        why: the reason for the bands.
        measure: the figure, from evidence.
        needs: the experiments that it reads.
        counters: carried out where the claim is not reproduced.
        explanation: what explains a difference, as far as it was found.
        not_measurable: why it cannot be measured here; then nothing else of this is asked.
    """

    id: str
    place: str
    statement: str
    paper: float | None
    unit: str
    reproduced: Band | None = None
    direction: Band | None = None
    why: str = ""
    measure: Callable[[Evidence], Measured] | None = None
    needs: tuple[Experiment, ...] = ()
    counters: tuple[CounterExperiment, ...] = ()
    explanation: str = ""
    not_measurable: str = ""

    def judge(self, measured: Measured) -> Verdict:
        """The verdict on a measurement: its value alone counts, not its interval."""
        if self.reproduced is not None and self.reproduced.holds(measured.value):
            return Verdict.REPRODUCED
        if self.direction is not None and self.direction.holds(measured.value):
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
    exhibits: tuple[Show, ...] = field(default=())
