"""Full tables of one paper's claims: rows by figure, and what several claims share, said once."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from moebench.reports.sections.claims import ends, figure, number, paper_figure, with_unit
from moebench.reports.sections.claims_ranges import depends_on, extremes, implied, with_crossings
from moebench.reports.text import MISSING
from moebench.results.claims import ClaimResult, PaperResult


class Block(NamedTuple):
    """A titled table; ``said`` is a sentence above it.

    Attributes:
        below: whether it belongs to the block before it, under the same heading of a higher level.
    """

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    said: str = ""
    below: bool = False


_CLAIMS = ("claim", "statement", "paper", "moebench", "verdict", "reproduced if",
           "over constants", "conditions")  # fmt: skip


def details(result: PaperResult) -> list[Block]:
    """Return all tables of a paper's claims that have rows, in reading order."""
    claims = result.claims
    return [
        one
        for one in (
            _turns(claims), *_by_place(claims), _sources(claims), _tags(claims),
            _explained(claims), _unmeasured(claims), _crossings(claims), _implied(claims),
            _counters(claims), _bands(claims),
        )
        if one.rows
    ]  # fmt: skip


def _by_place(claims: Iterable[ClaimResult]) -> list[Block]:
    by: dict[str, list[ClaimResult]] = {}
    for claim in claims:
        by.setdefault(claim.place, []).append(claim)
    return [
        Block(where, _CLAIMS, [_row(claim) for claim in found], below=True)
        for where, found in by.items()
    ]


def _row(claim: ClaimResult) -> list[str]:
    found = extremes(claim)
    verdict = str(claim.verdict) + (f" ({claim.tag})" if claim.tag else "")
    if depends := depends_on(claim):
        verdict += f"; depends on {depends}"
    measured = claim.measured
    return [
        claim.id,
        claim.statement,
        with_unit(paper_figure(claim), claim.unit),
        _measured(claim),
        verdict,
        MISSING if claim.reproduced is None else str(claim.reproduced),
        f"{number(found.low)} to {number(found.high)}" if found else MISSING,
        MISSING if measured is None else f"{measured.conditions or MISSING}; {measured.badge}",
    ]


def _turns(claims: Iterable[ClaimResult]) -> Block:
    rows = [
        [
            f"{claim.headline or claim.statement} ({claim.id})",
            with_unit(paper_figure(claim), claim.unit), _measured(claim),
            f"{number(found.low)} to {number(found.high)} ({found.mover})"
            if (found := extremes(claim)) else MISSING,
            str(claim.verdict), claim.turns,
        ]
        for claim in claims
        if claim.turns
    ]  # fmt: skip
    headers = ("claim", "reported", "moebench", "over constants", "verdict", "condition")
    said = "A condition is computed from the same cells as the figure."
    return Block("Verdicts, and the condition on which each turns", headers, rows, said)


def _sources(claims: Iterable[ClaimResult]) -> Block:
    rows = _shared(("; ".join(claim.sources), claim) for claim in claims)
    return Block("Who reports it", ("claims", "sources"), rows)


def _measured(claim: ClaimResult) -> str:
    """Return a claim's figure with its interval, in one cell."""
    found = with_unit(figure(claim.measured), claim.unit)
    interval = ends(claim.measured).replace(" (", ", ").rstrip(")")
    return found if interval == MISSING else f"{found} ({interval})"


def _tags(claims: Iterable[ClaimResult]) -> Block:
    by: dict[tuple[str, str], list[str]] = {}
    for claim in claims:
        if claim.tag:
            by.setdefault((str(claim.tag), claim.tag_reason), []).append(claim.id)
    rows = [[tag, ", ".join(ids), why] for (tag, why), ids in sorted(by.items())]
    return Block("Verdicts with little evidence", ("tag", "claims", "reason"), rows)


def _explained(claims: Iterable[ClaimResult]) -> Block:
    rows = _shared((claim.explanation, claim) for claim in claims)
    said = "Written after measuring; one explanation may hold for several claims."
    return Block("Why figures differ", ("claims", "explanation"), rows, said)


def _unmeasured(claims: Iterable[ClaimResult]) -> Block:
    rows = _shared((claim.reason, claim) for claim in claims)
    return Block("Claims without a verdict on their figure", ("claims", "reason"), rows)


def _bands(claims: Iterable[ClaimResult]) -> Block:
    rows = _shared((claim.why, claim) for claim in claims)
    said = "Written before measuring."
    return Block("Reasons for the bands", ("claims", "reason"), rows, said)


def _shared(found: Iterable[tuple[str, ClaimResult]]) -> list[list[str]]:
    """Return a row for each distinct text that is not empty: its claims, and the text."""
    by: dict[str, list[str]] = {}
    for text, claim in found:
        if text:
            by.setdefault(text, []).append(claim.id)
    return [[", ".join(ids), text] for text, ids in by.items()]


def _crossings(claims: Iterable[ClaimResult]) -> Block:
    return Block(
        "Verdicts that change within a range",
        ("claim", "number", "low end", "high end", "verdict"),
        with_crossings(claims),
        "Each uncertain number of the machine's profile is moved alone, on the cells of --quick; "
        "crossings were found by bisection.",
    )


def _implied(claims: Iterable[ClaimResult]) -> Block:
    return Block(
        "Values that the paper's figures imply",
        ("number", "claim", "the profile's", "where ours equals the paper's figure"),
        implied(claims),
        "Where a claim has the paper's figure within the number's range, all else unchanged.",
    )


def _counters(claims: Iterable[ClaimResult]) -> Block:
    rows = [
        [
            claim.id,
            f"{one.name} (a reading of the paper)" if one.reading else one.name,
            MISSING if one.unchanged is None else with_unit(number(one.unchanged), claim.unit),
            _figure_of(claim.model_copy(update={"measured": one.measured})),
            str(one.verdict),
        ]
        for claim in claims
        for one in claim.counters
    ]
    headers = ("claim", "changed", "unchanged figure", "changed figure", "verdict then")
    said = "Both figures are measured on the cells of --quick."
    return Block("Counter-experiments", headers, rows, said)


def _figure_of(claim: ClaimResult) -> str:
    """Return a figure with its interval, which is left out where there is none."""
    return _measured(claim)
