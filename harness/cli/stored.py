"""``moebench show``, ``rm`` and ``gc``: one stored run, and what the store no longer needs."""

import json
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.results.store import Store


def show_command(directory: Path, run: str, as_json: bool) -> None:
    """A stored run's figures, spec, provenance and notes, and the command that repeats it."""
    from moebench.harness.run.repeat import repeat

    store = Store(directory)
    document = store.find(run)
    command = repeat(store, document)
    if as_json:
        print(json.dumps(document | {"repeat": command}, sort_keys=True))
        return
    title = f"run {document['run_id']}"
    console.table(title, ["figure", "value"], [list(row) for row in console.figures(document)])
    for part in ("spec", "provenance"):
        rows = [[f"{part}.{name}", _text(value)] for name, value in document[part].items()]
        console.table(part, ["field", "value"], rows)
    last = [["note", note] for note in document["notes"]] + [["repeat", command]]
    console.table("notes", ["what", "text"], last)


def _text(value: Any) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return "-" if value is None else str(value)


def remove_command(directory: Path, runs: list[str]) -> None:
    """Remove the named runs, all or, where a name is wrong, none."""
    store = Store(directory)
    ids = list(dict.fromkeys(store.find(name)["run_id"] for name in runs))
    store.remove(ids)
    for run_id in ids:
        console.stderr().print(f"removed run {run_id}")


def collect_command(directory: Path, dry_run: bool, as_json: bool) -> None:
    """Remove, or only list, what no run refers to."""
    from moebench.results import garbage

    store = Store(directory)
    found = garbage.find(store)
    if not dry_run:
        garbage.remove(found.garbage)
        store.compact()
    rows = [
        {"path": path.relative_to(directory).as_posix(), "bytes": size, "why": why}
        for path, size, why in found.garbage
    ]
    if as_json:
        print(json.dumps({"removed": not dry_run, "files": rows, "notes": found.notes}))
        return
    if rows:
        lines = [[str(value) for value in row.values()] for row in rows]
        console.table(f"in {directory}", ["path", "bytes", "why"], lines)
    for note in found.notes:
        console.stderr().print(f"note: {note}", markup=False)
    size = sum(one.size for one in found.garbage) / 1e6
    said = "would be removed" if dry_run else "removed"
    console.stderr().print(f"{len(rows)} files and folders, {size:.1f} MB, {said}; no run was")
