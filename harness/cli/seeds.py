"""Several runs that differ in their seed alone: means, and how sure they are."""

from collections.abc import Mapping, Sequence

from moebench.harness import console
from moebench.reports.sections.run import title_of
from moebench.results.document import Document, basis
from moebench.results.intervals import LEVEL, mean_interval
from moebench.results.metrics import shown


def means(documents: Sequence[Document]) -> dict[str, dict[str, float]]:
    """Return the mean of each figure that all runs have, its interval and count, by path."""
    found = {}
    for metric in shown("seeds"):
        values = [value for run in documents if (value := metric.read(run)) is not None]
        ends = mean_interval(values) if len(values) == len(documents) else None
        if ends is not None:
            mean = sum(values) / len(values)
            found[metric.path] = {
                "mean": mean, "low": ends.low, "high": ends.high, "n": len(values),
            }  # fmt: skip
    return found


def show_means(documents: Sequence[Document], found: Mapping[str, Mapping[str, float]]) -> None:
    """Print a table of the means, and below it over what they are."""
    badges = " / ".join(dict.fromkeys(map(basis, documents)))
    rows = []
    for metric in shown("seeds"):
        mean = found.get(metric.path)
        if mean is not None and metric.read(documents[0]) is not None:
            half = metric.text((mean["high"] - mean["low"]) / 2)
            text = f"{metric.text(mean['mean'])} ± {half} {metric.unit}".rstrip()
            rows.append([metric.label, f"{text} [{badges}]" if metric.time else text])
    console.table(title_of(documents[0]), ["figure", "mean"], rows)
    seeds = [document["spec"]["seed"] for document in documents]
    out = console.stderr()
    out.print(
        f"± is half the {LEVEL:.0%} interval of the mean (Student's t) over seeds {seeds[0]} "
        f"to {seeds[-1]}, which draw the prompts; the profile's own uncertainty is not in it"
    )
    out.print(f"runs {', '.join(document['run_id'] for document in documents)}")
