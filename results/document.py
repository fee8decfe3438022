"""Readers of run documents: values at paths, and names of what was run, as all outputs show them.

A value that a document lacks is None, so that documents of earlier versions can be read.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Document = dict[str, Any]

#: The metric whose score is not a percentage.
PERPLEXITY = "perplexity"

#: How many standard errors a score must be above guessing to count as above it.
ERRORS = 2.0


#: Parts of a document that only a single run's view and the comparison of two runs read.
DETAILS = (
    "interval.fields", "accuracy.items", "metrics.experts", "metrics.prefetch",
    "metrics.routed_ahead", "metrics.energy",
)  # fmt: skip


def is_run_id(text: object) -> bool:
    """Return whether a text can be a run's id: letters and digits only, so no path."""
    return isinstance(text, str) and re.fullmatch(r"[0-9A-Za-z]{1,64}", text) is not None


def dig(document: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path ("metrics.tpot_ms.mean"), or None if a step is missing."""
    value: Any = document
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def effects_on(run: Document, figure: str = "tpot_ms") -> dict[str, tuple[float, float]]:
    """Return the named numbers of the profile with the share by which each moves a run's time.

    Args:
        figure: ``tpot_ms``, or another time, which `without_details` does not keep.

    Returns:
        By the number's name, the change at the low and at the high end of its range; the same
        before and after `without_details` for TPOT.
    """
    kept: dict[str, tuple[float, float]] | None = dig(run, "interval.effects")
    if kept is not None and figure == "tpot_ms":
        return kept
    found = {}
    for one in dig(run, "interval.fields") or []:
        if figure in one:
            low, high = one[figure]
            found[str(one["field"])] = (low / 100, high / 100)
    return found


def without_details(document: Document) -> Document:
    """Remove the `DETAILS` of a document except `effects_on` TPOT, and return it."""
    if isinstance(document.get("interval"), dict):
        document["interval"]["effects"] = effects_on(document)
    for path in DETAILS:
        above, _, name = path.rpartition(".")
        part = dig(document, above)
        if isinstance(part, dict):
            part.pop(name, None)
    return document


# ----------------------------------------------------------------------------- what was run


def system_of(spec: Mapping[str, Any]) -> str:
    """Return a system's name with its variant: ``smoe``, or ``smoe (shipped)``."""
    variant = spec.get("variant", "published")  # earlier versions had no other
    return spec["system"] if variant == "published" else f"{spec['system']} ({variant})"


def routing_of(spec: Mapping[str, Any]) -> str:
    """Return the source of a run's expert choices: ``model``, ``drawn``, ``real`` or its trace."""
    trace = spec.get("trace")
    # Documents of earlier versions have no routing.
    return f"trace {Path(trace).name}" if trace else spec.get("routing", "model")


def software_of(spec: Mapping[str, Any]) -> str:
    """Return the kind of software whose costs a run is charged with; ``native``: a package's own.

    A measured run of moebench's own engine is ``lean``.
    """
    # Documents of earlier versions have no software.
    return str(spec.get("software", "lean"))


def model_of(run: Document) -> str | None:
    """Return the model that a run's times are of: the one that ran, if they were measured."""
    ran: str | None = dig(run, "measured.model")
    return ran or run["spec"].get("model")


def badge_of(run: Document) -> str:
    """Return a run's badge, with ``noisy`` added if a measurement spreads too far.

    ``checked`` is added where the simulator's error on published measurements of this kind of
    machine and system is known; the run's interval holds it.
    """
    noisy, known = dig(run, "measured.noisy"), dig(run, "interval.checked")
    return str(run["badge"]) + (", noisy" if noisy else "") + (", checked" if known else "")


def basis(run: Document) -> str:
    """Return a run's badge, with the model that was measured if one was."""
    ran = dig(run, "measured.model")
    return f"{badge_of(run)} on {ran}" if ran else badge_of(run)


# ----------------------------------------------------------------------------- scores


def is_lossless(run: Document) -> bool:
    """Return whether a run's tokens are the lossless model's; earlier documents say it by KL."""
    stated: bool | None = run.get("lossless")
    return dig(run, "accuracy.kl") in (None, 0) if stated is None else stated


def score_of(run: Document) -> float | None:
    """Return a run's score in percent; None for a perplexity."""
    score: float | None = dig(run, "accuracy.score")
    return None if dig(run, "accuracy.metric") == PERPLEXITY else score


def perplexity_of(run: Document) -> float | None:
    """Return a run's perplexity per token; None for another score."""
    score: float | None = dig(run, "accuracy.score")
    return score if dig(run, "accuracy.metric") == PERPLEXITY else None


def at_floor(score: float, stderr: float, n: int, chance: float | None, whole: float = 1) -> bool:
    """Return whether a score cannot be told from that of guessing.

    The standard error is the score's own or that of guessing, whichever is larger: if all
    answers are wrong, the score's own is 0.

    Args:
        n: number of examples.
        chance: score of guessing; None, which counts as 0, if there is nothing to guess.
        whole: score of all answers right, 1 or 100: the unit of score, error and chance.
    """
    share = (chance or 0.0) / whole
    error = max(stderr / whole, math.sqrt(share * (1 - share) / n))
    above = score / whole - share
    return above <= 0 or above < ERRORS * error


def score_at_floor(run: Document) -> bool:
    """Return whether a run's score cannot be told from that of guessing; False without a score."""
    score, n = score_of(run), dig(run, "accuracy.n")
    if score is None or not n:
        return False
    stderr = dig(run, "accuracy.stderr") or 0.0
    return at_floor(score, stderr, n, dig(run, "accuracy.chance"), whole=100)
