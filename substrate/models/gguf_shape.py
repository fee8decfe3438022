"""Makes a `ModelShape` from the header of a GGUF file: widths from key-values, counts from tensors.

Key and tensor names are llama.cpp's.  Where a formula of `ModelShape` does not reproduce the sizes
of a layer's tensors, the shape has the counted parameters instead.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from moebench.substrate.errors import CheckpointError
from moebench.substrate.files import brief
from moebench.substrate.models.bits import Precisions, class_of, precisions
from moebench.substrate.models.fields import shape_of_fields
from moebench.substrate.models.gguf_header import Header, Tensor, Value, read_header
from moebench.substrate.models.shape import MOST, MOST_LAYERS, GateKind, ModelShape

#: moebench's family of an architecture, where the names differ by more than hyphens.
_FAMILIES = {
    "llama": "mixtral", "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "qwen3next": "qwen3_next",
    "qwen35moe": "qwen3_5_moe", "glm4moe": "glm4_moe", "llama4": "llama4_text",
    "minimax-m2": "minimax_m2", "ernie4_5-moe": "ernie4_5_moe", "nemotron_h_moe": "nemotron_h",
    "granitehybrid": "granitemoehybrid", "hunyuan-moe": "hunyuan_v1_moe",
    "bailingmoe2": "bailing_moe_v2", "glm-dsa": "glm_moe_dsa", "step35": "step3p5",
}  # fmt: skip

#: Gates that an architecture implies; others follow from ``expert_gating_func`` and
#: ``expert_weights_norm``.
_GATES = {
    "gpt-oss": GateKind.TOPK_SOFTMAX, "granitehybrid": GateKind.TOPK_SOFTMAX,
    "granitemoe": GateKind.TOPK_SOFTMAX, "llama4": GateKind.TOPK_SIGMOID,
    "phimoe": GateKind.SPARSEMIXER, "olmoe": GateKind.SOFTMAX_TOPK,
    "qwen2moe": GateKind.SOFTMAX_TOPK,
}  # fmt: skip
_SOFTMAX, _SIGMOID, _CHOSEN_SOFTMAX = 1, 2, 3

#: Architectures without a pattern key: every n-th layer has full attention, the others a window.
_PATTERNS = {"gpt-oss": 2, "llama4": 4, "gemma4": 6}

#: Llama 4's chunk, which no key states.
_CHUNK = 8192

_LAYER = re.compile(r"blk\.(\d+)\.(.+)")


class GgufModel(NamedTuple):
    """What a GGUF file's header says of a model.

    Attributes:
        architecture: llama.cpp's name of the architecture.
        shape: the text model, without layers for multi-token prediction.
        stored: weights and bytes of its tensors by class.
        format: type of most of the routed experts' bytes, such as ``q4_k``.
    """

    architecture: str
    shape: ModelShape
    stored: Precisions
    format: str


def is_gguf(model: str) -> bool:
    """Return whether a model name is the path of a GGUF file."""
    return model.lower().endswith(".gguf")


def read_gguf_shape(path: Path) -> ModelShape:
    """Return the shape that a GGUF file's header describes (`read_gguf`)."""
    return read_gguf(path).shape


def read_gguf(path: Path) -> GgufModel:
    """Return shape and formats of a Mixture-of-Experts model from its GGUF file's header.

    Args:
        path: the file, or one part of a split file.

    Raises CheckpointError: the file is missing, damaged, or no Mixture-of-Experts model.
    """
    header = read_header(path)
    found = _Described(str(path), header)
    shape = found.shape()
    kept = [t for t in header.tensors if not found.is_left_out(t.name)]
    sizes = Counter[str]()
    for tensor in kept:
        if class_of(tensor.name) == "routed":
            sizes[tensor.kind] += tensor.size_bytes
    return GgufModel(found.architecture, shape, precisions(kept), sizes.most_common(1)[0][0])


class _Described:
    """The key-values and tensors of a header, by layer."""

    def __init__(self, where: str, header: Header) -> None:
        self._where, self._values = where, header.values
        self.architecture = str(header.values.get("general.architecture", ""))
        self._whole: dict[str, Tensor] = {}
        self._layers: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
        for tensor in header.tensors:
            found = _LAYER.fullmatch(tensor.name)
            if found is None:
                self._whole[tensor.name] = tensor
            elif len(found[1]) < 6:
                self._layers[int(found[1])][found[2]] = tensor
        blocks = self._count("block_count", most=MOST_LAYERS)
        self._predicting = {i for i, t in self._layers.items() if any("nextn" in n for n in t)}
        self._count_of_layers = blocks - len(self._predicting)
        if self._count_of_layers < 1 or set(range(blocks)) - self._layers.keys():
            raise self._wrong(f"has tensors of {len(self._layers)} layers, and states {blocks}")

    def is_left_out(self, name: str) -> bool:
        """Return whether a tensor is not the text model's, or is of a layer that is left out."""
        found = _LAYER.fullmatch(name)
        return found is not None and int(found[1]) in self._predicting

    # ------------------------------------------------------------------ key-values

    def _wrong(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self._where}: {problem}; give another file, or --model NAME")

    def _key(self, name: str) -> Value | None:
        return self._values.get(f"{self.architecture}.{name}")

    def _count(self, name: str, default: int | None = None, most: int = MOST) -> int:
        """Return a whole number; of one for each layer, the first that is not 0."""
        value = self._key(name)
        if isinstance(value, tuple):
            value = next((v for v in value if v), 0)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            key = f"{self.architecture or 'general.architecture'}.{name}"
            problem = "is missing" if value is None else f"is {brief(value)}"
            raise self._wrong(f"{key} {problem}; allowed: a whole number up to {most}")
        return value

    def _number(self, name: str, default: float) -> float:
        value = self._key(name)
        return value if isinstance(value, (int, float)) else default

    def _each(self, name: str, default: int) -> list[int]:
        """Return a whole number for each layer."""
        value = self._key(name)
        if not isinstance(value, tuple):
            return [self._count(name, default)] * self._count_of_layers
        if len(value) < self._count_of_layers or not all(
            isinstance(v, int) and 0 <= v <= MOST for v in value
        ):
            raise self._wrong(f"{self.architecture}.{name} is {brief(value)}")
        return [int(v) for v in value[: self._count_of_layers]]

    # ------------------------------------------------------------------ tensors

    def _named(self, layer: int, name: str) -> Tensor | None:
        return self._layers[layer].get(name)

    def _dim(self, layer: int, name: str, dim: int) -> int:
        """Return a dimension of a tensor in ggml's order, 0 if the tensor is not there."""
        tensor = self._named(layer, name)
        if tensor is None:
            return 0
        if len(tensor.dims) <= dim:
            raise self._wrong(f"{tensor.name} has dimensions {brief(tensor.dims)}")
        return tensor.dims[dim]

    def _with(self, pattern: str) -> list[int]:
        """Return the layers that have a tensor whose name begins so."""
        begins = re.compile(pattern).match
        layers = range(self._count_of_layers)
        return [i for i in layers if any(begins(name) for name in self._layers[i])]

    def _attention_weights(self, layer: int) -> int:
        tensors = self._layers[layer].items()
        return sum(t.weights for n, t in tensors if class_of(f"blk.{layer}.{n}") == "attention")

    # ------------------------------------------------------------------ the shape

    def shape(self) -> ModelShape:
        """Return the shape; counted parameters replace formulas that do not reproduce them."""
        fields = {**self._vocabulary(), **self._experts(), **self._attention(), **self._rest()}
        found = shape_of_fields(fields, self._where)
        counted = [self._attention_weights(i) for i in range(self._count_of_layers)]
        if all(found.layer_attention_params(i) == n for i, n in enumerate(counted)):
            return found
        return shape_of_fields({**fields, "attention_counts": tuple(counted)}, self._where)

    def _vocabulary(self) -> dict[str, Any]:
        hidden, table = self._count("embedding_length"), self._whole.get("token_embd.weight")
        if table is None or len(table.dims) != 2:
            raise self._wrong("token_embd.weight is missing, or no matrix")
        more = self._whole.get("per_layer_token_embd.weight")
        return {
            "family": _FAMILIES.get(self.architecture, self.architecture.replace("-", "_")),
            "num_layers": self._count_of_layers,
            "hidden_size": hidden,
            "vocab_size": table.dims[1],
            "tied_head": "output.weight" not in self._whole,
            "head_bias": "output.bias" in self._whole,
            "lookup_params": more.weights if more is not None else 0,
        }

    def _experts(self) -> dict[str, Any]:
        layers = range(self._count_of_layers)
        moe = self._with(r"ffn_\w+_exps\.weight")
        if not moe:
            old = self._with(r"ffn_up\.\d+\.weight")
            why = "stores each expert as a tensor of its own (an old file)" if old else (
                f"has no routed experts (architecture {self.architecture!r}); allowed: a "
                "Mixture-of-Experts model"
            )  # fmt: skip
            raise self._wrong(why)
        first = moe[0]
        width = self._dim(first, "ffn_down_exps.weight", 0)
        gated = self._with(r"ffn_gate(_up)?_exps\.weight")
        dense = tuple(i for i in layers if i not in moe)
        widths = [self._dim(i, "ffn_up.weight", 1) for i in dense]
        widths = [w for w in widths if w]
        beside = self._dim(first, "ffn_up.weight", 1)  # Gemma 4: a dense block beside the experts.
        return {
            "num_experts": self._count("expert_count"),
            "top_k": self._count("expert_used_count"),
            "expert_width": width,
            "expert_bias": bool(self._with(r"ffn_down_exps\.bias")),
            "ffn_matrices": 3 if gated else 2,
            "dense_layers": dense,
            "dense_width": round(sum(widths) / len(widths)) if widths else 0,
            "without_ffn": tuple(i for i in dense if self._named(i, "ffn_up.weight") is None),
            "shared_width": self._dim(first, "ffn_up_shexp.weight", 1) or beside,
            "shared_gated": self._named(first, "ffn_gate_inp_shexp.weight") is not None,
            "gate": self._gate(),
            "gate_bias": bool(self._with(r"exp_probs_b\b|ffn_gate_inp\.bias")),
            "gate_groups": self._groups(),
            "routed_scaling_factor": self._number("expert_weights_scale", 1.0) or 1.0,
        }

    def _gate(self) -> GateKind:
        if self.architecture in _GATES:
            return _GATES[self.architecture]
        kind = self._count("expert_gating_func", _SOFTMAX)
        if kind == _SIGMOID:
            return GateKind.SIGMOID_BIAS_TOPK_RENORM
        if kind == _CHOSEN_SOFTMAX:
            return GateKind.TOPK_SOFTMAX
        renormalised = self._key("expert_weights_norm")
        deepseek = self.architecture in ("deepseek", "deepseek2")
        if renormalised is None:
            renormalised = not deepseek
        return GateKind.SOFTMAX_TOPK_RENORM if renormalised else GateKind.SOFTMAX_TOPK

    def _groups(self) -> tuple[int, int] | None:
        count, opened = (
            self._count("expert_group_count", 1),
            self._count("expert_group_used_count", 1),
        )
        return (count, opened) if 0 < opened < count else None

    def _rest(self) -> dict[str, Any]:
        layered = self._with(r"attn_norm\.bias")
        eps = self._number("attention.layer_norm_rms_epsilon", 1e-6)
        return {
            "norm": "layer" if layered else "rms",
            "norm_eps": self._number("attention.layer_norm_epsilon", eps) if layered else eps,
            "max_positions": self._count("context_length", 131_072),
            "rope_theta": self._number("rope.freq_base", 10_000.0),
        }

    # ------------------------------------------------------------------ attention

    def _attention(self) -> dict[str, Any]:
        linear = self._with(r"ssm_")
        cached = [i for i in self._with(r"attn_(q|qkv|q_a|output)\.weight") if i not in linear]
        if not cached:
            raise self._wrong("has no layer with attention")
        none = set(range(self._count_of_layers)) - {*linear, *cached}
        fields: dict[str, Any] = {"without_attention": tuple(sorted(none))}
        fields |= self._latent() if self._key("attention.kv_lora_rank") else self._heads(cached)
        fields |= self._kinds(cached[0], linear)
        window = self._window(cached)
        return {**fields, "window": window} if window else fields

    def _latent(self) -> dict[str, Any]:
        rope = self._count("rope.dimension_count", 64)
        key = self._count("attention.key_length_mla", self._count("attention.key_length", 0))
        value = self._count("attention.value_length_mla", self._count("attention.value_length", 0))
        heads = self._count("attention.head_count")
        latent = {
            "kv_lora_rank": self._count("attention.kv_lora_rank"),
            "qk_rope_head_dim": rope, "qk_nope_head_dim": key - rope, "v_head_dim": value,
            "q_lora_rank": self._count("attention.q_lora_rank", 0) or None,
        }  # fmt: skip
        return {"num_heads": heads, "num_kv_heads": heads, "head_dim": key, "latent": latent}

    def _heads(self, cached: Sequence[int]) -> dict[str, Any]:
        """Return heads of the first layer with attention, and of those that have others."""
        heads = self._each("attention.head_count", 0)
        kv_heads = self._each("attention.head_count_kv", self._count("attention.head_count"))
        hidden = self._count("embedding_length")
        width = self._count("attention.key_length", hidden // max(1, heads[cached[0]]))
        window = self._window(cached) or {"layers": ()}
        in_window = self._count("attention.key_length_swa", width)
        kinds = {
            i: (heads[i], kv_heads[i], in_window if i in window["layers"] else width)
            for i in cached
        }
        first = kinds[cached[0]]
        others = Counter(kind for kind in kinds.values() if kind != first)
        if len(others) > 1:
            raise self._wrong("has more than two kinds of attention heads")
        fields: dict[str, Any] = dict(
            zip(("num_heads", "num_kv_heads", "head_dim"), first, strict=True)
        )
        if others:
            (kind,) = others
            layers = tuple(i for i in cached if kinds[i] == kind)
            fields["other_heads"] = {
                "layers": layers, "num_heads": kind[0], "num_kv_heads": kind[1],
                "head_dim": kind[2],
                "one_projection": self._named(layers[0], "attn_v.weight") is None
                and self._named(layers[0], "attn_qkv.weight") is None,
            }  # fmt: skip
        rotated = self._count("rope.dimension_count", fields["head_dim"])
        if 0 < rotated < fields["head_dim"]:
            fields["rotary_dim"] = rotated
        return fields

    def _kinds(self, first: int, linear: Sequence[int]) -> dict[str, Any]:
        """Return biases, norms and gates of the first layer with attention, and other mixers."""
        q_width, heads = self._dim(first, "attn_q.weight", 1), self._count("attention.head_count")
        normed, gate = (
            self._dim(first, "attn_q_norm.weight", 0),
            self._dim(first, "attn_gate.weight", 1),
        )
        latent = self._key("attention.kv_lora_rank") is not None
        width = self._count(
            "attention.key_length", self._count("embedding_length") // max(1, heads)
        )
        fields: dict[str, Any] = {
            "qkv_bias": bool({"attn_q.bias", "attn_qkv.bias"} & self._layers[first].keys()),
            "output_bias": "attn_output.bias" in self._layers[first],
            "attention_sinks": bool(
                {"attn_sinks.weight", "attn_sinks"} & self._layers[first].keys()
            ),
        }
        if normed and not latent:
            fields["qk_norm"] = "head" if normed < q_width or heads == 1 else "full"
        if gate:
            fields["output_gate"] = "head" if gate == heads else "value"
        elif q_width == 2 * heads * width and not latent:
            fields["output_gate"] = "value"
        if self._key("attention.indexer.top_k") and self._with(r"indexer[._]"):
            fields["indexer"] = {
                "heads": self._count("attention.indexer.head_count"),
                "head_dim": self._count("attention.indexer.key_length"),
                "top_k": self._count("attention.indexer.top_k"),
                "layers": tuple(self._with(r"indexer[._]")),
            }
        if linear:
            fields["linear"] = self._linear(linear)
        return fields

    def _linear(self, layers: Sequence[int]) -> dict[str, Any]:
        """Return the linear-attention field; parameters and convolution are the first layer's."""
        first = layers[0]
        kda = self._count("kda.head_dim", 0)
        state = self._count("ssm.inner_size", 0) * self._count("ssm.state_size", 0)
        convolutions = [
            t.dims for n, t in self._layers[first].items()
            if re.match(r"ssm_conv1d\w*\.weight", n) and len(t.dims) >= 2
        ]  # fmt: skip
        return {
            "kind": "KDA" if kda else "state space" if self._with("ssm_d$") else "gated DeltaNet",
            "layers": tuple(layers),
            "params": self._attention_weights(first),
            "state_values": state or self._count("attention.head_count") * kda * kda,
            "conv_values": sum((dims[0] - 1) * dims[-1] for dims in convolutions),
        }

    def _window(self, cached: Sequence[int]) -> Mapping[str, Any] | None:
        """Return the window field: from a pattern in the header, or the architecture's own."""
        chunked = self.architecture == "llama4"
        size = self._count("attention.sliding_window", _CHUNK if chunked else 0)
        pattern = self._key("attention.sliding_window_pattern")
        every = _PATTERNS.get(self.architecture, 0)
        if isinstance(pattern, tuple):
            layers = tuple(i for i in cached if i < len(pattern) and pattern[i])
        else:
            every = pattern if isinstance(pattern, int) and pattern > 0 else every
            layers = tuple(i for i in cached if every and i % every < every - 1)
        if not size or not layers or size >= self._count("context_length", 131_072):
            return None
        return {"kind": "chunked" if chunked else "sliding", "size": size, "layers": layers}
