"""One run's figures as names and texts, each latency with its badge."""

from collections.abc import Iterator, Mapping
from typing import Any

from moebench.results.document import (
    Document,
    basis,
    dig,
    routing_of,
    score_at_floor,
    software_of,
    system_of,
)
from moebench.results.metrics import Metric, metric_of, shown, written


def title_of(run: Document) -> str:
    """Return what was run, in one line."""
    spec = run["spec"]
    where = f"{spec['setting'] or spec['model']} · {spec['machine']}"
    return f"{system_of(spec)} · {where} · {spec['workload']} · batch {spec['batch']}"


def figures(run: Document) -> Iterator[tuple[str, str]]:
    """Yield label and text of each figure of a run, then of lanes, prefetches and process."""
    yield "routing", routing_of(run["spec"])
    yield "software", software_of(run["spec"])
    if quant := run["spec"].get("quant"):
        yield "quant", str(quant)
    for metric in shown("run"):
        value = metric.read(run)
        # A run that read no disk and a text that was not cut have nothing to show.
        if value is not None and (value or metric.key not in ("cut", "bytes_disk")):
            yield metric.label, _text(run, metric, value)
    yield from _process(dig(run, "metrics.process") or {})
    yield from _engine(run)


def plus_minus(value: float, ends: Mapping[str, float | None] | None) -> str:
    """Return a figure's interval in its own unit, with a leading space; "" without one."""
    if ends is None or ends["high"] is None or ends["low"] is None:
        return ""
    up, down = (f"{float(f'{abs(e - value):.2g}'):g}" for e in (ends["high"], ends["low"]))
    return f" ± {up}" if up == down else f" +{up} −{down}"


def _text(run: Document, metric: Metric, value: float) -> str:
    """Return a figure's text with its unit, interval or error, and badge."""
    badge = basis(run)
    text = metric.full(value)
    if metric.ends:
        text += plus_minus(value, dig(run, metric.ends))
    if metric.of_questions:
        stderr = metric_of("stderr")
        text += f" ± {stderr.text(dig(run, stderr.path) or 0.0)} of {dig(run, 'accuracy.n')}"
        text += f" ({dig(run, 'accuracy.metric')})"
        return text + ("; at chance level: guessing scores no less" if score_at_floor(run) else "")
    if metric.key == "cut":
        return f"{text} of {dig(run, 'accuracy.n')}"
    if metric.key == "bound_tpot_ms" and not run["simulated"]:
        badge = "computed"  # a bound is computed even if the run's times are measured
    if metric.key in ("energy_j", "tokens_per_kj"):
        # Earlier versions had simulated energy alone.
        badge = f"{dig(run, 'metrics.energy.source') or 'simulated'}, {badge}"
    elif not metric.time:
        return text
    spread = dig(run, metric.path.removesuffix(".mean"))
    if isinstance(spread, Mapping):
        tail = ", ".join(f"{p} {metric.text(spread[p])}" for p in ("p50", "p99"))
        return f"{text} [{badge}]  ({tail})"
    return f"{text} [{badge}]"


def _process(process: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the counters of a third-party package's process."""
    for name, key in (("peak memory of its process", "peak_rss_bytes"),
                      ("read from disk", "read_bytes")):  # fmt: skip
        if process.get(key) is not None:
            yield name, f"{process[key] / 1e9:.4g} GB"
    if process.get("major_faults") is not None:
        yield "major page faults", f"{process['major_faults']:,}"


def _engine(run: Document) -> Iterator[tuple[str, str]]:
    """Yield moebench's own counts: lanes, idle causes, prefetches, host memory."""
    for name, path in (("decode busy", "lanes"), ("decode device idle", "stall_ms")):
        times = dig(run, f"metrics.decode.{path}") or {}
        if any(times.values()):
            yield name, ", ".join(f"{key} {ms:,.0f} ms" for key, ms in times.items() if ms)
    used = dig(run, "metrics.prefetch") or {}
    if used.get("issued"):
        share = written(used["used"] / used["issued"], ".1%")
        yield "prefetches", f"{used['issued']}, used {share} %"
    memory = dig(run, "metrics.host_memory")  # documents of older runs have none
    if memory:
        uses = memory["hits"] + memory["reads"]
        yield "found in host memory", f"{memory['hits']} of {uses}, {memory['records']} records fit"
