"""The configurations of an engine that advice compares, and the rest of one that a user forces."""

import math
from collections.abc import Iterator
from dataclasses import replace

from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.memory import (
    Places,
    fewest_host_layers,
    most_context,
    most_resident,
    most_whole_layers,
    needs,
)
from moebench.harness.advise.question import Question
from moebench.harness.advise.rules import Rules

#: Rows of a prompt that are computed at once: llama.cpp's default, and what users raise it to.
MICRO_BATCHES = (512, 2048, 4096)

#: Tokens of a chunk of a prompt in engines that have no smaller unit.
CHUNK = 4096

#: Formats of the KV cache, the lossless one first.
CACHES = ("f16", "q8_0")

#: Fewest slots of each layer that llama.cpp's cache is worth.
LEAST_SLOTS = 1


def candidates(question: Question, rules: Rules, engine: str, threads: int, room: Places,
               alone: bool) -> Iterator[Configuration]:  # fmt: skip
    """Yield the configurations of an engine that fit on the device, or that need no device.

    Args:
        threads: of the host's cores.
        alone: whether the machine has no device of its own.
    """
    rows = [n for n in MICRO_BATCHES if n == MICRO_BATCHES[0] or n < 2 * question.lengths.prompt]
    if not rules.maps:
        rows = [min(CHUNK, max(512, question.lengths.prompt))]
    for kv in CACHES[: 1 if question.lossless else None]:
        found = [one for count in rows
                 for one in _placed(question, rules, Configuration(
                     engine=engine, threads=threads, micro_batch=count, kv=kv,
                 ), room, alone)]  # fmt: skip
        yield from (_read_or_mapped(question, rules, one, room) for one in found)
        if any(one.host_layers == 0 for one in found):
            return  # all is on the device already


def _read_or_mapped(
    question: Question, rules: Rules, config: Configuration, room: Places
) -> Configuration:
    """Return the configuration with its file read into memory, or mapped where it is larger.

    Copies from memory that an engine allocated itself are faster than those from a mapped file.
    """
    if not rules.maps:
        return config
    if config.repacked:
        return replace(config, mapped=False)
    need = needs(question, rules, config)
    size = need.host + (need.device if room.device == math.inf else 0.0)
    return replace(config, mapped=not room.one and size > room.host)


def _placed(question: Question, rules: Rules, config: Configuration, room: Places,
            alone: bool) -> Iterator[Configuration]:  # fmt: skip
    layers = len(question.shape.moe_layers)
    if alone or room.one:
        placed = replace(config, host_layers=0 if room.one and not alone else layers)
        if alone or needs(question, rules, placed).device <= room.device:
            yield placed
        return
    if rules.whole:
        found = most_whole_layers(question, rules, config, room)
        if found is not None:
            yield found
        return
    fewest = fewest_host_layers(question, rules, config, room)
    if fewest is None:
        return
    if fewest == 0:
        yield replace(config, host_layers=0)
        return
    if rules.layers:
        yield replace(config, host_layers=fewest)
        if config.engine == "ik_llama.cpp":
            yield replace(config, host_layers=fewest, repacked=True)
        return
    resident = most_resident(question, rules, config, room) if rules.holds else 0
    yield replace(config, host_layers=layers, resident=resident)


def completed(question: Question, rules: Rules, config: Configuration, threads: int, room: Places,
              alone: bool) -> Configuration:  # fmt: skip
    """Return a forced configuration with its open fields as the engine or the advice has them."""
    full = replace(
        config,
        threads=config.threads or threads,
        micro_batch=config.micro_batch or (512 if rules.maps else CHUNK),
        kv=config.kv or "f16",
    )
    layers = len(question.shape.moe_layers)
    if full.host_layers is None and full.whole_layers is not None:
        away = question.shape.num_layers - full.whole_layers
        full = replace(full, host_layers=sum(layer < away for layer in question.shape.moe_layers))
    if full.host_layers is None:
        found = next(_placed(question, rules, replace(full, resident=None), room, alone), None)
        full = replace(full, host_layers=layers if found is None else found.host_layers)
    if full.resident is None and rules.holds and full.host_layers:
        full = replace(full, resident=most_resident(question, rules, full, room))
    return full if full.mapped is not None else _read_or_mapped(question, rules, full, room)


def largest_context(question: Question, rules: Rules, room: Places, most: int) -> int:
    """Return the largest context that an engine can have with as few experts on the device."""
    config = Configuration(engine="", micro_batch=512 if rules.maps else CHUNK)
    return most_context(question, rules, config, room, most)
