"""``moebench show``, ``rm`` and ``gc``: one stored run, removed runs, and unneeded files."""

import json as json_text
from typing import Annotated, Any

from moebench.harness import console
from moebench.harness.cli.parameters import DEFAULT_STORE, JSON, STORE, argument, option


def show(
    run: Annotated[str, argument("Run id, or its first characters.")], store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:  # fmt: skip
    """Show one stored run: results, spec, provenance, notes, and the command that repeats it."""
    from moebench.harness.run.repeat import repeat
    from moebench.reports.sections.run import figures
    from moebench.results.store import Store

    opened = Store(store)
    document = opened.find(run)
    command = repeat(opened, document)
    if json:
        console.print_json(document | {"repeat": command})
        return
    title = f"run {document['run_id']}"
    console.table(title, ["figure", "value"], [list(row) for row in figures(document)])
    for part in ("spec", "provenance"):
        rows = [[f"{part}.{name}", _text(value)] for name, value in document[part].items()]
        console.table(part, ["field", "value"], rows)
    last = [["note", note] for note in document["notes"]] + [["repeat", command]]
    console.table("notes", ["what", "text"], last)


def _text(value: Any) -> str:
    if isinstance(value, dict | list):
        return json_text.dumps(value, ensure_ascii=False)
    return "-" if value is None else str(value)


def rm(
    runs: Annotated[list[str], argument("Run ids, or their first characters.")],
    store: STORE = DEFAULT_STORE,
) -> None:
    """Remove all named runs and their samples from the store; remove none if one is unknown."""
    from moebench.results.store import Store

    opened = Store(store)
    ids = list(dict.fromkeys(opened.find_id(name) for name in runs))
    opened.remove(ids)
    for run_id in ids:
        console.say(f"removed run {run_id}")


def gc(
    dry_run: Annotated[
        bool, option("List what would be removed; remove nothing.", "--dry-run")
    ] = False,
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Remove unreferenced and incomplete files from the store; runs are kept."""
    from moebench.results import garbage
    from moebench.results.store import Store

    opened = Store(store)
    found = garbage.find(opened)
    if not dry_run:
        garbage.remove(found.garbage)
        opened.compact()
    rows = [
        {"path": path.relative_to(store).as_posix(), "bytes": size, "why": why}
        for path, size, why in found.garbage
    ]
    if json:
        document = {"removed": not dry_run, "files": rows, "notes": found.notes}
        console.print_json(document, sort_keys=False)
        return
    if rows:
        lines = [[str(value) for value in row.values()] for row in rows]
        console.table(f"in {store}", ["path", "bytes", "why"], lines)
    for note in found.notes:
        console.say(f"note: {note}")
    size = sum(one.size for one in found.garbage) / 1e6
    said = "would be removed" if dry_run else "removed"
    console.say(f"{len(rows)} files and folders, {size:.1f} MB, {said}; no run was")
