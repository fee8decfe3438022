"""Validation: compares runs on this computer with runs simulated on its profile.

Both runs have the same checkpoint, prompts, lengths and slots; only one of them is simulated.
Errors are signed: (simulated - measured) / measured.
"""

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from moebench.harness.one_run import opened, run
from moebench.harness.run.rules import resolve
from moebench.results.document import dig
from moebench.results.spec import RunSpec
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.profile import load_profile

#: What a table is expected to reach: errors of TPOT (mean, worst) and of TTFT.
TARGETS = {"tpot_mean": 0.05, "tpot_worst": 0.10, "ttft_worst": 0.10}

#: The resident model's tokens between systems show how far the computer itself has moved.
RESIDENT: dict[str, Any] = {"cache_ratio": 1.0, "slots": None, "prompts": 1}

_TPOT = "metrics.tpot_ms.mean"

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """Systems and conditions of a validation.

    Attributes:
        systems: by name, each with options as ``--set`` takes them.
        repeats: measured runs of each; the one with the median TPOT counts.
        given: options of all runs, as `resolve` takes them.
    """

    profile: Path
    weights: Path
    link_gb_s: float | None
    systems: Mapping[str, Mapping[str, str]]
    repeats: int
    given: Mapping[str, Any]
    data_dir: Path | None


def validate(
    request: Request, scratch: Path, progress: Callable[[str], None] = lambda text: None
) -> Document:
    """Run every system measured and simulated; return the table with its provenance.

    A system that cannot run here or on the profile is in ``not_possible``, with the reason.

    Raises MoeBenchError: the profile, the checkpoint or an option cannot be, or no system can run.
    """
    profile = load_profile(str(request.profile))
    resident = replace(request, given={**request.given, **RESIDENT}, repeats=1)
    reference, _ = _measured(resident, "gpu-only", {}, scratch)
    expected = dig(_simulated(resident, "gpu-only", {}, reference, scratch), _TPOT)
    off = [expected / dig(reference, _TPOT) - 1]
    rows, refused, provenance = [], [], None
    for name, options in request.systems.items():
        progress(f"{name}: measured")
        try:
            measured, measured_spread = _measured(request, name, options, scratch)
            off.append(expected / dig(_measured(resident, "gpu-only", {}, scratch)[0], _TPOT) - 1)
            progress(f"{name}: simulated")
            simulated = _simulated(request, name, options, measured, scratch)
        except (UsageError, BudgetError) as error:
            refused.append({"system": name, "options": dict(options), "reason": str(error)})
            continue
        row = _row(name, options, measured, simulated, measured_spread)
        rows.append(row | {"resident": [round(error, 4) for error in off[-2:]]})
        provenance = provenance or measured["provenance"]
    if provenance is None:
        raise UsageError(f"no system can run here: {refused[0]['reason']}")
    return {
        "profile": profile.name,
        "profile_hash": profile.content_hash(),
        "calibrated": None if profile.calibration is None else str(profile.calibration.date),
        "calibration_error": dig(profile.model_dump(), "calibration.error.value"),
        "model": measured["measured"]["model"],
        "emulated_link_gb_s": request.link_gb_s,
        "rows": rows,
        "not_possible": refused,
        "summary": summary(rows),
        "provenance": {
            key: provenance[key]
            for key in ("versions", "commit", "machine", "weights_hash", "data_hash", "threads")
        }
        | {"created": datetime.now(UTC).isoformat(timespec="seconds")},
    }


def _measured(
    request: Request, name: str, options: Mapping[str, str], scratch: Path
) -> tuple[Document, float]:
    """Return the measured run with the median TPOT, and the relative spread of all."""
    spec = resolve(
        request.data_dir, system=name, machine="local", weights=str(request.weights),
        emulated_link_gb_s=request.link_gb_s, overrides=dict(options), **request.given,
    )  # fmt: skip
    runs = [_run(spec, request, scratch) for _ in range(request.repeats)]
    runs.sort(key=lambda document: document["metrics"]["tpot_ms"]["mean"])
    means = [document["metrics"]["tpot_ms"]["mean"] for document in runs]
    middle = runs[len(runs) // 2]
    return middle, (means[-1] - means[0]) / statistics.median(means)


def _simulated(
    request: Request, name: str, options: Mapping[str, str], measured: Document, scratch: Path
) -> Document:
    """Run a measured run's spec on the profile, with the measured slots and options."""
    given = {k: v for k, v in request.given.items() if k not in ("cache_ratio", "slots")}
    changed = {"assign": "load"} if measured["spec"]["options"]["assign"] == "load" else {}
    spec = resolve(
        request.data_dir, system=name, machine=str(request.profile),
        model=measured["spec"]["model"], weights=str(request.weights), precision="fp32",
        slots=measured["spec"]["slots"], allow_overcommit=True,
        overrides={**options, **changed}, **given,
    )  # fmt: skip
    return _run(spec, request, scratch)


def _run(spec: RunSpec, request: Request, scratch: Path) -> Document:
    with opened(spec, request.data_dir) as session:
        return run(session, scratch).document
        gc.collect()  # two runs' weights would not fit into memory


def _row(
    name: str, options: Mapping[str, str], measured: Document, simulated: Document, spread: float
) -> Document:
    def both(path: str) -> tuple[float, float]:
        return dig(measured, path), dig(simulated, path)

    def moved(document: Document) -> int:
        metrics = document["metrics"]
        return int(metrics["bytes_h2d"] + metrics["bytes_disk"])

    def hits(document: Document) -> int:
        return int(document["metrics"]["experts"]["decode"]["hits"])

    times = {figure: both(f"metrics.{figure}_ms.mean") for figure in ("tpot", "ttft")}
    return {
        "system": name,
        "options": dict(options),
        "spread": round(spread, 4),
        **{
            f"{figure}_ms": {"measured": a, "simulated": b, "error": round(b / a - 1, 4)}
            for figure, (a, b) in times.items()
        },
        "bytes": {"measured": moved(measured), "simulated": moved(simulated)},
        "hits": {"measured": hits(measured), "simulated": hits(simulated)},
        "agreement": dig(measured, "accuracy.agreement"),
        "noisy": dig(measured, "measured.noisy"),
    }


def summary(rows: Sequence[Document]) -> Document:
    """Return mean and worst errors, and the rank correlation of TPOT (Spearman's ρ)."""
    tpot = [abs(row["tpot_ms"]["error"]) for row in rows]
    ttft = [abs(row["ttft_ms"]["error"]) for row in rows]
    figures = {"tpot_mean": statistics.mean(tpot), "tpot_worst": max(tpot), "ttft_worst": max(ttft)}
    return {
        **{name: round(value, 4) for name, value in figures.items()},
        "rank_correlation": _rank_correlation(
            [row["tpot_ms"]["measured"] for row in rows],
            [row["tpot_ms"]["simulated"] for row in rows],
        ),
        "met": {name: value <= TARGETS[name] for name, value in figures.items()},
        "targets": TARGETS,
    }


def _rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    if len(one) < 2:
        return None
    a, b = (np.argsort(np.argsort(values)) for values in (one, other))
    return round(float(np.corrcoef(a, b)[0, 1]), 4)
