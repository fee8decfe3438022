"""Checkpoints and imports that were changed, mixed up or made to mislead: one line each."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moebench.harness.run.questions import read_texts
from moebench.substrate.errors import CheckpointError
from moebench.substrate.machines.records import DiskRecords
from moebench.substrate.models.catalogue import scale_path
from moebench.substrate.models.checkpoint import INDEX, MANIFEST, Checkpoint
from moebench.substrate.models.imported import RECORDS, Imported, every_expert, import_checkpoint
from tests.substrate.models.checkpoints import make_checkpoint


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Write a checkpoint of several shards with an index."""
    return make_checkpoint(tmp_path / "sharded", "olmoe", sharded=True)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Write an import in fp32."""
    source = make_checkpoint(tmp_path / "source", "olmoe")
    return import_checkpoint(source, tmp_path / "out", "fp32").path


@pytest.fixture(scope="module")
def scale_tokenizer() -> Path:
    """Return a tokenizer's file."""
    return scale_path("mixtral-8x7b") / "tokenizer.json"


def refused(folder: Path) -> str:
    """Open and read all weights of a folder, which must fail in one line."""
    with pytest.raises(CheckpointError) as caught:
        read_all(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def read_all(folder: Path) -> dict[str, torch.Tensor]:
    found = (Imported if (folder / MANIFEST).exists() else Checkpoint)(folder)
    weights = found.common(torch.float32)
    for layer in found.shape.moe_layers:
        for expert in range(found.shape.num_experts):
            weights[f"{layer}.{expert}"] = found.expert_record(layer, expert, torch.float32)
    return weights


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


# ------------------------------------------------------------------------------- the index


def test_a_stray_file_with_the_same_tensors_is_refused(sharded: Path) -> None:
    first = sorted(sharded.glob("*.safetensors"))[0]
    stray = {name: tensor + 1 for name, tensor in load_file(first).items()}
    save_file(stray, sharded / "z_old.safetensors")
    line = refused(sharded)
    assert f"{first.name} and z_old.safetensors both hold the tensor" in line


def test_a_stray_file_with_other_tensors_is_not_read(sharded: Path) -> None:
    before = read_all(sharded)
    save_file({"layers.0.attention.wq": torch.zeros(2, 2)}, sharded / "consolidated.safetensors")
    assert equal(read_all(sharded), before)


def test_two_shards_with_one_tensor_are_refused(sharded: Path) -> None:
    first, second = sorted(sharded.glob("*.safetensors"))[:2]
    tensors = load_file(first)
    name = next(iter(tensors))
    save_file(load_file(second) | {name: tensors[name] + 1}, second)
    assert f"both hold the tensor {name}" in refused(sharded)
    (sharded / INDEX).unlink()
    assert f"both hold the tensor {name}" in refused(sharded)


def test_an_index_that_names_another_file_is_refused(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    name, file = next(iter(index["weight_map"].items()))
    other = next(one for one in index["weight_map"].values() if one != file)
    index["weight_map"][name] = other
    (sharded / INDEX).write_text(json.dumps(index))
    assert f"{other}: holds no tensor {name}" in refused(sharded)


@pytest.mark.parametrize("held", [3, [], {}, {"a": 1}, {"a": "../x"}, {"a": "/etc/passwd"}])
def test_an_index_that_is_none_is_refused(sharded: Path, held: Any) -> None:
    (sharded / INDEX).write_text(json.dumps({"weight_map": held}))
    assert "not a safetensors index" in refused(sharded)


# ------------------------------------------------------------------------------- values


def change(folder: Path, name: str, new: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        if name in tensors:
            save_file(tensors | {name: new(tensors[name]).contiguous()}, file)


@pytest.mark.parametrize(
    "name",
    ["model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.experts.3.up_proj.weight"],
)
def test_a_matrix_of_zeros_is_refused_and_a_vector_is_not(sharded: Path, name: str) -> None:
    change(sharded, "model.layers.1.input_layernorm.weight", torch.zeros_like)
    read_all(sharded)
    change(sharded, name, torch.zeros_like)
    assert f"tensor {name} holds zeros only" in refused(sharded)
    change(sharded, name, lambda tensor: tensor + float("inf"))
    assert f"tensor {name} holds inf" in refused(sharded)


def test_a_tensor_of_another_shape_is_refused(sharded: Path) -> None:
    name = "model.layers.1.self_attn.q_proj.weight"
    change(sharded, name, lambda tensor: tensor[:-1])
    assert f"tensor {name} has shape" in refused(sharded)


# ------------------------------------------------------------------------------- files


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_no_reader_waits_for_a_pipe(sharded: Path, out: Path, kind: str) -> None:
    shards = sorted(path.name for path in sharded.glob("*.safetensors"))
    common = next(path.name for path in out.glob("common-*"))
    for folder, names in (
        (sharded, ["config.json", INDEX, shards[0]]),
        (out, ["config.json", MANIFEST, RECORDS, common]),
    ):
        for name in names:
            kept = folder / "kept"
            (folder / name).rename(kept)
            os.mkfifo(folder / name) if kind == "pipe" else (folder / name).mkdir()
            assert name in refused(folder)
            (folder / name).unlink() if kind == "pipe" else (folder / name).rmdir()
            kept.rename(folder / name)
        read_all(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json"])
def test_the_tokenizer_is_no_pipe_either(tmp_path: Path, name: str, scale_tokenizer: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    shutil.copy(scale_tokenizer, folder / "tokenizer.json")
    (folder / "config.json").write_text('{"eos_token_id": 0}')
    assert read_texts(folder).end == 0
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match=rf"{name}: not a regular file"):
        read_texts(folder)


@pytest.mark.parametrize(
    ("end", "allowed"),
    [(0, True), ([0, 1], True), (None, True), (-1, False), ([0, -2], False), ("0", False),
     (True, False), (1.0, False)],
)  # fmt: skip
def test_an_end_token_is_a_token_id(
    tmp_path: Path, end: Any, allowed: bool, scale_tokenizer: Path
) -> None:
    shutil.copy(scale_tokenizer, tmp_path / "tokenizer.json")
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": end}))
    if allowed:
        read_texts(tmp_path)
        return
    with pytest.raises(
        CheckpointError, match=r"config.json: eos_token_id is .*; allowed: token ids"
    ):
        read_texts(tmp_path)


# ------------------------------------------------------------------------------- imports


def flip(file: Path, at: int) -> None:
    with file.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("reader", ["record", "mapped", "stacked", "disk"])
@pytest.mark.parametrize("older", [False, True])
def test_a_flipped_byte_of_a_record_is_refused_when_it_is_read(
    out: Path, reader: str, older: bool
) -> None:
    if older:  # an import of a version without 64-bit checksums
        manifest = json.loads((out / MANIFEST).read_text())
        del manifest["checksums"]
        (out / MANIFEST).write_text(json.dumps(manifest))
    whole = Imported(out)
    assert whole.store is not None
    layer, experts = whole.shape.moe_layers[1], [2, 3, 4]

    def read(found: Imported) -> None:
        store = found.store
        assert store is not None
        if reader == "record":
            for expert in experts:
                found.expert_record(layer, expert, torch.float32)
        elif reader == "disk":
            with DiskRecords(store, keep_page_cache=True) as records:
                slot = torch.empty(records.stride_bytes, dtype=torch.uint8)
                for expert in experts:
                    records.copy(layer, expert, slot, 0, records.stride_bytes)
        else:
            mapped = every_expert(found, torch.float32)
            if reader == "mapped" or mapped.stacked(layer, experts) is None:
                for expert in experts:
                    mapped.matrices(layer, expert)

    read(whole)
    at = whole.store.offset(layer, 3)
    flip(out / RECORDS, at + whole.store.record_bytes - 1)
    with pytest.raises(CheckpointError, match=f"layer {layer} expert 3 was changed after it was"):
        read(Imported(out))
    flip(out / RECORDS, at + whole.store.record_bytes - 1)
    if whole.store.stride_bytes > whole.store.record_bytes:
        flip(out / RECORDS, at + whole.store.record_bytes)  # padding, which nobody reads
    read(Imported(out))


def test_a_flipped_byte_of_any_other_file_is_refused(out: Path) -> None:
    for file in sorted(out.iterdir()):
        if file.name in (RECORDS, MANIFEST):
            continue
        flip(file, file.stat().st_size - 2)
        line = refused(out)
        assert f"{file.name}: its SHA-256 differs" in line
        flip(file, file.stat().st_size - 2)
    read_all(out)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), []), ((), {}), (("dtype",), 3), (("dtype",), "int3"), (("files",), []),
        (("files",), {}), (("files", "config.json"), 7), (("files", "../x"), "0" * 64),
        (("files", "config.json"), "zz"), (("records",), {}), (("records",), []),
        (("records", 0), None), (("records", 0), "0" * 63), (("content",), None),
        (("source",), {}), (("content",), "0" * 16), (("checksums",), ["0" * 16]),
        (("checksums",), "no"),
        (("checksums", 0), 5),
    ],
)  # fmt: skip
def test_a_damaged_manifest_is_refused(out: Path, path: tuple[Any, ...], value: Any) -> None:
    manifest = json.loads((out / MANIFEST).read_text())
    if not path:
        manifest = value
    else:
        place = manifest
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    (out / MANIFEST).write_text(json.dumps(manifest))
    line = refused(out)
    assert MANIFEST in line
    assert "moebench models import" in line
