"""Command lines of configurations: documented flags only, and the same configuration when read."""

import ast
import dataclasses
import re
import shlex

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
