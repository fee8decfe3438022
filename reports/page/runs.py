"""Single runs as plain values: list entry, document and timeline excerpt of each."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from moebench.reports.compare.conditions import lacks, place_of, title_of
from moebench.reports.page.views import base_of
from moebench.reports.sections import fidelity
from moebench.reports.sections.throughput import Curve
from moebench.results.document import Document, badge_of, dig, is_lossless, model_of, routing_of
from moebench.results.metrics import shown

Plain = dict[str, Any]

#: Most points of a curve: more are invisible, and would make a page of 2,000 runs large.
POINTS = 50

#: Most timeline excerpts of a page: they are its largest part.
PICTURES = 1000

#: Most runs whose whole documents, commands and curves are on a page.
DETAILED = 2000


def listed(
    runs: Sequence[Document], commands: Mapping[str, str], whole: Collection[str]
) -> list[Plain]:
    """Return one flat record per run.

    Args:
        commands: command that repeats a run, by its id, if known.
        whole: ids of the runs that are shown in full; others have the main figures only.
    """
    return [_listed(run, commands.get(run["run_id"]), run["run_id"] in whole) for run in runs]


def _listed(run: Document, command: str | None, whole: bool) -> Plain:
    spec = run["spec"]
    return {
        "id": run["run_id"],
        "system": title_of(run),
        "base": base_of(run),
        "where": spec.get("setting") or f"{spec.get('model')} on {spec.get('machine')}",
        "model": model_of(run),
        "batch": spec.get("batch"),
        "workload": spec.get("workload"),
        "seed": spec.get("seed"),
        "routing": routing_of(spec),
        "badge": badge_of(run),
        "simulated": bool(run["simulated"]),
        "lossless": is_lossless(run),
        "command": command,
        "machine": spec.get("machine"),
        "capacity": spec.get("cache_ratio"),
        "alpha": spec.get("alpha"),
        "code": _code_of(run),
        "v": {
            figure.key: figure.text(value)
            for figure in shown("compare" if whole else "brief runs")
            if (value := figure.read(run)) is not None
        },
        "tpot": dig(run, "metrics.tpot_ms.mean"),
        "notes": fidelity.notes(run),
    }  # fmt: skip


def _code_of(run: Document) -> str:
    """Return the commit of moebench that made a run, or its version if it was installed."""
    commit, version = dig(run, "provenance.commit"), dig(run, "provenance.versions.moebench")
    return f"commit {commit[:12]}" if commit else f"version {version or 'unknown'}"


def detailed(runs: Sequence[Document]) -> list[str]:
    """Return the ids of the runs that a page shows in full: all, or one per system and group.

    The others are in its comparisons and in its list of runs.
    """
    if len(runs) <= DETAILED:
        return [run["run_id"] for run in runs]
    first: dict[Any, str] = {}
    for run in runs:
        if not lacks(run):
            first.setdefault((place_of(run), title_of(run)), run["run_id"])
    return [*first.values()][:DETAILED]


def documents(runs: Sequence[Document | None]) -> list[Document | None]:
    """Return the documents without their answers to single prompts, which the store has."""
    found: list[Document | None] = []
    for run in runs:
        accuracy = None if run is None else run.get("accuracy")
        if run is not None and isinstance(accuracy, dict) and "items" in accuracy:
            kept = {key: value for key, value in accuracy.items() if key != "items"}
            run = run | {"accuracy": kept}
        found.append(run)
    return found


def pictured(
    runs: Sequence[Document], timelines: Mapping[str, list[dict[str, Any]]], limit: int = PICTURES
) -> list[bool]:
    """Return which runs' timelines the page has: all, or at most one per system and group."""
    kept = [bool(timelines.get(run["run_id"])) for run in runs]
    if sum(kept) > limit:
        first: dict[Any, int] = {}
        for at, run in enumerate(runs):
            if kept[at]:
                first.setdefault((place_of(run), title_of(run)), at)
        chosen = {*sorted(first.values())[:limit]}
        kept = [at in chosen for at in range(len(runs))]
    return kept


def pictures(
    runs: Sequence[Document], timelines: Mapping[str, list[dict[str, Any]]], kept: Sequence[bool]
) -> list[Plain | None]:
    """Return the runs' spans by column, in nanoseconds; starts are differences, which are short.

    Args:
        kept: result of `pictured`.
    """
    return [
        _picture(timelines[run["run_id"]]) if keep else None
        for run, keep in zip(runs, kept, strict=True)
    ]


def _picture(kept: Sequence[Mapping[str, Any]]) -> Plain:
    # Instants have no bar; `moebench timeline` shows them.
    records = [record for record in kept if not record.get("instant")]
    lanes, kinds = ([*dict.fromkeys(str(r[name]) for r in records)] for name in ("lane", "kind"))
    starts = [round(record["start_us"] * 1000) for record in records]
    return {
        "lanes": lanes,
        "kinds": kinds,
        "lane": [lanes.index(str(record["lane"])) for record in records],
        "kind": [kinds.index(str(record["kind"])) for record in records],
        "layer": [record["layer"] for record in records],
        "experts": [record["experts"] for record in records],
        "start": [b - a for a, b in zip([0, *starts], starts, strict=False)],
        "ns": [round((record["end_us"] - record["start_us"]) * 1000) for record in records],
    }


def speeds(runs: Sequence[Document], curves: Mapping[str, Curve]) -> list[list[float] | None]:
    """Return each run's decode throughput (tokens/s) at equal steps of the share of tokens."""
    return [_speeds(curves.get(run["run_id"]) or []) for run in runs]


def _speeds(curve: Curve) -> list[float] | None:
    if not curve:
        return None
    steps = min(POINTS, len(curve) - 1) or 1
    # Four digits are finer than a screen's resolution.
    return [
        float(f"{curve[round(i * (len(curve) - 1) / steps)].tokens_per_s:.4g}")
        for i in range(steps + 1)
    ]
