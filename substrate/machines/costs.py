"""What an operation costs on a machine that may not be here: one rule for each kind of operation.

Every rule is a roofline: the larger of bytes over bandwidth and floating-point operations over
throughput, from a hardware profile and the *full-size* model's shape.  What the control thread
pays for launching, copying, waiting and deciding is separate (`control_ns`), because it runs beside
the lanes.
"""

from itertools import pairwise

from moebench.substrate.machines.profile import HardwareProfile
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.substrate.models.shape import ModelShape, Precision, stored_bytes

#: Reads below this many bytes do not reach a GPU's streaming bandwidth (facts: 20 MB).
LARGE_READ_BYTES = 20_000_000

#: Activations, KV cache and returned outputs are always two bytes a value.
ACTIVATION_BYTES = 2

#: A policy's own network is kept in fp32; each of its layers launches product, norm and activation.
NETWORK_VALUE_BYTES, NETWORK_LAUNCHES = 4, 3


class CostModel:
    """Prices operations of one model at one precision on one hardware profile, in ns."""

    def __init__(self, profile: HardwareProfile, shape: ModelShape, precision: Precision) -> None:
        self.profile = profile
        self.shape = shape
        self.precision: Precision = precision
        gpu, host, software = profile.gpu, profile.host, profile.software
        self.record_bytes = shape.expert_bytes(precision)
        self._large = gpu.bandwidth.bytes_per_s * gpu.large_read_efficiency.ratio / 1e9
        self._small = gpu.bandwidth.bytes_per_s * gpu.small_read_efficiency.ratio / 1e9
        self._flops = gpu.tensor_bf16.flops_per_s * gpu.tensor_efficiency.ratio / 1e9
        self._host_bytes = host.gemv_bandwidth.bytes_per_s / 1e9
        self._host_flops = host.peak_fp32.flops_per_s * host.gemm_efficiency.ratio / 1e9
        efficiency = profile.link.in_engine_efficiency.ratio
        #: What crosses the link to the device in one nanosecond.
        self.h2d_bytes_per_ns = profile.link.h2d.bytes_per_s * efficiency / 1e9
        self._d2h = profile.link.pinned_d2h.bytes_per_s * efficiency / 1e9
        launch = software.launch.ns
        attention = software.launches_attention.count * launch
        gate = software.launches_gate.count * launch
        #: What submitting one operation (of experts: one expert) costs the control thread.
        self._launch_ns = {
            OpKind.ATTEND: attention,
            OpKind.GATE: gate,
            OpKind.EXPERT: software.launches_expert.count * launch,
            OpKind.SHARED: software.launches_shared.count * launch,
            OpKind.DENSE: software.launches_expert.count * launch,
            OpKind.COMBINE: 2 * launch,
            OpKind.PREDICT: attention + gate,
            OpKind.HEAD: software.launches_head.count * launch,
        }
        self._one_launch_ns = launch
        #: What submitting a copy or a host expert costs the control thread.
        self.copy_submit_ns = software.copy_submit.ns
        #: Reading a result back to the control thread, beyond waiting for it.
        self.sync_ns = software.sync.ns
        #: One layer's decisions on the control thread.
        self.decision_ns = software.decision.ns
        self._prices: dict[Lane, dict[tuple[object, ...], tuple[int, int, int]]] = {
            lane: {} for lane in Lane
        }

    # ------------------------------------------------------------------ lanes

    def price(self, op: Op, lane: Lane) -> tuple[int, int, int]:
        """First launch and whole submission on the control thread, and time on the lane."""
        prices = self._prices[lane]
        price = prices.get(op.sizes)
        if price is None:
            duration = max(1, round(self._price(op, lane)))
            price = self.first_launch_ns(op, lane), self.control_ns(op, lane), duration
            prices[op.sizes] = price
        return price

    def ns(self, op: Op, lane: Lane) -> int:
        """How long the operation occupies its lane."""
        return self.price(op, lane)[2]

    def _price(self, op: Op, lane: Lane) -> float:
        if lane is Lane.DEVICE:
            return self._device(op)
        if lane is Lane.PREDICT:
            return sum(self._dense(a * b + b, op.rows[0]) for a, b in pairwise(op.network))
        if lane is Lane.HOST:
            return sum(self._host_expert(rows) for rows in op.rows)
        if lane is Lane.DISK:
            disk = self.profile.disk
            return disk.access_latency.ns + self.record_bytes / (
                disk.queue1_bandwidth.bytes_per_s / 1e9
            )
        fixed = self.profile.link.copy_fixed.ns
        if op.kind is OpKind.RETURN:
            size = sum(op.rows) * self.shape.hidden_size * ACTIVATION_BYTES
            return fixed + size / self._d2h
        return fixed + self.record_bytes / self.h2d_bytes_per_ns

    def _device(self, op: Op) -> float:
        s = self.shape
        match op.kind:
            case OpKind.ATTEND:
                return self._attention(op)
            case OpKind.GATE:
                return self._read(s.gate_params + s.norm_params, op.rows[0])
            case OpKind.PREDICT:  # context 0: the next gate alone, on the state at hand
                attention = self._attention(op) if op.context else 0.0
                return attention + self._read(s.gate_params + s.norm_params, op.rows[0])
            case OpKind.EXPERT:
                return sum(self._read(s.expert_params, rows) for rows in op.rows)
            case OpKind.SHARED:
                return self._read(s.shared_params, op.rows[0])
            case OpKind.DENSE:
                return self._read(3 * s.hidden_size * s.dense_width, op.rows[0])
            case OpKind.COMBINE:
                moved = op.rows[0] * (s.top_k + 2) * s.hidden_size * ACTIVATION_BYTES
                return moved / self._small
            case OpKind.HEAD:
                return self._read(s.head_params, op.rows[0])
        raise ValueError(f"{op.kind} does not run on the device")

    def _read(self, params: int, rows: int) -> float:
        """Read weights once and multiply them with ``rows`` rows."""
        size = stored_bytes(params, self.precision)
        bandwidth = self._large if size >= LARGE_READ_BYTES else self._small
        return max(size / bandwidth, 2 * params * rows / self._flops)

    def _dense(self, params: int, rows: int) -> float:
        """One layer of a policy's own network, as if the device did nothing else."""
        size = params * NETWORK_VALUE_BYTES
        bandwidth = self._large if size >= LARGE_READ_BYTES else self._small
        return max(size / bandwidth, 2 * params * rows / self._flops)

    def _attention(self, op: Op) -> float:
        s = self.shape
        cache = op.context * s.kv_values_per_token_layer * ACTIVATION_BYTES / self._large
        products = 4 * op.pairs * s.num_heads * s.head_dim / self._flops
        return self._read(s.attention_params + s.norm_params, op.rows[0]) + max(cache, products)

    def _host_expert(self, rows: int) -> float:
        flops = 2 * self.shape.expert_params * rows / self._host_flops
        return self.profile.host.handoff.ns + max(self.record_bytes / self._host_bytes, flops)

    # ------------------------------------------------------------------ the control thread

    def first_launch_ns(self, op: Op, lane: Lane) -> int:
        """How long after its submission began an operation's first kernel or copy can run."""
        on_gpu = lane in (Lane.DEVICE, Lane.PREDICT)
        return self._one_launch_ns if on_gpu else self.copy_submit_ns

    def control_ns(self, op: Op, lane: Lane) -> int:
        """What submitting the operation costs the control thread."""
        if lane is Lane.DEVICE:
            if op.kind is OpKind.PREDICT and not op.context:
                return self._launch_ns[OpKind.GATE]
            return self._launch_ns[op.kind] * len(op.rows)
        if lane is Lane.PREDICT:
            return NETWORK_LAUNCHES * (len(op.network) - 1) * self._one_launch_ns
        return self.copy_submit_ns
