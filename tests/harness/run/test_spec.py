"""Specs and settings: what wins, what a run's identity depends on, and what the papers say."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from moebench.harness.run import spec as spec_module
from moebench.harness.run.inputs import prepare
from moebench.harness.run.settings import setting, settings
from moebench.harness.run.spec import RunSpec, code_hash, resolve, run_id
from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.substrate.machines.profile import MACHINES, profile_names
from moebench.substrate.models.catalogue import model_names, scale_path
from tests.harness.commands import SCALE_MODEL

# --------------------------------------------------------------------------- what wins


def test_a_setting_fills_what_was_not_given() -> None:
    spec = resolve(None, system="smoe", setting="S3", batch=None, machine=None)
    assert spec == RunSpec(
        system="smoe", setting="S3", machine="a6000", model="qwen2-57b-a14b", precision="bf16",
        workload="arithmetic", batch=1, prompts=32, new_tokens=64, cache_ratio=None, seed=0,
        settings={"route.alpha": "0.25"},
    )  # fmt: skip


def test_what_was_given_beats_the_setting_and_the_default() -> None:
    given = {
        "machine": "h100", "model": "mixtral-8x22b", "precision": "4bit", "cache_ratio": 0.3,
        "new_tokens": 7, "batch": 2, "prompts": 4, "seed": 9, "workload": "mmlu",
    }  # fmt: skip
    spec = resolve(None, system="smoe", setting="d1", alpha=0.1, **given)
    assert spec.model_dump(include=set(given)) == given
    assert spec.setting == "D1"
    assert spec.settings == {"route.alpha": "0.1"}


def test_settings_bring_lengths_and_memory() -> None:
    daop = resolve(None, system="moe-ondemand", setting="D1")
    assert (daop.cache_ratio, daop.new_tokens, daop.precision) == (0.469, 512, "bf16")
    flash = resolve(None, system="moe-ondemand", setting="F2")
    assert (flash.free_host_gb, flash.cache_ratio, flash.new_tokens) == (1.0, None, 64)
    assert resolve(None, system="moe-ondemand", setting="U1").precision == "4bit"


@pytest.mark.parametrize(
    ("system", "given", "expected"),
    [
        ("smoe", {}, "0.25"),
        ("smoe", {"alpha": 0.0}, "0.0"),
        ("smoe", {"alpha": 0.4}, "0.4"),
        ("smoe", {"alpha": 0.123456789}, "0.123456789"),
        ("smoe", {"settings": {"route.alpha": "0.5"}}, "0.5"),
        ("smoe", {"settings": {"route": "exact"}}, None),
        ("smoe", {"settings": {"evict": "lru"}}, "0.25"),
        ("moe-ondemand", {}, None),
        ("moe-ondemand", {"settings": {"route": "expert-cache"}}, "0.25"),
        ("moe-ondemand", {"settings": {"route": "expert-cache"}, "alpha": 0.1}, "0.1"),
    ],
)
def test_alpha(system: str, given: dict[str, Any], expected: str | None) -> None:
    """`--alpha` before `--set`, `--set` before the setting, for a routing that has an α."""
    spec = resolve(None, system=system, setting="S3", **given)
    assert spec.settings.get("route.alpha") == expected


@pytest.mark.parametrize(
    ("system", "swapped"), [("moe-ondemand", {}), ("smoe", {"route": "exact"})]
)
def test_alpha_is_never_silently_dropped(system: str, swapped: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="has no α"):
        resolve(None, system=system, setting="S3", alpha=0.2, settings=swapped)


def test_the_default_workload_follows_the_data(tmp_path: Path) -> None:
    def chosen(folder: Path | None) -> str:
        return resolve(folder, system="smoe", setting="S3").workload

    assert chosen(None) == "arithmetic"
    assert chosen(tmp_path) == "arithmetic"
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "test.jsonl").touch()
    assert chosen(tmp_path) == "gsm8k"


@pytest.mark.parametrize("missing", ["model", "machine"])
def test_without_a_setting_model_and_machine_are_needed(missing: str) -> None:
    given = {"model": SCALE_MODEL, "machine": "a6000"}
    resolve(None, system="smoe", **given)
    del given[missing]
    with pytest.raises(UsageError, match=f"no {missing}: give --setting NAME or --{missing} NAME"):
        resolve(None, system="smoe", **given)


def test_specs_are_inert() -> None:
    spec = resolve(None, system="smoe", setting="S3")
    with pytest.raises(ValueError, match="frozen"):
        spec.batch = 2  # type: ignore[misc]
    with pytest.raises(ValueError, match="extra"):
        RunSpec(system="smoe", machine="a6000", model="m", workload="w", bacth=2)  # type: ignore[call-arg]


# --------------------------------------------------------------------------- a run's identity

BASE = {"system": "smoe", "machine": "a6000", "model": SCALE_MODEL, "workload": "arithmetic"}
OTHER_VALUES = {
    "system": "gpu-only", "setting": "S3", "machine": "h100", "model": "olmoe-1b-7b",
    "weights": "elsewhere", "precision": "fp16", "workload": "gsm8k", "batch": 2, "prompts": 2,
    "new_tokens": 1, "cache_ratio": 0.5, "allow_overcommit": True, "free_host_gb": 1.0,
    "settings": {"evict": "lru"}, "seed": 1, "scoring": "generation", "few_shot": 2,
    "trace": "elsewhere", "calibrate_from": "gsm8k", "reconstruct_scores": True,
}  # fmt: skip


def test_every_field_is_part_of_the_identity() -> None:
    assert set(OTHER_VALUES) == set(RunSpec.model_fields)
    base = RunSpec(**BASE)
    ids = [run_id(RunSpec(**{**BASE, key: value})) for key, value in OTHER_VALUES.items()]
    assert len({run_id(base), *ids}) == 1 + len(OTHER_VALUES)


def test_equal_specs_have_equal_identities() -> None:
    one = RunSpec(**BASE, settings={"evict": "lru", "assign": "load"})
    other = RunSpec(**dict(reversed(BASE.items())), settings={"assign": "load", "evict": "lru"})
    assert run_id(one, data="x", weights="y") == run_id(other, weights="y", data="x")
    assert len(run_id(one)) == 12


def test_the_code_is_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RunSpec(**BASE)
    before = run_id(spec)
    monkeypatch.setattr(spec_module, "code_hash", lambda: "0" * 16)
    assert run_id(spec) != before


def test_the_code_hash_covers_every_module_and_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hashed() -> str:
        return code_hash.__wrapped__()

    monkeypatch.setattr(spec_module, "__file__", str(tmp_path / "harness" / "run" / "spec.py"))
    for package in ("substrate", "systems", "workloads", "harness", "tests"):
        (tmp_path / package / "deep").mkdir(parents=True)
        (tmp_path / package / "deep" / "module.py").write_text("x = 1\n")
    seen = [hashed()]
    for package in ("substrate", "systems", "workloads", "harness"):
        (tmp_path / package / "deep" / "module.py").write_text("x = 2\n")
        seen.append(hashed())
    (tmp_path / "harness" / "settings.yaml").write_text("S1: {}\n")
    seen.append(hashed())
    (tmp_path / "harness" / "settings.yaml").rename(tmp_path / "harness" / "others.yaml")
    seen.append(hashed())
    assert len(set(seen)) == len(seen)
    (tmp_path / "tests" / "deep" / "module.py").write_text("x = 3\n")
    (tmp_path / "harness" / "notes.txt").write_text("what changes no number")
    assert hashed() == seen[-1]


@pytest.fixture
def own(tmp_path: Path) -> RunSpec:
    """A run whose every input is a file that a test may change."""
    shutil.copytree(scale_path(SCALE_MODEL), tmp_path / "weights")
    shutil.copy(MACHINES / "a6000.yaml", tmp_path / "box.yaml")
    return RunSpec(
        **{**BASE, "machine": str(tmp_path / "box.yaml")}, weights=str(tmp_path / "weights"),
        prompts=1, new_tokens=2,
    )  # fmt: skip


def change_weights(folder: Path) -> None:
    file = folder / "weights" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def change_tokenizer(folder: Path) -> None:
    file = folder / "weights" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["added_tokens"][0]["lstrip"] = True
    file.write_text(json.dumps(tokenizer))


def change_machine(folder: Path) -> None:
    file = folder / "box.yaml"
    profile = yaml.safe_load(file.read_text())
    profile["link"]["pinned_h2d"]["value"] += 0.5
    file.write_text(yaml.safe_dump(profile))


@pytest.mark.parametrize(
    ("change", "hashed"),
    [
        (change_weights, "weights"),
        (change_tokenizer, "tokenizer"),
        (change_machine, "profile"),
    ],
)
def test_every_input_is_part_of_the_identity(
    own: RunSpec, tmp_path: Path, change: Any, hashed: str
) -> None:
    before, again = prepare(own, None), prepare(own, None)
    assert before.run_id == again.run_id
    change(tmp_path)
    after = prepare(own, None)
    assert after.run_id != before.run_id
    assert {key for key in before.hashes if before.hashes[key] != after.hashes[key]} == {hashed}


def test_another_name_or_date_of_the_files_changes_nothing(own: RunSpec, tmp_path: Path) -> None:
    before = prepare(own, None)
    for file in (tmp_path / "weights").iterdir():
        file.touch()
    (tmp_path / "weights" / "README.md").write_text("a note")
    assert prepare(own, None).run_id == before.run_id


@pytest.mark.parametrize("key", ["weights", "tokenizer", "model", "data", "profile"])
def test_each_hash_counts(own: RunSpec, key: str) -> None:
    hashes = prepare(own, None).hashes
    assert key in hashes
    assert run_id(own, **hashes) != run_id(own, **{**hashes, key: "0"})


# --------------------------------------------------------------------------- the catalogue

#: setting: paper, model, machine, precision, α, cache ratio — from the papers.
PAPERS = {
    "S1": ("SMoE", "deepseek-moe-16b", "rtx3080ti", "bf16", 0.35, None),
    "S2": ("SMoE", "xverse-moe-a4.2b", "rtx4060ti", "bf16", 0.30, None),
    "S3": ("SMoE", "qwen2-57b-a14b", "a6000", "bf16", 0.25, None),
    "D1": ("DAOP", "mixtral-8x7b", "a6000@daop", "bf16", None, 0.469),
    "D2": ("DAOP", "phi-3.5-moe", "a6000@daop", "bf16", None, 0.469),
    "U1": ("DuoServe-MoE", "mixtral-8x7b", "a5000@duoserve", "4bit", None, None),
    "U2": ("DuoServe-MoE", "mixtral-8x7b", "a6000@duoserve", "4bit", None, None),
    "U3": ("DuoServe-MoE", "mixtral-8x22b", "a5000@duoserve", "4bit", None, None),
    "U4": ("DuoServe-MoE", "mixtral-8x22b", "a6000@duoserve", "4bit", None, None),
    "F1": ("FlashMoE", "olmoe-1b-7b", "rtx5070ti", "bf16", None, None),
    "F2": ("FlashMoE", "qwen3-30b-a3b", "rtx5070ti", "bf16", None, None),
}


def test_the_settings_are_the_papers() -> None:
    keys = ("paper", "model", "machine", "precision", "alpha", "cache_ratio")
    found = {name: tuple(getattr(s, key) for key in keys) for name, s in settings().items()}
    assert found == PAPERS
    lengths = {name: (s.input_tokens, s.new_tokens) for name, s in settings().items()}
    for name, pair in lengths.items():
        assert pair == ((256, 512) if name in ("D1", "D2") else (None, None))
    free = {name for name, s in settings().items() if s.free_host_gb == 1.0}
    assert free == {"F1", "F2"}


def test_the_settings_name_what_exists() -> None:
    for row in settings().values():
        assert row.model in model_names()
        assert row.machine in profile_names()


def test_settings_are_found_in_any_case() -> None:
    assert setting("s3") is setting("S3")
    with pytest.raises(UnknownNameError, match=r"unknown setting 'X9'.*list settings"):
        setting("X9")
