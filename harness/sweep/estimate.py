"""Estimates of a sweep's wall time, from stored runs of similar cells, else from constants."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Any, NamedTuple

from moebench.results.spec import RunSpec

#: Core seconds per generated token if no similar run is stored: measured with S3's scale model on a
#: slow core, prefill included.  A replay computes no tokens.
LIVE_S = 0.05
REPLAY_S = 0.005
#: Seconds to start a worker: import the libraries and read the weights.
START_S = 4.0

#: Fields that similar cells share, from the most to the least similar cells.
_LIKENESS = (
    ("system", "model", "machine", "workload", "batch", "replayed"),
    ("system", "model", "batch", "replayed"),
    ("system", "model", "replayed"),
    ("model", "replayed"),
)


class Estimate(NamedTuple):
    """A sweep's estimated wall time in seconds, and how many cells' time each source estimates."""

    seconds: float
    from_runs: int
    from_constants: int

    def __str__(self) -> str:
        sources = []
        if self.from_runs:
            sources.append(f"{self.from_runs} cells from stored runs like them")
        if self.from_constants:
            sources.append(
                f"{self.from_constants} cells from a constant ({LIVE_S * 1e3:g} ms of a core for a "
                f"generated token, {REPLAY_S * 1e3:g} ms replayed)"
            )
        return f"about {duration(self.seconds)}: {', '.join(sources) or 'nothing to run'}"


def estimate(
    specs: Sequence[RunSpec], timed: Iterable[tuple[dict[str, Any], float]], jobs: int
) -> Estimate:
    """Return the estimated wall time of a sweep's cells on ``jobs`` processes.

    Args:
        timed: specs and wall times (s) of stored runs.
    """
    known: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for spec, wall_s in timed:
        if tokens := _tokens(spec):
            for key in _keys(spec):
                known[key].append(wall_s / tokens)
    total, from_runs = 0.0, 0
    for one in specs:
        fields = one.model_dump()
        rates = next((known[key] for key in _keys(fields) if key in known), None)
        from_runs += rates is not None
        constant = REPLAY_S if one.replays else LIVE_S
        total += _tokens(fields) * (mean(rates) if rates else constant)
    processes = max(1, min(jobs, len(specs)))
    seconds = total / processes + (START_S if specs else 0)
    return Estimate(seconds, from_runs, len(specs) - from_runs)


def _keys(spec: dict[str, Any]) -> list[tuple[object, ...]]:
    replayed = spec.get("trace") is not None or spec.get("routing", "model") != "model"
    told = {**spec, "replayed": replayed}
    return [(*names, *(told.get(name) for name in names)) for names in _LIKENESS]


def _tokens(spec: dict[str, Any]) -> int:
    return (spec.get("prompts") or 0) * (spec.get("new_tokens") or 0)


def duration(seconds: float) -> str:
    """Return a duration as text in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
