"""The page's sections of text tables: fidelity, claims, accuracy, evaluators, failures."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from moebench.reports.figures import exhibits
from moebench.reports.figures import search as search_charts
from moebench.reports.figures.accuracy import MEASURES, curves
from moebench.reports.figures.batches import over_batches
from moebench.reports.figures.history import history_chart
from moebench.reports.figures.style import system_colours
from moebench.reports.sections import accuracy as alpha
from moebench.reports.sections import batches as over_batch
from moebench.reports.sections import (
    claims,
    claims_details,
    claims_front,
    evaluations,
    failures,
    fidelity,
    field,
)
from moebench.reports.sections import history as over_commits
from moebench.reports.sections import search as of_searches
from moebench.reports.sections.components import HEADERS, table
from moebench.results.claims import Exhibit, PaperResult
from moebench.results.document import Document
from moebench.results.field import rows_of
from moebench.results.searches import Searched
from moebench.results.store import Cell

#: Sections that always hold what ships with moebench.
SHIPPED = frozenset({"fidelity", "components"})


class Part(NamedTuple):
    """A table of a section: its title (may be empty), headers and cells of text.

    Attributes:
        said: a sentence above the table; may be empty.
        fold: the summary under which this table and those that follow with the same one are
            folded; empty if the table is open.
    """

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    said: str = ""
    fold: str = ""


class Section(NamedTuple):
    """A section of the page, omitted if it has no rows.

    Attributes:
        name: anchor of the section.
        caption: explanation of the tables.
        folded: summary under which the tables are folded; empty if they are open.
    """

    name: str
    title: str
    parts: Sequence[Part]
    caption: str
    folded: str = ""


def tables(
    runs: Sequence[Document], failed: Sequence[Cell], results: Sequence[PaperResult],
    components: Sequence[Mapping[str, Any]], equal_memory: Exhibit | None = None,
) -> dict[str, Section]:  # fmt: skip
    """Return the sections that have rows, by name.

    Args:
        equal_memory: all systems at equal memory, for the section of claims.
    """
    of_field = rows_of(runs, failed)
    found = [
        Section(
            "field",
            field.TITLE,
            [
                Part("", field.HEADERS, field.lines(of_field)),
                Part(field.SUMMARY_TITLE, field.SUMMARY, field.summary(of_field)),
            ],
            field.caption() if of_field else "",
        ),
        Section(
            "fidelity",
            "Simulated and measured times",
            [Part(*one) for one in fidelity.parts()],
            fidelity.CAPTION,
        ),
        Section(
            "claims",
            "The papers' claims",
            _claims(results, equal_memory) if results else [],
            " ".join(claims_front.HOW_TO_READ),
        ),
        Section(
            "evaluators",
            "Evaluators",
            [Part("", evaluations.HEADERS, evaluations.lines(runs))],
            evaluations.CAPTION,
        ),
        Section(
            "failures",
            "Failed cells",
            [Part("", failures.HEADERS, failures.lines(failed))],
            "Failed configurations of sweeps. Tracebacks are files in the store's folder; moebench "
            "sweep --retry-failed runs them again.",
        ),
        Section(
            "not-possible",
            "Not possible here",
            [Part("", failures.REASON_HEADERS, failures.reasons(failed))],
            "Configurations of sweeps that cannot run: a system lacks what it reads, or memory is "
            "too small.",
        ),
    ]
    if components:
        shown = table(components)
        found.append(
            Section(
                "components",
                "Components of the simulated machines",
                [Part("", HEADERS, shown.rows)],
                "Published times of single operations, from the papers and their authors' code, "
                "and the cost model's charge for the same operation on that machine; the ratio is "
                "to the nearer end of a published range. A row from which a profile takes its "
                "number agrees by construction.",
                f"{shown.summary}.",
            )
        )
    return {one.name: one for one in found if any(part.rows for part in one.parts)}


def by_fold(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """Return parts in groups that are folded together, with the summary of each group."""
    return [(fold, list(group)) for fold, group in groupby(parts, key=lambda part: part.fold)]


def _claims(results: Sequence[PaperResult], equal_memory: Exhibit | None) -> list[Part]:
    """Return the front page of the papers' claims, then the full tables, folded by paper."""
    found = claims_front.front(results, equal_memory)
    made = " ".join(claims_front.made_of(results))
    parts = [Part("", found.columns, found.counts, f"{found.said} {made}")]
    parts += [
        Part(f"{result.title}: headlines", claims_front.HEADLINES, rows)
        for result, rows in found.headlines
    ]
    if found.winners:
        title = "The fastest systems at equal memory"
        parts.append(Part(title, claims_front.WINNERS, found.winners, found.note))
    for result in results:
        fold = f"{result.title}: {claims.summary([result])}"
        parts += [
            Part(one.title, one.headers, one.rows, one.said, fold)
            for one in claims_details.details(result)
        ]
    return parts


def papers(results: Sequence[PaperResult]) -> list[dict[str, Any]]:
    """Return each paper's tables and figures with title, note, and spec or cells."""
    return [
        {"title": result.title, "exhibits": [_exhibit(one) for one in result.exhibits]}
        for result in results
        if result.exhibits
    ]


def _exhibit(one: Exhibit) -> dict[str, Any]:
    drawn = exhibits.spec(one)
    return {
        "id": one.id, "title": f"{one.place}: {one.title}", "badge": one.badge, "note": one.note,
        "spec": drawn,
        "part": Part("", exhibits.headers(one), exhibits.lines(one)),
    }  # fmt: skip


def accuracy(index: int, view: alpha.View) -> dict[str, Any]:
    """Return one setting's accuracy: its tables, and its charts with their rows."""
    drawn = []
    for generated, what in ((False, "real datasets"), (True, "generated exercises")):
        chosen = [one for one in view.series if one.generated == generated]
        for measure in MEASURES:
            found = curves(chosen, measure)
            if found is not None:
                name = f"accuracy-{index + 1}-{measure}-{'generated' if generated else 'real'}"
                caption = f"{measure} against α, {what}"
                drawn.append({"id": name, "spec": found[0], "rows": found[1], "caption": caption})
    return {"anchor": f"accuracy-{index + 1}", "view": view, "figures": drawn,
            "headers": alpha.VERDICT_HEADERS}  # fmt: skip


def batches(runs: Sequence[Document]) -> list[dict[str, Any]]:
    """Return each machine's throughput over the batch: its chart with rows, and its table."""
    drawn = []
    machines = over_batch.drawn(over_batch.times_of(runs))
    names = system_colours(sorted({name for systems in machines.values() for name in systems}))
    for index, (place, systems) in enumerate(machines.items()):
        colours = {name: colour for name, (colour, _) in names.items() if name in systems}
        part = Part("", over_batch.headers(systems), over_batch.lines(systems))
        drawn.append({"id": f"batches-{index + 1}", "spec": over_batches(colours),
                      "rows": over_batch.rows(systems), "title": place,
                      "said": over_batch.order(systems), "part": part})  # fmt: skip
    return drawn


def searches(found: Sequence[Searched]) -> list[dict[str, Any]]:
    """Return each place of each search: its two charts with rows, and its table."""
    drawn: list[dict[str, Any]] = []
    for one in found:
        for place in one.places:
            name = f"search-{len(drawn) + 1}"
            across, rows = of_searches.candidate_rows(place)
            part = Part("", of_searches.HEADERS, of_searches.lines(place))
            drawn.append({
                "id": name, "spec": search_charts.trials(), "rows": of_searches.history_rows(one),
                "second": f"{name}-candidates", "second_spec": search_charts.candidates(across),
                "second_rows": rows, "title": place.place, "said": of_searches.said(one, place),
                "part": part,
            })  # fmt: skip
    return drawn


def history(found: over_commits.Since | None) -> list[dict[str, Any]]:
    """Return each history over commits: its chart with rows, and its table."""
    drawn = []
    for index, one in enumerate(found.histories if found else ()):
        spec, rows = history_chart(one)
        shown = over_commits.table(one, found.since if found else "")
        drawn.append({"id": f"history-{index + 1}", "spec": spec, "rows": rows,
                      "title": shown.title, "said": shown.said, "notes": shown.notes,
                      "part": Part("", shown.headers, shown.rows)})  # fmt: skip
    return drawn
