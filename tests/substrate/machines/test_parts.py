"""Parts of machines: their numbers against vendors' data, their names, and what is refused."""

import itertools
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from moebench.substrate.errors import ProfileError, UsageError
from moebench.substrate.machines import parts as module
from moebench.substrate.machines.parts import (
    KINDS,
    Disk,
    Gpu,
    Link,
    Pool,
    Processor,
    find,
    matches,
    memory_of,
    nearest,
    parts,
    parts_of,
)

#: key: GB, GB/s, dense fp16 TFLOPS with fp32 accumulation, W, PCIe; from the vendors' data sheets.
CARDS = {
    "rtx-3090": (24, 936, 71, 350, "PCIe 4.0 x16"),
    "rtx-4090": (24, 1008, 165.2, 450, "PCIe 4.0 x16"),
    "rtx-5090": (32, 1792, 209.5, 575, "PCIe 5.0 x16"),
    "rtx-4060-ti-16gb": (16, 288, 44, 165, "PCIe 4.0 x8"),
    "h100-sxm-80gb": (80, 3350, 989, 700, "PCIe 5.0 x16"),
    "mi300x": (192, 5300, 1307, 750, "PCIe 5.0 x16"),
}

#: key: cores, smaller cores, channels, MT/s, sockets.
PROCESSORS = {
    "ryzen-9-5950x": (16, 0, 2, 3200, 1),
    "ryzen-9-7950x": (16, 0, 2, 5200, 1),
    "core-i9-13900k": (8, 16, 2, 5600, 1),
    "ryzen-ai-9-hx-370": (4, 8, 2, 7500, 1),
    "epyc-9654": (96, 0, 12, 4800, 2),
    "xeon-gold-6454s": (32, 0, 8, 4800, 2),
}


def test_every_kind_has_parts() -> None:
    counts = Counter(part.group for part in parts().values())
    assert counts == {"gpus": 79, "pools": 13, "processors": 66, "links": 9, "disks": 4}
    assert [*counts] == [*KINDS]


@pytest.mark.parametrize("key", CARDS)
def test_cards_have_the_vendors_numbers(key: str) -> None:
    card = find(key)
    assert isinstance(card, Gpu)
    found = (card.memory_gib, card.bandwidth_gbs, card.fp16_tflops, card.power_w, card.pcie.text())
    assert found == CARDS[key]


@pytest.mark.parametrize("key", PROCESSORS)
def test_processors_have_their_cores_and_channels(key: str) -> None:
    one = find(key)
    assert isinstance(one, Processor)
    rate = next(iter(one.memory.values()))
    found = (one.performance_cores, one.efficiency_cores, one.channels, rate, one.sockets)
    assert found == PROCESSORS[key]


@pytest.mark.parametrize(
    ("key", "flops"),
    [
        ("ryzen-9-5950x", 16 * 32),  # AVX2
        ("epyc-9654", 96 * 32),  # AVX-512 in two halves
        ("ryzen-9-9950x", 16 * 64),
        ("core-i9-13900k", 8 * 32 + 16 * 16),
        ("xeon-gold-5218", 16 * 32),  # one multiply-add unit
    ],
)
def test_operations_of_a_cycle(key: str, flops: int) -> None:
    one = find(key)
    assert isinstance(one, Processor)
    assert one.flops_per_cycle == flops


def test_bandwidths_are_possible() -> None:
    for one in parts().values():
        if isinstance(one, Gpu | Pool) and one.measured is not None:
            assert (one.measured.copy_gbs or 0) < one.bandwidth_gbs
        if isinstance(one, Link):
            per_lane = {3: 0.985, 4: 1.969, 5: 3.938}[one.pcie.generation]
            assert one.nominal_gbs == pytest.approx(per_lane * one.pcie.lanes, rel=0.005)
            assert one.h2d_gbs < one.nominal_gbs
        if isinstance(one, Disk):
            assert one.queue1_gbs < one.max_gbs
        if isinstance(one, Processor) and one.own is not None:
            assert one.own.gbs[1] < (one.own.nominal_gbs or 0)


def test_every_part_says_how_sure_its_numbers_are() -> None:
    for one in parts().values():
        assert one.source
        assert one.badge in ("measured", "datasheet", "estimate")
        fields = type(one).model_fields
        assert {one.badge_of(name) for name in one.estimated} <= {"estimate"}
        assert set(one.estimated) <= set(fields)
        if "not looked up" in one.source and one.badge == "datasheet":
            measured = isinstance(one, Gpu) and one.measured is not None
            assert one.estimated or measured, one.key


def test_summaries_name_the_main_numbers() -> None:
    assert find("rtx-3090").summary() == "24 GB, 936 GB/s, 71 TFLOPS, PCIe 4.0 x16"
    assert find("core-i5-12600k").summary() == (
        "6+4 cores, AVX2, 2 x DDR5-4800 or DDR4-3200, PCIe 5.0 x16"
    )
    assert find("dgx-spark").summary().startswith("128 GB, 273 GB/s, 112.5 TFLOPS, 10+10 cores")
    assert all(one.summary() for one in parts().values())


# --------------------------------------------------------------------------------- names


def test_every_key_means_its_own_part() -> None:
    for key, one in parts().items():
        assert matches(key) == [key]
        assert find(key.upper()) is one
        assert find(key.replace("-", " ")) is one
        assert find(key.replace("-", "")) is one


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("ryzen-5950x", "ryzen-9-5950x"),
        ("AMD Ryzen 9 5950X", "ryzen-9-5950x"),
        ("xeon-6454s", "xeon-gold-6454s"),
        ("7950x", "ryzen-9-7950x"),
        ("i9-14900k", "core-i9-14900k"),
        ("Intel Core i9-13900K", "core-i9-13900k"),
        ("threadripper-7965wx", "threadripper-pro-7965wx"),
        ("9654", "epyc-9654"),
        ("9654p", "epyc-9654p"),
        ("8480", "xeon-platinum-8480"),
        ("x3950-x6", "xeon-e7-8890-v3"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("3090", "rtx-3090"),
        ("rtx_4060_ti", "rtx-4060-ti-16gb"),
        ("rtx4090d", "rtx-4090d"),
        ("RTX 4090 Mobile", "rtx-4090-laptop"),
        ("v100", "v100-32gb"),
        ("p40", "tesla-p40"),
        ("7900XTX", "radeon-rx-7900-xtx"),
        ("Radeon 7900 XTX", "radeon-rx-7900-xtx"),
        ("Arc A770", "arc-a770-16gb"),
        ("rtx-a6000", "rtx-a6000"),
        ("M4 Max", "apple-m4-max"),
        ("GB10", "dgx-spark"),
        ("ryzen-ai-max-395", "strix-halo"),
        ("PCIe 4 x16", "pcie4x16"),
        ("nvme", "nvme4"),
    ],
)
def test_short_and_long_names(typed: str, key: str) -> None:
    assert find(typed).key == key


def test_every_short_name_means_one_part_or_lists_the_parts() -> None:
    full, short = module._names()
    for name, keys in short.items():
        assert matches(name) == ([full[name]] if name in full else keys)
        assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("a100", {"a100-40gb-pcie", "a100-80gb-pcie"}),
        ("h100", {"h100-pcie-80gb", "h100-sxm-80gb"}),
        ("rtx-6000", {"rtx-6000-ada", "rtx-pro-6000-blackwell-workstation",
                      "rtx-pro-6000-blackwell-server"}),
    ],
)  # fmt: skip
def test_an_ambiguous_name_is_refused_with_its_candidates(typed: str, keys: set[str]) -> None:
    with pytest.raises(UsageError, match=f"part '{typed}' may be ") as caught:
        find(typed)
    assert all(key in str(caught.value) for key in keys)
    assert set(matches(typed)) == keys
    assert all(find(key).key == key for key in keys)


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("rtx-3091", "rtx-3090"),
        ("ryzen-5951x", "ryzen-9-5950x"),
        ("epyc-9655", "epyc-9654"),
        ("rtx-2080-ti", "rtx-2080-ti-22gb"),  # a modified card is not an ordinary card
    ],
)
def test_an_unknown_name_lists_the_nearest(typed: str, key: str) -> None:
    assert matches(typed) == []
    assert key in nearest(typed)
    with pytest.raises(UsageError, match=f"unknown part '{typed}'; nearest: .*{key}"):
        find(typed)


@pytest.mark.parametrize(
    "typed", ["", "nvidia", "rtx", "16", "../rtx-3090", "rtx-3090é", "rtx;3090"]
)
def test_no_part_has_such_a_name(typed: str) -> None:
    with pytest.raises(UsageError, match="machines list --parts"):
        find(typed)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("ddr4-3200", ("DDR4", 3200)),
        ("DDR5 4800", ("DDR5", 4800)),
        ("lpddr5x-8000", ("LPDDR5X", 8000)),
        ("mrdimm8800", ("MRDIMM", 8800)),
        ("rtx-3090", None),
        ("ddr", None),
        # Slowest and fastest modules that are sold.
        ("ddr3-800", ("DDR3", 800)),
        ("ddr3-2666", ("DDR3", 2666)),
        ("ddr4-1333", ("DDR4", 1333)),
        ("ddr4-5333", ("DDR4", 5333)),
        ("ddr5-2000", ("DDR5", 2000)),
        ("ddr5-10000", ("DDR5", 10000)),
        ("lpddr5x-4800", ("LPDDR5X", 4800)),
        ("lpddr5x-10700", ("LPDDR5X", 10700)),
        ("mrdimm-6400", ("MRDIMM", 6400)),
        ("mrdimm-12800", ("MRDIMM", 12800)),
    ],
)
def test_memory_modules(typed: str, found: tuple[str, int] | None) -> None:
    assert memory_of(typed) == found


@pytest.mark.parametrize(
    "typed",
    ["ddr4-0", "ddr4-9000", "ddr5-1333", "ddr5-99999999", "ddr4-1332", "ddr4-5334", "ddr5-1999"],
)
def test_a_rate_that_no_module_has_is_refused(typed: str) -> None:
    with pytest.raises(UsageError, match=r"is no rate of DDR[45]; allowed: "):
        memory_of(typed)


# ------------------------------------------------------------------------------- bad files

GPU: dict[str, Any] = {
    "key": "x", "name": "X", "memory_gib": 24, "bandwidth_gbs": 900, "fp16_tflops": 70,
    "fp16_acc16_tflops": 140, "bf16": True, "pcie": {"generation": 4, "lanes": 16}, "power_w": 350,
    "source": "s", "badge": "datasheet",
}  # fmt: skip
CPU: dict[str, Any] = {
    "key": "x", "name": "X", "performance_cores": 8, "simd": "AVX2", "base_ghz": 3, "boost_ghz": 4,
    "sockets": 1, "channels": 2, "memory": {"DDR4": 3200},
    "pcie": {"generation": 4, "lanes": 16}, "source": "s", "badge": "datasheet",
}  # fmt: skip
READS = {"gbs": [40, 44], "what": "w", "source": "s"}
POOL: dict[str, Any] = {
    "key": "x", "name": "X", "memory_gib": [64, 128], "bandwidth_gbs": 256, "fp16_tflops": [50, 60],
    "performance_cores": 8, "simd": "NEON", "base_ghz": 3, "boost_ghz": 4, "disk": "nvme4",
    "source": "s", "badge": "datasheet",
}  # fmt: skip
LINK: dict[str, Any] = {
    "key": "x", "name": "X", "pcie": {"generation": 4, "lanes": 16}, "nominal_gbs": 31.5,
    "h2d_gbs": 26, "d2h_gbs": 26, "source": "s", "badge": "measured",
}  # fmt: skip
DISK: dict[str, Any] = {
    "key": "x", "name": "X", "queue1_gbs": 4, "max_gbs": 7, "source": "s", "badge": "measured",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "good", "change", "complaint"),
    [
        (Gpu, GPU, {"memory_gib": 0}, "memory_gib"),
        (Gpu, GPU, {"memory_gib": "24 GB"}, "memory_gib"),
        (Gpu, GPU, {"bandwidth_gbs": float("nan")}, "bandwidth_gbs"),
        (Gpu, GPU, {"pcie": {"generation": 4, "lanes": 3}}, "lanes"),
        (Gpu, GPU, {"badge": "calibrated"}, "badge"),
        (Gpu, GPU, {"estimated": ["nothing"]}, "nothing is not a field"),
        (Gpu, GPU, {"speed": 1}, "speed"),
        (Gpu, GPU, {"source": ""}, "source"),
        (Processor, CPU, {"performance_cores": "8P+16E"}, "performance_cores"),
        (Processor, CPU, {"performance_cores": 0}, "performance_cores"),
        (Processor, CPU, {"efficiency_cores": 4}, "efficiency_flops"),
        (Processor, CPU, {"efficiency_cores": -1}, "efficiency_cores"),
        (Processor, CPU, {"efficiency_flops": 16}, "efficiency_flops"),
        (Processor, CPU, {"base_ghz": 5}, "base_ghz"),
        (Processor, CPU, {"simd": "SSE"}, "simd"),
        (Processor, CPU, {"memory": {}}, "at least one kind"),
        (Processor, CPU, {"memory": {"DDR4": 9999}}, "DDR4-9999"),
        (Processor, CPU, {"memory": {"SDR": 133}}, "memory"),
        (Processor, CPU, {"measured": [{**READS, "gbs": [44, 40]}]}, "lowest, highest"),
        (Processor, CPU, {"measured": [{**READS, "nominal_gbs": 42}]}, "at most nominal_gbs"),
        (Pool, POOL, {"memory_gib": [128, 64]}, "lowest, highest"),
        (Pool, POOL, {"host_gbs": 100}, "host_source"),
        (Link, LINK, {"h2d_gbs": 40}, "at most nominal_gbs"),
        (Disk, DISK, {"queue1_gbs": 8}, "at most max_gbs"),
        (Disk, DISK, {"queue1_range": [5, 3]}, "queue1_range: allowed: .lowest, highest."),
        (Disk, DISK, {"max_range": [8, 6]}, "max_range: allowed: .lowest, highest."),
        (Link, LINK, {"d2h_gbs": 31.6}, "at most nominal_gbs"),
        (Link, LINK, {"h2d_range": [27, 25]}, "h2d_range: allowed: .lowest, highest."),
        (Link, LINK, {"d2h_range": [27, 25]}, "d2h_range: allowed: .lowest, highest."),
        (Pool, POOL, {"fp16_tflops": [60, 50]}, "fp16_tflops: allowed: .lowest, highest."),
        (Pool, POOL, {"power_w": [120, 45]}, "power_w: allowed: .lowest, highest."),
        (Pool, POOL, {"host_source": "s"}, "host_source"),
        (Gpu, GPU, {"memory_gib": 100_001}, "memory_gib"),
        (Gpu, GPU, {"pcie": {"generation": 7, "lanes": 16}}, "generation"),
        (Gpu, GPU, {"pcie": {"generation": 0, "lanes": 16}}, "generation"),
        (Gpu, GPU, {"bf16": 1}, "bf16"),
        (Gpu, GPU, {"name": ""}, "name"),
        (Processor, CPU, {"performance_cores": 1025}, "performance_cores"),
        (Processor, CPU, {"channels": 17}, "channels"),
        (Processor, CPU, {"channels": 0}, "channels"),
        (Processor, CPU, {"base_ghz": 0.4}, "base_ghz"),
        (Processor, CPU, {"boost_ghz": 8.1}, "boost_ghz"),
        (Processor, CPU, {"memory": {"DDR4": 1332}}, "allowed: 1333 to 5333 MT/s"),
    ],
)
def test_impossible_numbers_are_refused(
    kind: type[module.Part], good: dict[str, Any], change: dict[str, Any], complaint: str
) -> None:
    assert kind.model_validate(good).key == "x"
    with pytest.raises(ValidationError, match=complaint):
        kind.model_validate({**good, **change})


@pytest.mark.parametrize(
    ("kind", "good", "change"),
    [
        (Gpu, GPU, {"memory_gib": 100_000}),
        (Gpu, GPU, {"pcie": {"generation": 6, "lanes": 1}}),
        (Gpu, GPU, {"pcie": {"generation": 1, "lanes": 16}}),
        (Processor, CPU, {"performance_cores": 1024, "channels": 16}),
        (Processor, CPU, {"performance_cores": 1, "channels": 1}),
        (Processor, CPU, {"base_ghz": 0.5, "boost_ghz": 8}),
        (Processor, CPU, {"base_ghz": 4, "boost_ghz": 4}),
        (Processor, CPU, {"memory": {"DDR4": 1333, "DDR5": 10000}}),
        (Processor, CPU, {"measured": [{**READS, "nominal_gbs": 44}]}),
        (Processor, CPU, {"measured": [{**READS, "gbs": [44, 44]}]}),
        (Pool, POOL, {"memory_gib": [64, 64], "power_w": [45, 45]}),
        (Link, LINK, {"h2d_gbs": 31.5, "d2h_gbs": 31.5}),
        (Disk, DISK, {"queue1_gbs": 7}),
    ],
)
def test_numbers_at_the_ends_of_what_is_allowed(
    kind: type[module.Part], good: dict[str, Any], change: dict[str, Any]
) -> None:
    assert kind.model_validate({**good, **change}).key == "x"


def test_counterparts_are_accepted() -> None:
    both = {**CPU, "efficiency_cores": 4, "efficiency_flops": 16}
    assert Processor.model_validate(both).flops_per_cycle == 8 * 32 + 4 * 16
    none = {**CPU, "efficiency_cores": 0}  # as a data sheet may state it
    assert Processor.model_validate(none).flops_per_cycle == 8 * 32
    measured = {**CPU, "measured": [READS, {**READS, "nominal_gbs": 51.2}]}
    own = Processor.model_validate(measured).own
    assert own is not None
    assert (own.middle, own.nominal_gbs) == (42, 51.2)
    pool = Pool.model_validate({**POOL, "host_gbs": 100, "host_source": "s"})
    assert pool.host_gbs == 100


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("- 1\n", "expected a mapping"), ("x: 1\n", "expected a mapping"), ("x: {name: X}\n", "x: ")],
)
def test_a_damaged_file_is_one_line(
    text: str, complaint: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KINDS:
        (tmp_path / f"{name}.yaml").write_text(text)
    monkeypatch.setattr(module, "PARTS", tmp_path)
    with pytest.raises(ProfileError, match=complaint) as caught:
        parts.__wrapped__()
    assert "\n" not in str(caught.value)


def test_a_key_is_of_one_kind() -> None:
    keys = itertools.chain.from_iterable([p.key for p in parts_of(kind)] for kind in KINDS)
    assert len(list(keys)) == len(parts())


def test_a_badge_is_of_a_field() -> None:
    card = Gpu.model_validate({**GPU, "estimated": ["power_w"]})
    assert card.badge_of("power_w") == "estimate"
    assert card.badge_of("memory_gib") == "datasheet"


def test_more_than_four_channels_are_a_servers() -> None:
    for channels, server in ((2, False), (4, False), (5, True), (12, True)):
        assert Processor.model_validate({**CPU, "channels": channels}).server is server


def test_only_reads_with_a_nominal_bandwidth_are_a_processors_own() -> None:
    first, second = ({**READS, "nominal_gbs": gbs} for gbs in (51.2, 60))
    own = Processor.model_validate({**CPU, "measured": [READS, first, second]}).own
    assert own is not None
    assert own.nominal_gbs == 51.2
    assert Processor.model_validate({**CPU, "measured": [READS]}).own is None


def test_summaries_of_parts_by_hand() -> None:
    assert Pool.model_validate(POOL).summary() == "64 to 128 GB, 256 GB/s, 55 TFLOPS, 8 cores"
    one = {**POOL, "memory_gib": [96, 96], "efficiency_cores": 4, "efficiency_flops": 16}
    assert Pool.model_validate(one).summary() == "96 GB, 256 GB/s, 55 TFLOPS, 8+4 cores"
    assert Link.model_validate(LINK).summary() == "31.5 GB/s nominal, 26 GB/s to the GPU"
    assert Disk.model_validate(DISK).summary() == "4 GB/s one read at a time, 7 GB/s several"
    assert Processor.model_validate(CPU).summary() == ("8 cores, AVX2, 2 x DDR4-3200, PCIe 4.0 x16")


def test_the_nearest_names_are_of_the_asked_kinds_and_resemble_enough() -> None:
    assert len(nearest("rtx-309")) == 3
    assert nearest("rtx-3091", ["processors"]) != nearest("rtx-3091", ["gpus"])
    assert all(parts()[key].group == "gpus" for key in nearest("rtx-3091", ["gpus"]))
    assert nearest("rtx-3091", cutoff=1.0) == []
    assert nearest("rtx-3090", cutoff=1.0) == ["rtx-3090"]


def test_short_forms_have_a_digit_and_digits_alone_are_four() -> None:
    _, short = module._names()
    for name in short:
        assert len(name) >= 2
        assert any(sign.isdigit() for sign in name)
        assert len(name) >= 4 or not name.isdigit()
    assert "t4" in module._names()[0]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (module.MeasuredDevice, {"copy_gbs": 800, "source": "s"}),
        (module.MeasuredReads, {**READS}),
        (Gpu, GPU), (Processor, CPU), (Pool, POOL), (Link, LINK), (Disk, DISK),
    ],
)  # fmt: skip
def test_texts_are_not_empty(kind: Any, given: dict[str, Any]) -> None:
    for name in given.keys() & {"key", "name", "source", "what"}:
        with pytest.raises(ValidationError, match=name):
            kind.model_validate({**given, name: ""})
