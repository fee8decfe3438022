"""Functions that read SMoE's figures from runs; all changes are in percent."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean

from moebench.harness.reproduce import read
from moebench.harness.reproduce.evidence import MissingEvidenceError, Runs
from moebench.harness.reproduce.read import DECODED, HOST, LINK, TPOT, Figure, Measure, percent
from moebench.harness.reproduce.smoe.experiments import CHEAP_PREDICTIONS, MAIN, STEPS

#: Two counts of hits when a layer's gate is known: experts complete, or with a copy begun.
COMPLETE, BEGUN = "metrics.cache_ratio", "metrics.cache_ratio_begun"


def conditions(runs: Runs, said: str = "") -> str:
    """Describe the conditions of runs in words."""
    spec = runs[0]["spec"]
    texts = "/".join(str(n) for n in sorted(runs.by("prompts")))
    parts = [
        f"{texts} prompts of {spec['new_tokens']} new tokens",
        " ".join(runs.by("workload")),
        f"{'/'.join(runs.by('routing'))} routing, {spec['software']}",
    ]
    return "; ".join([*parts, *([said] if said else [])])


#: Measure a figure of an experiment's runs, with one sample for each seed and the conditions.
measured = partial(read.measured, conditions=conditions)


# ----------------------------------------------------------------------------- against baselines


def ours(runs: Runs) -> Runs:
    """Return the runs of SMoE."""
    return runs.named("smoe")


def others(runs: Runs) -> dict[str, Runs]:
    """Return the runs of each baseline, by name."""
    return {name: each for name, each in runs.by("system").items() if not len(ours(each))}


@read.curried
def change(runs: Runs, /, path: str, **of: object) -> float:
    """Return SMoE's mean change against the best baseline of each workload, setting and batch."""
    return percent(fmean(
        ours(cell).mean(path) / min(one.mean(path) for one in others(cell).values())
        for cell in runs.of(**of).groups("workload", "setting", "batch").values()
    ))  # fmt: skip


@read.curried
def gain(runs: Runs, path: str, setting: str) -> float:
    """Return the gain of SMoE's mean cache ratio over the best baseline's, at batch 1."""
    chosen = runs.of(setting=setting, batch=1)
    best = max(one.mean(path) for one in others(chosen).values())
    return percent(ours(chosen).mean(path) / best)


def least(figures: Sequence[Figure]) -> Figure:
    """Return a function from runs to the smallest of several figures."""
    return lambda runs: min(figure(runs) for figure in figures)


def ratio(path: str, setting: str) -> Figure:
    """Return a function from runs to SMoE's cache ratio on a setting, in percent, at batch 1."""
    return lambda runs: 100 * ours(runs.of(setting=setting, batch=1)).mean(path)


def without(figure: Figure, baseline: str) -> Figure:
    """Return a figure that is read from runs without those of one baseline."""
    return lambda runs: figure(Runs(run for run in runs if run["spec"]["system"] != baseline))


def main(figure: Figure, said: str = "best of four baselines in each cell") -> Measure:
    """Measure a figure of the comparison with the baselines."""
    return measured(figure, MAIN, said=said)


# ----------------------------------------------------------------------------- steps


def _at(runs: Runs, name: str) -> Runs:
    """Return the runs of a step of the ablation, with the paper's price of predictions or ours."""
    return runs.of(set=(STEPS[name], {**STEPS[name], **CHEAP_PREDICTIONS}))


@read.curried
def step(runs: Runs, path: str, after: str, before: str) -> float:
    """Return the change of a figure by a step of the ablation, averaged over settings."""
    now, then = (_at(runs, name).by("setting") for name in (after, before))
    return percent(fmean(now[s].mean(path) / then[s].mean(path) for s in now))


@read.curried
def faster_steps(runs: Runs, base: str) -> float:
    """Return the share of ablation steps, over all settings, in which TPOT falls."""
    names, falls = [base, "+CE", "+CR", "+Pre", "+BA"], []
    for place in runs.by("setting").values():
        times = [_at(place, name).mean(TPOT) for name in names]
        falls += [b < a for a, b in pairwise(times)]
    return fmean(falls)


def busier_yet_faster(runs: Runs) -> float:
    """Return the share of settings where +Pre makes the link busier and TPOT shorter."""
    before, after = (_at(runs, name).by("setting") for name in ("+CR", "+Pre"))
    return fmean(
        after[s].mean(LINK) > before[s].mean(LINK) and after[s].mean(TPOT) < before[s].mean(TPOT)
        for s in after
    )


def gap(runs: Runs) -> float:
    """Return the mean difference of link and host busy time, in ms per decoded token."""
    tokens = runs.values(DECODED)
    pairs = zip(runs.values(LINK), runs.values(HOST), tokens, strict=True)
    return fmean(abs(link - host) / n for link, host, n in pairs)


def gap_change(runs: Runs) -> float:
    """Return the change of `gap` by +BA, averaged over settings."""
    before, after = (_at(runs, name).by("setting") for name in ("+Pre", "+BA"))
    return percent(fmean(gap(after[s]) / gap(before[s]) for s in after))


def host_to_link(runs: Runs) -> float:
    """Return the host's busy time over the link's with all parts on, averaged over settings."""
    full = _at(runs, "+BA").by("setting").values()
    return fmean(one.mean(HOST) / one.mean(LINK) for one in full)


@read.curried
def host_to_link_on(runs: Runs, setting: str) -> float:
    """Return the host's busy time over the link's with all parts on, on one setting."""
    return host_to_link(runs.of(setting=setting))


# ----------------------------------------------------------------------------- prefetching


def prefetched(runs: Runs, what: str) -> float:
    """Return a count of experts prefetched in decode: issued, top_score or active."""
    return sum(runs.values(f"metrics.prefetch.{what}"))


def top_share(runs: Runs) -> float:
    """Return the share of prefetched experts that are top-score, averaged over settings."""
    places = runs.by("setting").values()
    return 100 * fmean(prefetched(r, "top_score") / prefetched(r, "issued") for r in places)


def active_share(runs: Runs) -> float:
    """Return the share of active experts among prefetched ones that are not top-score.

    Raises MissingEvidenceError: all prefetched experts are top-score.
    """
    top = prefetched(runs, "top_score")
    rest = prefetched(runs, "issued") - top
    if not rest:
        raise MissingEvidenceError("every prefetched expert was top-score")
    return 100 * (prefetched(runs, "active") - top) / rest
