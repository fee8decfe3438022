"""Builds a hardware profile, as a mapping for YAML, from measurements of this computer."""

import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from moebench.harness.machines.disk import BLOCKS
from moebench.harness.run.document import processor
from moebench.substrate.files import write_text
from moebench.substrate.machines.accelerator import WORKSPACE_BYTES, Accelerator
from moebench.substrate.machines.free_memory import available_bytes
from moebench.substrate.machines.measured_times import Measured, Point
from moebench.substrate.machines.protocol import OpKind
from moebench.substrate.models.expert_store import ALIGNMENT
from moebench.substrate.models.shape import ModelShape


def profile_of(
    measured: Measured, record_bytes: int, shape: ModelShape, disk: dict[tuple[int, int], float],
    error: float, link_gb_s: float | None, card: Accelerator | None = None,
    pageable_gb_s: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the profile's mapping; roofline numbers follow from the measured operations.

    Args:
        record_bytes: an expert's.
        disk: from `disk_rates`.
        error: of the sum of the parts, as a share of a token that took no part.
        link_gb_s: the emulated link's rate in GB/s, if there is one.
        card: the measured GPU; None if the processor is the device.
        pageable_gb_s: rate of its copies from pageable memory, in GB/s.
    """
    today = datetime.date.today()
    source = f"moebench calibrate, {today}"

    def quantity(value: float, unit: str, how: str) -> dict[str, Any]:
        value = float(f"{value:.4g}")
        return {"value": value, "unit": unit, "source": f"{source}: {how}", "badge": "calibrated"}

    def count(value: int, how: str) -> dict[str, Any]:
        return {"value": value, "unit": "1", "source": how, "badge": "calibrated"}

    def rates(expert: Sequence[Point]) -> tuple[dict[str, Any], dict[str, Any]]:
        one = record_bytes / expert[0].ns  # bytes a ns, or GB/s
        most = 2 * shape.expert_params * expert[-1].rows / expert[-1].ns
        return (
            quantity(one, "GB/s", "one row of one expert after another"),
            quantity(most, "GFLOPS", f"{expert[-1].rows} rows of one expert"),
        )

    link = record_bytes / measured.load_after_ns
    fixed = max(0.0, measured.load_ns - measured.load_after_ns)
    free = (available_bytes() or 0) / 1e9
    name = "this computer" if link_gb_s is None else f"this computer, link of {link_gb_s:g} GB/s"
    cpu = processor()
    blocks = "; ".join(
        f"{block >> 10} KiB x {depth}: {rate / 1e9:.3g} GB/s"
        for (block, depth), rate in sorted(disk.items())
        if block
    )
    ideal = quantity(1, "1", "the measured rate is what is reached")
    zero = quantity(0, "us", "within the measured times of operations")
    launches = {
        f"launches_{part}": count(1, "an operation is one call")
        for part in ("attention", "gate", "expert", "shared", "head")
    }
    bandwidth, compute = rates(measured.device[OpKind.EXPERT])
    host_bandwidth, host_compute = bandwidth, compute
    device, memory, reserved, below = f"{cpu}, one thread", free, 1e-3, "the disk"
    if link_gb_s is not None:
        below = f"emulated, {link_gb_s:g} GB/s"
    if card is not None:
        host_bandwidth, host_compute = rates(measured.host[OpKind.EXPERT])
        device, name, below = card.name, f"this computer, {card.name}", f"link of {card.name}"
        memory, reserved = card.memory()[1] / 1e9, WORKSPACE_BYTES / 1e9
    return {
        "name": name,
        "description": f"{cpu}, measured with {measured.what}",
        "gpu": {
            "name": device,
            "memory": quantity(memory, "GB", "what is free" if card is None else "its memory"),
            "reserved_memory": quantity(reserved, "GB", "what runs keep free"),
            "bandwidth": bandwidth,
            "large_read_efficiency": ideal,
            "small_read_efficiency": ideal,
            "tensor_bf16": compute,
            "tensor_efficiency": ideal,
        },
        "link": {
            "name": below,
            "pinned_h2d": quantity(link, "GB/s", "records in a row"),
            "pinned_d2h": quantity(link, "GB/s", "records in a row"),
            "pageable_h2d": quantity(pageable_gb_s or link, "GB/s", "records in a row"),
            "in_engine_efficiency": ideal,
            "copy_fixed": quantity(fixed / 1e3, "us", "a record alone, beyond one in a row"),
        },
        "host": {
            "name": f"{cpu}, one thread",
            "cores": count(os.cpu_count() or 1, source),
            "memory": quantity(free, "GB", "what is free"),
            "gemv_bandwidth": host_bandwidth,
            "peak_fp32": host_compute,
            "gemm_efficiency": ideal,
            "handoff": quantity(measured.submit_ns / 1e3, "us", "handing over to a thread"),
        },
        "disk": {
            "name": "the disk of the scratch folder",
            "queue1_bandwidth": quantity(disk[BLOCKS[-1], 1] / 1e9, "GB/s", blocks),
            "max_bandwidth": quantity(
                max(v for k, v in disk.items() if k[0]) / 1e9, "GB/s", blocks
            ),
            "access_latency": quantity(disk[0, 1] * 1e6, "us", f"{ALIGNMENT} bytes, one at a time"),
        },
        "software": {
            "lean": {
                "name": "lean",
                "description": "moebench's own engine, whose control thread computes the device's",
                "launch": quantity(measured.gap_ns / 1e3, "us", "between two operations"),
                "sync": quantity(measured.wake_ns / 1e3, "us", "from an end to going on"),
                "decision": quantity(measured.decision_ns / 1e3, "us", "before the first expert"),
                "copy_submit": quantity(measured.submit_ns / 1e3, "us", "handing over a copy"),
                "hook": zero,
                "layer": zero,
                "expert": zero,
                "waits_each_layer": False,
                **launches,
            }
        },
        "calibration": {
            "date": today,
            "error": quantity(
                abs(error), "1", f"a held-out token of the resident model: {error:+.1%}"
            ),
            "machine": f"{cpu}, {os.cpu_count()} cores",
        },
        "measured": measured.model_dump(mode="json"),
    }


def write_profile(profile: dict[str, Any], out: Path) -> None:
    """Write a profile to a file for ``--machine FILE``."""
    write_text(
        out, yaml.dump(profile, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=100)
    )


class _Plain(yaml.SafeDumper):
    """YAML dumper that writes equal parts in full instead of as aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Always."""
        return True
