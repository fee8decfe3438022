"""Effects of SMoE's α on TPOT (Fig. 10) and on accuracy (Table IV)."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

import numpy as np

from moebench.harness.reproduce.controls import CEILING, blind, hidden
from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.harness.reproduce.read import TPOT, curried, percent
from moebench.harness.reproduce.smoe.experiments import CONTROLS
from moebench.results.accuracy_table import ALPHA_TABLE, AccuracyRow, read_table
from moebench.results.claims import Measured
from moebench.results.paper_tables import SmoeScore, smoe_table_4, workload_of

#: The largest α at which accuracy changes little (§VI-B).
LITTLE_UP_TO = 0.35

#: Degree of the polynomial of §V-C.
DEGREE = 2


def curve(runs: Runs, setting: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of α of a setting, ascending, and the mean TPOT of each in ms."""
    by_alpha = runs.of(setting=setting).by("alpha")
    alphas = sorted(by_alpha)
    return np.array(alphas), np.array([by_alpha[alpha].mean(TPOT) for alpha in alphas])


def linearity(alphas: np.ndarray, times: np.ndarray) -> float:
    """Return R² of a straight line fitted to the points."""
    fit = np.polyval(np.polyfit(alphas, times, 1), alphas)
    spread = ((times - times.mean()) ** 2).sum()
    return float(1 - ((times - fit) ** 2).sum() / spread) if spread else 0.0


def fall(alphas: np.ndarray, times: np.ndarray) -> float:
    """Return the change of TPOT from the smallest α to the largest, in percent."""
    return percent(float(times[-1] / times[0]))


def pick_error(alphas: np.ndarray, times: np.ndarray) -> float:
    """Return the mean error of the α that a fit picks for a TPOT budget (Eq. 5).

    Each inner point in turn is left out of the fit, and its TPOT is the budget.  The fit picks the
    smallest α, in steps of 0.005, whose fitted TPOT is within the budget, or else the largest α.
    """
    errors = []
    grid = np.linspace(alphas[0], alphas[-1], round((alphas[-1] - alphas[0]) / 0.005) + 1)
    for i in range(1, len(alphas) - 1):
        fit = np.polyfit(np.delete(alphas, i), np.delete(times, i), DEGREE)
        within = grid[np.polyval(fit, grid) <= times[i]]
        errors.append(abs((within[0] if len(within) else grid[-1]) - alphas[i]))
    return fmean(errors)


@curried
def of_curve(
    runs: Runs, figure: Callable[[np.ndarray, np.ndarray], float], setting: str
) -> float:  # fmt: skip
    """Return a figure of a setting's curve of TPOT over α."""
    return figure(*curve(runs, setting))


# ----------------------------------------------------------------------------- Table IV


def paper_changes(setting: str, dataset: str | None = None) -> dict[float, float]:
    """Return the paper's change of accuracy from α = 0, in points, by α; None: all data sets."""
    rows = smoe_table_4()
    return changes(
        row for row in rows if row.setting == setting and dataset in (None, row.dataset)
    )  # fmt: skip


def changes(rows: Iterable[AccuracyRow | SmoeScore]) -> dict[float, float]:
    """Return the change of the mean score of some rows from α = 0, in points, by α."""
    scores: dict[float, list[float]] = {}
    for row in rows:
        scores.setdefault(row.alpha, []).append(row.score)
    return {alpha: fmean(of) - fmean(scores[0.0]) for alpha, of in scores.items()}


def above(changes: dict[float, float]) -> float:
    """Return the mean change above α = 0.35 less that up to it, in points."""
    beyond = [change for alpha, change in changes.items() if alpha > LITTLE_UP_TO]
    return fmean(beyond) - fmean(c for alpha, c in changes.items() if alpha <= LITTLE_UP_TO)


def largest(changes: dict[float, float]) -> float:
    """Return the largest absolute change up to α = 0.35."""
    return max(abs(change) for alpha, change in changes.items() if alpha <= LITTLE_UP_TO)


def our_rows(setting: str, workload: str | None) -> list[AccuracyRow]:
    """Return the rows of a workload in the committed α table; None: all generated families."""
    return [
        row
        for row in read_table(ALPHA_TABLE)
        if row.setting == setting
        and (row.generated if workload is None else row.workload == workload)
    ]


def at_floor(rows: Sequence[AccuracyRow]) -> bool:
    """Return whether the scores at α = 0 are at chance level, so that no loss could be seen."""
    return not any(
        row.score > (row.chance or 0) + 2 * row.stderr for row in rows if row.alpha == 0.0
    )


def with_room(rows: Sequence[AccuracyRow]) -> list[AccuracyRow]:
    """Return the rows of workloads that can show a loss: neither at a floor nor at a ceiling."""
    reasons = {row.workload: hidden(row.score, at_floor([row])) for row in rows if row.alpha == 0.0}
    return [row for row in rows if not reasons[row.workload]]


@curried
def loss_unseen(evidence: Evidence, setting: str) -> str:
    """Return why a loss of accuracy could not be seen on a setting's questions, or ""."""
    return blind(evidence, CONTROLS, setting)


@curried
def accuracy(
    evidence: Evidence, setting: str, dataset: str | None,
    figure: Callable[[dict[float, float]], float],
) -> Measured:  # fmt: skip
    """Measure a figure of accuracy changes by α; without a data set, on generated families.

    There is a sample for each workload; families that cannot show a loss are left out.
    """
    workload = None if dataset is None else workload_of("smoe", dataset)
    rows = our_rows(setting, workload)
    if not rows:
        raise MissingEvidenceError(
            f"{ALPHA_TABLE.name} has no row of {setting} {workload}; type: moebench accuracy "
            f"--settings {setting} --data-dir DIR"
        )
    if at_floor(rows):
        score = next(row for row in rows if row.alpha == 0.0)
        raise MissingEvidenceError(
            f"{score.model}'s scale model answers {score.score:.0f} % of {workload} "
            f"({score.n} questions; chance {score.chance or 0:.0f} %): no better than a guess, "
            "so that a loss could not be seen; needs the real model's weights (--weights DIR)"
        )
    room = with_room(rows)
    if not room:
        raise MissingEvidenceError(
            f"{rows[0].model}'s scale model answers more than {CEILING:g} % of {workload}: at the "
            "ceiling, where a loss is not seen"
        )
    names = list(dict.fromkeys(row.workload for row in room))
    said = (
        f"{' '.join(names)}, {rows[0].n} questions each, scale model; the committed table of "
        "moebench accuracy; families at a ceiling or floor left out"
    )
    if figure is largest:
        said += "; one figure: a maximum over α has no sample"
        return Measured.of([largest(changes(room))], "counted", said)
    samples = [figure(changes(row for row in room if row.workload == name)) for name in names]
    return Measured.of(samples, "counted", said, "workloads")
