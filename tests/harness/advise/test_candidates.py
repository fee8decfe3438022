"""Configurations that are compared, and the rest of one that is forced, by engines' rules."""

import math
from dataclasses import replace
from typing import Any

import pytest

from moebench.harness.advise.ask import question
from moebench.harness.advise.candidates import candidates, completed, largest_context
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.machine import hardware
from moebench.harness.advise.memory import (
    Places,
    bits_for,
    buffers,
    fewest_host_layers,
    most_context,
    most_resident,
    most_whole_layers,
    needs,
    places,
)
from moebench.harness.advise.question import Question
from moebench.harness.advise.rules import RULES
from moebench.substrate.machines.compose import composed
from moebench.substrate.machines.profile import HardwareProfile
from moebench.substrate.models.bits import Bits

GIB = 2**30


def asked(model: str = "gpt-oss-120b", **more: Any) -> Question:
    given = {"quant": None, "hardware": hardware(gpu="rtx-3090")} | more
    return question(model=model, **given)


#: Room for a part of the experts, for all of them, and for nothing; and a host with and without
#: room for the rest.
PART = Places(24 * GIB, 64 * GIB, one=False)
LITTLE = Places(24 * GIB, 16 * GIB, one=False)
ALL = Places(80 * GIB, 64 * GIB, one=False)
NONE = Places(1 * GIB, 64 * GIB, one=False)
POOL = Places(112 * GIB, 0, one=True)
HOST = Places(math.inf, 64 * GIB, one=False)


def found(engine: str, room: Places, alone: bool = False, **more: Any) -> list[dict[str, Any]]:
    """Return the fields of candidates that differ from those of 8 threads."""
    plain = Configuration(engine=engine, threads=8)
    names = ("host_layers", "whole_layers", "resident", "micro_batch", "kv", "repacked", "mapped",
             "bound", "experts_used", "pinned", "other")  # fmt: skip
    ones = list(candidates(asked(**more), RULES[engine], engine, 8, room, alone))
    assert all((one.engine, one.threads) == (engine, 8) for one in ones)
    return [{name: getattr(one, name) for name in names
             if getattr(one, name) != getattr(plain, name)} for one in ones]  # fmt: skip


def host_layers(engine: str, room: Places, rows: int, kv: str) -> int:
    config = Configuration(engine=engine, micro_batch=rows, kv=kv)
    layers = fewest_host_layers(asked(), RULES[engine], config, room)
    assert layers is not None
    assert 0 < layers < 36
    return layers


def test_an_engine_with_layers_has_candidates_by_rows_and_caches() -> None:
    """A prompt of 2048 tokens fills micro-batches of 512 and 2048, not of 4096."""
    expected = [
        {"host_layers": host_layers("llama.cpp", PART, rows, kv), "micro_batch": rows, "kv": kv,
         "mapped": False}
        for kv in ("f16", "q8_0") for rows in (512, 2048)
    ]  # fmt: skip
    assert found("llama.cpp", PART) == expected
    assert found("llama.cpp", PART, lossless=True) == expected[:2]
    assert found("lm-studio", PART) == expected
    little = found("llama.cpp", LITTLE)
    assert [one["mapped"] for one in little] == [True] * 4
    rows = [one["micro_batch"] for one in found("llama.cpp", PART, prompt="2049")]
    assert rows == [512, 2048, 4096] * 2
    assert [one["micro_batch"] for one in found("llama.cpp", PART, prompt="256")] == [512, 512]
    assert [one["micro_batch"] for one in found("llama.cpp", PART, prompt="1025")] == [
        512, 2048, 512, 2048,
    ]  # fmt: skip


def test_ik_llama_cpp_repacks_in_a_further_candidate_which_maps_nothing() -> None:
    layers = host_layers("ik_llama.cpp", LITTLE, 512, "f16")
    assert found("ik_llama.cpp", LITTLE, prompt="100", lossless=True) == [
        {"host_layers": layers, "micro_batch": 512, "kv": "f16", "mapped": True},
        {"host_layers": layers, "micro_batch": 512, "kv": "f16", "mapped": False,
         "repacked": True},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "rows"), [("100", 512), ("512", 512), ("600", 600), ("5000", 4096)]
)
def test_an_engine_of_whole_chunks_has_one_number_of_rows(prompt: str, rows: int) -> None:
    config = Configuration(engine="kt-kernel", micro_batch=rows, kv="f16")
    one = asked(prompt=prompt)
    held = most_resident(one, RULES["kt-kernel"], config, PART)
    assert 0 < held < 128
    assert found("kt-kernel", PART, prompt=prompt, lossless=True) == [
        {"host_layers": 36, "resident": held, "micro_batch": rows, "kv": "f16"}
    ]


def test_an_engine_that_holds_nothing_of_host_layers_has_none_resident() -> None:
    for one in (*found("ktransformers", PART), *found("deepspeed", PART)):
        assert (one["host_layers"], one["resident"]) == (36, 0)


def test_one_candidate_is_enough_where_all_is_on_the_device() -> None:
    assert found("llama.cpp", ALL) == [
        {"host_layers": 0, "micro_batch": rows, "kv": "f16", "mapped": False}
        for rows in (512, 2048)
    ]
    assert found("kt-kernel", ALL, model="qwen3-30b-a3b") == [
        {"host_layers": 0, "micro_batch": 2048, "kv": "f16"}
    ]
    assert found("ik_llama.cpp", ALL, prompt="9", lossless=True) == [
        {"host_layers": 0, "micro_batch": 512, "kv": "f16", "mapped": False}
    ]


@pytest.mark.parametrize("engine", ["llama.cpp", "kt-kernel", "ollama"])
def test_without_room_for_common_weights_there_is_none(engine: str) -> None:
    assert found(engine, NONE) == []
    assert found(engine, replace_device(POOL, 2.0)) == []


def replace_device(room: Places, gib: float) -> Places:
    return room._replace(device=gib * GIB)


def test_one_memory_holds_all_experts_and_maps_nothing() -> None:
    assert found("llama.cpp", POOL, prompt="9") == [
        {"host_layers": 0, "micro_batch": 512, "kv": "f16", "mapped": False}
    ]


@pytest.mark.parametrize(("host", "mapped"), [(64, False), (58, True)])
def test_a_processor_alone_holds_all_and_maps_what_is_larger(host: int, mapped: bool) -> None:
    """About 57.2 GiB of experts, and 3.6 of other weights, cache and buffers."""
    room = Places(math.inf, host * GIB, one=False)
    both = found("llama.cpp", room, alone=True, prompt="9")
    assert both == [
        {"host_layers": 36, "micro_batch": 512, "kv": kv, "mapped": mapped}
        for kv in ("f16", "q8_0")
    ]
    assert found("llama.cpp", NONE, alone=True, prompt="9", lossless=True)[0]["host_layers"] == 36


def test_ollama_places_whole_layers() -> None:
    config = Configuration(engine="ollama", threads=8, micro_batch=512, kv="f16")
    one = asked(prompt="9", lossless=True)
    placed = most_whole_layers(one, RULES["ollama"], config, PART)
    assert placed is not None
    whole = placed.whole_layers
    assert whole is not None
    assert 0 < whole < 36
    for layers, fits in ((whole, True), (whole + 1, False)):
        tried = replace(config, whole_layers=layers, host_layers=36 - layers)
        assert (needs(one, RULES["ollama"], tried).device <= PART.device) is fits
    assert found("ollama", PART, prompt="9", lossless=True) == [
        {"host_layers": 36 - whole, "whole_layers": whole, "micro_batch": 512, "kv": "f16",
         "mapped": False}
    ]  # fmt: skip
    everything = most_whole_layers(one, RULES["ollama"], config, ALL)
    assert everything == replace(config, host_layers=0)
    # The last of DeepSeek's layers, of which the first three have no experts.
    deep = asked("deepseek-v3", quant="q2_k", prompt="9")
    some = most_whole_layers(deep, RULES["ollama"], config, ALL)
    assert some is not None
    assert some.whole_layers is not None
    assert some.host_layers == 61 - some.whole_layers - 3


# ------------------------------------------------------------------------------ forced ones


@pytest.mark.parametrize(
    ("engine", "fields", "room", "expected"),
    [
        ("llama.cpp", {"host_layers": 9}, ALL,
         {"threads": 8, "micro_batch": 512, "kv": "f16", "host_layers": 9, "mapped": False}),
        ("llama.cpp", {"host_layers": 9, "threads": 3, "micro_batch": 64, "kv": "q8_0",
                       "mapped": True}, ALL,
         {"threads": 3, "micro_batch": 64, "kv": "q8_0", "host_layers": 9, "mapped": True}),
        ("llama.cpp", {"whole_layers": 10}, ALL,
         {"threads": 8, "micro_batch": 512, "kv": "f16", "host_layers": 26, "whole_layers": 10,
          "mapped": False}),
        ("llama.cpp", {"whole_layers": 10, "host_layers": 30}, ALL,
         {"threads": 8, "micro_batch": 512, "kv": "f16", "host_layers": 30, "whole_layers": 10,
          "mapped": False}),
        ("llama.cpp", {}, ALL,
         {"threads": 8, "micro_batch": 512, "kv": "f16", "host_layers": 0, "mapped": False}),
        ("llama.cpp", {}, NONE,
         {"threads": 8, "micro_batch": 512, "kv": "f16", "host_layers": 36, "mapped": False}),
        ("ik_llama.cpp", {"repacked": True}, NONE,
         {"threads": 8, "micro_batch": 512, "kv": "f16", "host_layers": 36, "mapped": False,
          "repacked": True}),
        ("kt-kernel", {}, ALL._replace(device=90 * GIB),
         {"threads": 8, "micro_batch": 4096, "kv": "f16", "host_layers": 0}),
        ("kt-kernel", {"resident": 5, "host_layers": 36}, PART,
         {"threads": 8, "micro_batch": 4096, "kv": "f16", "host_layers": 36, "resident": 5}),
        ("ktransformers", {}, PART,
         {"threads": 8, "micro_batch": 4096, "kv": "f16", "host_layers": 36}),
    ],
)  # fmt: skip
def test_open_fields_of_a_forced_configuration(
    engine: str, fields: dict[str, Any], room: Places, expected: dict[str, Any]
) -> None:
    forced = Configuration(engine=engine, **fields)
    one = completed(asked(), RULES[engine], forced, 8, room, False)
    assert one == Configuration(engine=engine, **expected)


def test_a_forced_configuration_holds_as_many_experts_as_fit() -> None:
    one, rules = asked(), RULES["kt-kernel"]
    forced = completed(one, rules, Configuration(engine="kt-kernel"), 8, PART, False)
    assert forced.host_layers == 36
    open_ = replace(forced, resident=None)
    assert forced.resident == most_resident(one, rules, open_, PART)
    assert forced.resident > 0
    alone = completed(one, RULES["llama.cpp"], Configuration(engine="llama.cpp"), 8, HOST, True)
    assert alone.host_layers == 36


@pytest.mark.parametrize(("engine", "rows"), [("llama.cpp", 512), ("vllm", 4096)])
def test_the_largest_context_is_with_the_engines_rows(engine: str, rows: int) -> None:
    config, rules = Configuration(engine="", micro_batch=rows), RULES[engine]
    small = replace_device(PART, 9)
    context = largest_context(asked(), rules, small, 131072)
    assert context == most_context(asked(), rules, config, small, 131072)
    assert largest_context(asked(), rules, small, 1024) == 1024


# ------------------------------------------------------------------------------ bytes


@pytest.mark.parametrize(
    ("model", "engine", "bits"),
    [
        ("gpt-oss-120b", "llama.cpp", (4.25, None)), ("gpt-oss-120b", "kt-kernel", (4.25, 16.0)),
        ("deepseek-v3", "kt-kernel", (None, 8.0)), ("gpt-oss-120b", "accelerate", (16.0, 16.0)),
        ("deepseek-v3", "accelerate", (16.0, 8.0)),
    ],
)  # fmt: skip
def test_bits_are_those_that_an_engine_keeps(
    model: str, engine: str, bits: tuple[float | None, float | None]
) -> None:
    one = asked(model)
    own = (bits[0] or one.bits.routed, bits[1] or one.bits.others)
    assert bits_for(one, RULES[engine]) == own


@pytest.mark.parametrize(
    ("machine", "room"),
    [
        ("rtx-3090+ryzen-9-5950x+ram=64", Places(24 * GIB * 0.94, 60 * GIB, one=False)),
        ("rtx-3090*2+ryzen-9-5950x+ram=2", Places(48 * GIB * 0.94, 0.0, one=False)),
        ("strix-halo+ram=64", Places(56 * GIB, 0.0, one=True)),
        ("strix-halo+ram=128", Places(112 * GIB, 0.0, one=True)),
        ("apple-m3-ultra+ram=512", Places(448 * GIB, 0.0, one=True)),
        ("cpu-only+ryzen-9-5950x+ram=32", Places(24 * GIB, 0.0, one=True)),
        ("cpu-only+ryzen-9-5950x+ram=4", Places(0.0, 0.0, one=True)),
    ],
)
def test_usable_memory(machine: str, room: Places) -> None:
    profile = HardwareProfile.from_mapping(composed(machine), machine, "ggml")
    assert places(profile) == pytest.approx(room)


def test_buffers_hold_logits_or_copied_experts_with_their_rows() -> None:
    """Of gpt-oss-120b: 201,088 tokens; 128 experts of 24,891,840 weights, width 2880, 4 used."""
    shape, bits = asked().shape, Bits(4.25, 8.5)
    for rows in (None, 512, 4096):
        config = Configuration(engine="", micro_batch=rows)
        count = rows or 512
        logits = 4 * count * 201_088
        assert buffers(shape, bits, config, copies=False) == pytest.approx(
            0.3e9 + max(logits, 4 * count * 4 * 3 * 2880)
        )
        copied = 128 * 24_891_840 * 4.25 / 8 / 3 + 4 * count * 4 * (2 * 2880 + 2880)
        assert buffers(shape, bits, config, copies=True) == pytest.approx(
            0.3e9 + max(logits, copied)
        )


def test_all_bytes_of_a_configuration() -> None:
    """Of gpt-oss-120b with 10 of 36 layers' experts on the host, 12 of each layer held."""
    one, rules = asked(batch=2), RULES["llama.cpp-moe-cache"]
    each = 24_891_840 * 4.25 / 8
    config = Configuration(engine="", host_layers=10, resident=12, kv="q4_0", micro_batch=512)
    need = needs(one, rules, config)
    common = 2_127_557_952 * one.bits.others / 8
    cache = 2 * (one.shape.kv_bytes(8192) * (18 / 32) / 2 + one.shape.state_bytes())
    assert need.common == pytest.approx(common)
    assert need.kv == pytest.approx(cache)
    assert need.experts == pytest.approx((26 * 128 + 10 * 12) * each)
    assert need.host == need.host_experts == pytest.approx(10 * 128 * each)
    assert need.device == need.common + need.kv + need.experts + need.buffers
    assert need.buffers == buffers(one.shape, one.bits, config, copies=True)
    nothing = needs(one, rules, replace(config, host_layers=0))
    assert nothing.buffers == buffers(one.shape, one.bits, config, copies=False)
    assert nothing.experts == pytest.approx(36 * 128 * each)
    assert needs(one, rules, replace(config, host_layers=99)).host == pytest.approx(4608 * each)
    assert needs(one, rules, replace(config, host_layers=None)) == nothing
    whole = needs(one, rules, replace(config, whole_layers=27, host_layers=9, resident=None))
    assert whole.common == pytest.approx(0.75 * common)
    assert whole.kv == pytest.approx(0.75 * cache)
    assert whole.host == pytest.approx(0.25 * common + 9 * 128 * each)
    assert whole.host_experts == pytest.approx(9 * 128 * each)
    assert needs(one, rules, replace(config, whole_layers=36)) == need
