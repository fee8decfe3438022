"""Comparison of two runs: paired differences with intervals, and the parts that explain them.

Prompts that both runs read are pairs; other prompts are independent samples.  Intervals are those
of `results.intervals`: over prompts (batches, for times), not over seeds or the uncertainty of the
hardware profile.

The device's decoding time consists of busy time and idle time by cause, so the difference of
two TPOTs is the sum of these parts' differences.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from moebench.reports.compare.conditions import CONDITIONS, Condition
from moebench.reports.compare.rows import empty_room
from moebench.results.document import Document, basis, dig, model_of, routing_of, system_of
from moebench.results.intervals import Estimate, Shares, difference
from moebench.results.metrics import Metric, shown
from moebench.results.samples import TokenSample
from moebench.substrate.errors import UsageError
from moebench.substrate.text import markdown as plain

#: Conditions of a pair in addition to `CONDITIONS`.
PLACES = (
    Condition("model", model_of),
    Condition("machine", lambda run: run["spec"].get("machine")),
    Condition("workload", lambda run: run["spec"].get("workload")),
    Condition("batch", lambda run: run["spec"].get("batch")),
    Condition("routing", lambda run: routing_of(run["spec"])),
)
EVERY = (*PLACES, *CONDITIONS)
NAMES = tuple(condition.name for condition in EVERY)

DECISIONS = ("place", "route", "assign", "prefetch", "admit", "evict")

#: Samples of every token of a run; None if none were kept.
Samples = Sequence[TokenSample] | None


class Figure(NamedTuple):
    """A figure of both runs in its displayed unit, and the second minus the first."""

    metric: Metric
    first: float
    second: float
    change: Estimate

    @property
    def title(self) -> str:
        """The figure's label with its unit."""
        return self.metric.header

    def text(self, value: float) -> str:
        """Return a value of the figure as text."""
        return self.metric.text(value / self.metric.factor)


class Part(NamedTuple):
    """Time or count of one part of decode in both runs, per step or token; None if absent."""

    title: str
    first: float | None
    second: float | None

    @property
    def change(self) -> float:
        """Second value minus the first; None counts as 0."""
        return (self.second or 0.0) - (self.first or 0.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of `compare`.

    Attributes:
        figures: times, accuracy; with intervals.
        times: parts of the device's time in a decoded step, in ms.
        counts: counts for a decoded token.
        decisions: policies and options that differ: name → (first, second).
        paired: whether both read the same prompts.
        differing: conditions that differ, and were allowed to: name → (first, second).
    """

    first: Document
    second: Document
    figures: Sequence[Figure]
    times: Sequence[Part]
    counts: Sequence[Part]
    decisions: Mapping[str, tuple[str, str]]
    paired: bool
    differing: Mapping[str, tuple[str, str]]


def texts(run: Document) -> dict[str, str]:
    """Return what must be equal of two runs, by name, as text."""
    return {condition.name: condition.text(condition.of(run)) for condition in EVERY}


def differing(first: Document, second: Document) -> dict[str, tuple[str, str]]:
    """Return the conditions in which two runs differ, with both values."""
    one, other = texts(first), texts(second)
    return {name: (one[name], other[name]) for name in NAMES if one[name] != other[name]}


def compare(
    first: Document, second: Document, samples: tuple[Samples, Samples], mixed: Collection[str] = ()
) -> Comparison:
    """Compare two runs.

    Args:
        samples: the times of the first run's tokens and of the second's.
        mixed: conditions that may differ.

    Raises UsageError: other conditions differ, or ``mixed`` names none of `NAMES`.
    """
    for name in mixed:
        if name not in NAMES:
            raise UsageError(f"--mixed {name}: allowed: {', '.join(NAMES)}")
    found = differing(first, second)
    refused = {name: values for name, values in found.items() if name not in mixed}
    if refused:
        said = "; ".join(f"{name} {a} and {b}" for name, (a, b) in refused.items())
        raise UsageError(
            f"runs {first['run_id']} and {second['run_id']} differ in {said}: no fair comparison; "
            f"allow it with --mixed {','.join(sorted({*mixed, *refused}))}"
        )
    runs = (first, second)
    paired = _same_questions(*runs)
    steps = _steps(first, samples[0]), _steps(second, samples[1])
    tokens = dig(first, "metrics.decoded_tokens") or 0, dig(second, "metrics.decoded_tokens") or 0
    return Comparison(
        first=first,
        second=second,
        figures=list(_figures(runs, samples, paired)),
        times=_parts(_times(runs), runs, steps),
        counts=_parts(_COUNTS, runs, tokens),
        decisions=_decisions(first["spec"], second["spec"]),
        paired=paired,
        differing=found,
    )


def _same_questions(first: Document, second: Document) -> bool:
    """Return whether both runs read the same prompts in the same batches."""
    same = ("spec.prompts", "spec.batch", "spec.workload", "provenance.data_hash")
    return all(dig(first, path) == dig(second, path) for path in same)


# ----------------------------------------------------------------------------- figures


def _figures(
    runs: tuple[Document, Document], samples: tuple[Samples, Samples], paired: bool
) -> list[Figure]:
    figures = []
    for metric in shown("pair"):
        values = [metric.read(run) for run in runs]
        if None not in values:
            each = [shares(metric.key, *one) for one in zip(runs, samples, strict=True)]
            found = _figure(metric, each, paired)
            if found is None:  # what the figure is a mean of was not kept
                first, second = (metric.factor * value for value in values if value is not None)
                found = Figure(metric, first, second, Estimate(second - first, None, None, 0))
            figures.append(found)
    return figures


def shares(key: str, run: Document, samples: Samples = None) -> Shares | None:
    """Return the sums and counts that a figure is a mean of; None if the run does not hold them.

    One pair a batch for times (ms, steps), one a question for accuracy; shares in percent.
    """
    if key in ("tpot_ms", "ttft_ms"):
        sums: dict[int, tuple[float, float]] = {}
        for sample in samples or ():
            if bool(sample.step) == (key == "tpot_ms"):
                ms, steps = sums.get(sample.batch, (0.0, 0.0))
                sums[sample.batch] = ms + sample.ns / 1e6, steps + 1
        return list(sums.values()) or None
    items = dig(run, "accuracy.items")
    if items is None or key not in _ITEMS:
        return None
    name, factor = _ITEMS[key]
    counts = [1.0] * len(items[name]) if key == "score" else items["decoded"]
    if None in items[name]:
        return None
    return [(factor * value, n) for value, n in zip(items[name], counts, strict=True)]


#: Lists of ``accuracy.items`` that figures are means of, with the factor of the displayed unit.
_ITEMS = {"kl": ("kl", 1.0), "agreement": ("agreed", 100.0), "score": ("value", 100.0)}


def _figure(metric: Metric, each: Sequence[Shares | None], paired: bool) -> Figure | None:
    first, second = each
    if first is None or second is None:
        return None
    change = difference(first, second, paired)
    if change is None:
        return None
    one, other = (sum(a for a, _ in rows) / sum(b for _, b in rows) for rows in (first, second))
    return Figure(metric, one, other, change)


# ----------------------------------------------------------------------------- where it comes from

#: Counts over all decoded tokens: title and path below ``metrics``.
_COUNTS = (
    ("active experts", "experts.decode.active"),
    ("hits: on the device in time", "experts.decode.hits"),
    ("on their way in time", "experts.decode.in_flight"),
    ("loads after the gate", "experts.decode.loads"),
    ("computed on the host", "experts.decode.host"),
    ("replaced by others", "experts.decode.replaced"),
    ("prefetches", "prefetch.issued"),
    ("prefetches used", "prefetch.used"),
    ("MB over the link", "decode.bytes_h2d"),
    ("MB from the disk", "decode.bytes_disk"),
    ("ms of the link", "decode.lanes.h2d"),
    ("ms of the host", "decode.lanes.host"),
)


def _steps(run: Document, samples: Samples) -> float:
    """Return the number of decoded steps of all batches."""
    if samples is not None:
        return sum(sample.step > 0 for sample in samples)
    return (dig(run, "metrics.decoded_tokens") or 0) / (run["spec"].get("batch") or 1)


def _times(runs: tuple[Document, Document]) -> list[tuple[str, str]]:
    """Return titles and paths (below ``metrics``) of the parts of the device's decoding time."""
    causes = {cause for run in runs for cause in dig(run, "metrics.decode.stall_ms") or {}}
    waits = [(f"device waits for {cause}", f"decode.stall_ms.{cause}") for cause in sorted(causes)]
    return [("device computes", "decode.lanes.device"), *waits]


def _parts(
    paths: Sequence[tuple[str, str]], runs: tuple[Document, Document], each: tuple[float, float]
) -> list[Part]:
    """Return the parts that are above 0 in a run, each divided by steps or tokens."""
    found = []
    for title, path in paths:
        scale = 1e6 if title.startswith("MB") else 1.0
        values = [
            None if (value := dig(run, f"metrics.{path}")) is None or not n else value / n / scale
            for run, n in zip(runs, each, strict=True)
        ]
        if any(values):
            found.append(Part(title, *values))
    return found


def _decisions(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the resolved options that differ, decisions first."""
    one, other = first.get("options") or {}, second.get("options") or {}
    own = [*DECISIONS, *sorted({*one, *other} - set(DECISIONS))]
    both = {key: (str(one.get(key, "-")), str(other.get(key, "-"))) for key in own}
    changed = {key for key, (a, b) in both.items() if a != b}
    # The options of a different policy add nothing to its name.
    return {
        key: both[key] for key in own if key in changed and key.split(".")[0] not in changed - {key}
    }


# ----------------------------------------------------------------------------- in words

HEADERS = ("figure", "first", "second", "second − first", "95 % interval")


def title_of(run: Document) -> str:
    """Return a run's title: its system, changed options and id."""
    spec = run["spec"]
    changed = [f"{key}={value}" for key, value in sorted((spec.get("overrides") or {}).items())]
    return " ".join([system_of(spec), *changed, f"[{run['run_id']}]"])


def place_of(found: Comparison) -> str:
    """Return the title of a comparison: setting or model, workload and batch."""
    spec = found.first["spec"]
    where = spec.get("setting") or f"{spec['model']} on {spec['machine']}"
    return f"{where}, {spec['workload']}, batch {spec['batch']}"


def lines(found: Comparison) -> list[list[str]]:
    """Return the rows of text: figures, then parts of a step, then counts of a token."""
    rows = [
        [f.title, f.text(f.first), f.text(f.second), _signed(f.change.value), _ends(f.change)]
        for f in found.figures
    ]
    rows += [_line(f"{part.title} (ms a step)", part) for part in found.times]
    rows += [_line(f"{part.title} (a token)", part) for part in found.counts]
    return rows


def _line(title: str, part: Part) -> list[str]:
    return [title, _short(part.first), _short(part.second), _signed(part.change), ""]


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _signed(value: float) -> str:
    return f"{value:+.3g}"


def _ends(change: Estimate) -> str:
    if change.low is None or change.high is None:
        return "one question" if change.n else "no samples were kept"
    return f"{change.low:+.3g} to {change.high:+.3g}"


def over(found: Comparison) -> str:
    """Return a sentence about what the intervals are over."""
    spec = found.first["spec"]
    units = "questions" if spec.get("batch") == 1 else "questions (of times, over batches)"
    if found.paired:
        return f"95 % t intervals over {units}: the {spec.get('prompts')} that both read, in pairs"
    return f"95 % t intervals over {units}: each run read its own, so there are no pairs"


def sentence(found: Comparison) -> str:
    """Return sentences: which run is faster, by how much, and why; and which uses less memory."""
    tpot = next((f for f in found.figures if f.metric.key == "tpot_ms"), None)
    one, other = title_of(found.first), title_of(found.second)
    if tpot is None:
        return f"{one} and {other}: one of them decoded nothing."
    change = tpot.change
    if change.low is not None and not change.excludes_zero:
        return (
            f"TPOT of {one} and {other} differs by no more than these questions explain: "
            f"{_signed(change.value)} ms ({_ends(change)})."
        )
    sign = 1 if change.value > 0 else -1
    slow, fast = (other, one) if change.value > 0 else (one, other)
    ratio = max(tpot.first, tpot.second) / min(tpot.first, tpot.second)
    said = f"{slow} takes {abs(change.value):.3g} ms more a token than {fast} ({ratio:.2f}×)"
    # Name only parts above a tenth of the difference.
    causes = [part for part in found.times if sign * part.change > 0.1 * abs(change.value)]
    causes.sort(key=lambda part: -sign * part.change)
    if causes:
        said += ": " + "; ".join(f"{p.title} {sign * p.change:+.3g} ms" for p in causes)
    rooms = [(title_of(run), empty_room([run])) for run in (found.first, found.second)]
    empty = "".join(f"  {title}: {text}." for title, text in rooms if text)
    return f"{said}.{_said(found.decisions)}{empty}"


def _said(decisions: Mapping[str, tuple[str, str]]) -> str:
    if not decisions:
        return ""
    names = [key for key in decisions if key in DECISIONS] or list(decisions)
    what = ", ".join(f"{key} ({' → '.join(decisions[key])})" for key in names)
    if len(decisions) == 1:
        return f"  Only this differs: {what}."
    return f"  They differ in {what}."


def document(found: Comparison) -> dict[str, Any]:
    """Return a comparison as plain values, for JSON."""
    return {
        "first": found.first["run_id"],
        "second": found.second["run_id"],
        "badges": [basis(found.first), basis(found.second)],
        "workload": found.first["spec"]["workload"],
        "paired": found.paired,
        "over": over(found),
        "figures": [
            {"title": f.title, "first": f.first, "second": f.second, **f.change._asdict()}
            for f in found.figures
        ],
        "ms_a_step": [{**p._asdict(), "change": p.change} for p in found.times],
        "a_token": [{**p._asdict(), "change": p.change} for p in found.counts],
        "decisions": {key: list(values) for key, values in found.decisions.items()},
        "differing": {key: list(values) for key, values in found.differing.items()},
        "sentence": sentence(found),
    }


def markdown(found: Comparison) -> str:
    """Return a comparison as Markdown."""
    heads = ("figure", title_of(found.first), title_of(found.second), *HEADERS[3:])
    rows = [heads, ["---"] * len(heads), *lines(found)]
    text = "\n".join("| " + " | ".join(map(plain, row)) + " |" for row in rows)
    above, below = plain(sentence(found)), plain(over(found))
    return f"### {plain(place_of(found))}\n\n{above}\n\n{text}\n\n{below}\n"
