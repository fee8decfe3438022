"""``moebench check``: recomputes a fixed subset of the accuracy tables and compares it.

`harness.studies.verdicts` compares question by question; `harness.studies.arithmetic` tells whether
floating-point sums round as they did for the references.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from moebench.harness import console
from moebench.harness.run.spec import RunSpec, resolve
from moebench.harness.studies.verdicts import UPDATE, Verdict, compare, difference, questions
from moebench.harness.sweep.execute import run_all
from moebench.harness.sweep.worker import Document
from moebench.substrate.errors import InputError
from moebench.substrate.models.catalogue import scale_path

SUBSET = Path(__file__).parents[1] / "catalogue" / "check.yaml"
REFERENCES = Path(__file__).parents[2] / "results" / "accuracy" / "check.json"

EXIT_CODES = {
    Verdict.PASS: 0, Verdict.IMPROVED: 0, Verdict.NOT_MEASURED: 3, Verdict.REGRESSED: 1,
}  # fmt: skip


def subset() -> dict[str, RunSpec]:
    """The fixed cells, by name."""
    plan = yaml.safe_load(SUBSET.read_text())
    return {
        f"{row['system']} {setting} {name}": resolve(
            None,
            system=row["system"],
            setting=setting,
            workload=name,
            prompts=plan["prompts"],
            seed=plan["seed"],
            allow_overcommit=row["system"] == "gpu-only",
            scoring="generation",
        )
        for row in plan["cells"]
        for setting, name in product(row["settings"], row["workloads"])
    }


def measure(jobs: int) -> dict[str, dict[str, Any]]:
    """Recompute every cell: its accuracy with items, and what it was computed from."""
    from moebench.harness.studies.arithmetic import probe

    specs = subset()
    with tempfile.TemporaryDirectory() as scratch, console.progress("check") as progress:
        documents = run_all(list(specs.values()), None, Path(scratch), jobs, progress)
    computed_by = [(d["spec"]["model"], d["provenance"]["threads"]) for d in documents]
    probes = {(model, n): probe(scale_path(model), n) for model, n in sorted(set(computed_by))}
    return {
        name: _cell(document, probes[by])
        for name, document, by in zip(specs, documents, computed_by, strict=True)
    }


def _cell(document: Document, arithmetic: str) -> dict[str, Any]:
    source = document["provenance"]
    return {
        "accuracy": document["accuracy"],
        "alpha": document["spec"]["alpha"],
        "data_hash": source["data_hash"],
        "weights_hash": source["weights_hash"],
        "arithmetic": arithmetic,
    }


# ----------------------------------------------------------------------------- the command


def check_command(update: bool, jobs: int, as_json: bool, references: Path = REFERENCES) -> int:
    """Recompute, compare, show; the exit code."""
    known = read_references(references)
    now = measure(jobs)
    findings = compare(now, known)
    if update:
        _write(references, now)
        _say_changes(now, known)
        return 0
    gravest = max((f.verdict for f in findings), key=list(Verdict).index)
    if as_json:
        cells = [{"cell": f.cell, "verdict": f.verdict, "reason": f.reason} for f in findings]
        print(json.dumps({"verdict": gravest, "cells": cells}, sort_keys=True))
    else:
        rows = [[f.cell, f.verdict.value, f.reason] for f in findings]
        console.table("accuracy", ["cell", "verdict", "reason"], rows)
        console.stderr().print(f"check: {gravest.value}")
    return EXIT_CODES[gravest]


def read_references(path: Path) -> dict[str, dict[str, Any]]:
    """The accepted cells; none where the file is absent.

    Raises:
        InputError: the file is not what `moebench check --update` writes.
    """
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
        for cell in found.values():
            accuracy = cell["accuracy"]
            _ = (accuracy["score"], accuracy["agreement"], accuracy["kl"], cell["data_hash"])
            _ = (cell["weights_hash"], cell["arithmetic"], questions(accuracy))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a reference ({error!r}); make it again: {UPDATE}") from error
    return dict(found)


def _write(path: Path, cells: Mapping[str, Any]) -> None:
    half_written = path.with_suffix(".partial")
    half_written.write_text(json.dumps(cells, indent=1, sort_keys=True) + "\n")
    os.replace(half_written, path)


def _say_changes(now: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    out = console.stderr()
    for name, cell in now.items():
        if name not in known:
            out.print(f"{name}: new, {cell['accuracy']['score']} %")
        elif cell["accuracy"] != known[name]["accuracy"]:
            out.print(f"{name}: {difference([(cell['accuracy'], known[name]['accuracy'])])}")
    for name in known.keys() - now.keys():
        out.print(f"{name}: gone")
    out.print(f"{len(now)} references written")
