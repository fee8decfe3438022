"""Written GGUF files: llama.cpp's logits equal Transformers' (or the decoder's)."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.config import shape_of
from moebench.substrate.models.formats import unpack
from moebench.systems.native.gguf_file import (
    _neighbours,
    _write_numbers,
    _write_tokenizer,
    why_not,
    write_gguf,
)
from tests.substrate.models.checkpoints import REMOTE_CONFIGS, make_checkpoint
from tests.substrate.models.driver import load
from tests.systems.native.modules import put_in_place

PROMPT = [3, 17, 5, 44, 60, 0, 9, 9, 31, 2, 28]

#: What llama.cpp's graphs lack is left out of the tiny configurations.
CHANGES = {
    "qwen2_moe": {"mlp_only_layers": []},
    "olmoe": {"clip_qkv": None, "num_key_value_heads": 4},
    "mixtral": {"sliding_window": None},
    "qwen3_moe": {},
    "deepseek": {},
}


def reference(path: Path, family: str) -> Tensor:
    """Return logits ``[T, V]`` of the prompt."""
    if family == "deepseek":
        return load(path).full_logits([PROMPT])[0]
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(torch.tensor([PROMPT])).logits[0]


@pytest.mark.parametrize("family", CHANGES)
def test_llamacpp_computes_the_same_logits(family: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed: make native")
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    path = make_checkpoint(tmp_path / family, family, **CHANGES[family])
    checkpoint = Checkpoint(path)
    assert why_not(checkpoint.shape) is None
    file = write_gguf(checkpoint, tmp_path / "model.gguf")
    written = file.stat().st_mtime_ns
    assert write_gguf(checkpoint, file).stat().st_mtime_ns == written, "it is reused"
    model = llama_cpp.Llama(
        str(file), n_ctx=64, n_gpu_layers=0, n_threads=1, n_threads_batch=1, type_k=0, type_v=0,
        logits_all=True, verbose=False,
    )  # fmt: skip
    model.eval(PROMPT)
    found = torch.from_numpy(model.scores[: len(PROMPT)].copy())
    wanted = reference(path, family)
    assert wanted.std() > 0.1
    assert (found - wanted).abs().max() < 1e-4
    assert torch.equal(found.argmax(-1), wanted.argmax(-1))


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("qwen2_moe", {"norm_topk_prob": True}, "qwen2moe has no gate of kind softmax_topk_renorm"),
        ("olmoe", {"clip_qkv": 0.5}, "olmoe has no clipped"),
        ("olmoe", {"num_key_value_heads": 2}, "olmoe has no norms over the keys of fewer heads"),
        ("qwen2_moe", {"mlp_only_layers": [0]}, "no dense layers among others"),
        ("mixtral", {"sliding_window": 9}, "llama has no rows that see a window"),
        ("phimoe", {}, "with a softmax gate"),
        ("xverse", {}, "xverse has no experts"),
    ],
)
def test_what_llamacpp_computes_otherwise_is_refused(
    family: str, changes: dict, reason: str, tmp_path: Path
) -> None:
    if family in REMOTE_CONFIGS:
        shape = shape_of({**REMOTE_CONFIGS[family], **changes})
    else:
        given = {**CHANGES.get(family, {}), **changes}
        shape = Checkpoint(make_checkpoint(tmp_path, family, **given)).shape
    assert reason in (why_not(shape) or "")


def test_rows_of_rotated_pairs_stand_side_by_side() -> None:
    # Two heads of four rows: 0 and 2 are a pair, 1 and 3.
    weight = torch.arange(8.0)[:, None]
    assert _neighbours(weight, 4).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_tokens_of_a_byte_level_vocabulary(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: make native")
    path = make_checkpoint(tmp_path / "olmoe", "olmoe", **CHANGES["olmoe"])
    checkpoint = Checkpoint(path)
    ordinary = {"a": 0, "b": 1, "ab": 2}
    (path / "tokenizer.json").write_text(json.dumps({
        "model": {"type": "BPE", "vocab": ordinary, "merges": [["a", "b"]]},
        "added_tokens": [{"id": 4, "content": "<end>"}],
    }))  # fmt: skip
    reader = gguf.GGUFReader(write_gguf(checkpoint, tmp_path / "model.gguf"))
    read = {name: reader.get_field(f"tokenizer.ggml.{name}").contents() for name in (
        "tokens", "token_type", "merges", "eos_token_id", "model",
    )}  # fmt: skip
    size = checkpoint.shape.vocab_size
    assert read["tokens"] == ["a", "b", "ab", "<unused3>", "<end>"] + [
        f"<unused{n}>" for n in range(5, size)
    ]
    normal, control, unused = 1, 3, 5  # gguf's numbers
    assert read["token_type"] == [normal] * 3 + [unused, control] + [unused] * (size - 5)
    assert (read["merges"], read["eos_token_id"], read["model"]) == (["a b"], 4, "gpt2")


class Writer:
    """A writer of GGUF files that notes what it is told."""

    def __init__(self, path: Path | None = None, name: str = "") -> None:
        self.path, self.name = path, name
        self.told: dict[str, Any] = {}
        self.tensors: dict[str, Any] = {}
        self.written: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("add_"):
            return lambda value: self.told.update({name.removeprefix("add_"): value})
        return lambda: self.written.append(name)

    def add_tensor(self, name: str, tensor: Any) -> None:
        assert name not in self.tensors
        self.tensors[name] = tensor

    def write_header_to_file(self) -> None:
        assert self.path is not None
        self.path.write_bytes(b"header")
        self.written.append("write_header_to_file")


@pytest.mark.parametrize("family", CHANGES)
def test_numbers_are_written_under_llamacpps_names(family: str, tmp_path: Path) -> None:
    shape = Checkpoint(make_checkpoint(tmp_path, family, **CHANGES[family])).shape
    shape = shape.model_copy(update={"dense_width": 40, "routed_scaling_factor": 1.5})
    writer = Writer()
    _write_numbers(writer, shape)
    expected = {
        "vocab_size": shape.vocab_size, "context_length": shape.max_positions,
        "embedding_length": shape.hidden_size, "block_count": shape.num_layers,
        "feed_forward_length": 40, "head_count": shape.num_heads,
        "head_count_kv": shape.num_kv_heads, "key_length": shape.head_dim,
        "value_length": shape.head_dim, "rope_dimension_count": shape.head_dim,
        "rope_freq_base": shape.rope_theta, "layer_norm_rms_eps": shape.norm_eps,
        "expert_count": shape.num_experts, "expert_used_count": shape.top_k,
        "expert_feed_forward_length": shape.expert_width,
    }  # fmt: skip
    if family == "deepseek":
        expected |= {
            "leading_dense_block_count": len(shape.dense_layers), "expert_weights_scale": 1.5,
            "expert_shared_count": shape.shared_width // shape.expert_width,
        }  # fmt: skip
    elif family == "qwen2_moe":
        expected["expert_shared_feed_forward_length"] = shape.shared_width
    assert writer.told == expected
    _write_numbers(writer, shape.model_copy(update={"dense_width": 0}))
    assert writer.told["feed_forward_length"] == shape.expert_width


def test_tokens_and_merges_of_a_vocabulary(tmp_path: Path) -> None:
    kinds = SimpleNamespace(CONTROL="control", NORMAL="normal", UNUSED="unused")
    package, file = SimpleNamespace(TokenType=kinds), tmp_path / "tokenizer.json"
    for contents in (None, {}, {"model": {"type": "Unigram"}}):
        if contents is not None:
            file.write_text(json.dumps(contents))
        writer = Writer()
        _write_tokenizer(writer, package, file, 5)
        assert writer.told == {"tokenizer_model": "no_vocab"}
    content = {
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 2}, "merges": ["a b", ["b", "π"]]},
        "added_tokens": [{"id": 4, "content": "<end>"}, {"id": 3, "content": "<begin>"}],
    }
    file.write_text(json.dumps(content), encoding="utf-8")
    writer = Writer()
    _write_tokenizer(writer, package, file, 6)
    assert writer.told == {
        "tokenizer_model": "gpt2", "tokenizer_pre": "gpt-2",
        "token_list": ["a", "<unused1>", "b", "<begin>", "<end>", "<unused5>"],
        "token_types": ["normal", "unused", "normal", "control", "control", "unused"],
        "token_merges": ["a b", "b π"], "bos_token_id": 3, "eos_token_id": 3,
        "add_bos_token": False,
    }  # fmt: skip
    content["added_tokens"] = []
    file.write_text(json.dumps(content))
    writer = Writer()
    _write_tokenizer(writer, package, file, 3)
    assert writer.told["eos_token_id"] == 0


@pytest.mark.parametrize("family", CHANGES)
def test_every_tensor_is_written_once_with_its_rows(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts of a layer are three tensors; queries and keys are permuted where pairs are."""
    writers: list[Writer] = []

    def made(path: Path, name: str) -> Writer:
        writers.append(Writer(path, name))
        return writers[-1]

    put_in_place(monkeypatch, "gguf", GGUFWriter=made, TokenType=SimpleNamespace())
    checkpoint = Checkpoint(make_checkpoint(tmp_path / family, family, **CHANGES[family]))
    file = write_gguf(checkpoint, tmp_path / "folder" / "model.gguf")
    (writer,) = writers
    assert file.read_bytes() == b"header"
    assert writer.path == file.with_suffix(".partial")
    assert not writer.path.exists()
    assert writer.name == {
        "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "mixtral": "llama",
    }.get(family, family)  # fmt: skip
    assert writer.told["file_type"] == 0
    assert writer.written == [
        "write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close",
    ]  # fmt: skip
    shape, tensors = checkpoint.shape, dict(writer.tensors)
    ours = checkpoint.common(torch.float32)
    assert len(tensors) == len(ours) + 3 * len(shape.moe_layers)
    assert (tensors["token_embd.weight"] == ours["embed"].numpy()).all()
    assert (tensors["output_norm.weight"] == ours["norm"].numpy()).all()
    layer = shape.moe_layers[-1]
    query = ours[f"layers.{layer}.q"]
    permuted = family in ("deepseek", "mixtral")
    rows = _neighbours(query, shape.head_dim) if permuted else query
    assert (tensors[f"blk.{layer}.attn_q.weight"] == rows.numpy()).all()
    assert permuted == (not torch.equal(rows, query))
    value = ours[f"layers.{layer}.v"]
    assert (tensors[f"blk.{layer}.attn_v.weight"] == value.numpy()).all()
    if family == "qwen2_moe":
        assert f"blk.{layer}.attn_q.bias" in tensors
        assert tensors[f"blk.{layer}.ffn_gate_inp_shexp.weight"].shape == (shape.hidden_size,)
    record = checkpoint.expert_record(layer, shape.num_experts - 1, torch.float32)
    gate_up, down = unpack(shape, record)
    for part, wanted in (
        ("gate", gate_up[: shape.expert_width]), ("up", gate_up[shape.expert_width :]),
        ("down", down),
    ):  # fmt: skip
        found = tensors[f"blk.{layer}.ffn_{part}_exps.weight"]
        assert len(found) == shape.num_experts
        assert (found[-1] == wanted.numpy()).all(), part
    assert write_gguf(checkpoint, file) == file
    assert len(writers) == 1, "it is reused"
