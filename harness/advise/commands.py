"""Command lines that run a configuration: of engines, and of this project's own systems.

Every flag is in the engine's table of documented options (`engines`).
"""

import shlex
from collections.abc import Callable, Mapping
from typing import NamedTuple

from moebench.harness.advise import command_llama, command_torch
from moebench.harness.advise.command_line import Line
from moebench.harness.advise.config import OURS
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.engines import engines
from moebench.harness.advise.question import Hardware, Question
from moebench.substrate.machines.compose import CPU_ONLY
from moebench.substrate.machines.parts import Pool, find

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
    """Return the command line of a system of this project."""
    shape, words = question.shape, ["moebench", "run", "--system", config.engine.removeprefix(OURS)]
    words += ["--model", question.model, "--machine", machine_text(question.hardware)]
    if question.quant not in ("", "file"):
        words += ["--quant", question.quant]
    words += ["--context", str(question.lengths.context), "--batch", str(question.batch)]
    words += ["--new-tokens", str(question.lengths.new)]
    if config.host_layers is not None or config.resident is not None:
        host = len(shape.moe_layers) if config.host_layers is None else config.host_layers
        on_device = (len(shape.moe_layers) - host) * shape.num_experts
        slots = on_device + host * (config.resident or 0)
        words += ["--slots", str(slots)] if slots else []
    line = " ".join([shlex.join(words), *config.other])
    notes = []
    if question.hardware.reads_gb_s or question.hardware.copies_gb_s:
        notes.append("measured bandwidths are not in the machine's text: see moebench calibrate")
    return Command((line,), "options of this moebench", tuple(notes))


def machine_text(hardware: Hardware) -> str:
    """Return a machine as a text of parts, such as ``rtx-3090+ryzen-9-5950x+ddr4-3200+ram=64``.

    Raises UsageError: a part is unknown.
    """
    if hardware.profile is not None:
        return hardware.profile.name
    ram = [] if hardware.ram_gib is None else [f"ram={hardware.ram_gib:g}"]
    disk = [hardware.disk] if hardware.disk else []
    device = find(hardware.gpu or hardware.cpu) if hardware.gpu or hardware.cpu else None
    if isinstance(device, Pool):
        return "+".join([device.key, *ram, *disk])
    words = [_counted(find(hardware.gpu).key, hardware.cards) if hardware.gpu else CPU_ONLY]
    if hardware.cpu:
        words.append(_counted(find(hardware.cpu).key, hardware.sockets))
    if hardware.memory:
        modules = "" if hardware.channels is None else f"*{hardware.channels}"
        words.append(hardware.memory.lower() + modules)
    link = [hardware.link] if hardware.link and hardware.gpu else []
    return "+".join([*words, *ram, *link, *disk])


def _counted(key: str, count: int | None) -> str:
    return key if count is None or count == 1 else f"{key}*{count}"
