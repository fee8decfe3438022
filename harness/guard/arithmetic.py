"""Identifies how this computer's floating-point operations round, without any of moebench's code.

Rounding follows from the processor, the kernels that torch chooses for it, their versions and the
number of threads.  No list of names determines it: two processors with the same features can be
given different kernels.  So the results of fixed operations identify it.
"""

import hashlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

#: Row counts: decode steps of one and three sequences, prompts.
ROWS = (1, 3, 20, 100)
#: Inner and outer dimensions of products, from a scale model's head dimension to its vocabulary.
WIDTHS = ((16, 64), (56, 112), (64, 64), (96, 128), (112, 56), (128, 1024))


@torch.inference_mode()
def probe(threads: int) -> dict[str, str]:
    """Return a hash of the results of fixed operations, by kind: equal where they round alike.

    Args:
        threads: threads of the runs that the hashes describe.

    Returns:
        16 hexadecimal digits for each kind of operation.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    digests: dict[str, hashlib._Hash] = {}
    for kind, result in _operations():
        digest = digests.setdefault(kind, hashlib.sha256())
        digest.update(result.contiguous().numpy().tobytes())
    torch.set_num_threads(before)
    return {kind: digest.hexdigest()[:16] for kind, digest in digests.items()}


def _operations() -> Iterator[tuple[str, Tensor]]:
    """Yield the kind and the result of each operation."""
    for rows in ROWS:
        for inner, outer in WIDTHS:
            x, w = _values(rows, inner), _values(outer, inner)
            yield "product", F.linear(x, w)
            yield "batched product", torch.bmm(x[None].expand(3, -1, -1), _values(3, inner, outer))
            yield "norm", x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
            yield "exponential", F.silu(x)
            yield "exponential", x.softmax(-1)
            yield "exponential", (8 * x).log_softmax(-1)
        heads = _values(1, 4, rows, 16)
        yield "attention", F.scaled_dot_product_attention(heads, heads, heads, is_causal=rows > 1)
        yield "sum", _values(rows, 1024).sum(-1)


def _values(*shape: int) -> Tensor:
    """Return numbers in [-1, 1] in an irregular order, each a division of two small integers.

    A division is rounded alike everywhere (IEEE 754), and its digits fill the mantissa, so that
    later operations must round.
    """
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7919 + 104729) % 1999 - 999).float().div(999).reshape(shape)
