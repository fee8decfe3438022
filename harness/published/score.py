"""Scores of predictions of published rows: errors, order, spans of curves, coverage.

An error of a figure is |ln(predicted / measured)|.  A figure is one phase of one row.  Absolute
scores use the rows whose source names everything (`Row.absolute`); order and spans use all rows of
a group, because they compare rows of one machine.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from moebench.harness.published.prediction import Phase, Prediction
from moebench.harness.published.rows import Row

#: Measured values of a pair differ by more than this factor, else noise decides their order.
APART = 1.05
#: Fastest over slowest row of a curve whose span is compared.
SPAN = 1.15
#: Rows of one system that make a curve.
CURVE = 3
#: Largest relative error of a span that counts as right.
WITHIN = 0.30

#: A row with one of its predictions; ``predicted`` is a positive number of tokens/s.
Pair = tuple[Row, Prediction]


class GroupScore(NamedTuple):
    """Scores of one phase of one group.

    Attributes:
        rows: figures with a prediction.
        median_error: median of |ln(predicted / measured)|, as exp(x) - 1.
        pairs: pairs whose measured values differ by more than 5 %.
        in_order: how many of them are predicted in the measured order.
        spans: by system, predicted over measured difference of time per token between the slowest
            and the fastest row.
    """

    group: str
    phase: Phase
    rows: int
    median_error: float
    pairs: int
    in_order: int
    spans: tuple[tuple[str, float], ...]


def summary(rows: Sequence[Row], predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return the scores of predictions; None where a score cannot be computed.

    Order, spans and Kendall's τ are of decode.  Coverage and the predicted share are of both
    phases.  ``absolute_rows`` and ``prefill_absolute_rows`` count measured figures, whether they
    are predicted or not.
    """
    pairs = compared(rows, predictions)
    absolute = [(row, one) for row, one in pairs if row.absolute]
    decode = [_error(one) for _, one in absolute if one.phase == "decode"]
    prefill = [_error(one) for _, one in absolute if one.phase == "prefill"]
    wanted = [(row.id, phase) for row in rows if row.absolute for phase in row.phases]
    groups = [one for one in by_group(rows, predictions) if one.phase == "decode"]
    spans = [ratio for one in groups for _, ratio in one.spans]
    inside = [
        one.low <= one.measured <= one.high
        for _, one in absolute
        if one.low is not None and one.high is not None
    ]
    return {
        "absolute_rows": sum(phase == "decode" for _, phase in wanted),
        "median_error": _median_error(decode),
        "p90_ratio": _p90_ratio(decode),
        "prefill_absolute_rows": sum(phase == "prefill" for _, phase in wanted),
        "prefill_median_error": _median_error(prefill),
        "prefill_p90_ratio": _p90_ratio(prefill),
        "kendall_tau": _tau(absolute),
        "pairs_in_order": _share(sum(g.in_order for g in groups), sum(g.pairs for g in groups)),
        "slopes_within_30": _share(sum(abs(x - 1) <= WITHIN for x in spans), len(spans)),
        "coverage_80": _share(sum(inside), len(inside)),
        "predicted_share": _share(
            len({(one.id, one.phase) for _, one in absolute}.intersection(wanted)), len(wanted)
        ),
    }


def by_group(rows: Sequence[Row], predictions: Sequence[Prediction]) -> list[GroupScore]:
    """Return the scores of each group and phase with predictions, in the order of the rows."""
    found: dict[tuple[str, Phase], list[Pair]] = defaultdict(list)
    for row, one in compared(rows, predictions):
        if row.group.strip():
            found[row.group, one.phase].append((row, one))
    return [_group(*key, pairs) for key, pairs in found.items()]


def worst(rows: Sequence[Row], predictions: Sequence[Prediction], n: int = 10) -> list[Pair]:
    """Return the absolute figures with the largest errors, largest first."""
    absolute = [(row, one) for row, one in compared(rows, predictions) if row.absolute]
    return sorted(absolute, key=lambda pair: -_error(pair[1]))[:n]


def compared(rows: Sequence[Row], predictions: Iterable[Prediction]) -> list[Pair]:
    """Return each figure that has a prediction with its row, in the order of the rows."""
    of: dict[str, list[Prediction]] = defaultdict(list)
    for one in predictions:
        if one.predicted is not None and one.predicted > 0:
            of[one.id].append(one)
    return [(row, one) for row in rows for one in of[row.id]]


def ratio(one: Prediction) -> float:
    """Return predicted over measured rate of a figure that has a prediction."""
    assert one.predicted is not None
    return one.predicted / one.measured


def _error(one: Prediction) -> float:
    return abs(math.log(ratio(one)))


def _median_error(errors: Sequence[float]) -> float | None:
    return math.expm1(statistics.median(errors)) if errors else None


def _p90_ratio(errors: Sequence[float]) -> float | None:
    return math.exp(float(np.quantile(errors, 0.9))) if errors else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _tau(absolute: Sequence[Pair]) -> float | None:
    """Return Kendall's τ-b of the median decode rates of machines; None if it is not defined."""
    of: dict[str, list[Prediction]] = defaultdict(list)
    for row, one in absolute:
        if one.phase == "decode":
            of[row.cluster].append(one)
    if len(of) < 2:
        return None
    from scipy.stats import kendalltau

    measured = [statistics.median(one.measured for one in ones) for ones in of.values()]
    predicted = [statistics.median(one.predicted or 0 for one in ones) for ones in of.values()]
    tau = float(kendalltau(measured, predicted).statistic)
    return None if math.isnan(tau) else tau


def _group(group: str, phase: Phase, pairs: Sequence[Pair]) -> GroupScore:
    apart = [
        (a, b)
        for (_, a), (_, b) in combinations(pairs, 2)
        if max(a.measured, b.measured) > APART * min(a.measured, b.measured)
    ]
    in_order = sum((a.measured - b.measured) * _faster(a, b) > 0 for a, b in apart)
    median = _median_error([_error(one) for _, one in pairs])
    assert median is not None
    return GroupScore(group, phase, len(pairs), median, len(apart), in_order, tuple(_spans(pairs)))


def _faster(one: Prediction, other: Prediction) -> float:
    """Return by how many tokens/s one figure is predicted to exceed another."""
    assert one.predicted is not None
    assert other.predicted is not None
    return one.predicted - other.predicted


def _spans(pairs: Sequence[Pair]) -> Iterator[tuple[str, float]]:
    """Yield each system's predicted over measured span of time per token."""
    of: dict[str, list[Prediction]] = defaultdict(list)
    for row, one in pairs:
        of[row.system.strip()].append(one)
    for system, ones in of.items():
        slow = min(ones, key=lambda one: one.measured)
        fast = max(ones, key=lambda one: one.measured)
        if len(ones) >= CURVE and fast.measured > SPAN * slow.measured:
            assert slow.predicted is not None
            assert fast.predicted is not None
            predicted = 1 / slow.predicted - 1 / fast.predicted
            yield system, predicted / (1 / slow.measured - 1 / fast.measured)
