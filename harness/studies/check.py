"""The guard: a fixed subset of the accuracy tables, recomputed and compared item by item.

On the arithmetic that made a reference (same weights, questions, torch and processor features)
results are deterministic, so every answer and every divergence must be equal.  Elsewhere sums round
differently: then the same questions are compared in pairs, by exact sign tests on right and wrong
answers and on each question's KL divergence, at 1 % over all tests together (Bonferroni).
"""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from math import comb
from pathlib import Path
from typing import Any

import yaml

from moebench.harness import console
from moebench.harness.run.spec import RunSpec, resolve
from moebench.harness.sweep.execute import run_all
from moebench.harness.sweep.worker import Document
from moebench.substrate.errors import InputError

SUBSET = Path(__file__).parents[1] / "catalogue" / "check.yaml"
REFERENCES = Path(__file__).parents[2] / "results" / "accuracy" / "check.json"
UPDATE = "moebench check --update"

#: The chance of a false alarm that all tests share.
FALSE_ALARM = 0.01
#: A question's KL sums that differ by less are equal: the arithmetic's rounding.
KL_ROUNDING = 1e-3


class Verdict(StrEnum):
    """What became of a cell, the gravest last."""

    PASS = "pass"
    IMPROVED = "improved"
    NOT_MEASURED = "not measured"
    REGRESSED = "regressed"


EXIT_CODES = {
    Verdict.PASS: 0, Verdict.IMPROVED: 0, Verdict.NOT_MEASURED: 3, Verdict.REGRESSED: 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """A cell's verdict with its reason."""

    cell: str
    verdict: Verdict
    reason: str


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


def arithmetic() -> str:
    """What decides how sums round on this computer."""
    import torch

    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"


def measure(jobs: int) -> dict[str, dict[str, Any]]:
    """Recompute every cell: its accuracy with items, and what it was computed from."""
    specs = subset()
    with tempfile.TemporaryDirectory() as scratch, console.progress("check") as progress:
        documents = run_all(list(specs.values()), None, Path(scratch), jobs, progress)
    return {name: _cell(document) for name, document in zip(specs, documents, strict=True)}


def _cell(document: Document) -> dict[str, Any]:
    source = document["provenance"]
    return {
        "accuracy": document["accuracy"],
        "alpha": document["spec"]["alpha"],
        "data_hash": source["data_hash"],
        "weights_hash": source["weights_hash"],
        "arithmetic": arithmetic(),
    }


# ----------------------------------------------------------------------------- the comparison


def compare(
    now: Mapping[str, Mapping[str, Any]], references: Mapping[str, Mapping[str, Any]]
) -> list[Finding]:
    """The verdict on each cell, and one on all of those that were compared in pairs.

    Args:
        now: cells as `measure` gives them.
        references: the same, as they were when they were last accepted.
    """
    findings, paired = [], []
    threshold = FALSE_ALARM / (2 * (len(now) + 1))
    for name, cell in now.items():
        reference = references.get(name)
        if reference is None or reference["data_hash"] != cell["data_hash"]:
            why = "no reference" if reference is None else "the reference has other questions"
            findings.append(Finding(name, Verdict.NOT_MEASURED, f"{why}; {UPDATE}"))
        elif all(reference[key] == cell[key] for key in ("weights_hash", "arithmetic")):
            findings.append(_exactly(name, cell["accuracy"], reference["accuracy"]))
        else:
            pair = (cell["accuracy"], reference["accuracy"])
            paired.append(pair)
            findings.append(_in_pairs(name, [pair], threshold))
    if len(paired) > 1:
        findings.append(_in_pairs("all cells compared in pairs", paired, threshold))
    return findings


def _exactly(name: str, now: Mapping[str, Any], reference: Mapping[str, Any]) -> Finding:
    """Deterministic arithmetic: a difference is a change of the code, in one direction or other."""
    if now == reference:
        return Finding(name, Verdict.PASS, "equal to the last bit")
    pairs = zip(now["items"]["answer"], reference["items"]["answer"], strict=True)
    changed = sum(a != b for a, b in pairs)
    worse = (
        _below(now["score"], reference["score"])
        or _below(now["agreement"], reference["agreement"])
        or _below(reference["kl"], now["kl"])
    )
    verdict = Verdict.REGRESSED if worse else Verdict.IMPROVED
    return Finding(name, verdict, f"{changed} answers changed; {_difference(now, reference)}")


def _below(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and a < b


def _in_pairs(
    name: str, cells: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], threshold: float
) -> Finding:
    """The same questions before and after, on other arithmetic or other weights."""
    better = worse = closer = farther = 0
    for now, reference in cells:
        new, old = now["items"], reference["items"]
        for a, b in zip(new["value"], old["value"], strict=True):
            better, worse = better + (a > b), worse + (a < b)
        for a, b in zip(new["kl"], old["kl"], strict=True):
            closer, farther = closer + (b - a > KL_ROUNDING), farther + (a - b > KL_ROUNDING)
    reason = (
        f"answers: {better} better, {worse} worse; KL: {closer} closer, {farther} farther from the "
        "lossless model"
    )
    verdict = Verdict.PASS
    if sign_test(better, worse) < threshold or sign_test(closer, farther) < threshold:
        verdict = Verdict.IMPROVED
    if sign_test(worse, better) < threshold or sign_test(farther, closer) < threshold:
        verdict = Verdict.REGRESSED
    return Finding(name, verdict, reason)


def sign_test(more: int, fewer: int) -> float:
    """The chance that at least ``more`` of the differing pairs fall on one side by luck alone."""
    n = more + fewer
    likely: float = sum(comb(n, k) for k in range(more, n + 1)) / 2**n
    return likely


def _difference(now: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    return (
        ", ".join(
            f"{name} {reference[name]} -> {now[name]}"
            for name in ("score", "agreement", "kl")
            if now[name] != reference[name]
        )
        or "score, agreement and KL equal"
    )


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
            accuracy, items = cell["accuracy"], cell["accuracy"]["items"]
            _ = (accuracy["score"], accuracy["agreement"], accuracy["kl"], cell["data_hash"])
            _ = (items["value"], items["answer"], items["kl"], cell["weights_hash"])
            _ = cell["arithmetic"]
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
            out.print(f"{name}: {_difference(cell['accuracy'], known[name]['accuracy'])}")
    for name in known.keys() - now.keys():
        out.print(f"{name}: gone")
    out.print(f"{len(now)} references written")
