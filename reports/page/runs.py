"""The single runs as plain values: what is listed of each, its document, its picture."""

from collections.abc import Mapping, Sequence
from typing import Any

from moebench.reports.compare.conditions import place_of, title_of
from moebench.reports.page.views import base_of
from moebench.reports.sections import fidelity
from moebench.reports.sections.throughput import Curve
from moebench.results.document import Document, badge_of, dig, model_of, routing_of
from moebench.results.metrics import shown, written

Plain = dict[str, Any]

#: Curves have this many points at most: more are not seen, and a page of 2,000 runs would be large.
POINTS = 50

#: More pictures than this would be most of a page.
PICTURES = 1000


def listed(runs: Sequence[Document], commands: Mapping[str, str]) -> list[Plain]:
    """One flat record a run.

    Args:
        commands: what repeats a run, by its id, where that is known.
    """
    return [_listed(run, commands.get(run["run_id"])) for run in runs]


def _listed(run: Document, command: str | None) -> Plain:
    spec = run["spec"]
    figures = shown("compare")
    values = {figure.key: figure.of(run) for figure in figures}
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
        "command": command,
        "v": {figure.key: written(value, figure.form) for figure in figures
              if (value := values[figure.key]) is not None},
        "tpot": values["tpot_ms"],
        "notes": fidelity.notes(run),
    }  # fmt: skip


def documents(runs: Sequence[Document]) -> list[Document]:
    """The documents without their answers to single questions, which the store has."""
    found = []
    for run in runs:
        accuracy = dig(run, "accuracy")
        if isinstance(accuracy, dict) and "items" in accuracy:
            kept = {key: value for key, value in accuracy.items() if key != "items"}
            run = run | {"accuracy": kept}
        found.append(run)
    return found


def pictured(
    runs: Sequence[Document], timelines: Mapping[str, list[dict[str, Any]]], limit: int = PICTURES
) -> list[bool]:
    """Which runs' pictures are in the page: all, or of many one a system in each place."""
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
    """Spans by column, in nanoseconds; starts as differences, which are short.

    Args:
        kept: from `pictured`.
    """
    return [
        _picture(timelines[run["run_id"]]) if keep else None
        for run, keep in zip(runs, kept, strict=True)
    ]


def _picture(kept: Sequence[Mapping[str, Any]]) -> Plain:
    # What happened at an instant has no bar: `moebench timeline` shows it.
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
    """Each run's decode throughput at equal steps of the share of tokens (tokens/s)."""
    return [_speeds(curves.get(run["run_id"]) or []) for run in runs]


def _speeds(curve: Curve) -> list[float] | None:
    if not curve:
        return None
    steps = min(POINTS, len(curve) - 1) or 1
    # Four digits are finer than a screen.
    return [
        float(f"{curve[round(i * (len(curve) - 1) / steps)].tokens_per_s:.4g}")
        for i in range(steps + 1)
    ]
