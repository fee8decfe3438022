"""The shape of a Mixture-of-Experts model: what its ``config.json`` says, and what follows from it.

A `ModelShape` holds numbers only.  Costs, memory budgets, the decoder and the synthesiser all read
it; nothing else in the project interprets a Hugging Face configuration.
"""

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from substrate.errors import CheckpointError

Config = Mapping[str, Any]

#: Bits that one weight takes when stored.  ``4bit`` is 4-bit with an fp16 scale and a 4-bit zero
#: point per group of 128.
BITS_PER_WEIGHT: dict[str, float] = {"fp32": 32, "bf16": 16, "fp16": 16, "4bit": 4.15625}
Precision = Literal["fp32", "bf16", "fp16", "4bit"]


class GateKind(StrEnum):
    """How gate logits become the weights of the chosen experts."""

    SOFTMAX_TOPK = "softmax_topk"
    SOFTMAX_TOPK_RENORM = "softmax_topk_renorm"
    TOPK_SOFTMAX = "topk_softmax"
    TOPK_SIGMOID = "topk_sigmoid"
    SIGMOID_BIAS_TOPK_RENORM = "sigmoid_bias_topk_renorm"
    SPARSEMIXER = "sparsemixer"


class LatentAttention(BaseModel):
    """Multi-head latent attention (DeepSeek-V2): the cache keeps one compressed vector a token."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kv_lora_rank: int = Field(gt=0)
    qk_rope_head_dim: int = Field(gt=0)
    qk_nope_head_dim: int = Field(gt=0)
    v_head_dim: int = Field(gt=0)


class ModelShape(BaseModel):
    """Every number of a decoder that placement, costs and mathematics need.

    Parameter counts are exact (they reproduce the published totals); byte counts follow from the
    precision of storage.  "Common" is all that is not a routed expert.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    family: str
    num_layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    vocab_size: int = Field(gt=0)

    num_heads: int = Field(gt=0)
    num_kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    qkv_bias: bool = False
    output_bias: bool = False
    attention_sinks: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    latent: LatentAttention | None = None
    clip_qkv: float | None = None
    rope_theta: float = Field(default=10_000.0, gt=0)
    rope_type: str = "default"
    max_positions: int = Field(default=4096, gt=0)

    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = Field(default=1e-6, gt=0)
    tied_head: bool = False
    head_bias: bool = False

    num_experts: int = Field(gt=0)
    top_k: int = Field(gt=0)
    expert_width: int = Field(gt=0)
    expert_bias: bool = False
    dense_layers: tuple[int, ...] = ()
    dense_width: int = 0
    shared_width: int = 0
    shared_gated: bool = False
    gate: GateKind
    gate_bias: bool = False
    gate_jitter: float = 0.01
    routed_scaling_factor: float = 1.0

    @model_validator(mode="after")
    def _consistent(self) -> "ModelShape":
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k {self.top_k} exceeds num_experts {self.num_experts}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} heads do not divide by {self.num_kv_heads}")
        if self.dense_layers and not self.dense_width:
            raise ValueError("dense layers need a dense intermediate size")
        if not self.moe_layers:
            raise ValueError("no layer has routed experts")
        return self

    # ------------------------------------------------------------------ which layers, what is read

    @cached_property
    def moe_layers(self) -> tuple[int, ...]:
        """Layer indices that have routed experts, in order."""
        return tuple(i for i in range(self.num_layers) if i not in self.dense_layers)

    @classmethod
    def from_config(cls, config: Config, where: str = "config.json") -> "ModelShape":
        """Read a Hugging Face configuration.

        Raises:
            CheckpointError: an unknown ``model_type``, or a key that is missing or out of range.
        """
        model_type = config.get("model_type")
        reader = _READERS.get(str(model_type))
        if reader is None:
            raise CheckpointError(
                f"{where}: model_type {model_type!r} is not supported; "
                f"allowed: {', '.join(sorted(_READERS))}"
            )
        try:
            return cls(**_common(config), **reader(config))
        except KeyError as missing:
            raise CheckpointError(f"{where}: key {missing} is missing") from missing
        except (TypeError, ValueError, ArithmeticError) as error:
            raise CheckpointError(f"{where}: {_first_line(error)}") from error

    @classmethod
    def from_file(cls, path: Path) -> "ModelShape":
        """Read a ``config.json``.

        Raises:
            CheckpointError: the file is missing, is not JSON, or describes no supported model.
        """
        try:
            config = json.loads(path.read_text())
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise CheckpointError(f"{path}: not valid JSON ({error})") from error
        if not isinstance(config, dict):
            raise CheckpointError(f"{path}: expected a JSON object")
        return cls.from_config(config, str(path))

    # ------------------------------------------------------------------------- parameters

    @property
    def attention_params(self) -> int:
        """Parameters of one layer's attention, biases and query/key norms included."""
        h = self.hidden_size
        if self.latent is not None:
            m = self.latent
            q = h * self.num_heads * (m.qk_nope_head_dim + m.qk_rope_head_dim)
            down = h * (m.kv_lora_rank + m.qk_rope_head_dim) + m.kv_lora_rank
            up = m.kv_lora_rank * self.num_heads * (m.qk_nope_head_dim + m.v_head_dim)
            return q + down + up + self.num_heads * m.v_head_dim * h
        q_width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        params = h * (q_width + 2 * kv_width) + q_width * h
        params += (q_width + 2 * kv_width) * self.qkv_bias + h * self.output_bias
        params += self.num_heads * self.attention_sinks
        norms = {"none": 0, "head": 2 * self.head_dim, "full": q_width + kv_width}
        return params + norms[self.qk_norm]

    @property
    def expert_params(self) -> int:
        """Parameters of one routed expert: gate, up and down projections."""
        biases = (2 * self.expert_width + self.hidden_size) * self.expert_bias
        return 3 * self.hidden_size * self.expert_width + biases

    @property
    def shared_params(self) -> int:
        """Parameters of one layer's shared experts (as one block), without their sigmoid gate."""
        return 3 * self.hidden_size * self.shared_width

    @property
    def gate_params(self) -> int:
        """Parameters of one layer's router."""
        return self.hidden_size * self.num_experts + self.num_experts * self.gate_bias

    @property
    def norm_params(self) -> int:
        """Parameters of one normalisation over the hidden state."""
        return self.hidden_size * (2 if self.norm == "layer" else 1)

    @property
    def embedding_params(self) -> int:
        """Parameters of the token embedding alone."""
        return self.vocab_size * self.hidden_size

    @property
    def head_params(self) -> int:
        """Parameters that the output head reads (the embedding's, when tied)."""
        return self.embedding_params + self.vocab_size * self.head_bias

    def layer_common_params(self, layer: int) -> int:
        """Parameters of a layer that are not routed experts."""
        params = self.attention_params + 2 * self.norm_params
        if layer in self.dense_layers:
            return params + 3 * self.hidden_size * self.dense_width
        return params + self.shared_params + self.hidden_size * self.shared_gated + self.gate_params

    @property
    def common_params(self) -> int:
        """All parameters that are not routed experts."""
        stored_head = self.vocab_size * self.head_bias if self.tied_head else self.head_params
        layers = sum(self.layer_common_params(i) for i in range(self.num_layers))
        return self.embedding_params + stored_head + self.norm_params + layers

    @property
    def routed_params(self) -> int:
        """All routed experts' parameters."""
        return len(self.moe_layers) * self.num_experts * self.expert_params

    @property
    def total_params(self) -> int:
        """The model's size, as published."""
        return self.common_params + self.routed_params

    # ------------------------------------------------------------------------- bytes

    def expert_bytes(self, precision: Precision) -> int:
        """Bytes of one routed expert as stored and moved."""
        return stored_bytes(self.expert_params, precision)

    def common_bytes(self, precision: Precision) -> int:
        """Bytes of everything that is always resident, KV cache apart."""
        return stored_bytes(self.common_params, precision)

    @property
    def kv_values_per_token_layer(self) -> int:
        """Values that one token adds to one layer's KV cache."""
        if self.latent is not None:
            return self.latent.kv_lora_rank + self.latent.qk_rope_head_dim
        return 2 * self.num_kv_heads * self.head_dim

    def kv_bytes_per_token(self, precision: Precision = "bf16") -> int:
        """Bytes that one token adds to the whole KV cache."""
        return stored_bytes(self.num_layers * self.kv_values_per_token_layer, precision)


def stored_bytes(params: int, precision: Precision) -> int:
    """Bytes that a number of weights takes at a precision, rounded to the nearest byte."""
    return round(params * BITS_PER_WEIGHT[precision] / 8)


# --------------------------------------------------------------------- one reader per model_type


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        detail = error.errors()[0]
        return f"{'.'.join(map(str, detail['loc'])) or 'shape'}: {detail['msg']}"
    return str(error).splitlines()[0]


def _common(c: Config) -> dict[str, Any]:
    """Keys that every Hugging Face decoder configuration spells alike."""
    heads = c["num_attention_heads"]
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    return {
        "family": c["model_type"],
        "num_layers": c["num_hidden_layers"],
        "hidden_size": c["hidden_size"],
        "vocab_size": c["vocab_size"],
        "num_heads": heads,
        "num_kv_heads": c.get("num_key_value_heads") or heads,
        "head_dim": c.get("head_dim") or c["hidden_size"] // heads,
        "rope_theta": c.get("rope_theta") or rope.get("rope_theta", 10_000.0),
        "rope_type": rope.get("rope_type") or rope.get("type") or "default",
        "max_positions": c.get("max_position_embeddings", 4096),
        "norm_eps": c.get("rms_norm_eps", 1e-6),
        "tied_head": c.get("tie_word_embeddings", False),
    }


def _softmax_gate(renormalise: bool) -> GateKind:
    return GateKind.SOFTMAX_TOPK_RENORM if renormalise else GateKind.SOFTMAX_TOPK


def _sparse_step_dense_layers(c: Config) -> tuple[int, ...]:
    """Qwen's rule: listed layers, and all but every ``decoder_sparse_step``-th, are dense."""
    step, listed = c.get("decoder_sparse_step", 1), c.get("mlp_only_layers") or ()
    return tuple(i for i in range(c["num_hidden_layers"]) if i in listed or (i + 1) % step)


def _num_experts(c: Config) -> int:
    """transformers 5 writes ``num_local_experts`` where the hub's files say ``num_experts``."""
    return int(c["num_experts"] if "num_experts" in c else c["num_local_experts"])


def _qwen_moe(c: Config) -> dict[str, Any]:
    return {
        "num_experts": _num_experts(c),
        "top_k": c["num_experts_per_tok"],
        "expert_width": c["moe_intermediate_size"],
        "dense_layers": _sparse_step_dense_layers(c),
        "dense_width": c.get("intermediate_size", 0),
        "gate": _softmax_gate(c.get("norm_topk_prob", False)),
    }


def _qwen2_moe(c: Config) -> dict[str, Any]:
    shared = c["shared_expert_intermediate_size"]
    qkv_bias = c.get("qkv_bias", True)
    return {**_qwen_moe(c), "qkv_bias": qkv_bias, "shared_width": shared, "shared_gated": True}


def _qwen3_moe(c: Config) -> dict[str, Any]:
    return {**_qwen_moe(c), "qk_norm": "head", "qkv_bias": c.get("attention_bias", False)}


def _deepseek(c: Config) -> dict[str, Any]:
    """DeepSeek-MoE v1 (remote code) and, with latent attention, DeepSeek-V2."""
    first, step = c.get("first_k_dense_replace", 0), c.get("moe_layer_freq", 1)
    return {
        "num_experts": c["n_routed_experts"],
        "top_k": c["num_experts_per_tok"],
        "expert_width": c["moe_intermediate_size"],
        "shared_width": (c.get("n_shared_experts") or 0) * c["moe_intermediate_size"],
        "dense_layers": tuple(
            i for i in range(c["num_hidden_layers"]) if i < first or i % step
        ),
        "dense_width": c.get("intermediate_size", 0),
        "gate": _softmax_gate(c.get("norm_topk_prob", False)),
        "routed_scaling_factor": c.get("routed_scaling_factor", 1.0),
    }


def _deepseek_v2(c: Config) -> dict[str, Any]:
    if c.get("q_lora_rank"):
        raise ValueError("q_lora_rank: compressed queries are not supported; allowed: null")
    keys = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    return {**_deepseek(c), "latent": LatentAttention(**{k: c[k] for k in keys})}


def _xverse(c: Config) -> dict[str, Any]:
    """XVERSE-MoE (remote code); its own gate renormalises, see the SMoE authors' model file."""
    return {
        "num_experts": c["num_experts"],
        "top_k": c["moe_top_k"],
        "expert_width": c["intermediate_size"],
        "shared_width": (c.get("num_shared_experts") or 0) * c["intermediate_size"],
        "gate": _softmax_gate(c.get("norm_topk_prob", True)),
    }


def _mixtral(c: Config) -> dict[str, Any]:
    return {
        "num_experts": c["num_local_experts"],
        "top_k": c["num_experts_per_tok"],
        "expert_width": c["intermediate_size"],
        "gate": GateKind.SOFTMAX_TOPK_RENORM,
    }


def _phimoe(c: Config) -> dict[str, Any]:
    bias = c.get("attention_bias", False)
    return {
        **_mixtral(c),
        "gate": GateKind.SPARSEMIXER,
        "gate_jitter": c.get("router_jitter_noise", 0.01),
        "norm": "layer",
        "qkv_bias": bias,
        "output_bias": bias,
        "head_bias": c.get("lm_head_bias", False),
    }


def _olmoe(c: Config) -> dict[str, Any]:
    return {
        "num_experts": _num_experts(c),
        "top_k": c["num_experts_per_tok"],
        "expert_width": c["intermediate_size"],
        "qk_norm": "full",
        "clip_qkv": c.get("clip_qkv"),
        "gate": _softmax_gate(c.get("norm_topk_prob", False)),
    }


def _gpt_oss(c: Config) -> dict[str, Any]:
    return {
        **_mixtral(c),
        "gate": GateKind.TOPK_SOFTMAX,
        "gate_bias": True,
        "expert_bias": True,
        "qkv_bias": True,
        "output_bias": True,
        "attention_sinks": True,
    }


def _glm4_moe(c: Config) -> dict[str, Any]:
    return {
        **_deepseek(c),
        "qkv_bias": c.get("attention_bias", False),
        "qk_norm": "head" if c.get("use_qk_norm", False) else "none",
        "gate": GateKind.SIGMOID_BIAS_TOPK_RENORM,
        "gate_bias": True,
    }


def _llama4_text(c: Config) -> dict[str, Any]:
    return {
        "num_experts": c["num_local_experts"],
        "top_k": c["num_experts_per_tok"],
        "expert_width": c["intermediate_size"],
        "shared_width": c["intermediate_size"],
        "gate": GateKind.TOPK_SIGMOID,
    }


_READERS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "deepseek": _deepseek,
    "deepseek_v2": _deepseek_v2,
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4_text,
    "mixtral": _mixtral,
    "olmoe": _olmoe,
    "phimoe": _phimoe,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "xverse": _xverse,
}
