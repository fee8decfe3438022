"""Cases of configurations: virtual machines, calibrated machines, placements, and engines."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from moebench.harness.advise import kept
from moebench.harness.advise.answering import answers
from moebench.harness.advise.ask import question
from moebench.harness.advise.case import case_for, engine_for, host_of
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.machine import hardware
from moebench.harness.advise.question import Question
from moebench.harness.advise.rules import RULES, maker_of
from moebench.harness.published.case import SECOND_THREAD
from moebench.harness.published.constants import COMPONENTS
from moebench.harness.published.predict import rate_of
from moebench.harness.published.simulate import profile_of
from moebench.substrate.machines.compose import composed

LLAMA = Configuration(engine="llama.cpp", host_layers=36, threads=8, micro_batch=512, kv="f16")


def asked(**parts: Any) -> Question:
    usual = {"gpu": "rtx-3090", "cpu": "ryzen-9-5950x", "ram": "64"}
    return question(model="gpt-oss-120b", quant=None, hardware=hardware(**(parts or usual)))


def case(one: Question, config: Configuration = LLAMA) -> Any:
    return case_for(one, RULES[config.engine], config)


def test_processors_of_a_virtual_machine_are_threads_of_half_as_many_cores() -> None:
    one = asked()
    virtual = replace(one, hardware=replace(one.hardware, cores=8, virtual=True))
    assert case(virtual).threads == pytest.approx(4 + 4 * SECOND_THREAD)
    real = replace(one, hardware=replace(one.hardware, cores=8))
    assert case(real).threads == 8
    assert case(real, replace(LLAMA, threads=16)).threads == pytest.approx(8 + 8 * SECOND_THREAD)


def test_layers_on_the_host_are_the_first_ones_with_experts() -> None:
    one = question(model="deepseek-v3", quant="q2_k", hardware=hardware(gpu="rtx-3090", ram="512"))
    assert case(one, replace(LLAMA, host_layers=10)).first == 13, (
        "three layers lead without experts"
    )
    assert case(one, replace(LLAMA, host_layers=58)).first == 61
    whole = case(one, replace(LLAMA, whole_layers=8, host_layers=53))
    assert (whole.first, whole.whole) == (53, True)


def test_repacked_experts_stay_on_the_host_and_have_their_rate() -> None:
    one, ik = asked(), Configuration(engine="ik_llama.cpp", host_layers=36)
    plain = engine_for(one, RULES["ik_llama.cpp"], ik)
    assert plain.streams_from == 32 * 128 // 4, "32 rows of each expert"
    repacked = engine_for(one, RULES["ik_llama.cpp"], replace(ik, repacked=True))
    assert (repacked.streams_from, repacked.kernels) == (None, "repacked")


def test_fewer_experts_a_token_change_the_shape() -> None:
    assert case(asked(), replace(LLAMA, experts_used=2)).shape.top_k == 2


def test_copies_are_from_page_locked_memory_unless_the_file_is_mapped() -> None:
    assert case(asked(), replace(LLAMA, mapped=False)).pinned
    assert not case(asked(), replace(LLAMA, mapped=True)).pinned
    assert case(asked(), replace(LLAMA, mapped=True, pinned=True)).pinned


# ------------------------------------------------------------------------------ calibrated machines


def calibrated(folder: Path, **values: float) -> str:
    """Write a machine with calibrated numbers, and rates of products beside it; return its path."""
    found = composed("rtx-3090+ryzen-9-5950x+ddr4-3200*2+ram=64")
    fields = {"reads": ("host", "gemv_bandwidth"), "cores": ("host", "core_rate"),
              "link": ("link", "pinned_h2d")}  # fmt: skip
    for name, value in values.items():
        group, field = fields[name]
        found[group][field] |= {"value": value, "badge": "calibrated", "range": [value, value]}
    path = folder / "here.yaml"
    path.write_text(yaml.safe_dump(found))
    return str(path)


def products(folder: Path, **rates: float) -> None:
    bits = {"q4_k": 4.5, "q8_0": 8.5, "mxfp4": 4.25}
    formats = {
        name: {"kernels": "k", "bits": bits[name], "gb_s": {"1": {"1": [rate, rate, rate]}}}
        for name, rate in rates.items()
    }  # fmt: skip
    (folder / "here.products.json").write_text(json.dumps({"formats": formats}))


def test_a_measured_number_is_used_as_it_is_and_others_with_their_constants(tmp_path: Path) -> None:
    values = {**COMPONENTS, "desktop reads": 0.5, "core AVX2": 0.5}
    measured = case(asked(machine=calibrated(tmp_path, reads=30.0, link=11.0)))
    assert measured.measured == {"reads", "link"}
    assert profile_of(measured, values).host.gemv_bandwidth.value == pytest.approx(30)
    assert profile_of(measured, values).link.pinned_h2d.value == pytest.approx(11)
    composed_one = case(asked())
    nominal = composed_one.profile.host.gemv_bandwidth.value
    assert composed_one.measured == frozenset()
    assert profile_of(composed_one, values).host.gemv_bandwidth.value == pytest.approx(nominal / 2)


def test_measured_cores_have_no_constant(tmp_path: Path) -> None:
    one = case(asked(machine=calibrated(tmp_path, reads=500.0, cores=10.0)))
    slow = {**COMPONENTS, "core AVX2": 0.2}
    assert rate_of(one, COMPONENTS, "decode") == pytest.approx(rate_of(one, slow, "decode"))
    other = case(asked())
    assert rate_of(other, slow, "decode") < rate_of(other, COMPONENTS, "decode")


def test_products_by_format_replace_the_constant_of_a_format(tmp_path: Path) -> None:
    path = calibrated(tmp_path, reads=500.0, cores=10.0)
    assert case(asked(machine=path)).rate is None, "nothing was measured"
    products(tmp_path, q4_k=9.0, mxfp4=4.25, q8_0=8.5)
    one = asked(machine=path)
    assert case(one).rate == pytest.approx((4.25 / 4.25) / (9.0 / 4.5))
    assert case(replace(one, quant="q8_0")).rate == pytest.approx(0.5)
    assert case(replace(one, quant="iq1_s")).rate is None


def test_other_products_are_another_question(tmp_path: Path) -> None:
    path = calibrated(tmp_path, reads=30.0)
    before = kept.key_of(repr(asked(machine=path)))
    products(tmp_path, q4_k=9.0, mxfp4=4.25)
    first = kept.key_of(repr(asked(machine=path)))
    products(tmp_path, q4_k=9.0, mxfp4=5.0)
    assert len({before, first, kept.key_of(repr(asked(machine=path)))}) == 3


@pytest.mark.slow
def test_a_calibrated_machine_is_answered(tmp_path: Path) -> None:
    found = answers(asked(machine=calibrated(tmp_path, reads=30.0)), ["llama.cpp"])
    assert found.rows[0].binds == "memory of the host"
    faster = answers(asked(machine=calibrated(tmp_path, reads=60.0)), ["llama.cpp"], binding=False)
    assert faster.rows[0].decode.value > found.rows[0].decode.value * 1.4


@pytest.mark.slow
def test_whole_layers_are_placed_where_an_engine_places_them() -> None:
    one = question(
        model="qwen3-30b-a3b",
        quant="q4_k_m",
        hardware=hardware(gpu="rtx-3060-12gb", cpu="ryzen-5-5600", ram="32"),
    )
    rows = answers(one, ["ollama", "llama.cpp"], binding=False).rows
    by = {row.engine: row for row in rows}
    whole = by["ollama"].configuration
    assert whole.whole_layers is not None
    assert whole.host_layers == 48 - whole.whole_layers
    assert by["ollama"].decode.value < by["llama.cpp"].decode.value


# ------------------------------------------------------------------------------ all fields


def said(one: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names}


def test_all_inputs_of_a_usual_question() -> None:
    one = case(asked())
    assert said(
        one, "batch", "first", "whole", "hot", "threads", "wide", "tiles", "repacked", "products",
        "reads", "sockets", "bound", "virtual", "measured", "rate", "format", "cache_bytes",
        "lengths", "micro_batch", "pinned", "on_host", "hit_rate",
    ) == {
        "batch": 1, "first": 36, "whole": False, "hot": 0.0, "threads": 8, "wide": False,
        "tiles": False, "repacked": False, "products": "device products",
        "reads": "desktop reads", "sockets": 1, "bound": False, "virtual": False,
        "measured": frozenset(), "rate": None, "format": "fp4 formats", "cache_bytes": 2.0,
        "lengths": (2048 + 256, 2048, 0, 8192), "micro_batch": 512, "pinned": False,
        "on_host": False, "hit_rate": None,
    }  # fmt: skip
    assert one.profile.name == "rtx-3090+ryzen-9-5950x+ram=64"
    # Which kind of memory is not said, but threads are chosen.
    assert list(one.unsaid) == ["rate of the memory"]


SERVER = {"gpu": "rtx-3090", "cpu": "2x xeon-gold-6454s", "ram": "512"}
KT = {"engine": "kt-kernel"}


@pytest.mark.parametrize(
    ("parts", "fields", "expected"),
    [
        ({}, {"threads": None}, {"threads": 16}),
        ({}, {"threads": 20}, {"threads": 16 + 4 * SECOND_THREAD}),
        ({}, {"micro_batch": None}, {"micro_batch": 512}),
        ({}, {"micro_batch": 64}, {"micro_batch": 64}),
        ({}, {"kv": None}, {"cache_bytes": 2.0}),
        ({}, {"kv": "q8_0"}, {"cache_bytes": 34 / 32}),
        ({}, {"bound": True}, {"bound": True}),
        ({}, {"host_layers": None}, {"first": 0, "whole": False}),
        ({}, {"host_layers": 35}, {"first": 35}),
        ({}, {"host_layers": 99}, {"first": 36}),
        ({}, {"whole_layers": 36}, {"first": 36, "whole": False}),
        ({}, {"whole_layers": 35, "host_layers": 1}, {"first": 1, "whole": True}),
        ({}, {"whole_layers": 0}, {"first": 36, "whole": True}),
        ({"gpu": "none", "cpu": "epyc-9354"}, {"host_layers": 0},
         {"first": 36, "whole": True, "on_host": True, "wide": True, "reads": "server reads"}),
        ({"gpu": "strix-halo"}, {"whole_layers": 3}, {"first": 0, "whole": False, "wide": True}),
        (SERVER, {"threads": 70}, {"sockets": 2, "threads": 64 + 6 * SECOND_THREAD, "wide": True}),
        (SERVER, {}, {"tiles": False}),
        (SERVER, KT, {"tiles": True}),
        (SERVER, {"engine": "ktransformers"}, {"tiles": True}),
        ({"gpu": "rtx-3090", "cpu": "epyc-9354"}, KT, {"tiles": False}),
        ({"gpu": "mi300x"}, {}, {"products": "other products"}),
        ({}, KT | {"resident": 32}, {"hot": 0.25}),
        ({}, KT | {"resident": 32, "host_layers": 0}, {"hot": 0.0}),
        ({}, KT, {"hot": 0.0}),
        ({}, {"engine": "llama.cpp-moe-cache", "resident": 64}, {"hot": 0.5}),
        ({}, {"engine": "exllamav3"}, {"pinned": True}),
        ({}, {"engine": "exllamav3", "pinned": False}, {"pinned": False}),
        ({}, {"engine": "ik_llama.cpp", "mapped": False}, {"pinned": True}),
        ({}, KT | {"mapped": False}, {"pinned": False}),
    ],
)  # fmt: skip
def test_an_input_of_another_question(
    parts: dict[str, Any], fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    one = case(asked(**parts), replace(LLAMA, **fields))
    found = said(one, *expected)
    assert found == {**expected, "threads": pytest.approx(expected.get("threads"))} if (
        "threads" in expected
    ) else found == expected  # fmt: skip


def test_texts_and_lengths_are_those_of_the_question() -> None:
    one = question(model="gpt-oss-120b", quant="q4_0", prompt="0", new="9", batch=3,
                   hardware=hardware(gpu="rtx-3090"))  # fmt: skip
    found = case(one, replace(LLAMA, experts_used=200))
    assert said(found, "batch", "repacked", "format", "lengths") == {
        "batch": 3, "repacked": True, "format": "", "lengths": (4, 1, 0, 8192),
    }  # fmt: skip
    assert found.shape.top_k == 128
    assert case(one).shape.top_k == 4
    assert not case(one, replace(LLAMA, engine="ik_llama.cpp")).repacked


@pytest.mark.parametrize(("quant", "hot"), [("q4_k_m", 0.0), ("q8_0", 0.5)])
def test_llama_cpps_cache_leaves_matrices_below_a_mebibyte_to_the_host(
    quant: str, hot: float
) -> None:
    """A matrix of an expert of Qwen3-30B-A3B has 1.57 M weights."""
    one = question(model="qwen3-30b-a3b", quant=quant, hardware=hardware(gpu="rtx-3090"))
    fields = replace(LLAMA, host_layers=48, resident=64)
    assert case(one, replace(fields, engine="llama.cpp-moe-cache")).hot == hot
    assert case(one, replace(fields, engine="tinyserve")).hot == 0.5
    assert case(one, replace(fields, engine="kt-kernel")).hot == 0.5


def test_an_unknown_host_does_not_matter_where_it_computes_nothing() -> None:
    one = asked(gpu="rtx-3090")
    assert list(case(one).unsaid) == ["processor of a desktop", "rate of the memory"]
    assert case(one, replace(LLAMA, engine="vllm")).unsaid == {}


def test_what_a_machine_has_beyond_its_parts() -> None:
    plain = asked()
    more = replace(plain.hardware, more_gib=24.0, cores=12, disk="nvme3", disks=2)
    before, after = case(plain).profile, case(replace(plain, hardware=more)).profile
    assert after.gpu.memory.value == before.gpu.memory.value + 24
    assert (before.host.cores.value, after.host.cores.value) == (16, 12)
    one_disk = case(asked(gpu="rtx-3090", cpu="ryzen-9-5950x", disk="nvme3")).profile.disk
    assert one_disk.name != before.disk.name
    assert after.disk.name == one_disk.name
    for field in ("queue1_bandwidth", "max_bandwidth"):
        number = getattr(after.disk, field)
        assert number.value == 2 * getattr(one_disk, field).value
        assert number.range is None
    linked = replace(
        plain,
        hardware=replace(
            plain.hardware,
            link="pcie4x8",
            copies_gb_s=9.0,
            reads_gb_s=30.0,
            channels=1,
            memory="DDR4-3200",
        ),
    )
    found = case(linked).profile
    assert found.name == "rtx-3090+ryzen-9-5950x+ddr4-3200*1+ram=64+pcie4x8"
    assert found.link.pinned_h2d.value == 9.0
    assert found.host.gemv_bandwidth.value == pytest.approx(20.48), (
        "30 GB/s are more than one module has"
    )


@pytest.mark.parametrize(("cores", "reads"), [(23, "desktop reads"), (24, "server reads")])
def test_the_kind_of_a_calibrated_machine_is_that_of_its_cores(
    tmp_path: Path, cores: int, reads: str
) -> None:
    path = Path(calibrated(tmp_path, reads=30.0))
    document = yaml.safe_load(path.read_text())
    document["host"]["cores"]["value"] = cores
    document["host"]["name"] = "Ryzen 9 7950X"
    path.write_text(yaml.safe_dump(document))
    one = asked(machine=str(path))
    found = case(replace(one, hardware=replace(one.hardware, cores=3)), replace(LLAMA, threads=99))
    assert said(found, "reads", "wide", "sockets", "on_host", "virtual", "measured") == {
        "reads": reads, "wide": True, "sockets": 1, "on_host": False, "virtual": False,
        "measured": frozenset({"reads"}),
    }  # fmt: skip
    assert found.threads == pytest.approx(1.3 * cores), "its own cores count"
    alone = replace(one, hardware=replace(one.hardware, gpu="", virtual=True))
    assert said(case(alone), "on_host", "virtual", "first") == {
        "on_host": True, "virtual": False, "first": 36,
    }  # fmt: skip
    assert not case(asked(machine=calibrated(tmp_path))).wide
    assert found.profile.software.name == "ggml"
    assert case(one, replace(LLAMA, engine="vllm")).profile.software.name == "python-graphs"


def test_a_file_s_format_has_the_rate_of_its_longest_name() -> None:
    one = asked()
    rates = {"q4": 9.0, "q4_k": 1.0, "q8_0": 0.5}
    known = replace(one, hardware=replace(one.hardware, products=rates))
    for quant, rate in (("q4_k_m", 1.0), ("q4_0", 9.0), ("q8_0", 0.5), ("xq8_0", None)):
        assert case(replace(known, quant=quant)).rate == rate


@pytest.mark.parametrize(
    ("gpu", "maker"),
    [
        ("", "processor"), ("rtx-3090", "nvidia"), ("a100-80gb-pcie", "nvidia"), ("L4", "nvidia"),
        ("Radeon RX 580", "amd"), ("AMD Instinct", "amd"), ("rx-6600", "amd"), ("RX 580", "amd"),
        ("mi300x", "amd"), ("mi210", "amd"), ("mi100", "amd"), ("mi50", "amd"),
        ("strix-halo", "amd"), ("Ryzen AI Max", "amd"), ("apple-m4", "apple"),
        ("m1-max", "apple"), ("M2", "apple"), ("M3 Ultra", "apple"), ("m4", "apple"),
        ("M5", "apple"), ("arc-b580", "intel"), ("gtx-m40", "nvidia"),
    ],
)  # fmt: skip
def test_makers_of_devices(gpu: str, maker: str) -> None:
    assert maker_of(gpu) == maker


def test_measured_reads_leave_nothing_open_about_the_memory() -> None:
    """Kind and channels of modules that are not named matter only where no rate was measured."""
    one = asked()
    engine = engine_for(one, RULES["llama.cpp"], LLAMA)

    def unsaid(**changes: Any) -> set[str]:
        found: list[tuple[str, str]] = []
        host_of(replace(one, hardware=replace(one.hardware, **changes)), engine, found)
        return {what for what, _ in found}

    of_memory = {what for what in unsaid() if "memory" in what}
    assert of_memory
    assert not of_memory & unsaid(reads_gb_s=40.0)
