"""This computer's hardware, from recorded outputs of programs."""

import json
from pathlib import Path

import pytest

from moebench.harness.advise.detect import _unknown_card, part_of_processor, this_computer
from moebench.harness.advise.memory_modules import modules
from moebench.harness.advise.parts_text import parts_text
from moebench.harness.advise.question import Hardware
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.parts import parts
from moebench.substrate.machines.profile import load_profile
from tests.harness.advise.recorded import (
    DESKTOP_MEMORY,
    ROCM,
    SERVER_MEMORY,
    VIRTUAL_MEMORY,
    Computer,
    dmidecode,
    empty,
    lscpu,
    module,
)

RTX_4090 = "NVIDIA GeForce RTX 4090, 24564, 450.00, 4, 16\n"
I9 = lscpu("13th Gen Intel(R) Core(TM) i9-13900K", 24)


def found(computer: Computer) -> Hardware:
    return this_computer(computer.asked, computer.proc, computer.sys)


@pytest.fixture
def desktop(tmp_path: Path) -> Computer:
    computer = Computer(tmp_path, nvidia_smi=RTX_4090, lscpu=I9, dmidecode=DESKTOP_MEMORY)
    return computer.memory(31.2).disk("nvme0n1", "Samsung SSD 990 PRO 2TB", "16.0 GT/s PCIe")


def test_all_parts_of_a_desktop_are_read(desktop: Computer) -> None:
    hardware = found(desktop)
    assert (hardware.gpu, hardware.cards, hardware.link) == ("rtx-4090", 1, "pcie4x16")
    assert (hardware.cpu, hardware.sockets, hardware.cores) == ("core-i9-13900k", 1, 24)
    assert (hardware.memory, hardware.channels) == ("ddr5-5600", 2)
    assert (hardware.ram_gib, hardware.disk) == (31.2, "nvme4")
    assert (hardware.virtual, hardware.unread) == (False, ())
    assert set(hardware.sources) == {
        "gpu", "cards", "link", "cpu", "sockets", "cores", "memory", "channels", "ram_gib", "disk",
    }  # fmt: skip
    assert hardware.sources["cpu"] == "lscpu: 13th Gen Intel(R) Core(TM) i9-13900K"
    assert "configured rate" in hardware.sources["memory"]


def test_a_desktop_s_parts_are_a_machine(desktop: Computer) -> None:
    text, remarks = parts_text(found(desktop))
    assert text == "rtx-4090+core-i9-13900k+ram=31.2+ddr5-5600*2+pcie4x16+nvme4"
    assert remarks == ()
    assert load_profile(text).gpu.name == "RTX 4090"


def test_a_server_has_channels_of_both_sockets_and_several_cards(tmp_path: Path) -> None:
    computer = Computer(
        tmp_path, nvidia_smi="NVIDIA A100 80GB PCIe, 81920, 300.00, 4, 16\n" * 4,
        lscpu=lscpu("Intel(R) Xeon(R) Gold 6430", 32, sockets=2), dmidecode=SERVER_MEMORY,
    ).memory(503.4)  # fmt: skip
    hardware = found(computer)
    assert (hardware.gpu, hardware.cards) == ("a100-80gb-pcie", 4)
    assert (hardware.cpu, hardware.sockets, hardware.cores) == ("xeon-gold-6430", 2, 64)
    assert (hardware.memory, hardware.channels) == ("ddr5-4400", 16)
    (line,) = hardware.unread
    assert line == (
        "kind of the disk of this folder not readable: moebench calibrate --quick measures it, or "
        "give --disk nvme3"
    )
    text, _ = parts_text(hardware)
    assert text == "a100-80gb-pcie*4+xeon-gold-6430*2+ram=503.4+ddr5-4400*16+pcie4x16"


def test_a_virtual_machine_has_threads_and_no_modules(tmp_path: Path) -> None:
    name = "AMD EPYC 7763 64-Core Processor"
    computer = Computer(
        tmp_path, lscpu=lscpu(name, 4, threads=1, hypervisor="KVM"), dmidecode=VIRTUAL_MEMORY
    ).memory(15.6)
    hardware = found(computer)
    assert (hardware.gpu, hardware.cpu, hardware.virtual) == ("", "epyc-7763", True)
    assert (hardware.cores, hardware.sockets) == (4, None)
    assert "may be threads" in hardware.sources["cores"]
    assert hardware.channels is None
    assert hardware.unread[0] == (
        "memory channels not readable (a virtual machine does not show its modules): moebench "
        "calibrate --quick measures it, or give --memory ddr5-5600*2"
    )
    assert parts_text(hardware).text == "cpu-only+epyc-7763+ram=15.6"


def test_without_any_program_everything_is_unread(tmp_path: Path) -> None:
    hardware = found(Computer(tmp_path))
    assert hardware == Hardware(unread=hardware.unread)
    assert [line.partition(" not readable")[0] for line in hardware.unread] == [
        "processor", "size of the memory", "memory channels", "kind of the disk of this folder",
    ]  # fmt: skip
    assert all("give --" in line for line in hardware.unread)


def test_files_of_the_kernel_replace_programs(tmp_path: Path) -> None:
    computer = Computer(tmp_path).memory(64)
    (computer.proc / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: AMD Ryzen 9 5950X 16-Core Processor\nphysical id\t: 0\n\n"
        "processor\t: 1\nmodel name\t: AMD Ryzen 9 5950X 16-Core Processor\nphysical id\t: 0\n"
    )
    for n in (0, 1):
        folder = f"devices/system/edac/mc/mc0/dimm{n}"
        computer.write(f"{folder}/size", "16384")
        computer.write(f"{folder}/dimm_location", f"csrow 0 channel {n}")
    computer.write("devices/system/edac/mc/mc0/dimm2/size", "0")
    hardware = found(computer)
    assert (hardware.cpu, hardware.sockets) == ("ryzen-9-5950x", 1)
    assert (hardware.channels, hardware.memory) == (2, "")
    assert hardware.unread[0].startswith("rate of the 2 memory modules not readable")
    assert hardware.unread[0].endswith("or give --memory ddr4-3200*2")


def test_a_container_s_limit_is_its_memory(desktop: Computer) -> None:
    desktop.write("fs/cgroup/memory.max", str(8 << 30))
    hardware = found(desktop)
    assert hardware.ram_gib == 8
    assert "limit of this container" in hardware.sources["ram_gib"]
    desktop.write("fs/cgroup/memory.max", "max")
    assert found(desktop).ram_gib == 31.2


# ------------------------------------------------------------------------------- cards


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("NVIDIA H100 80GB HBM3, 81559, 700.00, 5, 16", "h100-sxm-80gb"),
        ("NVIDIA H100 PCIe, 81559, 350.00, 5, 16", "h100-pcie-80gb"),
        ("NVIDIA A100-PCIE-40GB, 40960, 250.00, 4, 16", "a100-40gb-pcie"),
        ("Tesla V100-SXM2-32GB, 32768, 300.00, 3, 16", "v100-32gb"),
        ("Tesla T4, 15360, 70.00, 3, 16", "t4"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU, 16376, 150.00, 4, 8", "rtx-4090-laptop"),
        ("NVIDIA RTX 6000 Ada Generation, 49140, 300.00, 4, 16", "rtx-6000-ada"),
        ("NVIDIA GeForce RTX 4060 Ti, 16380, 165.00, 4, 8", "rtx-4060-ti-16gb"),
        ("NVIDIA GeForce RTX 3080, 10240, 320.00, 4, 16", "rtx-3080-10gb"),
    ],
)
def test_reported_names_of_cards_are_parts(tmp_path: Path, line: str, key: str) -> None:
    hardware = found(Computer(tmp_path, nvidia_smi=line + "\n", lscpu=I9))
    assert hardware.gpu == key
    assert not any("not among the parts" in one for one in hardware.unread)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        # Parts of this name have another memory, or another form.
        ("NVIDIA GeForce RTX 3080, 12288, 350.00, 4, 16", "'NVIDIA GeForce RTX 3080' with 12 GiB"),
        ("NVIDIA A100-SXM4-80GB, 81920, 400.00, 4, 16", "a100-80gb-pcie"),
        ("Quadro RTX 8000, 46080, 260.00, 3, 16", "'Quadro RTX 8000' with 45 GiB"),
    ],
)
def test_a_card_that_is_no_part_keeps_its_name(tmp_path: Path, line: str, says: str) -> None:
    hardware = found(Computer(tmp_path, nvidia_smi=line + "\n", lscpu=I9))
    assert hardware.gpu == line.partition(",")[0]
    (said,) = [one for one in hardware.unread if "is not among the parts" in one]
    assert says in said
    assert "as --gpu" in said
    with pytest.raises(UsageError, match=r"not among the parts.*machines init"):
        parts_text(hardware)


def test_cards_of_another_kind_are_left_out(tmp_path: Path) -> None:
    said = RTX_4090 + "NVIDIA GeForce RTX 3060, 12288, 170.00, 4, 16\n" + RTX_4090
    hardware = found(Computer(tmp_path, nvidia_smi=said, lscpu=I9))
    assert (hardware.gpu, hardware.cards) == ("rtx-4090", 2)
    assert any("NVIDIA GeForce RTX 3060 left out" in one for one in hardware.unread)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("NVIDIA GeForce RTX 4090, 24564, 450.00, [N/A], [N/A]", "link of NVIDIA GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 4090, 24564, 450.00, 2, 16", "link pcie2x16 is not among the parts"),
    ],
)
def test_a_link_that_is_no_part_is_unread(tmp_path: Path, line: str, says: str) -> None:
    hardware = found(Computer(tmp_path, nvidia_smi=line + "\n", lscpu=I9))
    assert (hardware.gpu, hardware.link) == ("rtx-4090", "")
    assert any(one.startswith(says) for one in hardware.unread)


def test_amd_s_cards_are_read_with_rocm_smi(tmp_path: Path) -> None:
    hardware = found(Computer(tmp_path, rocm_smi=ROCM, lscpu=I9))
    assert (hardware.gpu, hardware.cards) == ("mi300x", 2)
    assert any(one.startswith("link of AMD Instinct MI300X") for one in hardware.unread)


@pytest.mark.parametrize("said", ["", "no devices", "{}", '{"system": {}}', '{"card0": {}}'])
def test_rocm_smi_without_a_card_names_none(tmp_path: Path, said: str) -> None:
    assert found(Computer(tmp_path, rocm_smi=said, lscpu=I9)).gpu == ""


# ------------------------------------------------------------------------------- one memory


def test_a_machine_with_one_memory_has_no_other_parts(tmp_path: Path) -> None:
    computer = Computer(
        tmp_path, lscpu=lscpu("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", 16), rocm_smi=ROCM
    ).memory(124.9)
    hardware = found(computer)
    assert (hardware.gpu, hardware.cpu, hardware.link) == ("strix-halo", "", "")
    assert hardware.sockets is None
    assert parts_text(hardware).text == "strix-halo+ram=124.9"


def test_gb10_is_found_by_its_gpu(tmp_path: Path) -> None:
    computer = Computer(
        tmp_path, nvidia_smi="NVIDIA GB10, [N/A], [N/A], 1, 1\n", lscpu=lscpu("Cortex-X925", 10)
    ).memory(119.6)
    hardware = found(computer)
    assert (hardware.gpu, hardware.link, hardware.cpu) == ("dgx-spark", "", "")


def test_a_mac_is_read_with_sysctl(tmp_path: Path) -> None:
    computer = Computer(tmp_path)
    computer.said |= {
        "sysctl machdep.cpu.brand_string": "Apple M4 Max\n", "sysctl hw.memsize": "68719476736\n",
    }  # fmt: skip
    hardware = found(computer)
    assert (hardware.gpu, hardware.ram_gib, hardware.disk) == ("apple-m4-max", 64, "apple-ssd")
    assert hardware.unread == ()
    computer.said["sysctl machdep.cpu.brand_string"] = "Apple M9\n"
    hardware = found(computer)
    assert hardware.gpu == "Apple M9"
    assert any("'Apple M9' is not among the parts" in one for one in hardware.unread)


# ------------------------------------------------------------------------------- processors


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Intel(R) Xeon(R) CPU E5-2690 v3 @ 2.60GHz", "xeon-e5-2690-v3"),
        ("Intel(R) Xeon(R) Platinum 8480+", "xeon-platinum-8480"),
        ("AMD Ryzen Threadripper PRO 5975WX 32-Cores", "threadripper-pro-5975wx"),
        ("Intel(R) Core(TM) Ultra 9 285K", "core-ultra-9-285k"),
        ("AMD Ryzen 7 7800X3D 8-Core Processor", "ryzen-7-7800x3d"),
        ("AMD EPYC 9654P 96-Core Processor", "epyc-9654p"),
        ("Intel(R) Xeon(R) Processor", ""),
        ("AMD EPYC 7B13", ""),
        ("Intel Xeon Processor (Icelake)", ""),
        ("", ""),
    ],
)
def test_reported_names_of_processors(name: str, key: str) -> None:
    assert part_of_processor(name) == key


@pytest.mark.parametrize(
    ("name", "cores", "key"),
    [
        ("AMD EPYC 7B13", 8, "epyc-7763"),
        ("AMD Ryzen 5 5500 6-Core Processor", 6, "ryzen-7-5800x"),
        ("Intel(R) Xeon(R) Processor", 2, "epyc-9354"),
        ("Intel(R) Pentium(R) Gold G6400", 2, "ryzen-7-7700"),
        ("Neoverse-N1", 64, "epyc-9354"),
        ("", None, "ryzen-7-7700"),
    ],
)
def test_a_processor_of_the_family_stands_in(name: str, cores: int | None, key: str) -> None:
    text, remarks = parts_text(Hardware(cpu=name, cores=cores, ram_gib=16))
    assert text == f"cpu-only+{key}+ram=16"
    assert f"stands in for {name or 'an unknown processor'}" in remarks[0]


def test_parts_that_do_not_fit_a_stand_in_are_left_out() -> None:
    hardware = Hardware(gpu="rtx-5090", cpu="AMD Ryzen 5 5500", memory="ddr5-5600", link="pcie5x16")
    text, remarks = parts_text(hardware)
    assert text == "rtx-5090+ryzen-7-5800x"
    assert [one.partition(" left out")[0] for one in remarks[1:]] == ["ddr5-5600", "pcie5x16"]


# ------------------------------------------------------------------------------- modules


@pytest.mark.parametrize(
    ("locators", "channels"),
    [
        (("DIMM 1 / P0 CHANNEL A", "DIMM 1 / P0 CHANNEL B"), 2),
        (("DIMM 0 / P0 CHANNEL A", "DIMM 1 / P0 CHANNEL A"), 1),
        (("DIMM_A1 / BANK 0", "DIMM_A2 / BANK 1", "DIMM_B1 / BANK 2", "DIMM_B2 / BANK 3"), 2),
        (("ChannelA-DIMM0 / BANK 0", "ChannelB-DIMM0 / BANK 2"), 2),
        (("P1-DIMMA1 / P0_Node0_Channel0_Dimm0", "P2-DIMMA1 / P1_Node1_Channel0_Dimm0"), 2),
        (("A1 / Not Specified", "A2 / Not Specified", "B1 / Not Specified"), 3),
        (("PROC 1 DIMM 3 / Not Specified", "PROC 2 DIMM 3 / Not Specified"), 2),
    ],
)
def test_channels_are_counted_by_locators(
    tmp_path: Path, locators: tuple[str, ...], channels: int
) -> None:
    computer = Computer(
        tmp_path, dmidecode=dmidecode(*(module(*one.split(" / ")) for one in locators))
    )
    counted = modules(computer.asked, computer.sys)
    assert counted is not None
    assert (counted.channels, counted.modules) == (channels, len(locators))


def test_the_lowest_of_several_rates_counts(desktop: Computer) -> None:
    desktop.said["dmidecode"] = dmidecode(
        module("DIMM_A1", "BANK 0", rate=5600), module("DIMM_B1", "BANK 1", rate=4800)
    )
    hardware = found(desktop)
    assert hardware.memory == "ddr5-4800"
    assert "several rates" in hardware.unread[0]


def test_more_modules_than_channels_count_as_the_processor_s_channels(desktop: Computer) -> None:
    desktop.said["dmidecode"] = dmidecode(
        *(module(f"DIMM{n}", "Not Specified") for n in range(4)), empty("DIMM4", "Not Specified")
    )
    assert found(desktop).channels == 2


def test_this_computer_is_read_without_an_error() -> None:
    hardware = this_computer()
    assert hardware.ram_gib is None or hardware.ram_gib > 0
    assert set(hardware.sources) <= {name for name in dir(hardware) if not name.startswith("_")}


# ------------------------------------------------------------------------------- what is said


def test_every_value_names_its_source(desktop: Computer) -> None:
    sources = found(desktop).sources
    assert sources.pop("memory").endswith("; configured rate")
    assert sources.pop("channels") in found(desktop).sources["memory"]
    name = "lscpu: 13th Gen Intel(R) Core(TM) i9-13900K"
    assert sources == {
        "gpu": "nvidia-smi", "cards": "nvidia-smi", "cpu": name, "sockets": "lscpu",
        "link": "nvidia-smi: highest generation and width of its PCIe link",
        "cores": "lscpu: cores of all sockets", "ram_gib": "/proc/meminfo: MemTotal",
        "disk": "rate of the PCIe link of Samsung SSD 990 PRO 2TB",
    }  # fmt: skip


def test_sources_are_said_from_the_processor_to_the_disk(desktop: Computer) -> None:
    """A command prints them in this order."""
    assert list(found(desktop).sources) == [
        "cpu", "cores", "sockets", "gpu", "cards", "link", "ram_gib", "channels", "memory", "disk",
    ]  # fmt: skip


def test_a_limit_above_the_memory_limits_nothing(desktop: Computer) -> None:
    desktop.write("fs/cgroup/memory.max", str(64 << 30))
    hardware = found(desktop)
    assert (hardware.ram_gib, hardware.sources["ram_gib"]) == (31.2, "/proc/meminfo: MemTotal")


def test_a_limit_is_the_memory_where_nothing_else_is_known(tmp_path: Path) -> None:
    computer = Computer(tmp_path, lscpu=I9)
    computer.write("fs/cgroup/memory.max", str(1536 << 20))
    hardware = found(computer)
    assert hardware.ram_gib == 1.5
    assert hardware.sources["ram_gib"] == "/sys/fs/cgroup/memory.max: limit of this container"
    (computer.sys / "fs/cgroup/memory.max").unlink()
    computer.said["sysctl hw.memsize"] = str(96 << 30) + "\n"
    hardware = found(computer)
    assert (hardware.ram_gib, hardware.sources["ram_gib"]) == (96, "sysctl: hw.memsize")


@pytest.mark.parametrize(
    ("rate", "disk"),
    [("8.0 GT/s PCIe", "nvme3"), ("16.0 GT/s PCIe", "nvme4"), ("32.0 GT/s PCIe", "nvme5")],
)
def test_a_disk_s_generation_is_that_of_its_link(tmp_path: Path, rate: str, disk: str) -> None:
    hardware = found(Computer(tmp_path, lscpu=I9).disk("nvme1n1", None, rate))
    assert hardware.disk == disk
    assert hardware.sources["disk"] == "rate of the PCIe link of nvme1n1"


@pytest.mark.parametrize(
    ("model", "what"), [("Samsung 870", "disk Samsung 870"), (None, "disk sda")]
)
def test_a_disk_of_another_kind_is_named(tmp_path: Path, model: str | None, what: str) -> None:
    hardware = found(Computer(tmp_path, lscpu=I9).disk("sda", model, "5.0 GT/s PCIe"))
    assert hardware.disk == ""
    assert hardware.unread[-1] == (
        f"kind of the {what} not readable: moebench calibrate --quick measures it, or give "
        "--disk nvme3"
    )


def test_the_kernels_file_names_processor_sockets_and_virtual_machines(tmp_path: Path) -> None:
    """Two processors of two sockets; flags of a hypervisor hide the sockets."""
    computer = Computer(tmp_path)
    core = (
        "model name\t: AMD EPYC 9654 96-Core Processor\nflags\t\t: fpu sse2{}\nphysical id\t: {}\n"
    )
    cpuinfo = computer.proc / "cpuinfo"
    cpuinfo.write_text("".join(core.format("", n) for n in (0, 1, 0, 1)))
    hardware = found(computer)
    assert (hardware.cpu, hardware.sockets, hardware.virtual) == ("epyc-9654", 2, False)
    name = "/proc/cpuinfo: AMD EPYC 9654 96-Core Processor"
    assert (hardware.sources["cpu"], hardware.sources["sockets"]) == (name, "/proc/cpuinfo")
    assert hardware.cores is None
    assert "virtual" not in hardware.sources
    cpuinfo.write_text("".join(core.format(" hypervisor", n) for n in (0, 1)))
    hardware = found(computer)
    assert (hardware.cpu, hardware.sockets, hardware.virtual) == ("epyc-9654", None, True)
    assert hardware.sources["virtual"] == "lscpu or /proc/cpuinfo: hypervisor"
    computer.said["lscpu"] = lscpu("unknown", 4)
    assert found(computer).cpu == "epyc-9654", "lscpu knows no name"


def test_cores_of_a_virtual_machine_are_processors(tmp_path: Path) -> None:
    hardware = found(Computer(tmp_path, lscpu=lscpu("AMD EPYC 7763", 4, 2, 1, "KVM")))
    assert (hardware.cores, hardware.virtual) == (8, True)
    assert hardware.sources["cores"] == (
        "lscpu: processors of a virtual machine, which may be threads of fewer cores"
    )


def test_what_is_not_among_the_parts_is_said_with_a_remedy(tmp_path: Path) -> None:
    lines = (
        "NVIDIA GeForce RTX 4090, 24564, 450.00, 2, 16\n"
        "NVIDIA GeForce RTX 3060, 12288, 170.00, 4, 16\nTesla T4, 15360, 70.00, 3, 16\n"
        "NVIDIA GeForce RTX 3060, 12288, 170.00, 4, 16\n"
    )
    hardware = found(Computer(tmp_path, nvidia_smi=lines, lscpu=I9))
    assert hardware.unread[:2] == (
        "link pcie2x16 is not among the parts: moebench calibrate --quick measures it, or give "
        "--link pcie3x4",
        "NVIDIA GeForce RTX 3060 and Tesla T4 left out: a machine has cards of one kind; the first "
        "is NVIDIA GeForce RTX 4090, give --gpu NAME for another",
    )
    assert hardware.cards == 1


def test_the_link_of_an_amd_card_is_asked_for(tmp_path: Path) -> None:
    """A card without a series has its model's name; a size that is no number is not known."""
    rows = {"system": {"Card Series": "x"}, "card0": {"Card Model": "Radeon RX 7900 XTX"},
            "card1": {"Card Series": "AMD Instinct MI300X", "VRAM Total Memory (B)": "?"},
            "card2": {"Card Model": "Radeon RX 7900 XTX", "VRAM Total Memory (B)": "N/A"},
            "card3": "nothing"}  # fmt: skip
    hardware = found(Computer(tmp_path, rocm_smi=json.dumps(rows), lscpu=I9))
    assert (hardware.gpu, hardware.cards) == ("radeon-rx-7900-xtx", 2)
    assert hardware.sources["gpu"] == hardware.sources["cards"] == "rocm-smi"
    assert hardware.unread[:2] == (
        "link of Radeon RX 7900 XTX not readable: moebench calibrate --quick measures it, or give "
        "--link pcie4x16",
        "AMD Instinct MI300X left out: a machine has cards of one kind; the first is Radeon RX "
        "7900 XTX, give --gpu NAME for another",
    )


def test_memory_tells_cards_of_one_name_apart(tmp_path: Path) -> None:
    """A card has at most 8 % more or less than its part: of 10 GiB, 9.3 is one, and 9.2 is not."""
    for mib, gpu in ((9523, "rtx-3080-10gb"), (9421, "NVIDIA GeForce RTX 3080"),
                     (11049, "rtx-3080-10gb"), (11162, "NVIDIA GeForce RTX 3080")):  # fmt: skip
        folder = tmp_path / str(mib)
        folder.mkdir()
        line = f"NVIDIA GeForce RTX 3080, {mib}, 320.00, 4, 16\n"
        assert found(Computer(folder, nvidia_smi=line, lscpu=I9)).gpu == gpu, mib


def test_modules_without_rates_and_with_several_are_said(desktop: Computer) -> None:
    desktop.said["dmidecode"] = dmidecode(
        module("DIMM_A1", "BANK 0", rate=5600), module("DIMM_B1", "BANK 1", rate=4800)
    )
    assert found(desktop).unread[0] == (
        "memory modules run at several rates: the lowest counts, ddr5-4800; give --memory "
        "ddr5-4800*2 to name another"
    )
    del desktop.said["dmidecode"]
    assert found(desktop).unread[0] == (
        "memory channels not readable (dmidecode is missing or needs root): moebench calibrate "
        "--quick measures it, or give --memory ddr5-5600*2"
    )


def test_parts_of_similar_names_are_offered(tmp_path: Path) -> None:
    line = "NVIDIA GeForce RTX 3080, 12288, 350.00, 4, 16\n"
    (said,) = [one for one in found(Computer(tmp_path, nvidia_smi=line, lscpu=I9)).unread
               if "not among the parts" in one]  # fmt: skip
    begin, offered = said.split("; nearest: ")
    assert begin == "card 'NVIDIA GeForce RTX 3080' with 12 GiB is not among the parts"
    names = offered.removesuffix("; give one of them as --gpu").split(", ")
    assert 0 < len(names) <= 3
    assert all(name in parts() and "80" in name for name in names)
    assert _unknown_card("zzz", None) == "card 'zzz' is not among the parts; give --gpu"
