"""Distributions of decode throughput over tokens: the curves of DuoServe-MoE, Fig. 6.

A mean does not show how tokens differ; a system that predicts experts varies more than one that
loads them all on demand (section 6.2).  Curves come from the samples that the
store keeps beside its runs.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from moebench.results.document import Document
from moebench.results.samples import TokenSample, read_samples

#: A curve's steps at most: a hundredth of the tokens each, however many were decoded.
STEPS = 100


class Point(NamedTuple):
    """The share of a run's decoded tokens that came at this speed or slower."""

    tokens_per_s: float
    share: float


#: A cumulative distribution by speed, from share 0 to share 1.
Curve = Sequence[Point]


def load(directory: Path, runs: Iterable[Document]) -> dict[str, Curve]:
    """The curves of the runs, by run id, that have samples of decoded tokens.

    Args:
        directory: the store's folder.
        runs: its run documents.

    Raises:
        InputError: a file of samples is damaged.
    """
    found = {}
    for run in runs:
        # One run at a time: a sweep's samples together need not fit into memory.
        samples = read_samples(directory, run["run_id"])
        if samples and (points := curve(samples, run["spec"]["batch"])):
            found[run["run_id"]] = points
    return found


def curve(samples: Iterable[TokenSample], batch: int) -> Curve:
    """The distribution of decode throughput over tokens; empty where nothing was decoded.

    A decoded step gives every sequence of its batch a token: batch / step time, for each of them.
    Prefill (step 0) is left out, as in the paper.
    """
    speeds = sorted(batch * 1e9 / sample.ns for sample in samples if sample.step > 0)
    if not speeds:
        return []
    steps = min(len(speeds), STEPS)
    # Always a speed that occurred, never one between two: a curve shows no speed that no token had.
    last = [-(-step * len(speeds) // steps) - 1 for step in range(1, steps + 1)]
    points = [Point(speeds[at], step / steps) for step, at in enumerate(last, 1)]
    return [Point(speeds[0], 0.0), *points]
