"""Bytes of configurations: published sizes of files and buffers, and what fits by trying all."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.advise.answer import GIB
from moebench.harness.advise.ask import question
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.machine import hardware
from moebench.harness.advise.memory import (
    CONTEXT_BYTES,
    STEP,
    Places,
    fewest_host_layers,
    kv_bytes,
    most_context,
    most_resident,
    needs,
)
from moebench.harness.advise.question import Question
from moebench.harness.advise.rules import RULES

MIB = 2**20
LLAMA = Configuration(engine="llama.cpp", host_layers=0, micro_batch=512, kv="f16", threads=8)


def asked(model: str = "gpt-oss-120b", **more: Any) -> Question:
    return question(model=model, quant=None, hardware=hardware(gpu="rtx-3090", ram="64"), **more)


@pytest.mark.parametrize(
    ("form", "bytes_of_32"),
    [
        ("f16", 64), ("bf16", 64), ("f32", 128), ("fp8", 32),
        # Of 32 values, ggml keeps a scale in two bytes, some a least value in two more, and
        # of values with five bits the fifth ones in four bytes.
        ("q8_0", 2 + 32), ("q5_1", 2 + 2 + 4 + 16), ("q5_0", 2 + 4 + 16), ("q4_1", 2 + 2 + 16),
        ("q4_0", 2 + 16), ("iq4_nl", 2 + 16),
    ],
)  # fmt: skip
def test_values_of_the_kv_cache_have_the_bytes_of_their_format(form: str, bytes_of_32: int) -> None:
    one = asked("qwen3-30b-a3b", context="32k")
    expected = bytes_of_32 / 64 * kv_bytes(one, LLAMA)
    assert kv_bytes(one, replace(LLAMA, kv=form)) == pytest.approx(expected)


def test_weights_have_the_size_of_the_published_file() -> None:
    # gpt-oss-120b in MXFP4 is 59.02 GiB (rows of results/measured name this size).
    need = needs(asked(), RULES["llama.cpp"], LLAMA)
    assert (need.common + need.experts) / GIB == pytest.approx(59.02, rel=0.01)
    assert need.host == 0


def test_a_buffer_of_logits_has_the_size_of_the_engines_log() -> None:
    # llama.cpp prints "CUDA0 compute buffer size = 398.38 MiB" for gpt-oss-120b with 512 rows.
    need = needs(asked(), RULES["llama.cpp"], LLAMA)
    assert need.buffers - CONTEXT_BYTES == pytest.approx(398.38 * MIB, rel=0.02)


def test_the_cache_of_qwen3_30b_has_the_bytes_of_its_heads() -> None:
    # 48 layers, 4 heads of 128 for keys and values, 2 bytes each: 96 KiB a token.
    one = asked("qwen3-30b-a3b", context="32k")
    assert kv_bytes(one, LLAMA) == pytest.approx(32768 * 48 * 4 * 128 * 2 * 2)
    assert kv_bytes(one, replace(LLAMA, kv="q8_0")) == pytest.approx(0.53125 * kv_bytes(one, LLAMA))
    assert kv_bytes(replace(one, batch=3), LLAMA) == pytest.approx(3 * kv_bytes(one, LLAMA))


def test_a_whole_layer_on_the_host_takes_its_attention_and_cache_along() -> None:
    one = asked("qwen3-30b-a3b")
    all_ = needs(one, RULES["llama.cpp"], LLAMA)
    half = needs(one, RULES["llama.cpp"], replace(LLAMA, whole_layers=24, host_layers=24))
    assert half.common == pytest.approx(all_.common / 2)
    assert half.kv == pytest.approx(all_.kv / 2)
    assert half.experts == pytest.approx(all_.experts / 2)
    assert half.host == pytest.approx((all_.common + all_.experts) / 2)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    room=st.floats(2, 80), rows=st.sampled_from([512, 2048, 4096]),
    model=st.sampled_from(["gpt-oss-120b", "qwen3-30b-a3b", "deepseek-v3", "olmoe-1b-7b"]),
)  # fmt: skip
def test_the_fewest_layers_on_the_host_are_found(room: float, rows: int, model: str) -> None:
    lengths = {"context": "2048"} if model == "olmoe-1b-7b" else {}
    one, rules = asked(model, **lengths), RULES["llama.cpp"]
    places = Places(room * GIB, 512 * GIB, one=False)
    config = replace(LLAMA, micro_batch=rows)
    layers = len(one.shape.moe_layers)
    fitting = [
        n for n in range(layers + 1)
        if needs(one, rules, replace(config, host_layers=n)).device <= places.device
    ]  # fmt: skip
    assert fewest_host_layers(one, rules, config, places) == min(fitting, default=None)


@settings(deadline=None, max_examples=60)
@given(room=st.floats(4, 80), engine=st.sampled_from(["kt-kernel", "llama.cpp-moe-cache"]))
def test_as_many_experts_are_resident_as_fit_beside_the_reserve(room: float, engine: str) -> None:
    one, rules = asked("qwen3-30b-a3b"), RULES[engine]
    places = Places(room * GIB, 512 * GIB, one=False)
    layers = len(one.shape.moe_layers)
    most = most_resident(one, rules, LLAMA, places)

    def fits(resident: int) -> bool:
        config = replace(LLAMA, host_layers=layers, resident=resident)
        return needs(one, rules, config).device + rules.reserve <= places.device

    assert most == 0 or fits(most)
    assert most == one.shape.num_experts or not fits(most + 1)


@settings(deadline=None, max_examples=40)
@given(room=st.floats(1, 60), model=st.sampled_from(["gpt-oss-120b", "qwen3-30b-a3b"]))
def test_the_largest_context_fits_and_the_next_one_does_not(room: float, model: str) -> None:
    one, rules = asked(model), RULES["llama.cpp"]
    places = Places(room * GIB, 512 * GIB, one=False)
    most = most_context(one, rules, LLAMA, places, 131072)
    layers = len(one.shape.moe_layers)
    least = needs(one, rules, replace(LLAMA, host_layers=layers))

    def fits(context: int) -> bool:
        return least.device - least.kv + kv_bytes(one, LLAMA, context) <= places.device

    assert most % STEP == 0
    assert most == 0 or fits(most)
    assert most == 131072 or not fits(most + STEP)
