"""Placement for each prompt against placement by frequency, by the share of residents (R-4)."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from statistics import fmean
from typing import Any

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.harness.reproduce.field.experiments import PLACEMENT, SWAPPED, UPDATED
from moebench.harness.reproduce.read import TPOT, TTFT, percent
from moebench.results.claims import Measured

#: Output length for end-to-end times, in tokens.
TOKENS = 256

#: The two ways to place again, by name.
AGAIN: dict[str, Mapping[str, Any]] = {"swaps": SWAPPED["set"], "updates": UPDATED["set"]}


def time_ms(runs: Runs, whole: bool) -> float:
    """Return the mean TPOT, or the time of a prompt and `TOKENS` tokens, in ms."""
    each = runs.mean(TPOT)
    return runs.mean(TTFT) + (TOKENS - 1) * each if whole else each


def changes(runs: Runs, again: str, whole: bool = False) -> dict[float, float]:
    """Return by share of residents the change of time against placement by frequency, in percent.

    Args:
        again: a name in `AGAIN`.
        whole: of the time of a prompt and `TOKENS` tokens, in place of TPOT.
    """
    found: dict[float, list[float]] = {}
    for (_, share), place in runs.groups("model", "cache_ratio").items():
        by, fixed = place.of(set=dict(AGAIN[again])), place.of(set={})
        if not len(by) or not len(fixed):
            raise MissingEvidenceError(f"a placement lacks its run at {share:.3g} of the experts")
        ratio = time_ms(by, whole) / time_ms(fixed, whole)
        found.setdefault(round(share, 3), []).append(percent(ratio))
    return {share: fmean(of) for share, of in sorted(found.items())}


def crossing(by_share: Mapping[float, float]) -> float | None:
    """Return the share at which a change first passes 0, between two shares; None: nowhere."""
    for (a, first), (b, last) in pairwise(sorted(by_share.items())):
        if first * last < 0:
            return a + (b - a) * first / (first - last)
    return None


def over(
    again: str, low: float, high: float, whole: bool = False
) -> Callable[[Evidence], Measured]:
    """Return a function that measures the mean change over shares from ``low`` to ``high``."""

    def measure(evidence: Evidence) -> Measured:
        runs = evidence.runs(PLACEMENT)
        samples = []
        shares: list[float] = []
        for of in runs.by("seed").values():
            by_share = changes(of, again, whole)
            shares = [share for share in by_share if low <= share <= high]
            if shares:
                samples.append(fmean(by_share[share] for share in shares))
        if not samples:
            raise MissingEvidenceError(f"no cell has {low:g} to {high:g} of the experts")
        what = f"a prompt and {TOKENS} tokens" if whole else "TPOT"
        said = f"{what}; {', '.join(f'{share:.3g}' for share in shares)} of the experts"
        return Measured.of(samples, runs.badge, said)

    return measure


def turns(evidence: Evidence) -> str:
    """Return from which share of residents on each way of placing again wins, in words."""
    runs = evidence.runs(PLACEMENT)
    parts = []
    for again in AGAIN:
        for whole in (False, True):
            by_share = changes(runs, again, whole)
            what = f"a prompt and {TOKENS} tokens" if whole else "TPOT"
            parts.append(f"{again}, {what}: {_where(by_share)}")
    return (
        "Against placement by frequency, for each share of resident experts. "
        + "; ".join(parts)
        + ". Updates stage a whole layer, whose slots are empty in decode."
    )


def _where(by_share: Mapping[float, float]) -> str:
    shares = sorted(by_share)
    ends = f"{by_share[shares[0]]:+.0f} % at {shares[0]:.3g}, "
    ends += f"{by_share[shares[-1]]:+.0f} % at {shares[-1]:.3g}"
    at = crossing(by_share)
    if at is None:
        won = "placing again" if by_share[shares[0]] < 0 else "frequency"
        return f"{won} wins at every share ({ends})"
    side = "above" if by_share[shares[0]] > 0 else "below"
    return f"placing again wins {side} {at:.2f} ({ends})"
