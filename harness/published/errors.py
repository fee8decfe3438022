"""Errors of predictions by kind of machine and system, and what has moved in them.

The file that ships (`results.published_errors`) has the scores of the rows that ship, in sample and
with machine and author left out, for each kind the left-out errors of its figures, and the left-out
errors of ratios of two engines' rates on one machine.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from moebench.harness.published.case import Case, Unpredictable, case_of
from moebench.harness.published.constants import fitted, fold
from moebench.harness.published.coverage import covering, known
from moebench.harness.published.engines import engine_named
from moebench.harness.published.kinds import kind_of_case
from moebench.harness.published.prediction import Phase, Prediction
from moebench.harness.published.rows import Row
from moebench.harness.published.score import compared, ratio, summary

#: Fewest figures, and machines with author, from which the error of a kind is known.
FIGURES, MACHINES = 8, 2

#: Machines as which the deviation of all rows counts beside those of a kind.
PRIOR_MACHINES = 4

PHASES: tuple[Phase, ...] = ("decode", "prefill")

#: A score has moved if it changed by more than this share; sums of other processors differ by less.
EQUAL = 1e-3

#: Scores of which lower is better, and higher.
LOWER = ("median_error", "p90_ratio", "prefill_median_error", "prefill_p90_ratio")
HIGHER = ("kendall_tau", "pairs_in_order", "slopes_within_30", "predicted_share")


def document(
    rows: Sequence[Row], in_sample: Sequence[Prediction], left_out: Sequence[Prediction]
) -> dict[str, Any]:
    """Return the document of the file that ships."""
    return {
        "in_sample": summary(rows, in_sample),
        "left_out": summary(rows, left_out),
        "kinds": _kinds(rows, left_out),
        "ratios": _ratios(rows, left_out),
    }


def _kinds(rows: Sequence[Row], predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return, by kind and phase, the errors of figures of enough machines."""
    by_id = {row.id: row for row in rows}
    found: dict[tuple[str, Phase], list[_Error]] = defaultdict(list)
    for one in predictions:
        row = by_id[one.id]
        case = _case(row)
        if case is not None and one.predicted:
            error = abs(math.log(one.predicted / one.measured))
            found[kind_of_case(case), one.phase].append(_Error(fold(row), error, known(case)))
    kinds: dict[str, Any] = defaultdict(dict)
    for (name, phase), ones in sorted(found.items()):
        machines, errors = {one.machine for one in ones}, [one.error for one in ones]
        if len(errors) >= FIGURES and len(machines) >= MACHINES:
            kinds[name][phase] = {
                "figures": len(errors), "machines": len(machines),
                "deviation": _pooled(ones, len(machines), fitted().own_error[phase]),
                "median_error": math.expm1(statistics.median(errors)),
                "within_80": math.exp(float(np.quantile(errors, 0.8))),
            }  # fmt: skip
    return dict(kinds)


def _ratios(rows: Sequence[Row], predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return, by phase, the error of the ratio of two engines' rates on one machine.

    A pair is two rows of a group that name engines of different rules.  Each group counts as much
    as any other, because a few have most of the pairs.
    """
    found = {phase: _ratio(rows, predictions, phase) for phase in PHASES}
    return {phase: one for phase, one in found.items() if one}


def _ratio(
    rows: Sequence[Row], predictions: Sequence[Prediction], phase: Phase
) -> dict[str, Any]:  # fmt: skip
    groups: dict[str, list[tuple[Row, float]]] = defaultdict(list)
    for row, one in compared(rows, predictions):
        if one.phase == phase and row.group.strip():
            groups[row.group].append((row, math.log(ratio(one))))
    errors = {name: found for name, ones in groups.items() if (found := [*_pairs(ones)])}
    if not errors:
        return {}
    each = [(error, 1 / len(found)) for found in errors.values() for error in found]
    return {
        "pairs": len(each), "groups": len(errors),
        "machines": len({fold(groups[name][0][0]) for name in errors}),
        "median_error": math.expm1(_weighted(each, 0.5)),
        "within_80": math.exp(_weighted(each, 0.8)),
    }  # fmt: skip


def _pairs(ones: Sequence[tuple[Row, float]]) -> Iterator[float]:
    """Yield the error of each ratio of two engines, from the logarithms of the rates' errors."""
    for (row, off), (other, other_off) in combinations(ones, 2):
        if engine_named(row.system) != engine_named(other.system):
            yield abs(off - other_off)


def _weighted(values: Sequence[tuple[float, float]], share: float) -> float:
    """Return the least value up to which the weights are a share of all weights."""
    ordered = sorted(values)
    limit = share * sum(weight for _, weight in ordered) * (1 - 1e-12)
    sums = np.cumsum([weight for _, weight in ordered])
    return ordered[min(int(np.searchsorted(sums, limit)), len(ordered) - 1)][0]


class _Error(NamedTuple):
    """A left-out error of a figure.

    Attributes:
        machine: with its author.
        error: absolute logarithm of predicted over measured.
        known: variance of what the row does not say, and of repetitions.
    """

    machine: str
    error: float
    known: float


def _pooled(ones: Sequence[_Error], machines: int, of_all: float) -> float:
    """Return a kind's deviation at which 80 % of its figures are covered, pooled with that of all.

    Few machines say little: the deviation of all rows counts as `PRIOR_MACHINES` of them.
    """
    own = covering([(one.error, one.known) for one in ones])
    both = (machines * own**2 + PRIOR_MACHINES * of_all**2) / (machines + PRIOR_MACHINES)
    return float(f"{math.sqrt(both):.3g}")


def _case(row: Row) -> Case | None:
    try:
        return case_of(row)
    except Unpredictable:
        return None


# ------------------------------------------------------------------------------ the guard


class Moved(NamedTuple):
    """A score that differs from the accepted one."""

    name: str
    accepted: float | None
    now: float | None
    worse: bool


def moved(accepted: Mapping[str, Any], now: Mapping[str, Any]) -> list[Moved]:
    """Return the scores that differ by more than `EQUAL`, of both summaries."""
    found = []
    for part in ("left_out", "in_sample"):
        for key in (*LOWER, *HIGHER):
            before, after = accepted[part].get(key), now[part].get(key)
            if before is None and after is None:
                continue
            if before is None or after is None:
                found.append(Moved(f"{part}.{key}", before, after, after is None))
            elif abs(after - before) > EQUAL * abs(before):
                worse = after > before if key in LOWER else after < before
                found.append(Moved(f"{part}.{key}", before, after, worse))
    return found
