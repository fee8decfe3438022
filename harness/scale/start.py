"""Initial weights of a scale model before training, with attention heads that copy.

Answering a prompt requires copying from it, and copying needs two attention heads that work
together (Olsson et al. 2022, "In-context learning and induction heads"): one writes the preceding
token into each position, a later one finds positions whose preceding token is the current token.
A narrow model with 28 layers needs ten million tokens to learn them.  Initialising a circuit that
the task needs ("mimetic" initialisation, Trockman & Kolter 2023) saves these tokens: half the
residual stream starts as the token itself, a quarter as the preceding token and a quarter as the
copied token, and a few heads start as that pair.  All other weights are random; all are trained.

Shape letters: H hidden, D head, N = `COPIED`, V vocabulary.
"""

import math

import torch
from torch import Tensor

from moebench.substrate.models.shape import ModelShape

#: Number of residual-stream directions for the preceding token, and for the copied token.
COPIED = 14
#: Layers whose first head attends to the preceding token, and layers whose last head copies.
PREVIOUS_LAYERS, COPYING_LAYERS = (0, 1), (2, 3, 4)
#: Attention logits of a preceding-token head and of a copying head at their target position.
PREVIOUS_LOGIT, MATCH_LOGIT = 20.0, 14.0
#: Size of the direction that all embeddings share, relative to the token's own part.
SHARED = 0.7
#: How strongly the output head reads the directions of the copied token.
READ_COPIED = 0.3
#: RoPE frequencies (radians per token) that separate neighbours, and that barely turn in 256.
FAST, SLOW = 0.1, 0.012


def initial(name: str, dims: tuple[int, ...], shape: ModelShape, g: torch.Generator) -> Tensor:
    """Return a tensor's random initial value: fan-in scaling, smaller for residual outputs."""
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
    """Initialise the copying heads and the residual-stream directions that they read and write.

    Weights stay random if the model is too small for these directions.
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
    for layer in shape.moe_layers:  # the direction that all tokens share must not choose experts
        router = tensors[f"layers.{layer}.router"]
        tensors[f"layers.{layer}.router"] = router - (router @ always)[:, None] * always

    _previous_token_heads(tensors, shape, frequencies, here, before, always)
    _copying_heads(tensors, shape, slow, here, before, copied)


def _previous_token_heads(
    tensors: dict[str, Tensor], shape: ModelShape, frequencies: Tensor, here: Tensor,
    before: Tensor, always: Tensor,
) -> None:  # fmt: skip
    """Initialise heads whose query, rotated back by one position, matches the preceding key."""
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
    """Initialise heads that copy the tokens whose preceding token equals the current token."""
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
    """Views of one attention head's rows of a layer's projections, for writing in place."""

    def __init__(
        self, tensors: dict[str, Tensor], shape: ModelShape, layer: int, head: int
    ) -> None:
        d = shape.head_dim
        shared = head * shape.num_kv_heads // shape.num_heads  # index of the key/value head
        own, theirs = slice(head * d, (head + 1) * d), slice(shared * d, (shared + 1) * d)
        p = f"layers.{layer}"
        self.q, self.k, self.v = (
            tensors[f"{p}.{name}"][rows] for name, rows in zip("qkv", (own, theirs, theirs),
                                                               strict=True)
        )  # fmt: skip
        self.o = tensors[f"{p}.o"][:, own]

    def carry(self, read: Tensor, write: Tensor) -> None:
        """Make the head copy the directions ``read`` ``[N, H]`` into the directions ``write``."""
        self.v.zero_()
        self.o.zero_()
        self.v[: len(read)] = read
        self.o[:, : len(write)] = write.T
