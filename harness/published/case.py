"""What a published row says, as the inputs of a simulation: machine, model, placement, lengths.

A row leaves much unsaid.  What is assumed for it widens the prediction's interval and is named in
its remarks; the rules are the same for every row, machine and author.
"""

import math
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from moebench.harness.published.engines import Engine, engine_named, engine_of
from moebench.harness.published.rows import Row
from moebench.results.published_errors import SERVER_CORES
from moebench.substrate.errors import MoeBenchError, UsageError
from moebench.substrate.machines import compose
from moebench.substrate.machines.parts import Gpu, Pool, Processor, matches, parts
from moebench.substrate.machines.profile import HardwareProfile
from moebench.substrate.models.bits import Bits, bits_of, format_names
from moebench.substrate.models.catalogue import find_shape
from moebench.substrate.models.shape import ModelShape

#: Bits per weight where a row names no format: a 4-bit mix.
USUAL = Bits(4.84, 5.2)

#: Share of a card's memory that llama.cpp's own placement fills, and bytes of its buffers.
FILLED, BUFFERS = 0.94, 1.2e9

#: Standard deviations of the logarithm of a rate for what a row does not say.
UNSAID = {
    "quantisation": 0.25, "bits": 0.05, "placement": 0.30, "processor itself": 0.20,
    "processor of a desktop": 0.35, "processor of a server": 0.60, "rate of the memory": 0.15,
    "memory channels": 0.10, "threads": 0.05, "several sockets": 0.25, "prompt": 0.5,
}  # fmt: skip

#: Repetitions of one measurement differ by this share.
NOISE = 0.10

#: Processors that stand for one that the row does not name, and the same with older memory.
DESKTOP, SERVER = "ryzen-7-7700", "epyc-9354"
WITH_DDR4 = {DESKTOP: compose.COMMON_DDR4_DESKTOP, SERVER: "epyc-7763"}

#: What a core's second thread adds to its rate: 8, 16 and 24 threads of an EPYC with 24 virtual
#: processors read 45.6, 70 and 94.5 GB/s.
SECOND_THREAD = 0.3

#: Processors that stand for another one of their family: as many memory channels at that rate.
FAMILIES = (
    (r"epyc.*\b9\d\d5", "epyc-9355"),
    (r"epyc.*\b9\d\d|genoa|zen ?4 host", "epyc-9354"),
    (r"epyc.*\b7", "epyc-7763"),
    (r"e5-\d+\w* ?v3", "xeon-e5-2690-v3"),
    (r"e5-\d+", "xeon-e5-2650-v4"),
    (r"e7-\d+", "xeon-e7-8890-v3"),
    (r"xeon.*69\d\dp|granite", "xeon-6980p"),
    (r"xeon.*\b[3-9]5\d\d|emerald", "xeon-platinum-8592"),
    (r"xeon.*\b[3-9]4\d\d|sapphire", "xeon-gold-6430"),
    (r"xeon.*\b[2-9][23]\d\d|ice ?lake|cascade", "xeon-gold-6252"),
    (r"xeon.*\b[2-9]1\d\d|skylake|p-81", "xeon-gold-6138"),
    (r"xeon w", "xeon-w5-3425"),
    (r"threadripper pro.*[79]\d\d5", "threadripper-pro-7965wx"),
    (r"threadripper pro", "threadripper-pro-5975wx"),
    (r"threadripper", "threadripper-7980x"),
    (r"ryzen.*\b[789]\d{3}", "ryzen-7-7700"),
    (r"ryzen", "ryzen-7-5800x"),
    (r"i[3579]-1[234]\d{3}|core ultra", "core-i5-12600k"),
    (r"i[3579]-\d{4,5}", "core-i7-8700"),
)

_SERVER = re.compile(r"epyc|xeon|threadripper pro|server|socket|vcpu", re.IGNORECASE)
_PINNED = re.compile(r"no-?mmap|mmap off|(?<!un)(registered|pinned)", re.IGNORECASE)
#: Devices that are not NVIDIA's.
_OTHER = re.compile(r"radeon|\brx\b|instinct|\bmi\d|apple|\barc\b", re.IGNORECASE)
_ENGINES_OWN = re.compile(r"\bmtp\b|speculat|draft", re.IGNORECASE)


class Unpredictable(MoeBenchError):
    """A row that cannot be predicted; the message says why, as one line."""


class Lengths(NamedTuple):
    """Tokens of a row.

    Attributes:
        context: cached tokens while it decodes.
        prompt: tokens that are prefilled.
        cached: tokens before them.
        kept: tokens that the KV cache has room for; 0 if a row does not say.
    """

    context: int
    prompt: int
    cached: int
    kept: int = 0


@dataclass(slots=True, kw_only=True)
class Case:
    """The inputs of a row's simulation.

    Attributes:
        batch: texts that are decoded at the same time.
        hit_rate: of the device's experts, where the row says it.
        first: the first layer whose routed experts are on the device.
        whole: layers before it whose attention and dense parts are on the host, too.
        hot: experts of each host layer that the device holds, as a share.
        threads: of the host, as cores whose rate they reach.
        wide: whether its cores have AVX-512.
        tiles: whether its products with many rows use AMX.
        repacked: whether llama.cpp interleaves rows of the experts' format for these products.
        products: the constant of the device's share of its peak.
        reads: the constant of its bandwidth.
        bound: whether each socket reads weights in its own memory.
        virtual: whether it is a virtual machine.
        format: the constant of its rate with the experts' format; "" is 1.
        cache_bytes: of one value of the KV cache.
        on_host: the whole model is on the host, which is the profile's device, too.
        measured: what was measured on this very machine, where no constant counts: "reads" of the
            host's memory, "cores" and "link".
        rate: of its products in the experts' format, over plain 4-bit blocks, where measured.
        unsaid: standard deviations of what the row does not say.
    """

    engine: Engine
    shape: ModelShape
    bits: Bits
    profile: HardwareProfile
    batch: int = 1
    hit_rate: float | None = None
    first: int
    whole: bool
    hot: float
    threads: float
    wide: bool
    tiles: bool
    repacked: bool
    products: str
    reads: str
    sockets: int
    bound: bool
    virtual: bool
    format: str
    cache_bytes: float
    micro_batch: int
    lengths: Lengths
    pinned: bool
    on_host: bool
    measured: frozenset[str] = frozenset()
    rate: float | None = None
    unsaid: dict[str, float] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def assume(self, what: str, said: str) -> None:
        """Note something that the row does not say, and the value that stands for it."""
        self.unsaid[what] = UNSAID[what]
        self.remarks.append(f"{what} not said: {said}")


def case_of(row: Row) -> Case:
    """Return the inputs of a row's simulation.

    Raises Unpredictable: an engine, model or card that the catalogue lacks, or a way of running
        that is not simulated.
    """
    text = f"{row.other_flags} {row.notes}"
    try:
        shape = find_shape(row.model)
    except UsageError as error:
        raise Unpredictable(f"model {row.model!r} is not in the catalogue") from error
    engine = engine_of(row, " ".join((text, row.group, row.quant, row.id)), shape)
    if engine is None:
        raise Unpredictable(f"no rules of the engine {row.system!r}")
    if _ENGINES_OWN.search(row.other_flags) and not re.search(r"no (mtp|draft)", text, re.I):
        raise Unpredictable("speculative decoding: how many tokens are accepted is not known")
    if re.search(r"oversub|shared memory|spill", text, re.IGNORECASE):
        raise Unpredictable("the card's memory is exceeded: the driver's paging is not simulated")
    unsaid: list[tuple[str, str]] = []
    host = machine_of(row, engine, unsaid)
    bits = _bits(row, unsaid)
    shape = _experts_used(shape, row, engine)
    lengths = _lengths(row, unsaid)
    first, whole = _placement(row, shape, bits, host.profile, host.alone, lengths, unsaid)
    hot = _hot(row, engine, shape, bits, host.profile, first, lengths)
    case = Case(
        engine=engine, shape=shape, bits=bits, profile=host.profile, batch=row.batch or 1,
        hit_rate=row.hit_rate, first=first, whole=whole, hot=hot, threads=host.threads,
        wide=host.wide,
        tiles=bool(re.search(r"\bamx\b", f"{text} {row.group} {row.id}", re.I)),
        repacked=engine.products == "llama.cpp" and interleaved(row.quant, row.date),
        products=products_constant(host.profile),
        reads=host.reads, sockets=host.sockets, bound=_bound(row), on_host=host.alone,
        virtual=not host.alone and bool(re.search(r"vcpu|\bvm\b|virtual", row.cpu, re.I)),
        format=format_constant(row.quant), cache_bytes=_cache_bytes(text), lengths=lengths,
        micro_batch=row.ubatch or (lengths.prompt if engine.name == "ktransformers" else 512),
        pinned=engine.pinned or bool(_PINNED.search(text)),
    )  # fmt: skip
    for what, said in unsaid:
        if engine.misses == "host" or not re.search("processor|memory|threads|sockets", what):
            case.assume(what, said)
    return case


# ------------------------------------------------------------------------------ the machine


class Host(NamedTuple):
    """A row's machine, and what of it no profile says."""

    profile: HardwareProfile
    threads: float
    alone: bool
    wide: bool
    reads: str
    sockets: int = 1


def machine_of(row: Row, engine: Engine, unsaid: list[tuple[str, str]]) -> Host:
    """Return the composed machine; ``alone`` says that there is no card."""
    pool = next((p for text in (row.gpu, row.cpu) if isinstance(p := _part(text), Pool)), None)
    if pool is not None:
        low, high = pool.memory_gib
        ram = min(max(row.ram_gb or high, low), high)
        profile = _profile(f"{pool.key}+ram={ram:g}", engine)
        return Host(profile, profile.host.cores.count, False, _wide(pool.simd), "pool reads")
    alone = row.n_gpu == 0 or bool(re.search(r"cpu only|, cpu$", row.other_flags, re.I))
    words = ["cpu-only"]
    if not alone:
        card = _part(row.gpu)
        if not isinstance(card, Gpu):
            raise Unpredictable(f"card {row.gpu!r} is not among the parts")
        words = [card.key + (f"*{row.n_gpu}" if (row.n_gpu or 1) > 1 else "")]
    processor = _processor(row, unsaid)
    sockets = _sockets(row, processor)
    if sockets > 1:
        unsaid.append(("several sockets", f"memory of {sockets} sockets as nodes that are bound"))
    words.append(processor.key + (f"*{sockets}" if sockets > 1 else ""))
    words += _memory(row, processor, sockets, unsaid)
    if row.ram_gb:
        words.append(f"ram={min(max(row.ram_gb, compose.LEAST_RAM), compose.MOST_RAM):g}")
    if not alone:
        assert isinstance(card, Gpu)
        words += _link(row, card, processor)
    composed = _profile("+".join(words), engine)
    profile = _measured_bandwidth(row, composed)
    reads = "server reads" if processor.server else "desktop reads"
    if profile is not composed:
        reads = "measured reads"
    if row.h2d_gb_s:
        profile = _link_rate(profile, row.h2d_gb_s)
    if row.threads is None:
        unsaid.append(("threads", "one for each core"))
    said_cores = re.search(r"(\d+) ?c\b|(\d+) vCPU", row.cpu)
    cores = profile.host.cores.count
    if said_cores is not None:
        cores = sockets * int(said_cores[1] or said_cores[2])
    if "vCPU" in row.cpu:
        cores = max(1, cores // 2)  # a virtual processor is a thread of a core
    threads = threads_reached(row.threads or cores, cores)
    return Host(profile, threads, alone, _wide(processor.simd), reads, sockets)


def threads_reached(asked: int, cores: int) -> float:
    """Return how many cores' rate some threads reach; a core's second thread adds a part."""
    return min(asked, cores) + SECOND_THREAD * min(cores, max(0, asked - cores))


def _wide(simd: str) -> bool:
    return simd.startswith("AVX-512")


def _profile(text: str, engine: Engine) -> HardwareProfile:
    try:
        mapping = compose.composed(text)
    except UsageError as error:
        raise Unpredictable(str(error)) from error
    return HardwareProfile.from_mapping(mapping, text, engine.software)


def _part(text: str) -> object | None:
    """Return the part whose name stands in a row's field: the longest that is found there."""
    words = re.sub(r"\(.*?\)|,.*", " ", text).replace("/", " ").split()
    for size in range(len(words), 0, -1):
        for at in range(len(words) - size + 1):
            found = matches(" ".join(words[at : at + size]))
            if len(found) == 1:
                return parts()[found[0]]
            if found and size > 1:
                memory = re.search(r"(\d+) ?GB", text)
                named = [key for key in found if memory and memory[1] in key]
                return parts()[(named or sorted(found))[0]]
    inside = re.findall(r"\(([^)]*)\)", text)
    return _part(inside[0]) if inside and "(" not in inside[0] else None


def _processor(row: Row, unsaid: list[tuple[str, str]]) -> Processor:
    text = re.sub(r"^\s*\dx\s+|^\s*dual\s+", "", row.cpu, flags=re.IGNORECASE)
    found = _part(re.sub(r"\d+ ?c\b|\d+ vCPU", "", text))
    if isinstance(found, Processor):
        return found
    family = next((key for said, key in FAMILIES if re.search(said, row.cpu.lower())), None)
    if family is not None:
        relative = parts()[family]
        assert isinstance(relative, Processor)
        unsaid.append(("processor itself", f"{relative.name} stands for {row.cpu}"))
        return relative
    cores = re.search(r"(\d+)[ -]?c(?:ores?)?\b", row.cpu)
    many = cores is not None and int(cores[1]) >= SERVER_CORES
    server = bool(_SERVER.search(row.cpu)) or (row.sockets or 1) > 1 or (row.n_gpu or 1) > 2 or many
    key = SERVER if server else DESKTOP
    key = WITH_DDR4[key] if "DDR4" in row.ram_type.upper() else key
    kind = "server" if server else "desktop"
    unsaid.append((f"processor of a {kind}", f"{row.cpu or 'none'}; {parts()[key].name} stands in"))
    stand_in = parts()[key]
    assert isinstance(stand_in, Processor)
    return stand_in


def _sockets(row: Row, processor: Processor) -> int:
    said = re.match(r"\s*(\d)x", row.cpu)
    dual = 2 if re.match(r"\s*dual", row.cpu, re.IGNORECASE) else 1
    sockets = row.sockets or (int(said[1]) if said else dual)
    return max(1, min(sockets, processor.sockets))


def _memory(
    row: Row, processor: Processor, sockets: int, unsaid: list[tuple[str, str]]
) -> list[str]:
    """Return the word of the memory's rate and modules, if it is known and fits."""
    said = re.search(r"(DDR[45])-(\d{4})", row.ram_type.upper())
    kind = next((k for k in processor.memory if k in row.ram_type.upper()), None)
    if said is None or said[1] not in processor.memory:
        if row.ram_gb_s is None:
            unsaid.append(("rate of the memory", "the processor's"))
        if kind is None:
            return []
        said_rate = processor.memory[kind]
    else:
        kind, said_rate = said[1], int(said[2])
    number = re.search(r"\d+", row.ram_channels)
    if number is None or "bit" in row.ram_channels:
        if row.ram_gb_s is None:
            unsaid.append(("memory channels", "all of the processor's"))
        return [f"{kind}-{said_rate}".lower()]
    channels = int(number[0])
    total = re.search(r" total$| over \d+ sockets$", row.ram_channels) is not None
    if sockets > 1 and not total and ("per" in row.ram_channels or channels <= processor.channels):
        channels *= sockets
    channels = min(channels, processor.channels * sockets)
    return [f"{kind}-{said_rate}*{channels}".lower()]


def _link(row: Row, card: Gpu, processor: Processor) -> list[str]:
    """Return the word of the link that a row names, as far as card and processor have it."""
    if row.pcie_gen is None or row.pcie_lanes is None:
        return []
    generation = min(row.pcie_gen, card.pcie.generation, processor.pcie.generation)
    word = f"pcie{generation}x{min(row.pcie_lanes, card.pcie.lanes, processor.pcie.lanes)}"
    return [word] if word in parts() else []


def _measured_bandwidth(row: Row, profile: HardwareProfile) -> HardwareProfile:
    """Put a bandwidth that the author measured in place of the composed one."""
    if not row.ram_gb_s or re.search(r"theoretical|nominal", row.notes, re.IGNORECASE):
        return profile
    nominal = re.search(r"(\d+) channels? of DDR\d-(\d+)", profile.description)
    if nominal and row.ram_gb_s > 0.95 * int(nominal[1]) * int(nominal[2]) * 8e-3:
        return profile  # it is the nominal one
    number = profile.host.gemv_bandwidth
    changed = number.model_copy(update={
        "value": 0.9 * row.ram_gb_s, "range": (0.75 * row.ram_gb_s, row.ram_gb_s), "unit": "GB/s",
        "source": "nine tenths of what the row's author measured",
    })  # fmt: skip
    host = profile.host.model_copy(update={"gemv_bandwidth": changed})
    return profile.model_copy(update={"host": host})


def _bound(row: Row) -> bool:
    """Return whether each socket reads weights in its own memory: copies, or NUMA placement."""
    text = row.other_flags + row.notes
    return bool(re.search(r"numa(?!ctl)", text, re.IGNORECASE)) or "dual socket" in text


def _link_rate(profile: HardwareProfile, gb_s: float) -> HardwareProfile:
    changed = profile.link.pinned_h2d.model_copy(update={
        "value": gb_s, "range": (0.95 * gb_s, 1.05 * gb_s), "unit": "GB/s",
        "source": "the row's author",
    })  # fmt: skip
    one = profile.link.in_engine_efficiency.model_copy(update={"value": 1.0, "range": None})
    link = profile.link.model_copy(update={"pinned_h2d": changed, "in_engine_efficiency": one})
    return profile.model_copy(update={"link": link})


# ------------------------------------------------------------------------------ the model


def _bits(row: Row, unsaid: list[tuple[str, str]]) -> Bits:
    """Return the bits of a row's format: as stated for its experts, else by the format's name."""
    found = None
    text = row.quant.lower().replace("-", "_")
    for name in sorted(format_names(), key=len, reverse=True):
        if re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![0-9a-z])", text):
            found = bits_of(name)
            break
    if found is None:
        numbered = re.search(r"q([2-8])", text)
        if numbered is not None:
            name = {"8": "q8_0", "6": "q6_k"}.get(numbered[1], f"q{numbered[1]}_k")
            found = bits_of(name)
    overall = re.search(r"([\d.]+) ?bpw", row.quant)
    if found is None and overall is not None:
        found = Bits(float(overall[1]), float(overall[1]))
    if row.bits_per_weight is not None:
        others = found.others if found else 8.5
        if re.match(
            r"b?f16\b", text.strip()
        ):  # the file's name says how its other weights are kept
            others = 16.0
        return Bits(float(row.bits_per_weight), others)
    unsaid.append(("bits" if found else "quantisation", f"{(found or USUAL).routed:.3g} a weight"))
    return found or USUAL


def products_constant(profile: HardwareProfile) -> str:
    """Return the constant of the share of its peak that a device's products reach."""
    return "other products" if _OTHER.search(profile.gpu.name) else "device products"


def format_constant(quant: str) -> str:
    """Return the constant of a format's products on the host, over those of plain 4-bit blocks."""
    text = quant.lower()
    if re.search(r"iq[1-3]", text):
        return "codebook formats"
    if re.search(r"mxfp4|nvfp4", text):
        return "fp4 formats"
    return "few bits" if re.search(r"\bq[23]_k|-q[23]_k", text) else ""


def interleaved(quant: str, date: str) -> bool:
    """Return whether llama.cpp repacks experts of a format for the host's products of many rows."""
    text = quant.lower().replace("-", "_")
    return "q4_0" in text or "iq4_nl" in text or ("q4_k" in text and date >= "2025-04")


def _cache_bytes(text: str) -> float:
    """Return the bytes of a value of the KV cache that a row's flags name, in the mean."""
    named = r"(q8_0|q4_0|fp8)"
    low = text.lower()
    found = re.search(rf"kv {named}|{named} kv", low)
    if found is not None:
        return {"q8_0": 34 / 32, "q4_0": 18 / 32, "fp8": 1.0}[found[1] or found[2]]
    mixed = re.search(r"\bk q8_0, v (fp16|f16)", low)
    return (34 / 32 + 2) / 2 if mixed else 2.0


def _experts_used(shape: ModelShape, row: Row, engine: Engine) -> ModelShape:
    """Return the shape with the number of experts that a row's run used."""
    fewer = re.search(
        r"(\d+) of \d+ experts|\bser (\d+)|(?<![=\d])\b(\d) experts\b", row.other_flags
    )
    if fewer is None:
        return shape
    used = int(fewer[1] or fewer[2] or fewer[3])
    return shape.model_copy(update={"top_k": used}) if 0 < used <= shape.num_experts else shape


#: Bytes of a matrix below which llama.cpp's caches leave a layer to the host.
LEAST_CACHED = 2**20

#: Bytes on each card that llama.cpp's caches leave free.
CACHE_MARGIN = 3 * 2**30


def _hot(
    row: Row, engine: Engine, shape: ModelShape, bits: Bits, profile: HardwareProfile,
    first: int, lengths: Lengths,
) -> float:  # fmt: skip
    """Return the share of each host layer's experts that the device holds beside the host's."""
    text = row.cached_experts_or_slots.lower()
    on_host = sum(layer < first for layer in shape.moe_layers) * shape.num_experts
    each = shape.expert_bytes(bits.routed)
    if not on_host or text == "0" or (engine.caches and each / 3 < LEAST_CACHED):
        return 0.0
    of = re.search(r"(\d+) of (\d+)", text)
    alone = re.search(r"(\d+) (?:gpu )?(?:experts|slots)", text)
    size = re.search(r"([\d.]+) (gib|mib)( per gpu)?", text)
    share = 0.0
    if of:
        share = int(of[1]) / int(of[2])
    elif alone:
        share = int(alone[1]) / shape.num_experts
    elif text == "auto" or "free vram" in text:
        share = (_free(shape, bits, profile, lengths) - CACHE_MARGIN * (row.n_gpu or 1)) / (
            on_host * each
        )
    elif size:
        unit = 2**30 if size[2] == "gib" else 2**20
        cards = (row.n_gpu or 1) if size[3] else 1
        share = float(size[1]) * unit * cards / (on_host * each)
    return min(1.0, max(0.0, share))


def _free(shape: ModelShape, bits: Bits, profile: HardwareProfile, lengths: Lengths) -> float:
    """Return the device's bytes beside non-expert weights, KV cache and buffers."""
    free = profile.gpu.memory.bytes * FILLED - BUFFERS
    kept = max(8192, lengths.kept or lengths.context)
    return free - shape.common_bytes(bits.others) - shape.kv_bytes(kept)


# ------------------------------------------------------------------------------ lengths, places


def _lengths(row: Row, unsaid: list[tuple[str, str]]) -> Lengths:
    """Return a row's tokens; a prompt of N_KV cached tokens is llama-sweep-bench's convention."""
    flags, said = row.other_flags.lower(), row.prompt_tokens
    named = re.search(r"prompt class (\w+)", flags)
    deep = re.search(r"depth (\d+)k", flags)
    classes = {"short": 100, "medium": 1000, "long": 4000}
    context = int(said) if said is not None else classes.get(named[1] if named else "", 512)
    if said is None and not named:
        unsaid.append(("prompt", "512 tokens"))
    if deep:
        context = 1024 * int(deep[1])
    window = re.search(r"streamingllm w=(\d+)", flags)
    if window:
        context = min(context, int(window[1]))
    new = int(row.new_tokens or 128)
    room = re.search(r"\b(\d+)k ctx|\bctx (\d+)k?\b|--fit (\d+)k", flags)
    kept = 0
    if room is not None:
        number = int(next(filter(None, room.groups())))
        kept = 1024 * number if number < 1024 else number
    if said == 0 and not row.sweeps:
        return Lengths(new // 2, int(row.ubatch or 512), 0, kept)  # a prompt has some tokens
    bench = re.search(r"-p (\d+)", flags)
    if bench is not None and int(bench[1]) > 0:  # llama-bench at a depth
        return Lengths(context + new // 2, int(bench[1]), context, kept)
    if row.sweeps:
        chunk = int(row.ubatch or 512)
        return Lengths(context + new // 2, chunk, context, kept)
    return Lengths(context + new // 2, max(1, context), 0, kept)


def _placement(
    row: Row, shape: ModelShape, bits: Bits, profile: HardwareProfile, on_host: bool,
    lengths: Lengths, unsaid: list[tuple[str, str]],
) -> tuple[int, bool]:  # fmt: skip
    """Return the first layer with experts on the device, and whether whole layers are before it."""
    layers, moe = shape.num_layers, shape.moe_layers
    if profile.pool and not on_host:
        return 0, False
    if on_host:
        return layers, True
    flags, said = row.other_flags.lower(), row.n_cpu_moe
    whole = re.search(r"-ngl (\d+) ?(?:whole|\()|(\d+) (?:whole )?layers on gpu", flags)
    if whole is not None:
        return layers - min(layers, int(whole[1] or whole[2])), True
    if said == "all" or (said is None and engine_holds_all(row)):
        return layers, False
    if isinstance(said, int):
        number = said
        leading = moe[0] if number < len(moe) and re.search(r"n-?cpu-?moe|ncmoe", flags) else 0
        here = min(len(moe), max(0, number - leading))
        return (moe[here] if here < len(moe) else layers), False
    here = _fitting(shape, bits, profile, lengths)
    unsaid.append(("placement", f"experts of {here} of {len(moe)} layers on the host"))
    return (moe[here] if here < len(moe) else layers), False


def engine_holds_all(row: Row) -> bool:
    """Return whether an engine keeps all routed experts in host memory unless a row says so."""
    found = engine_named(row.system)
    text = (row.other_flags + row.notes).lower()
    return found is not None and (found.name != "llama.cpp" or "experts on cpu" in text)


def _fitting(shape: ModelShape, bits: Bits, profile: HardwareProfile, lengths: Lengths) -> int:
    """Return how many layers' experts stay on the host where the device is filled with others."""
    layer = shape.num_experts * shape.expert_bytes(bits.routed)
    here = max(0, math.floor(_free(shape, bits, profile, lengths) / layer))
    return len(shape.moe_layers) - min(len(shape.moe_layers), here)
