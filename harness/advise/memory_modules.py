"""Memory modules of this computer, their kind, rate and channels, from dmidecode or the kernel."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from moebench.harness.machines.survey import Ask
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.parts import memory_of


class Modules(NamedTuple):
    """The populated memory modules.

    Attributes:
        memory: kind and rate, such as ``ddr5-5600``; "" if it is not known.
        channels: channels of 64 bits, of all sockets, that have a module.
        modules: number of modules.
        mixed: whether the modules run at several rates; ``memory`` has the lowest.
        source: the program or folder that lists them.
    """

    memory: str
    channels: int
    modules: int
    mixed: bool
    source: str


#: Parts of a locator that name a socket or memory controller, and those that name a channel.
_GROUP = re.compile(r"(?:CPU|PROC|SOCKET|NODE|P|CONTROLLER|MC)[ _]?(\d+)", re.IGNORECASE)
_CHANNEL = re.compile(r"CHANNEL[ _-]?([A-Z]|\d+)|DIMM[ _-]?([A-Z])\d?\b", re.IGNORECASE)


def modules(asked: Ask, sys: Path) -> Modules | None:
    """Return the populated memory modules; None if neither dmidecode nor the kernel lists them."""
    return _dmidecode(asked(["dmidecode", "-t", "memory"])) or _edac(sys)


def _dmidecode(said: str | None) -> Modules | None:
    found = [device for device in _devices(said or "") if re.match(r"\d", device.get("Size", ""))]
    texts = [_text(device) for device in found]
    known = [text for text in texts if text]
    if not known:
        return None  # a virtual machine's modules have no kind
    widths: dict[tuple[str, ...], int] = {}
    for at, device in enumerate(found):
        width = re.match(r"\d+", device.get("Data Width", ""))
        soldered = device.get("Type", "").startswith("LPDDR")  # in channels of 16 or 32 bits
        widths[_channel(device, at)] = int(width[0]) if width and soldered else 64
    channels = max(1, sum(widths.values()) // 64)
    lowest = min(known, key=lambda text: int(text.rpartition("-")[2]))
    mixed = len(set(known)) > 1
    return Modules(lowest, channels, len(found), mixed, "dmidecode: modules and their locators")


def _devices(said: str) -> Iterator[dict[str, str]]:
    """Yield the fields of every memory device in dmidecode's output."""
    for block in re.split(r"\n\s*\n", said):
        if re.search(r"^Memory Device$", block, re.MULTILINE):
            pairs = (line.partition(":") for line in block.splitlines() if ":" in line)
            yield {key.strip(): value.strip() for key, _, value in pairs}


def _text(device: Mapping[str, str]) -> str:
    """Return a module's kind and configured rate; "" if one of both is not a part's."""
    rate = ""
    for field in ("Configured Memory Speed", "Configured Clock Speed", "Speed"):
        number = re.match(r"(\d+) M", device.get(field, ""))
        if number:
            rate = number[1]
            break
    kind = device.get("Type", "").lower()
    text = f"{kind}-{rate}"
    try:
        return text if rate and memory_of(text) else ""
    except UsageError:
        return ""


def _channel(device: Mapping[str, str], at: int) -> tuple[str, ...]:
    """Return what identifies a module's channel; the module itself if its locators name none."""
    for text in (device.get("Locator", ""), device.get("Bank Locator", "")):
        channel = _CHANNEL.search(text)
        if channel:
            both = f"{device.get('Locator', '')} {device.get('Bank Locator', '')}"
            groups = _GROUP.findall(text) or _GROUP.findall(both)
            return (*groups, (channel[1] or channel[2]).upper())
    return ("module", str(at))


def _edac(sys: Path) -> Modules | None:
    """Read the kernel's list of modules, which has no rates."""
    channels, count = set(), 0
    for folder in sorted(sys.glob("devices/system/edac/mc/mc*/dimm*")):
        size, place = _read(folder / "size"), _read(folder / "dimm_location")
        if not size.isdigit() or int(size) == 0:
            continue
        count += 1
        channel = re.search(r"channel (\d+)", place)
        channels.add((folder.parent.name, channel[1] if channel else folder.name))
    if not channels:
        return None
    return Modules("", len(channels), count, False, "/sys/devices/system/edac: modules")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
