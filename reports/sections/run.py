"""One run's figures as names and texts, for a terminal.

Lanes, stalls and the counters of a third-party package's process have open keys; all other figures
are rows of `moebench.results.metrics.METRICS`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from moebench.results.document import (
    Document,
    basis,
    perplexity_of,
    routing_of,
    score_at_floor,
    software_of,
)
from moebench.results.metrics import BY_KEY


def figures(run: Document) -> Iterator[tuple[str, str]]:
    """Yield a run's figures as names and texts, each latency with its badge."""
    yield "routing", routing_of(run["spec"])
    yield "software", software_of(run["spec"])
    yield from _rows(run, basis(run))


def plus_minus(value: float | None, ends: Mapping[str, float] | None) -> str:
    """Return a figure's interval in its own unit, with a leading space; "" if there is none."""
    if value is None or ends is None or ends["high"] is None:
        return ""
    up, down = (f"{float(f'{abs(e - value):.2g}'):g}" for e in (ends["high"], ends["low"]))
    return f" ± {up}" if up == down else f" +{up} −{down}"


def _figure(run: Document, key: str) -> tuple[str, str]:
    metric = BY_KEY[key]
    return metric.label, metric.text(metric.of(run))


def _rows(run: Document, badge: str) -> Iterator[tuple[str, str]]:
    metrics, bound = run["metrics"], run["bound"]
    ends = run.get("interval") or {}
    for key in ("tpot_ms", "ttft_ms"):
        if (spread := metrics[key]) is not None:
            tail = f"  (p50 {spread['p50']:.4g}, p99 {spread['p99']:.4g})"
            around = plus_minus(spread["mean"], ends.get(key))
            name, text = _figure(run, key)
            yield name, f"{text}{around} [{badge}]{tail}"
    if bound["tpot_ms"] is not None:
        # A bound is computed, even if the run's times are measured.
        origin = badge if run["simulated"] else "computed"
        name, text = _figure(run, "bound_tpot_ms")
        yield f"TPOT, {name}", f"{text} [{origin}], this run takes {bound['ratio']:.3g} times"
    name, text = _figure(run, "tokens_per_s")
    around = plus_minus(metrics["tokens_per_s"], ends.get("tokens_per_s"))
    yield f"{name}, prefill included", f"{text}{around} [{badge}]"
    yield from _process_rows(metrics["process"]) if metrics.get("process") else _engine_rows(run)
    if metrics.get("energy_j") is not None:
        # Earlier versions knew simulated energy alone.
        source = (metrics.get("energy") or {}).get("source") or "simulated"
        name, text = _figure(run, "energy_j")
        yield name, f"{text}, {_figure(run, 'tokens_per_kj')[1]} [{source}, {badge}]"
    if run["accuracy"]["score"] is not None:
        yield from _score_rows(run)
    if metrics.get("repeated_4grams") is not None:
        yield _figure(run, "repeated_4grams")
    for key in ("agreement", "kl"):
        yield _figure(run, key)


def _score_rows(run: Document) -> Iterator[tuple[str, str]]:
    """Yield a score in percent or a perplexity, and what it cannot show."""
    accuracy, error = run["accuracy"], run["accuracy"]["stderr"]
    if perplexity_of(run) is not None:
        name, text = _figure(run, "perplexity")
        yield name, f"{text} ± {error:.2g}"
        return
    floor = "; at chance level: guessing scores no less" if score_at_floor(run) else ""
    name, text = _figure(run, "score")
    score = text.replace(" %", f" ± {error:.1f} %")
    yield name, f"{score} of {accuracy['n']} ({accuracy['metric']}){floor}"
    if accuracy.get("cut"):  # documents of earlier versions lack it
        yield "answers cut at --new-tokens", f"{accuracy['cut']} of {accuracy['n']}"


def _process_rows(process: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the known counters of a third-party package's process."""
    for name, key in (("peak memory of its process", "peak_rss_bytes"),
                      ("read from disk", "read_bytes")):  # fmt: skip
        if process[key] is not None:
            yield name, f"{process[key] / 1e9:.4g} GB"
    if process["major_faults"] is not None:
        yield "major page faults", f"{process['major_faults']:,}"


def _engine_rows(run: Document) -> Iterator[tuple[str, str]]:
    """Yield the figures that the engine counts."""
    metrics = run["metrics"]
    yield _figure(run, "cache_ratio")
    yield _figure(run, "cache_ratio_begun")
    lanes, stalls = (metrics["decode"][part] for part in ("lanes", "stall_ms"))
    yield "decode busy", ", ".join(f"{lane} {ms:,.0f} ms" for lane, ms in lanes.items() if ms)
    yield "decode device idle", ", ".join(f"{why} {ms:,.0f} ms" for why, ms in stalls.items())
    used = metrics["prefetch"]
    if used["issued"]:
        yield "prefetches", f"{used['issued']}, used {100 * used['used'] / used['issued']:.1f} %"
    for key in ("bytes_h2d", "bytes_disk"):
        if key == "bytes_h2d" or metrics[key]:
            yield BY_KEY[key].label, f"{metrics[key] / 1e9:.4g} GB"
    memory = metrics.get("host_memory")  # documents of earlier versions lack it
    if memory:
        asked = memory["hits"] + memory["reads"]
        room = f"{memory['records']} records fit"
        yield "found in host memory", f"{memory['hits']} of {asked} accesses, {room}"
    yield BY_KEY["peak_device_bytes"].label, f"{metrics['peak_device_bytes'] / 1e9:.4g} GB"
