"""Composed machines: their numbers by hand, valid profiles for all parts, and what is refused."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.substrate.machines.compose import build, canonical, composed, is_composed
from moebench.substrate.machines.parts import Pool, Processor, parts, parts_of
from moebench.substrate.machines.profile import (
    HardwareProfile,
    Quantity,
    load_profile,
    machine_name,
    profile_names,
)

GPUS = [part.key for part in parts_of("gpus")]
PROCESSORS = [part.key for part in parts_of("processors")]
POOLS = [part.key for part in parts_of("pools")]
EXAMPLE = "rtx-4090,xeon-6454s*2,ddr5-4800*16,pcie4x16,nvme4"


def numbers(text: str) -> dict[str, Quantity]:
    return dict(load_profile(text).quantities())


def gbs(text: str, field: str) -> float:
    number = numbers(text)[field]
    return number.value * number.UNITS[number.unit] / 1e9


# ------------------------------------------------------------------------- numbers by hand


def test_a_desktop_by_hand() -> None:
    got = numbers("rtx-3090+ryzen-5950x")
    assert got["gpu.memory"].value == 24
    assert got["gpu.bandwidth"].value == 936
    assert got["gpu.large_read_efficiency"].value == pytest.approx(831 / 936, rel=1e-3)
    assert got["gpu.large_read_efficiency"].badge == "measured"
    assert got["gpu.tensor_bf16"].value == 71
    assert got["gpu.full_power"].value == 350
    assert (got["link.pinned_h2d"].value, got["link.pinned_h2d"].range) == (26, (23.9, 26.4))
    assert got["host.cores"].value == 16
    assert got["host.gemv_bandwidth"].value == pytest.approx(2 * 8 * 3.2 * 0.8)  # of 51.2 GB/s
    assert got["host.gemv_bandwidth"].range == pytest.approx((32.26, 45.06), abs=0.005)
    assert "= 51.2 GB/s nominal" in got["host.gemv_bandwidth"].source
    assert got["host.peak_fp32"].value == pytest.approx(16 * 32 * (3.4 + 4.9) / 2, rel=1e-3)
    assert got["host.peak_fp32"].range == pytest.approx((16 * 32 * 3.4, 16 * 32 * 4.9), rel=1e-3)
    profile = load_profile("rtx-3090+ryzen-5950x")
    assert profile.link.name == "PCIe 4.0 x16"
    assert profile.host.memory.bytes == 64 * 2**30
    assert not profile.pool


def test_a_server_by_hand() -> None:
    got = numbers(EXAMPLE)
    a_socket = 8 * 8 * 4.8
    assert got["host.cores"].value == 64
    assert got["host.gemv_bandwidth"].value == pytest.approx(a_socket * 0.62 * 1.5, rel=1e-3)
    low, high = got["host.gemv_bandwidth"].range or (0, 0)
    assert low == pytest.approx(a_socket * 0.40 * 0.65, rel=1e-3)
    assert high == pytest.approx(a_socket * 0.85 * 2, rel=1e-3)
    assert got["host.peak_fp32"].value == pytest.approx(2 * 32 * 64 * 2.2, rel=1e-3)
    assert got["disk.max_bandwidth"].value == 7.3


@pytest.mark.parametrize(
    ("text", "nominal"),
    [
        ("rtx-3090+ryzen-5950x+ddr4-3200*2", 51.2),
        ("rtx-3090+ryzen-5950x+ddr4-3200", 51.2),
        ("rtx-3090+ryzen-5950x+ddr4-3200*4", 51.2),  # two modules a channel
        ("rtx-3090+ryzen-5950x+ddr4-3200*1", 25.6),
        ("rtx-3090+ryzen-5950x+ddr4-3600", 57.6),  # faster than the processor's rate: a desktop's
        ("rtx-4090+7950x", 83.2),
        ("rtx-4090+epyc-9654", 460.8),
        ("rtx-4090+epyc-9654+ddr5-6400", 460.8),  # a server runs it at its own rate
        ("rtx-4090+epyc-9654+ddr5-4800*8", 307.2),
        ("rtx-4090+epyc-9654*2", 921.6),
        ("rtx-4090+6980p+mrdimm-8800", 844.8),
        ("rtx-3090+i5-12600k+ddr4-3200", 51.2),
    ],
)
def test_nominal_bandwidth(text: str, nominal: float) -> None:
    assert build(text).nominal_gbs == pytest.approx(nominal)


@pytest.mark.parametrize(
    ("text", "value", "badge"),
    [
        ("rtx-3090+xeon-8480", (241 + 264) / 2, "measured"),
        ("rtx-3090+9700x", 62.9, "measured"),
        ("rtx-3090+epyc-9965", 275, "measured"),
        ("rtx-3090+9700x+ddr5-4800", 62.9 * 4800 / 5600, "estimate"),  # other memory
        ("rtx-3090+xeon-8480*2", 252.5 * 1.5, "estimate"),
        ("rtx-3090+ryzen-5800x", 51.2 * 0.8, "estimate"),  # what was measured is another part
    ],
)
def test_a_processors_own_reads_are_taken(text: str, value: float, badge: str) -> None:
    number = numbers(text)["host.gemv_bandwidth"]
    assert number.value == pytest.approx(value, rel=1e-3)
    assert number.badge == badge
    assert number.range is not None


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("rtx-3090+7950x", "PCIe 4.0 x16"),  # the card's
        ("rtx-5090+5950x", "PCIe 4.0 x16"),  # the processor's
        ("rtx-5090+7950x", "PCIe 5.0 x16"),
        ("rtx-5060-ti-16gb+5950x", "PCIe 4.0 x8"),
        ("rtx-3090+ryzen-5-5600g", "PCIe 3.0 x16"),
        ("rtx-3090+7950x+pcie3x4", "PCIe 3.0 x4"),
    ],
)
def test_the_link_is_the_lower_of_both(text: str, link: str) -> None:
    assert load_profile(text).link.name == link


def test_copies_are_no_faster_than_the_hosts_memory() -> None:
    slow = "rtx-5090+i5-12600k+ddr4-3200"
    assert gbs(slow, "link.pinned_h2d") == gbs(slow, "host.gemv_bandwidth")
    assert numbers(slow)["link.pinned_h2d"].badge == "estimate"
    assert gbs("rtx-5090+7950x", "link.pinned_h2d") == 56


@pytest.mark.parametrize(
    ("text", "disk"),
    [
        ("rtx-3090+5950x", "PCIe 4.0 x4 NVMe"),
        ("rtx-3090+7950x", "PCIe 5.0 x4 NVMe"),
        ("rtx-3090+xeon-6252", "PCIe 3.0 x4 NVMe"),
        ("rtx-3090+7950x+nvme3", "PCIe 3.0 x4 NVMe"),
    ],
)
def test_the_disk_is_of_the_processors_generation(text: str, disk: str) -> None:
    assert load_profile(text).disk.name == f"generic {disk}"


def test_cards_add_memory_but_no_speed() -> None:
    one, two = numbers("rtx-3090+5950x"), numbers("rtx-3090*2+5950x")
    assert two["gpu.memory"].value == 48
    assert two["gpu.reserved_memory"].value == 2
    for field in ("gpu.bandwidth", "gpu.tensor_bf16", "link.pinned_h2d"):
        assert two[field].value == one[field].value
    assert load_profile("rtx-3090*2+5950x").gpu.name == "2 x RTX 3090"


def test_the_largest_measured_product_bounds_prefill() -> None:
    number = numbers("t4+5950x")["gpu.tensor_efficiency"]
    assert number.range is not None
    assert number.range[1] == pytest.approx(25 / 65, rel=1e-3)
    assert numbers("rtx-4090+5950x")["gpu.tensor_efficiency"].range == (0.4, 0.8)


def test_the_size_of_memory_is_given_or_an_estimate() -> None:
    got = numbers("rtx-3090+5950x+ram=96")["host.memory"]
    assert (got.value, got.unit, got.badge) == (96, "GiB", "datasheet")
    assert numbers("rtx-3090+5950x")["host.memory"].badge == "estimate"
    assert numbers("rtx-3090+epyc-9654*2")["host.memory"].value == 2 * 12 * 64
    assert numbers("rtx-3090+5950x+ram=1536")["host.memory"].value == 1536


Range = tuple[float, float] | None

#: Numbers that all machines of parts have alike: value, unit, range.
ALIKE: dict[str, tuple[float, str, Range]] = {
    "link.copy_fixed": (2.5, "us", (2.4, 3.3)),
    "host.gemm_efficiency": (0.75, "1", None),
    "host.handoff": (20, "us", (10, 50)),
    "disk.access_latency": (50, "us", (40, 60)),
}
#: And those of all with a card: of a PCIe 4.0 x16 link, 26 GB/s of pinned copies.
WITH_CARD: dict[str, tuple[float, str, Range]] = {
    **ALIKE,
    "link.pinned_h2d": (26, "GB/s", (23.9, 26.4)),
    "link.pinned_d2h": (26.7, "GB/s", (26.3, 27.1)),
    "link.pageable_h2d": (26 / 3, "GB/s", (0.55 * 26 / 3, 12)),
    "link.in_engine_efficiency": (0.86, "1", (0.86, 1.0)),
    "gpu.small_read_efficiency": (0.65, "1", (0.5, 0.85)),
    "gpu.tensor_efficiency": (0.6, "1", (0.4, 0.8)),
}
GEN4, GEN5 = (
    {"disk.queue1_bandwidth": (one, "GB/s", span), "disk.max_bandwidth": (most, "GB/s", ends)}
    for one, span, most, ends in (
        (4.6, (1.8, 6.0), 7.3, (7.0, 7.45)),
        (9.0, (8.0, 10.7), 13.4, (12.0, 14.8)),
    )
)

#: Every number of four machines: cards of 350 and 450 W; cores of 3.4 to 4.9 GHz with AVX2, two
#: sockets of 32 cores of 2.2 to 3.4 GHz with AVX-512, 16 cores of 4.5 to 5.7 GHz, and a pool.
EVERY: dict[str, dict[str, tuple[float, str, Range]]] = {
    "rtx-3090*2+ryzen-5950x": {
        **WITH_CARD, **GEN4,
        "gpu.memory": (48, "GiB", None), "gpu.reserved_memory": (2, "GB", None),
        "gpu.bandwidth": (936, "GB/s", None),
        "gpu.large_read_efficiency": (831 / 936, "1", None),
        "gpu.tensor_bf16": (71, "TFLOPS", None),
        "gpu.idle_power": (0.07 * 700, "W", (0.03 * 700, 0.12 * 700)),
        "gpu.full_power": (350 + 0.07 * 350, "W", None),
        "host.cores": (16, "1", None), "host.memory": (64, "GiB", None),
        "host.gemv_bandwidth": (51.2 * 0.8, "GB/s", (51.2 * 0.63, 51.2 * 0.88)),
        "host.peak_fp32": (16 * 32 * 4.15, "GFLOPS", (16 * 32 * 3.4, 16 * 32 * 4.9)),
        "host.core_rate": (2.9 * 4.15, "Gweights/s", (1.8 * 4.15, 4 * 4.15)),
        "host.shared_bandwidth": (51.2 * 0.88, "GB/s", (51.2 * 0.63, 51.2)),
        "host.idle_power": (20, "W", None), "host.full_power": (150, "W", (65, 253)),
    },
    "rtx-4090+xeon-6454s*2+ddr5-4800*8": {
        **WITH_CARD, **GEN5,
        "gpu.memory": (24, "GiB", None), "gpu.reserved_memory": (1, "GB", None),
        "gpu.bandwidth": (1008, "GB/s", None),
        "gpu.large_read_efficiency": (0.9048, "1", None),
        "gpu.tensor_bf16": (165.2, "TFLOPS", None),
        "gpu.idle_power": (0.07 * 450, "W", (0.03 * 450, 0.12 * 450)),
        "gpu.full_power": (450, "W", None),
        "host.cores": (64, "1", None), "host.memory": (2 * 8 * 64, "GiB", None),
        "host.gemv_bandwidth": (
            153.6 * 0.62 * 1.5, "GB/s", (153.6 * 0.4 * 0.65, 153.6 * 0.85 * 2)
        ),
        "host.peak_fp32": (64 * 64 * 2.2, "GFLOPS", (64 * 64 * 2.2, 64 * 64 * 3.4)),
        "host.core_rate": (6 * 2.8, "Gweights/s", (3 * 2.8, 9 * 2.8)),
        "host.shared_bandwidth": (307.2 * 0.85, "GB/s", (307.2 * 0.4, 307.2)),
        "host.idle_power": (200, "W", None), "host.full_power": (600, "W", (300, 1000)),
    },
    "cpu-only+ryzen-7950x": {
        **ALIKE, **GEN5,
        "gpu.memory": (64, "GiB", None), "gpu.reserved_memory": (4, "GiB", None),
        "gpu.bandwidth": (83.2, "GB/s", None),
        "gpu.large_read_efficiency": (0.8, "1", (0.63, 0.88)),
        "gpu.small_read_efficiency": (0.8, "1", (0.63, 0.88)),
        "gpu.tensor_bf16": (16 * 32 * 5.1, "GFLOPS", (16 * 32 * 4.5, 16 * 32 * 5.7)),
        "gpu.tensor_efficiency": (0.75, "1", None),
        "link.pinned_h2d": (83.2, "GB/s", None), "link.pinned_d2h": (83.2, "GB/s", None),
        "link.pageable_h2d": (83.2, "GB/s", None),
        "link.in_engine_efficiency": (0.4, "1", (0.4, 0.8)),
        "host.cores": (16, "1", None), "host.memory": (64, "GiB", None),
        "host.gemv_bandwidth": (83.2 * 0.8, "GB/s", (83.2 * 0.63, 83.2 * 0.88)),
        "host.peak_fp32": (16 * 32 * 5.1, "GFLOPS", (16 * 32 * 4.5, 16 * 32 * 5.7)),
        "host.core_rate": (6 * 5.1, "Gweights/s", (3 * 5.1, 9 * 5.1)),
        "host.shared_bandwidth": (83.2 * 0.88, "GB/s", (83.2 * 0.63, 83.2)),
    },
    "strix-halo": {
        **ALIKE, **GEN4,
        "gpu.memory": (128, "GiB", None), "gpu.reserved_memory": (16, "GiB", None),
        "gpu.bandwidth": (256, "GB/s", None),
        "gpu.large_read_efficiency": (0.85, "1", (0.75, 0.92)),
        "gpu.small_read_efficiency": (0.65, "1", (0.5, 0.85)),
        "gpu.tensor_bf16": (59, "TFLOPS", None),
        "gpu.tensor_efficiency": (0.6, "1", (0.4, 0.8)),
        "link.pinned_h2d": (256, "GB/s", None), "link.pinned_d2h": (256, "GB/s", None),
        "link.pageable_h2d": (256, "GB/s", None),
        "link.in_engine_efficiency": (0.425, "1", (0.425, 0.85)),
        "host.cores": (16, "1", None), "host.memory": (128, "GiB", None),
        "host.gemv_bandwidth": (128, "GB/s", (0.39 * 256, 0.85 * 256)),
        "host.peak_fp32": (16 * 64 * 4.05, "GFLOPS", (16 * 64 * 3.0, 16 * 64 * 5.1)),
        "host.core_rate": (6 * 4.05, "Gweights/s", (3 * 4.05, 9 * 4.05)),
    },
}  # fmt: skip

#: Their numbers that are no estimates.
STATED = {
    "rtx-3090*2+ryzen-5950x": {
        "gpu.memory": "datasheet", "gpu.bandwidth": "datasheet", "gpu.full_power": "datasheet",
        "gpu.large_read_efficiency": "measured", "link.pinned_h2d": "measured",
        "link.pinned_d2h": "measured",
    },
    "rtx-4090+xeon-6454s*2+ddr5-4800*8": {
        "gpu.memory": "datasheet", "gpu.bandwidth": "datasheet", "gpu.full_power": "datasheet",
        "gpu.tensor_bf16": "datasheet", "gpu.large_read_efficiency": "measured",
        "link.pinned_h2d": "measured", "link.pinned_d2h": "measured",
    },
    "cpu-only+ryzen-7950x": {},
    "strix-halo": {
        "gpu.bandwidth": "datasheet", "link.pinned_h2d": "datasheet",
        "link.pinned_d2h": "datasheet", "link.pageable_h2d": "datasheet",
    },
}  # fmt: skip


@pytest.mark.parametrize("text", EVERY)
def test_every_number_of_a_machine_by_hand(text: str) -> None:
    found = {name: n for name, n in numbers(text).items() if not name.startswith("software.")}
    assert found.keys() == EVERY[text].keys()
    for name, (value, unit, span) in EVERY[text].items():
        number = found[name]
        wanted = span and pytest.approx(span, rel=6e-4)
        assert (number.value, number.unit) == (pytest.approx(value, rel=6e-4), unit), name
        assert number.range == wanted, name
        assert number.badge == STATED[text].get(name, "estimate"), name


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("rtx-3090*2+ryzen-5950x", "2 x RTX 3090 24 GB, Ryzen 9 5950X, 2 channels of DDR4-3200, "
         "64 GB, PCIe 4.0 x16, PCIe 4.0 x4 NVMe; not named, so assumed: DDR4-3200 on every channel,"
         " 64 GB of memory, PCIe 4.0 x16, the lower of GPU and processor, PCIe 4.0 x4 NVMe"),
        (f"{EXAMPLE}+ram=512", "RTX 4090 24 GB, 2 x Xeon Gold 6454S, 16 channels of DDR5-4800, "
         "512 GB, PCIe 4.0 x16, PCIe 4.0 x4 NVMe"),
        ("cpu-only+ryzen-7950x+ddr5-5200+ram=48+nvme4", "Ryzen 9 7950X without a GPU, 2 channels "
         "of DDR5-5200, 48 GB, PCIe 4.0 x4 NVMe"),
        ("strix-halo+ram=96+nvme4", "Strix Halo (Ryzen AI Max+ 395, Radeon 8060S), 96 GB for "
         "processor and GPU together, PCIe 4.0 x4 NVMe"),
        ("strix-halo+nvme4", "Strix Halo (Ryzen AI Max+ 395, Radeon 8060S), 128 GB for processor "
         "and GPU together, PCIe 4.0 x4 NVMe; not named, so assumed: 128 GB of memory, the most "
         "that is sold"),
    ],
)  # fmt: skip
def test_a_description_names_the_parts_and_what_is_assumed(text: str, about: str) -> None:
    assert composed(text)["description"] == about


def test_sources_say_how_a_number_was_reached() -> None:
    two = numbers("rtx-3090*2+xeon-8480*2")
    assert two["gpu.memory"].source.startswith(
        "RTX 3090, 2 cards; they compute one after another, so rates are one's: "
    )
    assert two["gpu.full_power"].source.startswith(
        "RTX 3090, one card computes while the others wait: "
    )
    reads = two["host.gemv_bandwidth"].source
    assert "8 channels x 8 B x 4800 MT/s = 307.2 GB/s nominal a socket, x 0.82 of 307.2" in reads
    assert reads.count("; x 1.5 for 2 sockets: 0.65 where pages lie anywhere, 2 where") == 1
    one = numbers("rtx-3090+5950x")
    assert one["gpu.memory"].source.startswith("RTX 3090: ")
    assert one["gpu.full_power"].source.startswith("RTX 3090: ")
    assert "a PyTorch copy reaches 831 of 936 GB/s" in one["gpu.large_read_efficiency"].source
    assert one["host.memory"].source == "estimate: 32 GB on each memory channel"
    assert two["host.memory"].source == "estimate: 64 GB on each memory channel"
    given_ = numbers("rtx-3090+5950x+ram=96")["host.memory"].source
    assert given_ == "given: ram=96"
    assert "16 cores, 512 FLOP a cycle in fp32 (AVX2) x 4.15 GHz, between its clocks" in (
        one["host.peak_fp32"].source
    )
    assert "GHz, its base clock; " in two["host.peak_fp32"].source


@pytest.mark.parametrize(
    ("text", "value", "high"),
    [
        ("rtx-3090+ryzen-5950x", 26 / 3, 12),  # a third of the link's copies
        ("rtx-5090+7950x", 9, 12),  # no more than 9 GB/s
        ("rtx-3090+ryzen-5950x+ddr4-3200*1", 25.6 * 0.8 / 3, 1.5 * 25.6 * 0.8 / 3),  # of memory's
    ],
)
def test_copies_from_pageable_memory_are_at_most_9_gbs(
    text: str, value: float, high: float
) -> None:
    number = numbers(text)["link.pageable_h2d"]
    assert number.value == pytest.approx(value, rel=1e-3)
    assert number.range == pytest.approx((0.55 * value, high), rel=1e-3)


def test_a_count_that_no_board_has_room_for_is_refused_before_it_is_fitted() -> None:
    """16 channels of 8 sockets with two modules each are 256."""
    with pytest.raises(UsageError, match="count '257'; allowed: a whole number from 1 to 256"):
        build("rtx-3090+5950x+ddr4-3200*257")
    with pytest.raises(UsageError, match="256 memory modules: 1 x Ryzen 9 5950X takes 1 to 4"):
        build("rtx-3090+5950x+ddr4-3200*256")


def test_sizes_at_both_ends_are_allowed() -> None:
    assert build("rtx-3090+ram=1").ram_gib == 1
    assert build("rtx-3090+ram=32768").ram_gib == 32768
    assert build("strix-halo+ram=64").ram_gib == 64
    for size in ("0.99", "32768.1"):
        with pytest.raises(UsageError, match="GB from 1 to 32768"):
            build(f"rtx-3090+ram={size}")
    for size in ("63", "129"):
        with pytest.raises(UsageError, match="allowed: ram=64 to ram=128"):
            build(f"strix-halo+ram={size}")


def test_what_is_read_into_a_build() -> None:
    found = build("rtx-3090*2,epyc-9654*2,ddr5-4800*8,ram=100.5,pcie3x8,nvme3")
    assert (found.cards, found.sockets, found.modules, found.rate) == (2, 2, 8, 4800)
    assert (found.memory, found.ram_gib) == ("DDR5", 100.5)
    assert found.gpu is not None
    assert found.link is not None
    assert (found.gpu.key, found.host.key) == ("rtx-3090", "epyc-9654")
    assert (found.link.key, found.disk.key) == ("pcie3x8", "nvme3")
    assert found.channels == 8
    assert found.assumed == ()
    assert found.named == (
        "rtx-3090*2", "epyc-9654*2", "ddr5-4800*8", "ram=100.5", "pcie3x8", "nvme3"
    )  # fmt: skip
    pool = build("strix-halo")
    assert (pool.gpu, pool.cards, pool.sockets, pool.memory) == (None, 1, 1, None)
    assert (pool.rate, pool.modules, pool.link) == (0, None, None)
    alone = build("cpu-only")
    assert (alone.gpu, alone.link, alone.cards) == (None, None, 1)
    assert alone.named == ("cpu-only",)


def test_two_sockets_read_from_their_own_and_from_other_memory() -> None:
    one, two = numbers("rtx-3090+epyc-9654"), numbers("rtx-3090+epyc-9654*2")
    share = two["host.gemv_bandwidth"].value / one["host.gemv_bandwidth"].value
    assert share == pytest.approx(1.5, rel=1e-3)
    assert two["host.shared_bandwidth"].value == 2 * one["host.shared_bandwidth"].value
    for field, watts in (("idle_power", 100), ("full_power", 300)):
        assert one[f"host.{field}"].value == watts
        assert two[f"host.{field}"].value == 2 * watts


def test_a_small_machine_without_a_gpu_keeps_a_quarter_of_its_memory() -> None:
    for size, kept in ((8, 2), (16, 4), (64, 4)):
        assert numbers(f"cpu-only+ram={size}")["gpu.reserved_memory"].value == kept


def test_a_pool_leaves_an_eighth_of_its_memory_to_its_system() -> None:
    for size in (64, 128):
        assert numbers(f"strix-halo+ram={size}")["gpu.reserved_memory"].value == size / 8


def test_a_pool_is_as_sure_of_its_memory_as_of_its_parts() -> None:
    said = numbers("strix-halo")["host.memory"]
    assert ", the most that is sold: " in said.source
    assert numbers("strix-halo+ram=64")["host.memory"].badge == "datasheet"


def test_an_assumed_processor_is_named_in_the_sources_of_its_numbers() -> None:
    got = numbers("rtx-3090")
    for field in ("host.cores", "host.memory", "host.gemv_bandwidth"):
        assert got[field].badge == "estimate"
    assert got["host.cores"].source.startswith("processor not named, so Ryzen 7 7700")
    # An estimate's source stays as it is; so does the size that was given.
    assert got["host.gemm_efficiency"].source.startswith("estimate: share of peak")
    assert numbers("rtx-3090+ram=48")["host.memory"].source == "given: ram=48"
    alone = numbers("cpu-only")
    assert alone["gpu.bandwidth"].source.startswith("processor not named, so ")
    assert {n.badge for field, n in alone.items() if field.startswith("gpu.")} == {"estimate"}


# --------------------------------------------------------------------------- no GPU, one memory


def test_a_machine_without_a_gpu_computes_on_its_processor() -> None:
    profile = load_profile("cpu-only+ryzen-7950x")
    assert profile.pool
    assert profile.gpu.memory.bytes == profile.host.memory.bytes == 64 * 2**30
    assert profile.gpu.bandwidth.value == 83.2
    reads = profile.gpu.bandwidth.value * profile.gpu.large_read_efficiency.value
    assert reads == pytest.approx(profile.host.gemv_bandwidth.value, rel=1e-3)
    assert profile.gpu.tensor_bf16.flops_per_s == profile.host.peak_fp32.flops_per_s
    assert profile.link.pinned_h2d.value == 83.2
    assert profile.host.full_power is None


@pytest.mark.parametrize(
    ("text", "gib", "bandwidth"),
    [
        ("strix-halo", 128, 256),
        ("strix-halo,ram=64", 64, 256),
        ("apple-m4-max,ram=128", 128, 546),
        ("gb10", 128, 273),
        ("m2-ultra", 192, 800),
    ],
)
def test_a_machine_with_one_memory(text: str, gib: int, bandwidth: float) -> None:
    profile = load_profile(text)
    assert profile.pool
    assert profile.gpu.memory.bytes == profile.host.memory.bytes == gib * 2**30
    assert profile.gpu.bandwidth.value == profile.link.pinned_h2d.value == bandwidth
    assert profile.host.gemv_bandwidth.value < bandwidth


def test_measured_numbers_of_a_pool() -> None:
    got = numbers("apple-m4-max")
    assert got["host.gemv_bandwidth"].value == 336
    assert got["gpu.large_read_efficiency"].value == pytest.approx(396 / 546, rel=1e-3)
    assert numbers("gb10")["gpu.tensor_bf16"].range == (100, 125)


# ------------------------------------------------------------------------------ all parts


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(GPUS), st.sampled_from(PROCESSORS))
def test_every_gpu_with_every_processor_is_a_valid_machine(gpu: str, processor: str) -> None:
    check(f"{gpu}+{processor}")


@pytest.mark.parametrize("gpu", GPUS)
def test_every_gpu_is_a_machine(gpu: str) -> None:
    check(f"{gpu}+ryzen-9-7950x")


@pytest.mark.parametrize("processor", PROCESSORS)
def test_every_processor_is_a_machine_with_all_its_sockets_and_memories(processor: str) -> None:
    part = parts()[processor]
    assert isinstance(part, Processor)
    for sockets, (kind, rate) in product(range(1, part.sockets + 1), part.memory.items()):
        check(f"rtx-3090+{processor}*{sockets}+{kind.lower()}-{rate}")
        check(f"cpu-only+{processor}*{sockets}+{kind.lower()}-{rate}*{sockets}")


@pytest.mark.parametrize("pool", POOLS)
def test_every_pool_is_a_machine(pool: str) -> None:
    part = parts()[pool]
    assert isinstance(part, Pool)
    check(pool)
    for size in part.memory_gib:
        check(f"{pool}+ram={size:g}+nvme3")


def check(text: str) -> None:
    """Whether a text is a valid profile, each number of which has a source, and stays the same."""
    profile = HardwareProfile.from_mapping(composed(text), text)
    assert canonical(profile.name) == profile.name
    assert load_profile(profile.name).content_hash() == profile.content_hash()
    assert profile.badge == "estimate"
    for _, number in profile.quantities():
        assert len(number.source) > 5
        assert number.badge != "calibrated"
    assert profile.link.pageable_h2d.bytes_per_s <= profile.link.pinned_h2d.bytes_per_s
    assert profile.gpu.reserved_memory.bytes < profile.gpu.memory.bytes / 3


# -------------------------------------------------------------------------------- spelling


@pytest.mark.parametrize(
    "typed",
    [
        "rtx-3090+ryzen-5950x", "RTX3090+5950X", "5950x,rtx-3090", "rtx 3090, AMD Ryzen 9 5950X",
        "NVIDIA GeForce RTX 3090 + 5950x*1", "3090*1+5950x",
    ],
)  # fmt: skip
def test_spellings_of_one_machine_have_one_name_and_hash(typed: str) -> None:
    assert machine_name(typed) == "rtx-3090+ryzen-9-5950x"
    first = load_profile("rtx-3090+ryzen-9-5950x")
    assert load_profile(typed).content_hash() == first.content_hash()


def test_the_example_in_canonical_form() -> None:
    assert canonical(EXAMPLE) == "rtx-4090+xeon-gold-6454s*2+ddr5-4800*16+pcie4x16+nvme4"
    assert canonical("rtx-4090+8480+*2+ram=512") == "rtx-4090+xeon-platinum-8480*2+ram=512"
    assert canonical("rtx-4090+8480+") == "rtx-4090+xeon-platinum-8480"
    assert canonical("8480++rtx-4090") == "rtx-4090+xeon-platinum-8480"


def test_other_hardware_has_another_hash() -> None:
    texts = ["rtx-3090+5950x", "rtx-3090+5950x+ram=32", "rtx-3090*2+5950x", "rtx-3090+7950x"]
    assert len({load_profile(text).content_hash() for text in texts}) == len(texts)


def test_names_of_the_catalogue_win() -> None:
    for name in profile_names():
        assert machine_name(name) == name
        assert load_profile(name).name == name
    assert load_profile("rtx4090").host.name == "AMD Ryzen 5 9600X"
    assert load_profile("rtx-4090").host.name == "Ryzen 7 7700"
    assert (machine_name("local"), machine_name("box.yaml")) == ("local", "box.yaml")
    assert machine_name("nope") == "nope"


def test_a_list_of_parts_is_recognised() -> None:
    assert all(map(is_composed, ["rtx-3090", "cpu-only", "a+b", "a,b", "ram=64", "strix-halo"]))
    assert not any(map(is_composed, ["nope", "../machines/a6000", "", "local", "a6000@daop"]))


def test_what_is_not_named_is_in_the_description() -> None:
    said = load_profile("rtx-3090").description
    assert "not named, so assumed: processor Ryzen 7 7700, DDR5-5200 on every channel" in said
    assert "assumed: 1024 GB of memory" in load_profile(EXAMPLE).description
    assert "assumed" not in load_profile(f"{EXAMPLE},ram=512").description


def test_numbers_of_an_assumed_processor_are_estimates() -> None:
    for text in ("rtx-3090", "cpu-only"):
        got = numbers(text)
        assert {n.badge for field, n in got.items() if field.startswith("host.")} == {"estimate"}
    assert numbers("rtx-3090+ryzen-7-7700")["host.cores"].badge == "datasheet"
    assert load_profile("rtx-3090+ddr4-3200").host.name == "Ryzen 7 5800X"
    assert numbers("rtx-3090+ram=48")["host.memory"].badge == "datasheet"


# -------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("bad", "complaint", "good"),
    [
        ("rtx-3090+ryzen-5951x", "unknown part 'ryzen-5951x'; nearest: .*ryzen-9-5950x.*; all: "
         "moebench machines list --parts", "rtx-3090+ryzen-5950x"),
        ("rtx-3090+whatever", "unknown part 'whatever'; .*list --parts", "rtx-3090"),
        ("h100+5950x", "may be h100-pcie-80gb or h100-sxm-80gb", "h100-sxm-80gb+5950x"),
        ("rtx-3090+rtx-4090+5950x", "rtx-4090 and rtx-3090 are both gpus", "rtx-3090*2+5950x"),
        ("rtx-3090+rtx-3090", r"rtx-3090 is named twice; .*write rtx-3090\*2", "rtx-3090*2"),
        ("rtx-3090+5950x+7950x", "are both processors", "rtx-3090+7950x"),
        ("rtx-3090*0+5950x", "count '0' of RTX 3090; allowed: a whole number from 1 to 16",
         "rtx-3090*1+5950x"),
        ("rtx-3090*17+5950x", "count '17' of RTX 3090", "rtx-3090*16+5950x"),
        ("rtx-3090*-1", "count '-1'", "rtx-3090*1"),
        ("rtx-3090*1.5", "count '1.5'", "rtx-3090*2"),
        ("rtx-3090*", "count ''", "rtx-3090"),
        ("rtx-3090*2*2", r"count '2\*2'", "rtx-3090*4"),
        ("rtx-3090*٣", "count '٣'", "rtx-3090*3"),
        ("rtx-3090*999999999999", "count '999999999999'", "rtx-3090*9"),
        ("rtx-3090+5950x*2", "count '2' of Ryzen 9 5950X; allowed: only 1", "rtx-3090+5950x*1"),
        ("rtx-3090+epyc-9654*3", "count '3' of EPYC 9654", "rtx-3090+epyc-9654*2"),
        ("rtx-3090+7950x+ddr4-3200", "Ryzen 9 7950X does not take DDR4; allowed: ddr5-5200",
         "rtx-3090+7950x+ddr5-5200"),
        ("rtx-3090+5950x+ddr5-4800", "Ryzen 9 5950X does not take DDR5; allowed: ddr4-3200",
         "rtx-3090+5950x+ddr4-3200"),
        ("rtx-3090+5950x+ddr4-9999", "9999 MT/s is no rate of DDR4; allowed: 1333 to 5333",
         "rtx-3090+5950x+ddr4-4000"),
        ("rtx-3090+5950x+ddr4-3200*5", "5 memory modules: 1 x Ryzen 9 5950X takes 1 to 4",
         "rtx-3090+5950x+ddr4-3200*4"),
        ("rtx-3090+epyc-9654*2+ddr5-4800*1", "1 memory modules: 2 x EPYC 9654 takes 2 to 48",
         "rtx-3090+epyc-9654*2+ddr5-4800*2"),
        ("rtx-3090+5950x+ddr4-3200*0", "count '0'", "rtx-3090+5950x+ddr4-3200*1"),
        ("rtx-3090+5950x+ddr4-3200+ddr4-3600", "memory is named twice", "rtx-3090+5950x+ddr4-3600"),
        ("rtx-3090+5950x+ram=0", "allowed: ram=N, GB from 1 to 32768", "rtx-3090+5950x+ram=1"),
        ("rtx-3090+5950x+ram=-4", "allowed: ram=N", "rtx-3090+5950x+ram=4"),
        ("rtx-3090+5950x+ram=nan", "allowed: ram=N", "rtx-3090+5950x+ram=4.5"),
        ("rtx-3090+5950x+ram=1e9", "allowed: ram=N", "rtx-3090+5950x+ram=32768"),
        ("rtx-3090+5950x+ram=99999", "allowed: ram=N", "rtx-3090+5950x+ram = 64 GB"),
        ("rtx-3090+ram=64+ram=32", "ram is named twice", "rtx-3090+ram=32"),
        ("rtx-3090+pcie5x16", "PCIe 5.0 x16 does not fit: RTX 3090 has PCIe 4.0 x16 .*pcie4x16",
         "rtx-3090+pcie4x16"),
        ("rtx-5090+5950x+pcie5x16", "and Ryzen 9 5950X PCIe 4.0 x16", "rtx-5090+7950x+pcie5x16"),
        ("rtx-4060-ti+pcie4x16", "up to pcie4x8", "rtx-4060-ti+pcie4x8"),
        ("rtx-3090+pcie4x16*2", "pcie4x16: has no count", "rtx-3090+pcie4x16"),
        ("rtx-3090+nvme4*2", "nvme4: has no count", "rtx-3090+nvme4"),
        ("rtx-3090+nvme4+nvme5", "nvme5 and nvme4 are both disks", "rtx-3090+nvme5"),
        ("rtx-3090+", "a part has no name", "rtx-3090"),
        ("+rtx-3090", "a part has no name", "rtx-3090"),
        ("rtx-3090,,5950x", "a part has no name", "rtx-3090,5950x"),
        ("*2+rtx-3090", "a part has no name", "rtx-3090*2"),
        ("ryzen-7950x", "names no GPU; add one, or cpu-only", "cpu-only+ryzen-7950x"),
        ("ram=64", "names no GPU", "cpu-only+ram=64"),
        ("cpu-only+rtx-3090", "cpu-only and rtx-3090 exclude each other", "cpu-only"),
        ("cpu-only+7950x+pcie4x16", "cpu-only has no link", "cpu-only+7950x"),
        ("cpu-only*2", "cpu-only: has no count", "cpu-only+epyc-9654*2"),
        ("strix-halo+rtx-3090", "has its own processor, GPU and memory, so rtx-3090", "strix-halo"),
        ("strix-halo+7950x", "so ryzen-9-7950x does not fit", "strix-halo+nvme5"),
        ("strix-halo+ddr5-4800", "so ddr5-4800 does not fit", "strix-halo"),
        ("strix-halo+pcie4x4", "so pcie4x4 does not fit", "strix-halo"),
        ("cpu-only+strix-halo", "so cpu-only does not fit", "strix-halo"),
        ("strix-halo*2", "strix-halo: has no count", "strix-halo"),
        ("strix-halo+gb10", "are both pools", "gb10"),
        ("strix-halo+ram=256", "no memory of 256 GB; allowed: ram=64 to ram=128",
         "strix-halo+ram=96"),
        ("gb10+ram=64", "allowed: ram=128", "gb10+ram=128"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(bad: str, complaint: str, good: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        load_profile(bad)
    assert str(caught.value).startswith(f"machine {bad!r}: ")
    assert "\n" not in str(caught.value)
    assert HardwareProfile.from_mapping(composed(good)).name == canonical(good)


def test_an_unknown_machine_lists_machines_and_parts() -> None:
    with pytest.raises(UnknownNameError, match=r"rtx-3090.*moebench machines list --parts"):
        load_profile("rtx-3091")
    with pytest.raises(UnknownNameError) as caught:
        load_profile("nowhere")
    assert "--parts" not in str(caught.value)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.text(max_size=12), st.sampled_from(["+", ",", "*", "="]))
def test_any_text_is_a_machine_or_one_line(text: str, sign: str) -> None:
    for typed in (text, f"rtx-3090{sign}{text}", f"{text}{sign}5950x"):
        said = ""
        try:
            assert composed(typed)["name"]
        except UsageError as error:
            said = str(error)
        assert "\n" not in said
