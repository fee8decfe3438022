"""``moebench models import``, ``fetch`` and ``verify``, of full-size weights."""

import json as json_
from pathlib import Path

import typer

from moebench.harness import console
from moebench.substrate.errors import UsageError

#: What expert records may be stored as.
PRECISIONS = ("bf16", "fp16", "fp32")

#: Where imported weights and those of the hub go.
IMPORTED, FETCHED = Path(".moebench/weights"), Path(".moebench/hub")


def import_command(source: Path, out: Path | None, precision: str) -> None:
    """Split a checkpoint; an import that was killed goes on."""
    from moebench.substrate.models.config import read_shape

    if precision not in PRECISIONS:
        raise UsageError(f"--dtype {precision}: allowed: {', '.join(PRECISIONS)}")
    read_shape(source / "config.json")  # what is wrong with it shows before torch is imported

    from moebench.substrate.models.imported import import_checkpoint

    out = out or IMPORTED / source.resolve().name
    with console.progress(f"import {source.name}") as progress:
        found = import_checkpoint(source, out, precision, progress)
    assert found.store is not None
    size = found.store.total_bytes + sum(f.stat().st_size for f in found.files[:-1])
    count = len(found.manifest["records"])
    _say(f"{count} expert records of {found.store.record_bytes / 1e6:.4g} MB ({precision}) and the "
         f"common weights, {size / 1e9:.4g} GB, in {out}")  # fmt: skip
    _say(f"use it: moebench run --system smoe --weights {out} --machine local --cache-ratio 0.25")


def verify_command(path: Path, json: bool) -> None:
    """Hash imported weights again."""
    from moebench.substrate.models.imported import Imported

    found = Imported(path)
    with console.progress(f"verify {path.name}") as progress:
        found.verify(progress)
    files, records = (len(found.manifest[key]) for key in ("files", "records"))
    if json:
        typer.echo(json_.dumps({path.name: {"files": files, "records": records}}))
    else:
        _say(f"{files} files and {records} records are what was imported")


def fetch_command(repo: str, out: Path | None, revision: str | None) -> None:
    """Download a checkpoint."""
    from moebench.harness.hub import fetch

    out = fetch(repo, out or FETCHED / repo, revision)
    _say(f"{repo} in {out}")
    _say(f"use it: moebench run --system smoe --weights {out} --machine local --cache-ratio 0.25")
    _say(f"or split it once, so that later starts are short: moebench models import {out}")


def _say(text: str) -> None:
    typer.echo(text, err=True)
