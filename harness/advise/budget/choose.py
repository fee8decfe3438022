"""Choice of the system and α that meet a budget: TPOT is fitted over α, and systems are ranked.

SMoE, section V-C, Eq. 5: minimise the accuracy loss A(α) subject to T(α) <= R, with T(α) a
low-degree polynomial through measured points, by a one-dimensional search for the smallest α in
budget.  Here a chosen α is also measured: the advised configuration was run, not only predicted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.polynomial import Polynomial

from moebench.results.intervals import Estimate

#: Highest degree of the polynomials; the paper says "low-degree" and states no number.
MAX_DEGREE = 3
#: The search's step in α.
STEP = 0.01

#: The measure of an accuracy loss.
By = Literal["kl", "agreement", "score"]
UNITS: Mapping[By, str] = {
    "kl": "nats of KL a token",
    "agreement": "% of tokens unlike the lossless model's",
    "score": "points of score below the lossless model",
}

# ----------------------------------------------------------------------------- T(α)


@dataclass(frozen=True, slots=True)
class Fit:
    """TPOT over α as a polynomial, valid only within the measured range.

    Attributes:
        coefficients: in ms, of ascending powers of α.
        low, high: the least and the largest measured α.
        error_ms, worst_ms: root mean squared and largest error, each point predicted from all
            others.
    """

    coefficients: tuple[float, ...]
    low: float
    high: float
    error_ms: float
    worst_ms: float
    points: int

    @property
    def degree(self) -> int:
        """Degree of the polynomial."""
        return len(self.coefficients) - 1

    def at(self, alpha: float) -> float:
        """Return the predicted TPOT in ms."""
        return float(Polynomial(self.coefficients)(alpha))


def fit(measured: Mapping[float, float]) -> Fit | None:
    """Return the polynomial that predicts left-out points best; None with fewer than three points.

    Args:
        measured: TPOT in ms by α.
    """
    alphas, times = np.array(sorted(measured.items())).reshape(-1, 2).T
    degrees = range(1, min(MAX_DEGREE, len(measured) - 2) + 1)
    fits = [_of_degree(degree, alphas, times) for degree in degrees]
    # Round to a nanosecond, so that a higher degree does not win by rounding errors.
    return min(fits, key=lambda found: (round(found.error_ms, 6), found.degree), default=None)


def _of_degree(degree: int, alphas: np.ndarray, times: np.ndarray) -> Fit:
    kept = ~np.eye(len(alphas), dtype=bool)
    errors = [
        abs(float(Polynomial.fit(alphas[k], times[k], degree)(a)) - t)
        for k, a, t in zip(kept, alphas, times, strict=True)
    ]
    found = Polynomial.fit(alphas, times, degree).convert()
    # numpy drops trailing coefficients that are exactly 0.
    coefficients = (*map(float, found.coef), *[0.0] * (degree + 1 - len(found.coef)))
    rms = float(np.sqrt(np.mean(np.square(errors))))
    ends = float(alphas[0]), float(alphas[-1])
    return Fit(coefficients, *ends, rms, float(max(errors)), len(alphas))


def smallest_alpha(measured: Mapping[float, float], budget_ms: float) -> float | None:
    """Return the smallest measured or predicted α within the budget; None if there is none.

    A measured TPOT overrides the prediction, so repeated measuring of the returned α ends with
    an α that was measured.

    Args:
        measured: TPOT in ms by α.
    """
    found = fit(measured)
    searched = set(measured)
    if found is not None:
        steps = range(int(np.ceil(found.low / STEP)), int(np.floor(found.high / STEP)) + 1)
        # Skip a step close to a measured α: the measurement is used for both.
        searched |= {
            round(step * STEP, 2)
            for step in steps
            if all(abs(step * STEP - a) >= STEP / 2 for a in measured)
        }
    for alpha in sorted(searched):
        expected = measured[alpha] if alpha in measured or found is None else found.at(alpha)
        if expected <= budget_ms:
            return alpha
    return None


# ----------------------------------------------------------------------------- ranking


class Demand(NamedTuple):
    """Limits of the user: largest TPOT (ms) and largest accuracy loss; None means unlimited."""

    tpot_ms: float | None
    loss: float | None


def configuration(system: str, alpha: float | None) -> str:
    """Return the title of a system at one of its α's."""
    return system if alpha is None else f"{system} at α {alpha:g}"


class Candidate(NamedTuple):
    """A system, at one α if it has one, with the figures of its run.

    Attributes:
        tpot: in ms, with its interval over prompts.
        loss: in the unit of `By`, with its interval over prompts; None if it is not known.
    """

    system: str
    alpha: float | None
    tpot: Estimate
    loss: Estimate | None
    lossless: bool
    run_id: str
    badge: str

    @property
    def title(self) -> str:
        """The system's name with its α."""
        return configuration(self.system, self.alpha)

    def too_slow_ms(self, demand: Demand) -> float:
        """Return the excess of the candidate's TPOT over the budget in ms; 0 within the budget."""
        return 0.0 if demand.tpot_ms is None else max(0.0, self.tpot.value - demand.tpot_ms)

    def too_lossy(self, demand: Demand) -> float:
        """Return the excess of the candidate's loss over the limit; infinite if it is not known."""
        if demand.loss is None:
            return 0.0
        return float("inf") if self.loss is None else max(0.0, self.loss.value - demand.loss)

    def meets(self, demand: Demand) -> bool:
        """Return whether the candidate's mean TPOT and mean loss are within both limits."""
        return not (self.too_slow_ms(demand) or self.too_lossy(demand))


class Ranking(NamedTuple):
    """Candidates that meet a demand, best first, and the others, nearest first.

    Attributes:
        lossless: the fastest lossless candidate; None if none was run.
    """

    meeting: list[Candidate]
    others: list[Candidate]
    lossless: Candidate | None


def rank(
    candidates: Iterable[Candidate], demand: Demand, chosen: Mapping[str, float | None]
) -> Ranking:
    """Rank candidates by accuracy loss, then TPOT; without a TPOT limit, by TPOT, then loss.

    A system with several α's appears once.  Candidates that do not meet the demand are ordered by
    their excess: over the limit of accuracy loss first, then over the budget.

    Args:
        chosen: the α at which a system is ranked; None or no entry leaves the best one.
    """

    def best(one: Candidate) -> tuple[float, ...]:
        loss = float("inf") if one.loss is None else one.loss.value
        if demand.tpot_ms is None:
            return (one.tpot.value, loss)
        return (loss, not one.lossless, one.tpot.value)  # lossless before a measured loss of 0

    def nearest(one: Candidate) -> tuple[float, ...]:
        return (one.too_lossy(demand), one.too_slow_ms(demand), *best(one))

    every = list(candidates)
    standing = [one for one in every if chosen.get(one.system) in (None, one.alpha)]
    meeting = _once(sorted((one for one in standing if one.meets(demand)), key=best))
    there = {one.system for one in meeting}
    missing = (one for one in standing if one.system not in there)
    exact = min((c for c in every if c.lossless), key=lambda c: c.tpot.value, default=None)
    return Ranking(meeting, _once(sorted(missing, key=nearest)), exact)


def _once(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the first candidate of each system."""
    found: dict[str, Candidate] = {}
    for one in candidates:
        found.setdefault(one.system, one)
    return list(found.values())


# ----------------------------------------------------------------------------- sentences


def measured(one: Candidate, ranking: Ranking, demand: Demand, by: By) -> str:
    """Return a line for a configuration that was just measured.

    Args:
        ranking: of all configurations that were measured so far, this one included.
    """
    line = f"{one.title}: {_time(one)}, {_cost(one, by)}; {excess(one, demand) or 'meets it'}"
    return f"{line}, the best so far" if [one] == ranking.meeting[:1] else line


def excess(one: Candidate, demand: Demand) -> str:
    """Return by how much a candidate exceeds which limit, as text; "" if it meets the demand."""
    late, lossy = one.too_slow_ms(demand), one.too_lossy(demand)
    over = ([f"{late:.3g} ms over"] if late else []) + ([f"loss {lossy:.3g} over"] if lossy else [])
    return ", ".join(over)


def sentence(ranking: Ranking, demand: Demand, by: By, complete: bool = True) -> str:
    """Return the advice as text: the best system and its cost, or the nearest one's excess.

    Args:
        complete: all systems were measured that were asked for.
    """
    if not ranking.meeting:
        return _nothing(ranking, demand, by, complete)
    best = ranking.meeting[0]
    said = f"Use {best.title}: {_time(best)}{_allowed(demand)}, {_cost(best, by)}."
    fastest = min(ranking.meeting, key=lambda one: one.tpot.value)
    if fastest.tpot.value < best.tpot.value:
        said += f"  The fastest, {fastest.title}, takes {_time(fastest)}: {_cost(fastest, by)}."
    exact = ranking.lossless
    if exact is not None and not any(one.lossless for one in ranking.meeting):
        takes = f"{_time(exact)}{_late(exact, demand)}"
        said += f"  The fastest lossless one, {exact.title}, takes {takes}."
    return said + _beyond(best, demand, by)


def _beyond(best: Candidate, demand: Demand, by: By) -> str:
    """Return a warning if the best candidate's interval exceeds a limit that its mean keeps."""
    over = []
    limits = ((best.tpot, demand.tpot_ms, "ms"), (best.loss, demand.loss, UNITS[by]))
    for figure, limit, unit in limits:
        if figure is not None and figure.high is not None and limit is not None:
            over += [f"{figure.high:.3g} {unit}"] if figure.high > limit else []
    if not over:
        return ""
    return f"  Other prompts may take it over: its interval ends at {' and '.join(over)}."


def _nothing(ranking: Ranking, demand: Demand, by: By, complete: bool) -> str:
    if not ranking.others:
        return "No system could be run here." if complete else "No system was measured yet."
    nearest = ranking.others[0]
    lacks = []
    if late := nearest.too_slow_ms(demand):
        lacks.append(f"{late:.3g} ms ({late / (demand.tpot_ms or 1):.0%}) over the budget")
    if lossy := nearest.too_lossy(demand):
        limit = f"the limit of {demand.loss:g} {UNITS[by]}"
        lacks.append(
            f"and its loss is not known, for {limit}" if nearest.loss is None
            else f"{lossy:.3g} over {limit}"
        )  # fmt: skip
    return (
        f"No system {'' if complete else 'measured so far '}meets this.  The nearest is "
        f"{nearest.title}: {_time(nearest)}, {_cost(nearest, by)}; {' and '.join(lacks)}."
    )


def _time(one: Candidate) -> str:
    return f"{one.tpot.value:.4g} ms a token"


def _late(one: Candidate, demand: Demand) -> str:
    late = one.too_slow_ms(demand)
    return f", {late:.3g} ms over the budget" if late else ""


def _allowed(demand: Demand) -> str:
    return "" if demand.tpot_ms is None else f" of {demand.tpot_ms:g} allowed"


def _cost(one: Candidate, by: By) -> str:
    if one.lossless:
        return "lossless"
    if one.loss is None:
        return "its accuracy loss is not known"
    return f"{spread(one.loss)} {UNITS[by]}"


def spread(figure: Estimate) -> str:
    """Return a figure as text with half the width of its interval."""
    half = "" if figure.half is None else f" ± {figure.half:.2g}"
    return f"{figure.value:.3g}{half}"
