"""Searches for compositions: trials over time, candidates, and places that were held out."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from moebench.results.searches import Searched, SearchedPlace

TITLE = "Searches for compositions"

CAPTION = (
    "Each point is a composition of decisions or a published system, in the order of the search; "
    "the line is the best so far; what takes more than twice the best published system's time is "
    "drawn at 2.  The tables compare the composition with the best published "
    "systems on prompts, a workload and machines that the search has not seen: only these say "
    "whether it is faster.  All times are simulated."
)

#: The largest ratio that is drawn.
MOST_DRAWN = 2.0

#: Headers of the table of places.
HEADERS = ["place", "composition (ms)", "best published", "(ms)", "ratio"]


def history_rows(one: Searched) -> list[dict[str, Any]]:
    """Return the points of the chart of trials."""
    allowed = [trial.values[0] for trial in one.history if _holds(one, trial.values)]
    largest = max(allowed, default=1.0)
    firsts = [trial.values[0] if _holds(one, trial.values) and not trial.stopped else largest
              for trial in one.history]  # fmt: skip
    return [
        {
            "trial": number, "ratio": trial.values[0], "best": min(best, MOST_DRAWN),
            "drawn": min(trial.values[0], MOST_DRAWN),
            "name": trial.system or f"trial {trial.trial}",
            "kind": "published" if trial.system else
                    "stopped early" if trial.stopped else "composition",
        }
        for number, (trial, best) in enumerate(zip(one.history, accumulate(firsts, min),
                                                   strict=True))
    ]  # fmt: skip


def _holds(one: Searched, values: Sequence[float]) -> bool:
    return one.limit_kl is None or len(values) < 2 or values[1] <= one.limit_kl


def candidate_rows(place: SearchedPlace) -> tuple[str, list[dict[str, Any]]]:
    """Return across which figure the candidates are drawn, and their points."""
    across = "kl" if any(one.kl is not None for one in place.validation) else "memory"
    rows = [
        {
            "name": one.name, "tpot": one.tpot_ms, "kl": one.kl, "memory": one.memory_gb,
            "kind": "published" if one.published else "composition",
        }
        for one in place.validation
        if one.tpot_ms is not None
    ]  # fmt: skip
    return across, [row for row in rows if row[across] is not None]


def lines(place: SearchedPlace) -> list[list[str]]:
    """Return the table of held-out places."""
    return [
        [
            one.place, _ms(one.found_ms), one.best or one.refused or "", _ms(one.best_ms),
            "" if one.ratio is None else
            f"{one.ratio:.3f}" + ("" if one.clear else " (not clear)"),
        ]
        for one in place.held_out
    ]  # fmt: skip


def said(one: Searched, place: SearchedPlace) -> str:
    """Return what is said of a place: the verdict, its probability, bounds, and the composition."""
    parts = [f"{place.verdict}."]
    if place.probability_faster is not None:
        parts.append(
            "Probability that it is faster on a real machine, by the error of predicted ratios: "
            f"{place.probability_faster:.0%}."
        )
    if place.bound.clairvoyant_ms is not None and place.bound.information_ms is not None:
        parts.append(
            f"Bounds: {place.bound.clairvoyant_ms:.1f} ms (clairvoyant), "
            f"{place.bound.information_ms:.1f} ms (once each gate is known)."
        )
    counts = one.trials
    parts.append(f"{counts.get('evaluated', 0)} compositions were evaluated.")
    if place.found is not None:
        sets = " ".join(f"{key}={value}" for key, value in sorted(place.found.set.items()))
        parts.append(f"Composition: {sets}.")
    return " ".join(parts)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
