"""Turns run documents into rows: one definition of every column, for the terminal and the page.

A figure that a run does not have (no accuracy from a replayed trace, no TPOT for one new token) is
None in a row and a dash in a cell, never a zero.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from moebench.reports.floor import at_floor

Document = dict[str, Any]
Row = dict[str, Any]

#: The metric whose figure is no percentage.
PERPLEXITY = "perplexity"

MISSING = "–"  # an en dash is what a reader expects in an empty cell


class Column(NamedTuple):
    """One column of the table.

    Attributes:
        key: its key in a row.
        title: what it shows, in the terms of the documents.
        unit: of the number ("" for names and pure numbers).
        form: how a number is written, as in `format`.
        group: which of the page's two tables shows it; "run" in both.
        brief: also in the narrow table of a terminal.
        latency: a time or derived from one; it must stand beside its badge.
        chosen: says what was run, not what came out: said once where it is the same for all.
    """

    key: str
    title: str
    unit: str = ""
    form: str = ""
    group: Literal["run", "latency", "detail"] = "run"
    brief: bool = False
    latency: bool = False
    chosen: bool = False

    @property
    def header(self) -> str:
        """The title with its unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


COLUMNS = (
    Column("run", "run", brief=True),
    Column("system", "system", brief=True),
    Column("set", "set", brief=True, chosen=True),
    Column("setting", "setting", brief=True, chosen=True),
    Column("machine", "machine", group="latency", brief=True, chosen=True),
    Column("software", "software", group="latency", brief=True, chosen=True),
    Column("workload", "workload", group="latency", brief=True, chosen=True),
    Column("routing", "routing", group="latency", brief=True, chosen=True),
    Column("model", "model", group="latency", brief=True, chosen=True),
    Column("batch", "batch", form="d", group="latency", brief=True, chosen=True),
    Column("alpha", "α", form="g", brief=True, chosen=True),  # the papers' own letter
    Column("badge", "badge", group="detail", brief=True, chosen=True),
    Column("tpot_ms", "TPOT mean", "ms", ".2f", "latency", brief=True, latency=True),
    Column("tpot_low_ms", "TPOT, low end", "ms", ".2f", "latency", latency=True),
    Column("tpot_high_ms", "TPOT, high end", "ms", ".2f", "latency", latency=True),
    Column("bound_ms", "bound", "ms", ".2f", "latency", latency=True),
    Column("bound_ratio", "TPOT / bound", "", ".2f", "latency", brief=True),
    Column("ttft_ms", "TTFT mean", "ms", ".1f", "latency", brief=True, latency=True),
    Column("tokens_per_s", "tokens", "1/s", ".2f", "latency", latency=True),
    Column("cache_ratio", "cache ratio, complete", "%", ".1%", "detail"),
    Column("cache_ratio_begun", "cache ratio, complete or under way", "%", ".1%", "detail"),
    Column("score", "score", "%", ".1f", "detail", brief=True),
    Column("perplexity", "perplexity", "", ".2f", "detail", brief=True),
    Column("stderr", "± stderr", "", ".1f", "detail", brief=True),
    Column("floor", "at its floor", group="detail", brief=True),
    Column("cut", "answers cut", form="d", group="detail", brief=True),
    Column("agreement", "agreement", "%", ".1%", "detail", brief=True),
    Column("kl", "KL", "nats", ".3g", "detail"),
    Column("repeated_4grams", "repeated 4-grams", "%", ".0%", "detail"),
    Column("device_busy", "device busy", "%", ".0%", "detail"),
    Column("link_busy", "link busy", "%", ".0%", "detail"),
    Column("host_busy", "host busy", "%", ".0%", "detail"),
)

#: What the terminal prints.
BRIEF = tuple(column for column in COLUMNS if column.brief)


def rows(runs: list[Document]) -> list[Row]:
    """One flat row a run, keyed by `Column.key`; numbers exactly as the document holds them."""
    return [_row(run) for run in runs]


def cell(column: Column, value: object) -> str:
    """A row's value as text, without its unit; a dash for None."""
    if value is None:
        return MISSING
    if isinstance(value, int | float):
        return written(value, column.form)
    return str(value)


def written(value: float, form: str) -> str:
    """A number as text, without a percent sign; one that is not 0, or not 100 %, never looks so."""
    text = format(value, form).removesuffix("%")
    if form.endswith("%"):
        if value != 0 and float(text) == 0:
            return f"{100 * value:.2g}"
        if value < 1 and float(text) == 100:
            digits = next(d for d in range(2, 20) if float(f"{100 * value:.{d}f}") < 100)
            return f"{100 * value:.{digits}f}"
    elif value != 0 and float(text) == 0:
        return f"{value:.2g}"
    return text


def dig(document: Document, path: str) -> Any:
    """The value at a dotted path ("metrics.tpot_ms.mean"), or None where any step is missing."""
    value: Any = document
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def span_ms(run: Document) -> float | None:
    """How long the device lane's time line is: what its busy time and its stalls add up to (ms)."""
    stalls = dig(run, "metrics.stall_ms") or {}
    if not stalls:
        total: float | None = dig(run, "metrics.e2e_ms")
        return total
    return float((dig(run, "metrics.lanes.device") or 0) + sum(stalls.values()))


def system_of(spec: Mapping[str, Any]) -> str:
    """How a run's system is called: ``smoe``, or ``smoe (shipped)``."""
    variant = spec.get("variant", "published")  # earlier versions had no other
    return spec["system"] if variant == "published" else f"{spec['system']} ({variant})"


def set_of(spec: Mapping[str, Any]) -> str:
    """What was changed in a run's system, as `--set` takes it; α has a place of its own."""
    changed = {k: v for k, v in (spec.get("overrides") or {}).items() if k != "alpha"}
    return " ".join(f"{key}={value}" for key, value in sorted(changed.items()))


def score_of(run: Document) -> float | None:
    """In percent; a perplexity is none."""
    score: float | None = dig(run, "accuracy.score")
    return None if dig(run, "accuracy.metric") == PERPLEXITY else score


def perplexity_of(run: Document) -> float | None:
    """Of plain text, per token."""
    score: float | None = dig(run, "accuracy.score")
    return score if dig(run, "accuracy.metric") == PERPLEXITY else None


def score_at_floor(run: Document) -> bool:
    """Whether a run's score is not clearly above guessing; False where it has none."""
    score, n = score_of(run), dig(run, "accuracy.n")
    if score is None or not n:
        return False
    stderr = dig(run, "accuracy.stderr") or 0.0
    return at_floor(score, stderr, n, dig(run, "accuracy.chance"), whole=100)


def routing_of(spec: Mapping[str, Any]) -> str:
    """Where a run's choice of experts came from: its model, a trace, drawn or real routing."""
    trace = spec.get("trace")
    # Runs of earlier versions do not say it.
    return f"trace {Path(trace).name}" if trace else spec.get("routing", "model")


def software_of(spec: Mapping[str, Any]) -> str:
    """The kind of software that a simulated run is charged with; a measured one ran our engine.

    A third-party package that ran by itself is ``native``.
    """
    # Runs of earlier versions do not say it.
    return str(spec.get("software", "lean"))


def model_of(run: Document) -> str | None:
    """The model that a run's times are of: what really ran where they were measured."""
    ran: str | None = dig(run, "measured.model")
    return ran or run["spec"].get("model")


def basis(run: Document) -> str:
    """A run's badge in words; a measured one says of what."""
    ran = dig(run, "measured.model")
    return f"{badge_of(run)} on {ran}" if ran else badge_of(run)


def badge_of(run: Document) -> str:
    """A run's badge; a measurement that spreads too far carries the word *noisy*."""
    noisy = dig(run, "measured.noisy")
    return f"{run['badge']}, noisy" if noisy else str(run["badge"])


def plus_minus(value: float | None, ends: Mapping[str, float] | None) -> str:
    """A figure's interval in its own unit, with a leading space; empty where there is none."""
    if value is None or ends is None or ends["high"] is None:
        return ""
    up, down = (f"{float(f'{abs(e - value):.2g}'):g}" for e in (ends["high"], ends["low"]))
    return f" ± {up}" if up == down else f" +{up} −{down}"


def _row(run: Document) -> Row:
    spec = run["spec"]
    total_ms = span_ms(run)
    lanes = dig(run, "metrics.lanes") or {}

    def share(lane: str) -> float | None:
        return lanes[lane] / total_ms if total_ms and lane in lanes else None

    return {
        "run": run["run_id"],
        "system": system_of(spec) + (" (oracle)" if run.get("oracle") else ""),
        "set": set_of(spec) or None,
        **{key: spec.get(key) for key in ("setting", "machine", "workload", "batch")},
        "software": software_of(spec),
        "model": model_of(run),
        "routing": routing_of(spec),
        "alpha": spec.get("alpha", dig(spec, "options.alpha")),
        "badge": badge_of(run),
        "tpot_ms": dig(run, "metrics.tpot_ms.mean"),
        "tpot_low_ms": dig(run, "interval.tpot_ms.low"),
        "tpot_high_ms": dig(run, "interval.tpot_ms.high"),
        "bound_ms": dig(run, "bound.tpot_ms"),
        "bound_ratio": dig(run, "bound.ratio"),
        "ttft_ms": dig(run, "metrics.ttft_ms.mean"),
        "tokens_per_s": dig(run, "metrics.tokens_per_s"),
        "cache_ratio": dig(run, "metrics.cache_ratio"),
        "cache_ratio_begun": dig(run, "metrics.cache_ratio_begun"),
        "score": score_of(run),
        "perplexity": perplexity_of(run),
        "floor": "yes" if score_at_floor(run) else None,
        **{key: dig(run, f"accuracy.{key}") for key in ("stderr", "cut", "agreement", "kl")},
        "repeated_4grams": dig(run, "metrics.repeated_4grams"),
        "device_busy": share("device"),
        "link_busy": share("h2d"),
        "host_busy": share("host"),
    }
