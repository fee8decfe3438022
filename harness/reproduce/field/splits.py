"""FreeToken's hybrid mode against its offload mode, by the ratio of bandwidths (R-8)."""

from collections.abc import Mapping
from itertools import pairwise
from statistics import fmean

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.harness.reproduce.field.experiments import OFFLOAD, SPLIT
from moebench.harness.reproduce.read import TPOT
from moebench.results.claims import Measured
from moebench.substrate.machines.profile import load_profile


def bandwidth_ratio(machine: str, software: str) -> float:
    """Return the host's rate of reading weights over the link's rate of copies.

    Each is measured alone, as by FreeToken's benchmark.
    """
    profile = load_profile(machine, software)
    return profile.host.gemv_bandwidth.value / profile.link.pinned_h2d.value


def by_ratio(runs: Runs) -> dict[float, float]:
    """Return the TPOT of the other mode over that of offload, by the ratio of bandwidths."""
    found: dict[float, list[float]] = {}
    for (machine, _), place in runs.groups("machine", "model").items():
        offload = place.of(set=OFFLOAD["set"])
        hybrid = Runs(run for run in place if run not in offload)
        if not hybrid or not offload:
            raise MissingEvidenceError(f"{machine}: a mode lacks its run")
        ratio = bandwidth_ratio(machine, place[0]["spec"]["software"])
        found.setdefault(round(ratio, 3), []).append(hybrid.mean(TPOT) / offload.mean(TPOT))
    return {ratio: fmean(of) for ratio, of in sorted(found.items())}


def crossing(times: Mapping[float, float]) -> float:
    """Return the ratio of bandwidths from which on hybrid is faster, between two ratios.

    If hybrid is faster at all ratios it is the least of them, and the greatest if at none.
    """
    ordered = sorted(times.items())
    for (a, first), (b, last) in pairwise(ordered):
        if first >= 1 > last:
            return a + (b - a) * (first - 1) / (first - last)
    return ordered[0][0] if ordered[0][1] < 1 else ordered[-1][0]


def measured(evidence: Evidence) -> Measured:
    """Measure the ratio of bandwidths from which on hybrid is faster than offload."""
    runs = evidence.runs(SPLIT)
    samples = [crossing(by_ratio(of)) for of in runs.by("seed").values()]
    ratios = by_ratio(runs)
    said = (
        f"host over link {min(ratios):.2g} to {max(ratios):.2g}, a quarter of the experts on the "
        "device; at an end of these, there is no crossing between them"
    )
    return Measured.of(samples, runs.badge, said)


def turns(evidence: Evidence) -> str:
    """Return hybrid's TPOT over offload's at each ratio of bandwidths, and where it is 1."""
    found = by_ratio(evidence.runs(SPLIT))
    listed = ", ".join(f"{time:.2f} at {ratio:.2g}" for ratio, time in found.items())
    least, most = min(found.values()), max(found.values())
    if most < 1:
        where = f"Hybrid is faster at every ratio of host to link from {min(found):.2g} on"
    elif least >= 1:
        where = f"Offload is faster at every ratio of host to link up to {max(found):.2g}"
    else:
        where = f"Hybrid is faster from a ratio of host to link of {crossing(found):.2f} on"
    return f"{where}. TPOT of hybrid over offload: {listed}."
