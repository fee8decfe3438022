"""Models by name and file, formats of weights, and the files of scale models."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moebench.substrate.errors import CheckpointError, InputError, UnknownNameError, UsageError
from moebench.substrate.models import catalogue
from moebench.substrate.models.bits import Bits, Quantised, format_key, host_rate
from moebench.substrate.models.catalogue import (
    SCALE_FILES,
    check_files,
    check_topology,
    file_hashes,
    find_name,
    is_computed,
    is_file,
    manifest_file,
    model_names,
    model_shape,
    published_models,
    quantised,
    read_manifest,
    scale_names,
    scale_path,
    shape_names,
    ships,
    verify_target,
)
from moebench.substrate.models.shape import GateKind, ModelShape
from tests.substrate.models.checkpoints import REMOTE_CONFIGS
from tests.substrate.models.gguf_files import write_gguf

SHAPE = ModelShape(
    family="newmoe", num_layers=3, hidden_size=64, vocab_size=96, num_heads=4, num_kv_heads=2,
    head_dim=16, num_experts=8, top_k=2, expert_width=32, dense_layers=(0,), dense_width=48,
    gate=GateKind.SOFTMAX_TOPK_RENORM,
)  # fmt: skip

# --------------------------------------------------------------------------- names


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of another catalogue: two configurations and two published entries."""
    models = tmp_path / "models"
    models.mkdir()
    for name in ("zeta", "alpha-10b"):
        (models / f"{name}.json").write_text(json.dumps(REMOTE_CONFIGS["deepseek"]))
    counts = {"active_b": 1.0, "counts": "head", "expert": 5}
    fields = {key: value for key, value in SHAPE.model_dump(mode="json").items() if value}
    entries = {
        "alpha-10b": {"names": ["Owner/Be-ta"], "published": {"total_b": 10.0, **counts},
                      "source": "a page"},
        "charged": {"names": ["Only Charged"], "published": {"total_b": 2.0, **counts},
                    "source": "a page", "shape": fields},
        "unknown": {"names": ["Gone"], "published": {"total_b": 2.0, **counts}, "source": "p"},
    }  # fmt: skip
    (tmp_path / "models-2026.yaml").write_text(json.dumps(entries))
    monkeypatch.setattr(catalogue, "MODELS", models)
    monkeypatch.setattr(catalogue, "PUBLISHED", tmp_path / "models-2026.yaml")
    published_models.cache_clear()
    yield tmp_path
    published_models.cache_clear()


def test_names_are_sorted_and_charged_models_have_a_shape_of_their_own(own: Path) -> None:
    assert model_names() == ["alpha-10b", "zeta"]
    assert shape_names() == ["alpha-10b", "charged", "zeta"]
    assert published_models()["charged"].names == ("Only Charged",)
    assert model_shape("Only Charged") == SHAPE == model_shape("charged")
    assert [is_computed(name) for name in ("zeta", "charged", "own.json", "own.yaml")] == [
        True, False, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("zeta", "zeta"), ("ZETA", "zeta"), ("owner/be-ta", "alpha-10b"), ("Be-ta", "alpha-10b"),
        ("be-ta-9b", "alpha-10b"), ("be-ta-10.9b", "alpha-10b"),  # within a tenth of 10 B
    ],
)  # fmt: skip
def test_a_model_is_found_by_any_of_its_names(name: str, found: str, own: Path) -> None:
    assert find_name(name) == found


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("be-ta-8.9b", r"model 'be-ta-8\.9b': alpha-10b has 10 B parameters, not 8\.9 B"),
        ("be-ta-11.1b", "alpha-10b has 10 B parameters, not 11.1 B; see: moebench list models"),
        ("charged-3b", "charged has 2 B parameters, not 3 B"),
        ("gone", "unknown model 'gone'"),  # without a shape and a configuration
    ],
)
def test_another_size_or_no_shape_is_refused(name: str, said: str, own: Path) -> None:
    with pytest.raises(UsageError, match=said):
        find_name(name)


def test_a_catalogue_may_lack_published_models_but_not_hold_others(own: Path) -> None:
    (own / "models-2026.yaml").write_text('{"x": {"source": 3}}')
    published_models.cache_clear()
    with pytest.raises(InputError, match=r"models-2026\.yaml: .*"):
        published_models()
    (own / "models-2026.yaml").unlink()
    published_models.cache_clear()
    assert published_models() == {}
    assert shape_names() == model_names()


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("a.json", True), ("b/a.yaml", True), ("a.yml", True), ("a.gguf", True),
        ("qwen3-30b-a3b", False), ("json", False), ("a.txt", False),
    ],
)  # fmt: skip
def test_a_files_ending_tells_it_from_a_name(name: str, file: bool) -> None:
    assert is_file(name) == file


# --------------------------------------------------------------------------- files


def test_a_shape_is_read_from_each_kind_of_file(tmp_path: Path) -> None:
    config = REMOTE_CONFIGS["deepseek"]
    fields = {key: value for key, value in SHAPE.model_dump(mode="json").items() if value}
    for name, content in (
        ("config.json", config), ("config.yaml", config), ("own.yml", fields),
    ):  # fmt: skip
        (tmp_path / name).write_text(json.dumps(content))
    assert model_shape(str(tmp_path / "own.yml")) == SHAPE
    read = model_shape(str(tmp_path / "config.json"))
    assert model_shape(str(tmp_path / "config.yaml")) == read
    assert read.num_experts == 8
    gguf = str(write_gguf(tmp_path / "m.gguf", SHAPE))
    assert model_shape(gguf) == SHAPE
    assert (is_computed(gguf), is_file(gguf)) == (False, True)
    (tmp_path / "list.yaml").write_text("[1, 2]")
    with pytest.raises(CheckpointError, match=r"list\.yaml: expected `key: value` lines, found"):
        model_shape(str(tmp_path / "list.yaml"))


def test_formats_of_weights(tmp_path: Path) -> None:
    assert quantised(None, "mixtral-8x7b") is None
    assert quantised("mxfp4", "any") == Quantised(Bits(4.25, 8.5), 0.65)
    assert quantised("F16", "any") == Quantised(Bits(16, 16), 1.0)
    found = quantised("file", str(write_gguf(tmp_path / "m.gguf", SHAPE)))
    assert found == Quantised(Bits(16, 32), 1.0)
    with pytest.raises(UnknownNameError, match="unknown format 'q9'"):
        quantised("q9", "any")
    assert format_key("  Q4-K-M ") == "q4_k_m"
    rates = {"iq1_s": 0.5, "iq2_xxs": 0.5, "iq3_m": 0.5, "mxfp4_moe": 0.65, "nvfp4": 0.65,
             "iq4_xs": 1.0, "q4_k_m": 1.0, "xiq1": 1.0}  # fmt: skip
    assert {name: host_rate(name) for name in rates} == rates


# --------------------------------------------------------------------------- scale models


def test_only_widths_positions_and_vocabulary_may_differ() -> None:
    free = {
        "hidden_size": 32, "vocab_size": 48, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8,
        "expert_width": 16, "dense_width": 24, "max_positions": 64, "rope_theta": 5.0,
        "rope_type": "linear", "rotary_dim": 4, "rope_interleaved": True, "nope_layers": (1,),
    }  # fmt: skip
    where = Path("here")
    check_topology(SHAPE, SHAPE.model_copy(update=free), where)
    shared = SHAPE.model_copy(update={"shared_width": 8})
    check_topology(shared, SHAPE.model_copy(update={"shared_width": 4}), where)
    for changed, said in (
        ({"top_k": 3}, "here: top_k is 3, the full-size model has 2; only widths, positions and"),
        ({"gate": GateKind.SPARSEMIXER}, "gate is sparsemixer, .* has softmax_topk_renorm"),
        ({"shared_width": 8}, "shared is True, the full-size model has False"),
        ({"norm_eps": 1e-5}, "norm_eps is 1e-05, the full-size model has 1e-06"),
    ):
        with pytest.raises(CheckpointError, match=said):
            check_topology(SHAPE, SHAPE.model_copy(update=changed), where)


def test_scale_models_are_folders_with_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("zeta", "alpha", "empty"):
        (tmp_path / name).mkdir()
    for name in ("zeta", "alpha"):
        (tmp_path / name / "config.json").write_text("{}")
    monkeypatch.setattr(catalogue, "SCALE", tmp_path)
    assert scale_names() == ["alpha", "zeta"]
    assert scale_path("alpha") == tmp_path / "alpha"
    assert verify_target(tmp_path / "alpha") == "alpha"
    assert verify_target(tmp_path / "x" / "alpha") == (tmp_path / "x" / "alpha").as_posix()
    for folder, whether in ((None, True), ("", True), ("elsewhere", False)):
        monkeypatch.delenv("MOEBENCH_CATALOGUE", raising=False)
        if folder is not None:
            monkeypatch.setenv("MOEBENCH_CATALOGUE", folder)
        assert ships() == whether


def test_the_manifest_holds_each_files_hash(tmp_path: Path) -> None:
    model = tmp_path / "tiny"
    model.mkdir()
    for name in SCALE_FILES:
        (model / name).write_bytes(name.encode())
    hashes = {name: hashlib.sha256(name.encode()).hexdigest() for name in SCALE_FILES}
    assert [*hashes] == ["config.json", "tokenizer.json", "model.safetensors", "training.json"]
    assert file_hashes(model) == hashes
    file = manifest_file(tmp_path)
    assert (file, read_manifest(tmp_path)) == (tmp_path / "manifest.json", {})
    with pytest.raises(CheckpointError, match=r"manifest\.json: has no entry for tiny; write it"):
        check_files(model)
    entry: dict[str, Any] = dict.fromkeys(("bytes", "parameters", "training", "data", "measured"))
    entry["files"] = hashes
    file.write_text(json.dumps({"tiny": entry}))
    assert read_manifest(tmp_path) == {"tiny": entry}
    assert check_files(model) == entry
    (model / "tokenizer.json").write_text("other")
    found = hashlib.sha256(b"other").hexdigest()[:16]
    was = hashes["tokenizer.json"][:16]
    with pytest.raises(CheckpointError) as caught:
        check_files(model)
    assert str(caught.value).startswith(
        f"{model / 'tokenizer.json'}: its SHA-256 is {found}…, the manifest says {was}…; restore"
    )
    (model / "training.json").unlink()
    with pytest.raises(CheckpointError, match=r"training\.json: cannot be read \(No such file"):
        file_hashes(model)


@pytest.mark.parametrize(
    "text", ["", "[]", "3", '{"tiny": 3}', '{"tiny": {"files": {}}}', '{"a": {"files": 1, "x": 2}}']
)
def test_another_file_is_no_manifest(text: str, tmp_path: Path) -> None:
    manifest_file(tmp_path).write_text(text)
    with pytest.raises(InputError, match="not a manifest; delete it and write it again"):
        read_manifest(tmp_path)
