"""Drafts of profiles: programs' outputs are read, all other numbers are estimates."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from moebench.harness.machines.survey import (
    Ask,
    Card,
    Reading,
    Survey,
    ask,
    cache_bytes,
    cards,
    disk_fields,
    draft,
    link_gb_s,
    memory_gib,
    survey,
)
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


# ----------------------------------------------------------------------------- reading by reading


def test_every_reading_says_its_source(proc: Path) -> None:
    found = survey(desk("A card, 24564, 450.00, 4, 8"), proc)
    assert found.names == {
        "gpu": "A card", "link": "PCIe 4.0 x8", "host": "AMD Ryzen 9 7950X 16-Core Processor",
        "disk": "Samsung SSD 990 PRO 2TB nvme 1.8T nvme0n1",
    }  # fmt: skip
    # 8 lanes of 1.969 GB/s are 15.752; copies reach 82.5 % of it, at least 60 and at most 90 %.
    link = Reading(
        13.0, "GB/s",
        "estimate: 82.5% of the 15.75 GB/s of PCIe 4.0 x8, which nvidia-smi names", "estimate",
        (9.45, 14.18),
    )  # fmt: skip
    assert found.readings == {
        "gpu.memory": Reading(24564 / 1024, "GiB", "nvidia-smi: memory.total"),
        "gpu.full_power": Reading(450, "W", "nvidia-smi: power.limit"),
        "link.pinned_h2d": link,
        "link.pinned_d2h": link,
        "host.cores": Reading(16, "1", "lscpu: cores of all sockets"),
        "host.peak_fp32": Reading(
            5120, "GFLOPS", "estimate: 16 cores x 64 FLOP a cycle x lscpu's highest clock",
            "estimate",
        ),
        "host.memory": Reading(62, "GiB", "/proc/meminfo: MemTotal"),
    }  # fmt: skip
    assert found.readings["gpu.memory"].badge == "measured"
    assert link_gb_s(found) == pytest.approx(15.752)
    assert link_gb_s(Survey({"link": "NVLink"}, {})) is link_gb_s(Survey({}, {})) is None


def test_sixteen_lanes_of_each_generation() -> None:
    """Transfers a second, of which 8 of 10 bits are data, then 128 of 130, then 242 of 256."""
    coded = {1: 2.5 * 8 / 10, 2: 5 * 8 / 10, 3: 8 * 128 / 130, 4: 16 * 128 / 130,
             5: 32 * 128 / 130, 6: 64 * 242 / 256}  # fmt: skip
    for generation, gigabits in coded.items():
        rate = link_gb_s(Survey({"link": f"PCIe {generation}.0 x16"}, {}))
        assert rate == pytest.approx(16 * gigabits / 8, rel=1e-3)


def test_a_card_of_the_catalogue_has_its_numbers_by_any_spelling(proc: Path) -> None:
    found = survey(desk("Nvidia RTX-4090, 24564, [N/A], 4, [N/A]"), proc)
    sheet = {n: q for n, q in load_profile("rtx4090").quantities() if n.startswith("gpu.")}
    own = {n: one for n, one in found.readings.items() if n.startswith("gpu.")}
    assert own.keys() == sheet.keys()
    assert own.pop("gpu.memory").value == 24564 / 1024
    for name, one in own.items():
        number = sheet[name]
        assert one == (number.value, number.unit, number.source, number.badge, number.range)
    assert "link" not in found.names
    assert not [name for name in found.readings if name.startswith("link.")]


@pytest.mark.parametrize(
    ("fields", "readings"),
    [
        # Two sockets, 8 products and sums of 256 bits, and no clock.
        (
            {"Core(s) per socket": "12", "Socket(s)": "2", "Flags": "avx2 avx"},
            {"host.cores": 24, "host.peak_fp32": 24 * 32 * 3.0},
        ),
        (
            {"Core(s) per socket": "1", "Socket(s)": "1", "CPU max MHz": "2000", "Flags": "avx"},
            {"host.cores": 1, "host.peak_fp32": 1 * 16 * 2.0},
        ),
        ({"Core(s) per socket": "12", "Socket(s)": "-"}, {}),
        ({"Socket(s)": "2"}, {}),
    ],
)
def test_a_processors_peak_follows_from_cores_width_and_clock(
    fields: dict[str, str], readings: dict[str, float], tmp_path: Path
) -> None:
    said = {"lscpu": [{"field": f"{key}:", "data": text} for key, text in fields.items()]}
    asked = {"lscpu": json.dumps(said)}.get
    found = survey(lambda command: asked(command[0]), tmp_path)
    assert {name: one.value for name, one in found.readings.items()} == readings
    assert "host" not in found.names
    if "CPU max MHz" not in fields and readings:
        source = found.readings["host.peak_fp32"].source
        assert source.endswith("x a clock of 3 GHz, as lscpu names none")


def test_programs_are_asked_for_this_folder_and_its_disk() -> None:
    asked: list[Sequence[str]] = []

    def answer(command: Sequence[str]) -> str | None:
        asked.append(command)
        return desk()(command)

    assert disk_fields(answer) == {"name": "nvme0n1", "type": "disk", "tran": "nvme",
                                   "size": "1.8T", "model": "Samsung SSD 990 PRO 2TB"}  # fmt: skip
    cards(answer)
    assert [*map(" ".join, asked)] == [
        "findmnt -n -o SOURCE -T .",
        "lsblk --json -s -o NAME,TYPE,MODEL,TRAN,SIZE /dev/nvme0n1p2",
        "nvidia-smi --query-gpu=name,memory.total,power.limit,pcie.link.gen.max,"
        "pcie.link.width.max --format=csv,noheader,nounits",
    ]
    assert disk_fields(lambda command: "overlay\n") == {}
    parts = {"findmnt": "/dev/x", "lsblk": json.dumps({"blockdevices": [{"type": "part"}]})}
    assert disk_fields(lambda command: parts[command[0]]) == {}


def test_a_program_that_is_missing_or_fails_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask([sys.executable, "-c", "print('said')"]) == "said\n"
    assert ask([sys.executable, "-c", "print('said'); raise SystemExit(3)"]) is None
    assert ask(["no-such-program-anywhere"]) is None
    for error in (OSError, subprocess.TimeoutExpired(["x"], 20)):
        monkeypatch.setattr("subprocess.run", Mock(side_effect=error))
        assert ask([sys.executable]) is None


@pytest.mark.parametrize(
    ("text", "gib"),
    [("MemTotal:  1048576 kB\n", 1.0), ("MemTotal: 3000000 kB\n", 2.86), ("MemFree: 9 kB", None)],
)
def test_the_memory_is_what_linux_states(text: str, gib: float | None, tmp_path: Path) -> None:
    assert memory_gib(tmp_path) is None
    (tmp_path / "meminfo").write_text(text)
    assert memory_gib(tmp_path) == gib


def test_a_draft_is_what_was_read_and_wide_ranges_of_a_stand_in() -> None:
    """The stand-in has 48 GiB, 6 cores, a share of .85, copies of 26 GB/s in 26 to 27.5."""
    read = {"gpu.full_power": Reading(450, "W", "a “program”"),
            "link.pinned_d2h": Reading(13, "GB/s", "it", "estimate", (9.45, 14.18))}  # fmt: skip
    lines = draft("desk@2.x", Survey({"gpu": "A “card”", "disk": "a disk"}, read)).splitlines()
    assert lines[5:7] == [
        "name: desk@2.x",
        'description: "A “card”, unknown link; write its name here, '
        'unknown host; write its name here, a disk"',
    ]
    assert all(line.startswith("# ") for line in lines[:5])
    text = "\n".join(lines)

    def of(part: str, name: str) -> list[str]:
        start = lines.index(f"{part}:")
        at = next(n for n in range(start, len(lines)) if lines[n].strip().startswith(f"{name}:"))
        return [one.strip() for one in lines[at : at + 3]]

    unknown = 'source: "estimate: unknown here; that of a6000 stands in"}'
    assert of("gpu", "name")[0] == 'name: "A “card”"'
    assert of("host", "name")[0] == 'name: "unknown host; write its name here"'
    assert of("gpu", "full_power")[1:] == [
        '{value: 450, unit: "W", badge: measured,', 'source: "a “program”"}',
    ]  # fmt: skip
    assert of("link", "pinned_d2h")[1:] == [
        '{value: 13, unit: "GB/s", range: [9.45, 14.18], badge: estimate,', 'source: "it"}',
    ]  # fmt: skip
    for part, name, numbers in (
        ("gpu", "memory", 'value: 48, unit: "GiB", range: [24, 96]'),
        ("gpu", "large_read_efficiency", 'value: 0.85, unit: "1", range: [0.425, 1]'),
        ("link", "pinned_h2d", 'value: 26, unit: "GB/s", range: [13, 52]'),
        ("host", "cores", 'value: 6, unit: "1", range: [3, 12]'),
        ("host", "gemv_bandwidth", 'value: 27, unit: "GB/s", range: [13, 85]'),
    ):
        assert of(part, name)[1:] == [f"{{{numbers}, badge: estimate,", unknown], name
    assert of("link", "pinned")[0] == "pinned: true"
    assert of("host", "gemv_holds_dispatch")[0] == "gemv_holds_dispatch: false"
    assert "core_rate" not in text
    assert "shared_bandwidth" not in text
    at = lines.index("  memory:")
    assert lines[at - 2 : at] == [
        "  # How many experts fit.", "  # Found: nvidia-smi; the card's data sheet."
    ]  # fmt: skip
