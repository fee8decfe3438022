"""What the next purchase gains: the best answer on machines with one part changed."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from moebench.harness.advise.answer import Answer, Answers, Rate
from moebench.harness.advise.answering import answers
from moebench.harness.advise.case import host_of
from moebench.harness.advise.question import Hardware, Question
from moebench.harness.advise.ranking import SAME_ENGINE
from moebench.harness.advise.rules import RULES
from moebench.substrate.errors import MoeBenchError
from moebench.substrate.machines.parts import Link, Pool, Processor, matches, parts

#: GiB by which a card could be larger.
CARDS = (8, 16, 24)

#: Rates of modules that are sold, in MT/s.
KITS = {"DDR4": (2400, 2666, 3200, 3600, 4000), "DDR5": (4800, 5600, 6000, 6400, 7200, 8000)}


class Purchase(NamedTuple):
    """A changed part and the best answer with it.

    Attributes:
        what: the change, in words.
        best: the best answer of the changed machine.
        gain: decoded tokens/s above the best answer without it, with the ends of 80 %.
        prefill_gain: the same of the prompt's rate; None without a prompt.
    """

    what: str
    best: Answer
    gain: Rate
    prefill_gain: Rate | None


def purchases(now: Answers, engines: Sequence[str] = ()) -> list[Purchase]:
    """Return the purchases that change the best answer, the largest gain in decode first.

    A gain's interval holds the error of the rate without it, and of the ratio of both, which is
    that of repetitions, since the same machine and the same engine are compared.

    Args:
        now: the answer on the machine as it is.
    """
    before = next((row for row in now.rows if not row.forced), None)
    found = []
    for what, hardware in changes(now.question):
        try:
            after = answers(replace(now.question, hardware=hardware), engines, binding=False)
        except MoeBenchError:
            continue  # the machine has no such part
        if after.rows:
            found.append(_purchase(what, before, after.rows[0]))
    return sorted(found, key=lambda one: -one.gain.value)


def _purchase(what: str, before: Answer | None, best: Answer) -> Purchase:
    gain = _gain(None if before is None else before.decode, best.decode)
    if best.prefill is None:
        return Purchase(what, best, gain, None)
    return Purchase(what, best, gain, _gain(before.prefill if before else None, best.prefill))


def _gain(before: Rate | None, after: Rate) -> Rate:
    if before is None:
        return after
    ratio = after.value / before.value
    if ratio == 1:
        return Rate(0.0, 0.0, 0.0)
    ends = [rate * (factor - 1) for rate in (before.low, before.high)
            for factor in (ratio / SAME_ENGINE, ratio * SAME_ENGINE)]  # fmt: skip
    return Rate(after.value - before.value, min(ends), max(ends))


def changes(question: Question) -> Iterator[tuple[str, Hardware]]:
    """Yield the machines that differ from the question's by one purchase, with its name."""
    now = question.hardware
    profile = host_of(question, RULES["llama.cpp"].engine, []).profile
    pool = isinstance(parts().get(now.gpu), Pool)
    if now.gpu and not pool:
        for more in CARDS:
            yield f"card with {more} GB more", replace(now, more_gib=now.more_gib + more)
        yield "a second card of this kind", replace(now, cards=2 * now.cards)
    processor = next((part for key in matches(now.cpu)
                      if isinstance(part := parts()[key], Processor)), None)  # fmt: skip
    if not pool:
        yield from _memory(now, processor, profile.description)
    if now.gpu and not pool:
        yield from _link(now, profile.link.name)
    if not pool:
        size = profile.host.memory.bytes / 2**30
        yield f"{2 * size:g} GB of memory instead of {size:g}", replace(now, ram_gib=2 * size)
    yield "a second such disk", replace(now, disks=2 * now.disks)


def _memory(
    now: Hardware, processor: Processor | None, description: str
) -> Iterator[tuple[str, Hardware]]:
    """Yield faster modules, and modules on all channels."""
    said = re.search(r"(\d+) channels? of (DDR\d)-(\d+)", description)
    if said is None or now.reads_gb_s is not None:
        return
    channels, kind, rate = int(said[1]), said[2], int(said[3])
    most = max(KITS.get(kind, ()), default=0)
    if processor is not None and processor.server:
        most = max((most for one, most in processor.memory.items() if one == kind), default=rate)
    faster = [one for one in KITS.get(kind, ()) if rate < one <= most][:2]
    for one in faster:
        yield (
            f"{kind}-{one} instead of {kind}-{rate}",
            replace(now, memory=f"{kind}-{one}", channels=channels),
        )
    full = 0 if processor is None else processor.channels * (now.sockets or 1)
    if channels < full:
        yield (
            f"memory on {full} channels instead of {channels}",
            replace(now, memory=f"{kind}-{rate}", channels=full),
        )


def _link(now: Hardware, name: str) -> Iterator[tuple[str, Hardware]]:
    """Yield the next generation of the link, as if card and board had it."""
    said = re.search(r"PCIe (\d)\.0 x(\d+)", name)
    following = parts().get(f"pcie{int(said[1]) + 1}x{said[2]}") if said else None
    if isinstance(following, Link):
        yield (
            f"{following.name} instead of {name}",
            replace(now, copies_gb_s=following.h2d_gbs, link=""),
        )
