"""``moebench machines``: hardware profiles beside what is published of their components."""

import json
from typing import Annotated

import typer

app = typer.Typer(help="Hardware profiles: components.", no_args_is_help=True)


@app.callback()
def _machines() -> None:
    """Hardware profiles beside what is published of their components."""


@app.command()
def components(
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout.")
    ] = False,
) -> None:
    """Show every published time of a component beside what the cost model charges for it."""
    from moebench.harness import console
    from moebench.reports.components import HEADERS, table
    from moebench.substrate.analysis.components import documents

    found = documents()
    if json_:
        typer.echo(json.dumps(found, sort_keys=True))
        return
    shown = table(found)
    console.table("components", HEADERS, shown.rows)
    console.stderr().print(shown.summary)
