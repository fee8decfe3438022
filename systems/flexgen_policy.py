"""FlexGen's linear program: shares of weights, cache and activations on GPU, CPU and disk.

"FlexGen: High-Throughput Generative Inference of Large Language Models with a Single GPU" (Y. Sheng
et al., ICML 2023, arXiv 2303.06865), as its code has it (``experimental/cost_model.py``,
FMInference/FlexLLMGen 004ffef).  For a given block (sequences whose tokens share a layer's weights)
and micro-batch, the program minimises the time of a block:

    T = l · T_pre + l · (n - 1) · T_gen

A share is a part of 1: w of the weights, c of the KV cache, h of the activations, each on g (GPU),
c (CPU) or d (disk).  Memory limits are multiplied by 0.8.

    FlexGen                        moebench
    ───────                        ────────
    l, s, n, bls, gbs              ``layers``, ``prompt``, ``new_tokens``, ``block``, ``micro``
    h1, h2, nh                     ``hidden``, ``ffn``, ``heads``
    wi = 8 h1² + 4 h1 h2           ``layer_bytes``; Mixtral: 5 h1² + 6 h1 h2 E
    8 h1² + 4 h1 h2 operations     ``layer_flops``, of one token
    4 h1, a token's keys, values   ``kv_bytes``
    ctog, gtoc, dtoc, ctod         up, down, read, write, in seconds of a layer
    wn, cn, hn (NVMe)              ``w.disk``, ``c.disk``, ``h.disk``
    alpha_g, alpha_c, alpha_n      `USABLE`
    CostModelConfig                `Rates`; its numbers are those of a T4 at Google Cloud

Deviations and readings:

- T_gen is up + max(down, read, write, compute), as in the code.  ``form="max"`` is the maximum of
  all five, which a comment of the code keeps.
- ``hn`` is 0: FlexGen's runtime has no activations on the disk.
- For models with experts, operations are those of the active experts, and ``ffn`` is their width
  together.  FlexGen knows dense layers alone.
"""

from math import log2
from typing import Any, Literal, NamedTuple

import numpy as np

from moebench.substrate.errors import BudgetError

GIB, TERA = 2**30, 1e12

#: Coefficients of the unknowns, then a constant.
Row = np.ndarray[Any, np.dtype[np.float64]]

#: The part of each memory that the program may fill.
USABLE = 0.8

#: How the times of a layer's lanes make up its time.
TimeForm = Literal["code", "max"]

#: The unknowns as rows of coefficients: shares of weights, cache and activations on GPU, CPU and
#: disk, seconds of a layer in prefill and in decode; the last one is the constant.
WG, WC, WD, CG, CC, CD, HG, HC, HD, T_PRE, T_GEN, ONE = np.eye(12)


class Rates(NamedTuple):
    """Bytes per second between memories, operations per second, and bytes of the memories.

    A T4's, as FlexGen fits them.  ``_pre`` is prefill, ``_gen`` decode.
    """

    up: float = 12.89 * GIB
    down_cache: float = 0.97 * GIB
    down_hidden: float = 4.82 * GIB
    read: float = 0.473 * GIB
    write_cache_pre: float = 0.746 * GIB
    write_hidden_pre: float = 2.015 * GIB
    write_gen: float = 2.015 * GIB
    product_pre: float = 21.24 * TERA
    product_gen: float = 4.3 * TERA
    attention_pre: float = 9.97 * TERA
    attention_gen: float = 0.079 * TERA
    host: float = 0.0123 * TERA
    gpu_bytes: float = 15.0 * GIB
    cpu_bytes: float = 204.0 * GIB
    disk_bytes: float = 1500.0 * GIB


#: The rates and memories that FlexGen's code has.
T4 = Rates()


class Work(NamedTuple):
    """A model's layer and the block that passes through it; sizes in bytes, 2 a value."""

    layers: int
    layer_bytes: float
    layer_flops: float
    hidden: int
    ffn: int
    heads: int
    kv_bytes: float
    prompt: int = 512
    new_tokens: int = 32
    block: int = 1
    micro: int = 1


class Shares(NamedTuple):
    """Parts of 1 on each memory."""

    gpu: float
    cpu: float
    disk: float


class Policy(NamedTuple):
    """The solution: shares of weights, cache and activations; seconds of a layer and the block."""

    w: Shares
    c: Shares
    h: Shares
    prefill_s: float
    decode_s: float
    total_s: float


def mixtral_layer_bytes(hidden: int, ffn: int, experts: int) -> int:
    """Return the bytes of a Mixtral layer in 16 bits as MoE-Lightning's artifact counts them.

    Keys and values have a quarter of the heads; the gate and the norms are left out.
    """
    return 5 * hidden**2 + 6 * hidden * ffn * experts


def upload_s(layer_bytes: float, share: float, bytes_per_s: float) -> float:
    """Return the seconds in which a layer's share off the GPU crosses the link."""
    return layer_bytes * share / bytes_per_s


def host_flops(rates: Rates, hidden: int, micro: int) -> float:
    """Return the CPU's operations per second in attention, which small micro-batches lower."""
    small, narrow = max(0.0, log2(64 / micro)), max(0.0, log2(4096 / hidden))
    return rates.host * max(0.1, 1 + 0.0168 * small * narrow - 0.0328 * small - 0.0621 * narrow)


def solve(work: Work, rates: Rates = T4, form: TimeForm = "code", on_gpu: bool = False) -> Policy:
    """Return the shares that minimise a block's time.

    Args:
        on_gpu: cache and activations must be on the GPU, as in moebench's engine.

    Raises BudgetError: no shares fit into the memories.
    """
    from scipy.optimize import linprog

    pre, gen = lanes_in_prefill(work, rates), lanes_in_decode(work, rates)
    if form == "code":
        (up, down, read, write, compute), (up_gen, *others) = pre, gen
        pre, gen = [up + read, down + write, compute], [up_gen + lane for lane in others]
    at_most_zero = [lane - T_PRE for lane in pre] + [lane - T_GEN for lane in gen]
    # In GiB, so that the solver's tolerances suit bytes and seconds.
    at_most_zero += [(used - USABLE * room * ONE) / GIB for used, room in memories(work, rates)]
    zero = [WG + WC + WD - ONE, CG + CC + CD - ONE, HG + HC + HD - ONE, HD]
    zero += [CG - ONE, HG - ONE] if on_gpu else []
    upper, equal = np.array(at_most_zero), np.array(zero)
    found = linprog(
        (work.layers * (T_PRE + (work.new_tokens - 1) * T_GEN))[:-1],
        A_ub=upper[:, :-1], b_ub=-upper[:, -1], A_eq=equal[:, :-1], b_eq=-equal[:, -1],
        method="highs",
    )  # fmt: skip
    if not found.success:
        raise BudgetError(
            f"FlexGen's linear program finds no shares of {work.layers} layers of "
            f"{work.layer_bytes / 1e9:.4g} GB that fit at a block of {work.block}; give more "
            "memory, a smaller block or a shorter prompt"
        )
    w, c, h = (Shares(*map(float, found.x[at : at + 3])) for at in (0, 3, 6))
    return Policy(w, c, h, float(found.x[9]), float(found.x[10]), float(found.fun))


def lanes_in_prefill(work: Work, rates: Rates) -> list[Row]:
    """Return the seconds of a layer in prefill: up, down, read, write, compute."""
    _, weights, flops, h1, _, _, kv, s, _, block, _ = work
    cache, states = (s + 1) * kv * block, 2 * s * h1 * block
    products = block * s * (flops / rates.product_pre + 4 * s * h1 / rates.attention_pre)
    return [
        (weights * (WC + WD) + states * (HC + HD)) / rates.up,
        cache / rates.down_cache * (CC + CD) + states / rates.down_hidden * (HC + HD),
        (weights * WD + states * HD) / rates.read,
        cache / rates.write_cache_pre * CD + states / rates.write_hidden_pre * HD,
        products * ONE,
    ]


def lanes_in_decode(work: Work, rates: Rates) -> list[Row]:
    """Return the seconds of a layer for a token: up, down, read, write, compute."""
    _, weights, flops, h1, _, _, kv, s, n, block, micro = work
    length = s + n / 2
    cache, state, scores = length * kv * block, 2 * h1 * block, 4 * block * length * h1
    on_gpu, on_host = scores / rates.attention_gen, scores / host_flops(rates, h1, micro)
    return [
        (weights * (WC + WD) + state * (HC + HD)) / rates.up,
        state / rates.down_hidden * (HC + HD),
        (cache * CD + state * HD) / rates.read + weights / (0.95 * rates.read) * WD,
        (kv * block * CD + state * HD) / rates.write_gen,
        block * flops / rates.product_gen * ONE + on_gpu * CG + on_host * (CC + CD),
    ]


def memories(work: Work, rates: Rates) -> list[tuple[Row, float]]:
    """Return bytes in use and in all: of GPU and CPU in prefill and in decode, and of the disk.

    Two layers' weights pass through the GPU; a micro-batch needs room for what it computes.
    """
    layers, weights, _, h1, h2, heads, kv, s, n, block, micro = work
    model, cache = weights * layers, (s + n) * kv * block * layers
    state, states = 2 * h1 * block, 2 * s * h1 * block
    passing = 2 * h1 * micro * (ONE - HG)
    gpu = model * WG + cache * CG + 2 * weights * (ONE - WG)
    works_pre = micro * s * (18 * h1 + 2 * h2 + 2 * heads * s) * ONE
    attention = (2 * kv * (s + n) + 4 * h1 + 2 * heads * (s + n)) * CG
    works_gen = micro * ((14 * h1 + 2 * h2) * ONE + attention)
    read = weights * WD + 4 * h1 * micro * HD + 2 * (s + n) * kv * micro * CD
    host = (2 * heads * (s + n) + 2 * h1) * micro * ONE
    first_cache = s * kv * block * layers
    staged = weights * (ONE - WG) + s * passing
    return [
        (gpu + states * HG + s * passing + works_pre, rates.gpu_bytes),
        (gpu + state * HG + passing + works_gen, rates.gpu_bytes),
        (model * WC + states * HC + first_cache * CC + staged, rates.cpu_bytes),
        (model * WC + state * HC + cache * CC + read + host, rates.cpu_bytes),
        (model * WD + states * HD + cache * CD, rates.disk_bytes),
    ]
