"""The page cache against learned eviction and LRU on the device, with equal memory (R-6)."""

from collections.abc import Callable
from statistics import fmean

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.harness.reproduce.field.experiments import OLMOE_GB, PAGES
from moebench.harness.reproduce.read import TPOT, percent
from moebench.results.claims import Measured

#: The three ways to use the memory.
LEARNED, LRU, PAGED = "learned eviction", "LRU on the device", "page cache"


def by_share(runs: Runs) -> dict[float, dict[str, float]]:
    """Return the mean TPOT of each way, in ms, by the share of OLMoE's experts in memory."""
    found: dict[float, dict[str, list[float]]] = {}
    for run in runs:
        spec = run["spec"]
        if spec["slots"] == 8:
            way, share = PAGED, (spec["free_host_gb"] - 1) / OLMOE_GB
        else:
            learned = spec["overrides"]["evict"] == "flashmoe"
            way, share = (LEARNED if learned else LRU), spec["cache_ratio"]
        times = found.setdefault(round(share, 3), {})
        times.setdefault(way, []).append(run["metrics"]["tpot_ms"]["mean"])
    if not found or any(len(of) < 3 for of in found.values()):
        raise MissingEvidenceError(f"a way to use the memory lacks its run ({TPOT})")
    return {
        share: {way: fmean(times) for way, times in of.items()}
        for share, of in sorted(found.items())
    }


def faster(way: str, other: str) -> Callable[[Evidence], Measured]:
    """Return a function that measures the gain in tokens/s of one way over another, in percent."""

    def measure(evidence: Evidence) -> Measured:
        runs = evidence.runs(PAGES)
        samples = [
            fmean(percent(times[other] / times[way]) for times in by_share(of).values())
            for of in runs.by("seed").values()
        ]
        shares = ", ".join(f"{share:.3g}" for share in by_share(runs))
        return Measured.of(samples, runs.badge, f"OLMoE on F1, {shares} of the experts in memory")

    return measure


def turns(evidence: Evidence) -> str:
    """Return the gains by share of experts in memory, and the price of a page against a slot."""
    found = by_share(evidence.runs(PAGES))
    parts = [
        f"{share:.3g} of the experts: learned {percent(times[PAGED] / times[LEARNED]):+.0f} %, "
        f"LRU {percent(times[PAGED] / times[LRU]):+.0f} %"
        for share, times in found.items()
    ]
    apart = fmean(percent(times[LRU] / times[LEARNED]) for times in found.values())
    placed = fmean(percent(times[PAGED] / times[LRU]) for times in found.values())
    decides = "place, not its rule, decides" if abs(placed) > abs(apart) else "rule decides"
    return (
        "A page that hits still crosses the link; a slot that hits does not. Tokens/s over the "
        f"page cache with as many bytes: {'; '.join(parts)}. What is learned adds {apart:+.1f} % "
        f"to LRU on the device, and the device {placed:+.1f} % to the page cache: the cache's "
        f"{decides}."
    )
