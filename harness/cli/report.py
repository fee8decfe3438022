"""``moebench report``: the stored runs as tables, an HTML page, or CSV, LaTeX and figure files."""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from moebench.harness import console
from moebench.harness.cli.parameters import DEFAULT_STORE, JSON, STORE, option
from moebench.reports.text import counted
from moebench.substrate.errors import UsageError

if TYPE_CHECKING:
    from moebench.reports.report import Report
    from moebench.reports.sections.accuracy import View
    from moebench.reports.sections.history import Since
    from moebench.results.claims import Exhibit, PaperResult
    from moebench.results.store import Cell, Store

Runs = list[dict[str, Any]]

#: The α table that `moebench accuracy` writes, in the store's folder.
OWN_TABLE = "alpha.csv"

#: The claims that `moebench reproduce` writes, in the store's folder.
OWN_CLAIMS = "claims"

#: The most runs that are listed on a terminal.
LISTED = 50


def report(
    html: Annotated[Path | None, option("File to write the offline HTML page to.")] = None,
    csv: Annotated[Path | None, option("Folder for the tables as CSV.")] = None,
    latex: Annotated[Path | None, option("Folder for the tables as LaTeX.")] = None,
    figures: Annotated[Path | None, option("Folder for the figures as SVG and PDF.")] = None,
    markdown: Annotated[bool, option("Print Markdown.", "--markdown")] = False,
    intervals: Annotated[bool, option("Print 95 % intervals after means.", "--intervals")] = False,
    wandb: Annotated[
        str | None, option("Project of Weights & Biases to export the runs to.", metavar="PROJECT")
    ] = None,
    mlflow: Annotated[
        str | None, option("MLflow server or store to export the runs to.", metavar="URI")
    ] = None,
    accuracy: Annotated[
        Path | None, option("Table of moebench accuracy [alpha.csv in the store].")
    ] = None,
    claims: Annotated[
        Path | None, option("Folder written by moebench reproduce [claims in the store].")
    ] = None,
    since: Annotated[
        str | None,
        option(
            "Show only the history of your own systems over the commits REV..HEAD of the git "
            "repository of the current folder, with steps.",
            metavar="REV",
        ),
    ] = None,
    metric: Annotated[
        str | None, option("With --since: tpot_ms [default], ttft_ms, hit_ratio or kl.")
    ] = None,
    shipped: Annotated[
        bool,
        option(
            "Add the accuracy table and claims that ship with moebench, if the store has none; "
            "the page always has them, as its appendix.",
            "--shipped",
        ),
    ] = False,
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Show comparisons, accuracy and single runs, write them as files, or export the runs."""
    from moebench.harness.api.compare import stated
    from moebench.harness.cli.history import over_commits, print_history
    from moebench.reports.report import report as all_tables
    from moebench.results.store import Store
    from moebench.results.store_hints import no_runs

    _require_outputs(html, {"--csv": csv, "--latex": latex, "--figures": figures}, wandb, mlflow)
    opened = Store(store)
    runs, failed = opened.runs(brief=not json), opened.cells("failed")
    console.say_left_out(opened)
    if not runs and not failed:
        raise UsageError(no_runs(store))
    views, results = _accuracy(accuracy, store), _claims(claims, store)
    history = over_commits(since, metric, opened, runs)
    if html is not None:
        equal = _equal_memory(claims or store / OWN_CLAIMS, results)
        _write_page(html, opened, runs, views, failed, results, history, equal)
    views, results = _with_shipped(views, results) if shipped else (views, results)
    tables = partial(
        all_tables, runs, views, failed, results, intervals=intervals, settings=stated()
    )
    if csv is not None or latex is not None:
        _write_tables(csv, latex, tables(brief=True, paper=True), runs, views, failed, history)
    if figures is not None:
        _write_figures(figures, opened, runs, views, history)
    if wandb is not None or mlflow is not None:
        _export(runs, wandb, mlflow)
    if json or markdown or not (html or csv or latex or figures or wandb or mlflow):
        if history is not None:
            print_history(history, json, markdown)
        else:
            _show(tables, runs, failed, json, markdown)


def _show(
    tables: Callable[..., "Report"], runs: Runs, failed: list["Cell"], json: bool, markdown: bool
) -> None:
    """Print the report as JSON, as Markdown, as tables, or as lines for other programs."""
    if json:
        console.print_json(runs)
    elif markdown:
        _print_markdown(tables(brief=False))
    elif sys.stdout.isatty():
        _print(tables(brief=True), len(runs))
    else:
        _pipe(runs, failed)


def _require_outputs(
    html: Path | None, folders: Mapping[str, Path | None], project: str | None, uri: str | None
) -> None:
    """Refuse outputs that cannot be written, and those whose packages are not installed."""
    from moebench.harness.arguments import require_file, require_folder
    from moebench.harness.extras import require

    for name, drawn in (("--html", html), ("--figures", folders["--figures"])):
        if drawn is not None:
            require("vl_convert", name)
    for name, module, tracker in (("--wandb", "wandb", project), ("--mlflow", "mlflow", uri)):
        if tracker is not None:
            require(module, name)
    if html is not None:
        require_file("--html", html)
    for name, folder in folders.items():
        if folder is not None:
            require_folder(name, folder)


def _accuracy(table: Path | None, store: Path) -> list["View"]:
    """Read the given accuracy table, or the store's; none if there is neither."""
    from moebench.reports.sections import accuracy

    own = store / OWN_TABLE
    if table is not None:
        return accuracy.load(table)
    return accuracy.load(own) if own.exists() else []


def _claims(folder: Path | None, store: Path) -> list["PaperResult"]:
    """Read the claims of the given folder, or the store's; none if there are neither.

    Raises UsageError: the given folder holds no claims.
    """
    from moebench.results.claims import PAPERS, read

    found = read(store / OWN_CLAIMS if folder is None else folder)
    if folder is not None and not found:
        names = ", ".join(f"{paper}.json" for paper in PAPERS)
        raise UsageError(
            f"--claims {folder}: no claims there ({names}); write them: "
            f"moebench reproduce all --out {folder}"
        )
    return found


def _equal_memory(folder: Path, results: list["PaperResult"]) -> "Exhibit | None":
    """Return the table at equal memory that belongs to the claims that the page shows, if any."""
    from moebench.results.claims import EQUAL_MEMORY, FOLDER, read_exhibit

    return read_exhibit(EQUAL_MEMORY, folder if results else FOLDER)


def _with_shipped(
    views: list["View"], results: list["PaperResult"]
) -> tuple[list["View"], list["PaperResult"]]:
    """Return the accuracy table and claims that ship, marked as such, where there are no others."""
    from moebench.reports.sections import accuracy
    from moebench.results.claims import read

    marked = [
        one.model_copy(update={"title": f"{one.title}, shipped with moebench"}) for one in read()
    ]
    return views or accuracy.load(), results or marked


def _write_page(
    out: Path, store: "Store", runs: Runs, views: list["View"], failed: list["Cell"],
    claims: list["PaperResult"], history: "Since | None", equal_memory: "Exhibit | None",
) -> None:  # fmt: skip
    from moebench.harness.api.compare import stated
    from moebench.harness.run.repeat import repeats
    from moebench.reports.page.page import Contents, render
    from moebench.reports.page.runs import detailed
    from moebench.reports.sections import accuracy, throughput
    from moebench.results.claims import read
    from moebench.results.searches import read_searches
    from moebench.substrate.analysis.components import documents

    searches, damaged = read_searches(store.directory)
    for line in damaged:
        console.say(f"left out: {line}")
    chosen = detailed(runs)
    whole = {run_id: one for run_id in chosen if (one := store.get(run_id)) is not None}
    own = {"accuracy": views, "claims": claims}
    contents = Contents(
        runs, repeats(store, [*whole.values()]), store.timelines(chosen),
        views or accuracy.load(), failed, throughput.load(store.directory, whole.values()),
        documents(), claims or read(), stated(), whole, history,
        [name for name in own if not own[name]],
        equal_memory, searches,
    )  # fmt: skip
    render(contents, out, str(store.directory))
    console.say(f"{counted(len(runs), 'run')} in {out} ({os.path.getsize(out) / 1e6:.1f} MB)")


def _write_tables(
    csv: Path | None, latex: Path | None, found: "Report", runs: Runs, views: list["View"],
    failed: list["Cell"], history: "Since | None",
) -> None:  # fmt: skip
    from moebench.reports.formats.csv import write_csv, write_latex

    written = write_csv(runs, found, csv, views, failed, history) if csv else []
    if history is not None:
        found = found._replace(tables={**found.tables, **history.tables})
    written += write_latex(found, latex) if latex else []
    console.say(f"written: {', '.join(map(str, written))}")
    _say_left_out(found)


def _write_figures(
    directory: Path, store: "Store", runs: Runs, views: list["View"], history: "Since | None"
) -> None:
    from moebench.harness.api.compare import stated
    from moebench.reports.compare.conditions import lacks
    from moebench.reports.compare.tables import comparisons, matrix
    from moebench.reports.formats.svg import write_figures
    from moebench.reports.page.runs import detailed
    from moebench.reports.page.static_figures import history_figures, static_figures
    from moebench.reports.sections import throughput

    whole = [run for run in runs if not lacks(run)]
    beside = matrix(comparisons(whole, stated()).tables)
    ids = {*detailed(whole)}
    curves = throughput.load(store.directory, [run for run in whole if run["run_id"] in ids])
    drawn = static_figures(whole, beside, views, curves, store.timelines(ids), stated())
    written = write_figures([*drawn, *history_figures(history)], directory)
    console.say(f"{len(written)} figures in {directory}")


def _export(runs: Runs, project: str | None, uri: str | None) -> None:
    """Export runs to trackers; those of versions that wrote other fields are left out."""
    from moebench.reports.formats.trackers import tracked, write_mlflow, write_wandb

    found = tracked(runs)
    if project is not None:
        with console.progress("wandb") as step:
            folder = write_wandb(found, project, step)
        then = (
            ""
            if folder is None
            else f"; send them: wandb sync {os.path.relpath(folder)}/offline-run-*"
        )
        console.say(f"{counted(len(found), 'run')} in {project} of Weights & Biases{then}")
    if uri is not None:
        with console.progress("mlflow") as step:
            changed = write_mlflow(found, uri, step)
        console.say(f"{counted(len(found), 'run')} in {uri}, {changed} of them new or changed")
    if len(found) < len(runs):
        left = len(runs) - len(found)
        console.say(f"note: {left} of {len(runs)} runs lack fields and were not exported")


def _print_markdown(found: "Report") -> None:
    from moebench.reports.text import markdown

    print("\n".join(map(markdown, found.tables.values())))
    _say_left_out(found)


def _print(found: "Report", count: int) -> None:
    """Print all tables on a terminal; a long list of runs is omitted."""
    for name, table in found.tables.items():
        if name == "runs" and count > LISTED:
            console.stdout().print(f"{counted(count, 'run')}; --csv DIR or --html FILE lists them")
        else:
            console.text_table(table)
    _say_left_out(found)


def _pipe(runs: Runs, failed: list["Cell"]) -> None:
    """Print one table for other programs: the runs, with all columns."""
    from moebench.reports.sections import failures
    from moebench.reports.sections.runs import runs_table

    if runs:
        found = runs_table(runs, "runs", brief=True, once=False)
        console.table(found.title, found.headers, found.rows)
    for row in failures.lines(failed):
        console.say(f"failed: {', '.join(row)}")


def _say_left_out(found: "Report") -> None:
    """Print which runs are in no comparison."""
    if not found.compared.tables:
        console.say("note: no runs that can be compared")
    for line in found.left_out:
        console.say(f"note: {line}")
