"""``moebench compare``, once its options are parsed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.reports.compare import tables
from moebench.reports.compare.conditions import title_of
from moebench.reports.compare.text import document, text_table
from moebench.reports.tables import Document, dig, system_of
from moebench.reports.text import markdown
from moebench.results.store import Store
from moebench.results.store_hints import in_store
from moebench.substrate.errors import UsageError
from moebench.substrate.models.catalogue import model_names, model_shape
from moebench.systems.options import build_any


def compare_command(
    directory: Path, wanted: Mapping[str, str | None], mixed: str | None, form: str
) -> None:
    """Print the stored runs as comparisons.

    Args:
        wanted: values that runs must have, by the spec's field, separated by commas.
        mixed: conditions that may differ, separated by commas.
        form: ``text``, ``markdown`` or ``json``.
    """
    store = Store(directory)
    runs = [run for run in store.runs() if _is_wanted(run, wanted)]
    console.say_left_out(store)
    if not runs:
        raise UsageError(
            f"no such runs in {directory}; run: moebench sweep standard{in_store(directory)}"
        )
    allowed = _split(mixed)
    specs = {title_of(run): run["spec"] for run in runs}
    found, left_out = tables.comparisons(
        runs, allowed, lambda run, title: _why_not(specs[title], run["spec"])
    )
    tables.refuse_mixtures(found, allowed)
    for line in left_out:
        console.stderr().print(line, markup=False)
    if form == "json":
        print(json.dumps([document(table) for table in found], sort_keys=True))
    for table in found if form != "json" else ():
        drawn = text_table(table)
        if form == "markdown":
            print(markdown(drawn))
        else:
            console.text_table(drawn)


def _is_wanted(run: Document, wanted: Mapping[str, str | None]) -> bool:
    """Whether a run has these values; what an evaluator asked is no workload to compare."""

    def value(key: str) -> str:
        return system_of(run["spec"]) if key == "system" else str(dig(run, f"spec.{key}"))

    return "evaluation" not in run and all(
        text is None or value(key) in _split(text) for key, text in wanted.items()
    )


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def _why_not(spec: Mapping[str, Any], place: Mapping[str, Any]) -> str | None:
    """Why a spec's system does not exist for the model and batch of another spec."""
    if place["model"] not in model_names():
        return None
    system = build_any(spec["system"], spec["overrides"], spec.get("variant", "published"))
    return system.why_not(model_shape(place["model"]), place["batch"])
