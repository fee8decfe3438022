"""Output of the commands: tables on a terminal, tab-separated lines in a pipe, progress."""

import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moebench.reports.text import TextTable
from moebench.results.store_hints import in_store
from moebench.substrate.text import visible

if TYPE_CHECKING:
    from rich.console import Console

    from moebench.harness.progress import Step
    from moebench.substrate.progress_events import Listener


# rich takes 70 ms to import: every command imports this module, few of them draw.


def stderr() -> "Console":
    """Return the console on stderr, for all output but results."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def stdout() -> "Console":
    """Return the console on stdout, for results."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def say(line: str) -> None:
    """Print a line on stderr as it is, without markup."""
    print("\n".join(map(visible, line.split("\n"))), file=sys.stderr, flush=True)


def print_json(document: Any, sort_keys: bool = True) -> None:
    """Print one JSON document on stdout, in one line."""
    print(json.dumps(document, sort_keys=sort_keys))


def table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on a terminal, or tab-separated lines in a pipe."""
    if not sys.stdout.isatty():
        for row in (headers, *rows):
            print("\t".join(map(visible, row)))
        return
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(title=escape(visible(title)), title_justify="left")
    for header in headers:
        drawn.add_column(escape(visible(header)))
    for row in rows:
        drawn.add_row(*(escape(visible(cell)) for cell in row))
    stdout().print(drawn)


def text_table(shown: TextTable) -> None:
    """Print a text table with its caption on a terminal, or tab-separated lines in a pipe."""
    if not sys.stdout.isatty():
        table(shown.title, shown.headers, shown.rows)
        say(f"{shown.title}: {shown.said}" if shown.said else shown.title)
        return
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    styles = {"": "", "best": "bold", "second": "underline"}
    drawn = Table(title=escape(visible(shown.title)), title_justify="left",
                  caption_justify="left", caption=escape(visible(shown.said)) or None)  # fmt: skip
    for header, number in zip(shown.headers, shown.numbers, strict=True):
        drawn.add_column(escape(visible(header)), justify="right" if number else "left")
    for g, group in enumerate(shown.groups):
        for r, row in enumerate(group):
            cells = [
                Text(visible(text), styles[shown.marks.get((g, r, c), "")])
                for c, text in enumerate(row)
            ]
            drawn.add_row(*cells, end_section=r == len(group) - 1)
    stdout().print(drawn)
    for note in shown.notes:
        stdout().print(visible(note), markup=False)


@contextmanager
def progress(what: str, after_s: float = 0.0, also: "Listener | None" = None) -> Iterator["Step"]:
    """Show progress as a bar or as lines in a pipe; yields ``step(done, total)``.

    Args:
        after_s: how long a pipe is told nothing, of work that may be done at once.
        also: called with the phases of a run, too.
    """
    from moebench.harness.progress import shown

    with shown(what, stderr(), after_s, also) as step:
        yield step


def say_left_out(store: Any) -> None:
    """Print which runs or cells of a store were left out, and why."""
    for line in store.left_out.values():
        say(f"left out: {line}")


def say_refused(names: Collection[str] | None = None) -> None:
    """Print why systems of installed packages are left out."""
    from moebench.systems.registry import installed

    for name, reason in installed().refused.items():
        if names is None or name in names:
            say(f"left out: {reason}")


def show_run(
    document: dict[str, Any], store: Path, complete: Callable[[], bool] = lambda: False
) -> None:
    """Print one run's figures, each latency with its badge, and its notes.

    Args:
        complete: called when the figures are printed; adds those that take more time to the
            document, and returns whether there are any.
    """
    from moebench.reports.sections.run import figures, title_of

    rows = [list(row) for row in figures(document)]
    table(title_of(document), ["figure", "value"], rows)
    for note in document["notes"]:
        say(f"note: {note}")
    if complete():
        changed = [list(row) for row in figures(document) if list(row) not in rows]
        table("with their intervals", ["figure", "value"], changed)
    interval = document.get("interval") or {}
    moving = [one["field"] for one in interval.get("fields", [])[:3]]
    if moving:
        order = " and other orders of the prompts" if interval.get("order") else ""
        order += " and the law of drawn routing" if interval.get("routing") else ""
        say(f"± over the ranges of the profile's numbers{order}, most by {', '.join(moving)}")
    for phase, known in (interval.get("checked") or {}).items():
        say(
            f"checked: {known['figures']} published {phase} rates of such runs on "
            f"{known['machines']} other machines are predicted with a median error of "
            f"{known['median_error']:.0%}, 80 % of them within a factor of {known['within_80']:.2f}"
        )
    say(f"run {document['run_id']}; moebench report --html out.html{in_store(store)} shows it")
