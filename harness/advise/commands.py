"""Command lines that run a configuration: of engines, and of this project's own systems.

Every flag is in the engine's table of documented options (`engines`).
"""

import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from moebench.harness.advise import command_llama, command_torch
from moebench.harness.advise.command_line import Line
from moebench.harness.advise.config import OURS
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.engines import engines
from moebench.harness.advise.machine import machine_text
from moebench.harness.advise.question import Question

#: Kinds of software by systems; others run as their papers' code does, on Hugging Face modules.
SOFTWARE = {
    "llamacpp": "ggml", "llamacpp-moe-cache": "ggml", "llamacpp-capped-lru": "ggml",
    "pinned-profile": "ggml", "qvac-lru": "ggml", "ktransformers": "kt", "kt-kernel": "kt",
    "exllamav3-mcs": "python-graphs", "freetoken": "python-graphs", "lfru": "python-graphs",
    "hybrimoe": "python-graphs", "dali": "python-graphs", "hobbit": "ggml",
}  # fmt: skip

#: Prompts and new tokens of a run: a cache begins the second text with what the first one left.
PROMPTS, NEW = 2, 32


_WRITERS: Mapping[str, Callable[[Line], tuple[str, ...]]] = {
    "llama.cpp": command_llama.llama,
    "llama.cpp-moe-cache": command_llama.llama,
    "ik_llama.cpp": command_llama.llama,
    "ktransformers": command_torch.ktransformers,
    "kt-kernel": command_torch.kt_kernel,
    "exllamav3": command_torch.exllamav3,
    "freetoken": command_torch.freetoken,
    "accelerate": command_torch.accelerate,
    "deepspeed": command_torch.deepspeed,
    "vllm": command_torch.vllm,
    "ollama": command_torch.ollama,
    "lm-studio": command_torch.lm_studio,
    "koboldcpp": command_llama.koboldcpp,
    "tinyserve": command_torch.tinyserve,
}


class Command(NamedTuple):
    """Command lines.

    Attributes:
        lines: for a shell, each complete; () if no program is documented.
        version: of the options, and where they were read.
        notes: what a reader must know or replace, one line each.
    """

    lines: tuple[str, ...]
    version: str
    notes: tuple[str, ...] = ()


def command(config: Configuration, question: Question) -> Command:
    """Return the command lines that run a configuration.

    Args:
        config: its engine is a key in the table of engines, or a system of this project, with
            `config.OURS` before its name if an engine has the same one.

    Raises UsageError: the machine has no text of parts (`machine_text`).
    """
    options = engines().get(config.engine)
    if options is None:
        return _ours(config, question)
    line = Line(options, config, question)
    writer = _WRITERS.get(options.key)
    lines = () if writer is None else writer(line)
    if writer is None:
        line.note(f"no program of {options.name} is documented: {options.home}")
    line.note_unset()
    return Command(lines, options.read_version, tuple(line.notes))


def _ours(config: Configuration, question: Question) -> Command:
    """Return the command line of a system of this project, whose run the answer is of."""
    system = config.engine.removeprefix(OURS)
    words = ["moebench", "run", "--system", system, *(
        word for name, value in run_options(question, system).items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    )]  # fmt: skip
    notes = []
    if question.hardware.reads_gb_s or question.hardware.copies_gb_s:
        notes.append("measured bandwidths are not in the machine's text: see moebench calibrate")
    line = " ".join([shlex.join(words), *config.other])
    return Command((line,), "options of this moebench", tuple(notes))


def run_options(question: Question, system: str) -> dict[str, Any]:
    """Return the options of the run that answers for a system of this project.

    Routing is drawn, and the prompt is in the KV cache already.

    Raises UsageError: the machine has no text of parts.
    """
    found: dict[str, Any] = {
        "model": question.model, "machine": machine_text(question.hardware),
        "software": SOFTWARE.get(system, "hf-eager"), "batch": question.batch,
        "routing": "drawn", "prompts": PROMPTS * question.batch, "new_tokens": NEW,
        "context": question.lengths.prompt,
    }  # fmt: skip
    if question.quant != "file":
        found["quant"] = question.quant
    return found
