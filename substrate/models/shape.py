"""The shape of a Mixture-of-Experts model, with its parameter counts, bytes and MoE layers.

A `ModelShape` holds numbers only.  Costs, memory budgets, the decoder and trace synthesis use it;
`substrate.models.config` makes one from a Hugging Face configuration.
"""

import math
from enum import StrEnum
from functools import cached_property
from itertools import zip_longest
from typing import Annotated, ClassVar, Literal, NamedTuple, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from moebench.substrate.choices import ExpertDtype as ExpertDtype
from moebench.substrate.choices import Precision as Precision
from moebench.substrate.choices import RecordDtype as RecordDtype
from moebench.substrate.errors import UsageError
from moebench.substrate.extensible import Extensible
from moebench.substrate.models.mixers import (
    MOST_PARAMS,
    CompressedCache,
    Indexer,
    LinearAttention,
    OtherHeads,
)

#: Bits that one weight takes when stored.  ``4bit`` is 4-bit with an fp16 scale and a 4-bit zero
#: point per group of 128.  ``2bit`` is HQQ as Mixtral-Offloading's demo stores experts: 2-bit with
#: an 8-bit scale and an 8-bit zero point per group of 16, and an fp16 scale and zero point per 128
#: of those scales (dvmazur/mixtral-offloading ce54518; 66.4 MB for an expert of Mixtral 8x7B).
#: ``4bit-g64`` is FlexGen's: 4-bit with an fp16 minimum and an fp16 scale per group of 64.
BITS_PER_WEIGHT: dict[str, float] = {
    "fp32": 32, "bf16": 16, "fp16": 16, "4bit": 4.15625, "2bit": 3.015625,
    "4bit-g64": 4.5,
}  # fmt: skip

#: Group sizes in int4, for which torch has packed products: inputs of a row that share a scale and
#: a zero point.  A row has groups of the first size that divides its length.
GROUPS = (128, 64, 32)

#: Bits of a weight in the types whose rows share one scale and have no zero point.
ROW_BITS: dict[RecordDtype, int] = {"int8": 8, "row-int4": 4, "row-int2": 2}

#: Bytes of a scale or a zero point (bf16; fp16 where rows of 4 or 2 bits share a scale).
SCALE_BYTES = 2

#: Tensors of a linear-attention mixer and of an indexer, as most implementations have them.
LINEAR_TENSORS, INDEXER_TENSORS = 8, 5

#: Rotary scaling types that `substrate.models.rotary` computes.
ROPE_TYPES = ("default", "linear", "llama3", "longrope", "yarn")

#: Largest allowed number in a shape, far below every limit of arithmetic.
MOST = 10**9
MOST_LAYERS = 10_000


def _no_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a truth value is no number")
    return value


Count = Annotated[int, BeforeValidator(_no_truth_value), Field(gt=0, le=MOST)]
Number = Annotated[float, BeforeValidator(_no_truth_value)]
Whole = Annotated[int, BeforeValidator(_no_truth_value)]


class GateKind(StrEnum):
    """Rules that turn gate logits into the weights of the chosen experts."""

    SOFTMAX_TOPK = "softmax_topk"
    SOFTMAX_TOPK_RENORM = "softmax_topk_renorm"
    TOPK_SOFTMAX = "topk_softmax"
    TOPK_SIGMOID = "topk_sigmoid"
    SIGMOID_BIAS_TOPK_RENORM = "sigmoid_bias_topk_renorm"
    SPARSEMIXER = "sparsemixer"


#: Kernels of a mixer over those of plain attention (`ModelShape.mixer_kernels`).
LATENT_KERNELS, LINEAR_KERNELS = 28 / 18, 40 / 18


class LatentAttention(Extensible):
    """Multi-head latent attention (DeepSeek-V2): the cache keeps one compressed vector a token.

    Attributes:
        q_lora_rank: width of the compressed queries; None is queries without compression.
    """

    NEWER: ClassVar[frozenset[str]] = frozenset({"q_lora_rank"})

    model_config = ConfigDict(frozen=True, extra="forbid")

    kv_lora_rank: int = Field(gt=0)
    qk_rope_head_dim: int = Field(ge=0)
    qk_nope_head_dim: int = Field(gt=0)
    v_head_dim: int = Field(gt=0)
    q_lora_rank: int | None = Field(default=None, gt=0)

    def products(self, decode: bool) -> int:
        """Return the multiplications of a head for one query and one key, scores and values.

        A decoded token's query is multiplied with the latent vectors themselves (DeepSeek-V2, 2.1:
        the up-projection is absorbed); a prompt's with keys and values that are projected up.
        """
        if decode:
            return 2 * self.kv_lora_rank + self.qk_rope_head_dim
        return self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim


class RopeScaling(BaseModel):
    """Parameters that stretch rotary positions beyond the lengths of a model's first training.

    Attributes:
        attention_factor: factor of cosines and sines; longrope uses it for texts of up to
            ``original_max_positions``, and ``long_attention_factor`` for longer ones.
        mscale_all_dim: DeepSeek scales attention by the square of its `yarn_mscale`.
        beta_fast, beta_slow, truncate: for yarn.
        low_freq_factor, high_freq_factor: for llama3.
        short_factor, long_factor: for longrope, one for each frequency.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    factor: float = Field(gt=0)
    original_max_positions: int = Field(gt=0)
    attention_factor: float = Field(default=1.0, gt=0)
    long_attention_factor: float = Field(default=1.0, gt=0)
    mscale_all_dim: float = 0.0
    beta_fast: float = Field(default=32.0, gt=0)
    beta_slow: float = Field(default=1.0, gt=0)
    truncate: bool = True
    low_freq_factor: float = Field(default=1.0, gt=0)
    high_freq_factor: float = Field(default=4.0, gt=0)
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


def yarn_mscale(factor: float, mscale: float) -> float:
    """Return YaRN's factor of rotated queries and of rotated keys."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


class AttentionWindow(BaseModel):
    """Layers whose attention is limited to the last ``size`` positions or to a row's own chunk."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["sliding", "chunked"]
    size: int = Field(gt=0)
    layers: tuple[int, ...]

    def first(self, position: int) -> int:
        """Return the first position that the row at ``position`` sees."""
        if self.kind == "chunked":
            return position // self.size * self.size
        return max(0, position - self.size + 1)


class Temperature(BaseModel):
    """Llama 4's scale of queries in layers without rotary positions.

    The scale is log(1 + floor((position + 1) / floor)) · scale + 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    floor: float = Field(gt=0)
    scale: float


class ModelShape(Extensible):
    """All numbers of a decoder that placement, costs and the forward pass need.

    Parameter counts are exact and reproduce the published totals; byte counts follow from the
    storage precision.  "Common" parameters are all that are not a routed expert's.  A shape with a
    field of `NEWER` has no forward pass: it is charged, and routing is replayed.
    """

    NEWER: ClassVar[frozenset[str]] = frozenset({
        "linear", "other_heads", "indexer", "compressed", "output_gate", "shared_kv",
        "attention_counts", "ffn_matrices", "without_attention", "without_ffn", "lookup_params",
    })  # fmt: skip

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    family: str
    num_layers: Annotated[Count, Field(le=MOST_LAYERS)]
    hidden_size: Count
    vocab_size: Count

    num_heads: Count
    num_kv_heads: Count
    head_dim: Count
    qkv_bias: bool = False
    output_bias: bool = False
    attention_sinks: bool = False
    #: ``l2`` has no weights, and layers without rotary positions have no ``l2`` norm.
    qk_norm: Literal["none", "head", "full", "l2"] = "none"
    latent: LatentAttention | None = None
    clip_qkv: Number | None = None
    rope_theta: Number = Field(default=10_000.0, gt=0)
    rope_type: str = "default"
    rope_scaling: RopeScaling | None = None
    #: Number of rotated values of a head; None is all.
    rotary_dim: Whole | None = Field(default=None, gt=0, le=MOST)
    #: A rotated pair is two neighbouring values, not two values half a head apart.
    rope_interleaved: bool = False
    nope_layers: tuple[int, ...] = ()
    nope_temperature: Temperature | None = None
    window: AttentionWindow | None = None
    max_positions: Whole = Field(default=4096, gt=0, le=MOST)

    norm: Literal["rms", "layer"] = "rms"
    norm_eps: Number = Field(default=1e-6, gt=0)
    tied_head: bool = False
    head_bias: bool = False

    num_experts: Annotated[Count, Field(le=2**16)]
    top_k: Count
    expert_width: Count
    expert_bias: bool = False
    #: gpt-oss: bound of an expert's clamped projections, and slope of the sigmoid in its SwiGLU.
    swiglu_limit: Number | None = None
    swiglu_alpha: Number = 1.0
    dense_layers: tuple[int, ...] = ()
    dense_width: Whole = Field(default=0, ge=0, le=MOST)
    shared_width: Whole = Field(default=0, ge=0, le=MOST)
    shared_gated: bool = False
    gate: GateKind
    gate_bias: bool = False
    gate_jitter: Number = 0.01
    #: Number of expert groups, and number of groups from which a token may choose.
    gate_groups: tuple[int, int] | None = None
    routed_scaling_factor: Number = 1.0

    linear: LinearAttention | None = None
    other_heads: OtherHeads | None = None
    indexer: Indexer | None = None
    compressed: tuple[CompressedCache, ...] = ()
    #: Gate of the attention's output: of each value, or one for each head.
    output_gate: Literal["none", "value", "head"] = "none"
    #: One cached vector of each KV head is both key and value.
    shared_kv: bool = False
    #: Parameters of each layer's attention where they are counted from tensors, not from widths.
    attention_counts: tuple[Annotated[Whole, Field(ge=0, le=MOST_PARAMS)], ...] = ()
    #: Matrices of an expert: 2 without a gate projection.  Shared and dense blocks have as many.
    ffn_matrices: Literal[2, 3] = 3
    #: Layers that are a feed-forward part alone, and layers (of ``dense_layers``) without one.
    without_attention: tuple[int, ...] = ()
    without_ffn: tuple[int, ...] = ()
    #: Parameters of tables of which a token reads a few rows; they are in no other count but the
    #: total, and are kept off the device.
    lookup_params: Whole = Field(default=0, ge=0, le=MOST_PARAMS)

    @model_validator(mode="after")
    def _consistent(self) -> "ModelShape":
        if any(not 0 <= layer < self.num_layers for layer in self.dense_layers):
            raise ValueError(f"dense_layers name one outside of {self.num_layers} layers")
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k {self.top_k} exceeds num_experts {self.num_experts}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} heads do not divide by {self.num_kv_heads}")
        if not self.dense_width and set(self.dense_layers) - set(self.without_ffn):
            raise ValueError("dense layers need a dense intermediate size")
        if self.gate_groups is not None and self.num_experts % self.gate_groups[0]:
            raise ValueError(f"{self.num_experts} experts in {self.gate_groups[0]} equal groups")
        if not self.moe_layers:
            raise ValueError("no layer has routed experts")
        self._check_kinds()
        return self

    def _check_kinds(self) -> None:
        """Check the layers that the attention kinds name.

        Raises ValueError: they contradict each other or the number of layers.
        """
        if set(self.without_ffn) - set(self.dense_layers):
            raise ValueError("without_ffn names a layer that is not in dense_layers")
        if self.attention_counts and len(self.attention_counts) != self.num_layers:
            raise ValueError(f"attention_counts has not one number for each of {self.num_layers}")
        named: dict[str, tuple[int, ...]] = {"without_attention": self.without_attention}
        for kind in ("linear", "other_heads", "indexer", "window"):
            found = getattr(self, kind)
            named[kind] = (found.layers if found is not None else None) or ()
        named["compressed"] = tuple(i for one in self.compressed for i in one.layers)
        for kind, layers in named.items():
            if any(not 0 <= i < self.num_layers for i in layers) or len(set(layers)) < len(layers):
                raise ValueError(f"{kind} names a layer twice, or one outside of {self.num_layers}")
        if set(named["linear"]) & {*named["without_attention"], *named["other_heads"]}:
            raise ValueError("linear names a layer that has another kind of attention, or none")

    @property
    def weighs_input(self) -> bool:
        """Whether a gate weight multiplies an expert's input instead of its output (Llama 4)."""
        return self.gate is GateKind.TOPK_SIGMOID

    @property
    def corrects_scores(self) -> bool:
        """Whether the gate's bias only corrects scores for the choice; else it is in the logits."""
        return self.gate is GateKind.SIGMOID_BIAS_TOPK_RENORM

    @cached_property
    def moe_layers(self) -> tuple[int, ...]:
        """Layer indices that have routed experts, in order."""
        return tuple(i for i in range(self.num_layers) if i not in self.dense_layers)

    @cached_property
    def moe_rows(self) -> dict[int, int]:
        """Row of each MoE layer in arrays with one row for each MoE layer (dimension ``L``).

        Elsewhere a layer is named by its index among all decoder layers.
        """
        return {layer: row for row, layer in enumerate(self.moe_layers)}

    @cached_property
    def next_moe_layers(self) -> dict[int, int | None]:
        """Next MoE layer of each MoE layer; None for the last."""
        return dict(zip_longest(self.moe_layers, self.moe_layers[1:]))

    # ------------------------------------------------------------------------- parameters

    @property
    def _mixed(self) -> bool:
        """Whether layers may differ in their attention's parameters or cached values."""
        kinds = self.linear, self.other_heads, self.indexer, self.attention_counts
        return any(kinds) or bool(self.without_attention) or bool(self.compressed)

    @property
    def bounds_context(self) -> bool:
        """Whether the attention of some layers reads other parts of the context than of others."""
        return self._mixed or self.window is not None

    @property
    def attention_params(self) -> int:
        """Parameters of one layer's attention; the mean over layers where they differ."""
        if not self._mixed:
            return self.layer_attention_params(0)
        counts = [self.layer_attention_params(i) for i in range(self.num_layers)]
        return round(sum(counts) / len(counts))

    def layer_attention_params(self, layer: int) -> int:
        """Return the parameters of a layer's attention, biases and query/key norms included."""
        if layer in self.without_attention:
            return 0
        if self.linear is not None and layer in self.linear.layers:
            return self.linear.params
        if self.attention_counts:
            return self.attention_counts[layer]
        full = self._full_attention_params if self.latent is None else self._latent_params
        return full(layer) + self._indexer_params(layer)

    def _full_attention_params(self, layer: int) -> int:
        h, other = self.hidden_size, self.other_heads
        heads, kv_heads, width, projections = self.num_heads, self.num_kv_heads, self.head_dim, 2
        if other is not None and layer in other.layers:
            heads, kv_heads, width = other.num_heads, other.num_kv_heads, other.head_dim
            projections -= other.one_projection
        projections -= self.shared_kv
        q_width, kv_width = heads * width, kv_heads * width
        params = h * (q_width + projections * kv_width) + q_width * h
        params += (q_width + projections * kv_width) * self.qkv_bias + h * self.output_bias
        params += heads * self.attention_sinks
        params += h * {"none": 0, "value": q_width, "head": heads}[self.output_gate]
        norms = {"none": 0, "l2": 0, "head": 2 * width, "full": q_width + kv_width}
        return params + norms[self.qk_norm]

    @property
    def query_width(self) -> int:
        """Values of a token's queries, all heads of a layer together."""
        return self.num_heads * self.head_dim

    @property
    def output_params(self) -> int:
        """Parameters of the product behind attention's scores, of layers without other heads."""
        return self.hidden_size * (self.query_width + self.output_bias)

    def _latent_params(self, layer: int) -> int:
        h, m = self.hidden_size, self.latent
        assert m is not None
        query_width = self.num_heads * (m.qk_nope_head_dim + m.qk_rope_head_dim)
        q = h * query_width
        if m.q_lora_rank is not None:
            q = (h + 1 + query_width) * m.q_lora_rank
        down = h * (m.kv_lora_rank + m.qk_rope_head_dim) + m.kv_lora_rank
        up = m.kv_lora_rank * self.num_heads * (m.qk_nope_head_dim + m.v_head_dim)
        return q + down + up + self.num_heads * m.v_head_dim * h

    def _indexer_params(self, layer: int) -> int:
        """Return the parameters of a layer's indexer: queries, key and its norm, head weights."""
        found = self.indexer
        if found is None or not self._computes_index(layer):
            return 0
        rank = None if self.latent is None else self.latent.q_lora_rank
        queries = (rank or self.hidden_size) * found.heads * found.head_dim
        return queries + (self.hidden_size + 2) * found.head_dim + self.hidden_size * found.heads

    def _computes_index(self, layer: int) -> bool:
        found = self.indexer
        if found is None or not self.caches_tokens(layer):
            return False
        return found.layers is None or layer in found.layers

    @cached_property
    def mixer_kernels(self) -> float:
        """Kernels of a layer's attention over those of plain attention, in the mean over layers.

        Latent attention (MLA) has about 28 nodes in llama.cpp's graphs where plain attention has
        18: two more products and norms, the absorbed product, views.  Linear attention (Gated
        DeltaNet, Mamba-2) has about 40: convolution, gates, state update and a gated norm.
        """
        linear = len(self.linear.layers) if self.linear is not None else 0
        full = 1.0 if self.latent is None else LATENT_KERNELS
        return (linear * LINEAR_KERNELS + (self.num_layers - linear) * full) / self.num_layers

    def caches_tokens(self, layer: int) -> bool:
        """Return whether a layer has attention that keeps a KV cache."""
        linear = self.linear is not None and layer in self.linear.layers
        return not linear and layer not in self.without_attention

    @property
    def expert_params(self) -> int:
        """Parameters of one routed expert: gate, up and down projections, or up and down."""
        into = self.ffn_matrices - 1
        biases = (into * self.expert_width + self.hidden_size) * self.expert_bias
        return self.ffn_matrices * self.hidden_size * self.expert_width + biases

    @property
    def shared_params(self) -> int:
        """Parameters of one layer's shared experts (as one block), without their sigmoid gate."""
        return self.ffn_matrices * self.hidden_size * self.shared_width

    @property
    def dense_params(self) -> int:
        """Parameters of one dense layer's feed-forward part."""
        return self.ffn_matrices * self.hidden_size * self.dense_width

    @property
    def gate_params(self) -> int:
        """Parameters of one layer's router."""
        return self.hidden_size * self.num_experts + self.num_experts * self.gate_bias

    @property
    def norm_params(self) -> int:
        """Parameters of one norm over the hidden state."""
        return self.hidden_size * (2 if self.norm == "layer" else 1)

    @property
    def embedding_params(self) -> int:
        """Parameters of the token embedding alone."""
        return self.vocab_size * self.hidden_size

    @property
    def head_params(self) -> int:
        """Parameters that the output head reads (the embedding's, when tied)."""
        return self.embedding_params + self.vocab_size * self.head_bias

    @property
    def own_head_params(self) -> int:
        """Parameters of the output head that are not shared with the embedding."""
        return self.vocab_size * self.head_bias if self.tied_head else self.head_params

    def layer_common_params(self, layer: int) -> int:
        """Return the number of non-expert parameters of a layer."""
        norms = (layer not in self.without_attention) + (layer not in self.without_ffn)
        params = self.layer_attention_params(layer) + norms * self.norm_params
        if layer in self.without_ffn:
            return params
        if layer in self.dense_layers:
            return params + self.dense_params
        return params + self.shared_params + self.hidden_size * self.shared_gated + self.gate_params

    def layer_common_tensors(self, layer: int) -> int:
        """Return the number of non-expert tensors of a layer, which frameworks copy one by one."""
        norms = 2 * (2 if self.norm == "layer" else 1)
        attention = self._attention_tensors(layer)
        into = self.ffn_matrices
        if layer in self.dense_layers:
            return norms + attention + into * (layer not in self.without_ffn)
        shared = into + self.shared_gated if self.shared_width else 0
        return norms + attention + 1 + self.gate_bias + shared

    def _attention_tensors(self, layer: int) -> int:
        if layer in self.without_attention:
            return 0
        if not self.caches_tokens(layer):
            return LINEAR_TENSORS
        indexer = INDEXER_TENSORS * self._computes_index(layer)
        if self.latent is not None:  # The tensors are q, kv_down, kv_norm, kv_up and o.
            return 5 + 2 * (self.latent.q_lora_rank is not None) + indexer
        attention = 4 + 3 * self.qkv_bias + self.output_bias + self.attention_sinks
        return attention + 2 * (self.qk_norm in ("head", "full")) + indexer

    @property
    def common_params(self) -> int:
        """Number of all non-expert parameters."""
        layers = sum(self.layer_common_params(i) for i in range(self.num_layers))
        return self.embedding_params + self.own_head_params + self.norm_params + layers

    @property
    def active_common_params(self) -> int:
        """Number of non-expert parameters that one token reads: all but the embedding table."""
        return self.common_params - self.embedding_params - self.own_head_params + self.head_params

    @property
    def active_params(self) -> int:
        """Number of parameters that one token reads: the head's included, the embedding's not."""
        return self.active_common_params + len(self.moe_layers) * self.top_k * self.expert_params

    @property
    def routed_params(self) -> int:
        """Number of parameters of all routed experts."""
        return len(self.moe_layers) * self.num_experts * self.expert_params

    @property
    def total_params(self) -> int:
        """Number of all parameters, as published."""
        return self.common_params + self.routed_params + self.lookup_params

    # ------------------------------------------------------------------------- bytes

    def expert_bytes(self, precision: Precision | RecordDtype | float) -> int:
        """Return the bytes of one routed expert at a storage precision, or at bits per weight."""
        if isinstance(precision, float) or precision in BITS_PER_WEIGHT:
            return stored_bytes(self.expert_params, cast(Precision, precision))
        stored_as = cast(RecordDtype, precision)
        return sum(packed_bytes(*dims, stored_as) for dims in self.expert_dims)

    @property
    def expert_dims(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Dimensions (rows, inputs) of an expert's two matrices: gate over up, and down."""
        into = (self.ffn_matrices - 1) * self.expert_width
        return (into, self.hidden_size), (self.hidden_size, self.expert_width)

    def common_bytes(self, precision: Precision | float) -> int:
        """Return the bytes of all non-expert weights at a storage precision."""
        return stored_bytes(self.common_params, precision)

    @property
    def kv_values_per_token_layer(self) -> int:
        """Number of values that one token adds to one layer's KV cache.

        Where layers differ it is the mean over all layers, rounded up.
        """
        return math.ceil(self._kv_values_per_token / self.num_layers)

    @property
    def _kv_values_per_token(self) -> float:
        if not self._mixed:
            return self.num_layers * self.kv_values_per_token(0)
        return sum(self.kv_values_per_token(layer) for layer in range(self.num_layers))

    def kv_values_per_token(self, layer: int) -> float:
        """Return the values that one token adds to a layer's KV cache, if no window bounds it."""
        if not self.caches_tokens(layer):
            return 0
        index = self.indexer.head_dim if self.indexer and self._computes_index(layer) else 0
        entries = sum(
            (self._kv_entry(layer) + one.index_values) / one.ratio
            for one in self.compressed
            if layer in one.layers
        )
        return self._kv_entry(layer) + index + entries

    def _kv_entry(self, layer: int) -> int:
        """Return the values that one entry of a layer's cache has: keys and values of a token."""
        if self.latent is not None:
            return self.latent.kv_lora_rank + self.latent.qk_rope_head_dim
        kv_heads, width = self.num_kv_heads, self.head_dim
        if self.other_heads is not None and layer in self.other_heads.layers:
            kv_heads, width = self.other_heads.num_kv_heads, self.other_heads.head_dim
        return (1 if self.shared_kv else 2) * kv_heads * width

    def kv_bytes_per_token(self, precision: Precision = "bf16") -> int:
        """Return the bytes that one token adds to the KV cache of all layers.

        Windows do not bound it: `kv_bytes` does that.
        """
        return round(self._kv_values_per_token * BITS_PER_WEIGHT[precision] / 8)

    def kv_values(self, layer: int, context: int, read: bool = False) -> int:
        """Return the values of a layer's KV cache at a context of ``context`` tokens.

        A window bounds them, linear attention has none, and an indexer bounds what is read.

        Args:
            read: count what attention reads to decode one token, not what the cache holds.
        """
        if not self.caches_tokens(layer):
            return 0
        entry, seen = self._kv_entry(layer), context
        if self.window is not None and layer in self.window.layers:
            seen = min(seen, self.window.size)
        found, values = self.indexer, 0
        if found is not None:
            if self._computes_index(layer):
                keys = -(-context // found.pool) if read else context
                values += keys * found.head_dim
            seen = min(seen, found.top_k) if read else seen
        for one in self.compressed:
            if layer in one.layers:
                entries = context // one.ratio
                chosen = min(entries, one.top_k) if read and one.top_k else entries
                values += chosen * entry + entries * one.index_values
        return values + seen * entry

    def kv_bytes(self, context: int, precision: Precision = "bf16", read: bool = False) -> int:
        """Return the bytes of all layers' KV cache at a context (`kv_values`)."""
        values = sum(self.kv_values(layer, context, read) for layer in range(self.num_layers))
        return stored_bytes(values, precision)

    def state_values(self, layer: int) -> int:
        """Return the values of a layer's constant state (linear attention), 0 for other layers."""
        if self.linear is None or layer not in self.linear.layers:
            return 0
        return self.linear.state_values + self.linear.conv_values

    def state_bytes(self, precision: Precision = "fp32") -> int:
        """Return the bytes of one sequence's constant states in all layers."""
        values = sum(self.state_values(layer) for layer in range(self.num_layers))
        return stored_bytes(values, precision)


class Form(NamedTuple):
    """A form in which an expert's record is held and moved: a precision, or a part of the record.

    A policy names a form by its index in `System.forms`; the machine prices its bytes.

    Attributes:
        name: as notes and refusals name it.
        dtype: its precision; None is the one in which the run stores experts.
        share: the part of the record that it holds, more than 0 and at most 1.
        pool: the part of the device's bytes for experts that its slots take; form 0 has the rest.
    """

    name: str = "full"
    dtype: RecordDtype | None = None
    share: float = 1.0
    pool: float = 0.0

    @property
    def full(self) -> bool:
        """Whether it is the whole record in the run's own precision."""
        return self.dtype is None and self.share == 1.0

    def record_bytes(self, shape: ModelShape, stored_as: Precision | RecordDtype | float) -> int:
        """Return the bytes of one record, where the run stores experts as ``stored_as``."""
        return round(shape.expert_bytes(self.dtype or stored_as) * self.share)


def stored_bytes(params: int, precision: Precision | float) -> int:
    """Return the bytes of ``params`` weights at a precision or bits per weight, rounded."""
    return round(params * bits_per_weight(precision) / 8)


def bits_per_weight(precision: Precision | float) -> float:
    """Return the bits of a stored weight; a number of bits is returned as it is."""
    return precision if isinstance(precision, float) else BITS_PER_WEIGHT[precision]


def group_of(inputs: int) -> int:
    """Return the int4 group size of a row: the largest of `GROUPS` that divides its length.

    If none does, return the largest divisor up to the largest group.
    """
    divisors = [*GROUPS, *range(GROUPS[0], 0, -1)]
    group: int = next(size for size in divisors if inputs % size == 0)
    return group


def packed_bytes(rows: int, inputs: int, stored_as: RecordDtype) -> int:
    """Return the bytes of a quantised matrix with its scales and, in int4, its zero points."""
    if stored_as in ROW_BITS:
        return rows * -(-inputs * ROW_BITS[stored_as] // 8) + rows * SCALE_BYTES
    return rows * inputs // 2 + rows * (inputs // group_of(inputs)) * 2 * SCALE_BYTES


def check_quantises(shape: ModelShape, stored_as: RecordDtype) -> None:
    """Check that the experts of a model can be quantised.

    Raises UsageError: the experts have biases, or rows that do not fill whole bytes.
    """
    what = f"--expert-dtype {stored_as}" if stored_as in get_args(ExpertDtype) else stored_as
    if shape.expert_bias:
        raise UsageError(
            f"{what}: experts of family {shape.family} have biases; allowed: families without"
        )
    codes = 8 // ROW_BITS[stored_as] if stored_as == "row-int2" else 2
    for inputs in (shape.hidden_size, shape.expert_width):
        if inputs % codes:
            allowed = "even" if codes == 2 else f"multiples of {codes}"
            raise UsageError(f"{what}: experts have rows of {inputs} numbers; allowed: {allowed}")
