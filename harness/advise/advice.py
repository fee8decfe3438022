"""Answers what to run on a machine: what `moebench advise` and `moebench.advise` do."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from moebench.harness.advise import ask, kept, machine
from moebench.harness.advise.answer import Answer, Answers, Rate
from moebench.harness.advise.answering import answers, with_others
from moebench.harness.advise.commands import command
from moebench.harness.advise.config import OURS, parse_config
from moebench.harness.advise.engines import find_engine, is_engine
from moebench.harness.advise.question import Hardware, Question
from moebench.harness.advise.rules import RULES
from moebench.harness.api.frames import frame_of
from moebench.results.store_hints import DEFAULT_STORE
from moebench.substrate.errors import MoeBenchError, UnknownNameError
from moebench.systems.registry import SYSTEMS

if TYPE_CHECKING:
    import pandas

#: Called with a line for what has been found so far.
Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer to a question, as plain values.

    Attributes:
        document: ``question``, ``verdict``, ``largest_context``, ``answers``, ``left_out`` and
            ``buy``, as ``moebench advise --json`` prints them.
        cached: whether it was computed before, from the same content.
    """

    document: dict[str, Any]
    cached: bool = False

    @property
    def answers(self) -> list[dict[str, Any]]:
        """The rows, best first: engine, configuration, commands, rates, memory, verdict."""
        return list(self.document["answers"])

    def frame(self) -> "pandas.DataFrame":
        """Return a data frame with a row for each answer.

        Raises UsageError: pandas is not installed.
        """
        return frame_of([
            {**{key: value for key, value in one.items() if not isinstance(value, dict | list)},
             **one["memory"]}
            for one in self.answers
        ])  # fmt: skip

    def _repr_html_(self) -> str:
        return str(self.frame().to_html())


class Machine(TypedDict, total=False):
    """Parts of a machine; none at all are those of this computer.

    Attributes:
        gpu: the card, ``rtx-3090*2`` for two, or a machine with one memory.
        cpu: the processor, ``xeon-6454s*2`` for two sockets.
        ram: memory in GiB.
        memory: kind, rate and number of modules: ``ddr5-5600*2``.
        bandwidth: measured bandwidth of the host's memory in GB/s.
        link: such as ``pcie4x16``.
        copies: measured rate of copies to the device in GB/s.
        disk: such as ``nvme4``.
        machine: all parts as one text, or the file of a calibrated machine.
    """

    gpu: str | None
    cpu: str | None
    ram: str | float | None
    memory: str | None
    bandwidth: float | None
    link: str | None
    copies: float | None
    disk: str | None
    machine: str | None


class Texts(TypedDict, total=False):
    """Lengths of texts in tokens, as numbers or with k (1,024), and the weights.

    Attributes:
        context: tokens that the KV cache has room for.
        prompt, tokens: of prompt and answer.
        batch: texts that are decoded at the same time.
        bits: bits per weight of routed experts, where the format does not say them.
    """

    context: str | int | None
    prompt: str | int | None
    tokens: str | int | None
    batch: int
    bits: float | None


class Asked(Machine, Texts, total=False):
    """A machine and lengths of texts."""


def advise(
    model: str, *, quant: str | None = None, lossless: bool = False, engines: Sequence[str] = (),
    config: str | None = None, buy: bool = False, store: Path | str = DEFAULT_STORE,
    fresh: bool = False, told: Told = lambda line: None, **asked: Unpack[Asked],
) -> Advice:  # fmt: skip
    """Return what to run on a machine: engines and configurations, how fast, and the commands.

        moebench.advise("gpt-oss-120b", gpu="rtx-3090", cpu="ryzen-5950x", ram=64).frame()

    Args:
        model: a published name, or a GGUF file.
        quant: format of the weights [q4_k_m, mxfp4 of gpt-oss, or the GGUF file's].
        lossless: leave out what changes the model's outputs.
        engines: engines, or systems of moebench [those that users run].
        config: an engine's options that are among the rows, whatever they cost.
        buy: also find what purchases would gain.
        store: folder for runs of moebench's systems.
        fresh: compute again what is kept from before.
        told: called with lines on the progress.
        asked: parts of a machine and lengths of texts; see `Asked`.

    Raises MoeBenchError: one line that says what, where and what is allowed.
    """
    parts = {name: asked.get(name) for name in Machine.__annotations__}
    if parts["ram"] is not None:
        parts["ram"] = str(parts["ram"])
    named = any(one is not None for one in parts.values())
    found_here = machine.hardware(**parts) if named else this_computer(told)  # type: ignore[arg-type]
    names, systems = _engines(engines)
    lengths = {name: None if asked.get(name) is None else str(asked.get(name))
               for name in ("context", "prompt", "tokens")}  # fmt: skip
    question = ask.question(
        model=model, quant=quant, hardware=found_here, context=lengths["context"],
        prompt=lengths["prompt"], new=lengths["tokens"], batch=asked.get("batch", 1),
        lossless=lossless, routed=asked.get("bits"),
    )  # fmt: skip
    forced = None
    if config is not None:
        shape = question.shape
        forced = parse_config(
            config, names[0] if len(names) == 1 else None, shape.moe_layers, shape.num_layers,
            shape.num_experts, expert_bytes=shape.expert_bytes(question.bits.routed),
            cards=question.hardware.cards,
        )  # fmt: skip
        for remark in forced.remarks:
            told(f"--config: {remark}")
        if forced.context is not None and lengths["context"] is None:
            question = ask.with_context(question, forced.context)
    key = kept.key_of(repr((question, names, systems, forced, buy)))
    before = None if fresh or systems else kept.read(key)
    if before is not None:
        return Advice(before, cached=True)
    found = answers(question, names, None if forced is None else forced.configuration,
                    told=told, systems_only=bool(systems) and not names)  # fmt: skip
    if systems:
        found = with_others(found, *_ours(question, systems, Path(store), told))
    document = _document(found)
    if buy:
        from moebench.harness.advise.purchases import purchases

        told("what purchases would gain: one answer for each")
        document["buy"] = [
            {"what": one.what, "gain_tok_s": _rate(one.gain),
             "prefill_gain_tok_s": _rate(one.prefill_gain), "engine": one.best.engine,
             "config": one.best.config, "decode_tok_s": one.best.decode.value}
            for one in purchases(found, names)
        ]  # fmt: skip
    kept.write(key, document)
    return Advice(json.loads(json.dumps(document)))


def this_computer(told: Told) -> Hardware:
    """Return this computer's hardware; what could not be read is told.

    Raises UsageError: its card is not a part; names the nearest ones.
    """
    from moebench.harness.advise.detect import this_computer as detect

    found = detect()
    for line in found.unread:
        told(line)
    if found.gpu:
        machine.part_of("--gpu", found.gpu, ("gpus", "pools"))
    return found


def _engines(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the engines and the systems of moebench among names.

    Raises UnknownNameError: a name is neither.
    """
    names, systems = list[str](), list[str]()
    for name in typed:
        system = name.removeprefix(OURS)
        if system in SYSTEMS and (name.startswith(OURS) or not is_engine(name)):
            systems.append(system)
            continue
        try:
            names.append(find_engine(name).key)
        except UnknownNameError:
            raise UnknownNameError("engine", name, [*RULES, *SYSTEMS], "--engines") from None
    return names, systems


def _ours(
    question: Question, systems: Sequence[str], store: Path, told: Told
) -> tuple[list[Answer], dict[str, str]]:
    """Return the answers of moebench's systems, and why others have none."""
    from moebench.harness.advise.ours import system_answer

    found, left_out = list[Answer](), dict[str, str]()
    for system in systems:
        told(f"{system}: a simulated run")
        try:
            found.append(system_answer(question, system, store))
        except MoeBenchError as error:
            left_out[system] = str(error)
    return found, left_out


# ------------------------------------------------------------------------------ plain values


def _document(found: Answers) -> dict[str, Any]:
    question = found.question
    hardware = question.hardware
    return {
        "question": {
            "model": question.model, "quant": question.quant,
            "bits": question.bits._asdict(), "machine": machine.machine_text(hardware),
            "assumed": found.assumed, **question.lengths._asdict(), "batch": question.batch,
            "sources": hardware.sources,
        },
        "verdict": found.verdict, "largest_context": found.largest_context,
        "answers": [_row(question, row) for row in found.rows], "left_out": found.left_out,
    }  # fmt: skip


def _row(question: Question, row: Answer) -> dict[str, Any]:
    wanted = command(row.configuration, question)
    prefill = row.prefill
    return {
        "engine": row.engine, "config": row.config,
        "configuration": {k: v for k, v in asdict(row.configuration).items()
                          if v is not None and v != ()},
        "command": list(wanted.lines), "version": wanted.version, "notes": list(wanted.notes),
        "decode_tok_s": row.decode.value, "low": row.decode.low, "high": row.decode.high,
        "prefill_tok_s": prefill and prefill.value, "prefill_low": prefill and prefill.low,
        "prefill_high": prefill and prefill.high, "ttft_s": row.ttft_s,
        "request_s": row.request_s,
        "memory": {"device_gib": row.device_gib, "host_gib": row.host_gib,
                   "disk_gib": row.disk_gib},
        "quality": row.quality, "binds": row.binds, "shares": row.shares,
        "verdict": row.verdict, "fits": row.fits, "checked": row.checked, "tied": row.tied,
        "forced": row.forced, "remarks": list(row.remarks),
    }  # fmt: skip


def _rate(rate: Rate | None) -> dict[str, float] | None:
    return None if rate is None else rate._asdict()
