"""Written GGUF files: llama.cpp's logits equal Transformers' (or the decoder's)."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.config import shape_of
from moebench.systems.native.gguf_file import _neighbours, why_not, write_gguf
from tests.substrate.models.checkpoints import REMOTE_CONFIGS, make_checkpoint
from tests.substrate.models.driver import load

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
