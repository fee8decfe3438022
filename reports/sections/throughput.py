"""Distributions of decode throughput over tokens: the curves of DuoServe-MoE, Fig. 6.

A mean does not show how tokens differ; a system that predicts experts varies more than one that
loads them all on demand (section 6.2).  Curves are computed from the samples in the store.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from moebench.results.document import Document
from moebench.results.samples import TokenSample, read_samples

#: Most steps of a curve: each is at least a hundredth of the tokens.
STEPS = 100


class Point(NamedTuple):
    """A point of a curve: the share of decoded tokens at this speed or slower."""

    tokens_per_s: float
    share: float


#: A cumulative distribution by speed, from share 0 to share 1.
Curve = Sequence[Point]


def load(directory: Path, runs: Iterable[Document]) -> dict[str, Curve]:
    """Return the curves of the runs that have samples of decoded tokens, by run id.

    Args:
        directory: the store's folder.
        runs: its run documents.

    Raises InputError: a file of samples is damaged.
    """
    found = {}
    for run in runs:
        # Read one run at a time: a sweep's samples together may not fit into memory.
        samples = read_samples(directory, run["run_id"])
        if samples and (points := curve(samples, run["spec"]["batch"])):
            found[run["run_id"]] = points
    return found


def curve(samples: Iterable[TokenSample], batch: int) -> Curve:
    """Return the distribution of decode throughput over tokens; empty if nothing was decoded.

    A token's throughput is batch / step time.  Prefill (step 0) is excluded, as in the paper.
    """
    speeds = sorted(batch * 1e9 / sample.ns for sample in samples if sample.step > 0)
    if not speeds:
        return []
    steps = min(len(speeds), STEPS)
    # Use speeds that occurred, never interpolated ones.
    last = [-(-step * len(speeds) // steps) - 1 for step in range(1, steps + 1)]
    points = [Point(speeds[at], step / steps) for step, at in enumerate(last, 1)]
    return [Point(speeds[0], 0.0), *points]
