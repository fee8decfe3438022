"""How a spec is resolved from what was given, a setting and the defaults."""

from pathlib import Path
from typing import Any

import pytest

from moebench.harness.arguments import find_data_dir
from moebench.harness.run.rules import resolve
from moebench.results.spec import RunSpec
from moebench.substrate.errors import UsageError
from tests.harness.commands import SCALE_MODEL


def test_a_setting_fills_what_was_not_given() -> None:
    spec = resolve(None, system="smoe", setting="S3", batch=None, machine=None)
    assert spec == RunSpec(
        system="smoe", setting="S3", machine="a6000", software="hf-eager",
        model="qwen2-57b-a14b", precision="bf16", device_memory_gib=41.56,
        workload="passages", batch=1, prompts=32, new_tokens=64, cache_ratio=None, seed=0,
        overrides={"alpha": "0.25"},
    )  # fmt: skip


def test_what_was_given_beats_the_setting_and_the_default() -> None:
    given = {
        "machine": "h100", "model": "mixtral-8x22b", "precision": "4bit", "cache_ratio": 0.3,
        "new_tokens": 7, "batch": 2, "prompts": 4, "seed": 9, "workload": "mmlu",
    }  # fmt: skip
    spec = resolve(None, system="smoe", setting="d1", alpha=0.1, **given)
    assert spec.model_dump(include=set(given)) == given
    assert spec.setting == "D1"
    assert spec.overrides == {"alpha": "0.1"}


def test_software_is_the_settings_or_lean() -> None:
    assert resolve(None, system="smoe", setting="S3", software="lean").software == "lean"
    bare = {"machine": "h100", "model": "mixtral-8x7b"}
    assert resolve(None, system="smoe", **bare).software == "lean"
    assert resolve(None, system="smoe", **bare, software="hf-eager").software == "hf-eager"
    with pytest.raises(UsageError, match=r"unknown software 'triton'.*hf-eager"):
        resolve(None, system="smoe", setting="S3", software="triton")


def test_this_computer_runs_our_own_engine() -> None:
    assert resolve(None, system="smoe", setting="S3", machine="local").software == "lean"
    with pytest.raises(UsageError, match="--software lean and --machine local"):
        resolve(None, system="smoe", setting="S3", machine="local", software="lean")


def test_settings_bring_lengths_and_memory() -> None:
    assert resolve(None, system="smoe", setting="S1").device_memory_gib == 10
    assert resolve(None, system="smoe", setting="S1", machine="local").device_memory_gib == 10
    other = resolve(None, system="smoe", setting="S1", machine="h100")
    assert other.device_memory_gib is None, "the budget is of the paper's card"
    daop = resolve(None, system="moe-ondemand", setting="D1")
    assert (daop.cache_ratio, daop.new_tokens, daop.precision) == (0.469, 512, "bf16")
    flash = resolve(None, system="moe-ondemand", setting="F2")
    assert (flash.free_host_gb, flash.cache_ratio, flash.new_tokens) == (1.0, 24 / 128, 64)
    assert resolve(None, system="moe-ondemand", setting="U1").precision == "4bit"


@pytest.mark.parametrize(
    ("setting", "given", "expected"),
    [
        ("U1", {}, (None, 2)),  # k slots, for every system
        ("U1", {"cache_ratio": 0.5}, (0.5, None)),
        ("U1", {"slots": 16}, (None, 16)),
        ("F1", {}, (0.375, None)),
        ("F1", {"slots": 100}, (None, 100)),
        ("S1", {"slots": 3}, (None, 3)),
    ],
)
def test_experts_on_the_device_are_given_one_way(
    setting: str, given: dict[str, Any], expected: tuple[float | None, int | None]
) -> None:
    spec = resolve(None, system="moe-ondemand", setting=setting, **given)
    assert (spec.cache_ratio, spec.slots) == expected


def test_experts_on_the_device_given_both_ways_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--capacity 0.5 and --slots 2: .*give one of them"):
        resolve(None, system="smoe", setting="S3", cache_ratio=0.5, slots=2)


@pytest.mark.parametrize(
    ("system", "given", "expected"),
    [
        ("smoe", {}, "0.25"),
        ("smoe", {"alpha": 0.0}, "0.0"),
        ("smoe", {"alpha": 0.4}, "0.4"),
        ("smoe", {"alpha": 0.123456789}, "0.123456789"),
        ("smoe", {"overrides": {"alpha": "0.5"}}, "0.5"),
        ("smoe", {"overrides": {"route": "exact"}}, None),
        ("smoe", {"overrides": {"evict": "lru"}}, "0.25"),
        ("moe-ondemand", {}, None),
        ("moe-ondemand", {"overrides": {"route": "expert-cache"}}, "0.25"),
        ("moe-ondemand", {"overrides": {"route": "expert-cache"}, "alpha": 0.1}, "0.1"),
    ],
)
def test_alpha(system: str, given: dict[str, Any], expected: str | None) -> None:
    """What was given comes before the setting, for a routing that has an α."""
    spec = resolve(None, system=system, setting="S3", **given)
    assert spec.overrides.get("alpha") == expected


def test_alpha_is_given_once() -> None:
    with pytest.raises(UsageError, match=r"--alpha 0.1 and --set alpha=0.5: give one of them"):
        resolve(None, system="smoe", setting="S3", alpha=0.1, overrides={"alpha": "0.5"})


@pytest.mark.parametrize(
    ("system", "swapped"), [("moe-ondemand", {}), ("smoe", {"route": "exact"})]
)
def test_alpha_is_never_silently_dropped(system: str, swapped: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="has no α"):
        resolve(None, system=system, setting="S3", alpha=0.2, overrides=swapped)


def test_the_default_workload_is_the_same_whatever_data_there_is(
    tmp_path: Path, here: Path
) -> None:
    """Also where a folder lies beside the current one."""
    for folder in (tmp_path / "data", here.parent / "shared" / "data"):
        (folder / "gsm8k").mkdir(parents=True)
        (folder / "gsm8k" / "test.jsonl").touch()
    specs = [resolve(data, system="smoe", setting="S3") for data in (None, tmp_path / "data")]
    assert [spec.workload for spec in specs] == ["passages", "passages"]
    assert find_data_dir(None) is None
    assert find_data_dir(tmp_path / "data") == tmp_path / "data"


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
