"""How SMoE's figures are read from runs; all changes are in percent."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean

from moebench.harness.reproduce import read
from moebench.harness.reproduce.evidence import MissingEvidenceError, Runs
from moebench.harness.reproduce.read import DECODED, HOST, LINK, TPOT, Figure, Measure, percent
from moebench.harness.reproduce.smoe.experiments import MAIN, STEPS

#: Both ways to count a hit: complete when the layer's gate is known, or its copy has begun by then.
COMPLETE, BEGUN = "metrics.cache_ratio", "metrics.cache_ratio_begun"


def conditions(runs: Runs, said: str = "") -> str:
    """Under which runs were made, in words."""
    spec = runs[0]["spec"]
    texts = "/".join(str(n) for n in sorted(runs.by("prompts")))
    parts = [
        f"{texts} prompts of {spec['new_tokens']} new tokens",
        " ".join(runs.by("workload")),
        f"{spec['routing']} routing, {spec['software']}",
    ]
    return "; ".join([*parts, *([said] if said else [])])


#: A figure of each seed's runs of an experiment, with their conditions.
measured = partial(read.measured, conditions=conditions)


# ----------------------------------------------------------------------------- against baselines


def ours(runs: Runs) -> Runs:
    """SMoE's runs."""
    return runs.named("smoe")


def others(runs: Runs) -> dict[str, Runs]:
    """The baselines', by name."""
    return {name: each for name, each in runs.by("system").items() if not len(ours(each))}


@read.curried
def change(runs: Runs, /, path: str, **of: object) -> float:
    """Against the best baseline of each workload, setting and batch: the mean over them."""
    return percent(fmean(
        ours(cell).mean(path) / min(one.mean(path) for one in others(cell).values())
        for cell in runs.of(**of).groups("workload", "setting", "batch").values()
    ))  # fmt: skip


@read.curried
def gain(runs: Runs, path: str, setting: str) -> float:
    """A cache ratio against the best baseline's, each averaged over workloads, batch 1."""
    chosen = runs.of(setting=setting, batch=1)
    best = max(one.mean(path) for one in others(chosen).values())
    return percent(ours(chosen).mean(path) / best)


def least(figures: Sequence[Figure]) -> Figure:
    """The smallest of several."""
    return lambda runs: min(figure(runs) for figure in figures)


def ratio(path: str, setting: str) -> Figure:
    """SMoE's own cache ratio of a setting, in percent, batch 1."""
    return lambda runs: 100 * ours(runs.of(setting=setting, batch=1)).mean(path)


def main(figure: Figure, said: str = "best of four baselines in each cell") -> Measure:
    """A figure of the comparison with the baselines."""
    return measured(figure, MAIN, said=said)


# ----------------------------------------------------------------------------- steps


@read.curried
def step(runs: Runs, path: str, after: str, before: str) -> float:
    """What a step of the ablation changes, the mean over settings."""
    now, then = (runs.of(set=STEPS[name]).by("setting") for name in (after, before))
    return percent(fmean(now[s].mean(path) / then[s].mean(path) for s in now))


@read.curried
def faster_steps(runs: Runs, base: str) -> float:
    """Share of steps, over all settings, in which TPOT falls."""
    names, falls = [base, "+CE", "+CR", "+Pre", "+BA"], []
    for place in runs.by("setting").values():
        times = [place.of(set=STEPS[name]).mean(TPOT) for name in names]
        falls += [b < a for a, b in pairwise(times)]
    return fmean(falls)


def busier_yet_faster(runs: Runs) -> float:
    """Share of settings where +Pre makes the link busier and TPOT shorter."""
    before, after = (runs.of(set=STEPS[name]).by("setting") for name in ("+CR", "+Pre"))
    return fmean(
        after[s].mean(LINK) > before[s].mean(LINK) and after[s].mean(TPOT) < before[s].mean(TPOT)
        for s in after
    )


def gap(runs: Runs) -> float:
    """How far link and host are apart, in ms a decoded token."""
    tokens = runs.values(DECODED)
    pairs = zip(runs.values(LINK), runs.values(HOST), tokens, strict=True)
    return fmean(abs(link - host) / n for link, host, n in pairs)


def gap_change(runs: Runs) -> float:
    """What +BA does to that, the mean over settings."""
    before, after = (runs.of(set=STEPS[name]).by("setting") for name in ("+Pre", "+BA"))
    return percent(fmean(gap(after[s]) / gap(before[s]) for s in after))


def host_to_link(runs: Runs) -> float:
    """The host's busy time over the link's with everything on, the mean over settings."""
    full = runs.of(set=STEPS["+BA"]).by("setting").values()
    return fmean(one.mean(HOST) / one.mean(LINK) for one in full)


# ----------------------------------------------------------------------------- prefetching


def prefetched(runs: Runs, what: str) -> float:
    """How many experts were prefetched while tokens were decoded: issued, top_score, active."""
    return sum(runs.values(f"metrics.prefetch.{what}"))


def top_share(runs: Runs) -> float:
    """Share of prefetched experts that are top-score, the mean over settings."""
    places = runs.by("setting").values()
    return 100 * fmean(prefetched(r, "top_score") / prefetched(r, "issued") for r in places)


def active_share(runs: Runs) -> float:
    """Share of those that are not top-score that are active; all settings together.

    Raises:
        MissingEvidenceError: all are top-score.
    """
    top = prefetched(runs, "top_score")
    rest = prefetched(runs, "issued") - top
    if not rest:
        raise MissingEvidenceError("every prefetched expert was top-score")
    return 100 * (prefetched(runs, "active") - top) / rest
