"""Sparse memory bandwidth and model FLOPS utilisation (S-MBU, S-MFU) of a simulated run.

MoE-CAP (arXiv 2412.07067, its sparsity-aware metrics) counts what a step asks for: the weights of
the experts that were activated, all other weights that the pass multiplies, and the KV cache.

    S-MBU = (activated weights + KV cache, in bytes) / (time · peak bandwidth)
    S-MFU = FLOPs of the activated parameters       / (time · peak FLOPS)

MoE-CAP has one device.  Here each lane has its own share of the work: the device and the host what
they computed, the link the activated weights that crossed it.  The time is that of the phase, so
idle time of a lane lowers its utilisation.  A lane's peak is the profile's: the GPU's data sheet,
the bandwidth of pinned copies, and the rates that the host's processors reach.
"""

from typing import Any

from moebench.substrate.machines.costs import CostModel
from moebench.substrate.machines.protocol import Lane
from moebench.substrate.machines.timeline import Totals

Utilisation = dict[str, Any]


def utilisation(
    costs: CostModel, totals: Totals, seconds: float, unused_records: int
) -> dict[str, Utilisation]:
    """Return bytes, FLOPs, S-MBU and S-MFU of the device, the host and the link in one phase.

    Args:
        totals: sums over the phase.
        seconds: time of the phase.
        unused_records: experts that were copied to the device in the phase, but not activated.

    Returns:
        By lane: ``gb`` and ``tflop`` of activated work, ``s_mbu`` and ``s_mfu`` as shares; without
        FLOPs for the link, and without the link where records have several sizes, since counts do
        not say which of them were unused.
    """
    gpu, host, link = costs.profile.gpu, costs.profile.host, costs.profile.link
    peaks = {
        Lane.DEVICE: (gpu.bandwidth.bytes_per_s, gpu.tensor_bf16.flops_per_s),
        Lane.HOST: (host.gemv_bandwidth.bytes_per_s, host.peak_fp32.flops_per_s),
    }
    found: dict[str, Utilisation] = {}
    for lane, (bandwidth, flops_per_s) in peaks.items():
        done = [(costs.work(op), times[0]) for op, times in totals.computed[lane].values()]
        size = sum(work[0] * count for work, count in done)
        flops = sum(work[1] * count for work, count in done)
        found[lane.value] = _entry(size, bandwidth, seconds) | {
            "tflop": round(flops / 1e12, 6), "s_mfu": _share(flops, flops_per_s, seconds),
        }  # fmt: skip
    if len({*costs.form_bytes}) == 1:
        crossed = totals.moved_bytes[Lane.H2D] - unused_records * costs.record_bytes
        peak = link.pinned_h2d.bytes_per_s
        found[Lane.H2D.value] = _entry(max(0, crossed), peak, seconds)
    return found


def _entry(size: int, bandwidth: float, seconds: float) -> Utilisation:
    return {"gb": round(size / 1e9, 6), "s_mbu": _share(size, bandwidth, seconds)}


def _share(amount: float, peak: float, seconds: float) -> float | None:
    return round(amount / (peak * seconds), 6) if seconds else None
