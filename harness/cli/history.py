"""``moebench report --since``: a figure of users' own systems over the commits of a repository."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moebench.harness import console
from moebench.substrate.errors import UsageError

if TYPE_CHECKING:
    from moebench.reports.compare.history import Placed
    from moebench.reports.sections.history import Since
    from moebench.results.store import Store


def over_commits(
    since: str | None, metric: str | None, store: "Store", runs: Sequence[dict[str, Any]]
) -> "Since | None":
    """Return the histories of users' own systems after a commit, or None if none is given.

    Raises UsageError: there are none, or an option is wrong.
    """
    from moebench.reports.compare.history import FIGURES, histories
    from moebench.reports.sections.history import Since
    from moebench.results.metrics import metric_of
    from moebench.systems.registry import needs_import

    if metric is not None and metric not in FIGURES:
        raise UsageError(f"--metric {metric}: allowed: {', '.join(FIGURES)}")
    if since is None:
        if metric is not None:
            raise UsageError(f"--metric {metric}: needs a range of commits; add --since REV")
        return None
    from moebench.harness.history.place import place
    from moebench.harness.history.repository import opened

    own = [run for run in runs if needs_import(run["spec"]["system"], {})]
    with opened(Path.cwd(), since) as repository:
        commits = repository.commits_since(since)
        # A brief document lacks the effects of the profile's numbers on TTFT.
        whole = (store.get(run["run_id"]) or run for run in own)
        found = place(whole, repository, commits, since)
    for line in found.left_out:
        console.say(f"note: {line}")
    figure = metric_of(metric or FIGURES[0])
    shown = histories(found.placed, commits, figure, found.versions)
    if not shown:
        raise UsageError(_nothing(since, store, found.placed))
    return Since(since, shown, found.left_out)


def _nothing(since: str, store: "Store", placed: Sequence["Placed"]) -> str:
    """Return why there is no history."""
    from moebench.results.store_hints import in_store

    where = f"moebench run --system mine:MySystem --setting S3{in_store(store.directory)}"
    if not placed:
        return (
            f"--since {since}: {store.directory} has no run of a system of this repository in "
            f"{since}..HEAD; run each version, for example: {where}"
        )
    names = ", ".join(sorted({one.system for one in placed}))
    return (
        f"--since {since}: no system has this figure of two versions in one setting in "
        f"{since}..HEAD; {names}: run another version, for example: {where}"
    )


def print_history(found: "Since", json: bool, markdown: bool) -> None:
    """Print histories as JSON, as Markdown, as tables, or as lines for other programs."""
    import sys

    from moebench.reports.sections.history import document, records
    from moebench.reports.text import markdown as as_markdown

    if json:
        console.print_json(document(found))
    elif markdown:
        print("\n".join(map(as_markdown, found.tables.values())))
    elif sys.stdout.isatty():
        for table in found.tables.values():
            console.text_table(table)
    else:
        rows = list(records(found))
        cells = [["" if value is None else str(value) for value in row.values()] for row in rows]
        console.table("history", [*rows[0]], cells)
