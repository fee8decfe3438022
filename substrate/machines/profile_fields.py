"""The fields of a hardware profile: what each number affects, and how to find its value.

`docs/machines.md` holds the same table, and `moebench machines init` writes it as comments.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel

from moebench.substrate.machines.profile import HardwareProfile
from moebench.substrate.machines.quantity import Efficiency, Quantity


class Field(NamedTuple):
    """The description of one field of a profile.

    Attributes:
        moves: which times or sizes of a run depend on it.
        where: where its value is found.
    """

    moves: str
    where: str


_COST = "measured as host time of a profiler's trace; leave it to the catalogue unless you know"

#: Every field of a profile but names, descriptions and what `moebench calibrate` alone writes.
FIELDS = {
    "pool": Field(
        "how many experts fit: what the device holds counts against the host's memory",
        "true where processor and GPU share one memory, or where there is no GPU",
    ),
    "gpu.memory": Field("how many experts fit", "nvidia-smi; the card's data sheet"),
    "gpu.reserved_memory": Field(
        "how many experts fit: what context and workspace take",
        "nvidia-smi, memory in use after torch.zeros(1, device='cuda') and one large product",
    ),
    "gpu.bandwidth": Field(
        "TPOT: every weight that the device reads", "data sheet: memory bandwidth"
    ),
    "gpu.large_read_efficiency": Field(
        "TPOT: the share of the bandwidth that reads of 20 MB and more reach",
        "a triad (BabelStream) over the data sheet's bandwidth",
    ),
    "gpu.small_read_efficiency": Field(
        "TPOT: the same for smaller reads, single experts above all",
        "time of one expert's products at batch 1, bytes over time over bandwidth",
    ),
    "gpu.tensor_bf16": Field(
        "TTFT: operations of prefill", "data sheet: dense bf16 with fp32 accumulation, no sparsity"
    ),
    "gpu.tensor_efficiency": Field(
        "TTFT: the share of these that products reach", "a large bf16 torch.matmul over the peak"
    ),
    "gpu.idle_power": Field("energy while the device waits", "nvidia-smi --query-gpu=power.draw"),
    "gpu.full_power": Field("energy while it computes", "nvidia-smi: power limit; data sheet: TDP"),
    "link.pinned_h2d": Field(
        "TPOT: every load of an expert from pinned memory",
        "nvbandwidth, or bandwidthTest --memory=pinned, host to device",
    ),
    "link.pinned_d2h": Field(
        "TPOT of systems that write back or send states to the host", "the same, device to host"
    ),
    "link.pageable_h2d": Field(
        "TPOT of systems whose copies are from pageable memory",
        "bandwidthTest --memory=pageable, host to device",
    ),
    "link.in_engine_efficiency": Field(
        "TPOT: the share of these that copies between kernels reach",
        "an expert's copy in a profiler's trace of an offloading engine, over the benchmark's",
    ),
    "link.copy_fixed": Field(
        "TPOT: what each copy takes besides its bytes", "device time of a copy of 8 KB"
    ),
    "link.pinned": Field(
        "which of the two bandwidths copies have, where a system does not say",
        "whether the software that is meant pins host memory",
    ),
    "host.cores": Field("nothing by itself; the record of what peak_fp32 is of", "lscpu"),
    "host.memory": Field(
        "which experts are in memory and which on the disk", "/proc/meminfo; what is installed"
    ),
    "host.gemv_bandwidth": Field(
        "TPOT of systems that compute experts on the host, a few rows at a time",
        "a matrix-vector product larger than the caches, all cores: bytes over time",
    ),
    "host.gemv_holds_dispatch": Field(
        "TPOT of the same under software that pays Python for each expert",
        "true if the bandwidth was inferred from the time of an expert, not of a product",
    ),
    "host.peak_fp32": Field(
        "TTFT of systems that compute experts on the host",
        "cores x FLOP a cycle (AVX2 32, AVX-512 64) x clock",
    ),
    "host.gemm_efficiency": Field(
        "the same: the share that products reach", "an fp32 torch.matmul of an expert's size"
    ),
    "host.handoff": Field(
        "TPOT of such systems: giving a task to the host's threads",
        "time from handing over an empty task to its end",
    ),
    "host.core_rate": Field(
        "TPOT of engines whose weights have any number of bits: what a core multiplies",
        "a product of quantised weights with one row, by one thread of such an engine",
    ),
    "host.shared_bandwidth": Field(
        "TPOT of systems that copy experts while others are computed on the host",
        "bytes of a copy and of reads by all cores at the same time, over the time",
    ),
    "host.idle_power": Field("energy while the host waits", "turbostat, RAPL: package power"),
    "host.full_power": Field("energy while it computes", "data sheet: TDP"),
    "disk.queue1_bandwidth": Field(
        "TPOT where experts are on the disk, read one after another",
        "fio, O_DIRECT, 1 MiB blocks, iodepth 1",
    ),
    "disk.max_bandwidth": Field("the same, several reads at a time", "the same, iodepth 16"),
    "disk.access_latency": Field(
        "TPOT: what each read takes before its bytes", "fio, O_DIRECT, 4 KiB blocks, iodepth 1"
    ),
    "software.launch": Field("TPOT: the control thread's time for each kernel", _COST),
    "software.sync": Field("TPOT: what waiting for the device's result costs", _COST),
    "software.decision": Field("TPOT: a system's own decisions, for each MoE layer", _COST),
    "software.copy_submit": Field("TPOT: the control thread's time for each copy", _COST),
    "software.hook": Field("TPOT of Accelerate: each tensor that a module's hook brings", _COST),
    "software.layer": Field("TPOT: the least that a layer without its experts takes", _COST),
    "software.expert": Field("TPOT: the least that an expert takes", _COST),
    "software.waits_each_layer": Field(
        "TPOT: whether launches of a layer wait for the one before", _COST
    ),
    "software.launch_bound_power": Field(
        "energy while launches keep the device waiting", "nvidia-smi during such a run"
    ),
    "software.host_fused_8bit": Field(
        "TPOT of systems whose kernels multiply 8-bit experts on the host",
        "bytes over time of such a product, over host.gemv_bandwidth",
    ),
    "software.host_fused_4bit": Field("the same of 4-bit experts", "the same"),
    "software.host_fused_2bit": Field("the same of 2-bit experts", "the same"),
    "software.host_unpacking": Field(
        "TPOT of systems that unpack quantised experts on the host before each product",
        "time of unpacking and product over the product in bf16",
    ),
    "software.attention_reads": Field(
        "TPOT with long contexts: how fast attention reads the KV cache on the device, over large "
        "reads",
        "slope of the token's time over the cached tokens",
    ),
    "software.latent_reads": Field("the same of a cache of latent vectors (MLA)", "the same"),
    "software.host_attention": Field(
        "the same on the host, over its bandwidth", "the same, with attention on the host"
    ),
    "software.host_kernel_gain": Field(
        "TPOT of engines whose own kernels multiply there, over those of llama.cpp",
        "tokens/s of both engines with the same file and host, experts on the host",
    ),
    "software.host_rows_gain": Field(
        "TTFT of systems that compute experts on the host, in place of host.gemm_efficiency",
        "weights times rows of a prompt on the host over its time, over host.core_rate",
    ),
    "software.unpacking_rows": Field(
        "TTFT where experts have few rows each: unpacking quantised weights on the device",
        "time of a quantised product over its rows: intercept over slope",
    ),
    "software.launches_attention": Field("kernels of a layer's attention", _COST),
    "software.launches_gate": Field("kernels of a gate", _COST),
    "software.launches_expert": Field("kernels of a routed expert", _COST),
    "software.launches_shared": Field("kernels of shared experts", _COST),
    "software.launches_head": Field("kernels of the output layer", _COST),
}


def schema(part: type[BaseModel] = HardwareProfile, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every field without inner fields, and its type without None."""
    for name, info in part.model_fields.items():
        kinds = (info.annotation, *get_args(info.annotation))
        inner = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
        if inner is None or issubclass(inner, Quantity):
            yield f"{prefix}{name}", inner or info.annotation
        else:
            yield from schema(inner, f"{prefix}{name}.")


def units(kind: Any) -> str:
    """Return a field's units as text, or ``text`` or ``true or false`` for other fields."""
    if isinstance(kind, type) and issubclass(kind, Quantity):
        known = " or ".join(unit for unit in kind.UNITS if unit != "1")
        return known or ("a share, 0-1" if issubclass(kind, Efficiency) else "a number")
    return "text" if kind is str else "true or false"


def table() -> list[list[str]]:
    """Return a row for each of `FIELDS`: field, unit, what it affects, how to find its value."""
    kinds = dict(schema())
    return [[name, units(kinds[name]), *field] for name, field in FIELDS.items()]
