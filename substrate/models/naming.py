"""Tensor names of checkpoints: moebench's names, Hugging Face's names, and dimensions.

Loading, saving, validation and training share one table of layouts and have no code of their own
for a model family.  Dimensions follow torch's ``Linear``: ``[out, in]``.
"""

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Literal

from moebench.substrate.models.shape import ModelShape

#: Number of MXFP4 values that share a scale, and their bytes.
BLOCK, BLOCK_BYTES = 32, 16


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's name on disk and the dimensions that it must have.

    Attributes:
        dims: dimensions of the part that is read.
        whole: dimensions of the stored tensor if it holds all experts of a layer, else None.
        expert: index of the expert that is read.
        transposed: the tensor is stored ``[in, out]``.
        rows: the ``out`` rows that are read: start, stop and step.
        scales: name of the tensor with the block scales, if it is stored as MXFP4.
    """

    stored: str
    dims: tuple[int, ...]
    whole: tuple[int, ...] | None = None
    expert: int = 0
    transposed: bool = False
    rows: tuple[int | None, int | None, int | None] = (None, None, None)
    scales: str | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Tensor names of a checkpoint's feed-forward part; all other names are equal in all families.

    Attributes:
        fused: form of the tensor with gate and up projections of all experts: ``rows`` is
            ``[E, 2·I, H]``, ``columns`` is ``[E, H, 2·I]``, ``interleaved`` is ``columns`` with
            alternating gate and up, and ``mxfp4`` is ``interleaved`` transposed, in packed blocks.
            None is three tensors for each expert.
    """

    block: str = "mlp"
    gate: str = "gate"
    shared: str = "shared_experts"
    projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    fused: Literal["rows", "columns", "interleaved", "mxfp4"] | None = None
    prefix: str = ""


_W = ("w1", "w3", "w2")
_LLAMA4 = Layout(block="feed_forward", gate="router", shared="shared_expert", fused="columns")

#: Layouts of each family.  The first one is used for writing; others are the newer fused layout
#: (`save_pretrained(save_original_format=False)`) or a text model inside a multimodal one.
_FAMILIES: dict[str, tuple[Layout, ...]] = {
    "deepseek": (Layout(),),
    "deepseek_v2": (Layout(), Layout(fused="rows")),
    "glm4_moe": (Layout(), Layout(fused="rows")),
    "gpt_oss": (Layout(gate="router", fused="interleaved"), Layout(gate="router", fused="mxfp4")),
    "llama4_text": (_LLAMA4, replace(_LLAMA4, prefix="language_model.")),
    "mixtral": (Layout(block="block_sparse_moe", projections=_W), Layout(fused="rows")),
    "olmoe": (Layout(), Layout(fused="rows")),
    "phimoe": (
        Layout(block="block_sparse_moe", projections=_W),
        Layout(gate="router", fused="rows"),
    ),
    "qwen2_moe": (Layout(shared="shared_expert"), Layout(shared="shared_expert", fused="rows")),
    "qwen3_moe": (Layout(), Layout(fused="rows")),
    "xverse": (Layout(gate="router"),),
}

PROJECTIONS = ("gate", "up", "down")


def written_layout(shape: ModelShape) -> Layout:
    """Return the layout in which a model family's checkpoints are written."""
    return _FAMILIES[shape.family][0]


def layout_of(shape: ModelShape, names: Container[str]) -> Layout:
    """Return the layout of a checkpoint with these tensor names, or the written one if none fits.

    Errors about missing tensors then have the names that users know.
    """
    for layout in _FAMILIES[shape.family]:
        spec = expert_tensors(shape, shape.moe_layers[0], 0, layout)["gate"]
        if spec.stored in names:
            return layout
    return written_layout(shape)


def _feed_forward(prefix: str, layout: Layout, hidden: int, width: int) -> dict[str, TensorSpec]:
    dims = ((width, hidden), (width, hidden), (hidden, width))
    return {
        ours: TensorSpec(f"{prefix}.{theirs}.weight", d)
        for ours, theirs, d in zip(PROJECTIONS, layout.projections, dims, strict=True)
    }


def expert_tensors(
    shape: ModelShape, layer: int, expert: int, layout: Layout | None = None
) -> dict[str, TensorSpec]:
    """Return the specs of a routed expert's tensors, in the order of its record.

    ``gate`` and ``up`` ``[I, H]``, ``down`` ``[H, I]``, and their biases if the family has them.
    """
    layout = layout or written_layout(shape)
    prefix = f"{layout.prefix}model.layers.{layer}.{layout.block}.experts"
    h, i = shape.hidden_size, shape.expert_width
    if layout.fused is None:
        return _feed_forward(f"{prefix}.{expert}", layout, h, i)
    specs = {}
    packed, interleaved = layout.fused == "mxfp4", layout.fused in ("interleaved", "mxfp4")
    halves = ((0, None, 2), (1, None, 2)) if interleaved else ((0, i, None), (i, None, None))
    rows = dict(zip(PROJECTIONS, (*halves, (None, None, None)), strict=True))
    transposed = layout.fused not in ("rows", "mxfp4")
    for ours in PROJECTIONS:
        fused, out, into = ("down_proj", h, i) if ours == "down" else ("gate_up_proj", 2 * i, h)
        whole = (into, out) if transposed else (out, into)
        name = f"{prefix}.{fused}"
        specs[ours] = TensorSpec(
            f"{name}_blocks" if packed else name,
            (h, i) if ours == "down" else (i, h),
            (shape.num_experts, out, into // BLOCK, BLOCK_BYTES)
            if packed
            else (shape.num_experts, *whole),
            expert,
            transposed,
            rows[ours],
            f"{name}_scales" if packed else None,
        )
    if shape.expert_bias:
        for ours in PROJECTIONS:
            fused, out = ("down_proj", h) if ours == "down" else ("gate_up_proj", 2 * i)
            specs[f"{ours}.bias"] = TensorSpec(
                f"{prefix}.{fused}_bias", (h,) if ours == "down" else (i,),
                (shape.num_experts, out), expert, rows=rows[ours],
            )  # fmt: skip
    return specs


def _norm(ours: str, theirs: str, shape: ModelShape) -> dict[str, TensorSpec]:
    specs = {ours: TensorSpec(f"{theirs}.weight", (shape.hidden_size,))}
    if shape.norm == "layer":
        specs[f"{ours}.bias"] = TensorSpec(f"{theirs}.bias", (shape.hidden_size,))
    return specs


def _attention(shape: ModelShape, layer: int) -> dict[str, TensorSpec]:
    ours, theirs = f"layers.{layer}", f"model.layers.{layer}.self_attn"
    if shape.latent is not None:
        return _latent_attention(shape, ours, theirs)
    h, d = shape.hidden_size, shape.head_dim
    q_width, kv_width = shape.num_heads * d, shape.num_kv_heads * d
    specs = {}
    for name, out_width, in_width, biased in (
        ("q", q_width, h, shape.qkv_bias),
        ("k", kv_width, h, shape.qkv_bias),
        ("v", kv_width, h, shape.qkv_bias),
        ("o", h, q_width, shape.output_bias),
    ):
        specs[f"{ours}.{name}"] = TensorSpec(f"{theirs}.{name}_proj.weight", (out_width, in_width))
        if biased:
            specs[f"{ours}.{name}.bias"] = TensorSpec(f"{theirs}.{name}_proj.bias", (out_width,))
    if shape.qk_norm in ("head", "full"):
        widths = (q_width, kv_width) if shape.qk_norm == "full" else (d, d)
        for name, width in zip(("q_norm", "k_norm"), widths, strict=True):
            specs[f"{ours}.{name}"] = TensorSpec(f"{theirs}.{name}.weight", (width,))
    if shape.attention_sinks:
        specs[f"{ours}.sinks"] = TensorSpec(f"{theirs}.sinks", (shape.num_heads,))
    return specs


def _latent_attention(shape: ModelShape, ours: str, theirs: str) -> dict[str, TensorSpec]:
    m = shape.latent
    assert m is not None
    h, heads, rank = shape.hidden_size, shape.num_heads, m.kv_lora_rank
    tensors = {
        "q": ("q_proj", (heads * (m.qk_nope_head_dim + m.qk_rope_head_dim), h)),
        "kv_down": ("kv_a_proj_with_mqa", (rank + m.qk_rope_head_dim, h)),
        "kv_norm": ("kv_a_layernorm", (rank,)),
        "kv_up": ("kv_b_proj", (heads * (m.qk_nope_head_dim + m.v_head_dim), rank)),
        "o": ("o_proj", (h, heads * m.v_head_dim)),
    }
    return {
        f"{ours}.{name}": TensorSpec(f"{theirs}.{stored}.weight", dims)
        for name, (stored, dims) in tensors.items()
    }


def layer_tensors(shape: ModelShape, layer: int, layout: Layout) -> dict[str, TensorSpec]:
    """Return the specs of a layer's tensors without its routed experts."""
    ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
    specs = _attention(shape, layer)
    specs |= _norm(f"{ours}.attention_norm", f"{theirs}.input_layernorm", shape)
    specs |= _norm(f"{ours}.mlp_norm", f"{theirs}.post_attention_layernorm", shape)
    h = shape.hidden_size
    block = f"{theirs}.{layout.block}"
    if layer in shape.dense_layers:
        dense = _feed_forward(block, layout, h, shape.dense_width)
        return specs | {f"{ours}.dense.{k}": v for k, v in dense.items()}
    gate = f"{block}.{layout.gate}"
    specs[f"{ours}.router"] = TensorSpec(f"{gate}.weight", (shape.num_experts, h))
    if shape.gate_bias:
        name = "e_score_correction_bias" if shape.corrects_scores else "bias"
        specs[f"{ours}.router.bias"] = TensorSpec(f"{gate}.{name}", (shape.num_experts,))
    if shape.shared_width:
        shared = _feed_forward(f"{block}.{layout.shared}", layout, h, shape.shared_width)
        specs |= {f"{ours}.shared.{k}": v for k, v in shared.items()}
    if shape.shared_gated:
        specs[f"{ours}.shared_gate"] = TensorSpec(f"{block}.shared_expert_gate.weight", (1, h))
    return specs


def common_tensors(shape: ModelShape, layout: Layout | None = None) -> dict[str, TensorSpec]:
    """Return the specs of all non-expert tensors by moebench's tensor names."""
    layout = layout or written_layout(shape)
    vocabulary = (shape.vocab_size, shape.hidden_size)
    specs = {"embed": TensorSpec("model.embed_tokens.weight", vocabulary)}
    for layer in range(shape.num_layers):
        specs |= layer_tensors(shape, layer, layout)
    specs |= _norm("norm", "model.norm", shape)
    if not shape.tied_head:
        specs["head"] = TensorSpec("lm_head.weight", vocabulary)
    if shape.head_bias:
        specs["head.bias"] = TensorSpec("lm_head.bias", (shape.vocab_size,))
    if layout.prefix:
        specs = {k: replace(s, stored=f"{layout.prefix}{s.stored}") for k, s in specs.items()}
    return specs
