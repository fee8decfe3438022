"""Hierarchical roofline model of offloaded decoding: turning points, and a layer's time by lanes.

"MoE-Lightning: High-Throughput MoE Inference on Memory-constrained GPUs" (S. Cao et al., ASPLOS
2025, arXiv 2411.11217; code caoshiyi/artifacts 6bc8600, branch asplos25).  A batch of N requests is
decoded in q = N / μ micro-batches.  `roofline_search` finds the policy with the highest throughput.

    paper                                      moebench
    ─────                                      ────────
    level i (GPU): P_i, B_i, m_g               ``Roofs.gpu_flops``, ``gpu_bandwidth``, ``gpu_bytes``
    level j (CPU): P_j, B_j, m_c               ``Roofs.host_flops``, ``host_bandwidth``,
                                               ``host_bytes``
    link B_ji, b_cg                            ``Roofs.link_bandwidth``
    intensities I_i, I_j in FLOP/B             ``on_device``, ``over_link``
    h1, h2, E, k, L                            ``Sizes.hidden``, ``width``, ``experts``, ``top_k``,
                                               ``layers``
    H = h1 · n_kv / n_q                        a token's KV in a layer is 4 H bytes:
                                               ``Sizes.kv_bytes``
    W = 6 h1 h2 E, D                           ``Sizes.expert_bytes``, ``resident_bytes``
    s, n                                       ``Texts.prompt``, ``Texts.new``
    (N, μ, A_g, F_g, r_w, r_c)                 ``Policy``

All weights and cached values take two bytes.  Rates are peaks: efficiencies are not part of it.

Readings:

- Hidden states on the link are not counted, as in the code.  Attention's FLOPs are those of the
  code, which counts queries times keys.
- F_g = 0 is in the paper's search, not in the code: the host computes the experts that are not
  resident, and reads each of them once for the batch.
- A_g = 1: the share 1 - r_c of the KV cache is moved up for its mean length s + n / 2.
- Heads of another width than h1 / n_q, and experts of two matrices, are counted as they are.
- Shared experts and dense layers, which the paper's models lack, are resident; the shared ones are
  part of the device's FFN, and a dense layer takes as long as a layer of experts.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

#: Bytes of a weight, and of a cached value (bf16).
BYTES = 2

#: Shares of device and host memory that the authors' code uses.
USABLE_DEVICE, USABLE_HOST = 0.86, 0.8

#: Factor of the fused kernel's intermediate values in the authors' code.
FUSED = 1.2

Lane = Literal["link", "host", "device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofs:
    """Memories in bytes and peak rates in B/s and FLOP/s of a GPU, its host, and their link."""

    gpu_bytes: float
    host_bytes: float
    gpu_bandwidth: float
    host_bandwidth: float
    link_bandwidth: float
    gpu_flops: float
    host_flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a model.

    Attributes:
        layers: all layers; ``moe_layers`` of them have experts.
        query_width: width of a layer's queries, all heads together; ``heads`` is their number.
        kv_bytes: bytes that a token adds to one layer's KV cache.
        expert_bytes: W, bytes of all routed experts of one layer.
        shared_bytes: bytes of one layer's shared experts.
        resident_bytes: D, bytes of the weights that are always on the device.
    """

    layers: int
    moe_layers: int
    hidden: int
    width: int
    experts: int
    top_k: int
    heads: int
    query_width: int
    kv_bytes: float
    expert_bytes: float
    shared_bytes: float
    resident_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Tokens of each request: ``prompt`` is s, ``new`` is n."""

    prompt: int
    new: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy of the paper.

    Attributes:
        batch: N, requests that are decoded together.
        micro_batch: μ, requests of one pass through a layer; it divides N.
        attention_on_device: A_g, whether the device computes attention's core.
        experts_on_device: F_g, whether the device computes all experts.
        resident: r_w, share of each layer's experts on the device.
        cached: r_c, share of the KV cache on the device.
    """

    batch: int
    micro_batch: int
    attention_on_device: bool = False
    experts_on_device: bool = True
    resident: float = 0.0
    cached: float = 0.0

    @property
    def micro_batches(self) -> int:
        """The number q of micro-batches."""
        return self.batch // self.micro_batch


# --------------------------------------------------------------------------- turning points


def attainable(roofs: Roofs, on_device: float, over_link: float) -> float:
    """Return P in FLOP/s at the device for data of the host: min(P_i, B_i I_i, B_ji I_j).

    Args:
        on_device: I_i, FLOP for each byte that the device reads in its memory.
        over_link: I_j, FLOP for each byte that is moved.
    """
    read = roofs.gpu_bandwidth * on_device
    return min(roofs.gpu_flops, read, roofs.link_bandwidth * over_link)


def host_attainable(roofs: Roofs, intensity: float) -> float:
    """Return min(P_j, B_j I_j) in FLOP/s, what the host reaches without moving data."""
    return min(roofs.host_flops, roofs.host_bandwidth * intensity)


def first_turning_point(roofs: Roofs) -> float:
    """Return P1 as I_j in FLOP/B: below it the host is faster than the device with moved data.

    It solves I_j = min(P_j, B_j I_j) / B_ji.  A link as fast as the host's memory always pays: 0.
    """
    if roofs.link_bandwidth >= roofs.host_bandwidth:
        return 0.0
    return roofs.host_flops / roofs.link_bandwidth


def second_turning_point(roofs: Roofs, on_device: float) -> float:
    """Return P2 as I_j in FLOP/B: below it the link limits the device, above it its own roof."""
    return min(roofs.gpu_flops, roofs.gpu_bandwidth * on_device) / roofs.link_bandwidth


def ffn_intensity(sizes: Sizes, requests: float) -> float:
    """Return the FFN's FLOP for each byte of weights: N k / E, N / 4 for Mixtral 8x7B."""
    return requests * sizes.top_k / sizes.experts


def requests_at(sizes: Sizes, intensity: float) -> float:
    """Return the requests whose FFN has an intensity in FLOP/B, the inverse of `ffn_intensity`."""
    return intensity * sizes.experts / sizes.top_k


def attention_intensity(sizes: Sizes) -> float:
    """Return decode attention's FLOP for each byte of KV cache, which no batch changes."""
    return attention_flops(sizes, 1, 1) / sizes.kv_bytes


# --------------------------------------------------------------------------- operations


def attention_flops(sizes: Sizes, requests: float, context: float) -> float:
    """Return FLOPs of one layer's decode attention, projections not included."""
    return requests * context * 2 * (sizes.query_width + sizes.heads)


def attention_bytes(sizes: Sizes, requests: float, context: float) -> float:
    """Return bytes of queries, outputs, keys and values of one layer's decode attention."""
    return requests * (2 * BYTES * sizes.query_width + context * sizes.kv_bytes)


def ffn_flops(sizes: Sizes, requests: float) -> float:
    """Return FLOPs of one layer's routed and shared experts: 6 N k h1 h2 for Mixtral."""
    routed = sizes.top_k * sizes.expert_bytes / sizes.experts
    return 2 * requests * (routed + sizes.shared_bytes) / BYTES


def ffn_bytes(sizes: Sizes, requests: float) -> float:
    """Return bytes that one pass of the FFN reads and writes: all weights, inputs and outputs."""
    values = BYTES * requests * (sizes.hidden + sizes.width)
    return sizes.expert_bytes + sizes.shared_bytes + values


# --------------------------------------------------------------------------- time of a layer


class LayerTime(NamedTuple):
    """Time of a layer in s by lanes; the device's is attention's and FFN's together."""

    link: float
    host: float
    device_attention: float
    device_ffn: float

    @property
    def device(self) -> float:
        """Time of the device in s."""
        return self.device_attention + self.device_ffn

    @property
    def total(self) -> float:
        """T_layer in s: the lanes overlap."""
        return max(self.link, self.host, self.device)

    @property
    def limit(self) -> Lane:
        """The lane that takes T_layer."""
        lanes: dict[Lane, float] = {"link": self.link, "host": self.host, "device": self.device}
        return max(lanes, key=lanes.__getitem__)


def layer_time(sizes: Sizes, roofs: Roofs, texts: Texts, policy: Policy) -> LayerTime:
    """Return the time of one layer for the batch, by lanes.

    A lane takes the longer of its bytes and its FLOPs.  The device reads a layer's weights once for
    each micro-batch, the host once for the batch.
    """
    n, q, moved = policy.batch, policy.micro_batches, 1 - policy.resident
    context = texts.prompt + texts.new
    up = host = attention = 0.0
    core_bytes = attention_bytes(sizes, n, context)
    core_flops = attention_flops(sizes, n, context)
    if policy.attention_on_device:
        up += (1 - policy.cached) * n * sizes.kv_bytes * (texts.prompt + texts.new / 2)
        attention = max(core_bytes / roofs.gpu_bandwidth, core_flops / roofs.gpu_flops)
    else:
        host += max(core_bytes / roofs.host_bandwidth, core_flops / roofs.host_flops)
    read, flops = q * ffn_bytes(sizes, policy.micro_batch), ffn_flops(sizes, n)
    if policy.experts_on_device:
        up += sizes.expert_bytes * moved
    else:
        host_read, host_flops = _experts_on_host(sizes, n, moved)
        host += max(host_read / roofs.host_bandwidth, host_flops / roofs.host_flops)
        read -= q * sizes.expert_bytes * moved
        flops -= host_flops
    ffn = max(read / roofs.gpu_bandwidth, flops / roofs.gpu_flops)
    return LayerTime(up / roofs.link_bandwidth, host, attention, ffn)


def _experts_on_host(sizes: Sizes, requests: float, share: float) -> tuple[float, float]:
    """Return bytes and FLOPs of the share of a layer's routed experts that the host computes."""
    values = BYTES * requests * (sizes.hidden + sizes.width)
    flops = 2 * requests * sizes.top_k * sizes.expert_bytes / sizes.experts / BYTES
    return share * (sizes.expert_bytes + values), share * flops


def throughput(sizes: Sizes, texts: Texts, batch: int, layer_s: float) -> float:
    """Return tokens/s of decode: N n / (T (n - 1) L).  The first token is the prefill's."""
    return batch * texts.new / (layer_s * (texts.new - 1) * sizes.layers)


# --------------------------------------------------------------------------- memory


class Need(NamedTuple):
    """Peak memory in bytes as a function of r_w: ``fixed`` + ``per_share`` · r_w."""

    fixed: float
    per_share: float

    def at(self, resident: float) -> float:
        """Return the bytes for a share of resident experts."""
        return self.fixed + self.per_share * resident

    def shares(self, limit: float) -> tuple[float, float]:
        """Return the lowest and highest share in 0 to 1 that needs at most ``limit`` bytes.

        The lowest is above the highest if there is none.
        """
        if self.per_share == 0:
            return (0.0, 1.0) if self.fixed <= limit else (1.0, 0.0)
        edge = (limit - self.fixed) / self.per_share
        return (0.0, min(edge, 1.0)) if self.per_share > 0 else (max(edge, 0.0), 1.0)


def device_need(sizes: Sizes, texts: Texts, policy: Policy) -> Need:
    """Return the device's peak memory: weights, hidden states, KV, two buffers, a kernel's values.

    D + W L r_w + 4 (s + n) H N L r_c + max(4 h1 N, 4 h1 μ s + 2 h1 N s + 8 s H μ (1 - r_c)) +
    2 W (1 - r_w) F_g + 2.4 μ k s (h1 + 3 h2); the middle term is the code's for a T4.
    """
    n, mu, s, h1 = policy.batch, policy.micro_batch, texts.prompt, sizes.hidden
    kv = (s + texts.new) * sizes.kv_bytes * n * sizes.layers * policy.cached
    staged = 2 * s * sizes.kv_bytes * mu * (1 - policy.cached)
    prefill = 2 * BYTES * h1 * mu * s + BYTES * h1 * n * s + staged
    states = max(2 * BYTES * h1 * n, prefill)
    kernel = BYTES * FUSED * mu * sizes.top_k * s * (h1 + 3 * sizes.width)
    buffers = 2 * sizes.expert_bytes * policy.experts_on_device
    fixed = sizes.resident_bytes + kv + states + kernel + buffers
    return Need(fixed, sizes.expert_bytes * sizes.moe_layers - buffers)


def host_need(sizes: Sizes, texts: Texts, policy: Policy) -> Need:
    """Return the host's peak memory: experts, KV, a prompt's hidden states, pinned buffers.

    W L (1 - r_w) + 4 (s + n) H N L (1 - r_c) + 2 h1 N s + 2 W (1 - r_w) F_g.
    """
    n, s = policy.batch, texts.prompt
    kv = (s + texts.new) * sizes.kv_bytes * n * sizes.layers * (1 - policy.cached)
    buffers = 2 * sizes.expert_bytes * policy.experts_on_device
    moved = sizes.expert_bytes * sizes.moe_layers + buffers
    return Need(moved + kv + BYTES * sizes.hidden * n * s, -moved)
