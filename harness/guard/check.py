"""``moebench check``: recomputes fixed cells and compares them with accepted references.

The cells are a part of the accuracy tables, or those of a user's sweep file, with references in the
user's folder.  `golden` holds the scale models to stored logits on any arithmetic, `verdicts`
compares answers example by example, `latency` latencies of the simulated machine exactly, and
`arithmetic` identifies whether floating-point operations round as for the references.
"""

import json
import shlex
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from moebench.harness import console
from moebench.harness.arguments import require_writable
from moebench.harness.guard.latency import NOTHING_COMPUTED, compare_latencies, latency
from moebench.harness.guard.outputs import Files, Outcome
from moebench.harness.guard.references import read_references
from moebench.harness.guard.verdicts import UPDATE, Finding, Verdict, compare, difference
from moebench.harness.run.repeat import shortest
from moebench.harness.run.rules import resolve
from moebench.harness.sweep.execute import run_all
from moebench.harness.sweep.plan import cells_from_file, expand
from moebench.harness.sweep.worker import Document
from moebench.reports.sections.runs import fields
from moebench.results.spec import RunSpec
from moebench.substrate.errors import UsageError
from moebench.substrate.files import write_text
from moebench.substrate.models.catalogue import scale_path, ships

SUBSET = Path(__file__).parents[1] / "catalogue" / "check.yaml"
REFERENCES = Path(__file__).parents[2] / "results" / "accuracy" / "check.json"

#: Fields of a spec that two cells share if one is the other's twin (`harness.guard.latency`).
SUBJECT = ("system", "variant", "overrides", "setting", "machine", "software", "model")

EXIT_CODES = {
    Verdict.PASS: 0, Verdict.IMPROVED: 4, Verdict.NOT_MEASURED: 3, Verdict.REGRESSED: 1,
}  # fmt: skip


def subset() -> dict[str, RunSpec]:
    """Return the fixed cells by name: those that compute, then those with replayed routing."""
    plan = yaml.safe_load(SUBSET.read_text())
    computed = {
        f"{row['system']} {setting} {name}": resolve(
            None, system=row["system"], setting=setting, workload=name, prompts=plan["prompts"],
            seed=plan["seed"], allow_overcommit=row["system"] == "gpu-only", scoring="generation",
        )
        for row in plan["cells"]
        for setting, name in product(row["settings"], row["workloads"])
    }  # fmt: skip
    replayed = {
        f"{spec.system} {spec.setting} {'drawn' if spec.trace is None else 'replayed'}"
        + (f" {spec.software}" if "software" in sweep["common"] else ""): spec
        for sweep in plan["replayed"]
        for spec in expand(sweep, None)
    }
    return computed | replayed


class Guarded(NamedTuple):
    """The cells to recompute, and the references to compare them with.

    Attributes:
        specs: by the cell's name.
        references: the file of accepted results.
        update: the command that accepts the new results.
    """

    specs: dict[str, RunSpec]
    references: Path = REFERENCES
    update: str = UPDATE
    data_dir: Path | None = None


def own(file: Path, folder: Path, data_dir: Path | None) -> Guarded:
    """Return the cells of a sweep's file, named by their arguments of `moebench run`.

    Raises MoeBenchError: the file is not a valid sweep, or the folder is the package's own.
    """
    if folder.resolve().is_relative_to(REFERENCES.resolve().parents[1]):
        raise UsageError(f"--references {folder}: moebench's own; give a folder of your own")
    specs = {shortest(spec): spec for spec in cells_from_file(file, data_dir, console.say)}
    words = ["moebench", "check", "--file", str(file), "--references", str(folder)]
    words += [] if data_dir is None else ["--data-dir", str(data_dir)]
    references = folder / f"{file.stem}.json"
    return Guarded(specs, references, shlex.join([*words, "--update"]), data_dir)


def measure(jobs: int, guarded: Guarded | None = None) -> dict[str, dict[str, Any]]:
    """Recompute every cell: its accuracy with items, its latencies, the hashes of its inputs."""
    specs, data_dir = (guarded.specs, guarded.data_dir) if guarded else (subset(), None)
    with tempfile.TemporaryDirectory() as scratch, console.progress("check") as progress:
        documents = run_all(list(specs.values()), data_dir, Path(scratch), jobs, progress)
    computed_by = [_computed_by(document) for document in documents]
    return {
        name: _cell(document, NOTHING_COMPUTED if by is None else _arithmetic(*by))
        for name, document, by in zip(specs, documents, computed_by, strict=True)
    }


@cache
def _arithmetic(weights: str, threads: int) -> dict[str, str]:
    """Return the hashes of torch's own operations, and of this program's outputs, by name."""
    from moebench.harness.guard.arithmetic import probe
    from moebench.harness.guard.golden import fingerprint

    return {**probe(threads), "this program": fingerprint(Path(weights), threads)}


def _computed_by(document: Document) -> tuple[str, int] | None:
    """Return weights and threads of a run; None if routing is replayed and nothing is computed."""
    spec = document["spec"]
    if spec["trace"] is not None or spec["routing"] != "model":
        return None
    return spec["weights"] or str(scale_path(spec["model"])), document["provenance"]["threads"]


def _cell(document: Document, arithmetic: str | dict[str, str]) -> dict[str, Any]:
    source, spec = document["provenance"], document["spec"]
    return {
        "accuracy": document["accuracy"], "alpha": spec["alpha"],
        "subject": {name: spec[name] for name in SUBJECT},
        "data_hash": source["data_hash"], "weights_hash": source["weights_hash"],
        "arithmetic": arithmetic, "latency": latency(document),
    }  # fmt: skip


# ----------------------------------------------------------------------------- the command


def check_command(
    update: bool,
    jobs: int,
    as_json: bool,
    guarded: Guarded | None = None,
    files: Files | None = None,
) -> int:
    """Recompute the cells, compare them, print the verdicts and return the exit code."""
    guarded, begun = guarded or Guarded(subset()), time.monotonic()
    known = read_references(guarded.references, guarded.update)
    if update:
        require_writable(guarded.references.parent, "--references")
    now = measure(jobs, guarded)
    models = _golden(guarded)
    if update:
        write_text(guarded.references, json.dumps(now, indent=1, sort_keys=True) + "\n")
        _say_changes(now, known)
        if guarded.references == REFERENCES and any(f.verdict != Verdict.PASS for f in models):
            _accept_models(models)
        return 0
    findings = models + compare(now, known, guarded.update) + compare_latencies(now, known)
    if not findings:
        raise UsageError(
            f"{guarded.references.stem}: no cell has anything to compare: measured latencies vary, "
            "and replayed routing answers nothing; add a cell of a simulated machine, or one "
            "without `routing` and `trace`"
        )
    gravest = max((f.verdict for f in findings), key=list(Verdict).index)
    if as_json:
        cells = [{"cell": f.cell, "verdict": f.verdict, "reason": f.reason} for f in findings]
        print(json.dumps({"verdict": gravest, "cells": cells}, sort_keys=True))
    else:
        rows = [[f.cell, f.verdict.value, f.reason] for f in findings]
        console.table("check", ["cell", "verdict", "reason"], rows)
        console.say(f"check: {gravest.value}")
    if files is not None:
        files.write(
            Outcome(
                guarded.references.stem, findings, _conditions(guarded.specs, now), now, known,
                guarded.update, time.monotonic() - begun,
            )
        )  # fmt: skip
    return EXIT_CODES[gravest]


def _conditions(specs: Mapping[str, RunSpec], now: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return each cell's options, and the hashes of what it read, as text."""
    found = {}
    for name, spec in specs.items():
        hashes = {key: now[name][key] for key in ("data_hash", "weights_hash")}
        hashes |= {"profile_hash": (now[name]["latency"] or {}).get("profile_hash")}
        every = fields(spec.model_dump()) | fields(hashes)
        found[name] = {key: text for key, text in every.items() if text}
    return found


def _golden(guarded: Guarded) -> list[Finding]:
    """Return the verdicts on the scale models that ship and that the cells compute with."""
    from moebench.harness.guard.golden import check_golden

    if not ships():
        return []
    computing = [spec for spec in guarded.specs.values() if spec.trace is None]
    names = {spec.model for spec in computing if spec.routing == "model" and spec.weights is None}
    return check_golden(sorted(name for name in names if name is not None))


def _accept_models(findings: list[Finding]) -> None:
    from moebench.harness.guard.golden import write_golden

    for one in findings:
        console.say(f"{one.cell}: {one.reason}")
    write_golden()


def _say_changes(now: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for name, cell in now.items():
        if name not in known:
            console.say(f"{name}: new, score {cell['accuracy']['score']}")
            continue
        if cell["accuracy"] != known[name]["accuracy"]:
            console.say(f"{name}: {difference([(cell['accuracy'], known[name]['accuracy'])])}")
        for one in compare_latencies({name: cell}, known):
            if cell["latency"] != known[name]["latency"]:
                console.say(f"{one.cell}: {one.reason}")
    for name in known.keys() - now.keys():
        console.say(f"{name}: gone")
    console.say(f"{len(now)} references written")
