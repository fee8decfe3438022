"""Fuzzing of model inputs: user-defined shapes, and checkpoints."""

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from moebench.substrate.models import catalogue
from moebench.substrate.models.config import READERS
from tests.fuzz_inputs import traces
from tests.fuzz_inputs.door import Case, Door, finite, weighted
from tests.harness.commands import SMALL
from tests.harness.tiny import EXPERTS, LAYERS, TOP_K

REPLAY = (
    "run", "--trace", "t", "--system", "moe-ondemand", "--machine", "a6000", "--capacity", "0.5",
    "--no-interval", "--json",
)  # fmt: skip
WEIGHTS = (
    "run", "--system", "moe-ondemand", *SMALL, "--weights", "w", "--no-interval", "--json",
)  # fmt: skip

#: A small model of a family that is known, and of one that is not.
CONFIG: dict[str, Any] = {
    "model_type": "mixtral", "num_hidden_layers": LAYERS, "hidden_size": 64, "vocab_size": 300,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
    "num_local_experts": EXPERTS, "num_experts_per_tok": TOP_K, "max_position_embeddings": 2048,
    "rope_theta": 1e6, "rms_norm_eps": 1e-5,
}  # fmt: skip
SHAPE: dict[str, Any] = {
    "num_layers": LAYERS, "hidden_size": 64, "vocab_size": 300, "num_heads": 4, "num_kv_heads": 2,
    "num_experts": EXPERTS, "top_k": TOP_K, "expert_width": 128,
}  # fmt: skip


def charging(
    text: str | bytes, file: str, names: tuple[str, ...], good: bool | None, about: str
) -> Case:
    def prepare(folder: Path) -> None:
        traces.write_trace(folder / "t", traces.recorded(0, ()), traces.HEADER)
        (folder / file).write_bytes(text if isinstance(text, bytes) else text.encode())

    arguments = (*REPLAY, "--model", file)
    return Case(arguments, prepare, names, good, lambda called: finite(called.json), about)


def written(fields: dict[str, Any], file: str) -> str:
    return json.dumps(fields) if file.endswith(".json") else yaml.safe_dump(fields)


BAD = st.one_of(
    st.sampled_from([0, -1, True, "12", 2**70, 10**12, 1e300, float("nan"), float("inf"), [], {},
                     "x", 1.5]),
    st.floats(max_value=0), st.text(min_size=1, max_size=3),
)  # fmt: skip


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        return False


@st.composite
def shapes(draw: st.DrawFn) -> Case:
    """Generate configurations or shapes with one invalid field."""
    own = draw(st.booleans())
    base, file = (SHAPE, "m.yaml") if own else (CONFIG, draw(st.sampled_from(["m.json", "m.yml"])))
    field = draw(st.sampled_from(sorted(base)))
    value = draw(BAD)
    small = field in ("rope_theta", "rms_norm_eps")  # numbers that need not be whole
    good: bool | None = None if small and value in (1.5, "12", 10**12, 2**70, 1e300) else False
    if own and (value == 1.5 or _is_number(value)):  # a word that is a number is read as one
        good = None
    return charging(written(base | {field: value}, file), file, (file,), good, f"{file} {field}")


@st.composite
def lacking(draw: st.DrawFn) -> Case:
    """Generate configurations with a missing or unknown field; some fields have defaults."""
    own = draw(st.booleans())
    base, file = (SHAPE, "m.yaml") if own else (CONFIG, "m.json")
    field = draw(st.sampled_from(sorted(base)))
    fields = {key: value for key, value in base.items() if key != field}
    optional = {
        "num_key_value_heads", "num_kv_heads", "rope_theta", "rms_norm_eps",
        "max_position_embeddings",
    }  # fmt: skip
    if own and draw(st.booleans()):
        return charging(
            written(base | {"num_expert": 3}, file), file, (file, "num_expert"), False, "unknown"
        )
    good = field in optional
    return charging(written(fields, file), file, (file,), good, f"without {field}")


ODD = (
    "rope_scaling", "layer_types", "mlp_only_layers", "text_config", "sliding_window",
    "decoder_sparse_step", "n_group", "moe_layers", "topk_group", "no_rope_layers", "hidden_act",
    "norm_topk_prob", "partial_rotary_factor", "clip_qkv", "first_k_dense_replace",
)  # fmt: skip


@st.composite
def odd_values(draw: st.DrawFn) -> Case:
    """Generate configurations with unexpected values of keys that some families read."""
    family = draw(st.sampled_from(sorted(READERS)))
    key = draw(st.sampled_from(ODD))
    value = draw(st.one_of(BAD, st.sampled_from([[1], {"type": "yarn"}, {"rope_type": 3}, None,
                                                 {"type": "longrope", "factor": 0}])))  # fmt: skip
    base = CONFIG | {
        "model_type": family, "num_experts": EXPERTS, "n_routed_experts": EXPERTS,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "moe_top_k": TOP_K,
        "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4,
        "norm_topk_prob": True, "use_sliding_window": True, "head_dim": 16,
    }  # fmt: skip
    return charging(json.dumps(base | {key: value}), "m.json", (), None, f"{family} {key}")


@st.composite
def raw_models(draw: st.DrawFn) -> Case:
    """Generate files that are not models."""
    file = draw(st.sampled_from(["m.json", "m.yaml", "m.yml"]))
    text = draw(
        st.one_of(
            st.sampled_from([b"", b"{", b"[]", b"3", b"\xff\xfe{}", b"[" * 3000, b"null", b"{}",
                             b'{"model_type": "gpt2"}', b'{"model_type": ["mixtral"]}',
                             b'{"model_type": "llama4", "text_config": 3}',
                             b'{"a": 1, "a": 2}', b'{"model_type": {}}']),
            st.binary(max_size=20),
        )
    )  # fmt: skip
    return charging(text, file, (file,), False, "raw model")


@st.composite
def right_models(draw: st.DrawFn) -> Case:
    """Generate valid user-defined shapes with widths of no shipped model."""
    width, own = draw(st.sampled_from([32, 96, 4096])), draw(st.booleans())
    if own:
        return charging(written(SHAPE | {"expert_width": width}, "m.yaml"), "m.yaml", (), True, "")
    file = draw(st.sampled_from(["m.json", "m.yaml", "config.json"]))
    return charging(written(CONFIG | {"intermediate_size": width}, file), file, (), True, "right")


# ----------------------------------------------------------------------------- checkpoints


@cache
def _tensors(place: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(place / "model.safetensors")
    return found


def computing(
    change: Callable[[dict[str, torch.Tensor]], object], names: tuple[str, ...], good: bool | None,
    about: str, config: dict[str, Any] | None = None,
    spoil: Callable[[Path], object] = lambda folder: None,
) -> Case:  # fmt: skip
    def prepare(folder: Path) -> None:
        place = catalogue.scale_path(traces.MODEL)
        tensors = dict(_tensors(place))
        change(tensors)
        (folder / "w").mkdir()
        for name in ("config.json", "tokenizer.json"):
            (folder / "w" / name).write_bytes((place / name).read_bytes())
        if config is not None:
            told = json.loads((place / "config.json").read_text()) | config
            (folder / "w" / "config.json").write_text(json.dumps(told))
        save_file(tensors, folder / "w" / "model.safetensors")
        spoil(folder / "w")

    return Case(WEIGHTS, prepare, names, good, lambda called: finite(called.json), about)


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(_tensors(catalogue.scale_path(traces.MODEL))))


@st.composite
def weights(draw: st.DrawFn) -> Case:
    """Generate checkpoints with a tensor of invalid values, type or shape, or without it."""
    number = draw(st.integers(0, 10_000))
    kind = draw(st.sampled_from(["nan", "inf", "-inf", "int", "bool", "missing", "short", "flat"]))

    def name() -> str:
        return _names()[number % len(_names())]

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensor = tensors[name()].clone()
        if kind in ("nan", "inf", "-inf"):
            tensor.view(-1)[number % tensor.numel()] = float(kind)
        elif kind == "int":
            tensor = tensor.to(torch.int64)
        elif kind == "bool":
            tensor = tensor > 0
        elif kind == "short":
            tensor = tensor[:-1].clone()
        elif kind == "flat":
            tensor = tensor.reshape(-1)[:-1].clone()
        if kind == "missing":
            del tensors[name()]
        else:
            tensors[name()] = tensor

    return computing(change, ("w", "tensor "), False, f"weights {kind}")


@st.composite
def configurations(draw: st.DrawFn) -> Case:
    """Generate configurations that are unsupported or contradict the tensors."""
    key, value = draw(
        st.sampled_from(
            [("quantization_config", {"quant_method": "gptq"}),
             ("quantization_config", {"bits": 4}),
             ("quantization_config", "int4"), ("quantization_config", [4]),
             ("compression_config", {"format": "x"}), ("hidden_size", 32), ("num_experts", 9),
             ("quantization_config", {"quant_method": "mxfp4"}), ("eos_token_id", "x"),
             ("vocab_size", 8), ("model_type", "mixtral"), ("num_hidden_layers", 10**9),
             ("hidden_act", "gelu")]
        )
    )  # fmt: skip
    names = () if key in ("vocab_size", "model_type", "num_hidden_layers") else ("w",)
    good = None if key == "eos_token_id" else False
    return computing(lambda tensors: None, names, good, key, {key: value})


@st.composite
def cut_checkpoints(draw: st.DrawFn) -> Case:
    """Generate checkpoints with changed or truncated files."""
    file = draw(st.sampled_from(["model.safetensors", "tokenizer.json", "config.json"]))
    place, cut = draw(st.floats(0, 0.999)), draw(st.booleans())
    byte = draw(st.integers(0, 255))

    def spoil(folder: Path) -> None:
        whole = (folder / file).read_bytes()
        at = int(len(whole) * place)
        changed = whole[:at] if cut else whole[:at] + bytes([byte]) + whole[at + 1 :]
        (folder / file).write_bytes(changed)

    return computing(lambda tensors: None, (), None, f"cut {file}", spoil=spoil)


@st.composite
def other_files(draw: st.DrawFn) -> Case:
    """Generate checkpoints whose other files contradict the weights."""
    file = draw(st.sampled_from(["model.safetensors.index.json", "generation_config.json",
                                 "tokenizer_config.json"]))  # fmt: skip
    text = draw(st.sampled_from([b"{", b"[]", b"3", b"\xff", b'{"weight_map": 3}', b"[" * 3000,
                                 b'{"weight_map": {"a": 3}}', b'{"weight_map": {"a": "../x"}}',
                                 b'{"weight_map": {}}', b'{"eos_token_id": []}',
                                 b'{"chat_template": 3}', b'{"chat_template": "{{"}',
                                 b'{"eos_token": 3}']))  # fmt: skip
    good = False if file.endswith("index.json") or not text.startswith(b'{"') else None
    names = (file,) if good is False else ()
    return computing(
        lambda tensors: None, names, good, f"{file} {text!r:.30}",
        spoil=lambda folder: (folder / file).write_bytes(text),
    )  # fmt: skip


DOOR = Door(
    "models",
    weighted(
        (5, shapes()), (2, lacking()), (4, odd_values()), (2, raw_models()), (1, right_models()),
        (5, weights()), (2, configurations()), (3, cut_checkpoints()), (2, other_files()),
    ),
)  # fmt: skip
