"""Reads a machine from the names of its parts, as users type them."""

import re
from dataclasses import replace
from pathlib import Path

from moebench.harness.advise.question import Hardware
from moebench.harness.machines.products_file import read_products
from moebench.harness.published.case import FAMILIES
from moebench.substrate.errors import UsageError
from moebench.substrate.machines import compose
from moebench.substrate.machines.parts import (
    Pool,
    Processor,
    find,
    matches,
    memory_of,
    nearest,
    parts,
)
from moebench.substrate.machines.profile import is_file as is_profile
from moebench.substrate.machines.profile import load_profile

#: Most cores of a processor.
MOST_CORES = 1024


def hardware(
    *, gpu: str | None = None, cpu: str | None = None, ram: str | None = None,
    memory: str | None = None, bandwidth: float | None = None, link: str | None = None,
    copies: float | None = None, disk: str | None = None, machine: str | None = None,
) -> Hardware:  # fmt: skip
    """Return the machine that parts name.

    Args:
        gpu: ``rtx-3090``, ``2x RTX 3090``, ``rtx-3090*2``, a machine of one memory such as
            ``strix-halo``, or ``none``.
        cpu: a processor, with ``*2`` or ``2x`` for sockets.
        ram: GB or GiB of the host's memory, which both mean GiB.
        memory: ``ddr5-5600*2``: kind, rate and number of modules or channels.
        bandwidth, copies: measured rates of the host's memory and of copies to the device, in GB/s.
        machine: a list of parts, or the file of a calibrated machine, instead of the others.

    Raises UsageError: an unknown part (with the nearest names), or parts that do not fit.
    """
    if machine is not None:
        typed = {"--gpu": gpu, "--cpu": cpu, "--ram": ram, "--memory": memory, "--link": link}
        other = next((name for name, value in typed.items() if value is not None), None)
        if other:
            raise UsageError(f"{other}: --machine names the whole machine; leave one out")
        found = _machine(machine)
    else:
        found = _of_parts(gpu, cpu, ram, memory, link)
    if disk is not None:
        found = replace(found, disk=part_of("--disk", disk, ("disks",)))
    for option, value in (("--bandwidth", bandwidth), ("--copies", copies)):
        if value is not None and not 0.1 <= value <= 20000:
            raise UsageError(f"{option} {value:g}: allowed: GB/s from 0.1 to 20000")
    return replace(found, reads_gb_s=bandwidth, copies_gb_s=copies)


def _of_parts(
    gpu: str | None, cpu: str | None, ram: str | None, memory: str | None, link: str | None
) -> Hardware:
    cards, name = (1, "") if gpu is None else _counted("--gpu", gpu)
    if name.lower() in ("none", "no", "cpu", "cpu-only"):
        name = ""
    if name:
        name = part_of("--gpu", name, ("gpus", "pools"))
    pool = parts().get(name)
    if isinstance(pool, Pool):
        for option, value in (("--cpu", cpu), ("--memory", memory), ("--link", link)):
            if value is not None and value.lower() not in pool.name.lower():
                raise UsageError(f"{option} {value}: {pool.name} has its own; leave it out")
        size = None if ram is None else gib("--ram", ram)
        low, high = pool.memory_gib
        if size is not None and not low <= size <= high:
            raise UsageError(f"--ram {ram}: {pool.name} is sold with {low:g} to {high:g} GB")
        return Hardware(gpu=name, ram_gib=size)
    sockets, processor = (None, "") if cpu is None else _counted("--cpu", cpu)
    if processor:
        processor = _processor(processor)
    kind, channels = ("", None) if memory is None else _modules(memory)
    cores, virtual = (None, False) if cpu is None else _cores_said(cpu, sockets or 1)
    found = Hardware(
        gpu=name, cards=cards, cpu=processor, sockets=sockets if cpu is not None else None,
        cores=cores, virtual=virtual,
        ram_gib=None if ram is None else gib("--ram", ram), memory=kind, channels=channels,
        link="" if link is None else part_of("--link", link, ("links",)),
    )  # fmt: skip
    _fit(found)
    return found


def _fit(found: Hardware) -> None:
    """Refuse parts that exclude each other.

    Raises UsageError: as `compose.build`.
    """
    if found.cpu and not matches(found.cpu):
        return  # another processor stands for it
    compose.build(machine_text(found))


def machine_text(found: Hardware) -> str:
    """Return a machine as a list of parts, such as ``rtx-3090+ryzen-9-5950x+ram=64``.

    A processor that another of its family stands for is left out.

    Raises UsageError: the card is unknown.
    """
    if found.profile is not None:
        return found.file
    ram = [] if found.ram_gib is None else [f"ram={found.ram_gib:g}"]
    disk = [found.disk] if found.disk else []
    device = find(found.gpu).key if found.gpu else compose.CPU_ONLY
    if isinstance(parts().get(device), Pool):
        return "+".join([device, *ram, *disk])
    words = [_times(device, found.cards)]
    if found.cpu and len(matches(found.cpu)) == 1:
        words.append(_times(matches(found.cpu)[0], found.sockets))
    if found.memory:
        words.append(_times(found.memory.lower(), found.channels, always=True))
    return "+".join([*words, *ram, *([found.link] if found.link and found.gpu else []), *disk])


def _times(key: str, count: int | None, always: bool = False) -> str:
    return f"{key}*{count}" if count is not None and (always or count > 1) else key


def _machine(typed: str) -> Hardware:
    if is_profile(typed):
        profile = load_profile(typed)
        alone = profile.pool and profile.gpu.name.endswith(compose.NO_GPU)
        return Hardware(
            gpu="" if alone else profile.gpu.name, cpu=profile.host.name, profile=profile,
            ram_gib=profile.host.memory.bytes / 2**30, file=typed,
            products=_products(Path(typed)),
        )  # fmt: skip
    if not compose.is_composed(typed):
        raise UsageError(
            f"--machine {typed}: advice needs parts, such as rtx-3090+ryzen-9-5950x+ram=64, or the "
            "file of a calibrated machine"
        )
    built = compose.build(typed)
    pool = isinstance(built.host, Pool)
    gpu = built.host.key if pool else "" if built.gpu is None else built.gpu.key
    named = any(word.partition("*")[0] == built.host.key for word in built.named)
    memory = "" if built.memory is None or pool else f"{built.memory}-{built.rate}"
    return Hardware(
        gpu=gpu, cards=built.cards, cpu=built.host.key if named and not pool else "",
        sockets=built.sockets if named and not pool else None, ram_gib=built.ram_gib,
        memory=memory if built.modules is not None or named else "",
        channels=None if pool or built.modules is None else built.channels,
        link="" if built.link is None else built.link.key, disk=built.disk.key,
    )  # fmt: skip


def _products(profile: Path) -> dict[str, float]:
    """Return the measured rates of formats over q4_k's, of the file beside a profile."""
    found = read_products(profile)
    if found is None or "q4_k" not in found.rates:
        return {}
    weights = {
        name: max(rate.value for rate in rows[1].values()) / found.bits[name]
        for name, rows in found.rates.items() if rows.get(1)
    }  # fmt: skip
    return {name: one / weights["q4_k"] for name, one in weights.items()}


def _counted(option: str, typed: str) -> tuple[int, str]:
    """Return the number and the name of ``2x NAME`` or ``NAME*2``."""
    said = re.fullmatch(r"\s*(?:(\d+)\s*x\s+)?(.*?)(?:\s*\*\s*(\d+))?\s*", typed, re.IGNORECASE)
    dual = re.fullmatch(r"\s*dual\s+(.*)", typed, re.IGNORECASE)
    if dual:
        return 2, dual[1]
    assert said is not None
    number = int(said[1] or said[3] or 1)
    if not said[2] or not 1 <= number <= compose.MOST_CARDS:
        raise UsageError(f"{option} {typed!r}: allowed: a name, or NAME*N with N from 1 to 16")
    return number, said[2]


def part_of(option: str, typed: str, kinds: tuple[str, ...]) -> str:
    """Return the key of a part of these kinds.

    Raises UsageError: none or several have this name; the message has the nearest ones.
    """
    text = re.sub(r"\(.*?\)", "", typed).strip()
    found = [key for key in matches(text) if parts()[key].group in kinds]
    size = re.fullmatch(r"(.*?)[ -](\d+) ?gi?b", text, re.IGNORECASE)
    if not found and size:  # a card's memory is a part of few keys
        found = [key for key in matches(size[1])
                 if getattr(parts()[key], "memory_gib", None) == float(size[2])]  # fmt: skip
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{option} {typed!r}: may be {' or '.join(sorted(found))}; give one")
    close = nearest(text, kinds)
    offer = f"nearest: {', '.join(close)}; " if close else ""
    raise UsageError(f"{option} {typed!r}: unknown; {offer}all: moebench machines list --parts")


def _processor(typed: str) -> str:
    """Return a processor's key, or the name of one that another of its family stands for."""
    text = re.sub(r"\(.*?\)", "", typed).strip()
    found = [key for key in matches(text) if isinstance(parts()[key], Processor)]
    if len(found) == 1:
        return found[0]
    low = typed.lower()
    if any(re.search(family, low) for family, _ in FAMILIES) or _DESCRIBED.search(low):
        return typed
    return part_of("--cpu", typed, ("processors",))


#: Words that say what kind of processor it is, without its name.
_DESCRIBED = re.compile(
    r"\d+[ -]?(?:cores?|c|vcpus?|threads)\b|server|desktop|workstation|socket|^(?:xeon|epyc|ryzen)$"
)


def _cores_said(typed: str, sockets: int) -> tuple[int | None, bool]:
    """Return the cores of all sockets that a text says, and whether they are virtual processors.

    Raises UsageError: no machine has so many.
    """
    said = re.search(r"(\d+)[ -]?(cores?|c|vcpus?)\b(/socket)?", typed, re.IGNORECASE)
    if said is None:
        return None, False
    count, virtual = int(said[1]), said[2].lower().startswith("v")
    if not 1 <= count <= MOST_CORES:
        raise UsageError(f"--cpu {typed!r}: allowed: 1 to {MOST_CORES} cores")
    return count * (sockets if said[3] or not virtual else 1), virtual


def _modules(typed: str) -> tuple[str, int | None]:
    name, star, count = typed.partition("*")
    found = memory_of(name)
    if found is None:
        raise UsageError(f"--memory {typed!r}: allowed: ddr4-3200, ddr5-5600*2 and the like")
    number = int(count) if count.strip().isdigit() else 0
    if star and not 1 <= number <= 64:
        raise UsageError(f"--memory {typed!r}: allowed after *: the number of modules, 1 to 64")
    return f"{found[0]}-{found[1]}", number or None


def gib(option: str, typed: str) -> float:
    """Return a size of memory in GiB: ``64``, ``64GB`` and ``64 GiB`` are the same modules.

    Raises UsageError: it is no size from 1 GiB to 32 TiB.
    """
    said = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(gi?b?|ti?b?)?", typed.strip().lower())
    value = float(said[1]) * (1024 if (said[2] or "").startswith("t") else 1) if said else 0.0
    if not compose.LEAST_RAM <= value <= compose.MOST_RAM:
        raise UsageError(
            f"{option} {typed!r}: allowed: GB or GiB from {compose.LEAST_RAM} to "
            f"{compose.MOST_RAM}, such as 64"
        )
    return value
