"""SMoE's figures from instrumented runs: Fig. 15, Table I, and gate scores (Fig. 4 and 6)."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Literal

import numpy as np

from moebench.harness.reproduce.evidence import Evidence, Runs
from moebench.harness.reproduce.read import DECODED, STALL, TPOT, curried, percent
from moebench.harness.reproduce.smoe.experiments import ABLATION, STEPS, TABLE_I
from moebench.harness.reproduce.smoe.instrumented import Importance, Watched, watch
from moebench.harness.reproduce.smoe.measures import conditions
from moebench.results.claims import Measured

Kind = Literal["top", "low"]


def off_device(importance: Importance, kind: Kind) -> float:
    """Return the share of top- or low-score experts that must be loaded or computed on the host.

    A prefetched expert whose copy is under way does not count.
    """
    if kind == "top":
        return importance.top_absent / importance.top
    return importance.low_absent / importance.low


@curried
def lowered(evidence: Evidence, kind: Kind, after: str, before: str) -> dict[int, float]:
    """Return by seed how a step changes `off_device`, in percent, averaged over settings."""
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
    """Measure counts of the ablation: a figure that returns one value for each seed."""
    runs = evidence.runs(ABLATION)
    return Measured.of(figure(evidence).values(), "counted", conditions(runs))


@curried
def more_lowered(evidence: Evidence, after: str, before: str) -> dict[int, float]:
    """Return by seed the change of `off_device` of top-score minus that of low-score experts."""
    top, low = lowered("top", after, before)(evidence), lowered("low", after, before)(evidence)
    return {seed: top[seed] - low[seed] for seed in top}


def low_share(importance: Importance) -> float:
    """Return the share of low-score experts among the active ones."""
    return importance.low / (importance.low + importance.top)


@curried
def falls_with_low_share(evidence: Evidence, after: str, before: str) -> dict[int, float]:
    """Return by seed the rank correlation, over settings, of `low_share` and of a step's effect.

    The effect is the fall of `off_device` of low-score experts, as a share.
    """
    now, then = (
        {
            (one.seed, one.setting): one.importance
            for one in watch(evidence, ABLATION, **STEPS[name])
        }
        for name in (after, before)
    )
    found: dict[int, list[tuple[float, float]]] = {}
    for place, importance in now.items():
        fall = 1 - off_device(importance, "low") / off_device(then[place], "low")
        found.setdefault(place[0], []).append((low_share(then[place]), fall))
    # Best rank first is the setting with the smallest share: the effect must rise from there.
    return {
        seed: -rank_correlation([fall for _, fall in sorted(pairs)])
        for seed, pairs in found.items()
    }


# ----------------------------------------------------------------------------- Table I

#: The step that Table I is measured on: misses are loaded, nothing is replaced or prefetched.
BEFORE_SUBSTITUTION = "+CE"


def time_shares(runs: Runs, seen: Sequence[Watched]) -> dict[str, float]:
    """Return Table I for the runs of one setting and seed, in percent of TPOT.

    The device's wait for loads is divided by the numbers of low-score and top-score experts that
    were loaded.  The rest is the device's time, launches included.
    """
    steps = sum(runs.values(DECODED))
    waited = sum(runs.values(STALL)) / (steps * runs.mean(TPOT))
    low = sum(one.importance.low_absent for one in seen)
    top = sum(one.importance.top_absent for one in seen)
    return {
        "low-score loading": 100 * waited * low / (low + top),
        "top-score loading": 100 * waited * top / (low + top),
        "GPU computing": 100 * (1 - waited),
    }


def table_1(evidence: Evidence, setting: str = "S3") -> dict[int, dict[str, float]]:
    """Return the shares of Table I by seed."""
    runs = evidence.runs(TABLE_I).of(setting=setting, set=STEPS[BEFORE_SUBSTITUTION])
    seen = watch(evidence, TABLE_I, **STEPS[BEFORE_SUBSTITUTION])
    return {
        seed: time_shares(one, [w for w in seen if (w.seed, w.setting) == (seed, setting)])
        for seed, one in runs.by("seed").items()
    }


@curried
def of_table_1(evidence: Evidence, figure: Callable[[dict[str, float]], float]) -> Measured:
    """Measure a figure of the shares of Table I, with one sample for each seed."""
    runs = evidence.runs(TABLE_I)
    shares = [figure(row) for row in table_1(evidence).values()]
    said = "every miss loaded, no substitution, no prefetching; top-score by S3's α"
    return Measured.of(shares, runs.badge, conditions(runs, said))


# ----------------------------------------------------------------------------- what gates say


def rank_correlation(values: Sequence[float]) -> float:
    """Return Spearman's correlation of rank and value, best rank first; 1 means always falling."""
    found = np.array(values)
    ascending = found.argsort(kind="stable").argsort(kind="stable")
    falling = np.arange(len(found))[::-1]
    return float(np.corrcoef(ascending, falling)[0, 1])


@curried
def of_gates(evidence: Evidence, figure: Callable[[Watched], float], setting: str) -> Measured:
    """Measure a figure of the gate scores of one setting, with one sample for each seed."""
    runs = evidence.runs(ABLATION)
    seen = watch(evidence, ABLATION, **STEPS[BEFORE_SUBSTITUTION])
    found = [figure(one) for one in seen if one.setting == setting]
    said = f"{runs.of(setting=setting)[0]['spec']['model']}, decoded tokens"
    return Measured.of(found, "counted", conditions(runs, said))


def reuse_falls(seen: Watched) -> float:
    """Return how strictly the reuse of experts falls with the rank of their score."""
    return rank_correlation(seen.reuse_by_rank)


def inactive_reuse_falls(seen: Watched) -> float:
    """Return how strictly reuse falls with the rank of the score, over inactive ranks only."""
    return rank_correlation(seen.reuse_by_rank[seen.top_k :])


def first_over_rival(seen: Watched) -> float:
    """Return the mean best score over the mean best score of an inactive expert."""
    return seen.score_by_rank[0] / seen.score_by_rank[seen.top_k]


def last_over_rival(seen: Watched) -> float:
    """Return the mean worst active score over the mean best score of an inactive expert."""
    return seen.score_by_rank[seen.top_k - 1] / seen.score_by_rank[seen.top_k]
