"""Outputs of system programs, as recorded on computers of several kinds."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from moebench.harness.machines.survey import Ask

_MODULE = """Handle 0x00{handle:02X}, DMI type 17, 92 bytes
Memory Device
	Array Handle: 0x0034
	Error Information Handle: Not Provided
	Total Width: {total} bits
	Data Width: {width} bits
	Size: {size}
	Form Factor: DIMM
	Set: None
	Locator: {locator}
	Bank Locator: {bank}
	Type: {kind}
	Type Detail: Synchronous
	Speed: {rated}
	Manufacturer: Kingston
	Part Number: KF556C36-16
	Rank: 1
	Configured Memory Speed: {rate}
	Minimum Voltage: 1.1 V
	Maximum Voltage: 1.1 V
	Configured Voltage: 1.1 V

"""

_HEAD = """# dmidecode 3.3
Getting SMBIOS data from sysfs.
SMBIOS 3.5.0 present.

Handle 0x0034, DMI type 16, 23 bytes
Physical Memory Array
	Location: System Board Or Motherboard
	Use: System Memory
	Error Correction Type: None
	Maximum Capacity: 192 GB
	Number Of Devices: 4

"""


def module(
    locator: str, bank: str, kind: str = "DDR5", rated: int = 5600, rate: int = 5600,
    size: str = "16 GB", width: int = 64,
) -> dict[str, str | int]:  # fmt: skip
    """Return the fields of a populated module."""
    return {
        "locator": locator, "bank": bank, "kind": kind, "rated": f"{rated} MT/s",
        "rate": f"{rate} MT/s", "size": size, "width": width, "total": width,
    }  # fmt: skip


def empty(locator: str, bank: str) -> dict[str, str | int]:
    """Return the fields of an empty slot."""
    return {
        "locator": locator, "bank": bank, "kind": "Unknown", "rated": "Unknown", "rate": "Unknown",
        "size": "No Module Installed", "width": "Unknown", "total": "Unknown",
    }  # fmt: skip


def dmidecode(*modules: Mapping[str, str | int]) -> str:
    """Return the output of ``dmidecode -t memory``."""
    blocks = [_MODULE.format(handle=0x35 + n, **one) for n, one in enumerate(modules)]
    return _HEAD + "".join(blocks)


#: An Intel desktop: two of four slots, one on each of two channels, below their rated speed.
DESKTOP_MEMORY = dmidecode(
    empty("Controller0-ChannelA-DIMM0", "BANK 0"),
    module("Controller0-ChannelA-DIMM1", "BANK 0", rated=6000, rate=5600),
    empty("Controller1-ChannelA-DIMM0", "BANK 0"),
    module("Controller1-ChannelA-DIMM1", "BANK 0", rated=6000, rate=5600),
)

#: A server of two sockets: a module on each of eight channels of both.
SERVER_MEMORY = dmidecode(
    *(
        module(f"CPU{socket}_DIMM_{letter}1", f"NODE {socket}", rated=4800, rate=4400, size="32 GB")
        for socket in (1, 2)
        for letter in "ABCDEFGH"
    ),
    *(empty(f"CPU1_DIMM_{letter}2", "NODE 1") for letter in "ABCDEFGH"),
)

#: QEMU's only module.
VIRTUAL_MEMORY = dmidecode({
    "locator": "DIMM 0", "bank": "Not Specified", "kind": "RAM", "rated": "Unknown",
    "rate": "Unknown", "size": "16 GB", "width": "Unknown", "total": "Unknown",
})  # fmt: skip


def lscpu(
    name: str, cores: int, sockets: int = 1, threads: int = 2, hypervisor: str | None = None,
) -> str:  # fmt: skip
    """Return the output of ``lscpu --json``; versions from 2.38 on nest its fields."""
    rows = [
        {"field": "Architecture:", "data": "x86_64", "children": [
            {"field": "CPU op-mode(s):", "data": "32-bit, 64-bit"}]},
        {"field": "CPU(s):", "data": str(cores * sockets * threads)},
        {"field": "Vendor ID:", "data": "GenuineIntel", "children": [
            {"field": "Model name:", "data": name, "children": [
                {"field": "Thread(s) per core:", "data": str(threads)},
                {"field": "Core(s) per socket:", "data": str(cores)},
                {"field": "Socket(s):", "data": str(sockets)},
                {"field": "Flags:", "data": "fpu sse2 avx2"}]}]},
        {"field": "Caches (sum of all):", "data": None, "children": [
            {"field": "L3:", "data": "36 MiB (1 instance)"}]},
    ]  # fmt: skip
    if hypervisor is not None:
        rows.append({"field": "Hypervisor vendor:", "data": hypervisor})
        rows.append({"field": "Virtualization type:", "data": "full"})
    return json.dumps({"lscpu": rows})


def lsblk(name: str, model: str | None) -> str:
    """Return lsblk's JSON of a partition and its disk."""
    return json.dumps({"blockdevices": [
        {"name": f"{name}p2", "type": "part", "model": None, "tran": "nvme", "size": "1.8T",
         "children": [{"name": name, "type": "disk", "model": model, "tran": "nvme",
                       "size": "1.8T"}]},
    ]})  # fmt: skip


ROCM = json.dumps({
    "card0": {"VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "1",
              "Card Series": "AMD Instinct MI300X OAM", "Card Model": "0x74a1",
              "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]", "GFX Version": "gfx942"},
    "card1": {"VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "1",
              "Card Series": "AMD Instinct MI300X OAM", "Card Model": "0x74a1",
              "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]", "GFX Version": "gfx942"},
})  # fmt: skip


class Computer:
    """Programs and folders of a computer."""

    def __init__(self, folder: Path, **said: str) -> None:
        self.said = {name.replace("_", "-"): text for name, text in said.items()}
        self.proc, self.sys = folder / "proc", folder / "sys"
        self.proc.mkdir()
        self.sys.mkdir()

    @property
    def asked(self) -> Ask:
        """The function that runs its programs; a program without an output fails."""

        def ask(command: Sequence[str]) -> str | None:
            for name in (command[0], f"{command[0]} {command[-1]}"):
                if name in self.said:
                    return self.said[name]
            return None

        return ask

    def memory(self, gib: float) -> "Computer":
        """Write the size of the memory."""
        (self.proc / "meminfo").write_text(f"MemTotal:       {round(gib * 2**20)} kB\nMemFree: 1\n")
        return self

    def disk(self, name: str, model: str | None, rate: str) -> "Computer":
        """Write the disk, and the rate of its PCIe link."""
        self.said |= {"findmnt": f"/dev/{name}p2\n", "lsblk": lsblk(name, model)}
        self.write(f"block/{name}/device/device/current_link_speed", rate)
        return self

    def write(self, path: str, text: str) -> "Computer":
        """Write a file below ``/sys``."""
        (self.sys / path).parent.mkdir(parents=True, exist_ok=True)
        (self.sys / path).write_text(text + "\n")
        return self
