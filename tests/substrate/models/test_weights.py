"""Checkpoints and expert stores: read data equal written data, and damage is named."""

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
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from moebench.substrate.errors import CheckpointError
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.expert_store import ALIGNMENT, ExpertStore
from moebench.substrate.models.formats import unpack
from moebench.substrate.models.resident import ResidentExperts
from tests.substrate.models.checkpoints import (
    EXPERTS,
    FAMILIES,
    HF_FAMILIES,
    make_checkpoint,
    write_checkpoint,
)

VICTIM = "model.layers.2.mlp.experts.7.up_proj.weight"


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> dict[tuple[str, bool], Path]:
    """Write checkpoints of every family, in one file and sharded."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {
        (family, sharded): make_checkpoint(root / f"{family}-{sharded}", family, sharded=sharded)
        for family in FAMILIES
        for sharded in (False, True)
    }


def tensors_of(path: Path) -> dict[str, Tensor]:
    return {k: v for file in path.glob("*.safetensors") for k, v in load_file(file).items()}


def stored_expert(path: Path, layer: int, expert: int) -> list[Tensor]:
    """Return gate, up, down and biases from a checkpoint's files, in any of their layouts."""
    tensors = tensors_of(path)
    for block, names in (
        ("mlp", ("gate_proj", "up_proj", "down_proj")),
        ("block_sparse_moe", ("w1", "w3", "w2")),
    ):
        prefix = f"model.layers.{layer}.{block}.experts.{expert}"
        if f"{prefix}.{names[0]}.weight" in tensors:
            return [tensors[f"{prefix}.{name}.weight"] for name in names]
    block = "feed_forward" if "feed_forward" in "".join(tensors) else "mlp"
    prefix = f"model.layers.{layer}.{block}.experts"
    gate_up, down = (tensors[f"{prefix}.{n}_proj"][expert] for n in ("gate_up", "down"))
    if f"{prefix}.gate_up_proj_bias" in tensors:  # gpt-oss: gate and up in turn
        bias, last = (tensors[f"{prefix}.{n}_proj_bias"][expert] for n in ("gate_up", "down"))
        matrices = [gate_up[:, ::2].T, gate_up[:, 1::2].T, down.T]
        return [*matrices, torch.cat((bias[::2], bias[1::2])), last]
    if block == "feed_forward":  # Llama 4: [in, out]
        gate_up, down = gate_up.T, down.T
    return [*gate_up.chunk(2), down]


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
                gate, up, *rest = (t.to(dtype) for t in stored_expert(path, layer, expert))
                slot = torch.frombuffer(
                    bytearray(content), dtype=dtype, count=store.format.values,
                    offset=store.offset(layer, expert),
                )  # fmt: skip
                for found in (unpack(store.shape, slot), resident.matrices(layer, expert)):
                    for one, other in zip(found, (torch.cat((gate, up)), *rest), strict=True):
                        assert torch.equal(one, other)
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
    assert experts
    assert len(common) == len(tensors) - len(experts)
    assert sum(t.numel() for t in tensors.values()) == one.shape.total_params
    assert one.shape == many.shape


FUSED = [f for f in HF_FAMILIES if f not in ("gpt_oss", "llama4_text")]


@pytest.mark.parametrize("family", FUSED)
def test_the_fused_layout_holds_the_same_weights(family, directories, tmp_path):
    old = Checkpoint(directories[family, False])
    new = Checkpoint(make_checkpoint(tmp_path / "fused", family, fused=True))
    names = set(tensors_of(new.path))
    assert any(name.endswith("mlp.experts.gate_up_proj") for name in names)
    assert not any("experts.0." in name or "block_sparse_moe" in name for name in names)
    common = old.common(torch.float32)
    for name, tensor in new.common(torch.float32).items():
        assert torch.equal(tensor, common[name]), name
    for layer in old.shape.moe_layers:
        for expert in range(EXPERTS):
            record = new.expert_record(layer, expert, torch.float32)
            assert torch.equal(record, old.expert_record(layer, expert, torch.float32))


def test_text_is_read_out_of_a_llama_that_sees(directories, tmp_path):
    """On the hub Llama 4's text stands below ``language_model``, in a folder and in its config."""
    text = directories["llama4_text", True]
    config = json.loads((text / "config.json").read_text())
    tensors = {f"language_model.{name}": t for name, t in tensors_of(text).items()}
    tensors["vision_model.layernorm_pre.weight"] = torch.ones(3)
    write_checkpoint(tmp_path / "sees", {"model_type": "llama4", "text_config": config}, tensors)
    one, other = Checkpoint(text), Checkpoint(tmp_path / "sees")
    assert one.shape == other.shape
    record = one.expert_record(2, 3, torch.float32)
    assert torch.equal(other.expert_record(2, 3, torch.float32), record)
    assert torch.equal(other.common(torch.float32)["head"], one.common(torch.float32)["head"])


def test_gpt_oss_as_the_hub_has_it_is_unpacked(tmp_path):
    """Every pair of four bits, with scales far and near, as transformers unpacks them."""
    plain = make_checkpoint(tmp_path / "plain", "gpt_oss", intermediate_size=64)
    config, tensors = json.loads((plain / "config.json").read_text()), tensors_of(plain)
    draw = torch.Generator().manual_seed(0)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, into, out = tensors.pop(name).shape
        dims = (experts, out, into // 32)
        tensors[f"{name}_blocks"] = torch.randint(
            0, 256, (*dims, 16), dtype=torch.uint8, generator=draw
        )
        tensors[f"{name}_scales"] = torch.randint(100, 140, dims, dtype=torch.uint8, generator=draw)
    quantised = {"quantization_config": {"quant_method": "mxfp4"}}
    write_checkpoint(tmp_path / "packed", {**config, **quantised}, tensors, sharded=True)
    checkpoint = Checkpoint(tmp_path / "packed")
    prefix = "model.layers.1.mlp.experts"
    gate_up, down = (
        convert_moe_packed_tensors(
            tensors[f"{prefix}.{n}_blocks"], tensors[f"{prefix}.{n}_scales"], dtype=torch.float32
        )
        for n in ("gate_up_proj", "down_proj")
    )
    for expert in range(EXPERTS):
        record = checkpoint.expert_record(1, expert, torch.float32)
        found, last, *biases = unpack(checkpoint.shape, record)
        assert torch.equal(
            found, torch.cat((gate_up[expert, :, ::2].T, gate_up[expert, :, 1::2].T))
        )
        assert torch.equal(last, down[expert].T)
        assert torch.equal(biases[1], tensors[f"{prefix}.down_proj_bias"][expert])
    damaged = {**tensors, f"{prefix}.down_proj_scales": tensors[f"{prefix}.down_proj_scales"][1:]}
    write_checkpoint(tmp_path / "damaged", {**config, **quantised}, damaged)
    with pytest.raises(
        CheckpointError, match=r"down_proj_scales has shape \[7, 32, 2\], .*\[8, 32"
    ):
        Checkpoint(tmp_path / "damaged")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_lower_precision_are_read_as_they_are(dtype, directories, tmp_path):
    source = directories["gpt_oss", True]
    lower = {name: tensor.to(dtype) for name, tensor in tensors_of(source).items()}
    write_checkpoint(tmp_path / "lower", json.loads((source / "config.json").read_text()), lower)
    checkpoint = Checkpoint(tmp_path / "lower")
    record = Checkpoint(source).expert_record(1, 2, torch.float32)
    assert torch.equal(checkpoint.expert_record(1, 2, torch.float32), record.to(dtype).float())
    common = checkpoint.common(torch.float32)
    assert common["embed"].dtype == torch.float32
    assert torch.equal(common["head"], lower["lm_head.weight"].float())


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
            alter_config(quantization_config={"quant_method": "gptq"}),
            ["quantised (gptq)", "and mxfp4 of gpt_oss; load the checkpoint that it was made from"],
        ),
        (
            alter_tensor(VICTIM, lambda t: t.to(torch.float8_e4m3fn)),
            [VICTIM, "stored as F8_E4M3", "allowed: bf16, fp16, fp32"],
        ),
        (alter_config(drop="hidden_size"), ["config.json", "key 'hidden_size' is missing"]),
        (alter_config(drop="n_routed_experts"), ["config.json", "key 'n_routed_experts'"]),
        (alter_config(num_experts_per_tok=9), ["config.json", "top_k 9 exceeds num_experts 8"]),
        (alter_config(num_attention_heads=0), ["config.json", "num_attention_heads is 0"]),
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
            ["gone.safetensors", "named by model.safetensors.index.json but missing"],
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
