"""Where each tensor of a checkpoint lives: our names, Hugging Face's names, and the dimensions.

One table a family replaces every "if the model is ..." of loading, saving, validating and
training.  Dimensions follow torch's ``Linear``: ``[out, in]``.
"""

from dataclasses import dataclass

from moebench.substrate.models.shape import ModelShape


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's name on disk and the dimensions that it must have."""

    stored: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Family:
    """How a family spells the feed-forward part; all else is spelled alike."""

    block: str = "mlp"
    gate: str = "gate"
    shared: str = "shared_experts"
    projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")


_FAMILIES = {
    "deepseek": _Family(),
    "mixtral": _Family(block="block_sparse_moe", projections=("w1", "w3", "w2")),
    "olmoe": _Family(),
    "phimoe": _Family(block="block_sparse_moe", projections=("w1", "w3", "w2")),
    "qwen2_moe": _Family(shared="shared_expert"),
    "qwen3_moe": _Family(),
    "xverse": _Family(gate="router"),
}

#: Families whose mathematics the decoder knows; the others are shapes for the simulator only.
COMPUTABLE_FAMILIES = frozenset(_FAMILIES)

PROJECTIONS = ("gate", "up", "down")


def _feed_forward(prefix: str, family: _Family, hidden: int, width: int) -> dict[str, TensorSpec]:
    dims = ((width, hidden), (width, hidden), (hidden, width))
    return {
        ours: TensorSpec(f"{prefix}.{theirs}.weight", d)
        for ours, theirs, d in zip(PROJECTIONS, family.projections, dims, strict=True)
    }


def expert_tensors(shape: ModelShape, layer: int, expert: int) -> dict[str, TensorSpec]:
    """A routed expert's three matrices: ``gate`` and ``up`` ``[I, H]``, ``down`` ``[H, I]``."""
    family = _FAMILIES[shape.family]
    prefix = f"model.layers.{layer}.{family.block}.experts.{expert}"
    return _feed_forward(prefix, family, shape.hidden_size, shape.expert_width)


def _norm(ours: str, theirs: str, shape: ModelShape) -> dict[str, TensorSpec]:
    specs = {ours: TensorSpec(f"{theirs}.weight", (shape.hidden_size,))}
    if shape.norm == "layer":
        specs[f"{ours}.bias"] = TensorSpec(f"{theirs}.bias", (shape.hidden_size,))
    return specs


def _attention(shape: ModelShape, layer: int) -> dict[str, TensorSpec]:
    ours, theirs = f"layers.{layer}", f"model.layers.{layer}.self_attn"
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
    if shape.qk_norm != "none":
        widths = (q_width, kv_width) if shape.qk_norm == "full" else (d, d)
        for name, width in zip(("q_norm", "k_norm"), widths, strict=True):
            specs[f"{ours}.{name}"] = TensorSpec(f"{theirs}.{name}.weight", (width,))
    return specs


def layer_tensors(shape: ModelShape, layer: int) -> dict[str, TensorSpec]:
    """A layer's tensors, routed experts apart."""
    family = _FAMILIES[shape.family]
    ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
    specs = _attention(shape, layer)
    specs |= _norm(f"{ours}.attention_norm", f"{theirs}.input_layernorm", shape)
    specs |= _norm(f"{ours}.mlp_norm", f"{theirs}.post_attention_layernorm", shape)
    h = shape.hidden_size
    if layer in shape.dense_layers:
        dense = _feed_forward(f"{theirs}.mlp", family, h, shape.dense_width)
        return specs | {f"{ours}.dense.{k}": v for k, v in dense.items()}
    block = f"{theirs}.{family.block}"
    specs[f"{ours}.router"] = TensorSpec(f"{block}.{family.gate}.weight", (shape.num_experts, h))
    if shape.shared_width:
        shared = _feed_forward(f"{block}.{family.shared}", family, h, shape.shared_width)
        specs |= {f"{ours}.shared.{k}": v for k, v in shared.items()}
    if shape.shared_gated:
        specs[f"{ours}.shared_gate"] = TensorSpec(f"{block}.shared_expert_gate.weight", (1, h))
    return specs


def common_tensors(shape: ModelShape) -> dict[str, TensorSpec]:
    """Every tensor that is not a routed expert's, by our name."""
    vocabulary = (shape.vocab_size, shape.hidden_size)
    specs = {"embed": TensorSpec("model.embed_tokens.weight", vocabulary)}
    for layer in range(shape.num_layers):
        specs |= layer_tensors(shape, layer)
    specs |= _norm("norm", "model.norm", shape)
    if not shape.tied_head:
        specs["head"] = TensorSpec("lm_head.weight", vocabulary)
    if shape.head_bias:
        specs["head.bias"] = TensorSpec("lm_head.bias", (shape.vocab_size,))
    return specs
