"""Functions that read figures from runs and from charged components, shared by all papers."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from moebench.harness.reproduce.evidence import Evidence, Experiment, Runs
from moebench.results.claims import Measured
from moebench.substrate.analysis.components import documents

First = TypeVar("First")
Result = TypeVar("Result")
Rest = ParamSpec("Rest")

#: A function of runs that returns a figure, and one of evidence that measures a claim.
Figure = Callable[[Runs], float]
Measure = Callable[[Evidence], Measured]

#: A function that describes the conditions of runs; its second argument is added to them.
Conditions = Callable[[Runs, str], str]

#: Paths in a run's document: times in ms, counts, shares from 0 to 1, scores from 0 to 100.
TPOT, TTFT, E2E = "metrics.tpot_ms.mean", "metrics.ttft_ms.mean", "metrics.e2e_ms"
LOAD, STALL = "metrics.load_ms", "metrics.decode.stall_ms.load"
LINK, HOST = "metrics.decode.lanes.h2d", "metrics.decode.lanes.host"
DECODED, SCORE = "metrics.decoded_tokens", "accuracy.score"


def curried(
    function: Callable[Concatenate[First, Rest], Result],
) -> Callable[Rest, Callable[[First], Result]]:
    """Decorate a function so that a call without its first argument returns one that takes it.

    The first argument is the runs of a `Figure` or the evidence of a `Measure`.
    """

    @wraps(function)
    def given(*args: Rest.args, **kwargs: Rest.kwargs) -> Callable[[First], Result]:
        return lambda first: function(first, *args, **kwargs)

    return given


@curried
def measured(
    evidence: Evidence, /, figure: Figure, *experiments: Experiment, said: str = "",
    conditions: Conditions = lambda runs, said: said, **of: Any,
) -> Measured:  # fmt: skip
    """Measure a figure of the runs of some experiments, with one sample for each seed.

    Args:
        said: text that the claim adds to the conditions.
        conditions: describes the runs; by default it returns ``said`` alone.
        of: fields of the runs' specs, as in `Runs.of`; all runs by default.
    """
    runs = evidence.runs(*experiments).of(**of)
    return runs.per_seed(figure, conditions(runs, said))


def percent(ratio: float) -> float:
    """Convert a ratio to a change in percent: 1.2 to 20."""
    return 100 * (ratio - 1)


def difference(first: Figure, second: Figure) -> Figure:
    """Return a function from runs to the first figure minus the second one."""
    return lambda runs: first(runs) - second(runs)


def share_of_decode(runs: Runs, path: str) -> float:
    """Return a time as a share of the decode time of all runs, in percent.

    Args:
        path: document path of the time, in ms over all decoded tokens of a run.
    """
    steps, tpot = runs.values(DECODED), runs.values(TPOT)
    return 100 * sum(runs.values(path)) / sum(n * ms for n, ms in zip(steps, tpot, strict=True))


def components(what: str, **of: str) -> list[dict[str, Any]]:
    """Return the rows of charged times for a component of the papers (`analysis.components`).

    Args:
        of: other fields that the rows must match: source, machine.
    """
    wanted = {"what": what, **of}
    return [row for row in documents() if wanted.items() <= row.items()]
