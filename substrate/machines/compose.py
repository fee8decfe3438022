"""Machines of parts: the hardware profile of a GPU, a processor, memory, a link and a disk.

A text names the parts, separated by ``+`` or ``,``: ``rtx-3090+ryzen-5950x``, or
``rtx-4090,xeon-6454s*2,ddr5-4800*16,ram=512,pcie4x16,nvme4``.  ``*N`` counts sockets, memory
modules or cards.  ``cpu-only`` stands for the GPU where there is none.  Parts that the text does
not name are chosen by rules, and the profile's description names them.
"""

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from moebench.substrate.errors import UsageError
from moebench.substrate.machines.parts import (
    Cores,
    Disk,
    Gpu,
    Link,
    MeasuredDevice,
    MemoryType,
    Part,
    PartBadge,
    Pool,
    Processor,
    find,
    matches,
    memory_of,
    parts,
    parts_of,
)

CPU_ONLY = "cpu-only"

#: What the name of a device that is the processor ends with.
NO_GPU = "(no GPU)"

#: Most cards of one kind, and most modules on a memory channel.
MOST_CARDS = 16
MODULES_A_CHANNEL = 2
#: Smallest and largest memory of a machine in GiB.
LEAST_RAM, MOST_RAM = 1, 32768
#: Memory for each channel in GiB, where the text does not say how much there is.
DESKTOP_RAM_A_CHANNEL, SERVER_RAM_A_CHANNEL = 32, 64

#: Processors that stand for one that the text does not name, by the kind of memory.
COMMON_DESKTOP = "ryzen-7-7700"
COMMON_DDR4_DESKTOP = "ryzen-7-5800x"

#: Share of nominal memory bandwidth that products with one row reach: value, lowest, highest.
DESKTOP_SHARE = (0.80, 0.63, 0.88)
SERVER_SHARE = (0.62, 0.40, 0.85)
_DESKTOP_SOURCE = (
    "desktops reach 0.63-0.88 of nominal (bsc-mem/Mess-Results Consumer; memtest86plus issue 557; "
    "llama.cpp issue 4716)"
)
_SERVER_SOURCE = (
    "servers reach 0.40-0.85 of nominal (STREAM: learn.microsoft.com azure hpc; llama.cpp "
    "discussion 11530 and issue 11744)"
)
#: Bandwidth of two sockets over that of one: weights bound to each socket's own memory, or not.
TWO_SOCKETS = 1.5
SOCKETS_LOWEST = 0.65

#: Quantised weights that a core multiplies with one row in a cycle: value, lowest, highest.
AVX2_WEIGHTS = (2.9, 1.8, 4.0)
AVX512_WEIGHTS = (6.0, 3.0, 9.0)
_WEIGHTS_SOURCE = (
    "a Ryzen 7 5700G reads q4_0 at 29 GB/s with 4 threads, 2.9 weights a cycle and core "
    "(llama.cpp issue 39); a tuned AVX-512 kernel at 15.8 GB/s a core, 9 (FreeToken "
    "cpu_moe_ext.cpp); plain AVX-512 kernels in between"
)

_CONTEXT = "estimate: CUDA context and workspace"
_Range = tuple[float, float]
Number = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Build:
    """The parts of a machine.

    Attributes:
        gpu: None for a machine without a GPU of its own.
        modules: memory modules in all sockets; None is one on each channel.
        rate: rate of the modules in MT/s.
        ram_gib: size of the memory in GiB.
        named: the parts that the text names, in canonical spelling.
        assumed: texts of the parts that it does not name.
    """

    gpu: Gpu | None
    cards: int
    host: Processor | Pool
    sockets: int
    memory: MemoryType | None
    rate: int
    modules: int | None
    ram_gib: float
    link: Link | None
    disk: Disk
    named: tuple[str, ...]
    assumed: tuple[str, ...]

    @property
    def channels(self) -> int:
        """Memory channels of all sockets that have a module."""
        assert isinstance(self.host, Processor)
        most = self.host.channels * self.sockets
        return most if self.modules is None else min(most, self.modules)

    @property
    def nominal_gbs(self) -> float:
        """Channels times 8 bytes times the rate, over all sockets, in GB/s."""
        return self.channels * 8 * self.rate / 1000


# ------------------------------------------------------------------------------ reading a text


def is_composed(text: str) -> bool:
    """Return whether a machine's name is a list of parts, known or not."""
    return any(sign in text for sign in "+,*=") or _plain(text) == CPU_ONLY or bool(matches(text))


def canonical(text: str) -> str:
    """Return the text with full names of its parts, in a fixed order and separated by ``+``.

    Raises UsageError: as `build`.
    """
    return "+".join(build(text).named)


@lru_cache
def build(text: str) -> Build:
    """Read a list of parts.

    Raises UsageError: an unknown part, one that does not fit the others, or an impossible count.
    """
    try:
        return _Reader(text).build()
    except UsageError as error:
        raise UsageError(f"machine {text!r}: {error}") from error


def _plain(text: str) -> str:
    return text.strip().lower()


def _words(text: str) -> list[str]:
    """Split a text into parts; a processor's own plus sign, as of Xeon 8480+, separates nothing."""
    for part in parts_of("processors"):
        if part.name.endswith("+"):
            number = part.key.rpartition("-")[2]
            text = re.sub(rf"{number}\+(?=\s*(?:[+,*]|$))", number, text)
    return [word.strip() for word in re.split(r"[+,]", text)]


class _Reader:
    """Reads the words of a text into parts, and refuses what does not fit."""

    def __init__(self, text: str) -> None:
        self.found: dict[str, tuple[Part, int]] = {}
        self.modules: tuple[MemoryType, int, int | None] | None = None
        self.ram: float | None = None
        self.cpu_only = False
        for word in _words(text):
            self._read(word)

    def _read(self, word: str) -> None:
        name, star, count = word.partition("*")
        if not name.strip():
            raise UsageError("a part has no name; allowed: parts separated by + or ,")
        if name.partition("=")[0].strip().lower() == "ram":
            self._read_ram(word)
        elif _plain(name) == CPU_ONLY:
            self._refuse_count(name, star)
            self.cpu_only = True
        elif memory := memory_of(name):
            if self.modules is not None:
                raise UsageError(f"{word}: memory is named twice; name one kind of modules")
            most = 16 * 8 * MODULES_A_CHANNEL
            self.modules = (*memory, _count(word, count, most) if star else None)
        else:
            self._add(find(name.strip()), word, star, count)

    def _read_ram(self, word: str) -> None:
        said = re.fullmatch(r"ram\s*=\s*(\d+(?:\.\d+)?)\s*(?:gb|gib)?", word.strip().lower())
        size = float(said[1]) if said else 0.0
        if not LEAST_RAM <= size <= MOST_RAM:
            raise UsageError(f"{word}: allowed: ram=N, GB from {LEAST_RAM} to {MOST_RAM}")
        if self.ram is not None:
            raise UsageError(f"{word}: ram is named twice")
        self.ram = size

    def _add(self, part: Part, word: str, star: str, count: str) -> None:
        kind = part.group
        if kind in self.found:
            other = self.found[kind][0]
            again = f"; write {part.key}*2 for two" if kind in ("gpus", "processors") else ""
            both = "is named twice" if other == part else f"and {other.key} are both {kind}"
            raise UsageError(
                f"{part.key} {both}; allowed: one kind{again if other == part else ''}"
            )
        most = {"gpus": MOST_CARDS, "processors": getattr(part, "sockets", 1)}.get(kind)
        if most is None:
            self._refuse_count(part.key, star)
        number = _count(word, count, most or 1, part) if star else 1
        self.found[kind] = (part, number)

    def _refuse_count(self, name: str, star: str) -> None:
        if star:
            raise UsageError(f"{name}: has no count; allowed: * after cards, processors and memory")

    # -------------------------------------------------------------------------- what fits

    def build(self) -> Build:
        """Return the parts, with those that the text does not name."""
        if "pools" in self.found:
            return self._pool()
        gpu, cards = self.found.get("gpus", (None, 1))
        if gpu is None and not self.cpu_only:
            raise UsageError(f"names no GPU; add one, or {CPU_ONLY}")
        if gpu is not None and self.cpu_only:
            raise UsageError(f"{CPU_ONLY} and {gpu.key} exclude each other; leave one out")
        if self.cpu_only and "links" in self.found:
            raise UsageError(f"{CPU_ONLY} has no link to a GPU; leave the link out")
        assert gpu is None or isinstance(gpu, Gpu)
        processor, sockets = self._processor()
        assumed = [] if "processors" in self.found else [f"processor {processor.name}"]
        memory, rate, modules = self._modules(processor, sockets, assumed)
        ram = self.ram
        if ram is None:
            channels = processor.channels * sockets
            ram = channels * (SERVER_RAM_A_CHANNEL if processor.server else DESKTOP_RAM_A_CHANNEL)
            assumed.append(f"{ram:g} GB of memory")
        link = None if gpu is None else self._link(gpu, processor, assumed)
        disk = self._disk(f"nvme{min(max(processor.pcie.generation, 3), 5)}", assumed)
        named = [CPU_ONLY] if self.cpu_only else []
        named += self._keys("gpus", "processors")
        if self.modules is not None:
            named.append(f"{memory.lower()}-{rate}" + (f"*{modules}" if modules else ""))
        return Build(
            gpu, cards, processor, sockets, memory, rate, modules, ram, link, disk,
            (*named, *self._ram_word(), *self._keys("links", "disks")), tuple(assumed),
        )  # fmt: skip

    def _pool(self) -> Build:
        pool = self.found["pools"][0]
        assert isinstance(pool, Pool)
        other = next((self.found[kind][0].key for kind in ("gpus", "processors", "links")
                      if kind in self.found), None)  # fmt: skip
        other = other or (CPU_ONLY if self.cpu_only else None)
        if self.modules is not None:
            other = f"{self.modules[0].lower()}-{self.modules[1]}"
        if other is not None:
            raise UsageError(
                f"{pool.key} has its own processor, GPU and memory, so {other} does not fit; "
                "allowed beside it: ram=N and a disk"
            )
        low, high = pool.memory_gib
        assumed: list[str] = []
        if self.ram is not None and not low <= self.ram <= high:
            sizes = f"ram={low:g}" if low == high else f"ram={low:g} to ram={high:g}"
            raise UsageError(f"{pool.key} has no memory of {self.ram:g} GB; allowed: {sizes}")
        if self.ram is None and low < high:
            assumed.append(f"{high:g} GB of memory, the most that is sold")
        disk = self._disk(pool.disk, assumed)
        named = (*self._keys("pools"), *self._ram_word(), *self._keys("disks"))
        return Build(
            None, 1, pool, 1, None, 0, None, self.ram or high, None, disk, named, tuple(assumed)
        )

    def _keys(self, *kinds: str) -> list[str]:
        pairs = [self.found[kind] for kind in kinds if kind in self.found]
        return [part.key + (f"*{count}" if count > 1 else "") for part, count in pairs]

    def _ram_word(self) -> list[str]:
        return [] if self.ram is None else [f"ram={self.ram:g}"]

    def _processor(self) -> tuple[Processor, int]:
        if "processors" in self.found:
            part, sockets = self.found["processors"]
        else:
            old = self.modules is not None and self.modules[0] == "DDR4"
            part, sockets = parts()[COMMON_DDR4_DESKTOP if old else COMMON_DESKTOP], 1
        assert isinstance(part, Processor)
        return part, sockets

    def _modules(
        self, processor: Processor, sockets: int, assumed: list[str]
    ) -> tuple[MemoryType, int, int | None]:
        """Return kind, rate and number of the memory modules."""
        if self.modules is None:
            kind, rate = next(iter(processor.memory.items()))
            assumed.append(f"{kind}-{rate} on every channel")
            return kind, rate, None
        kind, rate, count = self.modules
        if kind not in processor.memory:
            allowed = " or ".join(f"{k.lower()}-{r}" for k, r in processor.memory.items())
            raise UsageError(f"{processor.name} does not take {kind}; allowed: {allowed}")
        if processor.server:
            rate = min(rate, processor.memory[kind])
        most = processor.channels * sockets * MODULES_A_CHANNEL
        if count is not None and not sockets <= count <= most:
            raise UsageError(
                f"{count} memory modules: {sockets} x {processor.name} takes {sockets} to {most}"
            )
        return kind, rate, count

    def _link(self, gpu: Gpu, processor: Processor, assumed: list[str]) -> Link:
        generation = min(gpu.pcie.generation, processor.pcie.generation)
        lanes = min(gpu.pcie.lanes, processor.pcie.lanes)
        by_lanes = {(p.pcie.generation, p.pcie.lanes): p for p in parts_of("links")
                    if isinstance(p, Link)}  # fmt: skip
        best = by_lanes[generation, lanes]
        if "links" not in self.found:
            assumed.append(f"{best.name}, the lower of GPU and processor")
            return best
        link = self.found["links"][0]
        assert isinstance(link, Link)
        if link.pcie.generation > generation or link.pcie.lanes > lanes:
            raise UsageError(
                f"{link.name} does not fit: {gpu.name} has {gpu.pcie.text()} and {processor.name} "
                f"{processor.pcie.text()}; allowed: up to {best.key}"
            )
        return link

    def _disk(self, usual: str, assumed: list[str]) -> Disk:
        disk = self.found["disks"][0] if "disks" in self.found else parts()[usual]
        if "disks" not in self.found:
            assumed.append(disk.name)
        assert isinstance(disk, Disk)
        return disk


def _count(word: str, said: str, most: int, part: Part | None = None) -> int:
    """Return the number behind a star.

    Raises UsageError: it is no whole number from 1 to ``most``.
    """
    text = said.strip()
    number = int(text) if re.fullmatch(r"[0-9]{1,6}", text) else 0
    if not 1 <= number <= most:
        what = "" if part is None else f" of {part.name}"
        allowed = "only 1" if most == 1 else f"a whole number from 1 to {most}"
        raise UsageError(f"{word}: count {text!r}{what}; allowed: {allowed}")
    return number


# ------------------------------------------------------------------------------ the profile


def composed(text: str) -> dict[str, Any]:
    """Return the mapping of a hardware profile for a list of parts, as a YAML file has it.

    Raises UsageError: as `build`.
    """
    found = build(text)
    if isinstance(found.host, Pool):
        about, devices = _pool_parts(found, found.host)
    elif found.gpu is None:
        about, devices = _processor_parts(found, found.host)
    else:
        about, devices = _card_parts(found, found.gpu, found.host)
    if found.assumed:
        about += f"; not named, so assumed: {', '.join(found.assumed)}"
    head: dict[str, Any] = {"name": "+".join(found.named), "description": about}
    if found.gpu is None:
        head["pool"] = True
    if not isinstance(found.host, Pool) and found.host.key not in _named_keys(found):
        devices = {**devices, "host": _guessed(devices["host"])}
        if found.gpu is None:
            devices["gpu"] = _guessed(devices["gpu"])
    return {**head, **devices, "disk": _disk_numbers(found.disk)}


def _named_keys(found: Build) -> set[str]:
    """Return the keys of the parts that the text names, without counts."""
    return {word.partition("*")[0] for word in found.named}


def _guessed(part: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a processor that the text does not name, as estimates."""
    return {
        field: {**said, "badge": "estimate", "source": f"processor not named, so {said['source']}"}
        if isinstance(said, dict) and said["badge"] != "estimate" and "ram=" not in said["source"]
        else said
        for field, said in part.items()
    }


def _number(
    value: float, unit: str, source: str, badge: str = "estimate", span: _Range | None = None
) -> Number:
    """Return a number as a profile's file has it; fractions have four digits."""
    found: Number = {"value": _rounded(value), "unit": unit}
    if span is not None and span[0] < span[1]:
        found["range"] = [_rounded(span[0]), _rounded(span[1])]
    return {**found, "badge": badge, "source": source}


def _rounded(value: float) -> float:
    return int(value) if value == int(value) else float(f"{value:.4g}")


def _from(part: Part, field: str, value: float, unit: str, note: str = "") -> Number:
    """Return a number of a part, with the part's source and badge."""
    return _number(value, unit, f"{part.name}{note}: {part.source}", part.badge_of(field))


def _card_parts(
    found: Build, gpu: Gpu, processor: Processor
) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the description and the numbers of a machine with a GPU."""
    assert found.link is not None
    count = "" if found.cards == 1 else f"{found.cards} x "
    about = (
        f"{count}{gpu.name} {gpu.memory_gib:g} GB, {_host_name(found)}, {_memory_name(found)}, "
        f"{found.link.name}, {found.disk.name}"
    )
    host = _host(found, processor)
    reads = host["gemv_bandwidth"]["value"]
    return about, {"gpu": _card(found, gpu), "link": _link(found.link, reads), "host": host}


def _host_name(found: Build) -> str:
    return ("" if found.sockets == 1 else f"{found.sockets} x ") + found.host.name


def _memory_name(found: Build) -> str:
    return f"{found.channels} channels of {found.memory}-{found.rate}, {found.ram_gib:g} GB"


def _card(found: Build, gpu: Gpu) -> dict[str, Any]:
    cards = found.cards
    note = (
        "" if cards == 1 else f", {cards} cards; they compute one after another, so rates are one's"
    )
    return {
        "name": gpu.name if cards == 1 else f"{cards} x {gpu.name}",
        "memory": _from(gpu, "memory_gib", gpu.memory_gib * cards, "GiB", note),
        "reserved_memory": _number(cards, "GB", _CONTEXT),
        "bandwidth": _from(gpu, "bandwidth_gbs", gpu.bandwidth_gbs, "GB/s"),
        "large_read_efficiency": _large_reads(gpu, gpu.measured, gpu.bandwidth_gbs),
        "small_read_efficiency": _small_reads(),
        "tensor_bf16": _from(
            gpu, "fp16_tflops", gpu.fp16_tflops, "TFLOPS", ", dense fp16 with fp32 accumulation"
        ),
        "tensor_efficiency": _products(gpu, gpu.measured, gpu.fp16_tflops),
        "idle_power": _number(
            0.07 * gpu.power_w * cards, "W",
            "estimate: cards of the catalogue draw 3 to 12 % of their power when idle", "estimate",
            (0.03 * gpu.power_w * cards, 0.12 * gpu.power_w * cards),
        ),
        "full_power": _from(
            gpu, "power_w", gpu.power_w * (1 + 0.07 * (cards - 1)), "W",
            "" if cards == 1 else ", one card computes while the others wait",
        ),
    }  # fmt: skip


def _large_reads(part: Part, measured: MeasuredDevice | None, nominal: float) -> Number:
    """Return the share of the bandwidth that large reads reach."""
    if measured is None or measured.copy_gbs is None:
        source = "estimate: PyTorch copies on other cards reach 0.75 to 0.92 of nominal"
        return _number(0.85, "1", source, "estimate", (0.75, 0.92))
    source = f"{part.name}: a PyTorch copy reaches {measured.copy_gbs:g} of {nominal:g} GB/s"
    share = measured.copy_gbs / nominal
    return _number(share, "1", f"{source} ({measured.source})", "measured")


def _small_reads() -> Number:
    source = "estimate: short expert reads do not fill the memory pipes, 0.5-0.85"
    return _number(0.65, "1", source, "estimate", (0.5, 0.85))


def _products(part: Part, measured: MeasuredDevice | None, nominal: float) -> Number:
    """Return the share of the compute rate that products of prefill reach."""
    source = "estimate: prefill mix of matrix sizes, 0.4-0.8"
    scale = 1.0
    if measured is not None and measured.tflops is not None and measured.tflops < 0.8 * nominal:
        scale = measured.tflops / nominal / 0.8
        source += (
            f", scaled so that the highest is {part.name}'s largest product, "
            f"{measured.tflops:g} of {nominal:g} TFLOPS ({measured.source})"
        )
    return _number(0.6 * scale, "1", source, "estimate", (0.4 * scale, 0.8 * scale))


def _link(link: Link, host_gbs: float) -> dict[str, Any]:
    """Return the numbers of a link; copies are no faster than the host's memory."""

    def copies(field: str, way: str, value: float, span: _Range | None) -> Number:
        source = f"{link.name}, pinned copies {way}: {link.source}"
        if value <= host_gbs:
            return _number(value, "GB/s", source, link.badge_of(field), span)
        return _number(host_gbs, "GB/s", f"estimate: the host's memory is slower than {source}")

    pageable = min(link.h2d_gbs / 3, 9.0, host_gbs / 3)
    return {
        "name": link.name,
        "pinned_h2d": copies("h2d_gbs", "to the GPU", link.h2d_gbs, link.h2d_range),
        "pinned_d2h": copies("d2h_gbs", "from the GPU", link.d2h_gbs, link.d2h_range),
        "pageable_h2d": _number(
            pageable, "GB/s", "estimate: pageable copies reach a third to half of pinned ones, and "
            "5-12 GB/s at most", "estimate",
            (0.55 * pageable, min(1.5 * pageable, 12.0)),
        ),
        "in_engine_efficiency": _number(
            0.86, "1", "estimate: an RTX 5090 in Gen4 x16 moves 13.2 MB rows at 24.2 of 28.2 GB/s; "
            "SMoE's one copy an expert loses nothing", "estimate", (0.86, 1.0),
        ),
        "copy_fixed": _copy_fixed(),
        "pinned": True,
    }  # fmt: skip


def _copy_fixed() -> Number:
    source = "estimate: 8 KB copies take 2.4-3.3 us on the device"
    return _number(2.5, "us", source, "estimate", (2.4, 3.3))


# ------------------------------------------------------------------------------ the host


def _reads(found: Build, processor: Processor) -> Number:
    """Return the bandwidth of products with one row: nominal times a share of it."""
    own, sockets = processor.own, found.sockets
    usual = SERVER_SHARE if processor.server else DESKTOP_SHARE
    nominal = found.nominal_gbs / sockets
    if own is not None:
        assert own.nominal_gbs is not None
        share, low, high = (
            gbs / own.nominal_gbs for gbs in (own.middle, own.gbs[0], own.gbs[1])
        )  # fmt: skip
        reached = f"{share:.2f} of {own.nominal_gbs:g} GB/s as measured: {own.what} ({own.source})"
        if low == high:
            low, high = min(low, usual[1]), max(high, usual[2])
            reached += f"; range: {_SERVER_SOURCE if processor.server else _DESKTOP_SOURCE}"
    else:
        share, low, high = usual
        reached = f"{share:g}: {_SERVER_SOURCE if processor.server else _DESKTOP_SOURCE}"
    source = (
        f"{processor.name}, {found.channels / sockets:g} channels x 8 B x {found.rate} MT/s = "
        f"{nominal:.4g} GB/s nominal{'' if sockets == 1 else ' a socket'}, x {reached}"
    )
    as_measured = own is not None and math.isclose(own.nominal_gbs or 0, nominal, rel_tol=0.01)
    badge: PartBadge = "measured" if as_measured and sockets == 1 else "estimate"
    if sockets > 1:
        factor = TWO_SOCKETS ** math.log2(sockets)
        source += (
            f"; x {factor:.3g} for {sockets} sockets: 0.65 where pages lie anywhere, {sockets} "
            "where each socket reads its own (llama.cpp issue 11744)"
        )
        share, low, high = share * factor, low * SOCKETS_LOWEST, high * sockets
    return _number(nominal * share, "GB/s", source, badge, (nominal * low, nominal * high))


def _shared(found: Build, processor: Processor) -> Number:
    """Return the bandwidth that copies and products share: the most that machines of its kind read.

    Two sockets have it each.
    """
    _, low, high = SERVER_SHARE if processor.server else DESKTOP_SHARE
    source = f"estimate: {high:g} of {found.nominal_gbs:.4g} GB/s nominal, the most that is read"
    ends = (low * found.nominal_gbs, found.nominal_gbs)
    return _number(high * found.nominal_gbs, "GB/s", source, "estimate", ends)


def _peak(part: Cores, sockets: int = 1, server: bool = False) -> Number:
    """Return cores times operations per cycle times clock."""
    clock = part.base_ghz if server else (part.base_ghz + part.boost_ghz) / 2
    per_ghz = part.flops_per_cycle * sockets
    source = (
        f"estimate: {part.name}, {part.cores * sockets} cores, {per_ghz} FLOP a cycle in fp32 "
        f"({part.simd}) x {clock:.3g} GHz, {'its base clock' if server else 'between its clocks'}; "
        f"{part.source}"
    )
    span = (per_ghz * part.base_ghz, per_ghz * part.boost_ghz)
    return _number(per_ghz * clock, "GFLOPS", source, "estimate", span)


def _ram(found: Build) -> Number:
    if any(word.startswith("ram=") for word in found.named):
        return _number(found.ram_gib, "GiB", f"given: ram={found.ram_gib:g}", "datasheet")
    if isinstance(found.host, Pool):
        return _from(found.host, "memory_gib", found.ram_gib, "GiB", ", the most that is sold")
    each = SERVER_RAM_A_CHANNEL if found.host.channels > 4 else DESKTOP_RAM_A_CHANNEL
    return _number(found.ram_gib, "GiB", f"estimate: {each} GB on each memory channel")


def _host(found: Build, processor: Processor) -> dict[str, Any]:
    sockets, server = found.sockets, processor.server
    idle, full, span = (100, 300, (150, 500)) if server else (20, 150, (65, 253))
    where = "servers" if server else "desktops"
    return {
        **_any_host(processor, _host_name(found), _ram(found), _reads(found, processor),
                    _peak(processor, sockets, server), sockets),
        "shared_bandwidth": _shared(found, processor),
        "idle_power": _number(idle * sockets, "W", f"estimate: package idle of {where}"),
        "full_power": _number(
            full * sockets, "W", f"estimate: TDP of {where}", "estimate",
            (span[0] * sockets, span[1] * sockets),
        ),
    }  # fmt: skip


def _any_host(
    part: Cores, name: str, memory: Number, reads: Number, peak: Number, sockets: int = 1
) -> dict[str, Any]:
    """Return the numbers of a host, without its power."""
    return {
        "name": name,
        "cores": _from(part, "performance_cores", part.cores * sockets, "1"),
        "memory": memory,
        "gemv_bandwidth": reads,
        "peak_fp32": peak,
        "core_rate": _core_rate(part),
        "gemm_efficiency": _gemm(),
        "handoff": _number(
            20, "us", "DAOP Table I (A100 box), moving a hidden state takes 20 us; 10-50 us "
            "elsewhere", "estimate", (10, 50),
        ),
    }  # fmt: skip


def _core_rate(part: Cores) -> Number:
    """Return a core's weights a cycle, by its instructions, times the mean of its clocks."""
    wide = part.simd.startswith("AVX-512")
    value, low, high = AVX512_WEIGHTS if wide else AVX2_WEIGHTS
    clock = (part.base_ghz + part.boost_ghz) / 2
    source = (
        f"estimate: {value:g} quantised weights a cycle ({part.simd}) x {clock:.3g} GHz; "
        f"{_WEIGHTS_SOURCE}"
    )
    return _number(value * clock, "Gweights/s", source, "estimate", (low * clock, high * clock))


def _gemm() -> Number:
    return _number(
        0.75, "1", "estimate: share of peak that CPU libraries reach on expert sizes", "estimate"
    )


def _disk_numbers(disk: Disk) -> dict[str, Any]:
    def reads(field: str, value: float, span: _Range | None) -> Number:
        source = f"{disk.name}: {disk.source}"
        return _number(value, "GB/s", source, disk.badge_of(field), span)

    return {
        "name": f"generic {disk.name}",
        "queue1_bandwidth": reads("queue1_gbs", disk.queue1_gbs, disk.queue1_range),
        "max_bandwidth": reads("max_gbs", disk.max_gbs, disk.max_range),
        "access_latency": _number(
            50, "us", "estimate: 4 KB reads one at a time take 40-60 us", "estimate", (40, 60)
        ),
    }


# ------------------------------------------------------------------------------ one memory


def _inside(nominal: Number, share: float) -> dict[str, Any]:
    """Return the link of a machine with one memory: copies inside it."""
    source = f"a copy inside the memory that device and host share; {nominal['source']}"
    same = {**nominal, "source": source}
    return {
        "name": "copies inside one memory",
        "pinned_h2d": same,
        "pinned_d2h": same,
        "pageable_h2d": same,
        "in_engine_efficiency": _number(
            share / 2, "1", "estimate: a copy reads and writes each byte; twice as fast where "
            "pages change hands without a copy", "estimate", (share / 2, share),
        ),
        "copy_fixed": _copy_fixed(),
        "pinned": True,
    }  # fmt: skip


def _processor_parts(found: Build, processor: Processor) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the description and the numbers of a machine whose processor is the device."""
    about = f"{_host_name(found)} without a GPU, {_memory_name(found)}, {found.disk.name}"
    host = _host(found, processor)
    del host["idle_power"], host["full_power"]
    reads, peak, nominal = host["gemv_bandwidth"], host["peak_fp32"], found.nominal_gbs
    span = tuple(gbs / nominal for gbs in reads.get("range", (0.0, 0.0)))
    share = _number(
        reads["value"] / nominal, "1", reads["source"], reads["badge"], (span[0], span[1])
    )
    bandwidth = _number(
        nominal, "GB/s", f"{processor.name}, {found.channels} channels x 8 B x {found.rate} MT/s: "
        f"{processor.source}", processor.badge_of("channels"),
    )  # fmt: skip
    device = {
        "name": f"{_host_name(found)} {NO_GPU}",
        "memory": host["memory"],
        "reserved_memory": _number(
            min(4.0, found.ram_gib / 4), "GiB", "estimate: the operating system and buffers"
        ),
        "bandwidth": bandwidth,
        "large_read_efficiency": share,
        "small_read_efficiency": share,
        "tensor_bf16": peak,
        "tensor_efficiency": _gemm(),
    }
    return about, {"gpu": device, "link": _inside(bandwidth, share["value"]), "host": host}


def _pool_parts(found: Build, pool: Pool) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the description and the numbers of a machine whose GPU shares the host's memory."""
    about = f"{pool.name}, {found.ram_gib:g} GB for processor and GPU together, {found.disk.name}"
    memory = _ram(found)
    bandwidth = _from(pool, "bandwidth_gbs", pool.bandwidth_gbs, "GB/s")
    large = _large_reads(pool, pool.measured, pool.bandwidth_gbs)
    low, high = pool.fp16_tflops
    tensor = _from(pool, "fp16_tflops", (low + high) / 2, "TFLOPS", ", fp16 of its GPU")
    if low < high:
        tensor["range"] = [low, high]
    device = {
        "name": pool.name,
        "memory": memory,
        "reserved_memory": _number(
            found.ram_gib / 8, "GiB", "estimate: Strix Halo leaves 96 to 110 of 128 GB to its GPU; "
            "the rest is for the operating system and programs",
        ),
        "bandwidth": bandwidth,
        "large_read_efficiency": large,
        "small_read_efficiency": _small_reads(),
        "tensor_bf16": tensor,
        "tensor_efficiency": _products(pool, pool.measured, (low + high) / 2),
    }  # fmt: skip
    host = _any_host(pool, f"{pool.name}, its cores", memory, _pool_reads(pool), _peak(pool))
    return about, {"gpu": device, "link": _inside(bandwidth, large["value"]), "host": host}


def _pool_reads(pool: Pool) -> Number:
    """Return the bandwidth that the processor's cores of a machine with one memory reach."""
    if pool.host_gbs is not None:
        source = f"{pool.name}: {pool.host_source}, torch copy on its cores"
        return _number(pool.host_gbs, "GB/s", source, "measured")
    source = (
        f"estimate: {pool.name}, half of {pool.bandwidth_gbs:g} GB/s; the cores of M2 Ultra and M4 "
        "Max reach 0.39 and 0.62 of nominal"
    )
    low, value, high = (share * pool.bandwidth_gbs for share in (0.39, 0.5, 0.85))
    return _number(value, "GB/s", source, "estimate", (low, high))
