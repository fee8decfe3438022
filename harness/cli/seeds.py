"""Means and intervals over runs that differ only in their seed."""

from collections.abc import Mapping, Sequence

from moebench.harness import console
from moebench.results.document import Document, basis, system_of
from moebench.results.intervals import LEVEL, mean_interval
from moebench.results.metrics import shown, written


def means(documents: Sequence[Document]) -> dict[str, dict[str, float]]:
    """Return mean, interval and number of runs of each figure that all runs have, by its path."""
    found = {}
    for metric in shown("seeds"):
        values = [metric.of(document) for document in documents]
        if any(value is None for value in values):
            continue
        numbers = [float(value) for value in values]
        ends = mean_interval(numbers)
        if ends is not None:
            n, (low, high) = len(numbers), ends
            found[metric.path] = {"mean": sum(numbers) / n, "low": low, "high": high, "n": n}
    return found


def show_means(documents: Sequence[Document], found: Mapping[str, Mapping[str, float]]) -> None:
    """Print a table of the means, and below it the runs that they are of."""
    spec = documents[0]["spec"]
    badges = " / ".join(dict.fromkeys(map(basis, documents)))
    rows = []
    for metric in shown("seeds"):
        mean = found.get(metric.path)
        if mean is None or metric.of(documents[0]) is None:
            continue
        half = written((mean["high"] - mean["low"]) / 2, metric.form)
        text = f"{written(mean['mean'], metric.form)} ± {half} {metric.unit}".rstrip()
        rows.append([metric.label, f"{text} [{badges}]" if metric.time else text])
    title = f"{system_of(spec)} · {spec['setting'] or spec['model']} · {spec['machine']}"
    console.table(f"{title} · {spec['workload']} · batch {spec['batch']}", ["figure", "mean"], rows)
    seeds = [document["spec"]["seed"] for document in documents]
    out = console.stderr()
    out.print(
        f"± is half the {LEVEL:.0%} interval of the mean (Student's t) over seeds {seeds[0]} "
        f"to {seeds[-1]}, which draw the prompts; the profile's own uncertainty is not in it"
    )
    out.print(f"runs {', '.join(document['run_id'] for document in documents)}")
