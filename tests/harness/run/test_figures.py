"""Every number of a run's document is a figure of `results.metrics`, or is known not to be one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moebench.results.metrics import METRICS
from tests.harness.commands import SMALL, call

#: Numbers of a document that have no row, by the path that holds them: why.
NO_ROW = {
    "metrics.lanes": "a key for each lane",
    "metrics.stall_ms": "a key for each cause",
    "metrics.decode": "lanes, causes and bytes of decode alone",
    "metrics.experts": "counts of each phase",
    "metrics.prefetch": "counts of prefetches",
    "metrics.routed_ahead": "counts of layers routed ahead",
    "metrics.host_memory": "counts of host memory before the disk",
    "metrics.process": "what is known of a package's own process",
    "metrics.energy": "energy of each part",
    "metrics.device_ms": "the two parts of the device's busy time",
    "metrics.utilisation.prefill": "S-MBU and S-MFU of the prefill, by lane",
    "metrics.utilisation.decode.device.gb": "from which its S-MBU follows",
    "metrics.utilisation.decode.device.tflop": "from which its S-MFU follows",
    "metrics.utilisation.decode.host.gb": "from which its S-MBU follows",
    "metrics.utilisation.decode.host.tflop": "from which its S-MFU follows",
    "metrics.utilisation.decode.host.s_mfu": "far below its S-MBU where few rows are computed",
    "metrics.utilisation.decode.h2d.gb": "from which its S-MBU follows",
    "accuracy.n": "sample size of the score, shown with it",
    "accuracy.chance": "score of guessing, shown with the score",
    "accuracy.items": "a list for each question",
    "accuracy.rouge1": "one workload's second score",
    "accuracy.rouge2": "one workload's second score",
    "accuracy.true1": "one workload's second score",
    "accuracy.true2": "one workload's second score",
    "bound.programs": "for which tokens the linear programs were solved, and how exactly",
    "memory": "what the run offered to its system",
    "measured": "steadiness of a measurement",
    "interval.fields": "a list of the profile's numbers",
    "interval.order": "how much other orders move a latency, in its interval",
    "spec": "options, not figures",
    "provenance": "origin, not figures, except wall_s",
    "evaluation": "an evaluator's own metrics",
}

pytestmark = pytest.mark.usefixtures("tiny_models")


def numbers(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all numbers of a document; a list and null are one number each."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from numbers(one, f"{path}.{key}" if path else key)
    elif not isinstance(value, str | bool):
        yield path


def test_a_run_has_no_number_without_a_row_or_a_reason_and_no_row_without_a_number(
    here: Path,
) -> None:
    document = call("run", "--system", "smoe", *SMALL, "--json").json
    found = {*numbers(document)} - {"notes"}
    rows = {metric.path for metric in METRICS if metric.path}
    assert all(NO_ROW.values())
    assert not [path for path in rows - {"provenance.wall_s"} for known in NO_ROW
                if f"{path}.".startswith(f"{known}.")]  # fmt: skip
    explained = {
        path for path in found for known in NO_ROW if f"{path}.".startswith(f"{known}.")
    }  # fmt: skip
    assert rows - found == set()
    assert found - rows - explained == set()
