"""Attention kinds of models of 2026 that a `ModelShape` adds to one kind of full attention.

Linear attention and state-space layers, layers with other heads, an indexer that chooses cached
tokens, and a cache that compresses several tokens into one entry.
"""

from pydantic import BaseModel, ConfigDict, Field

#: Largest allowed counts of heads, widths and tokens, and of parameters.
MOST_WIDTH, MOST_PARAMS = 10**9, 10**13


class LinearAttention(BaseModel):
    """Layers whose mixer keeps a state of constant size instead of a KV cache.

    Gated DeltaNet, Kimi delta attention (KDA), Mamba-2 and the like.

    Attributes:
        kind: name of the mixer.
        layers: decoder layers that have it.
        params: parameters of one such mixer, norms included.
        state_values: values of one layer's recurrent state.
        conv_values: values of one layer's state of the short convolution.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    layers: tuple[int, ...]
    params: int = Field(gt=0, le=MOST_PARAMS)
    state_values: int = Field(ge=0, le=MOST_PARAMS)
    conv_values: int = Field(default=0, ge=0, le=MOST_PARAMS)


class OtherHeads(BaseModel):
    """Layers whose attention has other heads than the shape's ``num_heads`` and so on.

    Attributes:
        layers: decoder layers that have these heads.
        one_projection: keys and values come from one projection; both are cached.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: tuple[int, ...]
    num_heads: int = Field(gt=0, le=MOST_WIDTH)
    num_kv_heads: int = Field(gt=0, le=MOST_WIDTH)
    head_dim: int = Field(gt=0, le=MOST_WIDTH)
    one_projection: bool = False


class Indexer(BaseModel):
    """A small scorer that chooses the cached tokens which attention reads (DSA, QSA).

    Attributes:
        heads: its query heads.
        head_dim: values of a head, and of the key that it caches for each token.
        top_k: cached tokens that attention reads at most.
        layers: decoder layers that compute scores of their own; None is all with full attention.
            Other layers use the choice of the layer before.
        pool: number of tokens whose keys are scored as one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    heads: int = Field(gt=0, le=MOST_WIDTH)
    head_dim: int = Field(gt=0, le=MOST_WIDTH)
    top_k: int = Field(gt=0, le=MOST_WIDTH)
    layers: tuple[int, ...] | None = None
    pool: int = Field(default=1, gt=0, le=MOST_WIDTH)


class CompressedCache(BaseModel):
    """Layers whose cache beyond the window has one entry for each ``ratio`` tokens (DeepSeek-V4).

    Attributes:
        layers: decoder layers with this ratio.
        ratio: number of tokens in one entry.
        index_values: values of an entry's index key, 0 without an indexer.
        top_k: entries that a token reads at most; None is all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: tuple[int, ...]
    ratio: int = Field(gt=1, le=MOST_WIDTH)
    index_values: int = Field(default=0, ge=0, le=MOST_WIDTH)
    top_k: int | None = Field(default=None, gt=0, le=MOST_WIDTH)
