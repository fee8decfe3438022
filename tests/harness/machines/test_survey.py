"""Drafts of profiles: programs' outputs are read, all other numbers are estimates."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from moebench.harness.machines.survey import Ask, Card, Survey, cache_bytes, cards, draft, survey
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.profile import HardwareProfile, load_profile

LSCPU = {
    "lscpu": [
        {"field": "CPU(s):", "data": "32"},
        {"field": "Model name:", "data": "AMD Ryzen 9 7950X 16-Core Processor", "children": [
            {"field": "Core(s) per socket:", "data": "16"},
            {"field": "Socket(s):", "data": "1"},
            {"field": "CPU max MHz:", "data": "5000.0000"},
            {"field": "Flags:", "data": "fpu sse2 avx2 avx512f"},
        ]},
    ]
}  # fmt: skip
LSBLK = {
    "blockdevices": [
        {"name": "nvme0n1p2", "type": "part", "model": None, "tran": "nvme", "size": "1.8T",
         "children": [{"name": "nvme0n1", "type": "disk", "model": "Samsung SSD 990 PRO 2TB",
                       "tran": "nvme", "size": "1.8T"}]},
    ]
}  # fmt: skip


def desk(card: str = "NVIDIA GeForce RTX 4090, 24564, 450.00, 4, 16") -> Ask:
    """Return a function that answers as the programs of a computer."""
    said = {
        "nvidia-smi": f"{card}\n",
        "lscpu": json.dumps(LSCPU),
        "findmnt": "/dev/nvme0n1p2\n",
        "lsblk": json.dumps(LSBLK),
    }

    def asked(command: Sequence[str]) -> str | None:
        return said.get(command[0])

    return asked


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "meminfo").write_text("MemTotal:       65011712 kB\nMemFree: 1 kB\n")
    return tmp_path


def written(found: Survey, folder: Path, name: str = "desk") -> HardwareProfile:
    (folder / f"{name}.yaml").write_text(draft(name, found), encoding="utf-8")
    return load_profile(str(folder / f"{name}.yaml"))


def test_what_programs_say_is_in_the_profile(proc: Path) -> None:
    profile = written(survey(desk(), proc), proc)
    assert profile.name == "desk"
    assert profile.gpu.name == "NVIDIA GeForce RTX 4090"
    assert (profile.gpu.memory.value, profile.gpu.memory.badge) == (24564 / 1024, "measured")
    assert profile.gpu.full_power.watts == 450
    assert profile.link.name == "PCIe 4.0 x16"
    # 16 lanes of 1.969 GB/s; a copy reaches some of it, how much is not read.
    assert 0.6 * 31.5 < profile.link.pinned_h2d.value < 0.9 * 31.51
    assert profile.link.pinned_h2d.badge == "estimate"
    assert profile.host.name == "AMD Ryzen 9 7950X 16-Core Processor"
    assert (profile.host.cores.count, profile.host.cores.badge) == (16, "measured")
    assert profile.host.peak_fp32.flops_per_s == 16 * 64 * 5e9
    assert (profile.host.memory.value, profile.host.memory.badge) == (62, "measured")
    assert profile.disk.name == "Samsung SSD 990 PRO 2TB nvme 1.8T nvme0n1"
    # A GPU of the catalogue has its data sheet's numbers.
    assert profile.gpu.bandwidth == load_profile("rtx4090").gpu.bandwidth
    assert profile.badge == "estimate"


def test_where_nothing_is_known_all_is_an_estimate_with_a_wide_range(tmp_path: Path) -> None:
    found = survey(lambda command: None, tmp_path / "nowhere")
    assert found == ({}, {})
    profile = written(found, tmp_path)
    own = [(field, n) for field, n in profile.quantities() if not field.startswith("software.")]
    assert {number.badge for _, number in own} == {"estimate"}
    for field, number in own:
        assert number.range is not None, field
        assert "unknown here" in number.source
    assert profile.gpu.name.startswith("unknown")


@pytest.mark.parametrize(
    "card", ["", "garbage", "X, [N/A], [N/A], [N/A], [N/A]", "X, nan, -1, 9, 0", "A, B, C, D, E, F"]
)
def test_implausible_gpu_readings_become_estimates(proc: Path, card: str) -> None:
    profile = written(survey(desk(card), proc), proc)
    assert profile.gpu.memory.badge == profile.gpu.full_power.badge == "estimate"
    assert profile.link.name.startswith("unknown")


def test_programs_that_print_no_json_are_passed_over(proc: Path) -> None:
    found = survey(lambda command: "/dev/x {", proc)
    assert set(found.readings) == {"host.memory"}
    assert written(found, proc).host.name.startswith("unknown")


def test_the_comments_say_where_each_number_is_found(proc: Path) -> None:
    lines = draft("desk", survey(desk(), proc)).splitlines()
    named = [n for n, line in enumerate(lines) if line.startswith("  ") and line.endswith(":")]
    assert len(named) == 25
    assert all(lines[n - 1].startswith("  # Found: ") for n in named)


@pytest.mark.parametrize("name", ["", "a b", "../up", "a6000", "local", "x.yaml", "-v", "a/b"])
def test_a_name_that_no_profile_can_have_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="machines init"):
        draft(name, Survey({}, {}))


def test_every_card_is_read() -> None:
    lines = "NVIDIA A10, 23028, 150.00, 4, 16\nX, [N/A], [N/A], 4, [N/A]"
    assert cards(desk(lines)) == [
        Card("NVIDIA A10", 23028 / 1024, 150, 4, 16), Card("X", None, None, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "text", "size"),
    [
        ("L3 cache:", "480 MiB (1 instance)", 480 << 20), ("L3:", "36 MiB (1 instance)", 36 << 20),
        ("L3 cache:", "32768K", 32 << 20), ("L2 cache:", "1.5 MiB", 3 << 19), ("L3:", "none", 0),
        ("L1d cache:", "96 KiB", 0),
    ],
)  # fmt: skip
def test_the_last_cache_is_read(field: str, text: str, size: int) -> None:
    said = json.dumps({"lscpu": [{"field": field, "data": text}]})
    assert cache_bytes(lambda command: said) == size
