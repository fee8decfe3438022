"""Fits the constants of predictions to published rows: ``make fit``.

Robust least squares on the logarithm of predicted over measured rates.  Each constant is held near
its component value by its range.  Rates are linearised around the present values by one simulation
for each constant and figure, and linearised anew around the result.  Then, for each machine and
author, the fit without their rows starts from the linear model of all others.  Figures count by
what their row says, and a machine with many of them counts less for each.
"""

import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moebench.harness import console
from moebench.harness.published import errors
from moebench.harness.published.case import Case
from moebench.harness.published.constants import (
    BY_NAME,
    COMPONENTS,
    CONSTANTS,
    FILE,
    Values,
    fitted,
    fold,
)
from moebench.harness.published.coverage import covering, known
from moebench.harness.published.kinds import own_deviations
from moebench.harness.published.predict import figures, left_out, predict, tokens
from moebench.harness.published.prediction import Phase
from moebench.harness.published.rows import FOLDER, Row, read_rows, shipped
from moebench.harness.published.simulate import milliseconds, names_of
from moebench.results import published_errors
from moebench.substrate.files import write_text

#: Steps of a constant's logarithm for derivatives.
STEP = 0.05

#: Error of a prediction that fits well: residuals beyond it count less (soft L1).
SCALE = 0.15

#: Linearisations of all rates.
ROUNDS = 2

#: Figures of a curve that are fitted: more say little else.
OF_A_CURVE = 4

#: A row's measured rate in one phase, with its inputs.
Figure = tuple[Row, Case, Phase, float]

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]


class Problem(NamedTuple):
    """The figures of a fit: log ratios at ``at``, their derivatives, weights and folds."""

    at: Vector
    residuals: Vector
    slopes: Matrix
    weights: Vector
    folds: tuple[str, ...]


def fit(rows: Sequence[Row], rounds: int = ROUNDS) -> dict[str, Any]:
    """Return the document of `constants.fitted`.

    Args:
        rows: of which those that can be predicted are used.
    """
    found = _spread(figures(rows))
    folds = tuple(fold(row) for row, *_ in found)
    weights = _weights(found, folds)
    at = np.log([COMPONENTS[constant.name] for constant in CONSTANTS])
    with ProcessPoolExecutor() as pool:
        for _ in range(rounds):
            made = list(pool.map(partial(_derivatives, at=at), found, chunksize=4))
            residuals = np.array([one[0] for one in made])
            slopes = np.array([one[1] for one in made])
            problem = Problem(at, residuals, slopes, weights, folds)
            at = solve(problem, np.ones(len(found), bool))
            console.say(f"median |log ratio| before: {np.median(np.abs(residuals)):.3f}")
        others = {
            name: _values(solve(problem, np.array([other != name for other in folds])))
            for name in sorted(set(folds))
        }
        tries = [(figure, others[name]) for figure, name in zip(found, folds, strict=True)]
        off = list(pool.map(_error, tries, chunksize=4))
    return {
        "all": _values(at), "left_out": others, "own_error": _own_errors(found, off),
    }  # fmt: skip


def _spread(found: Sequence[Figure]) -> list[Figure]:
    """Return at most `OF_A_CURVE` figures of each curve: its ends, and others between them."""
    curves: dict[tuple[str, str, str], list[Figure]] = defaultdict(list)
    for figure in found:
        row, _, phase, _ = figure
        curves[row.group or row.id, row.system, phase].append(figure)
    kept = []
    for curve in curves.values():
        ordered = sorted(curve, key=lambda figure: figure[3])
        steps = np.linspace(0, len(ordered) - 1, min(OF_A_CURVE, len(ordered)))
        kept += [ordered[round(at)] for at in steps]
    return kept


def solve(problem: Problem, used: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Vector:
    """Return the logarithms of the constants that fit the used figures of a linear model."""
    from scipy.optimize import least_squares

    centre = np.log([constant.value for constant in CONSTANTS])
    deviations = np.array([constant.deviation for constant in CONSTANTS])
    residuals, slopes = problem.residuals[used], problem.slopes[used]
    weights = np.sqrt(problem.weights[used])

    def costs(x: Vector) -> Vector:
        linear = (residuals + slopes @ (x - problem.at)) / SCALE
        # Soft L1 by hand, because the constants' ranges must count as squares.
        robust = np.sign(linear) * np.sqrt(2 * (np.sqrt(1 + linear**2) - 1))
        return np.concatenate((weights * robust, (x - centre) / deviations))

    widest = 2 * deviations
    best = least_squares(costs, np.clip(problem.at, centre - widest + 1e-9, centre + widest - 1e-9),
                         bounds=(centre - widest, centre + widest))  # fmt: skip
    solution: Vector = best.x
    return solution


def _values(logarithms: Vector) -> dict[str, float]:
    return {constant.name: float(f"{math.exp(x):.4g}")
            for constant, x in zip(CONSTANTS, logarithms, strict=True)}  # fmt: skip


def _weights(found: Sequence[Figure], folds: Sequence[str]) -> Vector:
    """Return each figure's weight: by what its row does not say, and by its machine's figures."""
    count = Counter(zip(folds, (phase for _, _, phase, _ in found), strict=True))
    return np.array([
        SCALE**2 / (SCALE**2 + known(case))
        / math.sqrt(count[name, phase])
        for name, (_, case, phase, _) in zip(folds, found, strict=True)
    ])  # fmt: skip


def _log_ratio(figure: Figure, values: Values) -> float:
    _, case, phase, measured = figure
    rate = tokens(case, phase) * 1e3 / milliseconds(case, values, phase)
    return math.log(rate / measured)


def _derivatives(figure: Figure, at: Vector) -> tuple[float, list[float]]:
    """Return a figure's log ratio, and its slope in the logarithm of each constant."""
    values = dict(zip(BY_NAME, map(math.exp, at), strict=True))
    here = _log_ratio(figure, values)
    slopes = dict.fromkeys(values, 0.0)
    for name in names_of(figure[1], figure[2]):
        moved = {**values, name: values[name] * math.exp(STEP)}
        slopes[name] = (_log_ratio(figure, moved) - here) / STEP
    return here, [*slopes.values()]


def _error(what: tuple[Figure, Values]) -> float:
    return _log_ratio(*what)


def _own_errors(found: Sequence[Figure], errors: Sequence[float]) -> dict[Phase, float]:
    """Return, by phase, the model's own deviation at which 80 % of absolute figures are covered."""
    of: dict[Phase, list[tuple[float, float]]] = defaultdict(list)
    for (row, case, phase, _), error in zip(found, errors, strict=True):
        if row.absolute:
            of[phase].append((abs(error), known(case)))
    return {phase: covering(pairs) for phase, pairs in of.items()}


def changes(document: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each constant: component value, fitted value, its range over folds."""
    rows = []
    for constant in CONSTANTS:
        others = [values[constant.name] for values in document["left_out"].values()]
        rows.append([constant.name, f"{constant.value:g}", f"{document['all'][constant.name]:.3g}",
                     f"{min(others):.3g} to {max(others):.3g}", constant.source])  # fmt: skip
    return rows


def _write(name: str, document: Mapping[str, Any]) -> None:
    write_text(FOLDER / name, json.dumps(document, indent=1, sort_keys=True) + "\n")


def main(arguments: Sequence[str]) -> None:
    """Fit the constants to the rows that ship, or to those of a path, and write both files."""
    rows = read_rows(Path(arguments[0]) if arguments else shipped())
    document = fit(rows)
    _write(FILE, document)
    fitted.cache_clear()
    for _ in range(2):  # intervals, whose coverage is a score, need the deviations of kinds
        in_sample = predict(rows)
        found = errors.document(rows, in_sample, left_out(rows, in_sample))
        _write(published_errors.FILE.name, found)
        published_errors.shipped_errors.cache_clear()
        own_deviations.cache_clear()
    console.table("constants", ["constant", "component", "fitted", "left out", "source"],
                  changes(document))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
