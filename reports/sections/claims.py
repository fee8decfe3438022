"""The papers' claims as rows of text: statement, measurement and verdict."""

from collections import Counter
from collections.abc import Iterable, Sequence

from moebench.reports.text import MISSING, TextTable, text_table
from moebench.results.claims import ClaimResult, Measured, PaperResult, Verdict

HEADERS = (
    "claim", "place", "statement", "paper", "moebench", "95 % interval", "unit", "verdict",
    "reproduced if", "direction if", "badge", "conditions",
)  # fmt: skip

CAPTION = (
    "Bands were written down before the runs; the value decides, not its interval. Direction "
    "only: the paper's order or sign, not its size. A badge says what times rest on; counted: no "
    "time is in the figure."
)


def lines(result: PaperResult) -> list[list[str]]:
    """Return a row for each claim of a paper, a cell for each of `HEADERS`."""
    return [_line(claim) for claim in result.claims]


def table(result: PaperResult, brief: bool = False) -> TextTable:
    """Return the table of a paper's claims and verdicts.

    Args:
        brief: omit bands and conditions.
    """
    shown = HEADERS[: HEADERS.index("reproduced if")] if brief else HEADERS
    rows = [line[: len(shown)] for line in lines(result)]
    said = f"{summary([result])}; {_made(result)}"
    return text_table(f"claims of {result.title}", shown, rows, said, [CAPTION])


def summary(results: Iterable[PaperResult]) -> str:
    """Return the number of claims by verdict, as text."""
    counts = Counter(claim.verdict for result in results for claim in result.claims)
    said = [f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]]
    return f"{counts.total()} claims: {', '.join(said)}"


def paper_figure(claim: ClaimResult) -> str:
    """Return the paper's figure as text; a dash if the claim is about an order or a shape."""
    return MISSING if claim.paper is None else f"{claim.paper:.4g}"


def figure(measured: Measured | None) -> str:
    """Return the measured figure as text."""
    return MISSING if measured is None else f"{measured.value:.4g}"


def ends(measured: Measured | None) -> str:
    """Return the interval of a measured figure as text, with its samples."""
    if measured is None or measured.low is None or measured.high is None:
        return MISSING
    return f"{measured.low:.4g} to {measured.high:.4g} ({len(measured.samples)} {measured.over})"


def _line(claim: ClaimResult) -> list[str]:
    measured = claim.measured
    return [
        claim.id,
        claim.place,
        claim.statement,
        paper_figure(claim),
        figure(measured),
        ends(measured),
        claim.unit,
        str(claim.verdict),
        MISSING if claim.reproduced is None else str(claim.reproduced),
        MISSING if claim.direction is None else str(claim.direction),
        MISSING if measured is None else measured.badge,
        claim.reason if measured is None else measured.conditions,
    ]


# ----------------------------------------------------------------------------- as a document


def markdown(results: Sequence[PaperResult]) -> str:
    """Return all claims as Markdown, with bands, explanations and counter-experiments."""
    parts = [f"{summary(results)}.", "", CAPTION, ""]
    for result in results:
        parts += [f"## {result.title}", "", _made(result), ""]
        shown = ("claim", "place", "statement", "paper", "moebench", "unit", "verdict")
        parts += [_row(shown), _row(["---"] * len(shown))]
        at = [HEADERS.index(name) for name in shown]
        parts += [_row([line[i] for i in at]) for line in lines(result)]
        parts.append("")
        for claim in result.claims:
            if claim.verdict is not Verdict.REPRODUCED:
                parts += [*_difference(claim), ""]
    return "\n".join(parts)


def _made(result: PaperResult) -> str:
    kind = "with --quick: fewer prompts" if result.quick else "full run"
    return f"{kind.capitalize()}, {str(result.provenance.get('created', ''))[:10]}."


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _difference(claim: ClaimResult) -> list[str]:
    """Return the explanation of a claim that was not reproduced, in Markdown paragraphs."""
    found = [f"**{claim.id}** ({claim.verdict}). "]
    if claim.reason:
        found[0] += claim.reason
    else:
        unit = "" if claim.unit == "1" else f" {claim.unit}"
        found[0] += (
            f"moebench: {figure(claim.measured)}{unit} (interval {ends(claim.measured)}), in the "
            f"paper {paper_figure(claim)}{unit}; reproduced if {claim.reproduced}: {claim.why}"
        )
    if claim.explanation:
        found.append(claim.explanation)
    found += [
        f"- {one.name}: {figure(one.measured)} (interval {ends(one.measured)}), {one.verdict}"
        for one in claim.counters
    ]
    return found
