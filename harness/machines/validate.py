"""Validation: compares runs on this computer with runs simulated on its profile.

Both runs have the same checkpoint, prompts, lengths and slots; only one of them is simulated.  On
this computer, a system and the resident model (all experts on the device) generate alternately,
token by token, in one process.  The compared figure is the system's time over the resident model's,
the median over pairs of tokens.  The simulated computer computes as fast as this one did meanwhile.
Errors are signed: (simulated - measured) / measured.
"""

import gc
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml

from moebench.harness.machines.profile import write_profile
from moebench.harness.one_run import opened, run
from moebench.harness.run.execute import Ready, started
from moebench.harness.run.live import LiveSession
from moebench.harness.run.rules import resolve
from moebench.harness.run.session import Prepared
from moebench.results.document import dig
from moebench.substrate.engine.records import Generation
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.local import LocalMachine
from moebench.substrate.machines.measured_times import shape_hash
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.machines.records import MemoryRecords
from moebench.substrate.models.shared import SharedWork

#: What a table is expected to reach: errors of TPOT (mean, worst) and of TTFT.
TARGETS = {"tpot_mean": 0.05, "tpot_worst": 0.10, "ttft_worst": 0.10}

#: Options of the resident model.
RESIDENT: dict[str, Any] = {"cache_ratio": 1.0, "slots": None}

#: Options of measured runs that simulated runs do not have, or take from the measured one.
_MEASURED_ONLY = ("cache_ratio", "slots", "device", "precision")

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """Systems and conditions of a validation.

    Attributes:
        systems: by name, each with options as ``--set`` takes them.
        repeats: measured runs of each; their tokens are pooled.
        given: options of all runs, as `resolve` takes them.
    """

    profile: Path
    weights: Path
    link_gb_s: float | None
    systems: Mapping[str, Mapping[str, str]]
    repeats: int
    given: Mapping[str, Any]
    data_dir: Path | None


class Times(NamedTuple):
    """Times in ns: ``ttft`` of each batch's first token, ``tpot`` of each later token."""

    ttft: list[float]
    tpot: list[float]


class Alternated(NamedTuple):
    """A measured run: its document, its times, and the times of the resident model's tokens."""

    document: Document
    own: Times
    resident: Times


def validate(
    request: Request, scratch: Path, progress: Callable[[str], None] = lambda text: None,
    skip: Callable[[str], str] = lambda system: "",
) -> Document:  # fmt: skip
    """Run every system measured and simulated; return the table with its provenance.

    A system that cannot run here or on the profile is in ``not_possible``, with the reason.

    Args:
        skip: called with each system's name; returns why it is left out, or "" to run it.

    Raises MoeBenchError: the profile, the checkpoint or an option cannot be, or no system can run.
    """
    profile = load_profile(str(request.profile))
    measured = profile.measured
    rows: list[Document] = []
    refused: list[Document] = []
    first: Document | None = None
    with _placed(request, "gpu-only", {}, scratch, **RESIDENT) as resident:
        machine = resident.stage.machine
        if isinstance(machine, LocalMachine) and isinstance(machine.records, MemoryRecords):
            machine.records.release()
        moves = measured is not None and measured.shape == shape_hash(resident.session.full)
        like = resident.session.spec.model_dump() | {"slots": resident.stage.slots}
        simulated = partial(_simulated, request, _live(resident.session), scratch)
        _, expected = simulated("gpu-only", {}, like, request.profile)
        for name, options in request.systems.items():
            try:
                if reason := skip(name):
                    raise UsageError(reason)
                progress(f"{name}: measured")
                runs = [
                    _alternated(request, name, options, resident, scratch)
                    for _ in range(request.repeats)
                ]
                progress(f"{name}: simulated")
                factor = slowdown(runs, expected) if moves else 1.0
                with profile_of_now(request.profile, factor) as now:
                    found = simulated(name, options, runs[0].document["spec"], now)
            except (UsageError, BudgetError) as error:
                refused.append({"system": name, "options": dict(options), "reason": str(error)})
                continue
            first = first or runs[0].document
            rows.append(
                {"system": name, "options": dict(options)}
                | row(runs, *found, Times(*([factor * ns for ns in part] for part in expected)))
                | {"resident": [round(1 / slowdown([one], expected) - 1, 4) for one in runs]}
            )
    if first is None:
        raise UsageError(f"no system can run here: {refused[0]['reason']}")
    return {
        "profile": profile.name,
        "profile_hash": profile.content_hash(),
        "calibrated": None if profile.calibration is None else str(profile.calibration.date),
        "calibration_error": dig(profile.model_dump(), "calibration.error.value"),
        "model": first["measured"]["model"],
        "emulated_link_gb_s": request.link_gb_s,
        "rows": rows,
        "not_possible": refused,
        "summary": summary(rows),
        "provenance": {
            key: first["provenance"][key]
            for key in ("versions", "commit", "machine", "weights_hash", "data_hash", "threads")
        }
        | {"created": datetime.now(UTC).isoformat(timespec="seconds")},
    }


# ------------------------------------------------------------------ measured runs


@contextmanager
def _placed(
    request: Request, name: str, options: Mapping[str, str], scratch: Path,
    shared: SharedWork | None = None, **changed: Any,
) -> Iterator[Ready]:  # fmt: skip
    """Start a system's run on this computer: its experts are placed.

    Args:
        shared: weights of the lossless model, if another run has them.
        changed: options that replace the request's.
    """
    spec = resolve(
        request.data_dir, system=name, machine="local", weights=str(request.weights),
        emulated_link_gb_s=request.link_gb_s, overrides=dict(options),
        **{**request.given, **changed},
    )  # fmt: skip
    with opened(spec, request.data_dir) as session:
        live = _live(session)
        live.share(shared)
        with started(live, scratch, lambda done, total: None) as ready, torch.inference_mode():
            yield ready
    gc.collect()  # two systems' experts would not fit into memory


def _live(session: Prepared) -> LiveSession:
    if not isinstance(session, LiveSession):
        raise UsageError(f"{session.spec.title} runs without moebench's engine, in its own process")
    return session


def _alternated(
    request: Request, name: str, options: Mapping[str, str], resident: Ready, scratch: Path
) -> Alternated:
    """Run a system; after each of its tokens, the resident model generates one."""
    model, other = _live(resident.session), resident.stage.engine
    own: list[Generation] = []
    between: dict[int, Generation] = {}
    with _placed(request, name, options, scratch, model.weights.sharing()) as ready:
        session, stage = _live(ready.session), ready.stage
        machine, size = stage.machine, session.spec.batch
        assert isinstance(machine, LocalMachine)
        for first in range(0, session.spec.prompts, size):
            questions = model.questions[first : first + size]
            cues = [question.continuations[0] for question in questions]
            steps = other.steps(
                [question.prompt for question in questions],
                model.spec.new_tokens + len(cues[0]), cues,
            )  # fmt: skip
            stage.engine.after_token = partial(_between, machine, steps, between, first)
            own += session.answer(stage, slice(first, first + size))
        return Alternated(ready.document(own), times_of(own), times_of([*between.values()]))


def _between(
    machine: LocalMachine, steps: Iterator[Generation], found: dict[int, Generation], batch: int
) -> None:
    """Generate a token of the resident model while the system's machine copies nothing."""
    machine.drain()
    found[batch] = next(steps)


def times_of(generations: Sequence[Generation]) -> Times:
    """Return the times of batches, in order, without the pauses between tokens."""
    return Times(
        [one.ttft_ns for one in generations], [ns for one in generations for ns in one.steps_ns]
    )


# ------------------------------------------------------------------ simulated runs


def _simulated(
    request: Request, resident: LiveSession, scratch: Path, name: str, options: Mapping[str, str],
    like: Mapping[str, Any], profile: Path,
) -> tuple[Document, Times]:  # fmt: skip
    """Run a system on a profile, with the slots, precision and assignment of a measured spec."""
    given = {k: v for k, v in request.given.items() if k not in _MEASURED_ONLY}
    loads = (like.get("options") or {}).get("assign") == "load"
    precision = like["precision"] if like["device"] == "cuda" else "fp32"
    spec = resolve(
        request.data_dir, system=name, machine=str(profile), model=like["model"],
        weights=str(request.weights), precision=precision, slots=like["slots"],
        allow_overcommit=True, overrides={**options, **({"assign": "load"} if loads else {})},
        **given,
    )  # fmt: skip
    with opened(spec, request.data_dir) as session:
        _live(session).share(resident.weights.sharing())
        outcome = run(session, scratch)
    return outcome.document, times_of(outcome.generations)


def slowdown(runs: Sequence[Alternated], expected: Times) -> float:
    """Return the resident model's measured time per token over the simulated one, in medians."""
    measured = [ns for one in runs for ns in one.resident.tpot]
    return statistics.median(measured) / statistics.median(expected.tpot)


@contextmanager
def profile_of_now(profile: Path, factor: float) -> Iterator[Path]:
    """Write a measured profile of the same computer that computes ``factor`` times as long.

    Transfers keep their times.
    """
    measured = load_profile(str(profile)).measured
    if measured is None or factor == 1:
        yield profile
        return
    content = yaml.safe_load(profile.read_text(encoding="utf-8"))
    content["measured"] = measured.slower(factor).model_dump(mode="json")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "now.yaml"
        write_profile(content, file)
        yield file


# ------------------------------------------------------------------ the table


def row(runs: Sequence[Alternated], simulated: Document, times: Times, expected: Times) -> Document:
    """Return the figures of a system, measured and simulated.

    Args:
        simulated: document of the simulated run, whose times are ``times``.
        expected: simulated times of the resident model, at the same speed of the computer.
    """
    ratios = [_ratio(one.own.tpot, one.resident.tpot) for one in runs]
    measured = runs[0].document

    def both(figure: Callable[[Document], int]) -> Document:
        return {"measured": figure(measured), "simulated": figure(simulated)}

    def moved(document: Document) -> int:
        metrics = document["metrics"]
        return int(metrics["bytes_h2d"] + metrics["bytes_disk"])

    def hits(document: Document) -> int:
        return int(document["metrics"]["experts"]["decode"]["hits"])

    def figure(name: str) -> Document:
        own = [ns for one in runs for ns in getattr(one.own, name)]
        resident = [ns for one in runs for ns in getattr(one.resident, name)]
        guessed = getattr(times, name)
        real, guess = _ratio(own, resident), _ratio(guessed, getattr(expected, name))
        return {
            "measured": statistics.median(own) / 1e6,
            "simulated": statistics.median(guessed) / 1e6,
            "over_resident": {"measured": round(real, 4), "simulated": round(guess, 4)},
            "error": round(guess / real - 1, 4),
        }

    return {
        "spread": round((max(ratios) - min(ratios)) / statistics.median(ratios), 4),
        "tpot_ms": figure("tpot"),
        "ttft_ms": figure("ttft"),
        "bytes": both(moved),
        "hits": both(hits),
        "agreement": dig(measured, "accuracy.agreement"),
        "noisy": dig(measured, "measured.noisy"),
    }


def _ratio(own: Sequence[float], resident: Sequence[float]) -> float:
    """Return the median of a system's times over the resident model's, pair by pair."""
    return statistics.median(a / b for a, b in zip(own, resident, strict=True))


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
