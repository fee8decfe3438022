"""Typer options that several commands share, and short forms of Typer's constructors."""

from pathlib import Path
from typing import Annotated, Any

import typer

from moebench.results.store_hints import DEFAULT_STORE as DEFAULT_STORE


def option(text: str, *names: str, **more: Any) -> Any:
    """Return a Typer option with its help text; ``names`` replace the parameter's own name."""
    return typer.Option(*names, help=text, **more)


def argument(text: str, **more: Any) -> Any:
    """Return a Typer argument with its help text."""
    return typer.Argument(help=text, **more)


STORE = Annotated[Path, option("Folder in which results are stored.", show_default=True)]
JSON = Annotated[bool, option("Print one JSON document on stdout.", "--json")]
DATA_DIR = Annotated[
    Path | None, option("Folder of evaluation sets, or hub: [generated sets only].")
]

#: What is shown in place of the number of cores of the computer that shows it.
PER_CORE = "one per core"

#: A quick look at a system: prompts, new tokens, and texts that a system learns from.
QUICK_PROMPTS, QUICK_TOKENS, QUICK_TEXTS = 4, 32, 16
