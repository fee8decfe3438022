"""The table of a run's figures: name, unit, digits and places of display of each.

The SQL view, CSV files, tables, the page, the commands and `docs/store.md` read this table.  A new
figure is one row here, and the code that computes it.
"""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, get_args

from moebench.results.document import Document, dig, perplexity_of, score_of

#: Where figures are shown: the SQL view, tables of single runs (and ``runs.csv``), comparisons (and
#: the page), the figures of one run, means over seeds, pairs of runs.  A brief table fits into a
#: terminal.
Where = Literal["view", "runs", "brief runs", "compare", "brief compare", "run", "seeds", "pair"]


def written(value: float, form: str) -> str:
    """Return a number as text, without a percent sign; only 0 looks like 0, only 100 % like 100."""
    text = format(value, form).removesuffix("%")
    if form.endswith("%"):
        if value != 0 and float(text) == 0:
            return f"{100 * value:.2g}"
        if value < 1 and float(text) == 100:
            digits = next(d for d in range(2, 20) if float(f"{100 * value:.{d}f}") < 100)
            return f"{100 * value:.{digits}f}"
    elif value != 0 and float(text.replace(",", "")) == 0:
        return f"{value:.2g}"
    return text


class Metric(NamedTuple):
    """One figure of a run: how it is read, named, formatted and explained.

    Attributes:
        key: its column in the SQL view, in CSV files and in the page's data.
        path: dotted path in the document; "" if the figure is derived.
        unit: of the figure as it is shown; "" for a pure number.
        form: digits, as in `format`; a share (``%``) is stored from 0 to 1.
        says: explanation in one line, for the documentation.
        of: reads a derived figure, or one that shares its path with another.
        better: which values are better; None if neither.
        scale: stored value of one displayed unit, such as 1e9 for bytes shown in GB.
        time: whether it is a time, or derived from times, and is shown with the run's badge.
        ends: path of its interval: an object with ``low`` and ``high``.
        of_questions: whether ``accuracy.stderr`` is its standard error over questions.
        short: label for a paper's table, whose caption explains it; empty if the label is short.
    """

    key: str
    path: str
    label: str
    unit: str
    form: str
    says: str
    where: frozenset[Where]
    of: Callable[[Document], float | None] | None = None
    better: Literal["less", "more"] | None = None
    scale: float = 1
    time: bool = False
    ends: str = ""
    of_questions: bool = False
    short: str = ""

    @property
    def header(self) -> str:
        """The label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def factor(self) -> float:
        """Factor from a stored to a displayed value."""
        return 100 if self.form.endswith("%") else 1 / self.scale

    def read(self, run: Document) -> float | None:
        """Return the figure as a run's document stores it, or None."""
        value: float | None = self.of(run) if self.of else dig(run, self.path)
        return value

    def text(self, value: float) -> str:
        """Return a stored value as text, in the figure's unit but without it."""
        return written(value / self.scale, self.form)

    def full(self, value: float) -> str:
        """Return a stored value as text, with its unit."""
        return f"{self.text(value)} {self.unit}".rstrip()


def _stall_share(run: Document) -> float | None:
    """Return the share of decoding time in which the device was idle."""
    idle = sum((dig(run, "metrics.decode.stall_ms") or {}).values())
    busy = dig(run, "metrics.decode.lanes.device")
    return None if not busy else idle / (busy + idle)


def _gigabytes_a_token(run: Document) -> float | None:
    """Return the GB of weights that were copied to the device in decode, per decoded token."""
    moved, tokens = dig(run, "metrics.decode.bytes_h2d"), dig(run, "metrics.decoded_tokens")
    return None if moved is None or not tokens else moved / 1e9 / tokens


def _slot_gigabytes(run: Document) -> float | None:
    """Return the GB of a system's expert slots; None for a third-party package."""
    taken = dig(run, "memory.slot_bytes")
    return (taken or 0) / 1e9 if dig(run, "metrics.process") is None else None


def _busy(lane: str) -> Callable[[Document], float | None]:
    """Return a reader of a lane's busy time as a share of the run's time."""

    def share(run: Document) -> float | None:
        lanes, stalls = (dig(run, f"metrics.{name}") or {} for name in ("lanes", "stall_ms"))
        # The device lane's busy time and its stalls add up to the run's time.
        total = (lanes.get("device") or 0) + sum(stalls.values())
        if not stalls:
            total = dig(run, "metrics.e2e_ms")
        return lanes[lane] / total if total and lane in lanes else None

    return share


def _with_spread(time: Metric, ends: frozenset[Where] = frozenset({"view"})) -> Iterator[Metric]:
    """Yield a time's row, the rows of its interval's ends, and those of its percentiles."""
    stem, ms = time.key.removesuffix("_ms"), "_ms" if time.key.endswith("_ms") else ""
    yield time
    for end in ("low", "high"):
        says = f"{end} end of {time.label} over the ranges of the profile's numbers"
        yield Metric(f"{stem}_{end}{ms}", f"{time.ends}.{end}", f"{time.label}, {end} end",
                     time.unit, time.form, says, ends, time=True)  # fmt: skip
    for p in (50, 90, 99) if time.path.endswith(".mean") else ():
        path, label = time.path.replace("mean", f"p{p}"), f"{time.label} p{p}"
        yield Metric(f"{stem}_p{p}{ms}", path, label, time.unit, time.form,
                     f"{p}th percentile of {time.label}", _VIEW, time=True)  # fmt: skip


_ALL: frozenset[Where] = frozenset(get_args(Where))
_SCORED: frozenset[Where] = _ALL - {"view", "pair"}
_SHARE: frozenset[Where] = frozenset({"view", "runs", "compare", "brief compare", "run"})
_COMPARED: frozenset[Where] = frozenset({"compare", "brief compare"})
_TABLES: frozenset[Where] = frozenset({"compare"})
_RUNS: frozenset[Where] = frozenset({"runs"})
_VIEW: frozenset[Where] = frozenset({"view"})
_SHOWN: frozenset[Where] = frozenset({"view", "run"})

METRICS: tuple[Metric, ...] = (
    *_with_spread(Metric(
        "tpot_ms", "metrics.tpot_ms.mean", "TPOT", "ms", ".2f", "mean time of a decoded step",
        _ALL, better="less", time=True, ends="interval.tpot_ms"), _VIEW | _RUNS),
    Metric("ratio_best", "", "× best", "", ".2f",
           "TPOT over that of the fastest system of a comparison", _COMPARED),
    Metric("bound_tpot_ms", "bound.tpot_ms", "TPOT bound", "ms", ".2f",
           "least TPOT that machine and routing allow with the system's own slots",
           _SHOWN | {"runs"}, time=True),
    # Neither is better: a system with fewer slots has a higher bound.
    Metric("bound_ratio", "bound.ratio", "× bound", "", ".2f", "TPOT over its bound",
           _SHARE | {"brief runs"}),
    Metric("clairvoyant_ms", "bound.clairvoyant_ms", "clairvoyant bound", "ms", ".2f",
           "least TPOT of any system that knows all routing, in a sample of the run's tokens",
           _SHOWN | {"compare"}, time=True),
    Metric("information_ms", "bound.information_ms", "information bound", "ms", ".2f",
           "least TPOT of any system that loads experts once their gate is known, in the sample",
           _SHOWN | {"compare"}, time=True),
    *_with_spread(Metric(
        "ttft_ms", "metrics.ttft_ms.mean", "TTFT", "ms", ".1f",
        "mean time from a batch's start to its first tokens",
        _ALL, better="less", time=True, ends="interval.ttft_ms")),
    *_with_spread(Metric(
        "e2e_ms", "metrics.e2e_ms", "end-to-end time", "ms", ".1f",
        "mean time from a batch's start to its last token",
        _VIEW | {"seeds"}, better="less", time=True, ends="interval.e2e_ms")),
    *_with_spread(Metric(
        "tokens_per_s", "metrics.tokens_per_s", "throughput", "tokens/s", ".2f",
        "generated tokens over the end-to-end time, prefill included",
        _SHOWN | {"runs", "seeds"}, better="more", time=True, ends="interval.tokens_per_s")),
    Metric("decoded_tokens", "metrics.decoded_tokens", "decoded tokens", "", ",.0f",
           "generated tokens without each text's first", _VIEW),
    Metric("load_ms", "metrics.load_ms", "load time", "ms", ".1f",
           "time to load weights before the first batch", _VIEW, time=True),
    Metric("hit_ratio", "metrics.cache_ratio", "hit ratio, complete", "%", ".1%",
           "share of a decoded layer's experts that were complete on the device at the gate",
           _SHARE | {"seeds"}, better="more", short="hits"),
    Metric("hit_ratio_begun", "metrics.cache_ratio_begun", "hit ratio, complete or under way",
           "%", ".1%", "share that was complete or whose copy had been submitted at the gate",
           _SHARE, better="more", short="begun"),
    Metric("gb_per_token", "", "moved", "GB/token", ".3f",
           "weights copied to the device in decode", _COMPARED, _gigabytes_a_token, "less"),
    Metric("bytes_h2d", "metrics.bytes_h2d", "moved over the link", "GB", ".3f",
           "bytes copied to the device", _SHOWN, scale=1e9),
    Metric("bytes_disk", "metrics.bytes_disk", "read from disk", "GB", ".3f",
           "bytes read from the disk", _SHOWN, scale=1e9),
    Metric("device_idle", "", "device idle", "%", ".1%",
           "share of decoding time in which the device was idle", _TABLES,
           _stall_share, "less", short="idle"),
    *(Metric(f"{lane}_busy", "", f"{lane} busy", "%", ".0%",
             f"share of the run's time in which the {lane} was busy", _RUNS,
             _busy("h2d" if lane == "link" else lane))
      for lane in ("device", "link", "host")),
    Metric("s_mbu", "metrics.utilisation.decode.device.s_mbu", "S-MBU", "%", ".1%",
           "activated weights and KV cache that the device reads in decode, over peak bandwidth",
           _TABLES | _SHOWN, better="more", time=True),
    Metric("s_mbu_host", "metrics.utilisation.decode.host.s_mbu", "host's S-MBU", "%", ".1%",
           "the same of the host: weights of the experts that it computes, over its bandwidth",
           _TABLES | _SHOWN, time=True),
    Metric("s_mbu_link", "metrics.utilisation.decode.h2d.s_mbu", "link's S-MBU", "%", ".1%",
           "activated weights that cross the link in decode, over its peak bandwidth",
           _TABLES | _SHOWN, time=True),
    Metric("s_mfu", "metrics.utilisation.decode.device.s_mfu", "S-MFU", "%", ".2%",
           "FLOPs of activated parameters on the device in decode, over its peak",
           _TABLES | _SHOWN, better="more", time=True),
    Metric("slots_gb", "", "slots", "GB", ".2f", "device memory of the expert slots",
           _TABLES, _slot_gigabytes),
    Metric("peak_device_bytes", "metrics.peak_device_bytes", "peak device memory", "GB", ".2f",
           "most bytes used on the device", _SHOWN, scale=1e9),
    Metric("peak_host_bytes", "metrics.peak_host_bytes", "peak host memory", "GB", ".2f",
           "most bytes used in host memory", _VIEW, scale=1e9),
    Metric("energy_j", "metrics.energy_j", "energy", "J", ".1f",
           "energy of GPU and host, idle power included", _SHOWN),
    Metric("tokens_per_kj", "metrics.tokens_per_kj", "energy efficiency", "tokens/kJ", ".1f",
           "generated tokens over energy", _COMPARED | _SHOWN, better="more", short="effic."),
    Metric("score", "accuracy.score", "score", "%", ".1f",
           "score of the answers; the view's column also holds perplexities",
           _ALL, score_of, "more", of_questions=True),
    Metric("perplexity", "accuracy.score", "perplexity", "", ".2f",
           "perplexity of plain text per token", _SCORED, perplexity_of, "less",
           of_questions=True, short="ppl."),
    Metric("stderr", "accuracy.stderr", "± stderr", "", ".1f",
           "standard error of score or perplexity over questions", _VIEW | {"runs", "brief runs"}),
    Metric("cut", "accuracy.cut", "answers cut", "", ".0f",
           "answers that reached the allowed length before they ended",
           _SHOWN | {"runs", "brief runs"}),
    Metric("agreement", "accuracy.agreement", "agreement", "%", ".1%",
           "share of decoded tokens equal to the lossless model's", _ALL, better="more",
           short="agree"),
    Metric("kl", "accuracy.kl", "KL", "nats/token", ".3g",
           "KL divergence from the lossless model; 0 for a lossless system",
           _ALL - {"brief runs"}, better="less"),
    Metric("repeated_4grams", "metrics.repeated_4grams", "repeated 4-grams", "%", ".1%",
           "share of 4-grams that occurred before in the same text", _SHOWN | {"runs"}),
    Metric("wall_s", "provenance.wall_s", "wall-clock time", "s", ".1f",
           "elapsed time of the run itself", _VIEW),
)  # fmt: skip


def shown(where: Where) -> list[Metric]:
    """Return the figures that are shown in one place, in the order of the table."""
    return [metric for metric in METRICS if where in metric.where]


def metric_of(key: str) -> Metric:
    """Return the figure of a key."""
    return next(metric for metric in METRICS if metric.key == key)
