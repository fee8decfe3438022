"""Bytes that a configuration needs on the device, in host memory and on disk, and what fits.

Sizes of buffers are llama.cpp's: a compute buffer holds the logits of a micro-batch (gpt-oss-120b
with 512 rows: 201,088 x 512 x 4 bytes = 393 MiB, of the 398 MiB that its log prints), or the copied
experts of a layer's matrix with the activations of their rows, whichever is more.
"""

from dataclasses import replace
from typing import NamedTuple

from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.question import Question
from moebench.harness.advise.rules import Rules
from moebench.harness.published.case import FILLED
from moebench.substrate.machines.profile import HardwareProfile
from moebench.substrate.models.bits import Bits
from moebench.substrate.models.shape import ModelShape

#: Bytes of a device that its context and small buffers take.
CONTEXT_BYTES = 0.3e9

#: Bytes of the host's memory that the system and the engine itself take.
HOST_RESERVE = 4 * 2**30

#: The same of a machine of one memory, and the least share of it that its GPU cannot have.
POOL_RESERVE, POOL_SHARE = 8 * 2**30, 1 / 8

#: Bytes of one value of the KV cache by its format.
KV_BYTES = {
    "f16": 2.0, "bf16": 2.0, "f32": 4.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32,
    "q4_1": 20 / 32, "q4_0": 18 / 32, "iq4_nl": 18 / 32, "fp8": 1.0,
}  # fmt: skip

#: Contexts are multiples of this.
STEP = 256


class Needs(NamedTuple):
    """Bytes of a configuration.

    Attributes:
        common: weights that are no routed experts, on the device.
        kv: of the KV cache and constant states on the device.
        experts: routed experts on the device.
        buffers: on the device.
        host: weights in host memory.
        host_experts: the routed experts among them.
    """

    common: float
    kv: float
    experts: float
    buffers: float
    host: float
    host_experts: float

    @property
    def device(self) -> float:
        """All bytes on the device."""
        return self.common + self.kv + self.experts + self.buffers


class Places(NamedTuple):
    """Bytes that weights and caches can have on the device and in host memory.

    Attributes:
        one: whether both are the same memory, of which ``host`` is 0.
    """

    device: float
    host: float
    one: bool


def places(profile: HardwareProfile) -> Places:
    """Return the usable memory of a machine."""
    ram = profile.host.memory.bytes
    if profile.pool:
        return Places(max(0.0, ram - max(POOL_RESERVE, POOL_SHARE * ram)), 0.0, one=True)
    return Places(profile.gpu.memory.bytes * FILLED, max(0.0, ram - HOST_RESERVE), one=False)


def bits_for(question: Question, rules: Rules) -> Bits:
    """Return the bits per weight that an engine keeps a model in."""
    routed, others = question.bits
    return Bits(rules.routed or routed, rules.others or others)


def needs(question: Question, rules: Rules, config: Configuration) -> Needs:
    """Return the bytes of a configuration, whose fields but ``whole_layers`` are all chosen."""
    shape, bits = question.shape, bits_for(question, rules)
    each = shape.expert_bytes(bits.routed)
    common, kv = float(shape.common_bytes(bits.others)), kv_bytes(question, config)
    layers = len(shape.moe_layers)
    on_host = min(config.host_layers or 0, layers)
    host_common = 0.0
    if config.whole_layers is not None and config.whole_layers < shape.num_layers:
        away = 1 - config.whole_layers / shape.num_layers
        host_common, common, kv = away * common, (1 - away) * common, (1 - away) * kv
    resident = (config.resident or 0) * on_host * each
    host_experts = float(on_host * shape.num_experts * each)
    return Needs(
        common, kv, float((layers - on_host) * shape.num_experts * each + resident),
        buffers(shape, bits, config, bool(on_host)), host_common + host_experts, host_experts,
    )  # fmt: skip


def kv_bytes(question: Question, config: Configuration, context: int | None = None) -> float:
    """Return the bytes of the KV cache at a context, by default the one asked for."""
    context = question.lengths.context if context is None else context
    each = KV_BYTES[config.kv or "f16"] / KV_BYTES["f16"]
    shape = question.shape
    return question.batch * (shape.kv_bytes(context) * each + shape.state_bytes())


def buffers(shape: ModelShape, bits: Bits, config: Configuration, copies: bool) -> float:
    """Return the bytes of the device's buffers.

    Args:
        copies: whether experts of the host are copied for prompts.
    """
    rows = config.micro_batch or 512
    logits = 4.0 * rows * shape.vocab_size
    rows_used = 4.0 * rows * shape.top_k * (2 * shape.expert_width + shape.hidden_size)
    matrix = shape.num_experts * shape.expert_bytes(bits.routed) / 3 if copies else 0.0
    return CONTEXT_BYTES + max(logits, matrix + rows_used)


def fewest_host_layers(question: Question, rules: Rules, config: Configuration,
                       room: Places) -> int | None:  # fmt: skip
    """Return the fewest MoE layers with experts on the host that leave enough room on the device.

    It is None if the device cannot hold even what is no routed expert.
    """
    layers = len(question.shape.moe_layers)
    low, high = 0, layers
    if not _fits(question, rules, _with(config, high), room):
        return None
    while low < high:
        middle = (low + high) // 2
        if _fits(question, rules, _with(config, middle), room):
            high = middle
        else:
            low = middle + 1
    return low


def most_resident(question: Question, rules: Rules, config: Configuration, room: Places) -> int:
    """Return how many experts of each layer the device can hold, with all layers on the host."""
    shape = question.shape
    each = shape.expert_bytes(bits_for(question, rules).routed) * len(shape.moe_layers)
    empty = needs(question, rules, _with(config, len(shape.moe_layers)))
    free = room.device - empty.device - rules.reserve
    return int(max(0, min(shape.num_experts, free // each)))


def most_context(question: Question, rules: Rules, config: Configuration, room: Places,
                 most: int) -> int:  # fmt: skip
    """Return the largest context, a multiple of `STEP` up to ``most``, that fits; 0 if none does.

    As few experts are on the device as the engine allows.
    """
    layers = len(question.shape.moe_layers)
    least = needs(question, rules, _with(config, 0 if room.one else layers))
    free = room.device - (least.device - least.kv)
    low, high = 0, most // STEP
    while low < high:
        middle = (low + high + 1) // 2
        if kv_bytes(question, config, middle * STEP) <= free:
            low = middle
        else:
            high = middle - 1
    return low * STEP


def _with(config: Configuration, host_layers: int) -> Configuration:
    return replace(config, host_layers=host_layers)


def _fits(question: Question, rules: Rules, config: Configuration, room: Places) -> bool:
    return needs(question, rules, config).device + rules.reserve <= room.device
