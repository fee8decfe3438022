"""A calibrated profile's numbers, by hand, from measured times of one's own choice."""

import os
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.machines.disk import BLOCKS
from moebench.harness.machines.profile import profile_of, write_profile
from moebench.substrate.machines.measured_times import Measured, Point, shape_hash
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.machines.protocol import OpKind
from moebench.substrate.models.catalogue import model_shape

SHAPE = model_shape("mixtral-8x7b")
RECORD = 3_000_000


def measured(**changes: Any) -> Measured:
    device = {kind: (Point(rows=1, ns=7000),) for kind in OpKind if kind is not OpKind.EXPERT}
    device[OpKind.EXPERT] = (Point(rows=1, ns=200_000), Point(rows=64, ns=1_600_000))
    times = {
        "operation_ns": 0.0, "load_ns": 1_700_000.0, "load_after_ns": 1_500_000.0,
        "submit_ns": 11_000.0, "gap_ns": 2_000.0, "decision_ns": 3_000.0, "wake_ns": 5_000.0,
    }  # fmt: skip
    return Measured(shape=shape_hash(SHAPE), what="a test", device=device, **times | changes)


def profile(link_gb_s: float | None = None, error: float = -0.03, **changes: Any) -> dict[str, Any]:
    disk = {(0, 1): 80e-6, (BLOCKS[-1], 1): 1.5e9, (BLOCKS[-1], 4): 2.5e9, (BLOCKS[0], 1): 0.5e9}
    return profile_of(measured(**changes), RECORD, SHAPE, disk, error, link_gb_s)


def value(found: dict[str, Any], path: str) -> Any:
    for step in path.split("."):
        found = found[step]
    return found["value"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("gpu.bandwidth", 15.0),  # 3 MB in 200 us
        ("host.gemv_bandwidth", 15.0),
        ("gpu.tensor_bf16", 2 * 3 * 4096 * 14336 * 64 / 1_600_000),  # GFLOP/s of 64 rows
        ("host.peak_fp32", 2 * 3 * 4096 * 14336 * 64 / 1_600_000),
        ("link.pinned_h2d", 2.0), ("link.pinned_d2h", 2.0), ("link.pageable_h2d", 2.0),
        ("link.copy_fixed", 200.0), ("host.handoff", 11.0),
        ("disk.queue1_bandwidth", 1.5), ("disk.max_bandwidth", 2.5), ("disk.access_latency", 80.0),
        ("software.lean.launch", 2.0), ("software.lean.sync", 5.0),
        ("software.lean.decision", 3.0), ("software.lean.copy_submit", 11.0),
        ("software.lean.hook", 0.0), ("software.lean.layer", 0.0), ("software.lean.expert", 0.0),
        ("software.lean.launches_expert", 1), ("gpu.large_read_efficiency", 1.0),
        ("gpu.reserved_memory", 0.001), ("calibration.error", 0.03),
        ("host.cores", os.cpu_count()),
    ],
)  # fmt: skip
def test_each_number_follows_from_the_measured_times(path: str, expected: float) -> None:
    assert value(profile(), path) == pytest.approx(expected, rel=5e-4)  # four digits


def test_a_record_alone_is_never_faster_than_one_in_a_row() -> None:
    assert value(profile(load_ns=1_400_000.0), "link.copy_fixed") == 0


def test_an_emulated_link_is_named() -> None:
    assert profile()["name"] == "this computer"
    assert profile()["link"]["name"] == "the disk"
    assert profile(4.0)["name"] == "this computer, link of 4 GB/s"
    assert profile(4.0)["link"]["name"] == "emulated, 4 GB/s"


def test_the_written_file_is_a_profile(tmp_path: Path) -> None:
    found, file = profile(), tmp_path / "here.yaml"
    write_profile(found, file)
    assert "&id" not in file.read_text()  # no aliases
    read = load_profile(str(file))
    assert read.badge == "calibrated"
    assert read.measured is not None
    assert read.measured.device[OpKind.EXPERT][1].ns == 1_600_000
    assert read.calibration is not None
    assert "-3.0%" in str(found["calibration"]["error"]["source"])
