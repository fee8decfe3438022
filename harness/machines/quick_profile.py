"""Hardware profile of a quick calibration: that of the parts, with measured numbers in place."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from moebench.harness.machines.disk import BLOCKS
from moebench.harness.machines.products import ROWS, flops_of
from moebench.harness.machines.products_file import Products
from moebench.harness.machines.quick import DEVICE_BYTES, EXPERT_BYTES, Copies, Quick
from moebench.harness.machines.rates import Rate
from moebench.substrate.machines.compose import NO_GPU
from moebench.substrate.models.expert_store import ALIGNMENT

#: Formats of 4 bits in plain blocks, whose products are the rate of a core; the first one counts.
CORE_FORMATS = ("q4_k", "q4_0")

#: Format whose products with many rows are the processor's rate in fp32.
PEAK_FORMATS = ("f32",)

Numbers = dict[str, Any]


def profile_of_parts(
    parts: Mapping[str, Any], found: Quick, cpu: str, cores: int | None, memory_gib: float | None,
    remarks: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return the profile of parts, with the measured numbers in place of theirs.

    Args:
        parts: from `compose.composed`.
        cpu: the processor's name as the computer reports it.
        cores: its cores, or the processors of a virtual machine.
        memory_gib: its memory.
        remarks: sentences for the description.
    """
    host = {**parts["host"], **_host(found), "name": cpu or parts["host"]["name"]}
    if cores is not None:
        host["cores"] = _reported(cores, "1", "lscpu: cores or processors of all sockets")
    if memory_gib is not None:
        host["memory"] = _reported(memory_gib, "GiB", "/proc/meminfo, or the container's limit")
    gpu, link = dict(parts["gpu"]), dict(parts["link"])
    if gpu["name"].endswith(NO_GPU):
        gpu |= _processor_as_device(found, host)
        host["shared_bandwidth"] = gpu["bandwidth"]
        link |= _inside(found)
    elif found.copies is not None:
        gpu["large_read_efficiency"] = _device_reads(found.copies, gpu["bandwidth"]["value"])
        host["shared_bandwidth"] = _measured(
            found.copies.together, "GB/s", "copies to the GPU while all threads read"
        )
        link |= _link(found.copies)
        if parts.get("pool"):  # the parts' share is of reads, of which a copy has half
            link["in_engine_efficiency"] = _reached()
    about = "; ".join((str(parts["description"]), *remarks))
    return {
        **parts,
        "name": "this computer",
        "description": f"{about}; measured by moebench calibrate --quick, {datetime.date.today()}",
        "gpu": gpu,
        "link": link,
        "host": host,
        "disk": _disk(found.disk),
    }


def measured_fields(profile: Mapping[str, Any]) -> list[tuple[str, Numbers]]:
    """Return the numbers of a profile's mapping that were calibrated, by field."""
    return [
        (f"{part}.{field}", number)
        for part in ("gpu", "link", "host", "disk")
        for field, number in profile[part].items()
        if isinstance(number, dict) and number["badge"] == "calibrated"
    ]


def _measured(rate: Rate, unit: str, how: str) -> Numbers:
    value, low, high = (float(f"{number:.4g}") for number in rate)
    span = {"range": [low, high]} if low < high else {}
    source = f"moebench calibrate --quick, {datetime.date.today()}: {how}"
    return {"value": value, "unit": unit, **span, "badge": "calibrated", "source": source}


def _reported(value: float, unit: str, source: str) -> Numbers:
    return {"value": value, "unit": unit, "badge": "measured", "source": source}


def _exactly(value: float, unit: str, how: str) -> Numbers:
    return _measured(Rate(value, value, value), unit, how)


def _reached() -> Numbers:
    return _exactly(1, "1", "the measured rate is what is reached")


def _rows(products: Products, form: str, rows: int, threads: int) -> str:
    """Return how a product was measured, as text."""
    many = "one row" if rows == 1 else f"{rows} rows"
    count = "1 thread" if threads == 1 else f"{threads} threads"
    return f"experts in {form}, {many}, {count}, {products.kernels[form]}"


def _reads(found: Quick) -> tuple[Rate, str]:
    """Return the fastest reads of the host's memory, and how they were measured."""
    threads, rate = max(found.reads.items(), key=lambda one: one[1].value)
    count = "1 thread" if threads == 1 else f"{threads} threads"
    return rate, f"sums of memory beyond the caches by {count}"


def _one_row(found: Quick) -> tuple[Rate, str]:
    """Return the products with one row that read the most, and how they were measured."""
    form, threads, rate = found.products.best(1)
    return rate, _rows(found.products, form, 1, threads)


def _host(found: Quick) -> Numbers:
    """Return the measured numbers of the host."""
    products, many = found.products, ROWS[-1]
    rate, how = _one_row(found)
    form, threads, peak = products.best(many, PEAK_FORMATS)
    gflops = peak.times(flops_of(products.bits[form], many))
    core = _core_rate(products)
    return {
        "gemv_bandwidth": _measured(rate, "GB/s", how),
        "peak_fp32": _measured(gflops, "GFLOPS", _rows(products, form, many, threads)),
        "gemm_efficiency": _reached(),
        "handoff": _measured(found.handoff, "us", "an empty task to a waiting thread and back"),
        **({} if core is None else {"core_rate": core}),
    }


def _core_rate(products: Products) -> Numbers | None:
    """Return the weights that one thread multiplies with one row; None without such formats."""
    rates = {
        form: products.rates[form][1][1].times(8 / products.bits[form])
        for form in CORE_FORMATS
        if 1 in products.rates.get(form, {}).get(1, {})
    }
    if not rates:
        return None
    form, rate = next(iter(rates.items()))
    span = Rate(rate.value, min(r.low for r in rates.values()), max(r.high for r in rates.values()))
    how = f"{_rows(products, form, 1, 1)}; range: of {' and '.join(rates)}"
    return _measured(span, "Gweights/s", how)


def _processor_as_device(found: Quick, host: Mapping[str, Any]) -> Numbers:
    """Return the device's numbers where it is the processor."""
    (reads, how), (one_row, how_rows) = _reads(found), _one_row(found)
    fastest, how = max((reads, how), (one_row, how_rows))
    share = Rate(*(min(1.0, number / fastest.value) for number in one_row))
    efficiency = _measured(share, "1", f"{how_rows}, over the bandwidth")
    return {
        "name": f"{host['name']} {NO_GPU}",
        "memory": host["memory"],
        "bandwidth": _measured(fastest, "GB/s", how),
        "large_read_efficiency": efficiency,
        "small_read_efficiency": efficiency,
        "tensor_bf16": host["peak_fp32"],
        "tensor_efficiency": host["gemm_efficiency"],
    }


def _inside(found: Quick) -> Numbers:
    """Return the link's numbers where device and host share one memory."""
    rate = _measured(found.inner, "GB/s", "copies inside the memory by all threads")
    same = dict.fromkeys(("pinned_h2d", "pinned_d2h", "pageable_h2d"), rate)
    return {**same, "in_engine_efficiency": _reached()}


def _link(copies: Copies) -> Numbers:
    """Return the numbers of a GPU's link."""
    how = f"copies of {EXPERT_BYTES / 1e6:.3g} MB one after another"
    beside = f"{copies.beside.value:.3g} GB/s while all threads read"
    return {
        "pinned_h2d": _measured(copies.pinned, "GB/s", f"{how}; {beside}"),
        "pinned_d2h": _measured(copies.back, "GB/s", how),
        "pageable_h2d": _measured(copies.pageable, "GB/s", how),
    }


def _device_reads(copies: Copies, nominal: float) -> Numbers:
    """Return the share of a GPU's bandwidth that copies inside its memory reach."""
    share = Rate(*(min(1.0, number / nominal) for number in copies.device))
    return _measured(share, "1", f"a copy of {DEVICE_BYTES >> 20} MiB over {nominal:g} GB/s")


def _disk(rates: Mapping[tuple[int, int], float]) -> Numbers:
    """Return the disk's numbers, as `moebench calibrate` states them."""
    blocks = "; ".join(
        f"{block >> 10} KiB x {depth}: {rate / 1e9:.3g} GB/s"
        for (block, depth), rate in sorted(rates.items())
        if block
    )
    most = max(rate for key, rate in rates.items() if key[0])
    return {
        "name": "the disk of the scratch folder",
        "queue1_bandwidth": _exactly(rates[BLOCKS[-1], 1] / 1e9, "GB/s", blocks),
        "max_bandwidth": _exactly(most / 1e9, "GB/s", blocks),
        "access_latency": _exactly(
            rates[0, 1] * 1e6, "us", f"reads of {ALIGNMENT} bytes, one at a time"
        ),
    }
