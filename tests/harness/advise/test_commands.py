"""Command lines of configurations: documented flags only, and the same configuration when read."""

import ast
import dataclasses
import re
import shlex
from typing import Any

import pytest
import typer.main
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.advise.commands import command
from moebench.harness.advise.config import parse_config
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.engines import engines
from moebench.harness.advise.machine import machine_text
from moebench.harness.advise.question import Hardware, Lengths, Question
from moebench.harness.cli.app import app
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.compose import build
from moebench.substrate.models.bits import bits_of
from tests.harness.advise.asked import MODELS, PC, configurations, question, shape_of

RUNNING = [key for key in engines() if key != "gnf4"]


def line_of(config: Configuration, asked: Question) -> str:
    """Return the line that starts the engine."""
    lines = command(config, asked).lines
    return lines[1] if config.engine == "deepspeed" else lines[0]


def flags(line: str, key: str) -> list[str]:
    """Return the flags and variables of a line, without its program."""
    words = shlex.split(line)
    program = engines()[key].programs[0].split()
    at = words.index(program[0])
    assert words[at : at + len(program)] == program
    found = [word.partition("=")[0] for word in words[:at]]
    for word in words[at + len(program) :]:
        if re.match(r"--?[a-zA-Z]", word):
            found.append(word)
        elif key == "accelerate":
            found += re.findall(r"(?<![\w.])(\w+)=", word)
    return found


@pytest.mark.parametrize("key", RUNNING)
def test_every_written_flag_is_documented_and_is_read_as_the_same(key: str) -> None:
    table = engines()[key].by_spelling

    @settings(max_examples=60, deadline=None)
    @given(st.data(), st.sampled_from(MODELS), st.sampled_from([4096, 32768, 131072]),
           st.integers(1, 4))  # fmt: skip
    def check(data: st.DataObject, model: str, context: int, cards: int) -> None:
        config = data.draw(configurations(key, model))
        hardware = dataclasses.replace(PC, cards=cards)
        asked = question(model, hardware=hardware, lengths=Lengths(context, 512, 128))
        line = line_of(config, asked)
        assert "\n" not in line
        for flag in flags(line, key):
            if not flag.endswith("model") or flag in table:
                assert flag in table, line
                assert not table[flag].removed, line
        shape = shape_of(model)
        forced = parse_config(
            line, key, shape.moe_layers, shape.num_layers, shape.num_experts,
            expert_bytes=shape.expert_bytes(asked.bits.routed), cards=cards,
        )  # fmt: skip
        assert dataclasses.replace(forced.configuration, other=()) == config
        if "context" in engines()[key].settable and key != "tinyserve":
            assert forced.context == context
        again = line_of(forced.configuration, asked)
        assert sorted(shlex.split(again)) == sorted(shlex.split(line))

    check()


@pytest.mark.parametrize("key", RUNNING)
def test_several_texts_of_a_gguf_file_have_documented_flags_too(key: str) -> None:
    asked = question("/models/a b.gguf", quant="file", batch=4)
    table = engines()[key].by_spelling
    for hardware in (PC, Hardware(cpu="Ryzen 9 5950X")):
        config = Configuration(engine=key, host_layers=36, threads=8)
        line = line_of(config, dataclasses.replace(asked, hardware=hardware))
        assert [flag for flag in flags(line, key) if flag not in table and flag != "model"] == []
    lines = command(Configuration(engine=key), asked).lines
    assert key == "deepspeed" or any("a b.gguf" in line or "/models" in line for line in lines)


@pytest.mark.parametrize("key", engines())
def test_fields_without_an_option_are_noted(key: str) -> None:
    config = Configuration(engine=key, host_layers=20, resident=7, threads=9, kv="fp8",
                           micro_batch=512, experts_used=3)  # fmt: skip
    found = command(config, question())
    text = " ".join([*found.lines, *found.notes])
    assert engines()[key].name in found.version
    for name in ("threads", "micro_batch", "kv"):
        if name not in engines()[key].settable:
            assert f"{name} {getattr(config, name)}: no option of {engines()[key].name}" in text
    assert "3" in text


def test_engine_without_a_documented_program_says_so() -> None:
    found = command(Configuration(engine="gnf4"), question())
    assert found.lines == ()
    assert "version unknown" in found.version
    assert "no program of grouped-nf4-gemm is documented" in found.notes[0]


# ------------------------------------------------------------------------------ lines by hand


def test_line_of_llama_cpp() -> None:
    config = Configuration(engine="llama.cpp", host_layers=28, threads=16, micro_batch=4096,
                           kv="q8_0", mapped=False)  # fmt: skip
    found = command(config, question())
    assert found.lines == (
        "llama-server -m gpt-oss-120b-mxfp4.gguf -ngl 99 --n-cpu-moe 28 -ub 4096 -b 4096 -t 16 "
        "-c 32768 -ctk q8_0 -ctv q8_0 -fa on --load-mode none",
    )  # fmt: skip
    assert "llama.cpp 0c1e570 (common/arg.cpp" in found.version
    older = command(dataclasses.replace(config, engine="ik_llama.cpp", repacked=True), question())
    assert older.lines[0].endswith("-fa on -rtr --no-mmap")


def test_layers_of_a_model_with_leading_dense_ones_count_these() -> None:
    config = Configuration(engine="llama.cpp", host_layers=25)
    assert "--n-cpu-moe 28 " in line_of(config, question(MODELS[1]))
    assert "--cpu-moe " in line_of(dataclasses.replace(config, host_layers=58), question(MODELS[1]))
    assert "moe" not in line_of(dataclasses.replace(config, host_layers=0), question(MODELS[1]))
    assert "-ngl" not in line_of(dataclasses.replace(config, host_layers=None), question(MODELS[1]))


def test_processor_alone_and_several_cards() -> None:
    config = Configuration(engine="llama.cpp", host_layers=36)
    alone = question(hardware=Hardware(cpu="EPYC 9354"))
    assert " -ngl 0 " in line_of(config, alone)
    assert "moe" not in line_of(config, alone)
    several = question(hardware=dataclasses.replace(PC, cards=2))
    assert any("-ts" in note for note in command(config, several).notes)
    assert not any("-ts" in note for note in command(config, question()).notes)


def test_paths_are_quoted_and_typed_options_are_kept_once() -> None:
    config = Configuration(engine="llama.cpp", host_layers=3, micro_batch=512,
                           other=("-fa off", "-b 8192", "--jinja"))  # fmt: skip
    line = line_of(config, question("/my models/it's.gguf", quant="file"))
    words = shlex.split(line)
    assert words[:3] == ["llama-server", "-m", "/my models/it's.gguf"]
    assert words.count("-fa") == words.count("-b") == 1
    assert line.endswith("-fa off -b 8192 --jinja")


def test_lines_of_python_engines_are_programs() -> None:
    asked = question('odd"name', hardware=dataclasses.replace(PC, cards=2))
    line = line_of(Configuration(engine="accelerate"), asked)
    code = shlex.split(line)[-1]
    ast.parse(code)
    assert 'max_memory={0: "21GiB", 1: "21GiB", "cpu": "57GiB"}' in code
    typed = command(Configuration(engine="accelerate", other=("device_map=balanced",)), asked)
    assert typed.lines == (line,)
    assert "options as typed belong into from_pretrained: device_map=balanced" in typed.notes
    write, run = command(Configuration(engine="deepspeed", pinned=False), asked).lines
    words = shlex.split(write)
    assert words[0] == "printf"
    ast.parse("\n".join(words[2:-2]))
    assert '"pin_memory": False' in write
    assert run == "deepspeed --num_gpus 2 zero_inference.py"


@pytest.mark.parametrize(("quant", "method"), [
    ("bf16", "BF16"), ("mxfp4", "MXFP4"), ("q4_k_m", "LLAMAFILE"),
])  # fmt: skip
def test_methods_of_kt_kernel(quant: str, method: str) -> None:
    asked = question(quant=quant, bits=bits_of(quant))
    line = line_of(Configuration(engine="kt-kernel", resident=8, threads=64, bound=True), asked)
    assert f"--kt-method {method} --kt-num-gpu-experts 8 --kt-cpuinfer 64 " in line
    assert "--kt-threadpool-count 2" in line


def test_ollama_has_variables_and_a_client() -> None:
    serve, run = command(Configuration(engine="ollama", kv="q8_0"), question()).lines
    assert serve.startswith("OLLAMA_CONTEXT_LENGTH=32768 ")
    assert serve.endswith(" OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve")
    assert run == "ollama run gpt-oss-120b"


NO_GPU = {"hardware": Hardware(cpu="EPYC 9354")}
FILE = "/models/m.gguf"
LLAMA = "llama-server -m gpt-oss-120b-mxfp4.gguf "
END = "-c 32768 -fa on"
KT = "python -m sglang.launch_server --model gpt-oss-120b --kt-weight-path WEIGHTS_FOLDER "
CHAT = "python examples/chat.py -m gpt-oss-120b -mode PROMPT_MODE "


def cards(number: int) -> dict[str, Hardware]:
    return {"hardware": dataclasses.replace(PC, cards=number)}


def sockets(number: int | None) -> dict[str, Hardware]:
    return {"hardware": dataclasses.replace(PC, sockets=number)}


@pytest.mark.parametrize(("key", "fields", "changes", "line"), [
    # llama.cpp and its forks.
    ("llama.cpp", {}, {}, LLAMA + END),
    ("llama.cpp", {"whole_layers": 36}, {}, LLAMA + END),
    ("llama.cpp", {"host_layers": 0}, {}, LLAMA + "-ngl 99 " + END),
    ("llama.cpp", {"host_layers": 35}, {}, LLAMA + "-ngl 99 --n-cpu-moe 35 " + END),
    ("llama.cpp", {"host_layers": 36}, {}, LLAMA + "-ngl 99 --cpu-moe " + END),
    ("llama.cpp", {"whole_layers": 10, "host_layers": 26}, {}, LLAMA + "-ngl 11 " + END),
    ("llama.cpp", {"whole_layers": 10, "host_layers": 27}, {},
     LLAMA + "-ngl 11 --n-cpu-moe 27 " + END),
    ("llama.cpp", {"whole_layers": 0, "host_layers": 36}, {}, LLAMA + "-ngl 0 " + END),
    ("llama.cpp", {"host_layers": 9}, NO_GPU, LLAMA + "-ngl 0 " + END),
    ("llama.cpp", {"micro_batch": 2049}, {}, LLAMA + "-ub 2049 -b 2049 " + END),
    ("llama.cpp", {"micro_batch": 64, "threads": 3}, {}, LLAMA + "-ub 64 -b 2048 -t 3 " + END),
    ("llama.cpp", {"kv": "q4_0"}, {"batch": 3},
     LLAMA + "-c 98304 -np 3 -ctk q4_0 -ctv q4_0 -fa on"),
    ("llama.cpp", {"kv": "f16", "repacked": True, "mapped": True, "bound": False}, {}, LLAMA + END),
    ("llama.cpp", {"repacked": False, "bound": True}, {},
     LLAMA + END + " --no-repack --numa distribute"),
    ("llama.cpp", {"experts_used": 2}, {"model": FILE}, "llama-server -m /models/m.gguf " + END),
    ("llama.cpp", {}, {"quant": "file"}, "llama-server -m gpt-oss-120b.gguf " + END),
    ("llama.cpp", {}, {"model": "a/b/", "quant": ""}, "llama-server -m b.gguf " + END),
    ("ik_llama.cpp", {}, {}, LLAMA + "-ngl 99 --fit " + END),
    ("ik_llama.cpp", {"whole_layers": 10}, {}, LLAMA + "-ngl 10 " + END),
    ("ik_llama.cpp", {"whole_layers": 0, "repacked": False}, {}, LLAMA + "-ngl 0 " + END),
    ("ik_llama.cpp", {"host_layers": 4, "repacked": True, "mapped": False, "experts_used": 2}, {},
     LLAMA + "-ngl 99 --n-cpu-moe 4 " + END + " -rtr --no-mmap -ser 2,1"),
    # Eight experts of 13.2 MB in each of 36 layers are 3632.02 MiB.
    ("llama.cpp-moe-cache", {"resident": 8}, {}, LLAMA + "--moe-cache 3633 " + END),
    ("llama.cpp-moe-cache", {"resident": 8, "host_layers": 18}, cards(2),
     LLAMA + "-ngl 99 --n-cpu-moe 18 --moe-cache 909 " + END),
    ("llama.cpp-moe-cache", {"resident": 0, "host_layers": 36}, {},
     LLAMA + "-ngl 99 --cpu-moe --moe-cache 0 " + END),
    # KoboldCpp.
    ("koboldcpp", {"threads": 5, "micro_batch": 512, "kv": "q8_0", "experts_used": 3}, {},
     "python koboldcpp.py --model gpt-oss-120b-mxfp4.gguf --usecuda --threads 5 --batchsize 512 "
     "--contextsize 32768 --quantkv 1 --flashattention --moeexperts 3"),
    ("koboldcpp", {"host_layers": 36, "kv": "q4_0", "mapped": True}, {"batch": 2},
     "python koboldcpp.py --model gpt-oss-120b-mxfp4.gguf --usecuda --gpulayers 999 --moecpu 36 "
     "--contextsize 65536 --quantkv 2 --flashattention --usemmap"),
    ("koboldcpp", {"host_layers": 35, "micro_batch": 513}, {},
     "python koboldcpp.py --model gpt-oss-120b-mxfp4.gguf --usecuda --gpulayers 999 --moecpu 35 "
     "--contextsize 32768 --flashattention"),
    ("koboldcpp", {"host_layers": 27, "whole_layers": 10}, {},
     "python koboldcpp.py --model gpt-oss-120b-mxfp4.gguf --usecuda --gpulayers 11 --moecpu 27 "
     "--contextsize 32768 --flashattention"),
    ("koboldcpp", {"host_layers": 26, "whole_layers": 10}, {},
     "python koboldcpp.py --model gpt-oss-120b-mxfp4.gguf --usecuda --gpulayers 11 "
     "--contextsize 32768 --flashattention"),
    ("koboldcpp", {"host_layers": 36, "whole_layers": 0}, {},
     "python koboldcpp.py --model gpt-oss-120b-mxfp4.gguf --usecuda --gpulayers 0 "
     "--contextsize 32768 --flashattention"),
    ("koboldcpp", {"host_layers": 36}, NO_GPU,
     "python koboldcpp.py --model gpt-oss-120b-mxfp4.gguf --gpulayers 0 --contextsize 32768 "
     "--flashattention"),
    # Engines in Python.
    ("kt-kernel", {}, {}, KT + "--kt-method MXFP4 --context-length 32768 --max-running-requests 1"),
    ("kt-kernel", {"micro_batch": 256, "kv": "fp8"}, {"quant": "INT4", "batch": 2},
     KT + "--kt-method AMXINT4 --chunked-prefill-size 256 --context-length 32768 "
     "--max-running-requests 2 --kv-cache-dtype fp8_e4m3"),
    ("kt-kernel", {}, {"quant": "int8"} | sockets(1),
     KT + "--kt-method AMXINT8 --kt-threadpool-count 1 --context-length 32768 "
     "--max-running-requests 1"),
    ("kt-kernel", {}, {"quant": "fp8"} | sockets(4),
     KT + "--kt-method FP8 --kt-threadpool-count 4 --context-length 32768 "
     "--max-running-requests 1"),
    ("kt-kernel", {"bound": True}, {"quant": "f16"},
     KT + "--kt-method BF16 --kt-threadpool-count 2 --context-length 32768 "
     "--max-running-requests 1"),
    ("kt-kernel", {"bound": False}, {"quant": "4bit"} | sockets(4),
     KT + "--kt-method AMXINT4 --kt-threadpool-count 1 --context-length 32768 "
     "--max-running-requests 1"),
    ("kt-kernel", {}, {"model": FILE, "quant": "file"},
     "python -m sglang.launch_server --model MODEL_FOLDER --kt-weight-path /models/m.gguf "
     "--kt-method LLAMAFILE --context-length 32768 --max-running-requests 1"),
    ("ktransformers", {"threads": 9, "micro_batch": 128}, {},
     "python -m ktransformers.local_chat --model_path gpt-oss-120b --gguf_path GGUF_FOLDER "
     "--cpu_infer 9 --chunk_prefill_size 128 --max_new_tokens 512"),
    ("ktransformers", {}, {"model": FILE},
     "python -m ktransformers.local_chat --model_path MODEL_FOLDER --gguf_path /models "
     "--max_new_tokens 512"),
    ("ktransformers", {}, {"model": "m.gguf"},
     "python -m ktransformers.local_chat --model_path MODEL_FOLDER --gguf_path . "
     "--max_new_tokens 512"),
    ("exllamav3", {}, {}, CHAT + "-cs 32768"),
    ("exllamav3", {"resident": 100, "threads": 4, "pinned": True, "micro_batch": 64, "kv": "q8_0"},
     {"batch": 2}, CHAT + "-mcs 28 -mct 4 -mcpa -chunk_size 64 -cs 65536 -cq 8"),
    ("exllamav3", {"resident": 128, "pinned": False, "kv": "q4_0"}, {},
     CHAT + "-mcs 0 -cs 32768 -cq 4"),
    ("exllamav3", {"resident": 100, "host_layers": 0}, {}, CHAT + "-cs 32768"),
    ("exllamav3", {"host_layers": 5}, {}, CHAT + "-mcl 5 -cs 32768"),
    ("freetoken", {}, {},
     "ft serve --model gpt-oss-120b --moe-cache-auto --num-tokens 32768 --max-running-requests 1"),
    ("freetoken", {"resident": 7, "threads": 6, "micro_batch": 32}, {"batch": 3},
     "ft serve --model gpt-oss-120b --moe-cache-size 252 --disable-moe-prefill-overlap "
     "--moe-cpu-threads 6 --max-prefill-length 32 --num-tokens 98304 --max-running-requests 3"),
    ("freetoken", {"resident": 8}, {"lengths": Lengths(1000, 10, 10)},
     "ft serve --model gpt-oss-120b --moe-cache-size 288 --num-tokens 1024 "
     "--max-running-requests 1"),
    ("vllm", {"micro_batch": 77, "kv": "fp8"}, {"batch": 5} | cards(2),
     "vllm serve gpt-oss-120b --max-model-len 32768 --max-num-batched-tokens 77 "
     "--kv-cache-dtype fp8 --max-num-seqs 5 --tensor-parallel-size 2"),
    ("vllm", {"kv": "q8_0"}, {}, "vllm serve gpt-oss-120b --max-model-len 32768 --max-num-seqs 1"),
    ("lm-studio", {}, {}, "lms load gpt-oss-120b --gpu max --context-length 32768"),
    ("lm-studio", {}, NO_GPU, "lms load gpt-oss-120b --gpu off --context-length 32768"),
    ("tinyserve", {}, {}, "tinyserve serve --model gpt-oss-120b"),
    ("tinyserve", {}, {"model": FILE}, 
     "tinyserve serve --model MODEL_FOLDER --gguf /models/m.gguf"),
    ("ollama", {"kv": "q4_0"}, {"batch": 2},
     "OLLAMA_CONTEXT_LENGTH=32768 OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q4_0 "
     "OLLAMA_NUM_PARALLEL=2 ollama serve"),
    ("ollama", {"other": ("OLLAMA_FLASH_ATTENTION=0", "OLLAMA_KEEP_ALIVE=5m")}, {},
     "OLLAMA_CONTEXT_LENGTH=32768 OLLAMA_FLASH_ATTENTION=1 OLLAMA_KEEP_ALIVE=5m ollama serve"),
])  # fmt: skip
def test_whole_lines(key: str, fields: dict[str, Any], changes: dict[str, Any], line: str) -> None:
    assert line_of(Configuration(engine=key, **fields), question(**changes)) == line


@pytest.mark.parametrize(("fields", "changes", "limits"), [
    ({}, {}, 'max_memory={0: "21GiB", "cpu": "57GiB"}, '),
    ({}, NO_GPU, ""),
    ({}, {"hardware": Hardware(cpu="EPYC 9354", ram_gib=10.0)}, 'max_memory={"cpu": "9GiB"}, '),
    ({}, {"hardware": Hardware(gpu="Strix Halo")}, ""),
    ({}, {"hardware": Hardware(gpu="RTX 9990")}, ""),
    ({}, cards(3), 'max_memory={0: "21GiB", 1: "21GiB", 2: "21GiB", "cpu": "57GiB"}, '),
])  # fmt: skip
def test_accelerate_fills_nine_tenths_of_each_memory(
    fields: dict[str, Any], changes: dict[str, Any], limits: str
) -> None:
    line = line_of(Configuration(engine="accelerate", **fields), question(**changes))
    assert shlex.split(line) == ["python", "-c", (
        "from transformers import AutoModelForCausalLM; model = AutoModelForCausalLM."
        f'from_pretrained("gpt-oss-120b", device_map="auto", {limits}offload_folder="offload", '
        'dtype="auto"); print(model.hf_device_map)'
    )]  # fmt: skip


def test_deepspeed_has_a_script_and_a_launcher() -> None:
    write, run = command(Configuration(engine="deepspeed"), question(batch=3)).lines
    assert run == "deepspeed --num_gpus 1 zero_inference.py"
    words = shlex.split(write)
    assert [*words[:2], *words[-2:]] == ["printf", "%s\\n", ">", "zero_inference.py"]
    assert words[2:-2] == [
        "import deepspeed",
        "from transformers import AutoModelForCausalLM",
        "from transformers.integrations import HfDeepSpeedConfig",
        'settings = {"train_micro_batch_size_per_gpu": 3, "bf16": {"enabled": True}, '
        '"zero_optimization": {"stage": 3, "offload_param": '
        '{"device": "cpu", "pin_memory": True}}}',
        "keep = HfDeepSpeedConfig(settings)",
        'model = AutoModelForCausalLM.from_pretrained("gpt-oss-120b", dtype="auto")',
        "engine = deepspeed.initialize(model=model, config=settings)[0]",
        "engine.module.eval()",
    ]


#: What is said of every engine's line, by its beginning.
ALWAYS = {
    "llama.cpp": ["gpt-oss-120b-mxfp4.gguf: replace by the path"],
    "llama.cpp-moe-cache": ["gpt-oss-120b-mxfp4.gguf: replace by the path"],
    "ik_llama.cpp": ["gpt-oss-120b-mxfp4.gguf: replace by the path"],
    "kt-kernel": ["--kt-weight-path: the host's weights"],
    "ktransformers": ["local_chat is older than kt-kernel"],
    "exllamav3": ["examples/chat.py is in the repository", "-m: a folder with the model in EXL3"],
    "accelerate": ["the line places the model; generate"],
    "deepspeed": ["ZeRO-Inference: generate with"],
    "ollama": ["Ollama places whole layers by itself"],
    "lm-studio": ["lms load has no option for experts"],
}


@pytest.mark.parametrize(("key", "fields", "changes", "notes"), [
    ("llama.cpp", {}, {}, ["llama.cpp chooses the layers on the GPU by itself (--fit)"]),
    ("llama.cpp", {"host_layers": 9}, {}, []),
    ("llama.cpp", {"whole_layers": 9}, {}, []),
    ("llama.cpp", {"host_layers": 9}, cards(2), ["the layers are divided among 2 cards"]),
    ("llama.cpp", {"host_layers": 0}, cards(2), []),
    ("llama.cpp", {}, NO_GPU, []),
    ("llama.cpp", {"host_layers": 0, "mapped": False}, {}, ["--load-mode none is --no-mmap"]),
    ("llama.cpp", {"host_layers": 0, "experts_used": 3}, {}, ["3 experts of a token: add"]),
    ("llama.cpp", {"host_layers": 0, "experts_used": 3,
                   "other": ("--override-kv a.expert_used_count=int:3",)}, {}, []),
    ("llama.cpp", {"host_layers": 0, "resident": 3, "pinned": True}, {},
     ["resident 3: no option of llama.cpp sets it", "pinned True: no option of llama.cpp sets"]),
    ("llama.cpp", {"host_layers": 0, "resident": 0, "pinned": False, "bound": False}, {}, []),
    ("llama.cpp", {"host_layers": 0, "micro_batch": 512, "threads": 3, "kv": "q8_0",
                   "repacked": True, "mapped": True, "bound": True}, {}, []),
    ("llama.cpp", {"host_layers": 0, "kv": "fp8", "repacked": False, "bound": True}, {},
     ["kv fp8: no option of llama.cpp sets it"]),
    ("ik_llama.cpp", {"host_layers": 0, "micro_batch": 512, "threads": 3, "kv": "q4_0",
                      "repacked": False, "mapped": True, "bound": True}, {}, []),
    ("llama.cpp-moe-cache", {"host_layers": 9}, {}, ["--moe-cache is auto: with one card"]),
    ("llama.cpp-moe-cache", {"host_layers": 9, "resident": 3}, {}, []),
    ("ik_llama.cpp", {}, {}, ["ik_llama.cpp chooses the layers on the GPU by itself (--fit)"]),
    ("ik_llama.cpp", {"host_layers": 0, "mapped": False, "experts_used": 3, "repacked": True}, {},
     []),
    ("kt-kernel", {"kv": "fp8", "bound": True, "resident": 3, "threads": 3}, {}, []),
    ("kt-kernel", {"kv": "q8_0"}, {}, ["kv q8_0: no option of kt-kernel with SGLang sets it"]),
    ("exllamav3", {"resident": 9, "host_layers": 9, "kv": "q8_0", "pinned": True}, {},
     ["-mcs divides the experts of every MoE layer; -mcl excludes it"]),
    ("exllamav3", {"resident": 9, "host_layers": 36}, {}, []),
    ("exllamav3", {"resident": 9}, {}, []),
    ("freetoken", {"pinned": True, "resident": 3}, {}, []),
    ("accelerate", {"threads": 3}, {}, ["threads 3: no option of Accelerate sets it"]),
    ("deepspeed", {"pinned": True}, {}, []),
    ("vllm", {"host_layers": 2, "kv": "fp8"}, {}, ["no option of vLLM keeps single experts"]),
    ("vllm", {"host_layers": 0}, {}, []),
    ("ollama", {"kv": "q8_0"}, {}, []),
    ("koboldcpp", {"whole_layers": 3, "mapped": False, "kv": "q8_0", "threads": 3,
                   "micro_batch": 512, "experts_used": 3}, {}, []),
    ("koboldcpp", {"micro_batch": 513}, {}, ["micro_batch 513: no option of KoboldCpp sets it"]),
    ("tinyserve", {"resident": 3}, {},
     ["slots of its cache: load_and_offload(cache_capacity=108)"]),
])  # fmt: skip
def test_notes(key: str, fields: dict[str, Any], changes: dict[str, Any], notes: list[str]) -> None:
    found = command(Configuration(engine=key, **fields), question(**changes)).notes
    expected = [*ALWAYS.get(key, []), *notes]
    assert len(found) == len(expected)
    assert all(sum(one.startswith(begin) for one in found) == 1 for begin in expected)


# ------------------------------------------------------------------------------ this project


def test_systems_of_this_project_are_run_by_it() -> None:
    config = Configuration(engine="fiddler", host_layers=30, resident=16)
    (line,) = command(config, question()).lines
    assert line == (
        "moebench run --system fiddler --model gpt-oss-120b "
        "--machine rtx-3090+ryzen-9-5950x+ddr4-3200+ram=64 --software hf-eager --batch 1 "
        f"--routing drawn --prompts 2 --new-tokens 32 --context {question().lengths.prompt} "
        "--quant mxfp4"
    )
    ours = command(dataclasses.replace(config, engine="moebench:freetoken"), question()).lines[0]
    assert "--system freetoken " in ours
    run = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    known = {name for one in run.params for name in one.opts}
    assert {word for word in shlex.split(line) if word.startswith("--")} <= known


@pytest.mark.parametrize(("hardware", "text"), [
    (PC, "rtx-3090+ryzen-9-5950x+ddr4-3200+ram=64"),
    (Hardware(gpu="RTX 4090", cards=2, cpu="EPYC 9354", sockets=2, memory="DDR5-4800", channels=16,
              ram_gib=512.0, link="pcie4x16", disk="nvme4"),
     "rtx-4090*2+epyc-9354*2+ddr5-4800*16+ram=512+pcie4x16+nvme4"),
    (Hardware(cpu="EPYC 9354", channels=1, memory="DDR5-4800"), "cpu-only+epyc-9354+ddr5-4800*1"),
    (Hardware(gpu="Apple M4 Max", ram_gib=128.0), "apple-m4-max+ram=128"),
    (Hardware(gpu="RTX 3090"), "rtx-3090"),
])  # fmt: skip
def test_machines_are_texts_of_parts(hardware: Hardware, text: str) -> None:
    assert machine_text(hardware) == text
    built = build(text)
    assert built.cards == hardware.cards
    assert hardware.ram_gib in (None, built.ram_gib)


def test_unknown_part_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown part"):
        machine_text(Hardware(gpu="RTX 12345"))
