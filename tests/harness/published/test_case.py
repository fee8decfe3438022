"""What is read from a published row: each of its words, and what stands for one that is missing."""

from typing import Any

import pytest

from moebench.harness.published.case import (
    UNSAID,
    USUAL,
    Case,
    Lengths,
    case_of,
    engine_holds_all,
    format_constant,
    interleaved,
    products_constant,
    threads_reached,
)
from moebench.harness.published.rows import Row
from moebench.substrate.models.bits import Bits
from tests.harness.published.made import SAID


def case(**changes: Any) -> Case:
    return case_of(Row(**(SAID | changes)))


def said(one: Case, *names: str) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names}


NOT_CACHED = {"n_cpu_moe": None, "system": "gnf4", "other_flags": ""}


def test_a_row_that_says_everything_leaves_nothing_open() -> None:
    one = case()
    assert one.profile.name == "rtx-3090+ryzen-9-7950x+ddr5-5200*2+ram=96"
    assert one.engine.name == "llama.cpp"
    assert one.shape.num_layers == 36
    assert said(
        one, "batch", "hit_rate", "first", "whole", "hot", "threads", "wide", "tiles", "repacked",
        "products", "reads", "sockets", "bound", "virtual", "format", "cache_bytes", "micro_batch",
        "lengths", "pinned", "on_host", "measured", "rate", "unsaid", "remarks",
    ) == {
        "batch": 1, "hit_rate": None, "first": 36, "whole": False, "hot": 0.0, "threads": 16,
        "wide": True, "tiles": False, "repacked": False, "products": "device products",
        "reads": "desktop reads", "sockets": 1, "bound": False, "virtual": False,
        "format": "fp4 formats", "cache_bytes": 2.0, "micro_batch": 512,
        "lengths": (576, 512, 0, 0), "pinned": True, "on_host": False, "measured": frozenset(),
        "rate": None, "unsaid": {}, "remarks": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"batch": 4, "hit_rate": 0.4}, {"batch": 4, "hit_rate": 0.4}),
        ({"ubatch": None}, {"micro_batch": 512}),
        ({"ubatch": 2048}, {"micro_batch": 2048}),
        ({"ubatch": None, "system": "ktransformers", "prompt_tokens": 700}, {"micro_batch": 700}),
        ({"ubatch": 64, "system": "ktransformers"}, {"micro_batch": 64}),
        ({"quant": "Q4_K_M", "date": "2025-04"}, {"repacked": True, "format": ""}),
        ({"quant": "Q4_K_M", "date": "2025-03"}, {"repacked": False}),
        ({"quant": "Q4_0", "system": "ik_llama.cpp"}, {"repacked": False}),
        ({"other_flags": "amx"}, {"tiles": True, "pinned": False}),
        ({"group": "amx-host"}, {"tiles": True}),
        ({"id": "with AMX"}, {"tiles": True}),
        ({"notes": "amx2"}, {"tiles": False}),
        ({"other_flags": "mmap off"}, {"pinned": True}),
        ({"other_flags": "", "notes": "registered memory"}, {"pinned": True}),
        ({"other_flags": "unpinned"}, {"pinned": False}),
        ({"other_flags": "", "system": "exllamav3"}, {"pinned": True}),
        ({"notes": "NUMA copies"}, {"bound": True}),
        ({"notes": "numactl"}, {"bound": False}),
        ({"notes": "dual socket"}, {"bound": True}),
        ({"other_flags": "kv q8_0"}, {"cache_bytes": 34 / 32}),
        ({"other_flags": "q8_0 KV"}, {"cache_bytes": 34 / 32}),
        ({"notes": "kv q4_0"}, {"cache_bytes": 18 / 32}),
        ({"notes": "fp8 kv"}, {"cache_bytes": 1.0}),
        ({"notes": "k q8_0, v fp16"}, {"cache_bytes": (34 / 32 + 2) / 2}),
        ({"gpu": "Radeon RX 7900 XTX"}, {"products": "other products"}),
        ({"cpu": "Ryzen 9 5950X", "ram_type": "DDR4-3200"}, {"wide": False}),
        ({"cpu": "EPYC 9354 24 vCPU", "ram_type": "DDR5-4800", "ram_channels": "12"},
         {"virtual": True, "reads": "server reads", "threads": 12 + 0.3 * 4}),
        ({"cpu": "EPYC 9354 (a VM)", "ram_type": "DDR5-4800", "ram_channels": "12"},
         {"virtual": True, "threads": 16}),
        ({"cpu": "EPYC 9354 24 vCPU", "ram_type": "", "gpu": "", "n_gpu": 0}, {"virtual": False}),
        ({"n_gpu": 0}, {"on_host": True, "first": 36, "whole": True}),
        ({"other_flags": "CPU only", "n_cpu_moe": 0}, {"on_host": True, "first": 36}),
        ({"other_flags": "backend, CPU"}, {"on_host": True}),
        ({"other_flags": "backend, CPU and GPU"}, {"on_host": False}),
    ],
)  # fmt: skip
def test_words_of_a_row(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    found = said(case(**changes), *expected)
    assert found == pytest.approx(expected) if "threads" in expected else found == expected


@pytest.mark.parametrize(
    ("asked", "cores", "reached"),
    [(1, 8, 1), (8, 8, 8), (9, 8, 8.3), (16, 8, 10.4), (64, 8, 10.4), (4, 1, 1.3)],
)
def test_a_second_thread_of_a_core_adds_three_tenths(
    asked: int, cores: int, reached: float
) -> None:
    assert threads_reached(asked, cores) == pytest.approx(reached)


# ------------------------------------------------------------------------------ the machine

SERVER = {"cpu": "Xeon Gold 6454S", "ram_type": "DDR5-4800", "ram_channels": "8", "threads": 32}


@pytest.mark.parametrize(
    ("changes", "machine", "sockets"),
    [
        ({"ram_gb": None}, "rtx-3090+ryzen-9-7950x+ddr5-5200*2", 1),
        ({"ram_gb": 0.5}, "rtx-3090+ryzen-9-7950x+ddr5-5200*2+ram=1", 1),
        ({"ram_gb": 1e5}, "rtx-3090+ryzen-9-7950x+ddr5-5200*2+ram=32768", 1),
        ({"n_gpu": None}, "rtx-3090+ryzen-9-7950x+ddr5-5200*2+ram=96", 1),
        ({"n_gpu": 3}, "rtx-3090*3+ryzen-9-7950x+ddr5-5200*2+ram=96", 1),
        ({"n_gpu": 0}, "cpu-only+ryzen-9-7950x+ddr5-5200*2+ram=96", 1),
        ({"ram_type": "DDR5"}, "rtx-3090+ryzen-9-7950x+ddr5-5200*2+ram=96", 1),
        ({"ram_type": "ddr5-4800"}, "rtx-3090+ryzen-9-7950x+ddr5-4800*2+ram=96", 1),
        ({"ram_type": "DDR4-3200"}, "rtx-3090+ryzen-9-7950x+ram=96", 1),
        ({"ram_type": ""}, "rtx-3090+ryzen-9-7950x+ram=96", 1),
        ({"ram_channels": ""}, "rtx-3090+ryzen-9-7950x+ddr5-5200+ram=96", 1),
        ({"ram_channels": "128 bit"}, "rtx-3090+ryzen-9-7950x+ddr5-5200+ram=96", 1),
        ({"ram_channels": "4"}, "rtx-3090+ryzen-9-7950x+ddr5-5200*2+ram=96", 1),
        ({"ram_channels": "1"}, "rtx-3090+ryzen-9-7950x+ddr5-5200*1+ram=96", 1),
        ({"sockets": 2}, "rtx-3090+ryzen-9-7950x+ddr5-5200*2+ram=96", 1),
        ({**SERVER, "sockets": None}, "rtx-3090+xeon-gold-6454s+ddr5-4800*8+ram=96", 1),
        ({**SERVER, "sockets": 2}, "rtx-3090+xeon-gold-6454s*2+ddr5-4800*16+ram=96", 2),
        ({**SERVER, "sockets": 2, "ram_channels": "16"},
         "rtx-3090+xeon-gold-6454s*2+ddr5-4800*16+ram=96", 2),
        ({**SERVER, "sockets": 2, "ram_channels": "9"},
         "rtx-3090+xeon-gold-6454s*2+ddr5-4800*9+ram=96", 2),
        ({**SERVER, "sockets": 2, "ram_channels": "9 per socket"},
         "rtx-3090+xeon-gold-6454s*2+ddr5-4800*16+ram=96", 2),
        ({**SERVER, "sockets": 2, "ram_channels": "8 total"},
         "rtx-3090+xeon-gold-6454s*2+ddr5-4800*8+ram=96", 2),
        ({**SERVER, "sockets": 2, "ram_channels": "7 DIMMs over 2 sockets"},
         "rtx-3090+xeon-gold-6454s*2+ddr5-4800*7+ram=96", 2),
        ({**SERVER, "sockets": None, "cpu": "2x Xeon Gold 6454S"},
         "rtx-3090+xeon-gold-6454s*2+ddr5-4800*16+ram=96", 2),
        ({**SERVER, "sockets": None, "cpu": "Dual Xeon Gold 6454S", "ram_channels": "4"},
         "rtx-3090+xeon-gold-6454s*2+ddr5-4800*8+ram=96", 2),
        ({**SERVER, "sockets": 1, "cpu": "2x Xeon Gold 6454S"},
         "rtx-3090+xeon-gold-6454s+ddr5-4800*8+ram=96", 1),
        ({"pcie_gen": 4, "pcie_lanes": 8}, "rtx-3090+ryzen-9-7950x+ddr5-5200*2+ram=96+pcie4x8", 1),
        ({"pcie_gen": 5, "pcie_lanes": 32},
         "rtx-3090+ryzen-9-7950x+ddr5-5200*2+ram=96+pcie4x16", 1),
        ({"pcie_gen": 4, "pcie_lanes": 16, "cpu": "Ryzen 5 5600G", "ram_type": "DDR4"},
         "rtx-3090+ryzen-5-5600g+ddr4-3200*2+ram=96+pcie3x16", 1),
        ({"pcie_gen": 4, "pcie_lanes": 1}, "rtx-3090+ryzen-9-7950x+ddr5-5200*2+ram=96", 1),
        ({"pcie_gen": 4}, "rtx-3090+ryzen-9-7950x+ddr5-5200*2+ram=96", 1),
        ({"pcie_lanes": 8}, "rtx-3090+ryzen-9-7950x+ddr5-5200*2+ram=96", 1),
        ({"gpu": "A100 80GB (PCIe)"}, "a100-80gb-pcie+ryzen-9-7950x+ddr5-5200*2+ram=96", 1),
        ({"gpu": "NVIDIA A100, 80 GB"}, "a100-80gb-pcie+ryzen-9-7950x+ddr5-5200*2+ram=96", 1),
        ({"gpu": "NVIDIA A100, 40GB"}, "a100-40gb-pcie+ryzen-9-7950x+ddr5-5200*2+ram=96", 1),
        ({"gpu": "NVIDIA A100"}, "a100-40gb-pcie+ryzen-9-7950x+ddr5-5200*2+ram=96", 1),
        ({"gpu": "a workstation (RTX 3090)"}, "rtx-3090+ryzen-9-7950x+ddr5-5200*2+ram=96", 1),
        ({"gpu": "MSI RTX 3090 Gaming/Trio, 24 GB"},
         "rtx-3090+ryzen-9-7950x+ddr5-5200*2+ram=96", 1),
        ({"gpu": "Strix Halo", "cpu": "", "ram_gb": None}, "strix-halo+ram=128", 1),
        ({"gpu": "Strix Halo", "ram_gb": 32.0}, "strix-halo+ram=64", 1),
        ({"gpu": "", "cpu": "Strix Halo", "ram_gb": 96.0}, "strix-halo+ram=96", 1),
        ({"gpu": "Strix Halo", "ram_gb": 256.0}, "strix-halo+ram=128", 1),
    ],
)  # fmt: skip
def test_the_machine_of_a_row(changes: dict[str, Any], machine: str, sockets: int) -> None:
    one = case(**changes)
    assert one.profile.name == machine
    assert one.sockets == sockets


def test_a_machine_of_one_memory_has_all_on_its_device_and_all_its_cores() -> None:
    one = case(gpu="Strix Halo", threads=4)
    assert said(one, "first", "whole", "threads", "wide", "reads", "sockets", "on_host", "hot") == {
        "first": 0, "whole": False, "threads": 16, "wide": True, "reads": "pool reads",
        "sockets": 1, "on_host": False, "hot": 0.0,
    }  # fmt: skip
    assert not case(gpu="DGX Spark").wide


@pytest.mark.parametrize(
    ("cpu", "stand_in"),
    [
        ("EPYC 9575F", "epyc-9355"), ("EPYC 9124", "epyc-9354"), ("Genoa", "epyc-9354"),
        ("EPYC 7302", "epyc-7763"), ("Xeon E5-2680 v3", "xeon-e5-2690-v3"),
        ("Xeon E5-2680 v4", "xeon-e5-2650-v4"), ("Xeon E7-4850", "xeon-e7-8890-v3"),
        ("Xeon 6972P", "xeon-6980p"), ("Xeon Gold 6530", "xeon-platinum-8592"),
        ("Xeon Gold 6438", "xeon-gold-6430"), ("Xeon Gold 6330", "xeon-gold-6252"),
        ("Xeon Silver 4114", "xeon-gold-6138"), ("Xeon W3-2423", "xeon-w5-3425"),
        ("Threadripper Pro 7955WX", "threadripper-pro-7965wx"),
        ("Threadripper Pro 3945WX", "threadripper-pro-5975wx"),
        ("Threadripper 7960X", "threadripper-7980x"), ("Ryzen 5 7600", "ryzen-7-7700"),
        ("Ryzen 5 3600", "ryzen-7-5800x"), ("i5-12400", "core-i5-12600k"),
        ("i7-6700", "core-i7-8700"),
    ],
)  # fmt: skip
def test_another_processor_of_the_family_stands_for_one_that_is_not_known(
    cpu: str, stand_in: str
) -> None:
    one = case(cpu=cpu, ram_type="", ram_channels="", threads=None, sockets=1)
    assert one.profile.name == f"rtx-3090+{stand_in}+ram=96"
    assert one.unsaid.keys() == {"processor itself", "rate of the memory", "threads"}
    assert one.remarks[0].startswith("processor itself not said: ")
    assert one.remarks[0].endswith(f" stands for {cpu}")


@pytest.mark.parametrize(
    ("changes", "stand_in", "kind"),
    [
        ({}, "ryzen-7-7700", "desktop"),
        ({"ram_type": "DDR4"}, "ryzen-7-5800x", "desktop"),
        ({"cpu": "some server"}, "epyc-9354", "server"),
        ({"cpu": "some server", "ram_type": "ddr4"}, "epyc-7763", "server"),
        ({"n_gpu": 2}, "ryzen-7-7700", "desktop"),
        ({"n_gpu": 3}, "epyc-9354", "server"),
        ({"sockets": None, "n_gpu": None}, "ryzen-7-7700", "desktop"),
        ({"sockets": 2}, "epyc-9354", "server"),
        ({"cpu": "24 cores"}, "epyc-9354", "server"),
        ({"cpu": "23-core"}, "ryzen-7-7700", "desktop"),
        ({"cpu": "64c"}, "epyc-9354", "server"),
    ],
)
def test_a_common_processor_stands_for_one_that_is_not_named(
    changes: dict[str, Any], stand_in: str, kind: str
) -> None:
    one = case(**{"cpu": "", "ram_type": "", "sockets": 1} | changes)
    assert one.profile.name.split("+")[1].split("*")[0] == stand_in
    assert one.unsaid[f"processor of a {kind}"] == {"desktop": 0.35, "server": 0.6}[kind]
    assert one.reads == f"{kind} reads"
    cpu = changes.get("cpu") or "none"
    assert one.remarks[0].startswith(f"processor of a {kind} not said: {cpu}; ")


@pytest.mark.parametrize(
    ("changes", "unsaid"),
    [
        ({"ram_type": ""}, {"rate of the memory"}),
        ({"ram_type": "DDR5"}, {"rate of the memory"}),
        ({"ram_type": "", "ram_gb_s": 60.0}, set()),
        ({"ram_channels": ""}, {"memory channels"}),
        ({"ram_channels": "", "ram_gb_s": 60.0}, set()),
        ({"threads": None}, {"threads"}),
        ({"bits_per_weight": None}, {"bits"}),
        ({"bits_per_weight": None, "quant": ""}, {"quantisation"}),
        ({"prompt_tokens": None}, {"prompt"}),
        ({"n_cpu_moe": None}, {"placement"}),
        ({**SERVER, "sockets": 2}, {"several sockets"}),
        ({**NOT_CACHED, "threads": None, "ram_type": "", "cpu": ""}, set()),
        ({**NOT_CACHED, "prompt_tokens": None}, {"prompt"}),
    ],
)
def test_what_is_not_said_is_remarked_on(changes: dict[str, Any], unsaid: set[str]) -> None:
    """What concerns the host's processor does not where it computes no experts."""
    one = case(**changes)
    assert one.unsaid == {name: UNSAID[name] for name in unsaid}
    assert {remark.partition(" not said: ")[0] for remark in one.remarks} == unsaid


@pytest.mark.parametrize(
    ("changes", "reads", "value", "span"),
    [
        ({"ram_gb_s": 60.0}, "measured reads", 54.0, (45.0, 60.0)),
        ({"ram_gb_s": 79.0}, "measured reads", 71.1, (59.25, 79.0)),  # 0.95 x 83.2 are 79.04
        ({"ram_gb_s": 79.1}, "desktop reads", 66.56, (52.42, 73.22)),
        ({"ram_gb_s": 60.0, "notes": "Theoretical"}, "desktop reads", 66.56, (52.42, 73.22)),
        ({"ram_gb_s": 60.0, "notes": "nominal"}, "desktop reads", 66.56, (52.42, 73.22)),
    ],
)
def test_a_measured_bandwidth_takes_the_place_of_the_composed_one(
    changes: dict[str, Any], reads: str, value: float, span: tuple[float, float]
) -> None:
    one = case(**changes)
    assert one.reads == reads
    found = one.profile.host.gemv_bandwidth
    assert found.value == pytest.approx(value)
    assert found.range == pytest.approx(span)
    assert found.unit == "GB/s"


def test_a_measured_link_has_no_further_loss() -> None:
    link = case(h2d_gb_s=20.0).profile.link
    assert link.pinned_h2d.bytes_per_s == 20e9
    assert link.pinned_h2d.range == pytest.approx((19.0, 21.0))
    assert link.in_engine_efficiency.value == 1.0
    assert link.in_engine_efficiency.range is None
    assert case().profile.link.pinned_h2d.bytes_per_s == 26e9


@pytest.mark.parametrize(
    ("cpu", "threads", "reached"),
    [
        ("Ryzen 9 7950X", None, 16), ("Ryzen 9 7950X (8c)", None, 8),
        ("Ryzen 9 7950X (8c)", 12, 8 + 0.3 * 4), ("Ryzen 9 7950X 8 vCPU", None, 4),
        ("Ryzen 9 7950X 1 vCPU", None, 1),
    ],
)  # fmt: skip
def test_cores_are_those_that_a_row_names(cpu: str, threads: int | None, reached: float) -> None:
    assert case(cpu=cpu, threads=threads).threads == pytest.approx(reached)


def test_cores_of_all_sockets_count() -> None:
    cpu = "2x Xeon Gold 6454S (24 c)"
    assert case(**SERVER | {"cpu": cpu, "sockets": None, "threads": None}).threads == 48


# ------------------------------------------------------------------------------ the model


@pytest.mark.parametrize(
    ("quant", "given", "bits"),
    [
        ("Q4_K_M", None, (4.8438, 4.8944)), ("q4-k-m", None, (4.8438, 4.8944)),
        ("UD-Q4_K_XL", None, (4.5, 4.5)), ("IQ4_XS", 4.3, (4.3, None)),
        ("Q8", None, (8.5, 8.5008)), ("Q6", None, (6.5625, 6.5633)), ("w5q5", None, (5.5, 5.5)),
        ("3.5bpw", None, (3.5, 3.5)), ("EXL3 4.25 bpw", None, (4.25, 4.25)),
        ("INT4", 4.0, (4.0, 8.5)), ("", 4.5, (4.5, 8.5)), ("BF16, Q4_K_M experts", 4.5, (4.5, 16)),
        ("f16 and Q4_K_M", 4.5, (4.5, 16)), ("Q4_K_M of bf16x", 4.5, (4.5, 4.8944)),
        ("Q9", None, USUAL), ("", None, USUAL),
    ],
)  # fmt: skip
def test_bits_are_as_stated_or_those_of_the_format(
    quant: str, given: float | None, bits: tuple[float, float | None]
) -> None:
    found = case(quant=quant, bits_per_weight=given).bits
    assert isinstance(found, Bits)
    assert found == (bits[0], bits[1] if bits[1] is not None else found.others)


@pytest.mark.parametrize(
    ("quant", "constant"),
    [
        ("IQ1_S", "codebook formats"), ("UD-IQ3_XXS", "codebook formats"), ("IQ4_XS", ""),
        ("MXFP4", "fp4 formats"), ("nvfp4", "fp4 formats"), ("Q2_K", "few bits"),
        ("UD-Q3_K_XL", "few bits"), ("Q4_K_M", ""), ("", ""),
    ],
)  # fmt: skip
def test_formats_have_their_constants(quant: str, constant: str) -> None:
    assert format_constant(quant) == constant
    assert case(quant=quant).format == constant


@pytest.mark.parametrize(
    ("quant", "date", "expected"),
    [
        ("Q4_0", "", True), ("IQ4-NL", "", True), ("Q4_K_S", "2025-04", True),
        ("Q4_K_S", "2025-03-31", False), ("Q5_K", "2026-01", False), ("Q4_1", "2026-01", False),
    ],
)  # fmt: skip
def test_llama_cpp_interleaves_some_formats(quant: str, date: str, expected: bool) -> None:
    assert interleaved(quant, date) is expected


@pytest.mark.parametrize(
    ("flags", "used"),
    [
        ("2 of 128 experts", 2), ("128 of 128 experts", 128), ("129 of 128 experts", 4),
        ("0 of 128 experts", 4), ("-ser 3", 3), ("6 experts", 6), ("top=6 experts", 4),
        ("16 experts", 4), ("", 4),
    ],
)  # fmt: skip
def test_a_row_may_use_fewer_experts(flags: str, used: int) -> None:
    assert case(other_flags=flags).shape.top_k == used


#: Bytes of an expert of gpt-oss-120b in 4.25 bits, and the number of those in its 36 layers.
EXPERT, EXPERTS = 24_891_840 * 4.25 / 8, 36 * 128


def free_bytes(one: Case, kept: int) -> float:
    """0.94 of the card's 24 GiB but 1.2 GB: less common weights, and the cache of ``kept``."""
    common = 2_127_557_952 * one.bits.others / 8
    return 0.94 * 24 * 2**30 - 1.2e9 - common - one.shape.kv_bytes(kept)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("64 of 128 experts per layer", 0.5), ("static 200 of 128", 1.0), ("32 experts", 0.25),
        ("16 GPU slots", 0.125), ("0", 0.0), ("", 0.0), ("some", 0.0),
        ("4 GiB", 4 * 2**30 / (EXPERTS * EXPERT)), ("512 MiB", 2**29 / (EXPERTS * EXPERT)),
        ("1.5 GiB per GPU", 1.5 * 2**30 / (EXPERTS * EXPERT)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("system", ["llama.cpp-moe-cache", "gnf4"])
def test_the_share_of_hot_experts(text: str, share: float, system: str) -> None:
    found = case(system=system, cached_experts_or_slots=text).hot
    assert found == pytest.approx(share)


def test_cards_hold_hot_experts_together() -> None:
    cache = {"system": "llama.cpp-moe-cache", "n_gpu": 2}
    each = case(**cache, cached_experts_or_slots="1.5 GiB per GPU").hot
    together = case(**cache, cached_experts_or_slots="1.5 GiB").hot
    assert each == pytest.approx(3 * 2**30 / (EXPERTS * EXPERT))
    assert together == pytest.approx(each / 2)
    cache["n_gpu"] = None
    assert case(**cache, cached_experts_or_slots="1.5 GiB per GPU").hot == together


@pytest.mark.parametrize("text", ["auto", "all free VRAM"])
@pytest.mark.parametrize(("flags", "kept"), [("", 8192), ("32k ctx", 32768), ("4k ctx", 8192)])
def test_a_cache_may_fill_what_is_free(text: str, flags: str, kept: int) -> None:
    """Less 3 GiB of each card."""
    one = case(system="llama.cpp-moe-cache", cached_experts_or_slots=text, other_flags=flags)
    room = free_bytes(one, kept) - 3 * 2**30
    assert one.hot == pytest.approx(room / (EXPERTS * EXPERT), rel=1e-6)
    two = case(system="llama.cpp-moe-cache", cached_experts_or_slots=text, other_flags=flags,
               n_gpu=2)  # fmt: skip
    more = 24 * 2**30 * 0.94 - 3 * 2**30
    assert two.hot == pytest.approx((room + more) / (EXPERTS * EXPERT), rel=1e-6)
    unsaid = case(system="llama.cpp-moe-cache", cached_experts_or_slots=text, other_flags=flags,
                  n_gpu=None)  # fmt: skip
    assert unsaid.hot == one.hot, "one card if a row does not say how many"


def test_only_experts_of_host_layers_are_hot() -> None:
    assert case(cached_experts_or_slots="64 of 128", n_cpu_moe=0).hot == 0.0
    half = case(cached_experts_or_slots="4 GiB", n_cpu_moe=18).hot
    assert half == pytest.approx(4 * 2**30 / (EXPERTS / 2 * EXPERT))


def test_llama_cpps_cache_leaves_small_matrices_to_the_host() -> None:
    """A matrix of Qwen3-30B-A3B is 1.57 M weights: 0.84 MB in 4.25 bits, 1.67 MB in 8.5."""
    small = {"model": "Qwen3-30B-A3B", "cached_experts_or_slots": "64 of 128"}
    assert case(**small, system="llama.cpp-moe-cache").hot == 0.0
    assert case(**small, system="llama.cpp-moe-cache", bits_per_weight=8.5).hot == 0.5
    assert case(**small).hot == 0.5


# ------------------------------------------------------------------------------ lengths, places


@pytest.mark.parametrize(
    ("changes", "lengths"),
    [
        ({}, (576, 512, 0, 0)),
        ({"new_tokens": None}, (576, 512, 0, 0)),
        ({"new_tokens": 11}, (517, 512, 0, 0)),
        ({"prompt_tokens": None}, (576, 512, 0, 0)),
        ({"prompt_tokens": 1}, (65, 1, 0, 0)),
        ({"prompt_tokens": 0}, (64, 512, 0, 0)),
        ({"prompt_tokens": 0, "ubatch": None}, (64, 512, 0, 0)),
        ({"prompt_tokens": 0, "ubatch": 1024}, (64, 1024, 0, 0)),
        ({"prompt_tokens": 0, "notes": "llama-sweep-bench"}, (64, 512, 0, 0)),
        ({"prompt_tokens": None, "other_flags": "prompt class short"}, (164, 100, 0, 0)),
        ({"prompt_tokens": None, "other_flags": "Prompt class medium"}, (1064, 1000, 0, 0)),
        ({"prompt_tokens": None, "other_flags": "prompt class long"}, (4064, 4000, 0, 0)),
        ({"prompt_tokens": None, "other_flags": "prompt class odd"}, (576, 512, 0, 0)),
        ({"other_flags": "depth 4k"}, (4160, 4096, 0, 0)),
        ({"other_flags": "streamingllm w=256"}, (320, 256, 0, 0)),
        ({"other_flags": "streamingllm w=1024"}, (576, 512, 0, 0)),
        ({"other_flags": "-p 2048 depth 8k"}, (8256, 2048, 8192, 0)),
        ({"other_flags": "-p 1"}, (576, 1, 512, 0)),
        ({"other_flags": "-p 0"}, (576, 512, 0, 0)),
        ({"notes": "sweep", "prompt_tokens": 4096, "ubatch": 1024}, (4160, 1024, 4096, 0)),
        ({"notes": "sweep", "prompt_tokens": 4096, "ubatch": None}, (4160, 512, 4096, 0)),
        ({"other_flags": "32k ctx"}, (576, 512, 0, 32768)),
        ({"other_flags": "ctx 16k"}, (576, 512, 0, 16384)),
        ({"other_flags": "ctx 1024"}, (576, 512, 0, 1024)),
        ({"other_flags": "ctx 1023"}, (576, 512, 0, 1023 * 1024)),
        ({"other_flags": "--fit 8k"}, (576, 512, 0, 8192)),
        ({"prompt_tokens": 0, "other_flags": "32k ctx"}, (64, 512, 0, 32768)),
        ({"other_flags": "-p 64 32k ctx"}, (576, 64, 512, 32768)),
        ({"other_flags": "32k ctx", "notes": "sweep"}, (576, 512, 512, 32768)),
    ],
)
def test_the_tokens_of_a_row(changes: dict[str, Any], lengths: tuple[int, int, int, int]) -> None:
    one = case(**changes)
    assert one.lengths == Lengths(*lengths)
    assert ("prompt" in one.unsaid) == (
        "prompt_tokens" in changes and changes["prompt_tokens"] is None
        and "class" not in changes.get("other_flags", "")
    )  # fmt: skip


#: 58 of its 61 layers have experts: those from the fourth on.
DEEPSEEK = {"model": "DeepSeek-R1", "ram_gb": 512.0}


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"n_cpu_moe": "all"}, (61, False)),
        ({"n_cpu_moe": 10, "other_flags": ""}, (13, False)),
        ({"n_cpu_moe": 10, "other_flags": "--n-cpu-moe 10"}, (10, False)),
        ({"n_cpu_moe": 10, "other_flags": "-ncmoe 10"}, (10, False)),
        ({"n_cpu_moe": 57, "other_flags": "-ncmoe 57"}, (57, False)),
        ({"n_cpu_moe": 57, "other_flags": ""}, (60, False)),
        ({"n_cpu_moe": 58, "other_flags": "-ncmoe 58"}, (61, False)),
        ({"n_cpu_moe": 99, "other_flags": ""}, (61, False)),
        ({"n_cpu_moe": 2, "other_flags": "-ncmoe 2"}, (3, False)),
        ({"n_cpu_moe": 0}, (3, False)),
        ({"other_flags": "-ngl 20 whole"}, (41, True)),
        ({"other_flags": "-ngl 99 (all)"}, (0, True)),
        ({"other_flags": "20 layers on GPU"}, (41, True)),
        ({"other_flags": "1 whole layers on gpu"}, (60, True)),
        ({"n_gpu": 0}, (61, True)),
        ({"n_cpu_moe": None, "system": "ktransformers"}, (61, False)),
        ({"n_cpu_moe": None, "notes": "Experts on CPU"}, (61, False)),
    ],
)
def test_the_first_layer_with_experts_on_the_device(
    changes: dict[str, Any], place: tuple[int, bool]
) -> None:
    one = case(**DEEPSEEK | changes)
    assert (one.first, one.whole) == place
    assert "placement" not in one.unsaid


@pytest.mark.parametrize(("flags", "kept"), [("", 8192), ("256k ctx", 2**18)])
def test_without_a_placement_the_device_is_filled(flags: str, kept: int) -> None:
    one = case(n_cpu_moe=None, other_flags=flags)
    fit = int(free_bytes(one, kept) / (128 * EXPERT))
    assert 0 < fit < 36
    assert (one.first, one.whole) == (36 - fit, False)
    assert f"placement not said: experts of {36 - fit} of 36 layers on the host" in one.remarks


def test_a_small_model_is_on_the_device_and_none_of_a_large_one() -> None:
    large = {"gpu": "H200", "n_gpu": 2, "n_cpu_moe": None}
    assert case(**large).first == 0
    tiny = case(gpu="RTX 2060 6GB", n_cpu_moe=None, bits_per_weight=16.0)
    assert tiny.first == 36


@pytest.mark.parametrize(
    ("system", "flags", "expected"),
    [
        ("ktransformers", "", True), ("gnf4", "", True), ("llama.cpp", "", False),
        ("llama.cpp", "experts on CPU", True), ("an engine", "experts on CPU", False),
    ],
)  # fmt: skip
def test_engines_that_keep_all_experts_in_host_memory(
    system: str, flags: str, expected: bool
) -> None:
    assert engine_holds_all(Row(**SAID | {"system": system, "other_flags": flags})) is expected


@pytest.mark.parametrize(
    ("gpu", "constant"),
    [("RTX 3090", "device products"), ("MI300X", "other products"), ("Arc B580", "other products"),
     ("Apple M3 Ultra", "other products"), ("Radeon RX 6600 XT", "other products")],
)  # fmt: skip
def test_devices_of_other_makers_have_their_own_constant(gpu: str, constant: str) -> None:
    assert products_constant(case(gpu=gpu).profile) == constant
