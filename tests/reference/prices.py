"""Prices of operations in the reference simulator, in seconds, from a profile's numbers."""

from dataclasses import dataclass
from typing import Literal

from tests.reference.inputs import Numbers, Shape

#: Reads of at least so many bytes reach the higher share of the GPU's bandwidth.
LARGE = 20e6

#: Bytes of an activation, and of a value of the KV cache.
VALUE = 2


@dataclass(frozen=True)
class Prices:
    """Prices of one model on one machine.

    Attributes:
        weight_bytes: bytes of one weight as it is stored: all weights have one precision.
        kernels: how quantised experts are multiplied on the host.
    """

    model: Shape
    of: Numbers
    weight_bytes: float = 2.0
    kernels: Literal["unpacking", "fused"] = "unpacking"

    @property
    def record(self) -> int:
        """Bytes of one expert."""
        return round(self.model.expert * self.weight_bytes)

    def roofline(self, size: float, flops: float) -> float:
        """Return the time in which the GPU reads bytes or computes, whichever takes longer."""
        of = self.of
        share = of[f"gpu.{'large' if size >= LARGE else 'small'}_read_efficiency"]
        rate = of["gpu.tensor_bf16"] * of["gpu.tensor_efficiency"]
        return max(size / (of["gpu.bandwidth"] * share), flops / rate)

    def product(self, params: float, rows: int) -> float:
        """Return the time of a block of weights with some rows, on the GPU."""
        return self.roofline(params * self.weight_bytes, 2 * params * rows)

    def attention(self, rows: int, cached: int, pairs: float) -> float:
        """Return the time of a layer's attention: its KV cache or its scores, and its weights."""
        model, of = self.model, self.of
        large = of["gpu.bandwidth"] * of["gpu.large_read_efficiency"]
        flops = of["gpu.tensor_bf16"] * of["gpu.tensor_efficiency"]
        cache = max(cached * model.kv * VALUE / large, 4 * pairs * model.query_width / flops)
        return cache + self.product(model.attention + model.hidden, rows)

    def gate(self, rows: int) -> float:
        """Return the time of a gate and the norm before it."""
        return self.product(self.model.gate + self.model.hidden, rows)

    def total(self, rows: int) -> float:
        """Return the time of a layer's sum: k + 2 vectors a row."""
        size = rows * (self.model.top_k + 2) * self.model.hidden * VALUE
        return size / (self.of["gpu.bandwidth"] * self.of["gpu.small_read_efficiency"])

    @property
    def copies_pinned(self) -> bool:
        """Whether experts are copied from page-locked memory."""
        return bool(self.of["link.pinned"])

    def load(self) -> float:
        """Return the time of an expert on the link."""
        of = self.of
        rate = of["link.pinned_h2d"] if self.copies_pinned else of["link.pageable_h2d"]
        return of["link.copy_fixed"] + self.record / (rate * of["link.in_engine_efficiency"])

    def output(self, rows: int) -> float:
        """Return the time of a host expert's output on the link."""
        of, size = self.of, rows * self.model.hidden * VALUE
        rate = of["link.pinned_d2h"] * of["link.in_engine_efficiency"]
        return of["link.copy_fixed"] + size / rate

    def read(self, queued: bool) -> float:
        """Return the time of a record on the disk, alone or behind another one."""
        of = self.of
        if queued:
            return self.record / of["disk.max_bandwidth"]
        return of["disk.access_latency"] + self.record / of["disk.queue1_bandwidth"]

    def on_host(self, rows: int) -> float:
        """Return the time of an expert on the host."""
        of, params = self.of, self.model.expert
        begin = of["host.handoff"]
        if of["software.expert"] and not of.get("host.gemv_holds_dispatch"):
            begin += of["software.launches_expert"] * of["software.launch"]
        flops = 2 * params * rows / (of["host.peak_fp32"] * of["host.gemm_efficiency"])
        return begin + max(self._host_bytes() / of["host.gemv_bandwidth"], flops)

    def _host_bytes(self) -> float:
        """Return the bytes of bf16 weights that the host could read while it reads an expert."""
        if self.weight_bytes >= VALUE:
            return self.record
        if self.kernels == "fused":
            return self.record / self.of["software.host_fused_4bit"]
        return self.model.expert * VALUE * self.of["software.host_unpacking"]

    def launches(self, part: str) -> float:
        """Return the control thread's time to launch a part of a layer, without Python."""
        return self.of[f"software.launches_{part}"] * self.of["software.launch"]
