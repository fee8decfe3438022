"""Output of the commands: tables on a terminal, tab-separated lines in a pipe, progress."""

import json
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moebench.reports.tables import (
    basis,
    perplexity_of,
    plus_minus,
    routing_of,
    score_at_floor,
    software_of,
    system_of,
)
from moebench.reports.text import TextTable
from moebench.results.store_hints import in_store

if TYPE_CHECKING:
    from rich.console import Console

    from moebench.harness.progress import Step


# rich takes 70 ms to import: every command imports this module, few of them draw.


def stderr() -> "Console":
    """Return the console on stderr, for all output but results."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def stdout() -> "Console":
    """Return the console on stdout, for results."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def say(line: str) -> None:
    """Print a line on stderr as it is, without markup."""
    print(line, file=sys.stderr, flush=True)


def print_json(document: Any, sort_keys: bool = True) -> None:
    """Print one JSON document on stdout, in one line."""
    print(json.dumps(document, sort_keys=sort_keys))


def table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on a terminal, or tab-separated lines in a pipe."""
    if not sys.stdout.isatty():
        for row in (headers, *rows):
            print("\t".join(row))
        return
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(title=escape(title), title_justify="left")
    for header in headers:
        drawn.add_column(escape(header))
    for row in rows:
        drawn.add_row(*map(escape, row))
    stdout().print(drawn)


def text_table(shown: TextTable) -> None:
    """Print a text table with its caption on a terminal, or tab-separated lines in a pipe."""
    if not sys.stdout.isatty():
        table(shown.title, shown.headers, shown.rows)
        say(f"{shown.title}: {shown.said}" if shown.said else shown.title)
        return
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    styles = {"": "", "best": "bold", "second": "underline"}
    drawn = Table(title=escape(shown.title), title_justify="left", caption_justify="left",
                  caption=escape(shown.said) or None)  # fmt: skip
    for header, number in zip(shown.headers, shown.numbers, strict=True):
        drawn.add_column(escape(header), justify="right" if number else "left")
    for g, group in enumerate(shown.groups):
        for r, row in enumerate(group):
            cells = [
                Text(text, styles[shown.marks.get((g, r, c), "")]) for c, text in enumerate(row)
            ]
            drawn.add_row(*cells, end_section=r == len(group) - 1)
    stdout().print(drawn)
    for note in shown.notes:
        stdout().print(note, markup=False)


@contextmanager
def progress(what: str, after_s: float = 0.0) -> Iterator["Step"]:
    """Show progress as a bar or as lines in a pipe; yields ``step(done, total)``.

    Args:
        after_s: how long a pipe is told nothing, of work that may be done at once.
    """
    from moebench.harness.progress import shown

    with shown(what, stderr(), after_s) as step:
        yield step


def say_left_out(store: Any) -> None:
    """Print which runs or cells of a store were left out, and why."""
    for line in store.left_out.values():
        say(f"left out: {line}")


def say_refused(names: Collection[str] | None = None) -> None:
    """Print why systems of installed packages are left out."""
    from moebench.systems.registry import installed

    for name, reason in installed().refused.items():
        if names is None or name in names:
            say(f"left out: {reason}")


def _figure(value: float | None, unit: str, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}g}{unit}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def show_run(document: dict[str, Any], store: Path) -> None:
    """One run's figures, each latency with its badge."""
    spec = document["spec"]
    title = f"{system_of(spec)} · {spec['setting'] or spec['model']} · {spec['machine']}"
    rows = [[name, text] for name, text in figures(document)]
    table(f"{title} · {spec['workload']} · batch {spec['batch']}", ["figure", "value"], rows)
    for note in document["notes"]:
        say(f"note: {note}")
    moving = [one["field"] for one in (document.get("interval") or {}).get("fields", [])[:3]]
    if moving:
        say(f"± over the ranges of the profile's numbers, most by {', '.join(moving)}")
    say(f"run {document['run_id']}; moebench report --html out.html{in_store(store)} shows it")


def figures(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A run's figures by name, each latency with its badge."""
    yield "routing", routing_of(document["spec"])
    yield "software", software_of(document["spec"])
    yield from _rows(document, basis(document))


def _rows(document: dict[str, Any], badge: str) -> Iterator[tuple[str, str]]:
    metrics, accuracy, bound = (document[part] for part in ("metrics", "accuracy", "bound"))
    ends = document.get("interval") or {}
    for name, key in (("TPOT", "tpot_ms"), ("TTFT", "ttft_ms")):
        spread = metrics[key]
        if spread is not None:
            tail = f"  (p50 {spread['p50']:.4g}, p99 {spread['p99']:.4g})"
            around = plus_minus(spread["mean"], ends.get(key))
            yield name, f"{spread['mean']:.4g} ms{around} [{badge}]{tail}"
    if bound["tpot_ms"] is not None:
        # A bound is computed, even where the run's times are measured.
        origin = badge if document["simulated"] else "computed"
        times = f"this run takes {bound['ratio']:.3g} times"
        yield "TPOT lower bound", f"{bound['tpot_ms']:.4g} ms [{origin}], {times}"
    speed = metrics["tokens_per_s"]
    around = plus_minus(speed, ends.get("tokens_per_s"))
    yield "tokens/s, prefill included", _figure(speed, f"{around} [{badge}]")
    if metrics.get("process"):
        yield from _process_rows(metrics["process"])
    else:
        yield from _engine_rows(metrics)
    if metrics.get("energy_j") is not None:
        # Earlier versions knew simulated energy alone.
        source = (metrics.get("energy") or {}).get("source") or "simulated"
        each = f"{metrics['tokens_per_kj']:.4g} tokens/kJ"
        yield "energy", f"{metrics['energy_j']:.4g} J, {each} [{source}, {badge}]"
    if accuracy["score"] is not None:
        yield from _score_rows(document)
    if metrics.get("repeated_4grams") is not None:
        yield "repeated 4-grams", _share(metrics["repeated_4grams"])
    yield "agreement with lossless", _share(accuracy["agreement"])
    yield "KL per token", _figure(accuracy["kl"], " nat")


def _score_rows(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A score in percent, or a perplexity; and what it cannot say."""
    accuracy = document["accuracy"]
    if (perplexity := perplexity_of(document)) is not None:
        yield "perplexity per token", f"{perplexity:.4g} ± {accuracy['stderr']:.2g}"
        return
    floor = "; at its floor: guessing scores no less" if score_at_floor(document) else ""
    score = f"{accuracy['score']:.1f} ± {accuracy['stderr']:.1f} % of {accuracy['n']}"
    yield "accuracy", f"{score} ({accuracy['metric']}){floor}"
    if accuracy.get("cut"):  # runs of earlier versions do not say it
        yield "answers cut at --new-tokens", f"{accuracy['cut']} of {accuracy['n']}"


def _process_rows(process: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is known of a package's own process."""
    for name, key in (("peak memory of its process", "peak_rss_bytes"),
                      ("read from disk", "read_bytes")):  # fmt: skip
        if process[key] is not None:
            yield name, f"{process[key] / 1e9:.4g} GB"
    if process["major_faults"] is not None:
        yield "major page faults", f"{process['major_faults']:,}"


def _engine_rows(metrics: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What our own engine counts."""
    begun = _share(metrics.get("cache_ratio_begun"))  # runs of earlier versions do not say it
    there = f"{_share(metrics['cache_ratio'])} complete at the gate"
    yield "expert cache ratio", f"{there}, {begun} complete or under way"
    decode = metrics["decode"]
    yield (
        "decode busy",
        ", ".join(f"{lane} {busy:,.0f} ms" for lane, busy in decode["lanes"].items() if busy),
    )
    yield (
        "decode device idle",
        ", ".join(f"{cause} {idle:,.0f} ms" for cause, idle in decode["stall_ms"].items()),
    )
    used = metrics["prefetch"]
    if used["issued"]:
        yield "prefetches", f"{used['issued']}, used {_share(used['used'] / used['issued'])}"
    yield "moved over the link", f"{metrics['bytes_h2d'] / 1e9:.4g} GB"
    if metrics["bytes_disk"]:
        yield "read from disk", f"{metrics['bytes_disk'] / 1e9:.4g} GB"
    memory = metrics.get("host_memory")  # documents of older runs have none
    if memory:
        asked = memory["hits"] + memory["reads"]
        room = f"{memory['records']} records fit"
        yield "found in host memory", f"{memory['hits']} of {asked} asked for, {room}"
    yield "peak device memory", f"{metrics['peak_device_bytes'] / 1e9:.4g} GB"
