"""How the figures of every paper are read: from runs, and from what components are charged."""

from collections.abc import Callable
from typing import Any

from moebench.harness.reproduce.evidence import Evidence, Experiment, Runs
from moebench.results.claims import Measured
from moebench.substrate.analysis.components import documents

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


def measured(
    figure: Figure, *experiments: Experiment, said: str = "",
    conditions: Conditions = lambda runs, said: said, **of: Any,
) -> Measure:  # fmt: skip
    """Return what measures a figure of the runs of some experiments: a sample for each seed.

    Args:
        said: what the claim adds to the conditions.
        conditions: describes the runs' conditions; ``said`` alone by default.
        of: fields of the runs' specs, as in `Runs.of`; all runs by default.
    """

    def measure(evidence: Evidence) -> Measured:
        runs = evidence.runs(*experiments).of(**of)
        return runs.per_seed(figure, conditions(runs, said))

    return measure


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
