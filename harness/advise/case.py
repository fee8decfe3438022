"""The simulation of a configuration: the same case as of a published row that says as much."""

import re
from datetime import date

from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.memory import KV_BYTES, bits_for
from moebench.harness.advise.question import Hardware, Question
from moebench.harness.advise.rules import Rules
from moebench.harness.published.case import (
    LEAST_CACHED,
    Case,
    Host,
    Lengths,
    format_constant,
    interleaved,
    machine_of,
    products_constant,
    threads_reached,
)
from moebench.harness.published.engines import BY_EXPERT, Engine
from moebench.harness.published.rows import Row
from moebench.results.published_errors import SERVER_CORES
from moebench.substrate.machines import compose
from moebench.substrate.machines.parts import Cores, Pool, matches, parts
from moebench.substrate.machines.profile import HardwareProfile, load_profile

#: Where products with many rows use AMX: engines that have kernels of it.
TILES = ("ktransformers", "kt-kernel")

#: What a user's machine leaves open counts for an engine that computes misses on the host alone.
_OF_HOST = re.compile("processor|memory|threads|sockets")


def case_for(question: Question, rules: Rules, config: Configuration) -> Case:
    """Return the inputs of a configuration's simulation.

    Raises Unpredictable: a machine that is not simulated.
    """
    shape, lengths, hardware = question.shape, question.lengths, question.hardware
    bits, engine = bits_for(question, rules), engine_for(question, rules, config)
    unsaid: list[tuple[str, str]] = []
    host = host_of(question, engine, unsaid)
    if config.experts_used:
        shape = shape.model_copy(update={"top_k": min(config.experts_used, shape.num_experts)})
    on_host = min(config.host_layers or 0, len(shape.moe_layers))
    first = shape.moe_layers[on_host] if on_host < len(shape.moe_layers) else shape.num_layers
    whole = config.whole_layers is not None and config.whole_layers < shape.num_layers
    if whole:
        first = shape.num_layers - (config.whole_layers or 0)
    if host.alone:
        first, whole = shape.num_layers, True
    if host.profile.pool and not host.alone:
        first, whole = 0, False
    each = shape.expert_bytes(bits.routed)
    idle = engine.caches and engine.misses == "host" and each / 3 < LEAST_CACHED
    cores = _cores(hardware, host)
    case = Case(
        engine=engine, shape=shape, bits=bits, profile=host.profile, batch=question.batch,
        first=first, whole=whole,
        hot=0.0 if idle or not on_host else (config.resident or 0) / shape.num_experts,
        threads=threads_reached(config.threads or host.profile.host.cores.count, cores),
        wide=host.wide, tiles=config.engine in TILES and _has_tiles(hardware.cpu),
        repacked=engine.products == "llama.cpp" and interleaved(question.quant, _today()),
        products=products_constant(host.profile),
        reads=host.reads, sockets=host.sockets, bound=bool(config.bound),
        virtual=hardware.virtual and not host.alone, measured=_measured(host),
        rate=_measured_rate(hardware, question.quant), format=format_constant(question.quant),
        cache_bytes=KV_BYTES[config.kv or "f16"],
        lengths=Lengths(
            lengths.prompt + lengths.new // 2, max(1, lengths.prompt), 0, lengths.context
        ),
        micro_batch=max(1, config.micro_batch or 512),
        pinned=_pinned(engine, config), on_host=host.alone,
    )  # fmt: skip
    for what, said in unsaid:
        if what == "threads":
            continue  # the advice chooses them
        if engine.misses == "host" or not _OF_HOST.search(what):
            case.assume(what, said)
    return case


def _pinned(engine: Engine, config: Configuration) -> bool:
    """Return whether copies are from page-locked memory, as llama.cpp's unless it maps its file."""
    if config.pinned is not None:
        return config.pinned
    return engine.pinned or (engine.name == "llama.cpp" and config.mapped is False)


def host_of(question: Question, engine: Engine, unsaid: list[tuple[str, str]]) -> Host:
    """Return the machine as a published row that names the same parts has it."""
    hardware = question.hardware
    if hardware.profile is not None:
        return _calibrated(hardware, engine)
    linked = re.fullmatch(r"pcie(\d)x(\d+)", hardware.link)
    row = Row(
        id="advice", model=question.model, gpu=hardware.gpu, cpu=hardware.cpu,
        n_gpu=hardware.cards if hardware.gpu else 0, sockets=hardware.sockets,
        ram_gb=hardware.ram_gib, ram_type=hardware.memory,
        ram_channels="" if hardware.channels is None else f"{hardware.channels} total",
        ram_gb_s=hardware.reads_gb_s, h2d_gb_s=hardware.copies_gb_s,
        pcie_gen=int(linked[1]) if linked else None, pcie_lanes=int(linked[2]) if linked else None,
        system=engine.name, other_flags="" if hardware.gpu else "CPU only",
    )  # fmt: skip
    found = machine_of(row, engine, unsaid)
    return found._replace(profile=_changed(found.profile, hardware))


def _calibrated(hardware: Hardware, engine: Engine) -> Host:
    """Return a calibrated machine with an engine's kind of software."""
    profile = load_profile(hardware.file, engine.software)
    named = [parts()[key] for key in matches(hardware.cpu)]
    wide = any(isinstance(one, Cores) and one.simd.startswith("AVX-512") for one in named)
    server = profile.host.cores.count >= SERVER_CORES
    return Host(
        _changed(profile, hardware), profile.host.cores.count, not hardware.gpu, wide,
        "server reads" if server else "desktop reads",
    )  # fmt: skip


def _cores(hardware: Hardware, host: Host) -> int:
    """Return the number of cores; a virtual machine's processors are threads of half as many."""
    count = host.profile.host.cores.count
    return max(1, count // 2) if hardware.virtual else count


def _measured(host: Host) -> frozenset[str]:
    """Return what of a machine was calibrated, where no constant counts."""
    found = host.profile
    fields = {"reads": found.host.gemv_bandwidth, "cores": found.host.core_rate,
              "link": found.link.pinned_h2d}  # fmt: skip
    return frozenset(name for name, number in fields.items()
                     if number is not None and number.badge == "calibrated")  # fmt: skip


def _measured_rate(hardware: Hardware, quant: str) -> float | None:
    """Return the measured rate of products in a format over q4_k's; None if it is not known.

    A file's format such as ``q4_k_m`` has the rate of its blocks.
    """
    names = (name for name in sorted(hardware.products, key=len, reverse=True)
             if quant.startswith(name))  # fmt: skip
    return hardware.products.get(next(names, ""))


def _changed(profile: HardwareProfile, hardware: Hardware) -> HardwareProfile:
    """Return the profile with the card's further memory, and the disks that are named."""
    gpu, disk, host = profile.gpu, profile.disk, profile.host
    if hardware.cores and hardware.profile is None:
        cores = host.cores.model_copy(update={"value": hardware.cores})
        host = host.model_copy(update={"cores": cores})
    if hardware.more_gib:
        size = gpu.memory.model_copy(update={"value": gpu.memory.value + hardware.more_gib})
        gpu = gpu.model_copy(update={"memory": size})
    if hardware.disk:
        other = compose.composed(f"{compose.CPU_ONLY}+{hardware.disk}")
        disk = HardwareProfile.from_mapping(other, hardware.disk, profile.software.name).disk
    if hardware.disks > 1:
        disk = disk.model_copy(update={
            name: (one := getattr(disk, name)).model_copy(
                update={"value": one.value * hardware.disks, "range": None}
            )
            for name in ("queue1_bandwidth", "max_bandwidth")
        })  # fmt: skip
    return profile.model_copy(update={"gpu": gpu, "disk": disk, "host": host})


def engine_for(question: Question, rules: Rules, config: Configuration) -> Engine:
    """Return the engine's rules as the configuration runs it (`published.engines.engine_of`)."""
    found, shape = rules.engine, question.shape
    if found.products != "ik_llama.cpp":
        return found
    if config.repacked:
        return found._replace(kernels="repacked", streams_from=None)
    if _today() >= BY_EXPERT and found.streams_from:
        rows = -(-found.streams_from * shape.num_experts // shape.top_k)
        return found._replace(streams_from=rows)
    return found


def _has_tiles(cpu: str) -> bool:
    named = [parts()[key] for key in matches(cpu)]
    return any(isinstance(one, Cores) and not isinstance(one, Pool) and "AMX" in one.extensions
               for one in named)  # fmt: skip


def _today() -> str:
    return f"{date.today():%Y-%m}"
