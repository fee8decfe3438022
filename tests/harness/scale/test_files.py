"""Files of scale models: written in place, with their entry in the manifest."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from moebench.harness.scale import files
from moebench.harness.scale.files import (
    read_tokenizer,
    read_training,
    save_in_place,
    write_entry,
    write_in_place,
    writing,
)
from moebench.substrate.errors import CheckpointError, InputError
from moebench.substrate.models.catalogue import SCALE_FILES, file_hashes, scale_path
from moebench.substrate.models.config import read_shape

pytestmark = pytest.mark.usefixtures("tiny_models")


def test_a_write_that_fails_keeps_the_old_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = here / "x.safetensors"
    save_in_place({"a": torch.ones(2)}, file, {"format": "pt"})
    assert file.stat().st_mode & 0o777 == 0o644
    assert load_file(file)["a"].tolist() == [1.0, 1.0]

    def fails(tensors: Any, partial: Path, metadata: Any) -> None:
        assert metadata == {"format": "pt"}
        partial.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "save_file", fails)
    with pytest.raises(OSError, match="No space left"):
        save_in_place({}, file, {"format": "pt"})
    assert [one.name for one in here.iterdir()] == ["x.safetensors"]
    assert load_file(file)["a"].tolist() == [1.0, 1.0]


def test_a_text_replaces_the_old_one_at_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_in_place(here / "x.json", "é")
    write_in_place(here / "x.json", "ü")
    assert (here / "x.json").read_text(encoding="utf-8") == "ü"

    def fails(self: Path, target: Path) -> None:
        raise OSError("no")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="no"):
        write_in_place(here / "x.json", "a")
    assert [one.name for one in here.iterdir()] == ["x.json"]


def test_errors_of_writing_are_one_line() -> None:
    with (
        pytest.raises(InputError, match=r"^out: cannot be written \(.*No space.*\); what was"),
        writing(Path("out")),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(ValueError, match="a defect"), writing(Path("out")):
        raise ValueError("a defect")


def test_an_entry_is_added_to_the_manifest(here: Path) -> None:
    source = scale_path("mixtral-8x7b")
    for name in ("first", "second"):
        (here / name).mkdir()
        for file in source.iterdir():
            (here / name / file.name).write_bytes(file.read_bytes())
        (here / name / "training.json").write_text("{}")
    entry = write_entry(here / "first", None)
    assert entry["files"] == file_hashes(here / "first")
    assert entry["bytes"] == sum((here / "first" / f).stat().st_size for f in SCALE_FILES)
    assert entry["parameters"] == read_shape(source / "config.json").total_params
    assert (entry["training"], entry["data"], entry["measured"]) == ({}, None, None)
    (here / "second" / "training.json").write_text('{"recipe": {"seed": 1}}')
    measured: dict[str, Any] = {"accuracy": {}, "statistics": {}}
    entry = write_entry(here / "second", measured)
    assert entry["measured"] == measured
    assert entry["data"] == {
        "sets": files.TRAINING_SETS, "exercises": files.EXERCISE_MIX,
        "held_out": files.HELD_OUT_TEXT,
    }  # fmt: skip
    text = (here / "manifest.json").read_text()
    manifest = json.loads(text)
    assert list(manifest) == ["first", "second"]
    assert manifest["second"]["measured"] == measured
    assert text.startswith('{\n "first"')
    assert text.endswith("}\n")


def test_files_that_are_missing_or_broken_are_named(here: Path) -> None:
    assert read_training(here) == {"recipe": None}
    (here / "training.json").write_text('{"recipe": {"seed": 3}}')
    assert read_training(here) == {"recipe": {"seed": 3}}
    for text, said in (("{", "not JSON"), ("[1]", "expected a JSON object")):
        (here / "training.json").write_text(text)
        with pytest.raises(InputError, match=f"training.json: {said}"):
            read_training(here)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: missing; a scale model needs"):
        read_tokenizer(here)
    (here / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a tokenizer that can be read"):
        read_tokenizer(here)
