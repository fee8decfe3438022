"""Command lines of engines in Python, and of programs that choose the placement by themselves."""

import json
import shlex

from moebench.harness.advise.command_line import Line, room
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.parts import Gpu, Part, find
from moebench.substrate.models.gguf_shape import is_gguf

#: Tokens of FreeToken's largest documented page of the KV cache.
PAGE = 128

#: Share of each memory that Accelerate may fill.
FILLED = 0.9

_KT_METHODS = {"bf16": "BF16", "f16": "BF16", "fp8": "FP8", "mxfp4": "MXFP4", "int4": "AMXINT4",
               "4bit": "AMXINT4", "int8": "AMXINT8"}  # fmt: skip


def kt_kernel(line: Line) -> tuple[str, ...]:
    """Return the command lines of SGLang's server with kt-kernel."""
    config, question = line.config, line.question
    gguf = is_gguf(question.model)
    method = "LLAMAFILE" if gguf else _KT_METHODS.get(question.quant.lower(), "LLAMAFILE")
    line.start("--model", "MODEL_FOLDER" if gguf else question.model)
    line.add("--kt-weight-path", question.model if gguf else "WEIGHTS_FOLDER")
    line.add("--kt-method", method)
    line.add_field("--kt-num-gpu-experts", "resident")
    line.add_field("--kt-cpuinfer", "threads")
    sockets = question.hardware.sockets
    if config.bound is not None or sockets is not None:
        pools = 1 if config.bound is False else max(sockets or 1, 2 if config.bound else 1)
        line.add("--kt-threadpool-count", pools, sets="bound")
    line.add_field("--chunked-prefill-size", "micro_batch")
    line.add("--context-length", question.lengths.context)
    line.add("--max-running-requests", question.batch)
    if config.kv == "fp8":
        line.add("--kv-cache-dtype", "fp8_e4m3", sets="kv")
    line.note(
        "--kt-weight-path: the host's weights in the method's format; AMX formats are converted "
        "with kt-kernel's convert_cpu_weights.py, LLAMAFILE reads a folder of GGUF files"
    )
    return (line.end(),)


def ktransformers(line: Line) -> tuple[str, ...]:
    """Return the command lines of kTransformers' local chat."""
    question = line.question
    gguf = is_gguf(question.model)
    line.start("--model_path", "MODEL_FOLDER" if gguf else question.model)
    folder = question.model.rpartition("/")[0] or "."
    line.add("--gguf_path", folder if gguf else "GGUF_FOLDER")
    line.add_field("--cpu_infer", "threads")
    line.add_field("--chunk_prefill_size", "micro_batch")
    line.add("--max_new_tokens", question.lengths.new)
    line.note("local_chat is older than kt-kernel, which is the engine kt-kernel here")
    return (line.end(),)


def exllamav3(line: Line) -> tuple[str, ...]:
    """Return the command lines of exllamav3's chat example."""
    config, shape = line.config, line.question.shape
    line.start("-m", line.question.model)
    line.add("-mode", "PROMPT_MODE")
    if config.resident is not None and config.host_layers != 0:
        line.add("-mcs", max(0, shape.num_experts - config.resident), sets="resident")
        if config.host_layers not in (None, len(shape.moe_layers)):
            line.note("-mcs divides the experts of every MoE layer; -mcl excludes it")
    elif config.host_layers:
        line.add("-mcl", config.host_layers)
    line.add_field("-mct", "threads")
    if config.pinned:
        line.add("-mcpa", sets="pinned")
    line.add_field("-chunk_size", "micro_batch")
    line.add("-cs", room(line.question))
    if config.kv in ("q8_0", "q4_0"):
        line.add("-cq", 8 if config.kv == "q8_0" else 4, sets="kv")
    line.note("examples/chat.py is in the repository, not in the PyPI package")
    line.note("-m: a folder with the model in EXL3 format; -modes lists the prompt modes")
    return (line.end(),)


def freetoken(line: Line) -> tuple[str, ...]:
    """Return the command lines of FreeToken's server."""
    config, question = line.config, line.question
    line.start("--model", question.model)
    if config.resident is not None:
        slots = config.resident * len(question.shape.moe_layers)
        line.add("--moe-cache-size", slots, sets="resident")
        if slots < 2 * question.shape.num_experts:
            line.add("--disable-moe-prefill-overlap")
    else:
        line.add("--moe-cache-auto")
    line.add_field("--moe-cpu-threads", "threads")
    line.add_field("--max-prefill-length", "micro_batch")
    line.add("--num-tokens", -(-room(question) // PAGE) * PAGE)
    line.add("--max-running-requests", question.batch)
    line.written.add("pinned")  # FreeToken pins the experts of its own accord
    return (line.end(),)


def accelerate(line: Line) -> tuple[str, ...]:
    """Return the command lines of a program that places a model with Accelerate."""
    hardware = line.question.hardware
    memory = {}
    part = _part(hardware.gpu)
    if isinstance(part, Gpu):
        memory = {str(at): f'"{int(FILLED * part.memory_gib)}GiB"' for at in range(hardware.cards)}
    if hardware.ram_gib is not None:
        memory['"cpu"'] = f'"{int(FILLED * hardware.ram_gib)}GiB"'
    limits = ", ".join(f"{key}: {value}" for key, value in memory.items())
    limit = f"max_memory={{{limits}}}, " if memory else ""
    name = json.dumps(line.question.model)
    code = (
        "from transformers import AutoModelForCausalLM; model = "
        f'AutoModelForCausalLM.from_pretrained({name}, device_map="auto", '
        f'{limit}offload_folder="offload", dtype="auto"); print(model.hf_device_map)'
    )
    line.start(code)
    line.note("the line places the model; generate with model.generate in the same program")
    line.note_typed("from_pretrained")
    return (shlex.join(line.words),)


def deepspeed(line: Line) -> tuple[str, ...]:
    """Return the command lines of a script of ZeRO-Inference and its launcher."""
    question, script = line.question, "zero_inference.py"
    pin = line.config.pinned is not False
    line.written.add("pinned")
    code = (
        "import deepspeed",
        "from transformers import AutoModelForCausalLM",
        "from transformers.integrations import HfDeepSpeedConfig",
        f'settings = {{"train_micro_batch_size_per_gpu": {question.batch}, "bf16": '
        '{"enabled": True}, "zero_optimization": {"stage": 3, "offload_param": '
        f'{{"device": "cpu", "pin_memory": {pin}}}}}}}',
        "keep = HfDeepSpeedConfig(settings)",
        f'model = AutoModelForCausalLM.from_pretrained({json.dumps(question.model)}, dtype="auto")',
        "engine = deepspeed.initialize(model=model, config=settings)[0]",
        "engine.module.eval()",
    )
    write = " ".join(["printf", "'%s\\n'", *map(shlex.quote, code), ">", script])
    line.start()
    line.add("--num_gpus", question.hardware.cards)
    line.words.append(script)
    line.note("ZeRO-Inference: generate with engine.module.generate at the end of the script")
    return (write, line.end())


def vllm(line: Line) -> tuple[str, ...]:
    """Return the command lines of vLLM's server."""
    config, question = line.config, line.question
    line.start(question.model)
    line.add("--max-model-len", question.lengths.context)
    line.add_field("--max-num-batched-tokens", "micro_batch")
    if config.kv == "fp8":
        line.add("--kv-cache-dtype", "fp8", sets="kv")
    line.add("--max-num-seqs", question.batch)
    if question.hardware.cards > 1:
        line.add("--tensor-parallel-size", question.hardware.cards)
    if config.host_layers:
        line.note("no option of vLLM keeps single experts in host memory; --cpu-offload-gb N does "
                  "so with weights of any kind")  # fmt: skip
    return (line.end(),)


# ------------------------------------------------------------------------------ others


def ollama(line: Line) -> tuple[str, ...]:
    """Return the command lines of Ollama's server and client."""
    config, question = line.config, line.question
    before = [f"OLLAMA_CONTEXT_LENGTH={question.lengths.context}", "OLLAMA_FLASH_ATTENTION=1"]
    if config.kv in ("q8_0", "q4_0"):
        line.written.add("kv")
        before.append(f"OLLAMA_KV_CACHE_TYPE={config.kv}")
    if question.batch > 1:
        before.append(f"OLLAMA_NUM_PARALLEL={question.batch}")
    typed = [one for one in config.other if one.partition("=")[0] not in
             {two.partition("=")[0] for two in before}]  # fmt: skip
    line.note("Ollama places whole layers by itself; a model's name is one of its library")
    serve = " ".join([shlex.join(before), *typed, "ollama serve"])
    return (serve, shlex.join(["ollama", "run", question.model]))


def lm_studio(line: Line) -> tuple[str, ...]:
    """Return the command lines of LM Studio's loader."""
    line.start(line.question.model)
    line.add("--gpu", "max" if line.question.hardware.gpu else "off")
    line.add("--context-length", line.question.lengths.context)
    line.note("lms load has no option for experts in host memory")
    return (line.end(),)


def tinyserve(line: Line) -> tuple[str, ...]:
    """Return the command lines of tinyserve's server."""
    config, question = line.config, line.question
    if is_gguf(question.model):
        line.start("--model", "MODEL_FOLDER")
        line.add("--gguf", question.model)
    else:
        line.start("--model", question.model)
    if config.resident is not None:
        slots = config.resident * len(question.shape.moe_layers)
        line.note(f"slots of its cache: load_and_offload(cache_capacity={slots}) in Python")
        line.written.add("resident")
    return (line.end(),)


def _part(name: str) -> Part | None:
    """Return the part of a name, or None if the name fits none or several."""
    try:
        return find(name) if name else None
    except UsageError:
        return None
