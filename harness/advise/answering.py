"""Answers a question: predicts each engine's configurations on the machine.

A configuration's rates are predicted as those of a published row are (`harness.published`): by the
simulator, with the constants fitted to all rows, and with the error of rows whose machine and
author were left out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from moebench.harness.advise.answer import GIB, Answer, Answers, Rate
from moebench.harness.advise.binding import bind
from moebench.harness.advise.candidates import candidates, completed, largest_context
from moebench.harness.advise.case import case_for, host_of
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.memory import HOST_RESERVE, Needs, Places, needs, places
from moebench.harness.advise.question import Question
from moebench.harness.advise.ranking import PAGING, chosen, tie
from moebench.harness.advise.rules import RULES, maker_of
from moebench.harness.advise.texts import in_words, quality, verdict
from moebench.harness.published.case import Case, Unpredictable
from moebench.harness.published.constants import fitted
from moebench.harness.published.coverage import EIGHTY
from moebench.harness.published.predict import deviation, is_checked, rate_of
from moebench.harness.published.prediction import Phase
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.parts import Pool, parts


def answers(
    question: Question, engines: Sequence[str] = (), forced: Configuration | None = None,
    binding: bool = True, told: Callable[[str], None] = lambda line: None,
    systems_only: bool = False,
) -> Answers:  # fmt: skip
    """Return the configurations of engines on a machine, the fastest request first.

    Args:
        engines: keys of `RULES`; none are those that users run.
        forced: a configuration that is among the rows, whether it fits or not.
        binding: also find what binds each row, which takes five more simulations of each.
        told: called with a line for each engine.
        systems_only: ask no engine that is not named.

    Raises UsageError: the machine cannot be simulated.
    """
    names = list(engines)
    if not names and not systems_only:
        names = [name for name, rules in RULES.items() if rules.by_default]
    if forced is not None and forced.engine not in names:
        names.append(forced.engine)
    found: list[Answer] = []
    left_out: dict[str, str] = {}
    contexts: list[int] = []
    for name in names:
        engine = _Asked(question, name)
        mine = engine.answers(forced if forced is not None and forced.engine == name else None)
        contexts.append(engine.largest)
        found += mine
        if not mine:
            left_out[name] = engine.why
        elif best := min(mine, key=lambda one: one.request_s):
            told(f"{name}: {best.decode.value:.3g} tokens/s, {best.config}")
    rows = chosen(found)
    tie(rows)
    if binding:
        for row in rows:
            bind(question, row)
    largest = max(contexts, default=0)
    return Answers(
        question=question, rows=rows, verdict=verdict(question, rows, largest),
        largest_context=largest, left_out=left_out, assumed=assumed_of(question),
    )  # fmt: skip


def assumed_of(question: Question) -> str:
    """Return the parts that the question does not name, as the composed profile has them."""
    profile = host_of(question, RULES["llama.cpp"].engine, []).profile
    return profile.description.partition("not named, so assumed: ")[2]


def with_others(found: Answers, rows: Sequence[Answer], left_out: Mapping[str, str]) -> Answers:
    """Return answers with further rows, ranked and tied anew."""
    every = chosen([*found.rows, *rows])
    tie(every)
    return replace(found, rows=every, left_out={**found.left_out, **left_out})


class _Asked:
    """One engine's answers to a question.

    Attributes:
        why: the reason why it has none.
        largest: the largest context that it can have.
    """

    def __init__(self, question: Question, name: str) -> None:
        self._question, self._name, self._rules = question, name, RULES[name]
        self.why, self.largest = "", 0
        self._most = max(question.shape.max_positions, question.lengths.context)

    def answers(self, forced: Configuration | None) -> list[Answer]:
        question, rules = self._question, self._rules
        maker = maker_of(question.hardware.gpu)
        unsuited = maker not in rules.makers and not forced
        if unsuited:
            named = {"amd": "AMD", "intel": "Intel", "apple": "Apple", "nvidia": "NVIDIA"}
            self.why = ("does not run without a card" if maker == "processor" else
                        f"does not run on {named[maker]}'s devices")  # fmt: skip
            return []
        if isinstance(parts().get(question.hardware.gpu), Pool) and not rules.pools and not forced:
            self.why = "does not run on a machine with one memory"
            return []
        if rules.families and question.shape.family not in rules.families and not forced:
            self.why = f"does not run models of the family {question.shape.family}"
            return []
        try:
            host = host_of(question, rules.engine, [])
        except Unpredictable as why:
            raise UsageError(str(why)) from why
        room, threads = places(host.profile), host.profile.host.cores.count
        if host.alone:
            room = Places(math.inf, max(0.0, host.profile.host.memory.bytes - HOST_RESERVE), False)
        else:
            self.largest = largest_context(question, rules, room, self._most)
        rows = []
        for config in candidates(question, rules, self._name, threads, room, host.alone):
            need = needs(question, rules, config)
            if rules.maps or need.host <= room.host:
                rows.append(self._answer(config, need, room))
            else:
                self.why = (f"needs {need.host / GIB:.1f} GiB of host memory, of which "
                            f"{room.host / GIB:.1f} GiB are free")  # fmt: skip
        if forced is not None:
            config = completed(question, rules, forced, threads, room, host.alone)
            one = self._answer(config, needs(question, rules, config), room)
            one.forced = True
            rows = [row for row in rows if row.configuration != config]
            rows.append(one)
        if not rows and not self.why:
            self.why = (f"{self._least(room)}; the largest context that fits: {self.largest:,} "
                        "tokens") if self.largest else self._least(room)  # fmt: skip
        return rows

    def _least(self, room: Places) -> str:
        config = Configuration(engine=self._name, micro_batch=512,
                               host_layers=len(self._question.shape.moe_layers))  # fmt: skip
        need = needs(self._question, self._rules, config)
        return (f"without routed experts it needs {need.device / GIB:.1f} GiB on the device "
                f"({need.kv / GIB:.1f} GiB of them for the KV cache), which has "
                f"{room.device / GIB:.1f} GiB")  # fmt: skip

    def _answer(self, config: Configuration, need: Needs, room: Places) -> Answer:
        question, rules = self._question, self._rules
        case = case_for(question, rules, config)
        used = _Used.of(need, room)
        decode, prefill = _rates(question, case, need, used.disk)
        read = question.lengths.prompt * question.batch
        ttft = None if prefill is None else read / prefill.value
        remarks = list(case.remarks)
        if used.disk:
            remarks.append("reads of a mapped file are an estimate")
        fits, said = used.verdict(room)
        return Answer(
            engine=self._name, configuration=config, config=in_words(config, question),
            decode=decode, prefill=prefill, ttft_s=ttft,
            request_s=(ttft or 0.0) + question.lengths.new * question.batch / decode.value,
            device_gib=used.device / GIB, host_gib=used.host / GIB, disk_gib=used.disk / GIB,
            quality=quality(config, rules, question), verdict=said, fits=fits,
            checked=is_checked(case, "decode"), remarks=tuple(remarks),
        )  # fmt: skip


class _Used(NamedTuple):
    """Bytes of a configuration by place; those on disk do not fit into host memory."""

    device: float
    host: float
    disk: float

    @classmethod
    def of(cls, need: Needs, room: Places) -> "_Used":
        """Return the places of what is needed."""
        alone = room.device == math.inf
        device, host = (0.0, need.host + need.device) if alone else (need.device, need.host)
        disk = 0.0 if room.one else max(0.0, host - room.host)
        return cls(device, host - disk, disk)

    def verdict(self, room: Places) -> tuple[str, str]:
        """Return whether it fits, in a word, and the numbers that decide."""
        if self.device > room.device:
            return "does not fit", (
                f"does not fit: {self.device / GIB:.1f} GiB on a device with "
                f"{room.device / GIB:.1f} GiB free"
            )
        if self.disk:
            return "pages", (
                f"fits and pages from disk: {self.disk / GIB:.1f} of "
                f"{(self.host + self.disk) / GIB:.1f} GiB are beyond the "
                f"{room.host / GIB:.1f} GiB of memory that are free"
            )
        return "fits", "fits"


def _rates(question: Question, case: Case, need: Needs, paged: float) -> tuple[Rate, Rate | None]:
    """Return decode and prefill rates; without a prompt there is no prefill.

    Args:
        paged: bytes of the host's weights that are read from the disk again and again.
    """
    found = fitted()
    values, rates = found.all_rows, list[Rate | None]()
    phases: tuple[Phase, ...] = ("decode", "prefill")
    for phase in phases:
        if phase == "prefill" and not question.lengths.prompt:
            rates.append(None)
            continue
        rate, variance = rate_of(case, values, phase), deviation(case, phase, found) ** 2
        if paged > 0:
            seconds = _paging_s(question, case, need, paged, phase, values["cache hits"])
            done = question.batch * (1 if phase == "decode" else question.lengths.prompt)
            rate, variance = done / (done / rate + seconds), variance + PAGING**2
        spread = math.exp(EIGHTY * math.sqrt(variance))
        rates.append(Rate(rate, rate / spread, rate * spread))
    decode, prefill = rates
    assert decode is not None
    return decode, prefill


def _paging_s(question: Question, case: Case, need: Needs, paged: float, phase: Phase,
              law: float) -> float:  # fmt: skip
    """Return the seconds of reads from the disk: of a decoded token, or of the prompt.

    In decode the share s of the experts that memory holds has s to the power of a law of the hits,
    as an LRU cache has, and others are read one after another.  A prompt uses nearly all experts of
    each micro-batch, so what is not in memory is read each time.
    """
    if phase == "prefill":
        times = math.ceil(question.lengths.prompt / case.micro_batch)
        return times * paged / case.profile.disk.max_bandwidth.bytes_per_s
    whole = max(need.host, paged)
    hits = float(max(0.0, 1 - paged / whole) ** law)
    shape = case.shape
    used = need.host_experts * shape.top_k / shape.num_experts + (need.host - need.host_experts)
    return question.batch * used * (1 - hits) / case.profile.disk.queue1_bandwidth.bytes_per_s
