"""The papers' claims as rows of text: statement, measurement, verdict, and what that rests on."""

from collections import Counter
from collections.abc import Iterable, Sequence

from moebench.reports.sections.claims_ranges import depends_on
from moebench.reports.text import MISSING, TextTable, counted, text_table
from moebench.results.claims import ClaimResult, Measured, PaperResult, Tag, Verdict

HEADERS = (
    "claim", "place", "statement", "paper", "moebench", "95 % interval", "unit", "verdict",
    "depends on", "little evidence", "reproduced if", "no effect if", "direction if", "badge",
    "conditions",
)  # fmt: skip

CAPTION = (
    "Bands were written down before the runs; the value decides, not its interval. Direction "
    "only: the paper's order or sign, not its size. No effect: less than a quarter of the paper's "
    "effect. Depends on: the verdict changes within the range of a number of the machine's "
    "profile. Little evidence: by construction (the figure rests on the paper's own numbers), "
    "cannot fail here, same as another row. A badge says what times rest on; counted: no time is "
    "in the figure."
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
    said = f"{summary([result])}; {made(result)}"
    return text_table(f"claims of {result.title}", shown, rows, said, [CAPTION])


class Counts:
    """Numbers of claims by verdict, and of reproduced ones by tag.

    Attributes:
        verdicts: all claims, by verdict.
        tags: reproduced claims with a tag, by tag.
        evident: reproduced claims without a tag.
    """

    def __init__(self, results: Iterable[PaperResult]) -> None:
        claims = [claim for result in results for claim in result.claims]
        self.verdicts = Counter(claim.verdict for claim in claims)
        self.tags = Counter(
            claim.tag for claim in claims
            if claim.verdict is Verdict.REPRODUCED and claim.tag is not None
        )  # fmt: skip
        self.evident = self.verdicts[Verdict.REPRODUCED] - self.tags.total()


def summary(results: Iterable[PaperResult]) -> str:
    """Return the number of claims by verdict, as text; little evidence is counted apart."""
    counts = Counts(results)
    said = [f"{counts.evident} reproduced with evidence"] if counts.evident else []
    if tagged := counts.tags.total():
        why = ", ".join(f"{counts.tags[tag]} {tag}" for tag in Tag if counts.tags[tag])
        said.append(f"{tagged} reproduced with little evidence ({why})")
    said += [
        f"{counts.verdicts[verdict]} {verdict}"
        for verdict in Verdict
        if counts.verdicts[verdict] and verdict is not Verdict.REPRODUCED
    ]
    return f"{counted(counts.verdicts.total(), 'claim')}: {', '.join(said)}"


def paper_figure(claim: ClaimResult) -> str:
    """Return the paper's figure as text; a dash if the claim is about an order or a shape."""
    return MISSING if claim.paper is None else number(claim.paper)


def figure(measured: Measured | None) -> str:
    """Return the measured figure as text."""
    return MISSING if measured is None else number(measured.value)


def number(value: float) -> str:
    """Return a figure with four significant digits."""
    return f"{value:.4g}"


def ends(measured: Measured | None) -> str:
    """Return the interval of a measured figure as text, with its samples.

    "exact" if its conditions say that no sample exists, and a dash if there was only one.
    """
    if measured is None or measured.low is None or measured.high is None:
        exact = measured is not None and "exact" in measured.conditions
        return "exact" if exact else MISSING
    over = measured.over.removesuffix("s") if len(measured.samples) == 1 else measured.over
    return f"{number(measured.low)} to {number(measured.high)} ({len(measured.samples)} {over})"


def with_unit(text: str, unit: str) -> str:
    """Return a figure's text followed by its unit; shares and counts ("1") have none."""
    return text if unit == "1" or text == MISSING else f"{text} {unit}"


def made(result: PaperResult) -> str:
    """Return how and when a paper's results were made, and from which commit, as a sentence."""
    kind = "Run with --quick: fewer prompts, workloads and seeds" if result.quick else "Full run"
    known = result.provenance
    commit = f"commit {known['commit']}" if known.get("commit") else ""
    created = str(known.get("created", ""))[:10]
    return f"{', '.join(filter(None, [kind, commit, created]))}."


def tag_of(claim: ClaimResult) -> str:
    """Return a claim's tag with its reason, or a dash."""
    return MISSING if claim.tag is None else f"{claim.tag}: {claim.tag_reason}"


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
        depends_on(claim) or MISSING,
        tag_of(claim),
        *_bands(claim),
        MISSING if measured is None else measured.badge,
        claim.reason if measured is None else measured.conditions,
    ]


def _bands(claim: ClaimResult) -> Sequence[str]:
    bands = (claim.reproduced, claim.no_effect, claim.direction)
    return [MISSING if band is None else str(band) for band in bands]
