"""Parts of machines: GPUs, processors, machines with one memory, links and disks, by short names.

Each part has its numbers, their source, and a badge.  `Part.estimated` names the numbers of a part
that are less certain than its badge says.  Names are found without regard to case, spaces, dashes
and vendor, and in short forms that leave words of the series out.
"""

import difflib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, StrictBool, ValidationError, model_validator

from moebench.substrate.errors import ProfileError, UsageError
from moebench.substrate.files import first_wrong, read_yaml
from moebench.substrate.machines.quantity import Inert

PARTS = Path(__file__).parents[1] / "catalogue" / "parts"

#: The badges of parts: nothing here was calibrated.
PartBadge = Literal["measured", "datasheet", "estimate"]

#: Kinds of memory modules.
MemoryType = Literal["DDR3", "DDR4", "DDR5", "LPDDR5X", "MRDIMM"]

#: Slowest and fastest rate of memory modules that are sold, in MT/s.
RATES: Mapping[MemoryType, tuple[int, int]] = {
    "DDR3": (800, 2666), "DDR4": (1333, 5333), "DDR5": (2000, 10000), "LPDDR5X": (4800, 10700),
    "MRDIMM": (6400, 12800),
}  # fmt: skip

#: Vector units of a core, with the width of their data path.
Simd = Literal["NEON", "AVX2", "AVX-512 256-bit", "AVX-512 512-bit"]

#: Floating-point operations of a core per cycle in fp32; a multiply-add counts as two.
FLOPS_PER_CYCLE: Mapping[Simd, int] = {
    "NEON": 32, "AVX2": 32, "AVX-512 256-bit": 32, "AVX-512 512-bit": 64,
}  # fmt: skip

#: A processor with more memory channels than this is a server's.
DESKTOP_CHANNELS = 4

_Positive = Annotated[float, Field(gt=0, le=1e5)]
_Some = Annotated[int, Field(strict=True, ge=1, le=1024)]
_Few = Annotated[int, Field(strict=True, ge=0, le=1024)]
_Range = tuple[_Positive, _Positive]


def _ordered(*pairs: tuple[str, _Range | None]) -> None:
    for name, pair in pairs:
        if pair is not None and pair[0] > pair[1]:
            raise ValueError(f"{name}: allowed: [lowest, highest]")


class Part(Inert, ABC):
    """A part that can be bought, with the source of its numbers.

    Attributes:
        key: its short name.
        badge: the badge of all numbers except those in ``estimated``.
        estimated: the fields that nobody looked up, or that were derived from other numbers.
    """

    group: ClassVar[str]

    key: str = Field(min_length=1)
    name: str = Field(min_length=1)
    source: str = Field(min_length=1)
    badge: PartBadge
    estimated: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    note: str | None = None

    @model_validator(mode="after")
    def _known(self) -> "Part":
        wrong = [name for name in self.estimated if name not in type(self).model_fields]
        if wrong:
            raise ValueError(f"estimated: {wrong[0]} is not a field")
        return self

    def badge_of(self, field: str) -> PartBadge:
        """Return the badge of one field."""
        return "estimate" if field in self.estimated else self.badge

    @abstractmethod
    def summary(self) -> str:
        """Return the main numbers of the part as text."""


class Lanes(Inert):
    """A PCIe connection."""

    generation: Annotated[int, Field(strict=True, ge=1, le=6)]
    lanes: Literal[1, 2, 4, 8, 16]

    def text(self) -> str:
        """Return the usual name, such as ``PCIe 4.0 x16``."""
        return f"PCIe {self.generation}.0 x{self.lanes}"


class MeasuredDevice(Inert):
    """Rates that someone measured on a GPU, in GB/s and TFLOPS.

    Attributes:
        copy_gbs: a copy of a large tensor, reads and writes counted.
        tflops: a large product in fp16 or bf16.
    """

    copy_gbs: _Positive | None = None
    tflops: _Positive | None = None
    source: str = Field(min_length=1)


class MeasuredReads(Inert):
    """A bandwidth of a processor's memory that someone measured.

    Attributes:
        gbs: lowest and highest figure in GB/s.
        nominal_gbs: channels times rate while this processor was measured with STREAM or reads on
            one socket; None for any other figure.
    """

    gbs: _Range
    what: str = Field(min_length=1)
    source: str = Field(min_length=1)
    nominal_gbs: _Positive | None = None

    @model_validator(mode="after")
    def _possible(self) -> "MeasuredReads":
        _ordered(("gbs", self.gbs))
        if self.nominal_gbs is not None and self.gbs[1] > self.nominal_gbs:
            raise ValueError("gbs: allowed: at most nominal_gbs")
        return self

    @property
    def middle(self) -> float:
        """The mean of the two figures in GB/s."""
        return (self.gbs[0] + self.gbs[1]) / 2


class Gpu(Part):
    """A GPU of its own, with its own memory.

    Attributes:
        memory_gib: memory in GiB, which is what a vendor sells as GB.
        fp16_tflops: dense fp16 rate with fp32 accumulation.
        fp16_acc16_tflops: the same with fp16 accumulation.
        fp8_tflops, fp4_tflops: dense rates; None where there are none.
        bf16: whether bf16 has this rate too.
    """

    group = "gpus"

    memory_gib: _Positive
    bandwidth_gbs: _Positive
    fp16_tflops: _Positive
    fp16_acc16_tflops: _Positive
    fp8_tflops: _Positive | None = None
    fp4_tflops: _Positive | None = None
    bf16: StrictBool
    pcie: Lanes
    power_w: _Positive
    measured: MeasuredDevice | None = None

    def summary(self) -> str:
        """Return memory, bandwidth, compute and link as text."""
        return (
            f"{self.memory_gib:g} GB, {self.bandwidth_gbs:g} GB/s, {self.fp16_tflops:g} TFLOPS, "
            f"{self.pcie.text()}"
        )


class Cores(Part):
    """Cores of a processor.

    Attributes:
        performance_cores: all cores where there is one kind.
        efficiency_cores: smaller ones.
        efficiency_flops: fp32 operations per cycle of such a core.
        extensions: further instructions, such as VNNI, BF16 or AMX.
        base_ghz, boost_ghz: base clock, and highest clock of one core.
    """

    performance_cores: _Some
    efficiency_cores: _Few = 0
    efficiency_flops: Literal[16, 32, 64] | None = None
    simd: Simd
    extensions: tuple[str, ...] = ()
    base_ghz: Annotated[float, Field(ge=0.5, le=8)]
    boost_ghz: Annotated[float, Field(ge=0.5, le=8)]

    @model_validator(mode="after")
    def _cores(self) -> "Cores":
        if self.base_ghz > self.boost_ghz:
            raise ValueError("base_ghz: allowed: at most boost_ghz")
        if (self.efficiency_cores > 0) != (self.efficiency_flops is not None):
            raise ValueError("efficiency_flops: allowed: where there are efficiency_cores")
        return self

    @property
    def cores(self) -> int:
        """All cores of one socket."""
        return self.performance_cores + self.efficiency_cores

    @property
    def flops_per_cycle(self) -> int:
        """The fp32 operations per cycle of all cores of one socket."""
        small = self.efficiency_cores * (self.efficiency_flops or 0)
        return self.performance_cores * FLOPS_PER_CYCLE[self.simd] + small


class Processor(Cores):
    """A processor with its memory channels.

    Attributes:
        sockets: most sockets of a machine.
        memory: rate in MT/s of each kind of memory that it takes; the first is the default.
        channels: memory channels of one socket, of 64 bits.
        hbm_gib, hbm_gbs: memory on the package, where there is any; machines of parts leave it out.
    """

    group = "processors"

    sockets: _Some
    memory: dict[MemoryType, int]
    channels: Annotated[int, Field(strict=True, ge=1, le=16)]
    l3_mb: _Positive | None = None
    pcie: Lanes
    hbm_gib: _Positive | None = None
    hbm_gbs: _Positive | None = None
    measured: tuple[MeasuredReads, ...] = ()

    @model_validator(mode="after")
    def _rates(self) -> "Processor":
        if not self.memory:
            raise ValueError("memory: allowed: at least one kind")
        for kind, rate in self.memory.items():
            low, high = RATES[kind]
            if not low <= rate <= high:
                raise ValueError(f"memory: {kind}-{rate}; allowed: {low} to {high} MT/s")
        return self

    @property
    def server(self) -> bool:
        """Whether it has more channels than a desktop."""
        return self.channels > DESKTOP_CHANNELS

    @property
    def own(self) -> MeasuredReads | None:
        """The measured reads of this very processor, if there are any."""
        return next((one for one in self.measured if one.nominal_gbs is not None), None)

    def summary(self) -> str:
        """Return cores, memory channels and link as text."""
        small = f"+{self.efficiency_cores}" if self.efficiency_cores else ""
        kinds = " or ".join(f"{kind}-{rate}" for kind, rate in self.memory.items())
        return (
            f"{self.performance_cores}{small} cores, {self.simd}, {self.channels} x {kinds}, "
            f"{self.pcie.text()}"
        )


class Pool(Cores):
    """A machine whose processor and GPU share one memory.

    Attributes:
        memory_gib: smallest and largest memory that is sold.
        fp16_tflops: dense rate of the GPU, lowest and highest figure.
        host_gbs: bandwidth of the processor's cores in GB/s, where someone measured it.
        disk: key of its usual disk.
        power_w: lowest and highest power of the whole chip.
    """

    group = "pools"

    memory_gib: _Range
    bandwidth_gbs: _Positive
    fp16_tflops: _Range
    host_gbs: _Positive | None = None
    host_source: str | None = None
    disk: str
    power_w: _Range | None = None
    measured: MeasuredDevice | None = None

    @model_validator(mode="after")
    def _ranges(self) -> "Pool":
        _ordered(
            ("memory_gib", self.memory_gib), ("fp16_tflops", self.fp16_tflops),
            ("power_w", self.power_w),
        )  # fmt: skip
        if (self.host_gbs is None) != (self.host_source is None):
            raise ValueError("host_source: allowed: with host_gbs")
        return self

    def summary(self) -> str:
        """Return memory, bandwidth, compute and cores as text."""
        low, high = self.memory_gib
        sizes = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        small = f"+{self.efficiency_cores}" if self.efficiency_cores else ""
        return (
            f"{sizes} GB, {self.bandwidth_gbs:g} GB/s, "
            f"{sum(self.fp16_tflops) / 2:g} TFLOPS, {self.performance_cores}{small} cores"
        )


class Link(Part):
    """A PCIe link: rates of copies from page-locked memory in GB/s, with ranges if known."""

    group = "links"

    pcie: Lanes
    nominal_gbs: _Positive
    h2d_gbs: _Positive
    h2d_range: _Range | None = None
    d2h_gbs: _Positive
    d2h_range: _Range | None = None

    @model_validator(mode="after")
    def _possible(self) -> "Link":
        _ordered(("h2d_range", self.h2d_range), ("d2h_range", self.d2h_range))
        if max(self.h2d_gbs, self.d2h_gbs) > self.nominal_gbs:
            raise ValueError("h2d_gbs and d2h_gbs: allowed: at most nominal_gbs")
        return self

    def summary(self) -> str:
        """Return the nominal and the reached bandwidth as text."""
        return f"{self.nominal_gbs:g} GB/s nominal, {self.h2d_gbs:g} GB/s to the GPU"


class Disk(Part):
    """An SSD: bandwidth in GB/s of one large read at a time, and of several in flight."""

    group = "disks"

    queue1_gbs: _Positive
    queue1_range: _Range | None = None
    max_gbs: _Positive
    max_range: _Range | None = None

    @model_validator(mode="after")
    def _possible(self) -> "Disk":
        _ordered(("queue1_range", self.queue1_range), ("max_range", self.max_range))
        if self.queue1_gbs > self.max_gbs:
            raise ValueError("queue1_gbs: allowed: at most max_gbs")
        return self

    def summary(self) -> str:
        """Return both bandwidths as text."""
        return f"{self.queue1_gbs:g} GB/s one read at a time, {self.max_gbs:g} GB/s several"


#: The kinds of parts by the names of their files.
KINDS: Mapping[str, type[Part]] = {
    kind.group: kind for kind in (Gpu, Pool, Processor, Link, Disk)
}  # fmt: skip


# ------------------------------------------------------------------------------- reading


@lru_cache
def parts() -> dict[str, Part]:
    """Return every part of the catalogue by its key, in the order of `KINDS`.

    Raises ProfileError: a file misses or misstates a number.
    """
    found: dict[str, Part] = {}
    for name, kind in KINDS.items():
        path = PARTS / f"{name}.yaml"
        data = read_yaml(path, ProfileError)
        if not isinstance(data, Mapping) or not all(isinstance(v, Mapping) for v in data.values()):
            raise ProfileError(f"{path}: expected a mapping of parts by key")
        for key, said in data.items():
            if key in found:
                raise ProfileError(f"{path}: {key}: a part of another kind has this key")
            try:
                found[key] = kind.model_validate({"key": key, **said})
            except ValidationError as error:
                raise ProfileError(f"{path}: {key}: {first_wrong(error)}") from error
    return found


def parts_of(kind: str) -> list[Part]:
    """Return the parts of one kind: a key of `KINDS`."""
    return [part for part in parts().values() if part.group == kind]


# ------------------------------------------------------------------------------- looking up

#: Words that add nothing to a name.
_VENDORS = re.compile(
    r"nvidia|geforce|quadro|instinct|tesla|radeon|apple|intel|amd|\((?:r|tm)\)|[^a-z0-9]"
)
#: Words of a key that a short form may leave out.
_SERIES = frozenset(
    (
        *("rtx", "gtx", "rx", "arc", "pro", "ai", "ada", "blackwell", "sxm", "pcie"),
        *("workstation", "server", "ryzen", "threadripper", "epyc", "core", "ultra", "xeon"),
        *("gold", "platinum", "silver", "max", "hx", "i3", "i5", "i7", "i9", "e5", "e7"),
        *("w5", "w9", "3", "5", "7", "9"),
    )
)
_SIZE = re.compile(r"\d+gb")


def plain(name: str) -> str:
    """Return a name without case, vendor, spaces and signs; a notebook's part is ``mobile``."""
    return _VENDORS.sub("", name.lower().replace("laptop", "mobile"))


def _short(part: Part) -> Iterator[str]:
    """Yield every short form of a part's key, in plain letters and digits."""
    sized = isinstance(part, Gpu) and "modified" not in part.name
    words = part.key.split("-")
    optional = [
        at
        for at, word in enumerate(words)
        if (word in _SERIES and at < len(words) - 1)
        or (isinstance(part, Gpu) and (word in _SERIES or (sized and _SIZE.fullmatch(word))))
    ]
    for count in range(1, len(optional) + 1):
        for left_out in combinations(optional, count):
            name = plain("-".join(w for at, w in enumerate(words) if at not in left_out))
            if len(name) >= (4 if name.isdigit() else 2) and re.search(r"\d", name):
                yield name


@lru_cache
def _names() -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the keys by their full plain names, and by their short forms."""
    full: dict[str, str] = {}
    short: dict[str, list[str]] = {}
    for key, part in parts().items():
        for name in (key, *part.aliases):
            full[plain(name)] = key
    for key, part in parts().items():
        for name in dict.fromkeys(_short(part)):
            short.setdefault(name, []).append(key)
    return full, short


def matches(name: str) -> list[str]:
    """Return the keys of the parts that a name may mean: one, several, or none."""
    full, short = _names()
    if re.search(r"[^\w\s.()-]", name, re.ASCII):
        return []
    asked = plain(name)
    return [full[asked]] if asked in full else short.get(asked, [])


def nearest(name: str, kinds: Iterable[str] = tuple(KINDS), cutoff: float = 0.5) -> list[str]:
    """Return up to three keys whose names resemble a name by at least ``cutoff``, of 1."""
    wanted = [key for key, part in parts().items() if part.group in set(kinds)]
    by_name = {plain(key): key for key in wanted}
    close = difflib.get_close_matches(plain(name), [*by_name], n=3, cutoff=cutoff)
    return [by_name[one] for one in close]


def find(name: str) -> Part:
    """Return the part that a name means.

    Raises UsageError: no part or several parts have this name; the message has the nearest ones.
    """
    found = matches(name)
    if len(found) == 1:
        return parts()[found[0]]
    if found:
        raise UsageError(f"part {name!r} may be {' or '.join(found)}; give one of these")
    close = nearest(name)
    offer = f"nearest: {', '.join(close)}; " if close else ""
    raise UsageError(f"unknown part {name!r}; {offer}all: moebench machines list --parts")


def memory_of(text: str) -> tuple[MemoryType, int] | None:
    """Return kind and rate in MT/s of memory modules such as ``ddr5-4800``; None for other texts.

    Raises UsageError: no modules have this rate.
    """
    said = re.fullmatch(
        r"(ddr3|ddr4|ddr5|lpddr5x|mrdimm)(\d+)", re.sub(r"[\s_-]", "", text.lower())
    )
    if said is None:
        return None
    kind = next(one for one in get_args(MemoryType) if one.lower() == said[1])
    rate, (low, high) = int(said[2]), RATES[kind]
    if not low <= rate <= high:
        raise UsageError(
            f"memory {text!r}: {rate} MT/s is no rate of {kind}; allowed: {low} to {high}"
        )
    return kind, rate
