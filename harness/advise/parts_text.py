"""A question's machine as a list of parts, with a stand-in for an unlisted processor."""

import re
from typing import NamedTuple

from moebench.harness.advise.question import Hardware
from moebench.harness.published.case import DESKTOP, FAMILIES, SERVER
from moebench.results.published_errors import SERVER_CORES
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.compose import CPU_ONLY, LEAST_RAM, MOST_CARDS, MOST_RAM, build
from moebench.substrate.machines.parts import Gpu, Pool, Processor, nearest, parts

_SERVER = re.compile(r"epyc|xeon|threadripper pro|neoverse|graviton|ampere", re.IGNORECASE)


class PartsText(NamedTuple):
    """A list of parts that `compose.composed` reads, and sentences on what stands in for what."""

    text: str
    remarks: tuple[str, ...]


def parts_text(hardware: Hardware) -> PartsText:
    """Return the parts of a machine; what does not fit its processor is left out with a remark.

    Raises UsageError: the card is not a part.
    """
    part = parts().get(hardware.gpu)
    if hardware.gpu and not isinstance(part, Gpu | Pool):
        close = nearest(hardware.gpu, ("gpus", "pools"), 0.3)
        offer = f"; nearest: {', '.join(close)}" if close else ""
        raise UsageError(
            f"card {hardware.gpu!r} is not among the parts{offer}; write its profile: moebench "
            "machines init NAME"
        )
    remarks: list[str] = []
    if isinstance(part, Pool):
        words = [part.key]
        low, high = part.memory_gib
        if hardware.ram_gib:
            words.append(f"ram={min(max(hardware.ram_gib, low), high):g}")
        return PartsText("+".join([*words, *_fitting(words, [hardware.disk], remarks)]), ())
    cards = min(hardware.cards, MOST_CARDS)
    words = [CPU_ONLY if part is None else part.key + (f"*{cards}" if cards > 1 else "")]
    processor, exact = stand_in(hardware)
    if not exact:
        remarks.append(f"{processor.name} stands in for {hardware.cpu or 'an unknown processor'}")
    sockets = min(hardware.sockets or 1, processor.sockets)
    words.append(processor.key + (f"*{sockets}" if sockets > 1 else ""))
    if hardware.ram_gib:
        words.append(f"ram={min(max(hardware.ram_gib, LEAST_RAM), MOST_RAM):g}")
    channels = hardware.channels
    memory = hardware.memory.lower() + (f"*{channels}" if channels else "")
    optional = [memory if hardware.memory else "", hardware.link if part else "", hardware.disk]
    words += _fitting(words, optional, remarks)
    return PartsText("+".join(words), tuple(remarks))


def stand_in(hardware: Hardware) -> tuple[Processor, bool]:
    """Return the processor, or one of its family or kind, and whether it is the very processor."""
    name = hardware.cpu
    found = parts().get(name)
    if isinstance(found, Processor):
        return found, True
    family = next((key for said, key in FAMILIES if re.search(said, name.lower())), None)
    many = (hardware.cores or 0) // (hardware.sockets or 1) >= SERVER_CORES
    server = bool(_SERVER.search(name)) or (hardware.sockets or 1) > 1 or many
    other = parts()[family or (SERVER if server or hardware.cards > 2 else DESKTOP)]
    assert isinstance(other, Processor)
    return other, False


def _fitting(words: list[str], optional: list[str], remarks: list[str]) -> list[str]:
    """Return the optional words that fit the others; note the others in ``remarks``."""
    kept: list[str] = []
    for word in filter(None, optional):
        try:
            build("+".join([*words, *kept, word]))
        except UsageError as error:
            remarks.append(f"{word} left out: {str(error).partition(': ')[2]}")
        else:
            kept.append(word)
    return kept
