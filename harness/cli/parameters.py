"""Typer options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

STORE = Annotated[Path, typer.Option(help="Folder in which results are stored.", show_default=True)]
DEFAULT_STORE = Path(".moebench")
JSON = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
DATA_DIR = Annotated[
    Path | None, typer.Option(help="Folder of evaluation sets, or hub: [generated sets only].")
]
