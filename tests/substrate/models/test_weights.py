"""Checkpoints and expert stores: what is read equals what was written; what is broken is named."""

import json
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from moebench.substrate.errors import CheckpointError
from moebench.substrate.models.weights import (
    ALIGNMENT,
    Checkpoint,
    ExpertStore,
    ResidentExperts,
    unpack,
)
from tests.substrate.models.checkpoints import EXPERTS, FAMILIES, make_checkpoint

VICTIM = "model.layers.2.mlp.experts.7.up_proj.weight"


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> dict[tuple[str, bool], Path]:
    """Every family, in one file and sharded."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {
        (family, sharded): make_checkpoint(root / f"{family}-{sharded}", family, sharded=sharded)
        for family in FAMILIES
        for sharded in (False, True)
    }


def tensors_of(path: Path) -> dict[str, Tensor]:
    return {k: v for file in path.glob("*.safetensors") for k, v in load_file(file).items()}


def stored_expert(path: Path, layer: int, expert: int) -> list[Tensor]:
    """Gate, up and down as the files spell them, whichever of the two spellings they use."""
    tensors = tensors_of(path)
    for block, names in (
        ("mlp", ("gate_proj", "up_proj", "down_proj")),
        ("block_sparse_moe", ("w1", "w3", "w2")),
    ):
        prefix = f"model.layers.{layer}.{block}.experts.{expert}"
        if f"{prefix}.{names[0]}.weight" in tensors:
            return [tensors[f"{prefix}.{name}.weight"] for name in names]
    raise AssertionError(f"{path}: no expert {layer}/{expert}")


# ------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_store_records_are_the_checkpoints_experts(family, dtype, directories, tmp_path):
    path = directories[family, True]
    checkpoint = Checkpoint(path)
    store = ExpertStore.build(checkpoint, tmp_path / "deep" / "experts.bin", dtype)
    resident = ResidentExperts(checkpoint, dtype)
    starts = []
    content = store.path.read_bytes()
    try:
        for layer in checkpoint.shape.moe_layers:
            for expert in range(EXPERTS):
                gate, up, down = (t.to(dtype) for t in stored_expert(path, layer, expert))
                slot = torch.frombuffer(
                    bytearray(content), dtype=dtype, count=store.record_values,
                    offset=store.offset(layer, expert),
                )  # fmt: skip
                for gate_up, last in (
                    unpack(store.shape, slot),
                    resident.matrices(layer, expert),
                ):
                    assert torch.equal(gate_up, torch.cat((gate, up)))
                    assert torch.equal(last, down)
                starts.append(store.offset(layer, expert))
    finally:
        checkpoint.close()
    assert not any(start % ALIGNMENT for start in starts)
    assert min(b - a for a, b in pairwise(starts)) >= store.record_bytes
    assert store.path.stat().st_size == starts[-1] + store.stride_bytes


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_is_read_once_and_sharding_changes_nothing(family, directories):
    one, many = (Checkpoint(directories[family, sharded]) for sharded in (False, True))
    assert len(list(many.path.glob("*.safetensors"))) > 1
    common = one.common(torch.float32)
    for name, tensor in many.common(torch.float32).items():
        assert torch.equal(tensor, common[name]), name
    tensors = tensors_of(one.path)
    experts = {name for name in tensors if ".experts." in name}
    assert len(common) == len(tensors) - len(experts)
    assert sum(t.numel() for t in tensors.values()) == one.shape.total_params
    assert one.shape == many.shape


def test_a_finished_store_is_reused_and_a_partial_one_replaced(directories, tmp_path):
    checkpoint = Checkpoint(directories["xverse", False])
    path = tmp_path / "experts.bin"
    store = ExpertStore.build(checkpoint, path, torch.float32)
    whole, written = path.read_bytes(), path.stat().st_mtime_ns
    assert ExpertStore.build(checkpoint, path, torch.float32) == store
    assert path.stat().st_mtime_ns == written

    os.truncate(path, len(whole) - 1)
    (tmp_path / "experts.partial").write_bytes(b"left by a run that was killed")
    ExpertStore.build(checkpoint, path, torch.float32)
    assert path.read_bytes() == whole
    assert [p.name for p in tmp_path.iterdir()] == ["experts.bin"]


def test_the_hash_follows_weights_and_configuration(directories, tmp_path):
    original = directories["deepseek", False]
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    known = Checkpoint(original).content_hash()
    assert Checkpoint(copy).content_hash() == known
    alter_config(rms_norm_eps=2e-6)(copy)
    renamed = Checkpoint(copy).content_hash()
    alter_tensor(VICTIM, lambda t: t * 1.5)(copy)
    assert len({known, renamed, Checkpoint(copy).content_hash()}) == 3


# ------------------------------------------------------------------------------- what may be broken

Damage = Callable[[Path], object]


def alter_config(drop: str | None = None, **changes: object) -> Damage:
    def damage(path: Path) -> None:
        file = path / "config.json"
        config = {**json.loads(file.read_text()), **changes}
        config.pop(drop, None)
        file.write_text(json.dumps(config))

    return damage


def alter_tensor(name: str, change: Callable[[Tensor], Tensor | None]) -> Damage:
    def damage(path: Path) -> None:
        file = path / "model.safetensors"
        tensors = load_file(file)
        changed = change(tensors.pop(name))
        save_file(tensors if changed is None else {**tensors, name: changed.contiguous()}, file)

    return damage


def truncate(share: float) -> Damage:
    def damage(path: Path) -> None:
        file = path / "model.safetensors"
        os.truncate(file, int(file.stat().st_size * share))

    return damage


def write(file: str, text: str) -> Damage:
    return lambda path: (path / file).write_text(text)


def remove(file: str) -> Damage:
    return lambda path: (path / file).unlink()


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shutil.rmtree, ["no such directory"]),
        (remove("config.json"), ["config.json", "cannot be read"]),
        (write("config.json", '{"model_type": '), ["config.json", "not valid JSON"]),
        (write("config.json", "[1]"), ["config.json", "expected a JSON object"]),
        (alter_config(model_type="gpt2"), ["config.json", "'gpt2'", "allowed: deepseek, "]),
        (alter_config(drop="model_type"), ["config.json", "model_type None", "allowed: "]),
        (
            alter_config(model_type="glm4_moe"),
            ["decoder does not know", "'glm4_moe'", "allowed: deepseek, "],
        ),
        (alter_config(drop="hidden_size"), ["config.json", "key 'hidden_size' is missing"]),
        (alter_config(drop="n_routed_experts"), ["config.json", "key 'n_routed_experts'"]),
        (alter_config(num_experts_per_tok=9), ["config.json", "top_k 9 exceeds num_experts 8"]),
        (alter_config(num_attention_heads=0), ["config.json", "zero"]),
        (alter_config(rms_norm_eps="small"), ["config.json", "norm_eps", "number"]),
        (alter_tensor(VICTIM, lambda t: None), [VICTIM, "is missing"]),
        (alter_tensor("lm_head.weight", lambda t: None), ["lm_head.weight", "is missing"]),
        (alter_tensor(VICTIM, lambda t: t.T), [VICTIM, "has shape [32, 12]", "demands [12, 32]"]),
        (alter_config(moe_intermediate_size=16), ["has shape [24, 32]", "demands [32, 32]"]),
        (truncate(0.9), ["model.safetensors", "truncated"]),
        (truncate(0.0), ["model.safetensors", "truncated"]),
        (remove("model.safetensors"), ["holds no .safetensors file"]),
        (
            write(INDEX, '{"weight_map": {"a": "model.safetensors", "b": "gone.safetensors"}}'),
            ["gone.safetensors", "named by the index but missing"],
        ),
        (write(INDEX, '{"weight_map": '), [INDEX, "not a safetensors index"]),
        (write(INDEX, "[]"), [INDEX, "not a safetensors index"]),
        (write(INDEX, "{}"), [INDEX, "not a safetensors index"]),
    ],
)
def test_a_broken_checkpoint_is_named_in_one_line(damage, said, directories, tmp_path):
    path = tmp_path / "broken"
    shutil.copytree(directories["deepseek", False], path)
    damage(path)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    for part in said:
        assert part in message
