"""Imported weights equal the checkpoint, an import resumes, and damage is named."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from moebench.substrate.errors import CheckpointError
from moebench.substrate.models import imported
from moebench.substrate.models.checkpoint import JOURNAL, MANIFEST, Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.expert_store import ExpertStore
from moebench.substrate.models.imported import (
    RECORDS,
    Imported,
    Manifest,
    MappedExperts,
    every_expert,
    import_checkpoint,
)
from moebench.substrate.models.opening import open_checkpoint
from moebench.substrate.models.resident import ResidentExperts
from tests.substrate.models.checkpoints import FAMILIES
from tests.substrate.models.driver import PROMPTS, run


@pytest.mark.parametrize("family", FAMILIES)
def test_imported_weights_are_the_checkpoint_s(family, directories, tmp_path):
    source = Checkpoint(directories[family])
    found = import_checkpoint(source.path, tmp_path / "out", "fp32")
    assert found.shape == source.shape
    theirs = source.common(torch.float32)
    mine = found.common(torch.float32)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], tensor) for name, tensor in theirs.items())
    experts = every_expert(found, torch.float32)
    assert isinstance(experts, MappedExperts)
    decoder = Decoder(found.shape, mine, experts)
    resident = Decoder(source.shape, theirs, ResidentExperts(source, torch.float32))
    logits = run(decoder, PROMPTS, 4)
    torch.testing.assert_close(logits, run(resident, PROMPTS, 4), rtol=0, atol=2e-5)
    found.verify()


def test_a_run_reads_no_expert_at_its_start(directories, tmp_path, monkeypatch):
    """Its store is where it was written, its hash known, its records mapped."""
    out = import_checkpoint(directories["olmoe"], tmp_path / "out", "fp32").path

    def never(*_):
        raise AssertionError("an expert was read")

    monkeypatch.setattr(Imported, "expert_record", never)
    monkeypatch.setattr(imported, "_record", never)
    monkeypatch.setattr(ExpertStore, "_write", never)
    found = open_checkpoint(out)
    assert isinstance(found, Imported)
    found.content_hash()
    found.common(torch.float32)
    every_expert(found, torch.float32)
    store = ExpertStore.build(found, tmp_path / "elsewhere.bin", torch.float32)
    assert store.path == out / RECORDS
    assert not (tmp_path / "elsewhere.bin").exists()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_records_of_lower_precision_are_converted_where_they_are_used(
    precision, directories, tmp_path
):
    source = Checkpoint(directories["gpt_oss"])
    found = import_checkpoint(source.path, tmp_path / "out", precision)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    record = source.expert_record(1, 2, dtype).float()
    assert torch.equal(found.expert_record(1, 2, torch.float32), record)
    assert isinstance(every_expert(found, torch.float32), ResidentExperts)
    store = ExpertStore.build(found, tmp_path / "experts.bin", torch.float32)
    assert store.path == tmp_path / "experts.bin"


@pytest.mark.parametrize("after", [0, 1, 5, 11])
def test_an_import_that_was_killed_goes_on(after, directories, tmp_path, monkeypatch):
    source, out = directories["qwen2_moe"], tmp_path / "out"
    whole = import_checkpoint(source, tmp_path / "whole", "fp32")

    def killed(done, of):
        if done > after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_checkpoint(source, out, "fp32", killed)
    assert not (out / MANIFEST).exists()
    with pytest.raises(CheckpointError, match="an import has not finished"):
        open_checkpoint(out)
    read = []
    record = Checkpoint.expert_record

    def counted(self, layer, expert, dtype):
        read.append((layer, expert))
        return record(self, layer, expert, dtype)

    monkeypatch.setattr(Checkpoint, "expert_record", counted)
    found = import_checkpoint(source, out, "fp32")
    assert len(read) == len(found.manifest.records) - after - 1
    assert found.manifest == whole.manifest
    assert (out / RECORDS).read_bytes() == (whole.path / RECORDS).read_bytes()
    names = {file.name for file in out.iterdir()}
    assert not [name for name in names if "partial" in name]
    assert JOURNAL not in names


@pytest.mark.parametrize("name", [".import.json.x7", MANIFEST])
def test_a_kill_at_the_end_of_an_import_leaves_no_file_for_ever(
    name, directories, tmp_path, monkeypatch
):
    """The manifest is under its temporary name, or the journal is not removed yet.

    A file of safetensors was not renamed.
    """
    source, out = directories["qwen2_moe"], tmp_path / "out"
    import_checkpoint(source, tmp_path / "whole", "fp32")
    with monkeypatch.context() as kill:
        kill.setattr(imported, "_remove_unfinished", lambda out: None)
        import_checkpoint(source, out, "fp32")
    (out / MANIFEST).replace(out / name)
    assert (out / JOURNAL).exists()
    (out / ".tmpDms3Kg").touch()
    import_checkpoint(source, out, "fp32").verify()
    contents = [
        {file.name: file.read_bytes() for file in folder.iterdir()}
        for folder in (out, tmp_path / "whole")
    ]
    assert contents[0] == contents[1]


def test_what_a_killed_import_left_is_believed_only_if_its_hash_is_right(directories, tmp_path):
    source, out = directories["qwen2_moe"], tmp_path / "out"

    def killed(done, of):
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_checkpoint(source, out, "fp32", killed)
    with (out / "experts.partial").open("r+b") as file:
        file.seek(100)
        file.write(b"torn")
    common = next(iter(out.glob("common-*.safetensors")))
    os.truncate(common, common.stat().st_size - 1)
    import_checkpoint(source, out, "fp32").verify()


def test_an_import_is_not_mixed_with_another(directories, tmp_path):
    out = tmp_path / "out"
    import_checkpoint(directories["olmoe"], out, "fp32")
    assert import_checkpoint(directories["olmoe"], out, "fp32").path == out
    for source, precision in (("mixtral", "fp32"), ("olmoe", "bf16")):
        with pytest.raises(CheckpointError, match="holds another import; give another --out"):
            import_checkpoint(directories[source], out, precision)
    with pytest.raises(CheckpointError, match="was imported; give it as --weights"):
        import_checkpoint(out, tmp_path / "again", "fp32")


def test_a_disk_without_room_is_refused_before_anything_is_written(
    directories, tmp_path, monkeypatch
):
    usage = shutil._ntuple_diskusage(10, 9, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CheckpointError, match=r"need .* GB, 1e-09 GB are free.*another --out"):
        import_checkpoint(directories["olmoe"], tmp_path / "out", "fp32")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda p: (p / RECORDS).unlink(), f"{RECORDS}: missing; import it again"),
        (lambda p: os.truncate(p / RECORDS, 5), f"{RECORDS}: truncated; import it again"),
        (lambda p: (p / "common-norm.safetensors").unlink(), "common-norm.safetensors: missing"),
        (lambda p: (p / MANIFEST).write_text("{"), f"{MANIFEST}: not valid JSON"),
        (lambda p: (p / MANIFEST).write_text("{}"), f"{MANIFEST}: not an import's manifest"),
    ],
)
def test_damaged_import_is_named_in_the_error(damage, says, directories, tmp_path):
    import_checkpoint(directories["olmoe"], tmp_path / "out", "fp32")
    damage(tmp_path / "out")
    with pytest.raises(CheckpointError, match=says):
        open_checkpoint(tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "at", "says"),
    [
        (RECORDS, 9000, r"SHA-256 of layer \d expert \d differs"),
        ("common-00001.safetensors", 900, "common-00001.safetensors: its SHA-256 differs"),
        ("config.json", 3, "config.json: its SHA-256 differs"),
    ],
)
def test_verify_finds_a_changed_byte(file, at, says, directories, tmp_path):
    found = import_checkpoint(directories["olmoe"], tmp_path / "out", "fp32")
    with (found.path / file).open("r+b") as stream:
        stream.seek(at)
        (byte,) = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte ^ 1]))
    with pytest.raises(CheckpointError, match=says):
        found.verify()


def test_one_import_writes_at_a_time(directories, tmp_path):
    def inside(done, of):
        with pytest.raises(CheckpointError, match="another import is writing here"):
            import_checkpoint(directories["olmoe"], tmp_path / "out", "fp32")

    import_checkpoint(directories["olmoe"], tmp_path / "out", "fp32", inside)


def test_files_beside_the_weights_come_along(directories, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(directories["olmoe"], source)
    (source / "tokenizer.json").write_text("{}")
    (source / "chat_template.jinja").write_text("{{ messages }}")
    out = import_checkpoint(source, tmp_path / "out", "fp32").path
    for name in ("tokenizer.json", "chat_template.jinja", "config.json"):
        assert Path(out / name).read_text() == (source / name).read_text()


@pytest.mark.parametrize("together", [True, False])
def test_every_record_is_checked_when_it_is_first_read(together, directories, tmp_path):
    out = import_checkpoint(directories["olmoe"], tmp_path / "out", "fp32")
    store = every_expert(out, torch.float32)._store
    first, second = out.shape.moe_layers[:2]
    with store.path.open("r+b") as file:
        file.seek(store.offset(second, 2))
        file.write(b"damaged")
    experts = every_expert(open_checkpoint(out.path), torch.float32)
    for expert in range(out.shape.num_experts):
        experts.matrices(first, expert)
    experts.matrices(second, 1)
    read = experts.stacked if together else lambda layer, some: experts.matrices(layer, some[0])
    with pytest.raises(CheckpointError, match=f"layer {second} expert 2"):
        read(second, [2, 1, *range(3, out.shape.num_experts)])


def test_an_import_keeps_no_shard_open_and_counts_its_records(
    directories: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever a part is noted as written, the checkpoint's files are closed."""
    opened: list[Checkpoint] = []
    noted: list[str] = []
    identity, note = imported._identity, imported._note

    def identified(checkpoint: Checkpoint, precision: str) -> str:
        opened.append(checkpoint)
        return identity(checkpoint, precision)

    def closed(journal: Any, key: str, found: str) -> None:
        assert not opened[0]._open
        noted.append(key)
        note(journal, key, found)

    monkeypatch.setattr(imported, "_identity", identified)
    monkeypatch.setattr(imported, "_note", closed)
    done: list[tuple[int, int]] = []
    out = import_checkpoint(
        directories["olmoe"], tmp_path / "out", "fp32", lambda *said: done.append(said)
    )
    count = len(out.shape.moe_layers) * out.shape.num_experts
    assert done == [(n, count) for n in range(1, count + 1)]
    parts = [name for name in out.manifest.files if name.endswith(".safetensors")]
    pairs = [(layer, e) for layer in out.shape.moe_layers for e in range(out.shape.num_experts)]
    assert noted == [*parts, *(f"{layer}/{expert}" for layer, expert in pairs)]
    done.clear()
    out.verify(lambda *said: done.append(said))
    assert done == [(n, count) for n in range(1, count + 1)]
    # Given again, a finished import writes and reports nothing.
    done.clear()
    import_checkpoint(
        directories["olmoe"], tmp_path / "out", "fp32", lambda *said: done.append(said)
    )
    assert done == []


def test_hashes_are_those_of_files_and_records(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    out = import_checkpoint(directories["olmoe"], tmp_path / "out", "bf16")
    manifest, store = out.manifest, out.store
    assert store is not None
    assert manifest.dtype == "bf16"
    for name, digest in manifest.files.items():
        assert hashlib.sha256((out.path / name).read_bytes()).hexdigest() == digest
    whole = store.path.read_bytes()
    assert len(whole) == store.total_bytes
    pairs = [(layer, e) for layer in out.shape.moe_layers for e in range(out.shape.num_experts)]
    assert manifest.records == [
        hashlib.sha256(whole[store.offset(*at) :][: store.record_bytes]).hexdigest()
        for at in pairs
    ]  # fmt: skip
    assert len(manifest.checksums) == len(manifest.records)
    text = "".join(["bf16", *manifest.files.values(), *manifest.records])
    assert out.content_hash() == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert out.files == [*(out.path / name for name in manifest.files), out.path / RECORDS]
    # A part of the model's layers is one file each, the rest a file of each kind.
    layers = [f"common-{layer:05}.safetensors" for layer in range(out.shape.num_layers)]
    assert {*layers} < {*manifest.files}


def manifest_of(**changes: Any) -> dict[str, Any]:
    digest = "ab" * 32
    said = {"source": "s", "dtype": "fp32", "files": {"config.json": digest}, "records": [digest]}
    text = "".join([said["dtype"], *said["files"].values(), *said["records"]])  # type: ignore
    content = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {**said, "content": content, "checksums": ["0123456789abcdef"], **changes}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": "int8"}, "dtype"),
        ({"content": "0" * 16}, "content is not the hash"),
        ({"content": "0" * 15}, "content"),
        ({"files": {}}, "config.json is not among its files"),
        ({"files": {"config.json": "ab" * 32, "../x": "ab" * 32}}, "files"),
        ({"files": {"config.json": "ab" * 31}}, "files"),
        ({"checksums": ["0123456789abcdef"] * 2}, "1 records and 2 checksums"),
        ({"checksums": ["0123"]}, "checksums"),
        ({"records": ["AB" * 32]}, "records"),
        ({"records": ["cd" * 32]}, "content is not the hash"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(change: dict[str, Any], says: str) -> None:
    assert Manifest.model_validate(manifest_of(), strict=True).checksums == ["0123456789abcdef"]
    with pytest.raises(ValidationError, match=says):
        Manifest.model_validate(manifest_of(**change), strict=True)


def test_an_import_of_an_earlier_version_has_no_checksums(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    """Records are then compared with their SHA-256."""
    assert Manifest.model_validate(manifest_of(checksums=[]), strict=True).checksums == []
    out = import_checkpoint(directories["olmoe"], tmp_path / "out", "fp32")
    said = json.loads((out.path / MANIFEST).read_text())
    del said["checksums"]
    (out.path / MANIFEST).write_text(json.dumps(said))
    found = Imported(out.path)
    layer = found.shape.moe_layers[0]
    assert torch.equal(
        found.expert_record(layer, 1, torch.float32), out.expert_record(layer, 1, torch.float32)
    )


def test_an_import_without_some_records_is_refused(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    out = import_checkpoint(directories["olmoe"], tmp_path / "out", "fp32")
    said = json.loads((out.path / MANIFEST).read_text())
    count = len(said["records"])
    for name in ("records", "checksums"):
        said[name].pop()
    text = "".join(["fp32", *said["files"].values(), *said["records"]])
    said["content"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    (out.path / MANIFEST).write_text(json.dumps(said))
    with pytest.raises(
        CheckpointError,
        match=f"has {count - 1} records, config.json demands {count}; import it again with: "
        f"moebench models import DIR --out {out.path}",
    ):
        Imported(out.path)


def test_a_journal_of_another_import_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    file.write_text("one\nfirst ab\nbroken\nsecond cd\n")
    with file.open("a+") as journal:
        assert imported._known(journal, "one") == {"first": "ab", "second": "cd"}
    with file.open("a+") as journal:
        assert imported._known(journal, "two") == {}
        imported._note(journal, "third", "ef")
    assert file.read_text() == "two\nthird ef\n"


def test_a_file_is_checked_once_and_a_folder_in_its_place_is_named(
    directories: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = import_checkpoint(directories["olmoe"], tmp_path / "out", "fp32")
    hashed: list[str] = []
    hash_of = imported._file_hash
    monkeypatch.setattr(
        imported, "_file_hash", lambda file: (hashed.append(file.name), hash_of(file))[1]
    )
    found = Imported(out.path)
    assert sorted(hashed) == sorted(n for n in out.manifest.files if n[-11:] != "safetensors")
    hashed.clear()
    first = found.common(torch.float32)
    parts = [name for name in out.manifest.files if name.endswith("safetensors")]
    assert hashed == parts
    assert first.keys() == found.common(torch.float32).keys()
    assert hashed == parts, "once"
    assert {tensor.dtype for tensor in found.common(torch.bfloat16).values()} == {torch.bfloat16}
    (out.path / RECORDS).unlink()
    (out.path / RECORDS).mkdir()
    with pytest.raises(CheckpointError, match=f"{RECORDS}: no regular file; import it again"):
        Imported(out.path)


def test_rounded_experts_are_loaded_into_memory(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    out = import_checkpoint(directories["olmoe"], tmp_path / "out", "fp32")
    assert isinstance(every_expert(out, torch.float32), MappedExperts)
    assert isinstance(every_expert(out, torch.float32, torch.bfloat16), ResidentExperts)
    assert isinstance(every_expert(Checkpoint(directories["olmoe"]), torch.float32),
                      ResidentExperts)  # fmt: skip


def test_an_import_that_cannot_be_written_goes_on_once_there_is_room(
    directories, tmp_path, monkeypatch
):
    def full(*_):
        raise OSError("No space left on device")

    out, write = tmp_path / "out", imported._write_records
    monkeypatch.setattr(imported, "_write_records", full)
    with pytest.raises(CheckpointError) as caught:
        import_checkpoint(directories["olmoe"], out, "fp32")
    assert str(caught.value) == (
        f"{out}: cannot be written (No space left on device); what was finished there is intact: "
        "free some space and give the same command again"
    )
    assert (out / JOURNAL).exists()
    monkeypatch.setattr(imported, "_write_records", write)
    import_checkpoint(directories["olmoe"], out, "fp32").verify()


def test_an_import_is_no_source_and_no_place_of_another_one(directories, tmp_path):
    out = import_checkpoint(directories["olmoe"], tmp_path / "out", "fp32").path
    with pytest.raises(CheckpointError) as caught:
        import_checkpoint(out, tmp_path / "again", "fp32")
    assert str(caught.value) == f"{out}: was imported; give it as --weights"
    assert not (tmp_path / "again").exists()
    with pytest.raises(CheckpointError) as caught:
        import_checkpoint(directories["mixtral"], out, "fp32")
    assert str(caught.value) == f"{out}: holds another import; give another --out"


def test_stacked_experts_are_those_that_are_read_one_by_one(directories, tmp_path):
    out = import_checkpoint(directories["olmoe"], tmp_path / "out", "fp32")
    experts = every_expert(out, torch.float32)
    layer, chosen = out.shape.moe_layers[1], [3, 0, *range(4, out.shape.num_experts)]
    stacked = experts.stacked(layer, chosen)
    assert experts.stacked(layer, [0]) is None
    for row, expert in enumerate(chosen):
        for found, wanted in zip(stacked, experts.matrices(layer, expert), strict=True):
            assert torch.equal(found[row], wanted)
    assert experts.all_of(layer) is None
