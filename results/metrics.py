"""The figures of a run: each is one row of `METRICS`, which every output reads.

The store's SQL view, the CSV files, the tables of the report and of the terminal, comparisons, the
page, means over seeds and the documentation take name, unit, digits and direction from here.  A new
figure costs two files: its row here, and the code that puts it into the run's document.

    Metric("reads_per_token", path="metrics.reads_per_token", label="reads", unit="1/token",
           form=".3f", better="less", says="reads from the disk per decoded token",
           where=VIEW | RUNS)
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

from moebench.results.document import (
    Document,
    busy_share,
    decode_idle_share,
    dig,
    gigabytes_a_token,
    perplexity_of,
    score_of,
    slot_gigabytes,
)

#: Outputs that show a figure: the SQL view ``metrics``; the table of runs, and its narrow form on a
#: terminal; comparisons, and their narrow form; means over seeds; pairs of runs.
Where = Literal["view", "runs", "brief runs", "compare", "brief compare", "seeds", "pair"]

VIEW: frozenset[Where] = frozenset({"view"})
RUNS: frozenset[Where] = frozenset({"runs"})
BRIEF_RUNS: frozenset[Where] = frozenset({"runs", "brief runs"})
COMPARE: frozenset[Where] = frozenset({"compare"})
BRIEF_COMPARE: frozenset[Where] = frozenset({"compare", "brief compare"})
SEEDS: frozenset[Where] = frozenset({"seeds"})
PAIR: frozenset[Where] = frozenset({"pair"})

MISSING = "–"  # an en dash is what a reader expects in an empty cell


def written(value: float, form: str) -> str:
    """Return a number as text, without a percent sign; only 0 and 100 % are written so."""
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


class Metric(NamedTuple):
    """A figure of a run.

    Attributes:
        key: name of its column in the SQL view, the CSV files and the page.
        path: dotted path in a run's document; "" if the figure is only derived.
        derived: computes the figure from a document, in place of reading ``path``.
        unit: "%" for a share, which is stored from 0 to 1 unless ``form`` has no percent sign.
        form: its digits, as in `format`.
        better: which values are better; None if neither is.
        says: its definition, for the documentation.
        time: a latency, or derived from one: it is shown together with the run's badge.
        ends: path of its interval in the document; "" if it has none.
        of_questions: it has a standard error over the run's examples (``accuracy.stderr``).
    """

    key: str
    label: str
    unit: str = ""
    form: str = ".2f"
    better: Literal["less", "more"] | None = None
    says: str = ""
    where: frozenset[Where] = frozenset()
    path: str = ""
    derived: Callable[[Document], float | None] | None = None
    time: bool = False
    ends: str = ""
    of_questions: bool = False

    @property
    def header(self) -> str:
        """Label with the unit in parentheses."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def of(self, run: Document) -> Any:
        """Return the figure of a run; None if the run lacks it."""
        return self.derived(run) if self.derived else dig(run, self.path)

    def text(self, value: float | None) -> str:
        """Return a value with its unit, or a dash for None."""
        if value is None:
            return MISSING
        return f"{written(value, self.form)} {self.unit}".rstrip()


# fmt: off
METRICS = (
    Metric("tpot_ms", "TPOT", "ms", ".2f", "less", "mean time of a decoded step",
           VIEW | BRIEF_RUNS | BRIEF_COMPARE | SEEDS | PAIR, "metrics.tpot_ms.mean",
           time=True, ends="interval.tpot_ms"),
    Metric("tpot_p50_ms", "TPOT, median", "ms", says="median time of a decoded step",
           where=VIEW, path="metrics.tpot_ms.p50", time=True),
    Metric("tpot_p90_ms", "TPOT, 90 %", "ms", says="90th percentile of the time of a decoded step",
           where=VIEW, path="metrics.tpot_ms.p90", time=True),
    Metric("tpot_p99_ms", "TPOT, 99 %", "ms", says="99th percentile of the time of a decoded step",
           where=VIEW, path="metrics.tpot_ms.p99", time=True),
    Metric("tpot_low_ms", "TPOT, low end", "ms", says="low end of the interval of TPOT",
           where=VIEW | RUNS, path="interval.tpot_ms.low", time=True),
    Metric("tpot_high_ms", "TPOT, high end", "ms", says="high end of the interval of TPOT",
           where=VIEW | RUNS, path="interval.tpot_ms.high", time=True),
    Metric("ratio_best", "× best", says="TPOT over that of the fastest system of a comparison",
           where=BRIEF_COMPARE, derived=lambda run: None),  # it needs the other rows of a table
    Metric("bound_tpot_ms", "lower bound", "ms", says="least TPOT for this machine and routing",
           where=VIEW | RUNS, path="bound.tpot_ms", time=True),
    # Not ranked: the bound is that of the system's own slots.
    Metric("bound_ratio", "× bound", says="TPOT over its lower bound",
           where=VIEW | BRIEF_RUNS | BRIEF_COMPARE, path="bound.ratio"),
    Metric("ttft_ms", "TTFT", "ms", ".1f", "less", "mean time to the first token of a batch",
           VIEW | BRIEF_RUNS | BRIEF_COMPARE | SEEDS | PAIR, "metrics.ttft_ms.mean",
           time=True, ends="interval.ttft_ms"),
    Metric("ttft_low_ms", "TTFT, low end", "ms", ".1f", says="low end of the interval of TTFT",
           where=VIEW, path="interval.ttft_ms.low", time=True),
    Metric("ttft_high_ms", "TTFT, high end", "ms", ".1f", says="high end of the interval of TTFT",
           where=VIEW, path="interval.ttft_ms.high", time=True),
    Metric("e2e_ms", "end to end", "ms", ".1f", "less", "mean time of a whole batch",
           VIEW | SEEDS, "metrics.e2e_ms", time=True, ends="interval.e2e_ms"),
    Metric("tokens_per_s", "throughput", "tokens/s", ".2f", "more",
           "generated tokens of all sequences per second, prefill included",
           VIEW | RUNS | SEEDS, "metrics.tokens_per_s", time=True, ends="interval.tokens_per_s"),
    Metric("decoded_tokens", "decoded tokens", "", "d", says="decoded tokens of all sequences",
           where=VIEW, path="metrics.decoded_tokens"),
    Metric("load_ms", "loading", "ms", ".1f", "less", "loading time of the model before the run",
           VIEW, "metrics.load_ms", time=True),
    Metric("cache_ratio", "cache ratio, complete", "%", ".1%", "more",
           "active experts that are complete on the device when their gate is known",
           VIEW | RUNS | BRIEF_COMPARE | SEEDS, "metrics.cache_ratio"),
    Metric("cache_ratio_begun", "cache ratio, begun", "%", ".1%", "more",
           "active experts that are complete or under way when their gate is known",
           VIEW | RUNS | BRIEF_COMPARE, "metrics.cache_ratio_begun"),
    Metric("gb_per_token", "moved", "GB/token", ".3f", "less",
           "weights moved over the link per decoded token", BRIEF_COMPARE,
           derived=gigabytes_a_token),
    Metric("bytes_h2d", "moved to the device", "bytes", "d", "less",
           "bytes moved to the device, prefill included", VIEW, "metrics.bytes_h2d"),
    Metric("bytes_disk", "read from disk", "bytes", "d", "less",
           "bytes read from the disk, prefill included", VIEW, "metrics.bytes_disk"),
    Metric("device_idle", "device idle", "%", ".1%", "less",
           "share of the device's timeline of decode in which it is idle", COMPARE,
           derived=decode_idle_share),
    Metric("device_busy", "device busy", "%", ".0%", says="busy share of the device",
           where=RUNS, derived=partial(busy_share, lane="device")),
    Metric("link_busy", "link busy", "%", ".0%", says="busy share of the link to the device",
           where=RUNS, derived=partial(busy_share, lane="h2d")),
    Metric("host_busy", "host busy", "%", ".0%", says="busy share of the host's processor",
           where=RUNS, derived=partial(busy_share, lane="host")),
    Metric("slots_gb", "slots", "GB", says="device memory of the system's expert slots",
           where=COMPARE, derived=slot_gigabytes),
    Metric("peak_device_bytes", "peak device memory", "bytes", "d", "less",
           "highest use of device memory", VIEW, "metrics.peak_device_bytes"),
    Metric("peak_host_bytes", "peak host memory", "bytes", "d", "less",
           "highest use of host memory", VIEW, "metrics.peak_host_bytes"),
    Metric("energy_j", "energy", "J", ".1f", "less", "energy of the run, without loading",
           VIEW, "metrics.energy_j"),
    Metric("tokens_per_kj", "energy efficiency", "tokens/kJ", ".1f", "more",
           "generated tokens per kilojoule", VIEW | BRIEF_COMPARE, "metrics.tokens_per_kj"),
    Metric("agreement", "agreement", "%", ".1%", "more",
           "decoded tokens that equal the lossless model's choice on the same prefix",
           VIEW | BRIEF_RUNS | BRIEF_COMPARE | SEEDS | PAIR, "accuracy.agreement"),
    Metric("kl", "KL", "nats/token", ".3g", "less",
           "mean KL divergence of next-token distributions from the lossless model's",
           VIEW | RUNS | BRIEF_COMPARE | SEEDS | PAIR, "accuracy.kl"),
    Metric("score", "score", "%", ".1f", "more",
           "score of the workload's metric; in the view also a perplexity",
           VIEW | BRIEF_RUNS | BRIEF_COMPARE | SEEDS | PAIR, "accuracy.score", score_of,
           of_questions=True),
    Metric("perplexity", "perplexity", "", ".2f", "less", "perplexity of plain text per token",
           BRIEF_RUNS | BRIEF_COMPARE | SEEDS, "accuracy.score", perplexity_of, of_questions=True),
    Metric("stderr", "± standard error", "", ".1f", says="standard error of the score",
           where=VIEW | BRIEF_RUNS, path="accuracy.stderr"),
    Metric("cut", "answers cut", "", "d", says="answers that ended at --new-tokens",
           where=BRIEF_RUNS, path="accuracy.cut"),
    Metric("repeated_4grams", "repeated 4-grams", "%", ".0%", None,
           "share of 4-grams that occur earlier in their generated text",
           VIEW | RUNS, "metrics.repeated_4grams"),
    Metric("wall_s", "computation", "s", ".1f", says="wall-clock time of computing the run",
           where=VIEW, path="provenance.wall_s"),
)
# fmt: on
BY_KEY = {metric.key: metric for metric in METRICS}
TPOT, RATIO = "tpot_ms", "ratio_best"


def shown(where: Where) -> tuple[Metric, ...]:
    """Return the figures that an output shows, in their order."""
    return tuple(metric for metric in METRICS if where in metric.where)
