"""The settings catalogue has the papers' values, and names existing models and machines."""

import pytest

from moebench.harness.settings import few_shot_count, few_shot_of, setting, settings
from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.substrate.machines.profile import profile_names
from moebench.substrate.models.catalogue import model_names
from moebench.workloads.catalogue import workload

#: setting: paper, model, machine, precision, α, cache ratio, slots — from the papers; F1's
#: and F2's from the code that holds FlashMoE's network.
PAPERS = {
    "S1": ("SMoE", "deepseek-moe-16b", "rtx3080ti", "bf16", 0.35, None, None),
    "S2": ("SMoE", "xverse-moe-a4.2b", "rtx4060ti", "bf16", 0.30, None, None),
    "S3": ("SMoE", "qwen2-57b-a14b", "a6000", "bf16", 0.25, None, None),
    "D1": ("DAOP", "mixtral-8x7b", "a6000@daop", "bf16", None, 0.469, None),
    "D2": ("DAOP", "phi-3.5-moe", "a6000@daop", "bf16", None, 0.469, None),
    "U1": ("DuoServe-MoE", "mixtral-8x7b", "a5000@duoserve", "4bit", None, None, 2),
    "U2": ("DuoServe-MoE", "mixtral-8x7b", "a6000@duoserve", "4bit", None, None, 2),
    "U3": ("DuoServe-MoE", "mixtral-8x22b", "a5000@duoserve", "4bit", None, None, 2),
    "U4": ("DuoServe-MoE", "mixtral-8x22b", "a6000@duoserve", "4bit", None, None, 2),
    "F1": ("FlashMoE", "olmoe-1b-7b", "rtx5070ti", "bf16", None, 24 / 64, None),
    "F2": ("FlashMoE", "qwen3-30b-a3b", "rtx5070ti", "bf16", None, 24 / 128, None),
}


def test_the_settings_are_the_papers() -> None:
    keys = ("paper", "model", "machine", "precision", "alpha", "cache_ratio", "slots")
    found = {name: tuple(getattr(s, key) for key in keys) for name, s in settings().items()}
    assert found == PAPERS
    lengths = {name: (s.input_tokens, s.new_tokens) for name, s in settings().items()}
    for name, pair in lengths.items():
        assert pair == ((256, 512) if name in ("D1", "D2") else (None, None))
    assert {s.software for s in settings().values()} == {"hf-eager"}
    # GPU_MEM of SMoE's configurations, in GiB; Qwen2's holds 28 unused experts of 55,050,240 bytes.
    budgets = {name: s.device_memory_gib for name, s in settings().items() if s.device_memory_gib}
    unused = 28 * 55_050_240 / 2**30
    assert budgets == {"S1": 10, "S2": 14, "S3": pytest.approx(43 - unused, abs=0.005)}
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


def test_worked_examples_are_a_number_or_the_papers() -> None:
    assert [few_shot_count(asked, "gsm8k", None) for asked in ("0", "5", "9999999")] == [
        0, 5, 9_999_999,
    ]  # fmt: skip
    assert few_shot_count("paper", "gsm8k", "S1") == few_shot_of(workload("gsm8k"), "SMoE")
    with pytest.raises(UsageError, match="--few-shot paper: give --setting NAME"):
        few_shot_count("paper", "gsm8k", None)
    for asked in ("-1", "1.5", "two", "", "12345678", "٣"):
        with pytest.raises(UsageError, match="allowed: a number from 0 on, or paper"):
            few_shot_count(asked, "gsm8k", "S1")
