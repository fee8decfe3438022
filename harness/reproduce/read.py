"""How the figures of every paper are read: from runs, and from what components are charged."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from moebench.harness.reproduce.evidence import Evidence, Experiment, Runs
from moebench.results.claims import Measured
from moebench.substrate.analysis.components import documents

First = TypeVar("First")
Result = TypeVar("Result")
Rest = ParamSpec("Rest")

#: A figure of some runs, and a claim's figure with its samples.
Figure = Callable[[Runs], float]
Measure = Callable[[Evidence], Measured]

#: Describes in words under which conditions runs were made; given what the claim itself says.
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
        said: what the claim adds to the conditions.
        conditions: describes the runs' conditions; ``said`` alone by default.
        of: fields of the runs' specs, as in `Runs.of`; all runs by default.
    """
    runs = evidence.runs(*experiments).of(**of)
    return runs.per_seed(figure, conditions(runs, said))


def percent(ratio: float) -> float:
    """The change that a ratio is, in percent: 20 for 1.2."""
    return 100 * (ratio - 1)


def difference(first: Figure, second: Figure) -> Figure:
    """One figure less another."""
    return lambda runs: first(runs) - second(runs)


def share_of_decode(runs: Runs, path: str) -> float:
    """A time over that of all decoded tokens, in percent.

    Args:
        path: of the time, in ms over all decoded tokens of a run.
    """
    steps, tpot = runs.values(DECODED), runs.values(TPOT)
    return 100 * sum(runs.values(path)) / sum(n * ms for n, ms in zip(steps, tpot, strict=True))


def components(what: str, **of: str) -> list[dict[str, Any]]:
    """What the cost model charges for a component that papers state (`analysis.components`).

    Args:
        of: other fields that the rows must have: source, machine.
    """
    wanted = {"what": what, **of}
    return [row for row in documents() if wanted.items() <= row.items()]
