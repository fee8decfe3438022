"""Reading of forced configurations: published flags, each kind of flag, and each refusal."""

import contextlib
import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.advise.config import parse_config
from moebench.harness.advise.config_fields import Forced
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.engines import engines
from moebench.substrate.errors import UsageError
from moebench.substrate.models.catalogue import find_shape

#: Sixty-one layers, of which the first three are dense.
R1: dict[str, Any] = {
    "moe_layers": list(range(3, 61)), "num_layers": 61, "num_experts": 256
}  # fmt: skip


def read(text: str, engine: str | None = None, **changes: Any) -> Forced:
    return parse_config(text, engine, **{**R1, **changes})


def only(text: str, engine: str | None = None, **changes: Any) -> dict[str, Any]:
    """Return the fields that a text sets."""
    found = dataclasses.asdict(read(text, engine, **changes).configuration)
    return {
        key: value for key, value in found.items() if value not in (None, ()) and key != "engine"
    }


def refused(text: str, engine: str | None = "llama.cpp") -> str:
    with pytest.raises(UsageError) as caught:
        read(text, engine)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_the_usual_flags_of_llama_cpp() -> None:
    forced = read("-ngl 99 --n-cpu-moe 28 -ub 2048 -t 16 -c 32768 -ctk q8_0 -ctv q8_0 -fa on "
                  "--no-mmap")  # fmt: skip
    assert forced == Forced(
        Configuration(engine="llama.cpp", host_layers=25, threads=16, micro_batch=2048, kv="q8_0",
                      mapped=False, other=("-fa on",)),
        32768,
    )  # fmt: skip


# Flags as the published rows have them (results/measured), with the numbers their authors state.
@pytest.mark.parametrize(("engine", "model", "flags", "host"), [
    ("llama.cpp", "gpt-oss-120b", "-ngl 99 --n-cpu-moe 31 -t 6", 31),
    ("llama.cpp", "gpt-oss-120b", "--n-cpu-moe 28 -ub 8192", 28),
    ("llama.cpp", "Qwen3.5-35B-A3B", '-ot "exps=CPU"', 40),
    ("llama.cpp", "Qwen3-Coder-Next 80B-A3B", "-ot .ffn_.*_exps.=CPU", 48),
    ("llama.cpp", "Qwen3-30B-A3B", '-ngl 100 -ot "blk.3[4-9].ffn=CPU,blk.4[0-9].ffn=CPU"', 14),
    ("ik_llama.cpp", "DeepSeek-R1-0528 671B", "-ngl 63 -ot exps=CPU -mla 3 -fa -rtr -fmoe", 58),
    ("ik_llama.cpp", "DeepSeek-V2-Lite 16B", r'-ngl 100 -rtr -ot "\.ffn_.*_exps\.=CPU"', 26),
    ("ik_llama.cpp", "Llama-4-Maverick 400B-A17B", '-ngl 99 -ot ".*ffn_.*_exps.*=CPU" -rtr', 24),
    ("ik_llama.cpp", "Qwen3-30B-A3B", "-ngl 49 -ot exps=CPU -fmoe -ser 6,1", 48),
    ("llama.cpp", "Qwen3-30B-A3B-2507", "-ngl 99", 0),
])  # fmt: skip
def test_published_flags_have_their_layers_on_the_host(
    engine: str, model: str, flags: str, host: int
) -> None:
    shape = find_shape(model)
    forced = parse_config(flags, engine, shape.moe_layers, shape.num_layers, shape.num_experts)
    assert forced.configuration.host_layers == host


def test_published_split_of_exllamav3_keeps_102_of_512_experts() -> None:
    found = only("--moe_cpu_split 410 --moe_cpu_threads 12", num_experts=512)
    assert found == {"host_layers": 58, "resident": 102, "threads": 12}


# ------------------------------------------------------------------------------ placement


@given(st.integers(0, 99))
def test_first_layers_count_dense_ones_too(number: int) -> None:
    expected = sum(layer < number for layer in R1["moe_layers"])
    assert only(f"llama.cpp --n-cpu-moe {number}").get("host_layers") == expected
    assert only(f"ik n-cpu-moe={number}").get("host_layers") == expected


@given(st.sets(st.integers(3, 60)), st.booleans())
def test_tensor_rules_count_the_layers_that_match(layers: set[int], escaped: bool) -> None:
    dot = r"\." if escaped else "."
    names = "|".join(map(str, sorted(layers))) or "999"
    found = read(f'llama.cpp -ngl 99 -ot "blk{dot}({names}){dot}ffn_.*_exps=CPU"')
    assert found.configuration.host_layers == len(layers)
    first = layers == set(range(3, 3 + len(layers)))
    assert bool(found.remarks) is not first


def test_first_matching_rule_of_several_applies() -> None:
    rules = r"blk\.(3|4)\.ffn=CUDA0,exps=CPU"
    assert only(f"-ot '{rules}'", "llama.cpp") == {"host_layers": 56}
    assert only(f"-ot '{','.join(reversed(rules.split(',')))}'", "llama.cpp") == {"host_layers": 58}
    assert only(r"-ot 'blk\.3\.ffn=CUDA1' --cpu-moe", "ik") == {"host_layers": 57}
    assert only(r"--cpu-moe -ot 'blk\.3\.ffn=CUDA1'", "ik") == {"host_layers": 58}


def test_a_layer_whose_matrices_are_divided_is_counted_in_parts() -> None:
    forced = read(r"-ot 'blk\.(3|4|5)\.ffn_down_exps=CPU'", "llama.cpp")
    assert forced.configuration.host_layers == 1
    assert forced.remarks == (
        "experts of layers 3-5 are divided between host and device; counted as 1 whole layers on "
        "the host",
    )  # fmt: skip


@pytest.mark.parametrize(("flags", "engine", "expected"), [
    ("-ngl 99", "llama.cpp", {"host_layers": 0}),
    ("-ngl all", "llama.cpp", {"host_layers": 0}),
    ("-ngl auto", "llama.cpp", {}),
    ("-ngl 62", "llama.cpp", {"host_layers": 0}),
    ("-ngl 61", "llama.cpp", {"whole_layers": 60, "host_layers": 0}),
    ("-ngl 20", "llama.cpp", {"whole_layers": 19, "host_layers": 39}),
    ("-ngl 0", "llama.cpp", {"whole_layers": 0, "host_layers": 58}),
    ("-ngl 61", "ik", {"host_layers": 0}),
    ("-ngl 20", "ik", {"whole_layers": 20, "host_layers": 38}),
    ("-ngl 99 --fit", "ik", {}),
    ("-ngl 20 --n-cpu-moe 50", "llama.cpp", {"whole_layers": 19, "host_layers": 47}),
    ("--gpulayers 20", "koboldcpp", {"whole_layers": 19, "host_layers": 39}),
    ("--gpulayers 99 --moecpu", "koboldcpp", {"host_layers": 58}),
    ("--gpulayers 99 --moecpu 8 --threads 4", "koboldcpp", {"host_layers": 5, "threads": 4}),
])  # fmt: skip
def test_layers_on_the_device(flags: str, engine: str, expected: dict[str, Any]) -> None:
    assert only(flags, engine) == expected


# ------------------------------------------------------------------------------ each engine


@pytest.mark.parametrize(("text", "expected"), [
    ("ik -rtr", {"repacked": True, "mapped": False}),
    ("ik -ser 6,1", {"experts_used": 6}),
    ("ik -ser -1,0", {}),
    ("exl3 -mcs 0", {"host_layers": 0}),
    ("exl3 -cq 6,3", {"kv": "q8_0", "other": ("-cq 6,3",)}),
    ("kt --kv-cache-dtype auto --kt-threadpool-count 2",
     {"host_layers": 58, "bound": True, "other": ("--kt-threadpool-count 2",)}),
    ("ik -ser 5,0.4", {"other": ("-ser 5,0.4",)}),
    ("ik -mla 2 -fmoe", {"other": ("-mla 2", "-fmoe")}),
    ("ik -fa -rtr", {"repacked": True, "mapped": False, "other": ("-fa",)}),
    ("llama.cpp --numa distribute", {"bound": True}),
    ("llama.cpp -nr", {"repacked": False}),
    ("llama.cpp --load-mode mlock", {"mapped": False, "other": ("--load-mode mlock",)}),
    ("llama.cpp --load-mode mmap", {"mapped": True}),
    ("llama-bench -m x.gguf -ngl 99 -ncmoe 30 -p 512 -fa 1 -mmp 0",
     {"host_layers": 27, "mapped": False, "other": ("-p 512", "-fa 1")}),
    ("llama.cpp --override-kv gpt-oss.expert_used_count=int:2",
     {"experts_used": 2, "other": ("--override-kv gpt-oss.expert_used_count=int:2",)}),
    ("kt --kt-num-gpu-experts 32 --kt-cpuinfer 64 --kt-threadpool-count 1",
     {"host_layers": 58, "resident": 32, "threads": 64, "bound": False}),
    ("sglang --kt-gpu-experts-ratio 0.1 --kt-numa-nodes 0 1",
     {"host_layers": 58, "resident": 25, "other": ("--kt-numa-nodes 0 1",)}),
    ("kt --kv-cache-dtype fp8_e5m2", {"host_layers": 58, "kv": "fp8"}),
    ("exl3 -mcs 999", {"host_layers": 58, "resident": 1}),
    ("exl3 -mcl 7 -mcpa -cq 4", {"host_layers": 7, "pinned": True, "kv": "q4_0"}),
    ("freetoken --moe-cache-size 1160", {"host_layers": 58, "resident": 20}),
    ("ktransformers --cpu_infer 65", {"host_layers": 58, "threads": 65}),
    ("vllm --max-num-batched-tokens 4096 -tp 2", {"micro_batch": 4096, "other": ("-tp 2",)}),
    ("ollama OLLAMA_KV_CACHE_TYPE=q8_0 OLLAMA_KEEP_ALIVE=5m",
     {"kv": "q8_0", "other": ("OLLAMA_KEEP_ALIVE=5m",)}),
    ("lm studio --gpu max", {"other": ("--gpu max",)}),
    ("koboldcpp --quantkv 1 --moeexperts 4 --usecuda 0 mmq",
     {"kv": "q8_0", "experts_used": 4, "other": ("--usecuda 0 mmq",)}),
    ("tinyserve cache_capacity=580", {"host_layers": 58, "resident": 10}),
    ("deepspeed pin_memory=true", {"pinned": True}),
    ("moe-cache --cpu-moe --moe-cache on", {"host_layers": 58, "other": ("--moe-cache on",)}),
    ("moe-cache --cpu-moe --moe-cache off", {"host_layers": 58, "resident": 0}),
    ("fiddler resident=3", {"resident": 3}),
])  # fmt: skip
def test_flags_of_each_engine(text: str, expected: dict[str, Any]) -> None:
    assert only(text) == expected


def test_a_cache_in_megabytes_is_counted_in_experts() -> None:
    text = "moe-cache --cpu-moe --moe-cache 1160"
    each = 2**20  # an expert of 1 MiB: 20 of each of 58 layers
    assert only(text, expert_bytes=each) == {"host_layers": 58, "resident": 20}
    assert only(text, expert_bytes=each, cards=2)["resident"] == 40
    assert read(text).remarks == ("a cache of 1160 MiB: experts not counted",)


def test_formats_of_the_cache_that_stand_for_others_are_remarked() -> None:
    forced = read("llama.cpp -ctk q8_0")
    assert forced.configuration.kv == "f16"
    assert forced.configuration.other == ("-ctk q8_0",)
    assert forced.remarks == ("KV cache with keys in q8_0 and values in f16: counted as f16",)
    assert read("llama.cpp -ctk q5_1 -ctv q5_1").configuration.kv == "q8_0"
    assert read("llama.cpp -ctk q4_0 -ctv q4_0").remarks == ()


@pytest.mark.parametrize(("text", "key"), [
    ("--kt-cpuinfer 8", "kt-kernel"), ("-mcs 8", "exllamav3"), ("-rtr -fmoe", "ik_llama.cpp"),
    ("-ngl 99 -ub 512", "llama.cpp"), ("--moecpu 3", "koboldcpp"),
    ("--moe-strategy hybrid", "freetoken"), ("engine=ik threads=3", "ik_llama.cpp"),
    ("./build/bin/llama-server -m x.gguf -t 3", "llama.cpp"),
    ("python -m sglang.launch_server --model m --kt-cpuinfer 3", "kt-kernel"),
    ("ft serve --model m --moe-cache-auto", "freetoken"),
    ("OLLAMA_CONTEXT_LENGTH=4096 ollama serve", "ollama"),
])  # fmt: skip
def test_the_engine_is_named_by_its_program_or_flags(text: str, key: str) -> None:
    assert read(text).configuration.engine == key


def test_lines_of_a_shell_are_read_as_they_are_copied() -> None:
    text = "CUDA_VISIBLE_DEVICES=0 llama-server -m 'my file.gguf' \\\n  -ngl 99 \\\n  -t 8"
    forced = read(text, "ik")
    assert forced.configuration == Configuration(engine="ik_llama.cpp", host_layers=0, threads=8)
    assert forced.remarks == ("CUDA_VISIBLE_DEVICES=0: not read",)


# ------------------------------------------------------------------------------ key=value


def test_fields_by_name_and_by_alias() -> None:
    text = "host_layers=28 threads=16 micro_batch=2048 kv=q8_0 context=4096"
    assert only(text, "llama.cpp") == {"host_layers": 28, "threads": 16, "micro_batch": 2048,
                                       "kv": "q8_0"}  # fmt: skip
    assert read(text, "llama.cpp").context == 4096
    assert only("ubatch=9 cached-experts=3 mmap=no", "moe-cache") == {
        "micro_batch": 9, "resident": 3, "mapped": False,
    }  # fmt: skip
    assert only("host_layers=all", "ik") == {"host_layers": 58}
    assert only("--threads=7 -ngl 99 host_layers=4", "ik") == {"threads": 7, "host_layers": 4}
    assert read("resident=20", "llama.cpp").remarks == ("no option of llama.cpp sets resident",)


LIMITS = {"host_layers": (0, 58), "whole_layers": (0, 61), "resident": (0, 256),
          "experts_used": (1, 256), "threads": (1, 999), "micro_batch": (1, 999),
          "context": (1, 999)}  # fmt: skip


@given(st.sampled_from(sorted(LIMITS)), st.integers(0, 400))
def test_numbers_are_kept_within_their_limits(key: str, value: int) -> None:
    low, high = LIMITS[key]
    if low <= value <= high:
        forced = read(f"{key}={value}", "llama.cpp")
        assert getattr(forced.configuration, key, forced.context) == value
    elif key != "context":
        assert "allowed: " in refused(f"{key}={value}")


# ------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(("text", "said"), [
    ("--n-cpu-mo 4", "--n-cpu-mo: no flag of llama.cpp 0c1e570; nearest: --n-cpu-moe"),
    ("-rtr", "a flag of ik_llama.cpp"),
    ("-ub", "-ub: needs a value; allowed: a whole number"),
    ("-ub -t 3", "-ub: needs a value"),
    ("-ub twenty", "-ub twenty: 'twenty' is not a whole number"),
    ("-t 0", "-t 0: allowed: 1 or more"),
    ("--n-cpu-moe -1", "'-1' is not a whole number from 0"),
    ("-ngl -5", "allowed: a number from 0, auto or all"),
    ("-ngl some", "'some' is not a whole number"),
    ("-ctk q9_0", "'q9_0' is not allowed; allowed: f32, f16"),
    ("-ctk f32", "no prediction for a KV cache in f32"),
    ("-fa maybe", "maybe: is no flag and no key=value"),
    ("--load-mode ram", "allowed: auto, none, mmap"),
    ("-ot exps", "'exps' is not PATTERN=DEVICE"),
    ("-ot exps=cpu", "no device 'cpu'; nearest: CPU"),
    ("-ot '(=CPU'", "'(' is no regular expression"),
    ("-ot 'a{1,2}=CPU'", "a comma divides two rules"),
    ("--no-mmap=1", "--no-mmap takes no value"),
    ("28", "28: is no flag and no key=value"),
    ("'-t", "close the quotes"),
    ("host_layer=3", "no such key; nearest: host_layers"),
    ("host_layers=59", "host_layers=59: allowed: 0 to 58"),
    ("resident=300", "allowed: 0 to 256"),
    ("kv=q5_0", "allowed: f16, q8_0, q4_0, fp8"),
    ("mapped=maybe", "allowed: yes or no"),
    ("engine=ik", "the engine is llama.cpp; name one engine"),
    ("ik -rtr", "the engine is llama.cpp; name one engine"),
    ("--override-kv x.expert_used_count=int:900", "allowed: 1 to 256"),
])  # fmt: skip
def test_wrong_texts_are_one_clear_line(text: str, said: str) -> None:
    line = refused(text)
    assert line.startswith("--config ")
    assert said in line


@pytest.mark.parametrize(("text", "said"), [
    ("", "'': names no engine; begin with one of llama.cpp,"),
    ("threads=3", "threads=3: names no engine"),
    ("lamacpp -t 3", "unknown engine 'lamacpp'; nearest: llama"),
    ("ik -ser 6", "-ser 6: allowed: K,T"),
    ("exl3 -cq 9", "allowed: bits from 2 to 8"),
    ("kt --kt-gpu-experts-ratio 1.5", "allowed: 0 to 1"),
    ("kt --kt-method AMX", "allowed: AMXINT4"),
    ("fiddler --kt-method AMX", "fiddler has no flags here"),
    ("freetoken --moe-cache-size many", "'many' is not a whole number"),
])  # fmt: skip
def test_wrong_texts_of_other_engines_are_one_clear_line(text: str, said: str) -> None:
    assert said in refused(text, None)


@given(st.text(alphabet="-=ngltub 0123456789.,'\"\\[]CPUexps", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    for key in ("llama.cpp", "exllamav3"):
        with contextlib.suppress(UsageError):
            assert read(text, key).configuration.engine in engines()


def test_commas_and_semicolons_between_options_are_no_part_of_them() -> None:
    plain = read("llama.cpp -ngl 99 --n-cpu-moe 24 -t 20 -ot 'a=CUDA0,b=CPU'")
    assert read("llama.cpp -ngl 99, --n-cpu-moe 24; -t 20, -ot 'a=CUDA0,b=CPU'") == plain
