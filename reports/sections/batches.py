"""Throughput over the batch: tokens/s of a store's runs, where their order changes, exponents."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, NamedTuple

from moebench.results.document import Document, dig, system_of

TITLE = "Throughput over the batch"

CAPTION = (
    "Decoded tokens/s, the batch over the time of its token; both axes are logarithmic. An "
    "exponent of TPOT is its slope between neighbouring batches: at 0 a token takes as long in "
    "every batch, at 1 a larger batch gains nothing."
)

#: Batches of a system from which on its machine has a chart.
LEAST_BATCHES = 3

#: Times of tokens, in ms, by batch, then by system, then by machine.
Times = Mapping[str, Mapping[str, Mapping[int, float]]]


class Crossing(NamedTuple):
    """From this batch on, one system makes more tokens/s than another that made as many or more."""

    batch: int
    faster: str
    slower: str


def times_of(runs: Sequence[Document]) -> Times:
    """Return TPOT by machine, with its model, then by system, then by ascending batch."""
    found: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for run in sorted(runs, key=lambda run: int(dig(run, "spec.batch") or 0)):
        tpot = dig(run, "metrics.tpot_ms.mean")
        if tpot:
            spec = run["spec"]
            place = f"{spec['machine']}, {spec['model']}"
            found[place][system_of(spec)][int(spec["batch"])] = float(tpot)
    return found


def speeds(times: Mapping[int, float]) -> dict[int, float]:
    """Return decoded tokens/s by batch: the batch over the time of its token."""
    return {batch: 1e3 * batch / ms for batch, ms in times.items()}


def exponents(times: Mapping[int, float]) -> dict[tuple[int, int], float]:
    """Return the exponent of TPOT over the batch between neighbouring batches.

    0 is a token whose time does not depend on the batch, 1 a batch that gains nothing.
    """
    return {
        (few, many): math.log(times[many] / times[few]) / math.log(many / few)
        for few, many in pairwise(sorted(times))
    }


def crossings(systems: Mapping[str, Mapping[int, float]]) -> list[Crossing]:
    """Return where the order of two systems by tokens/s changes, from one batch to the next.

    Args:
        systems: tokens/s by batch; only batches that both have count.
    """
    found = []
    for one, other in combinations(systems, 2):
        both = sorted({*systems[one]} & {*systems[other]})
        for before, at in pairwise(both):
            was = systems[one][before] - systems[other][before]
            now = systems[one][at] - systems[other][at]
            if now > 0 >= was:
                found.append(Crossing(at, one, other))
            elif now < 0 <= was:
                found.append(Crossing(at, other, one))
    return sorted(found)


def drawn(times: Times) -> Times:
    """Return the machines on which several systems ran, and at least one with three batches."""
    return {
        place: systems
        for place, systems in times.items()
        if len(systems) > 1 and any(len(of) >= LEAST_BATCHES for of in systems.values())
    }


def order(systems: Mapping[str, Mapping[int, float]]) -> str:
    """Return a sentence on where the order of a machine's systems changes.

    Args:
        systems: TPOT in ms by batch.
    """
    found = defaultdict(list)
    for batch, faster, slower in crossings({name: speeds(of) for name, of in systems.items()}):
        found[batch, slower].append(faster)
    changes = [
        f"at {n} {' and '.join(them)} {'passes' if len(them) == 1 else 'pass'} {one}"
        for (n, one), them in found.items()
    ]
    return f"Order: {'; '.join(changes) or 'it never changes'}."


def headers(systems: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Return the headers of a machine's table."""
    return ["system", *map(str, _batches(systems)), "largest exponent of TPOT"]


def lines(systems: Mapping[str, Mapping[int, float]]) -> list[list[str]]:
    """Return a machine's table: tokens/s of each system by batch, and the largest exponent."""
    found = []
    for name, of in systems.items():
        made, grows = speeds(of), exponents(of)
        cells = [f"{made[n]:.3g}" if n in made else "" for n in _batches(systems)]
        found.append([name, *cells, f"{max(grows.values()):.2f}" if grows else ""])
    return found


def _batches(systems: Mapping[str, Mapping[int, float]]) -> list[int]:
    return sorted({batch for of in systems.values() for batch in of})


def rows(systems: Mapping[str, Mapping[int, float]]) -> list[dict[str, Any]]:
    """Return the points of a machine's chart."""
    return [
        {"system": name, "batch": batch, "speed": speed}
        for name, of in systems.items()
        for batch, speed in speeds(of).items()
    ]
