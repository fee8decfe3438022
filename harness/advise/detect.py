"""This computer as the machine of a question: its cards, processor, memory, link and disk.

Programs and files of the system are read, and nothing is timed; `moebench calibrate --quick`
measures.  What could not be read is stated with the option that names it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from moebench.harness.advise.memory_modules import modules
from moebench.harness.advise.question import Hardware
from moebench.harness.machines.survey import Ask, ask, cards, disk_fields, lscpu, memory_gib
from moebench.substrate.machines.parts import Gpu, Pool, Processor, matches, nearest, parts

#: Words of reported names that distinguish no parts.
_CARD_NOISE = re.compile(
    r"nvidia|geforce|tesla|quadro|amd|ati|instinct|intel|graphics|gpu|generation|series|edition|oam|"
    r"hbm[23]e?"
)
_CPU_NOISE = re.compile(
    r"\((?:r|tm)\)|@.*|\bw/.*|\bwith\b.*|\b\d+-cores?\b|\bprocessor\b|\bcpu\b|\b\d+th gen\b|\+",
    re.IGNORECASE,
)

#: A part's memory and the reported one differ by less than this share.
_SAME_MEMORY = 0.08

#: Generation of an NVMe disk's link by its rate in GT/s.
_GENERATIONS = {"8.0": 3, "16.0": 4, "32.0": 5}

_MEASURED = "moebench calibrate --quick measures it"


class _Cards(NamedTuple):
    """Reported name and number of the cards, memory of one in GiB, and where they were read."""

    name: str
    cards: int
    memory_gib: float | None
    link: str
    others: tuple[str, ...]
    source: str


def this_computer(
    asked: Ask = ask, proc: Path = Path("/proc"), sys: Path = Path("/sys")
) -> Hardware:
    """Read this computer's hardware.

    Names that are not a part stay as they are reported.  Without a card ``gpu`` is "".

    Args:
        asked: runs a program and returns its output.
        proc, sys: folders of the kernel's files.
    """
    found = _Found(asked, proc, sys)
    found.read()
    return Hardware(**found.values, sources=found.sources, unread=tuple(found.unread))


class _Found:
    """Values by field of `Hardware`, their sources, and sentences on what was not read."""

    def __init__(self, asked: Ask, proc: Path, sys: Path) -> None:
        self._asked, self._proc, self._sys = asked, proc, sys
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.unread: list[str] = []

    def read(self) -> None:
        """Read every field; a machine with one memory has no processor, memory and link."""
        self._processor()
        if "gpu" not in self.values:
            self._card()
        self._ram()
        if self._pool():
            for name in ("cpu", "sockets", "memory", "channels", "link"):
                self.values.pop(name, None)
                self.sources.pop(name, None)
        else:
            self._modules()
        self._disk()

    def _put(self, field: str, value: Any, source: str) -> None:
        self.values[field], self.sources[field] = value, source

    # ---------------------------------------------------------------------- card

    def _card(self) -> None:
        found = _nvidia(self._asked) or _amd(self._asked)
        if found is None:
            return
        key = _card_part(found.name, found.memory_gib)
        self._put("gpu", key or found.name, found.source)
        self._put("cards", found.cards, found.source)
        if found.link:
            self._link(found.link, found.source)
        elif not isinstance(parts().get(key), Pool):
            self.unread.append(
                f"link of {found.name} not readable: {_MEASURED}, or give --link pcie4x16"
            )
        if found.others:
            self.unread.append(
                f"{' and '.join(found.others)} left out: a machine has cards of one kind; the "
                f"first is {found.name}, give --gpu NAME for another"
            )
        if not key:
            self.unread.append(_unknown_card(found.name, found.memory_gib))

    def _link(self, link: str, source: str) -> None:
        if link in parts():
            self._put("link", link, f"{source}: highest generation and width of its PCIe link")
        else:
            self.unread.append(
                f"link {link} is not among the parts: {_MEASURED}, or give --link pcie3x4"
            )

    # ---------------------------------------------------------------------- processor

    def _processor(self) -> None:
        said = lscpu(self._asked)
        cpuinfo = _read(self._proc / "cpuinfo")
        name, source = said.get("Model name", ""), "lscpu"
        if not name or name == "unknown":
            first = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
            name, source = (first[1].strip(), "/proc/cpuinfo") if first else ("", "")
        if not name:
            brand = (self._asked(["sysctl", "-n", "machdep.cpu.brand_string"]) or "").strip()
            name, source = brand, "sysctl"
        if not name:
            self.unread.append("processor not readable: give --cpu ryzen-7-7700")
            return
        key = part_of_processor(name)
        if isinstance(parts().get(key), Pool):
            self._put("gpu", key, f"{source}: {name}")
        elif name.startswith("Apple"):
            self._put("gpu", name, f"{source}: {name}")
            self.unread.append(_unknown_card(name, None))
        self._put("cpu", key or name, f"{source}: {name}")
        self._virtual(said, cpuinfo)
        sockets = said.get("Socket(s)", "")
        if not sockets.isdigit():
            sockets = str(len(set(re.findall(r"^physical id\s*:\s*(\d+)$", cpuinfo, re.M))))
        if int(sockets) > 0 and not self.values["virtual"]:
            self._put("sockets", int(sockets), source)

    def _virtual(self, said: dict[str, str], cpuinfo: str) -> None:
        """Read whether this is a virtual machine, and how many cores it has."""
        flags = re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE)
        virtual = "Hypervisor vendor" in said or flags is not None
        self.values["virtual"] = virtual
        if virtual:
            self.sources["virtual"] = "lscpu or /proc/cpuinfo: hypervisor"
        each, sockets = said.get("Core(s) per socket", ""), said.get("Socket(s)", "")
        if each.isdigit() and sockets.isdigit():
            what = "cores of all sockets"
            if virtual:
                what = "processors of a virtual machine, which may be threads of fewer cores"
            self._put("cores", int(each) * int(sockets), f"lscpu: {what}")

    def _pool(self) -> bool:
        return isinstance(parts().get(self.values.get("gpu", "")), Pool)

    # ---------------------------------------------------------------------- memory

    def _ram(self) -> None:
        gib = memory_gib(self._proc)
        limit = _read(self._sys / "fs/cgroup/memory.max").strip()
        if limit.isdigit() and (gib is None or int(limit) / 2**30 < gib):
            gib = round(int(limit) / 2**30, 2)
            self._put("ram_gib", gib, "/sys/fs/cgroup/memory.max: limit of this container")
        elif gib is not None:
            self._put("ram_gib", gib, "/proc/meminfo: MemTotal")
        else:
            said = (self._asked(["sysctl", "-n", "hw.memsize"]) or "").strip()
            if said.isdigit():
                self._put("ram_gib", round(int(said) / 2**30, 2), "sysctl: hw.memsize")
            else:
                self.unread.append("size of the memory not readable: give --ram 64")

    def _modules(self) -> None:
        found = modules(self._asked, self._sys)
        if found is None:
            why = "dmidecode is missing or needs root"
            if self.values.get("virtual"):
                why = "a virtual machine does not show its modules"
            self.unread.append(
                f"memory channels not readable ({why}): {_MEASURED}, or give --memory ddr5-5600*2"
            )
            return
        self._put("channels", self._of_processor(found.channels), found.source)
        if found.memory:
            self._put("memory", found.memory, f"{found.source}; configured rate")
        else:
            self.unread.append(
                f"rate of the {found.modules} memory modules not readable (dmidecode is missing "
                f"or needs root): {_MEASURED}, or give --memory ddr4-3200*{found.channels}"
            )
        if found.mixed:
            self.unread.append(
                f"memory modules run at several rates: the lowest counts, {found.memory}; give "
                f"--memory {found.memory}*{found.channels} to name another"
            )

    def _of_processor(self, channels: int) -> int:
        """Return a number of channels, at most those that the processor has."""
        part = parts().get(self.values.get("cpu", ""))
        if not isinstance(part, Processor):
            return channels
        return min(channels, part.channels * int(self.values.get("sockets", 1)))

    # ---------------------------------------------------------------------- disk

    def _disk(self) -> None:
        disk = disk_fields(self._asked)
        name = disk.get("name", "")
        if self.values.get("gpu", "").startswith("apple-"):
            self._put("disk", "apple-ssd", "the machine's own disk")
            return
        rate = _read(self._sys / f"block/{name}/device/device/current_link_speed") if name else ""
        generation = _GENERATIONS.get(rate.partition(" ")[0])
        if generation is not None:
            source = f"rate of the PCIe link of {disk.get('model') or name}"
            self._put("disk", f"nvme{generation}", source)
            return
        what = f"disk {disk.get('model') or name}" if name else "disk of this folder"
        self.unread.append(f"kind of the {what} not readable: {_MEASURED}, or give --disk nvme3")


# ------------------------------------------------------------------------------- cards


def _nvidia(asked: Ask) -> _Cards | None:
    found = cards(asked)
    if not found:
        return None
    first = found[0]
    link = f"pcie{first.generation}x{first.lanes}" if first.generation and first.lanes else ""
    if _is_pool(first.name):
        link = ""
    alike = [card for card in found if card.name == first.name]
    others = tuple(dict.fromkeys(card.name for card in found if card.name != first.name))
    return _Cards(first.name, len(alike), first.memory_gib, link, others, "nvidia-smi")


def _amd(asked: Ask) -> _Cards | None:
    said = asked(["rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json"])
    try:
        data = json.loads(said or "{}")
    except ValueError:
        return None
    rows = [row for key, row in data.items() if key.startswith("card") and isinstance(row, dict)]
    found = []
    for row in rows:
        fields = {str(key).lower(): str(value) for key, value in row.items()}
        name = fields.get("card series") or fields.get("card model") or ""
        size = fields.get("vram total memory (b)", "")
        if name:
            found.append((name, int(size) / 2**30 if size.isdigit() else None))
    if not found:
        return None
    (name, memory), *_ = found
    others = tuple(dict.fromkeys(other for other, _ in found if other != name))
    count = sum(other == name for other, _ in found)
    return _Cards(name, count, memory, "", others, "rocm-smi")


def _is_pool(name: str) -> bool:
    return isinstance(parts().get(_card_part(name, None)), Pool)


def _runs(words: Sequence[str]) -> Iterator[str]:
    """Yield every run of neighbouring words, the longest first."""
    for size in range(len(words), 0, -1):
        for at in range(len(words) - size + 1):
            yield " ".join(words[at : at + size])


def _card_part(name: str, memory_gib: float | None) -> str:
    """Return the key of the part that a card's reported name means; "" if none or several fit."""
    said = [word for word in re.split(r"[\s-]+", name.lower()) if not _CARD_NOISE.fullmatch(word)]
    form = next((word[:3] for word in said if re.fullmatch(r"sxm\d?|pcie", word)), "")
    if not form and re.search(r"hbm3", name, re.IGNORECASE):
        form = "sxm"  # cards for a slot are named PCIe
    words = [word for word in said if not re.fullmatch(r"sxm\d?|pcie", word)]
    found = [parts()[key] for key in matches(" ".join(words))]
    found = [part for part in found if isinstance(part, Gpu | Pool)]
    if form:
        other = {"sxm": "pcie", "pci": "sxm"}[form]
        found = [part for part in found if other not in part.key.split("-")]
    if memory_gib is not None:
        found = [part for part in found if not isinstance(part, Gpu) or _has(part, memory_gib)]
    return found[0].key if len(found) == 1 else ""


def _has(part: Gpu, memory_gib: float) -> bool:
    return abs(part.memory_gib / memory_gib - 1) < _SAME_MEMORY


def _unknown_card(name: str, memory_gib: float | None) -> str:
    """Return the sentence on a card that is not a part, with parts of similar names."""
    size = f" with {memory_gib:.3g} GiB" if memory_gib else ""
    close = nearest(name, ("gpus", "pools"), 0.3)
    offer = f"nearest: {', '.join(close)}; give one of them as --gpu" if close else "give --gpu"
    return f"card {name!r}{size} is not among the parts; {offer}"


# ------------------------------------------------------------------------------- processors


def part_of_processor(name: str) -> str:
    """Return the key of the processor, or of the one-memory machine, that a name means; else ""."""
    words = _CPU_NOISE.sub(" ", name).split()
    for text in _runs(words):
        found = [key for key in matches(text) if not isinstance(parts()[key], Gpu)]
        if len(found) == 1 and re.search(r"\d", text):
            return found[0]
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
