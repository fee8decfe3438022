"""The front page of the papers' claims: counts, each paper's headlines, winners at equal memory.

All functions return cells of plain text, for Markdown and HTML alike.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from moebench.reports.sections.claims import (
    Counts,
    figure,
    made,
    number,
    paper_figure,
    summary,
    with_unit,
)
from moebench.reports.sections.claims_ranges import depends_on, extremes
from moebench.reports.text import MISSING
from moebench.results.claims import ClaimResult, Counter, Exhibit, PaperResult, Tag, Verdict

#: Systems within this share of the fastest one's TPOT tie with it.
TIE = 0.02

COUNTS = (
    "paper", "reproduced, with evidence", *(f"reproduced, {tag}" for tag in Tag),
    *(str(verdict) for verdict in Verdict if verdict is not Verdict.REPRODUCED),
)  # fmt: skip

HEADLINES = (
    "claim", "paper", "moebench", "over plausible constants", "other readings of the paper",
    "verdict", "depends on", "why it differs",
)  # fmt: skip

WINNERS = ("setting", "at equal memory", "fastest", "fastest lossless", "TPOT of the fastest (ms)")

#: Number of systems of a setting whose TPOT is shown.
SHOWN = 6

HOW_TO_READ = (
    "A claim's bands (in which figures it is reproduced, in the paper's direction only, or no "
    "effect) and their reasons were written before it was measured, and nothing is tuned towards "
    "them. They are not blind everywhere: some cells had been seen while this program was built, "
    "and edges at no effect were moved off it afterwards.",
    "The value decides, not its 95 % interval (in brackets).",
    "No effect: less than a quarter of the paper's effect, in either direction. Cannot show a "
    "loss: the scale model's score would not fall where it must.",
    "Reproduced with little evidence: by construction (the figure rests on the paper's own "
    "numbers), cannot fail here, or the same as another row. It is counted apart.",
    "Over plausible constants: lowest and highest figure while each uncertain number of the "
    "machine's profile is moved through its range, and the number that moves it most; depends on: "
    "the verdict changes within that range. Both are measured on the smaller cells of --quick.",
    "Other readings: the worst and the best of what the paper can also mean, by the distance from "
    "its figure.",
    "Times are simulated unless their badge says measured. \"Not known\" is an explanation.",
    "The JSON files have the sweeps that were run, and what counter-experiments change.",
)  # fmt: skip

WINNERS_CAPTION = (
    "All systems of a row have the same memory for experts. A system within 2 % of the fastest "
    "ties with it (=). ≈: lossy, the model's output may change."
)


class Front(NamedTuple):
    """Contents of the front page.

    Attributes:
        said: all claims by verdict, as a sentence.
        columns: those of `COUNTS` that have another number than 0.
        counts: a row for each paper and one for all, a cell for each of ``columns``.
        headlines: rows of cells of `HEADLINES`, by paper.
        winners: a row for each setting, a cell for each of `WINNERS`; empty if not measured.
        note: caption of the winners.
    """

    said: str
    columns: list[str]
    counts: list[list[str]]
    headlines: list[tuple[PaperResult, list[list[str]]]]
    winners: list[list[str]]
    note: str


def front(results: Sequence[PaperResult], equal_memory: Exhibit | None = None) -> Front:
    """Return the contents of the front page."""
    rows = [_counts(result.title, [result]) for result in results]
    if len(results) > 1:
        rows.append(_counts("all", results))
    kept = [i for i in range(len(COUNTS)) if i < 2 or any(row[i] != "0" for row in rows)]
    columns = [COUNTS[i] for i in kept]
    counts = [[row[i] for i in kept] for row in rows]
    headlines = [
        (result, [_headline(claim) for claim in result.claims if claim.headline])
        for result in results
    ]
    won = winners(equal_memory.rows) if equal_memory else []
    note = " ".join(filter(None, [WINNERS_CAPTION, equal_memory.note if equal_memory else ""]))
    shown = [(result, lines) for result, lines in headlines if lines]
    return Front(f"{summary(results)}.", columns, counts, shown, won, note)


def made_of(results: Iterable[PaperResult]) -> list[str]:
    """Return how the results were made, once for papers that were made alike."""
    by: dict[str, list[str]] = {}
    for result in results:
        by.setdefault(made(result), []).append(result.title)
    if len(by) == 1:
        return [next(iter(by))]
    return [f"{', '.join(titles)}: {said}" for said, titles in by.items()]


def _counts(title: str, results: Sequence[PaperResult]) -> list[str]:
    counts = Counts(results)
    found = [counts.evident, *(counts.tags[tag] for tag in Tag)]
    found += [counts.verdicts[verdict] for verdict in Verdict if verdict is not Verdict.REPRODUCED]
    return [title, *map(str, found)]


def _headline(claim: ClaimResult) -> list[str]:
    return [
        f"{claim.headline} ({claim.id})",
        with_unit(paper_figure(claim), claim.unit),
        _ours(claim),
        _over(claim),
        readings(claim),
        _verdict(claim),
        depends_on(claim) or MISSING,
        claim.cause or claim.reason or MISSING,
    ]


def _verdict(claim: ClaimResult) -> str:
    return f"{claim.verdict} ({claim.tag})" if claim.tag else str(claim.verdict)


def _ours(claim: ClaimResult) -> str:
    measured = claim.measured
    found = with_unit(figure(measured), claim.unit)
    if measured is None or measured.low is None or measured.high is None:
        return found
    return f"{found} ({number(measured.low)} to {number(measured.high)})"


def _over(claim: ClaimResult) -> str:
    """Return the extremes of a claim's figure over all ranges, and what moves it most."""
    found = extremes(claim)
    if found is None:
        return MISSING
    return f"{number(found.low)} to {number(found.high)} ({found.mover})"


def readings(claim: ClaimResult) -> str:
    """Return the readings whose figures are farthest from the paper's and nearest to it."""
    paper = claim.paper
    read = [one for one in claim.counters if one.reading]
    if paper is None or not read:
        return MISSING

    def distance(one: Counter) -> float:
        return abs(one.measured.value - paper)

    best, worst = min(read, key=distance), max(read, key=distance)
    chosen = [best] if best is worst else [worst, best]
    named = ("",) if best is worst else ("worst ", "best ")
    return "; ".join(
        f"{name}{figure(one.measured)} ({_brief(one.name)})"
        for name, one in zip(named, chosen, strict=True)
    )


def _brief(name: str) -> str:
    """Return the beginning of a counter-experiment's name; its full table has all of it."""
    return re.split(r" \(|[:;,]", name)[0]


# ----------------------------------------------------------------------------- at equal memory


def winners(rows: Iterable[dict[str, Any]]) -> list[list[str]]:
    """Return a row for each setting: the fastest systems, and some by ascending TPOT."""
    settings: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = (row["setting"], row["model"], row["machine"], row["memory_gb"])
        settings.setdefault(key, []).append(row)
    return list(map(_won, settings.values()))


def _won(rows: list[dict[str, Any]]) -> list[str]:
    first = rows[0]
    place = f"{first['model']}, {first['machine']}, {first['memory_gb']:.3g} GB"
    ordered = sorted(rows, key=lambda row: float(row["tpot_ms"]))
    lossless = [row for row in ordered if row["lossless"]]
    shown = ", ".join(f"{_system(row)} {number(row['tpot_ms'])}" for row in ordered[:SHOWN])
    return [str(first["setting"]), place, _fastest(ordered), _fastest(lossless), shown]


def _fastest(ordered: Sequence[dict[str, Any]]) -> str:
    """Return the first of some systems, and those that tie with it."""
    if not ordered:
        return MISSING
    most = ordered[0]["tpot_ms"] * (1 + TIE)
    return " = ".join(_system(row) for row in ordered if row["tpot_ms"] <= most)


def _system(row: dict[str, Any]) -> str:
    return str(row["system"]) if row["lossless"] else f"{row['system']} ≈"
