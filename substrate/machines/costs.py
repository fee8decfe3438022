"""The cost model: the time of each kind of operation on a hardware profile.

Every rule is a roofline: the larger of bytes over bandwidth and floating-point operations over
throughput, from a hardware profile and the *full-size* model's shape.  What the control thread
pays for launching, copying, waiting and deciding is separate (`control_ns`), because it runs beside
the lanes; it depends on the profile's kind of software.
"""

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import NamedTuple, get_args

from moebench.substrate.choices import HostKernels
from moebench.substrate.machines.profile import HardwareProfile
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.substrate.machines.quantity import Efficiency
from moebench.substrate.models.shape import ExpertDtype, Form, ModelShape, Precision, stored_bytes

#: Reads below this many bytes do not reach a GPU's streaming bandwidth.
LARGE_READ_BYTES = 20_000_000

#: Activations, KV cache and returned outputs are always two bytes a value.
ACTIVATION_BYTES = 2

#: Share of the rate of large reads at which a decoded token's attention reads latent vectors, where
#: the kind of software does not say: DeepSeek-V3 takes 0.8 ms longer for each 1,000 cached tokens
#: on an RTX 4090 (kTransformers), 88 GB/s of 1,008; other builds 1.6 to 4.5 ms.
LATENT_READS = 0.09

#: A policy's own network is kept in fp32; each of its layers launches product, norm and activation.
NETWORK_VALUE_BYTES, NETWORK_LAUNCHES = 4, 3

#: Tensors of an expert, and of all experts of a layer where they are one module: gate and up are
#: one tensor there (`System.module_hooks`).
EXPERT_TENSORS, FUSED_TENSORS = 3, 2


def _decodes(op: Op) -> bool:
    """Return whether each row of an operation's attention is a text's only one."""
    return op.pairs == op.context > 0


def _share(stated: Efficiency | None, otherwise: float = 1.0) -> float:
    return otherwise if stated is None else stated.ratio


def _nearest(stored_as: Precision | ExpertDtype | float) -> str:
    """Return the named precision whose kernels multiply weights with the bits ``stored_as``."""
    if not isinstance(stored_as, float):
        return stored_as
    limits = ((3.5, "2bit"), (7.0, "4bit"), (9.0, "int8"))
    return next((name for most, name in limits if stored_as <= most), "bf16")


class HostProducts(NamedTuple):
    """How the host multiplies weights.

    Attributes:
        kernels: of quantised weights.  torch's own packed products (`ExpertDtype`) are fused.
        threads: that multiply, as cores whose rate they reach; None is one a core.  They limit
            products of many rows, and those of quantised weights by fused kernels where the profile
            has the rate of a core.
        rate: of the experts' format on a core, over that of plain 4-bit blocks.
    """

    kernels: HostKernels = "unpacking"
    threads: float | None = None
    rate: float = 1.0


#: PyTorch's own way.
UNPACKING = HostProducts()


class CostModel:
    """Prices operations of one model on one hardware profile, in ns.

    Args:
        precision: of all weights, unless ``expert_precision`` says otherwise of routed experts; a
            number is bits per weight, as GGUF files mix them.
        pinned: whether experts are copied from page-locked host memory; None is the profile's own.
        module_hooks: each tensor off the device is copied on its own, by a hook of its module.
        fused_experts: a layer's routed experts are one module with tensors shared by all of them.
        forms: the forms of expert records.
        host: how the host multiplies weights.
        prediction_python: a prediction that runs the next layer's attention pays a layer's Python.

    Attributes:
        form_bytes: bytes of one expert's record in each form.
        record_bytes: bytes of one expert's record in form 0.
        synchronous: whether the control thread itself computes the device's operations.
    """

    synchronous = False

    def __init__(
        self, profile: HardwareProfile, shape: ModelShape, precision: Precision | float, *,
        expert_precision: Precision | ExpertDtype | float | None = None,
        pinned: bool | None = None,
        module_hooks: bool = False, fused_experts: bool = False, forms: Sequence[Form] = (Form(),),
        host: HostProducts = UNPACKING, prediction_python: bool = True,
    ) -> None:  # fmt: skip
        self.profile = profile
        self.shape = shape
        self.precision: Precision | float = precision
        self.expert_precision: Precision | ExpertDtype | float = expert_precision or precision
        gpu, software = profile.gpu, profile.software
        stored_as = self.expert_precision
        self.form_bytes = tuple(form.record_bytes(shape, stored_as) for form in forms)
        self.record_bytes = self.form_bytes[0]
        self._form_params = [round(shape.expert_params * form.share) for form in forms]
        self._large = gpu.bandwidth.bytes_per_s * gpu.large_read_efficiency.ratio / 1e9
        self._small = gpu.bandwidth.bytes_per_s * gpu.small_read_efficiency.ratio / 1e9
        self._flops = gpu.tensor_bf16.flops_per_s * gpu.tensor_efficiency.ratio / 1e9
        #: Bytes of the KV cache that a decoded token's attention reads in one nanosecond.
        self._cache_reads = self._large * _share(software.attention_reads)
        if shape.latent is not None:
            self._cache_reads = self._large * _share(software.latent_reads, LATENT_READS)
        efficiency = profile.link.in_engine_efficiency.ratio
        #: Bytes that the link to the device copies in one nanosecond.
        self.h2d_bytes_per_ns = profile.link.h2d(pinned).bytes_per_s * efficiency / 1e9
        self._set_host(host)
        #: Bytes that one read at a time transfers from the disk in one nanosecond.
        self.read_bytes_per_ns = profile.disk.queue1_bandwidth.bytes_per_s / 1e9
        self._d2h = profile.link.pinned_d2h.bytes_per_s * efficiency / 1e9
        #: Rows whose products take as long as unpacking a quantised expert on the device.
        self._unpacking_rows = 0
        quantised = self.record_bytes < ACTIVATION_BYTES * shape.expert_params
        if software.unpacking_rows is not None and quantised:
            self._unpacking_rows = software.unpacking_rows.count
        launch = software.launch.ns
        attention = round(software.launches_attention.count * shape.mixer_kernels * launch)
        gate = software.launches_gate.count * launch
        #: Control thread's time to launch one operation (of experts: one expert).
        self._launch_ns = {
            OpKind.ATTEND: attention,
            OpKind.PROJECT: attention - launch,
            OpKind.OUTPUT: launch,
            OpKind.GATE: gate,
            OpKind.EXPERT: software.launches_expert.count * launch,
            OpKind.SHARED: software.launches_shared.count * launch,
            OpKind.DENSE: software.launches_expert.count * launch,
            OpKind.COMBINE: 2 * launch,
            OpKind.HEAD: software.launches_head.count * launch,
        }
        self._one_launch_ns = launch
        launched = attention + gate + self._launch_ns[OpKind.COMBINE]
        #: Control thread's time in the framework's Python, beyond launches, by layer and by expert.
        self._python_ns = {
            OpKind.ATTEND: max(0, software.layer.ns - launched),
            OpKind.EXPERT: max(0, software.expert.ns - self._launch_ns[OpKind.EXPERT]),
        }
        self._python_ns[OpKind.PROJECT] = self._python_ns[OpKind.ATTEND]
        #: The same of a prediction that runs the next layer's attention.
        self._predict_python_ns = self._python_ns[OpKind.ATTEND] if prediction_python else 0
        #: Control thread's time to submit a copy or a host expert.
        self.copy_submit_ns = software.copy_submit.ns
        self._hooks = module_hooks
        #: Number of copies of one expert's transfer; for fused experts, its share of the layer's.
        self._load_copies = 1.0
        if module_hooks:
            fused = FUSED_TENSORS / shape.num_experts
            self._load_copies = fused if fused_experts else EXPERT_TENSORS
        self._per_copy_ns = software.copy_submit.ns + (software.hook.ns if module_hooks else 0)
        self.load_submit_ns = round(self._load_copies * self._per_copy_ns)
        #: Control thread's time to read a result back, beyond waiting for it.
        self.sync_ns = software.sync.ns
        #: Control thread's time for one layer's decisions.
        self.decision_ns = software.decision.ns
        #: Whether the control thread waits for each layer's sum before it launches the next layer.
        self.waits_each_layer = software.waits_each_layer
        #: The share of the device's speed that is lost while records are copied.
        self.lost_beside_copies = 0.0

    def _set_host(self, products: HostProducts) -> None:
        """Set the rates of the host."""
        host, software = self.profile.host, self.profile.software
        cores = host.cores.count
        threads = products.threads or cores
        self._host_bytes = host.gemv_bandwidth.bytes_per_s / 1e9
        #: The share of their rates that copies and products on the host lose while both run.
        self.lost_together = 0.0
        if host.shared_bandwidth is not None:
            both = self._host_bytes + self.h2d_bytes_per_ns
            self.lost_together = max(0.0, 1 - host.shared_bandwidth.bytes_per_s / 1e9 / both)
        self._host_cache_reads = self._host_bytes * _share(software.host_attention)
        self._host_flops = host.peak_fp32.flops_per_s * host.gemm_efficiency.ratio / 1e9
        self._host_flops *= min(1.0, threads / cores)
        #: Whether the rate above is of products with many rows alone.
        self._own_rows = software.host_rows_gain is not None and host.core_rate is not None
        if software.host_rows_gain is not None and host.core_rate is not None:
            rate = host.core_rate.per_s * software.host_rows_gain.ratio
            self._host_flops = 2 * rate * threads / 1e9
        gain = 1.0 if software.host_kernel_gain is None else software.host_kernel_gain.ratio
        #: The share of the host's bandwidth that fused kernels reach, by precision or highest bits.
        self._fused_share = {
            "int8": min(1.0, gain * software.host_fused_8bit.ratio),
            "4bit": min(1.0, gain * software.host_fused_4bit.ratio),
            "4bit-g64": min(1.0, gain * software.host_fused_4bit.ratio),
            "int4": min(1.0, gain * software.host_fused_4bit.ratio),
            "2bit": min(1.0, gain * software.host_fused_2bit.ratio),
        }
        #: Weights that the host multiplies with one row in one ns, by experts or others.
        self._host_weights: dict[bool, float] = {}
        if host.core_rate is not None:
            rate = gain * threads * host.core_rate.per_s / 1e9
            self._host_weights = {True: rate * products.rate, False: rate}
        self._host_kernels = products.kernels
        self._unpacking = software.host_unpacking.ratio
        #: Time in which the host receives a task, and in which PyTorch dispatches the operators of
        #: an expert there.
        self._handoff_ns = float(host.handoff.ns)
        dispatches = software.expert.ns and products.kernels == "unpacking"
        launches = software.launches_expert.count * software.launch.ns
        self._dispatch_ns = launches if dispatches and not host.gemv_holds_dispatch else 0

    # ------------------------------------------------------------------ lanes

    def price(self, op: Op, lane: Lane) -> tuple[int, int, int]:
        """Return the control thread's first launch and whole submission, and the time on the lane.

        Operations of equal `Op.sizes` cost alike.
        """
        return self.first_launch_ns(op, lane), self.control_ns(op, lane), self.ns(op, lane)

    def ns(self, op: Op, lane: Lane) -> int:
        """Return how long the operation occupies its lane, in ns."""
        return max(1, round(self._price(op, lane)))

    def _price(self, op: Op, lane: Lane) -> float:
        if lane in (Lane.DEVICE, Lane.PREDICT):
            return self._device(op)
        if lane is Lane.HOST and op.kind is OpKind.PAGE:  # read, and written to page-locked memory
            return 2 * self.moved_bytes(op) / self._host_bytes
        if lane is Lane.HOST:
            return self._host(op)
        if lane is Lane.DISK:
            disk, size = self.profile.disk, self.moved_bytes(op)
            if op.queued:  # the drive found it while it was busy with others
                return size / (disk.max_bandwidth.bytes_per_s / 1e9)
            return disk.access_latency.ns + size / self.read_bytes_per_ns
        fixed = self.profile.link.copy_fixed.ns * self._copies(op)
        bandwidth = self._d2h if lane is Lane.D2H else self.h2d_bytes_per_ns
        return fixed + (self._activation_bytes(op) or self.moved_bytes(op)) / bandwidth

    def _activation_bytes(self, op: Op) -> int:
        """Return the bytes of a transfer of activations; 0 for one of weights."""
        s = self.shape
        if op.kind is OpKind.QKV:
            queries, cached = op.rows
            values = queries * s.query_width + cached * s.kv_values_per_token_layer
            return values * ACTIVATION_BYTES
        if op.kind is OpKind.RETURN:
            return sum(op.rows) * s.hidden_size * ACTIVATION_BYTES
        return 0

    def least_load_ns(self, form: int) -> float:
        """Return the least time of an expert's copy to the device: page-locked, in one piece."""
        link, size = self.profile.link, self.form_bytes[form]
        fastest = max(link.h2d(pinned).bytes_per_s for pinned in (True, False))
        alone_ns = link.copy_fixed.ns + size / (fastest * link.in_engine_efficiency.ratio) * 1e9
        return min(alone_ns, self.ns(Op(OpKind.LOAD, 0, form=form), Lane.H2D))

    def least_host_ns(self, op: Op) -> float:
        """Return the least time of experts on the host: with fused kernels."""
        fused = copy(self)
        fused._host_kernels, fused._dispatch_ns = "fused", 0
        return min(fused.ns(op, Lane.HOST), self.ns(op, Lane.HOST))

    def _copies(self, op: Op) -> float:
        """Return the number of copies of which a transfer consists."""
        if op.kind is OpKind.LOAD:
            return self._load_copies
        if op.kind is OpKind.STREAM and self._hooks and op.layer >= 0:
            return self.shape.layer_common_tensors(op.layer)
        return 1

    def moved_bytes(self, op: Op) -> int:
        """Return the bytes of a transfer: a record, a chunk of it, or a layer's non-expert weights.

        Layer -1 is the head.
        """
        if op.kind is OpKind.STREAM:
            shape, layer = self.shape, op.layer
            params = shape.own_head_params if layer < 0 else shape.layer_common_params(layer)
            return stored_bytes(params, self.precision)
        if self._activation_bytes(op):
            return 0
        size = self.form_bytes[op.form]
        if op.kind is OpKind.PAGE and op.chunk is not None:
            (part, parts), size = op.chunk, size * len(op.experts)
            return size * (part + 1) // parts - size * part // parts
        return size if op.chunk is None else round(size * (1 / op.chunk[1]))

    def _weights(self, op: Op) -> list[tuple[int, int]]:
        """Return the parameters and rows of each block of weights that an operation multiplies."""
        s, rows = self.shape, op.rows
        match op.kind:
            case OpKind.ATTEND:
                return [(s.attention_params + s.norm_params, rows[0])]
            case OpKind.PROJECT:
                return [(s.attention_params + s.norm_params - s.output_params, rows[0])]
            case OpKind.CORE:
                return []
            case OpKind.OUTPUT:
                return [(s.output_params, rows[0])]
            case OpKind.GATE:
                return [(s.gate_params + s.norm_params, rows[0])]
            case OpKind.PREDICT:  # context 0: gates alone, on the state at hand
                attention = [(s.attention_params + s.norm_params, rows[0])] if op.context else []
                return attention + [(s.gate_params + s.norm_params, r) for r in rows]
            case OpKind.EXPERT:
                return [(self._form_params[op.form], r) for r in rows]
            case OpKind.SHARED:
                return [(s.shared_params, rows[0])]
            case OpKind.DENSE:
                return [(3 * s.hidden_size * s.dense_width, rows[0])]
            case OpKind.HEAD:
                return [(s.head_params, rows[0])]
        raise ValueError(f"{op.kind} reads no weights")

    def _device(self, op: Op) -> float:
        if op.network:
            return sum(self._dense(a * b + b, op.rows[0]) for a, b in pairwise(op.network))
        if op.kind is OpKind.COMBINE:
            s = self.shape
            return op.rows[0] * (s.top_k + 2) * s.hidden_size * ACTIVATION_BYTES / self._small
        time = self._attention(op, self._cache_reads if _decodes(op) else self._large, self._flops)
        for params, rows in self._weights(op):
            time += self._device_product(op, params, rows)
        return time

    def _device_product(self, op: Op, params: int, rows: int) -> float:
        """Return the device's time for weights times some rows, in ns."""
        size = self._stored(op, params)
        bandwidth = self._large if size >= LARGE_READ_BYTES else self._small
        unpacking = self._unpacking_rows if op.kind is OpKind.EXPERT else 0
        many = rows + unpacking if rows > 1 else rows
        return max(size / bandwidth, 2 * params * many / self._flops)

    def _host(self, op: Op) -> float:
        if op.network:
            params = sum(a * b + b for a, b in pairwise(op.network))
            size = params * NETWORK_VALUE_BYTES
            return max(size / self._host_bytes, 2 * params * op.rows[0] / self._host_flops)
        time = self._attention(op, self._host_cache_reads, self._host_flops)
        weights = self._weights(op)
        expert = op.kind is OpKind.EXPERT
        dispatches = len(op.rows) * self._dispatch_ns if expert else 0
        together = expert or op.kind is OpKind.CORE
        time += dispatches + self._handoff_ns * (1 if together else len(weights))
        for params, rows in weights:
            time += self._host_product(op, params, rows)
        return time

    def _host_product(self, op: Op, params: int, rows: int) -> float:
        """Return the host's time for weights times some rows, in ns."""
        flops = 2 * params * rows / self._host_flops
        if rows == 1 and (self._own_rows or self._threads_limit(op)):
            flops = 0  # what is read in this time, or a core's rate, says it already
        return max(self._host_read(op, params), flops)

    def expert_products(self, rows: int) -> tuple[float, float]:
        """Return the time of an expert's products in form 0 on the device and on the host, in ns.

        An operation of several experts takes the sum, in their order, on the host after
        `host_begins_ns`.
        """
        op = Op(OpKind.EXPERT, 0, (rows,))
        ((params, _),) = self._weights(op)
        return self._device_product(op, params, rows), self._host_product(op, params, rows)

    def host_begins_ns(self, experts: int) -> float:
        """Return the time before the host multiplies in an operation of some experts, in ns."""
        return experts * self._dispatch_ns + self._handoff_ns

    def _threads_limit(self, op: Op) -> bool:
        """Return whether the rate of the host's cores limits products with an op's weights."""
        stored_as = self.expert_precision if op.kind is OpKind.EXPERT else self.precision
        return isinstance(stored_as, float) and bool(self._host_weights)

    def _host_read(self, op: Op, params: int) -> float:
        """Return the time in which the host reads weights for a product, in ns."""
        expert = op.kind is OpKind.EXPERT
        stored_as = self.expert_precision if expert else self.precision
        if self._threads_limit(op):
            size = self._stored(op, params)
            return max(size / self._host_bytes, params / self._host_weights[expert])
        share = self._fused_share.get(_nearest(stored_as))
        if share is None:  # not quantised
            return self._stored(op, params) / self._host_bytes
        if self._host_kernels == "fused" or stored_as in get_args(ExpertDtype):
            read = self._stored(op, params) / (self._host_bytes * share)
            return max(read, params / self._host_weights[expert]) if self._host_weights else read
        return stored_bytes(params, "bf16") * self._unpacking / self._host_bytes

    def _stored(self, op: Op, params: int) -> int:
        if op.kind is OpKind.EXPERT:
            return self.form_bytes[op.form]
        return stored_bytes(params, self.precision)

    def work(self, op: Op) -> tuple[int, int]:
        """Return the bytes of weights and KV cache that an operation of the model reads, and FLOPs.

        Nothing for a policy's prediction, the sum of a layer's experts and pages that the host
        stages, which are not work that the model asks for.
        """
        if op.kind in (OpKind.PREDICT, OpKind.COMBINE, OpKind.PAGE):
            return 0, 0
        cache, flops = self._attention_work(op)
        weights = self._weights(op)
        size = cache + sum(self._stored(op, params) for params, _ in weights)
        return size, flops + sum(2 * params * rows for params, rows in weights)

    def _attention_work(self, op: Op) -> tuple[int, int]:
        """Return the bytes of the KV cache that are read and the FLOPs of scores; 0 without."""
        s = self.shape
        each = 4 * s.num_heads * s.head_dim
        if s.latent is not None:
            each = 2 * s.num_heads * s.latent.products(decode=_decodes(op))
        if s.bounds_context and op.context:
            cache, pairs = self._bounded(op)
            return cache, pairs * each
        cache = op.context * s.kv_values_per_token_layer * ACTIVATION_BYTES
        return cache, op.pairs * each

    def _bounded(self, op: Op) -> tuple[int, int]:
        """Return the bytes of cache and state that are read, and the products of queries and keys.

        Both are means over layers, whose windows, indexers and linear attention bound them.
        """
        s = self.shape
        texts = op.rows[0] if op.kind is OpKind.ATTEND and _decodes(op) else 1
        context = -(-op.context // texts)
        layers = range(s.num_layers)
        values = texts * sum(s.kv_values(layer, context, read=True) for layer in layers)
        cache = values * ACTIVATION_BYTES + texts * s.state_bytes()
        window = s.window
        pairs = sum(
            min(op.pairs, op.rows[0] * window.size)
            if window is not None and layer in window.layers else op.pairs
            for layer in layers if s.caches_tokens(layer)
        )  # fmt: skip
        return round(cache / s.num_layers), round(pairs / s.num_layers)

    def _attention(self, op: Op, bytes_per_ns: float, flops_per_ns: float) -> float:
        """Return the time of reading the KV cache or computing scores; 0 for other operations."""
        cache, flops = self._attention_work(op)
        return max(cache / bytes_per_ns, flops / flops_per_ns)

    def _dense(self, params: int, rows: int) -> float:
        """Return the time of one layer of a policy's own network on an idle device, in ns."""
        size = params * NETWORK_VALUE_BYTES
        bandwidth = self._large if size >= LARGE_READ_BYTES else self._small
        return max(size / bandwidth, 2 * params * rows / self._flops)

    # ------------------------------------------------------------------ the control thread

    def first_launch_ns(self, op: Op, lane: Lane) -> int:
        """Return the time from an operation's submission to its first kernel or copy, in ns."""
        on_gpu = lane in (Lane.DEVICE, Lane.PREDICT)
        return self._one_launch_ns if on_gpu else self.copy_submit_ns

    def control_ns(self, op: Op, lane: Lane) -> int:
        """Return the control thread's time to submit the operation, in ns."""
        python = self._python_ns.get(op.kind, 0) * len(op.rows)
        if op.kind is OpKind.STREAM and lane is Lane.H2D:
            return round(self._copies(op) * self._per_copy_ns)
        if lane not in (Lane.DEVICE, Lane.PREDICT):
            return python + self.copy_submit_ns
        if op.network:
            return NETWORK_LAUNCHES * (len(op.network) - 1) * self._one_launch_ns
        if op.kind is OpKind.PREDICT:
            attention = 0
            if op.context:
                attention = self._launch_ns[OpKind.ATTEND] + self._predict_python_ns
            return attention + self._launch_ns[OpKind.GATE] * len(op.rows)
        return python + self._launch_ns[op.kind] * len(op.rows)
