"""Estimates of the wall time of runs and sweeps: pure functions of measured rates and of counts.

`harness.sweep.forecast` measures the rates on this computer, or reads them from stored runs.
Measured rates are CPU time, since the wall time of a short measurement depends on the scheduler.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

#: CPU time in seconds to start a worker process: import the libraries.
START_S = 3.0

#: Cost of a batch's prefill and scoring, in decoded tokens; used where only a sum is known.
PREFILL_PASSES = 5

#: Epochs that training uses completely, as most systems do, and most of those that stop early.
ALL_EPOCHS, MOST_EPOCHS = 45, 55


def usual_epochs(tokens: float) -> float:
    """Return the number of epochs after which training on ``tokens`` tokens usually stops early.

    FlashMoE's networks for S3 stopped after 17 to 47 epochs of 8,440 tokens, and after 13 to 15 of
    59,000 (512 texts): the power of the tokens is that between these two.
    """
    return float(min(MOST_EPOCHS, 15 * (60_000 / max(tokens, 1)) ** 0.4))


#: Time of a pass in a replay for the interval, as a share of the run's own pass.
INTERVAL_SHARE = 0.5


class Rates(NamedTuple):
    """Time of a run's parts: to open it, for each batch, and for each decoded token of a batch."""

    start_s: float
    batch_s: float
    pass_s: float


class Counts(NamedTuple):
    """Work of a run: batches, decoded tokens of each, and short replays for the interval.

    Attributes:
        replayed: decoded tokens of all short replays together.
    """

    batches: int
    passes: int
    replayed: int = 0


class Writing(NamedTuple):
    """Time to generate and read the texts that a system learns from.

    Attributes:
        prompts_s, pass_s: for the prompts of a group of texts, and for each token after them.
        read_s: to read one text and record its routing.
    """

    prompts_s: float
    pass_s: float
    read_s: float


class Training(NamedTuple):
    """Training of a policy's networks: time of one token in one epoch of all, and most epochs."""

    token_s: float
    epochs: int


class Part(NamedTuple):
    """A file that cells make once and then share, such as generated texts or a trained network."""

    key: Hashable
    seconds: float


class Expected(NamedTuple):
    """Expected time of a cell.

    Attributes:
        kind: cells of one kind have the same errors of their estimates.
        seconds: without its parts.
        parts: files that it makes unless an earlier cell has made them.
        alone: no other cell runs at the same time.
    """

    kind: Hashable
    seconds: float
    parts: tuple[Part, ...] = ()
    alone: bool = False


def run_seconds(counts: Counts, rates: Rates) -> float:
    """Return the time of a run in seconds, without learning."""
    each = rates.batch_s + counts.passes * rates.pass_s
    return rates.start_s + counts.batches * each + counts.replayed * rates.pass_s * INTERVAL_SHARE


def rates_of(wall_s: float, counts: Counts) -> Rates:
    """Return rates with which a stored run takes the wall time that it took."""
    pass_s = wall_s / (counts.batches * (counts.passes + PREFILL_PASSES))
    return Rates(0.0, PREFILL_PASSES * pass_s, pass_s)


def mean_rates(all_: Sequence[Rates]) -> Rates:
    """Return the mean of each rate."""
    return Rates(*(sum(column) / len(all_) for column in zip(*all_, strict=True)))


def writing_seconds(texts: int, tokens: int, together: int, rates: Writing) -> float:
    """Return the time to generate and read texts.

    Args:
        tokens: new tokens of each text.
        together: texts of a group.
    """
    groups = math.ceil(texts / together)
    return groups * (rates.prompts_s + (tokens - 1) * rates.pass_s) + texts * rates.read_s


def training_seconds(tokens: float, training: Training, stops_early: bool = True) -> float:
    """Return the time of training a policy on ``tokens`` tokens, in seconds.

    Args:
        stops_early: whether it ends before all of its epochs, if these are many; else its longest.
    """
    epochs = float(training.epochs)
    if stops_early and epochs > ALL_EPOCHS:
        epochs = min(epochs, usual_epochs(tokens))
    return training.token_s * tokens * epochs


def each_seconds(cells: Iterable[Expected]) -> list[float]:
    """Return the time of each cell; a shared file counts for the first cell that needs it."""
    made: set[Hashable] = set()
    found = []
    for cell in cells:
        seconds = cell.seconds
        for part in cell.parts:
            seconds += 0.0 if part.key in made else part.seconds
            made.add(part.key)
        found.append(seconds)
    return found


def makespan(times: Iterable[float], processes: int) -> float:
    """Return when the last task ends; each idle process takes the next task."""
    ends = [0.0] * max(1, processes)
    for seconds in times:
        ends.sort()
        ends[0] += seconds
    return max(ends)


def sweep_seconds(cells: Sequence[Expected], processes: int, start_s: float = START_S) -> float:
    """Return the wall time of a sweep; a cell waits for a file that another one is making.

    Args:
        start_s: time to start the workers.
    """
    if not cells:
        return 0.0
    made: dict[Hashable, float] = {}

    def end(cell: Expected, now: float) -> float:
        for part in cell.parts:
            now = max(now, made.setdefault(part.key, now + part.seconds))
        return now + cell.seconds

    ends = [0.0] * max(1, processes)
    for cell in cells:
        if not cell.alone:
            ends.sort()
            ends[0] = end(cell, ends[0])
    now = max(ends)
    for cell in cells:
        if cell.alone:
            now = end(cell, now)
    return start_s + now


def slowdown(load: float, processes: int, cores: int) -> float:
    """Return the wall time of each of several busy processes over its CPU time.

    Args:
        load: number of other runnable processes.
    """
    return max(1.0, (load + processes) / cores)


class Task(NamedTuple):
    """A cell of a sweep that runs: its kind, and its expected time in seconds.

    Its kind is None if it may wait for a file that another cell makes: the time that it takes then
    says nothing about other cells.
    """

    kind: Hashable
    seconds: float
    alone: bool = False


def remaining_seconds(
    tasks: Mapping[str, Task], taken: Mapping[str, float], running: Mapping[str, float],
    processes: int,
) -> float:  # fmt: skip
    """Return the remaining wall time of a sweep, corrected by the cells that have ended.

    The expected times of a kind are multiplied by the ratio of taken to expected time of its ended
    cells; those of a kind without one, by the ratio of all ended cells.

    Args:
        tasks: all cells, in their order.
        taken: wall times of the ended cells.
        running: time since the start of the running cells.
    """
    sums: dict[Hashable, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for cell, seconds in taken.items():
        if tasks[cell].kind is None:
            continue
        for key in ((tasks[cell].kind,), ()):
            sums[key][0] += seconds
            sums[key][1] += tasks[cell].seconds

    def left(cell: str) -> float:
        task = tasks[cell]
        took, expected = sums.get((task.kind,)) or sums.get(()) or (1.0, 1.0)
        factor = took / expected if expected else 1.0
        return max(0.0, task.seconds * factor - running.get(cell, 0.0))

    open_ = [*running, *(cell for cell in tasks if cell not in taken and cell not in running)]
    together = [left(cell) for cell in open_ if not tasks[cell].alone]
    return makespan(together, processes) + sum(left(cell) for cell in open_ if tasks[cell].alone)


def duration(seconds: float) -> str:
    """Return a duration as text in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
