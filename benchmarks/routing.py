"""Effect of a run's routing on conclusions: compares the runs of the sweep ``routing``.

    moebench sweep routing --data-dir DIR --store STORE
    python -m benchmarks.routing STORE

Prints as Markdown for each setting: time per output token, time to first token and cache ratio of
every system on each routing; rank correlations of time per output token (Spearman's ρ, Kendall's
τ-b; 1 is the same order, -1 the reverse); and the pairs of systems whose order changes.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from moebench.results.document import dig, routing_of, system_of
from moebench.results.metrics import metric_of
from moebench.results.store import Store

FIGURES = [metric_of(key) for key in ("tpot_ms", "ttft_ms", "hit_ratio")]
TPOT = FIGURES[0].path

Document = dict[str, Any]
#: Runs by system and routing.
Runs = dict[tuple[str, str], Document]


def routing_label(spec: dict[str, Any]) -> str:
    """Return the name of a run's routing; non-default weights are named by their folder."""
    return Path(spec["weights"]).parent.name if spec.get("weights") else routing_of(spec)


def by_setting(documents: Sequence[Document]) -> dict[str, Runs]:
    """Return the latest run of each system on each routing, by setting."""
    found: dict[str, Runs] = {}
    for document in documents:  # oldest first
        spec = document["spec"]
        runs = found.setdefault(spec["setting"] or spec["model"], {})
        runs[system_of(spec), routing_label(spec)] = document
    return found


def ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 1; equal values share the mean of their ranks."""
    below = (values[:, None] > values).sum(1)
    return np.asarray(below + ((values[:, None] == values).sum(1) + 1) / 2)


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Return Spearman's rank correlation; NaN if all values are equal."""
    a, b = (r - r.mean() for r in (ranks(x), ranks(y)))
    norm = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / norm) if norm else float("nan")


def kendall(x: np.ndarray, y: np.ndarray) -> float:
    """Return Kendall's τ-b: pairs in the same order less reversed pairs, over untied pairs."""
    a, b = (np.sign(v[:, None] - v) for v in (x, y))
    norm = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / norm) if norm else float("nan")


def swapped(systems: Sequence[str], x: np.ndarray, y: np.ndarray) -> list[str]:
    """Return the pairs of systems whose order differs between x and y."""
    return [
        f"{systems[i]}/{systems[j]}"
        for i, j in combinations(range(len(systems)), 2)
        if (x[i] - x[j]) * (y[i] - y[j]) < 0
    ]


def lines(setting: str, runs: Runs) -> Iterator[str]:
    """Yield the lines of a setting's tables."""
    systems = sorted({system for system, _ in runs})
    routings = list(dict.fromkeys(routing for _, routing in runs))
    yield f"## {setting}\n"
    heads = [f"{figure.header} {routing}" for figure in FIGURES for routing in routings]
    yield from _row("system", *heads)
    yield from _row(*["---"] * (1 + len(heads)))
    for system in systems:
        cells = []
        for figure in FIGURES:
            values = [dig(runs.get((system, routing), {}), figure.path) for routing in routings]
            cells += ["–" if value is None else figure.text(value) for value in values]
        yield from _row(system, *cells)
    yield ""
    yield from _row("routings", "systems", "Spearman", "Kendall", "in another order")
    yield from _row(*["---"] * 5)
    for one, other in combinations(routings, 2):
        pairs = {
            system: (
                dig(runs.get((system, one), {}), TPOT),
                dig(runs.get((system, other), {}), TPOT),
            )
            for system in systems
        }
        both = {system: pair for system, pair in pairs.items() if None not in pair}
        if len(both) > 1:
            x, y = np.array(list(both.values()), float).T
            said = ", ".join(swapped(list(both), x, y)) or "none"
            correlations = [f"{f(x, y):.2f}" for f in (spearman, kendall)]
            yield from _row(f"{one}, {other}", str(len(both)), *correlations, said)
    yield ""


def _row(*cells: str) -> Iterator[str]:
    yield f"| {' | '.join(cells)} |"


def main(store: str) -> None:
    """Print the tables of a store."""
    for setting, runs in by_setting(Store(Path(store)).runs()).items():
        print("\n".join(lines(setting, runs)))


if __name__ == "__main__":
    main(*sys.argv[1:])
