"""A calibrated profile's numbers, by hand, from measured times of one's own choice."""

import datetime
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.machines import profile as module
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


@pytest.mark.parametrize("card", [None, SimpleNamespace(name="Card 9", memory=lambda: (1, 24e9))])
def test_a_whole_profile_says_how_each_number_was_measured(
    card: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "processor", lambda: "Chip")
    monkeypatch.setattr(module, "available_bytes", lambda: 31 * 10**9)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    disk = {(0, 1): 80e-6, (BLOCKS[-1], 1): 1.5e9, (64 << 10, 16): 2.5e9}
    host = {OpKind.EXPERT: (Point(rows=1, ns=300_000), Point(rows=16, ns=2_400_000))}
    times = measured(host=host)
    found = profile_of(times, RECORD, SHAPE, disk, 0.05, None, card, 1.25 if card else None)
    today = found["calibration"]["date"]
    assert today == datetime.date.today()
    said = f"moebench calibrate, {today}"

    def quantity(number: float, unit: str, how: str) -> dict[str, Any]:
        number = pytest.approx(number, rel=5e-4)
        return {"value": number, "unit": unit, "source": f"{said}: {how}", "badge": "calibrated"}

    def count(number: int, how: str) -> dict[str, Any]:
        return {"value": number, "unit": "1", "source": how, "badge": "calibrated"}

    gflop = 2 * 3 * 4096 * 14336
    one_row = "one row of one expert after another"
    one = (quantity(15, "GB/s", one_row),
           quantity(gflop * 64 / 1.6e6, "GFLOPS", "64 rows of one expert"))  # fmt: skip
    on_host = one
    if card:
        on_host = (quantity(10, "GB/s", one_row),
                   quantity(gflop * 16 / 2.4e6, "GFLOPS", "16 rows of one expert"))  # fmt: skip
    ideal = quantity(1, "1", "the measured rate is what is reached")
    zero = quantity(0, "us", "within the measured times of operations")
    blocks = "64 KiB x 16: 2.5 GB/s; 4096 KiB x 1: 1.5 GB/s"
    row = "records in a row"
    assert found == {
        "name": "this computer, Card 9" if card else "this computer",
        "description": "Chip, measured with a test",
        "gpu": {
            "name": "Card 9" if card else "Chip, one thread",
            "memory": quantity(24 if card else 31, "GB", "its memory" if card else "what is free"),
            "reserved_memory": quantity(module.WORKSPACE_BYTES / 1e9 if card else 0.001, "GB",
                                        "what runs keep free"),
            "bandwidth": one[0], "large_read_efficiency": ideal, "small_read_efficiency": ideal,
            "tensor_bf16": one[1], "tensor_efficiency": ideal,
        },
        "link": {
            "name": "link of Card 9" if card else "the disk",
            "pinned_h2d": quantity(2, "GB/s", row), "pinned_d2h": quantity(2, "GB/s", row),
            "pageable_h2d": quantity(1.25 if card else 2, "GB/s", row),
            "in_engine_efficiency": ideal,
            "copy_fixed": quantity(200, "us", "a record alone, beyond one in a row"),
        },
        "host": {
            "name": "Chip, one thread", "cores": count(6, said),
            "memory": quantity(31, "GB", "what is free"), "gemv_bandwidth": on_host[0],
            "peak_fp32": on_host[1], "gemm_efficiency": ideal,
            "handoff": quantity(11, "us", "handing over to a thread"),
        },
        "disk": {
            "name": "the disk of the scratch folder",
            "queue1_bandwidth": quantity(1.5, "GB/s", blocks),
            "max_bandwidth": quantity(2.5, "GB/s", blocks),
            "access_latency": quantity(80, "us", "4096 bytes, one at a time"),
        },
        "software": {"lean": {
            "name": "lean",
            "description": "moebench's own engine, whose control thread computes the device's",
            "launch": quantity(2, "us", "between two operations"),
            "sync": quantity(5, "us", "from an end to going on"),
            "decision": quantity(3, "us", "before the first expert"),
            "copy_submit": quantity(11, "us", "handing over a copy"),
            "hook": zero, "layer": zero, "expert": zero, "waits_each_layer": False,
            **{f"launches_{part}": count(1, "an operation is one call")
               for part in ("attention", "gate", "expert", "shared", "head")},
        }},
        "calibration": {
            "date": today,
            "error": quantity(0.05, "1", "a held-out token of the resident model: +5.0%"),
            "machine": "Chip, 6 cores",
        },
        "measured": times.model_dump(mode="json"),
    }  # fmt: skip


def test_a_profile_is_written_as_it_is_read_by_people(tmp_path: Path) -> None:
    """In its own order and letters, with equal parts in full, with lines of up to 100 letters."""
    same = {"value": 2, "unit": "µs"}
    long = " ".join(["word"] * 19)
    given = {"name": "é", "gpu": {"z": same, "a": same}, "about": long}
    write_profile(given, tmp_path / "x.yaml")
    part = "    value: 2\n    unit: µs\n"
    assert (tmp_path / "x.yaml").read_text(encoding="utf-8") == (
        f"name: é\ngpu:\n  z:\n{part}  a:\n{part}about: {long}\n"
    )
