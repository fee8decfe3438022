"""Throughput over the batch: tokens/s of a store's runs, where their order changes, exponents.

``python -m moebench.reports.batches STORE FILE.svg`` draws the chart of the sweep `throughput` and
prints its caption and tables.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

from moebench.reports.figures.batches import over_batches
from moebench.reports.figures.style import system_colours
from moebench.reports.formats.svg import write_svg
from moebench.reports.page.static_figures import StaticFigure
from moebench.results.document import Document, dig, system_of
from moebench.results.store import Store
from moebench.substrate.errors import MoeBenchError, UsageError

TITLE = "decoded tokens/s over the batch"

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


def caption(times: Times) -> str:
    """Return the chart's caption: for each machine, where the order of systems changes."""
    said = []
    for place, systems in times.items():
        found = defaultdict(list)
        made = {name: speeds(of) for name, of in systems.items()}
        for batch, faster, slower in crossings(made):
            found[batch, faster].append(slower)
        changes = [f"at {n} {one} passes {' and '.join(them)}" for (n, one), them in found.items()]
        said.append(f"{place}: {'; '.join(changes) or 'the order never changes'}.")
    return " ".join(["Decoded tokens/s; both axes are logarithmic.", *said])


def table(times: Times) -> str:
    """Return the tables as Markdown: tokens/s by batch, and the largest exponent."""
    lines = []
    for place, systems in times.items():
        batches = sorted({batch for of in systems.values() for batch in of})
        head = ["system", *map(str, batches), "largest exponent of TPOT"]
        lines += ["", f"### {place}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for name, of in systems.items():
            made, grows = speeds(of), exponents(of)
            cells = [f"{made[n]:.3g}" if n in made else "" for n in batches]
            top = f"{max(grows.values()):.2f}" if grows else ""
            lines.append(f"| {' | '.join([name, *cells, top])} |")
    return "\n".join(lines)


def figure(times: Times) -> StaticFigure:
    """Return the chart with its rows."""
    rows = [
        {"machine": place, "system": name, "batch": batch, "speed": speed}
        for place, systems in times.items()
        for name, of in systems.items()
        for batch, speed in speeds(of).items()
    ]
    names = system_colours(dict.fromkeys(str(row["system"]) for row in rows))
    colours = {name: colour for name, (colour, _) in names.items()}
    return StaticFigure(TITLE, over_batches(colours), rows, {})


def main(arguments: Sequence[str]) -> int:
    """Draw the chart of a store, and print its caption and tables.

    Returns:
        the exit code: 2, and one line, for wrong arguments or a store without several batches.
    """
    try:
        if len(arguments) != 2:
            raise UsageError("expected two arguments: python -m moebench.reports.batches STORE SVG")
        store, file = map(Path, arguments)
        times = times_of(Store(store).runs(brief=True))
        if not any(len(of) > 1 for systems in times.values() for of in systems.values()):
            raise UsageError(
                f"{store}: no system with several batches; make them: moebench sweep throughput "
                f"--store {store}"
            )
        write_svg(figure(times), file)
    except MoeBenchError as error:
        print(f"moebench: {error}", file=sys.stderr)
        return 2
    print(f"{file}\n\n{caption(times)}\n{table(times)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
