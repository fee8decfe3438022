"""Reads a question from what a user types: model, format and lengths; `machine` reads parts."""

import math
import re
from dataclasses import replace
from pathlib import Path

from moebench.harness.advise.formats import LEAST, MOST, named_bits
from moebench.harness.advise.question import Hardware, Lengths, Question
from moebench.substrate.errors import CheckpointError, UsageError
from moebench.substrate.models.bits import format_key
from moebench.substrate.models.catalogue import find_name, is_file, model_shape, published_models
from moebench.substrate.models.gguf_shape import is_gguf, read_gguf

#: Lengths where none are typed: tokens of the prompt and of the answer, and least context.
PROMPT, NEW, CONTEXT = 2048, 512, 8192

#: Format where none is typed, by the beginning of a model's name.
USUAL_FORMATS = {"gpt-oss": "mxfp4"}
USUAL_FORMAT = "q4_k_m"

#: Most tokens of a context whose positions no file states.
MOST_CONTEXT = 2**20

#: Positions of later versions of a model, by a word of their names.
LONGER = {"2507": 262_144}

#: Most texts that are decoded at the same time.
MOST_BATCH = 256


def question(
    *, model: str, quant: str | None, hardware: Hardware, context: str | None = None,
    prompt: str | None = None, new: str | None = None, batch: int = 1, lossless: bool = False,
    routed: float | None = None,
) -> Question:  # fmt: skip
    """Return the question, with usual lengths and the usual format where none are given.

    A context alone is filled by the prompt, so that rates are those at this context.

    Args:
        routed: bits per weight of routed experts, where they are known better than by the format.

    Raises:
        UsageError: a name or a number is not allowed, or lengths do not fit into the context.
        CheckpointError: a file of the model is missing, damaged, or holds no experts.
    """
    name = model if is_file(model) else find_name(model)
    shape = model_shape(name)
    if not shape.num_experts or not shape.moe_layers:
        raise CheckpointError(f"{model}: is no Mixture-of-Experts model; advice is about experts")
    if quant is None:
        quant = "file" if is_gguf(model) else _usual_format(name)
    if quant == "file" and not is_gguf(model):
        raise UsageError("--quant file: allowed with a GGUF file; give --model FILE.gguf")
    if is_gguf(model) and quant == "file":
        read = read_gguf(Path(model))
        bits, quant = read.stored.bits, read.format
    else:
        bits = named_bits(quant)
    if routed is not None:
        if not LEAST <= routed <= MOST:
            raise UsageError(
                f"--bits {routed:g}: allowed: bits per weight from {LEAST:g} to {MOST:g}"
            )
        bits = bits._replace(routed=routed)
    positions = max([shape.max_positions, *(n for word, n in LONGER.items() if word in model)])
    if not 1 <= batch <= MOST_BATCH:
        raise UsageError(f"--batch {batch}: allowed: 1 to {MOST_BATCH}")
    return Question(
        model=name, shape=shape, quant=format_key(quant), bits=bits, hardware=hardware,
        lengths=_lengths(name, positions, context, prompt, new), batch=batch,
        lossless=lossless,
    )  # fmt: skip


def _usual_format(name: str) -> str:
    found = (usual for begin, usual in USUAL_FORMATS.items() if name.startswith(begin))
    return next(found, USUAL_FORMAT)


def _lengths(
    name: str, positions: int, context: str | None, prompt: str | None, new: str | None
) -> Lengths:
    room = None if context is None else tokens("--context", context, least=256)
    answer = NEW if new is None else tokens("--tokens", new, least=1)
    if prompt is not None:
        asked = tokens("--prompt", prompt, least=0)
    elif room is not None:
        answer = min(answer, max(1, room // 4)) if new is None else answer
        asked = max(0, room - answer)
    else:
        asked = PROMPT
    needed = asked + answer
    if room is None:
        room = max(CONTEXT, -(-needed // 256) * 256)
        room = min(room, max(positions, needed))
    if needed > room:
        raise UsageError(
            f"a prompt of {asked:,} tokens and an answer of {answer:,} do not fit into a context "
            f"of {room:,}; give --context {needed} or shorter texts"
        )
    entry = published_models().get(name)
    stated = entry is None or entry.shape is None
    most = positions if stated else max(positions, MOST_CONTEXT)
    if room > most:
        raise UsageError(f"--context {room}: {name} has {positions:,} positions at most")
    return Lengths(room, asked, answer)


def with_context(asked: Question, context: int) -> Question:
    """Return the question with another context, whose prompt is as long as it was if it fits.

    Raises UsageError: the texts do not fit into the context.
    """
    old = asked.lengths
    if old.prompt + old.new > context:
        raise UsageError(
            f"-c {context}: a prompt of {old.prompt:,} tokens and an answer of {old.new:,} do not "
            "fit; give --prompt and --tokens"
        )
    return replace(asked, lengths=old._replace(context=context))


def tokens(option: str, typed: str, least: int) -> int:
    """Return a number of tokens: ``32768``, ``32k`` (of 1,024) or ``1m``.

    Raises UsageError: it is no such number, or less than ``least``.
    """
    said = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([km]?)", typed.strip().lower().replace(",", ""))
    value = float(said[1]) * {"": 1, "k": 1024, "m": 1024**2}[said[2]] if said else math.nan
    if not least <= value <= 2**24 or value != int(value):
        raise UsageError(
            f"{option} {typed!r}: allowed: tokens from {least}, as a number or with k (1,024), "
            "such as 32k"
        )
    return int(value)
