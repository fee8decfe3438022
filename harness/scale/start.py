"""Initial weights of a scale model.

Answering a question means copying from it, and copying needs two attention heads that work
together (Olsson et al. 2022, "In-context learning and induction heads"): one tells each token what
stood before it, a later one looks for the place before which the current token stood.  A narrow
model with 28 layers takes ten million tokens to find them.  Initialising a circuit that the task
needs ("mimetic" initialisation, Trockman & Kolter 2023) saves that: half the residual stream starts
as the token itself, a quarter as "the token before" and a quarter as "what was copied", and a few
heads start as that pair.  Everything else is drawn at random, and all of it is trained.

Shape letters: H hidden, D head, N = `COPIED`, V vocabulary.
"""

import math

import torch
from torch import Tensor

from moebench.substrate.models.shape import ModelShape

#: Directions of the residual stream for the token before, and for what was copied.
COPIED = 14
#: Layers whose first head attends to the previous token, and whose last head copies.
PREVIOUS_LAYERS, COPYING_LAYERS = (0, 1), (2, 3, 4)
#: Attention logits of such a head on the place that it looks for.
PREVIOUS_LOGIT, MATCH_LOGIT = 20.0, 14.0
#: How large the direction that all embeddings share is, beside the token's own.
SHARED = 0.7
#: How strongly the head reads what was copied.
READ_COPIED = 0.3
#: Frequencies (radians a token) that tell neighbours apart, and those that barely turn in 256.
FAST, SLOW = 0.1, 0.012


def initial(name: str, dims: tuple[int, ...], shape: ModelShape, g: torch.Generator) -> Tensor:
    """A random tensor: fan-in scaling, smaller where it writes to the residual stream."""
    if name.endswith(".bias"):
        return torch.zeros(dims)
    if len(dims) == 1:
        return torch.ones(dims)
    if name in ("embed", "head"):
        return torch.randn(dims, generator=g) * (1.0 if name == "embed" else 0.02)
    scale = dims[-1] ** -0.5
    if name.endswith((".o", ".down")):
        scale /= math.sqrt(2 * shape.num_layers)
    drawn: Tensor = torch.randn(dims, generator=g) * scale
    return drawn


def teach_copying(tensors: dict[str, Tensor], shape: ModelShape, g: torch.Generator) -> None:
    """Set the heads that copy, and the parts of the residual stream that they read and write.

    Left as drawn where a model is too small to have these parts.
    """
    n, d, h = COPIED, shape.head_dim, shape.hidden_size
    frequencies = shape.rope_theta ** (-torch.arange(d // 2) * 2.0 / d)
    slow = torch.nonzero(frequencies < SLOW).flatten()[: n // 2]
    if h < 3 * n + 1 or d < n or not len(slow) or shape.num_layers <= max(COPYING_LAYERS):
        return
    basis = torch.linalg.qr(torch.randn(h, h, generator=g))[0].T
    before, copied, always, token = basis[:n], basis[n : 2 * n], basis[2 * n], basis[2 * n + 1 :]
    here = token[:n]  # the part of the token that heads compare and copy

    own = tensors["embed"] @ token.T @ token
    own = own / own.norm(dim=-1, keepdim=True) * math.sqrt(h)
    tensors["embed"] = own + always * (math.sqrt(h) * SHARED)
    if not shape.tied_head:
        tensors["head"] += READ_COPIED * (own @ here.T @ copied) / math.sqrt(n)
    for layer in shape.moe_layers:  # what all tokens share must not choose experts
        router = tensors[f"layers.{layer}.router"]
        tensors[f"layers.{layer}.router"] = router - (router @ always)[:, None] * always

    _previous_token_heads(tensors, shape, frequencies, here, before, always)
    _copying_heads(tensors, shape, slow, here, before, copied)


def _previous_token_heads(
    tensors: dict[str, Tensor], shape: ModelShape, frequencies: Tensor, here: Tensor,
    before: Tensor, always: Tensor,
) -> None:  # fmt: skip
    """The query is rotated back by one position, so that it matches the previous token's key."""
    fast = (frequencies > FAST).float()
    query = torch.cat((fast * torch.cos(frequencies), -fast * torch.sin(frequencies)))
    key = torch.cat((fast, torch.zeros_like(fast)))
    share = SHARED**2 / (1 + SHARED**2)  # of a normalised state's square
    strength = PREVIOUS_LOGIT * math.sqrt(shape.head_dim)
    scale = math.sqrt(strength / (float(fast.sum()) * share * shape.hidden_size))
    for layer in PREVIOUS_LAYERS:
        head = _Head(tensors, shape, layer, 0)
        head.q.copy_(torch.outer(query, always) * scale)
        head.k.copy_(torch.outer(key, always) * scale)
        head.carry(here, before)


def _copying_heads(
    tensors: dict[str, Tensor], shape: ModelShape, slow: Tensor, here: Tensor, before: Tensor,
    copied: Tensor,
) -> None:  # fmt: skip
    """The token here is compared with the token before each place; what stands there is copied."""
    places = torch.cat((slow, slow + shape.head_dim // 2))
    m = len(places)
    scale = math.sqrt(MATCH_LOGIT * math.sqrt(shape.head_dim) / m / 0.6)
    for layer in COPYING_LAYERS:
        head = _Head(tensors, shape, layer, shape.num_heads - 1)
        for part, read in ((head.q, here), (head.k, before)):
            part.zero_()
            part[places] = read[:m] * scale
        head.carry(here, copied)


class _Head:
    """One attention head's rows of a layer's projections, to be written in place."""

    def __init__(
        self, tensors: dict[str, Tensor], shape: ModelShape, layer: int, head: int
    ) -> None:
        d = shape.head_dim
        shared = head * shape.num_kv_heads // shape.num_heads  # of the keys' and values' heads
        own, theirs = slice(head * d, (head + 1) * d), slice(shared * d, (shared + 1) * d)
        p = f"layers.{layer}"
        self.q, self.k, self.v = (
            tensors[f"{p}.{name}"][rows] for name, rows in zip("qkv", (own, theirs, theirs),
                                                               strict=True)
        )  # fmt: skip
        self.o = tensors[f"{p}.o"][:, own]

    def carry(self, read: Tensor, write: Tensor) -> None:
        """Values take the directions ``read`` ``[N, H]`` to the directions ``write``."""
        self.v.zero_()
        self.o.zero_()
        self.v[: len(read)] = read
        self.o[:, : len(write)] = write.T
