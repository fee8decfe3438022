"""Means and intervals over runs that differ only in their seed."""

from collections.abc import Mapping, Sequence
from typing import Any

from moebench.harness import console
from moebench.reports.tables import basis, system_of
from moebench.results.intervals import LEVEL, mean_interval

#: Figures by path in a run's document: name, unit, and by what they are multiplied.
FIGURES = {
    "metrics.tpot_ms.mean": ("TPOT", " ms", 1),
    "metrics.ttft_ms.mean": ("TTFT", " ms", 1),
    "metrics.e2e_ms": ("end to end", " ms", 1),
    "metrics.tokens_per_s": ("tokens/s, prefill included", "", 1),
    "metrics.cache_ratio": ("expert cache ratio", " %", 100),
    "accuracy.score": ("accuracy", " %", 1),
    "accuracy.agreement": ("agreement with lossless", " %", 100),
    "accuracy.kl": ("KL per token", " nat", 1),
}
#: Those that the machine's badge is said of.
TIMES = ("TPOT", "TTFT", "end to end", "tokens/s, prefill included")


def means(documents: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Of each figure that all runs have: mean, the ends of its interval, and of how many runs."""
    found = {}
    for path in FIGURES:
        values = [_dig(document, path) for document in documents]
        if any(value is None for value in values):
            continue
        numbers = [float(value) for value in values]
        ends = mean_interval(numbers)
        if ends is not None:
            mean = sum(numbers) / len(numbers)
            found[path] = {"mean": mean, "low": ends.low, "high": ends.high, "n": len(numbers)}
    return found


def _dig(document: Mapping[str, Any], path: str) -> Any:
    found: Any = document
    for key in path.split("."):
        found = None if found is None else found[key]
    return found


def show_means(
    documents: Sequence[Mapping[str, Any]], found: Mapping[str, Mapping[str, float]]
) -> None:
    """A table of the means; below it what they are of."""
    spec = documents[0]["spec"]
    badges = " / ".join(dict.fromkeys(basis(dict(document)) for document in documents))
    rows = []
    for path, mean in found.items():
        name, unit, factor = FIGURES[path]
        half = (mean["high"] - mean["low"]) / 2
        text = f"{factor * mean['mean']:.4g} ± {factor * half:.3g}{unit}"
        rows.append([name, f"{text} [{badges}]" if name in TIMES else text])
    title = f"{system_of(spec)} · {spec['setting'] or spec['model']} · {spec['machine']}"
    console.table(f"{title} · {spec['workload']} · batch {spec['batch']}", ["figure", "mean"], rows)
    seeds = [document["spec"]["seed"] for document in documents]
    out = console.stderr()
    out.print(
        f"± is half the {LEVEL:.0%} interval of the mean (Student's t) over seeds {seeds[0]} "
        f"to {seeds[-1]}, which draw the prompts; the profile's own uncertainty is not in it"
    )
    out.print(f"runs {', '.join(document['run_id'] for document in documents)}")
