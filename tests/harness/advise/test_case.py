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
from moebench.harness.advise.case import case_for, engine_for
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.machine import hardware
from moebench.harness.advise.question import Question
from moebench.harness.advise.rules import RULES
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


def test_a_calibrated_machine_is_answered(tmp_path: Path) -> None:
    found = answers(asked(machine=calibrated(tmp_path, reads=30.0)), ["llama.cpp"])
    assert found.rows[0].binds == "memory of the host"
    faster = answers(asked(machine=calibrated(tmp_path, reads=60.0)), ["llama.cpp"], binding=False)
    assert faster.rows[0].decode.value > found.rows[0].decode.value * 1.4


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
