"""Figures of watched cells: Fig. 15, Table I, and what gates say of experts (Fig. 4 and 6)."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Literal

import numpy as np

from moebench.harness.reproduce.evidence import Evidence, Runs
from moebench.harness.reproduce.read import DECODED, STALL, TPOT, curried, percent
from moebench.harness.reproduce.smoe.experiments import ABLATION, STEPS
from moebench.harness.reproduce.smoe.instrumented import Importance, Watched, watch
from moebench.harness.reproduce.smoe.measures import conditions
from moebench.results.claims import Measured

Kind = Literal["top", "low"]


def off_device(importance: Importance, kind: Kind) -> float:
    """Share of top-score or of low-score experts that must be loaded or computed on the host.

    A prefetched one that is still on the way need not.
    """
    if kind == "top":
        return importance.top_absent / importance.top
    return importance.low_absent / importance.low


@curried
def lowered(evidence: Evidence, kind: Kind, after: str, before: str) -> dict[int, float]:
    """By seed, what a step changes in `off_device`, in percent; the mean over settings."""
    now, then = (
        {(one.seed, one.setting): off_device(one.importance, kind)
         for one in watch(evidence, ABLATION, **STEPS[name])}
        for name in (after, before)
    )  # fmt: skip
    found: dict[int, list[float]] = {}
    for (seed, setting), share in now.items():
        found.setdefault(seed, []).append(percent(share / then[seed, setting]))
    return {seed: fmean(changes) for seed, changes in found.items()}


@curried
def of_steps(evidence: Evidence, figure: Callable[[Evidence], dict[int, float]]) -> Measured:
    """A figure by seed as a measurement."""
    runs = evidence.runs(ABLATION)
    return Measured.of(figure(evidence).values(), runs.badge, conditions(runs))


@curried
def more_lowered(evidence: Evidence, after: str, before: str) -> dict[int, float]:
    """By how many points more a step lowers top-score experts' share than low-score ones'."""
    top, low = lowered("top", after, before)(evidence), lowered("low", after, before)(evidence)
    return {seed: top[seed] - low[seed] for seed in top}


# ----------------------------------------------------------------------------- Table I

#: What Table I is measured on: every miss is loaded, nothing is replaced or prefetched.
BEFORE_SUBSTITUTION = "+CE"


def time_shares(runs: Runs, seen: Sequence[Watched]) -> dict[str, float]:
    """Table I of one setting and seed, in percent of TPOT.

    What the device waits for loads is divided as the loads are: by how many were of low-score and
    of top-score experts.  The rest is the device, launches included.

    Args:
        runs: one cell's.
    """
    steps = sum(runs.values(DECODED))  # one sequence at a time
    waited = sum(runs.values(STALL)) / (steps * runs.mean(TPOT))
    low = sum(one.importance.low_absent for one in seen)
    top = sum(one.importance.top_absent for one in seen)
    return {
        "low-score loading": 100 * waited * low / (low + top),
        "top-score loading": 100 * waited * top / (low + top),
        "GPU computing": 100 * (1 - waited),
    }


def table_1(evidence: Evidence, setting: str = "S3") -> dict[int, dict[str, float]]:
    """Table I by seed."""
    runs = evidence.runs(ABLATION).of(setting=setting, set=STEPS[BEFORE_SUBSTITUTION])
    seen = watch(evidence, ABLATION, **STEPS[BEFORE_SUBSTITUTION])
    return {
        seed: time_shares(one, [w for w in seen if (w.seed, w.setting) == (seed, setting)])
        for seed, one in runs.by("seed").items()
    }


@curried
def of_table_1(evidence: Evidence, figure: Callable[[dict[str, float]], float]) -> Measured:
    """A figure of Table I as a measurement."""
    runs = evidence.runs(ABLATION)
    shares = [figure(row) for row in table_1(evidence).values()]
    said = "every miss loaded, no substitution, no prefetching; top-score by S3's α"
    return Measured.of(shares, runs.badge, conditions(runs, said))


# ----------------------------------------------------------------------------- what gates say


def rank_correlation(values: Sequence[float]) -> float:
    """Spearman's, between a rank's place (the best first) and its value; 1: always falling."""
    found = np.array(values)
    ascending = found.argsort(kind="stable").argsort(kind="stable")
    falling = np.arange(len(found))[::-1]
    return float(np.corrcoef(ascending, falling)[0, 1])


@curried
def of_gates(evidence: Evidence, figure: Callable[[Watched], float], setting: str) -> Measured:
    """A figure of a model's own routing, of each seed."""
    runs = evidence.runs(ABLATION)
    seen = watch(evidence, ABLATION, **STEPS[BEFORE_SUBSTITUTION])
    found = [figure(one) for one in seen if one.setting == setting]
    said = f"{runs.of(setting=setting)[0]['spec']['model']}, decoded tokens"
    return Measured.of(found, "counted", conditions(runs, said))


def reuse_falls(seen: Watched) -> float:
    """How strictly reuse falls with the score's rank."""
    return rank_correlation(seen.reuse_by_rank)


def inactive_reuse_falls(seen: Watched) -> float:
    """The same of ranks below the chosen ones."""
    return rank_correlation(seen.reuse_by_rank[seen.top_k :])


def first_over_rival(seen: Watched) -> float:
    """The best score over the best inactive one's, both means."""
    return seen.score_by_rank[0] / seen.score_by_rank[seen.top_k]


def last_over_rival(seen: Watched) -> float:
    """The worst active score over the best inactive one's, both means."""
    return seen.score_by_rank[seen.top_k - 1] / seen.score_by_rank[seen.top_k]
