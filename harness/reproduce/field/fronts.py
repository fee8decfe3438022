"""SMoE's α and cache-prior's λ on one front of KL divergence and TPOT (R-7).

Both are measured in the same system: loads on demand, LRU, scale model.  At the same KL, log KL is
interpolated between the cells; KL that only one of the two reaches is not compared.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.harness.reproduce.field.experiments import FRONT
from moebench.harness.reproduce.read import TPOT
from moebench.results.claims import Measured

ALPHA, PRIOR = "expert-cache", "cache-prior"

#: KL, in nats a token, below which a cell counts as lossless.
LOSSLESS = 1e-6

#: Number of KL values at which both are compared.
PLACES = 9


class Point(NamedTuple):
    """A cell: its α or λ, KL in nats a token, TPOT in ms and hit rate."""

    value: float
    kl: float
    tpot: float
    hits: float


def points(runs: Runs, route: str) -> list[Point]:
    """Return the cells of one routing, by its α or λ, each the mean over seeds."""
    chosen = Runs(run for run in runs if run["spec"]["overrides"].get("route") == route)
    found = [
        Point(value, of.mean("accuracy.kl"), of.mean(TPOT), of.mean("metrics.cache_ratio"))
        for value, of in sorted(chosen.by("alpha").items())
    ]
    if len(found) < 2:
        raise MissingEvidenceError(f"{route}: fewer than two cells")
    return found


def tpot_at(curve: Sequence[Point], kl: float) -> float:
    """Return the TPOT at a KL, from the fastest cells with less KL, interpolated over log KL."""
    front = pareto(curve)
    x = [math.log(max(point.kl, LOSSLESS)) for point in front]
    return float(np.interp(math.log(kl), x, [point.tpot for point in front]))


def pareto(curve: Sequence[Point]) -> list[Point]:
    """Return the cells that no other cell beats in both KL and TPOT, by ascending KL."""
    front: list[Point] = []
    for point in sorted(curve, key=lambda p: (p.kl, p.tpot)):
        if not front or point.tpot < front[-1].tpot:
            front.append(point)
    return front


def shared(one: Sequence[Point], other: Sequence[Point]) -> list[float]:
    """Return KL values, equally far apart in their logarithm, that both fronts reach.

    Raises MissingEvidenceError: the fronts share no range.
    """
    lossy = [[p.kl for p in pareto(curve) if p.kl > LOSSLESS] for curve in (one, other)]
    if not all(lossy):
        raise MissingEvidenceError("a routing has no cell that changes the model's output")
    low, high = max(min(kls) for kls in lossy), min(max(kls) for kls in lossy)
    if low > high:
        raise MissingEvidenceError("the fronts of α and λ share no range of KL")
    return [float(kl) for kl in np.geomspace(low, high, PLACES)]


def ratio(runs: Runs) -> float:
    """Return λ's TPOT over α's at the same KL, the mean over KL that both reach."""
    alpha, prior = points(runs, ALPHA), points(runs, PRIOR)
    at = shared(alpha, prior)
    return fmean(tpot_at(prior, kl) / tpot_at(alpha, kl) for kl in at)


def measured(evidence: Evidence) -> Measured:
    """Measure λ's TPOT over α's at the same KL, with one sample for each cache size."""
    runs = evidence.runs(FRONT)
    samples = [ratio(of) for of in runs.by("cache_ratio").values()]
    said = "OLMoE's scale model on passages; a quarter and a half of the experts, LRU, on demand"
    return Measured.of(samples, runs.badge, said, "cache sizes")


def halved(evidence: Evidence) -> Measured:
    """Measure the misses at the largest λ over those at λ = 0, in percent less."""
    runs = evidence.runs(FRONT)
    samples = []
    for of in runs.by("cache_ratio").values():
        curve = points(of, PRIOR)
        samples.append(100 * (1 - (1 - curve[-1].hits) / (1 - curve[0].hits)))
    return Measured.of(samples, "counted", "λ = 1 against λ = 0", "cache sizes")


def turns(evidence: Evidence) -> str:
    """Return by cache size at which KL α or λ is faster."""
    parts = []
    for share, of in evidence.runs(FRONT).by("cache_ratio").items():
        alpha, prior = points(of, ALPHA), points(of, PRIOR)
        at = shared(alpha, prior)
        faster = [kl for kl in at if tpot_at(prior, kl) < tpot_at(alpha, kl)]
        if len(faster) in (0, len(at)):
            who = "λ" if faster else "α"
            where = f"{who} is faster at every KL from {at[0]:.1e} to {at[-1]:.1e}"
        else:
            where = f"λ is faster at {len(faster)} of {len(at)} KL from {at[0]:.1e} to "
            where += f"{at[-1]:.1e}, from {faster[0]:.1e} to {faster[-1]:.1e}"
        parts.append(f"{share:.0%} of the experts: {where}")
    return f"At equal KL in nats a token. {'; '.join(parts)}."
