"""Answers: engines and configurations on a machine, with rates, intervals, memory and what binds.

A configuration's rates are predicted as those of a published row are (`harness.published`): by the
simulator, with the constants fitted to all rows, and with the error of rows whose machine and
author were left out.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from moebench.harness.advise.candidates import candidates, completed, largest_context
from moebench.harness.advise.case import case_for, host_of
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.memory import HOST_RESERVE, Needs, Places, needs, places
from moebench.harness.advise.question import Question
from moebench.harness.advise.rules import RULES, Rules, maker_of
from moebench.harness.published.case import Case, Unpredictable
from moebench.harness.published.constants import fitted
from moebench.harness.published.coverage import EIGHTY
from moebench.harness.published.predict import deviation, is_checked, rate_of
from moebench.harness.published.prediction import Phase
from moebench.results.published_errors import ratio_error
from moebench.substrate.errors import UsageError

#: Most rows of an answer.
ROWS = 8

#: How much faster another configuration of an engine has to be to have a row of its own.
GAIN = 1.1

#: What the quality of configurations that change no output begins with.
LOSSLESS = "lossless"

#: Standard deviation of the logarithm of a rate with reads of a mapped file: an assumption.
PAGING = 0.8

#: A difference of two configurations of one engine that repetitions alone can make.
SAME_ENGINE = math.exp(EIGHTY * 0.10 * math.sqrt(2))

GIB = 2**30


class Rate(NamedTuple):
    """A predicted rate in tokens/s, with the ends of its 80 % interval."""

    value: float
    low: float
    high: float


@dataclass(slots=True, kw_only=True)
class Answer:
    """A configuration with its predicted figures.

    Attributes:
        config: the configuration in words.
        decode, prefill: rates; prefill is None without a prompt.
        ttft_s: seconds until the first token.
        request_s: seconds of the whole request.
        device_gib, host_gib, disk_gib: weights, caches and buffers by place, in GiB.
        quality: what the configuration changes in the model's outputs.
        binds: what the time of a decoded token depends on most.
        shares: by resource, the share of that time that is proportional to it.
        verdict: whether it fits, and the numbers that decide.
        fits: "fits", "pages" or "does not fit".
        checked: whether rates of this kind were compared with published ones.
        tied: whether it does not differ from the best beyond the error of their ratio.
        forced: whether the user asked for this configuration.
    """

    engine: str
    configuration: Configuration
    config: str
    decode: Rate
    prefill: Rate | None
    ttft_s: float | None
    request_s: float
    device_gib: float
    host_gib: float
    disk_gib: float
    quality: str
    verdict: str
    fits: str
    checked: bool
    binds: str = ""
    shares: dict[str, float] = field(default_factory=dict)
    tied: bool = False
    forced: bool = False
    remarks: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Answers:
    """The answer to a question.

    Attributes:
        rows: the best first.
        verdict: whether the model fits on the machine, and the numbers that decide.
        largest_context: the largest one that fits with any engine that was asked.
        left_out: why an engine has no row, by its name.
        assumed: the parts that the question does not name.
    """

    question: Question
    rows: list[Answer]
    verdict: str
    largest_context: int
    left_out: dict[str, str]
    assumed: str = ""


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
    rows = _chosen(found)
    _tie(rows)
    if binding:
        for row in rows:
            _bind(question, row)
    largest = max(contexts, default=0)
    return Answers(
        question=question, rows=rows, verdict=_verdict(question, rows, largest),
        largest_context=largest, left_out=left_out, assumed=assumed_of(question),
    )  # fmt: skip


def assumed_of(question: Question) -> str:
    """Return the parts that the question does not name, as the composed profile has them."""
    profile = host_of(question, RULES["llama.cpp"].engine, []).profile
    return profile.description.partition("not named, so assumed: ")[2]


def with_others(found: Answers, rows: Sequence[Answer], left_out: Mapping[str, str]) -> Answers:
    """Return answers with further rows, ranked and tied anew."""
    every = _chosen([*found.rows, *rows])
    _tie(every)
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
        ttft = None if prefill is None else question.lengths.prompt / prefill.value
        remarks = list(case.remarks)
        if used.disk:
            remarks.append("reads of a mapped file are an estimate")
        fits, verdict = used.verdict(room)
        return Answer(
            engine=self._name, configuration=config, config=in_words(config, question),
            decode=decode, prefill=prefill, ttft_s=ttft,
            request_s=(ttft or 0.0) + question.lengths.new * question.batch / decode.value,
            device_gib=used.device / GIB, host_gib=used.host / GIB, disk_gib=used.disk / GIB,
            quality=_quality(config, rules, question), verdict=verdict, fits=fits,
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


# ------------------------------------------------------------------------------ rows


def _chosen(found: Sequence[Answer]) -> list[Answer]:
    """Return the rows of an answer: the best of each engine, then others, the fastest first.

    What does not fit is not among them unless it was forced.  Of configurations without loss and
    others with the same engine, the best of both kinds count.
    """
    ordered = sorted(found, key=lambda one: one.request_s)
    ordered = [one for one in ordered if one.fits != "does not fit" or one.forced]
    exact_first = sorted(ordered, key=lambda one: one.request_s * _handicap(one))
    worth: list[Answer] = []
    for one in exact_first:
        if one.forced or not _repeats(one, worth):
            worth.append(one)
    ordered = sorted(worth, key=lambda one: one.request_s)
    first: list[Answer] = []
    seen = set[str]()
    for one in ordered:
        if one.engine not in seen or one.forced:
            first.append(one)
            seen.add(one.engine)
    others = [one for one in ordered if one not in first]
    kept = sorted(first, key=lambda one: not one.forced)[:ROWS]
    kept += others[: ROWS - len(kept)]
    return sorted(kept, key=lambda one: (_unasked(one), one.request_s))


def _unasked(one: Answer) -> bool:
    """Return whether the time of a request lacks that of its prompt, which was not computed."""
    return one.engine not in RULES


def _handicap(one: Answer) -> float:
    """Return the factor by which a configuration that is not exact has to be faster."""
    return 1.0 if one.quality.startswith(LOSSLESS) else GAIN


def _repeats(one: Answer, better: Sequence[Answer]) -> bool:
    """Return whether a better configuration of the engine is as exact and as fast in both phases.

    A configuration has to be `GAIN` faster in decode or in prefill to have a row of its own.
    """

    def rates(row: Answer) -> tuple[float, float]:
        return row.decode.value, 0.0 if row.prefill is None else row.prefill.value

    return any(
        other.engine == one.engine and not other.forced
        and (other.quality == one.quality or other.quality.startswith(LOSSLESS))
        and all(theirs * GAIN >= mine
                for theirs, mine in zip(rates(other), rates(one), strict=True))
        for other in better
    )  # fmt: skip


def _tie(rows: Sequence[Answer]) -> None:
    """Mark the rows that do not differ from the best beyond the error of a ratio."""
    if not rows:
        return
    best = rows[0]
    best.tied = False
    for row in rows[1:]:
        row.tied = row.request_s / best.request_s < _ratio_error(row, best)


def _ratio_error(row: Answer, best: Answer) -> float:
    """Return the factor within which 80 % of the ratios of two requests' times are.

    The errors of decode and prefill count by their shares of the time.
    """
    if row.engine == best.engine and row.fits == best.fits:
        return SAME_ENGINE
    share = (row.ttft_s or 0.0) / row.request_s
    logs = (math.log(ratio_error("prefill")), math.log(ratio_error("decode")))
    factor = math.exp(share * logs[0] + (1 - share) * logs[1])
    return factor if row.fits == best.fits == "fits" else factor * math.exp(EIGHTY * PAGING)


def _quality(config: Configuration, rules: Rules, question: Question) -> str:
    lossy = []
    if config.kv not in (None, "f16", "bf16", "f32"):
        lossy.append(f"KV cache in {config.kv}")
    if config.experts_used and config.experts_used < question.shape.top_k:
        lossy.append(f"{config.experts_used} of {question.shape.top_k} experts a token")
    if lossy:
        return ", ".join(lossy)
    return LOSSLESS if rules.routed is None else f"{LOSSLESS}, weights in bf16"


def in_words(config: Configuration, question: Question) -> str:
    """Return a configuration as text: where experts are, rows, threads, formats."""
    shape, said = question.shape, list[str]()
    layers = len(shape.moe_layers)
    if config.whole_layers is not None and config.whole_layers < shape.num_layers:
        said.append(f"{config.whole_layers} of {shape.num_layers} whole layers on the device")
    elif not question.hardware.gpu:
        said.append("all on the processor")
    elif not config.host_layers:
        said.append("all on the device")
    elif config.host_layers >= layers:
        said.append("all experts on the host")
    else:
        said.append(f"experts of {config.host_layers} of {layers} layers on the host")
    if config.resident:
        said.append(f"{config.resident} of {shape.num_experts} experts a layer on the device too")
    said.append(f"{config.micro_batch} rows")
    if config.host_layers or not question.hardware.gpu:
        said.append(f"{config.threads} threads")
    if config.repacked:
        said.append("repacked")
    if config.kv not in (None, "f16"):
        said.append(f"KV cache {config.kv}")
    return ", ".join(said)


def _verdict(question: Question, rows: Sequence[Answer], largest: int) -> str:
    """Return the sentence on whether the model fits, with the numbers that decide."""
    context = question.lengths.context
    free = [row for row in rows if row.fits == "fits" and not row.forced]
    paged = [row for row in rows if row.fits == "pages" and not row.forced]
    if free:
        row = free[0]
        return (f"fits with a context of {context:,} tokens: {row.device_gib:.1f} GiB on the "
                f"device, {row.host_gib:.1f} GiB in host memory")  # fmt: skip
    if paged:
        return paged[0].verdict
    if 0 < largest < context:
        return f"fits with a context of at most {largest:,} tokens, not with {context:,}"
    return "does not fit: see the reason of each engine"


# ------------------------------------------------------------------------------ what binds

#: By resource, what is made a tenth faster to see how much of the time is proportional to it.
STEP = 1.1


def _bind(question: Question, row: Answer) -> None:
    """Find the shares of a decoded token's time that are proportional to each resource."""
    if row.fits == "pages":
        row.binds = "disk"
        return
    case = case_for(question, RULES[row.engine], row.configuration)
    values = dict(fitted().all_rows)
    before = 1 / rate_of(case, values, "decode")
    for name, faster in _faster(case, values):
        after = 1 / rate_of(*faster, "decode")
        share = (before - after) / before / (1 - 1 / STEP)
        row.shares[name] = max(0.0, round(share, 3))
    row.binds = max(row.shares, key=lambda name: row.shares[name])


def _faster(
    case: Case, values: dict[str, float]
) -> Iterator[tuple[str, tuple[Case, dict[str, float]]]]:
    """Yield the case with each resource a tenth faster."""

    def profile(*fields: str) -> Case:
        found = case.profile
        for name in fields:
            group, _, inner = name.partition(".")
            part = getattr(found, group)
            number = getattr(part, inner)
            changed = number.model_copy(update={"value": number.value * STEP, "range": None})
            found = found.model_copy(update={group: part.model_copy(update={inner: changed})})
        return replace(case, profile=found)

    def constants(*names: str, factor: float = STEP) -> dict[str, float]:
        return values | {name: values[name] * factor for name in names}

    if case.first > 0 and (case.engine.misses == "host" or case.on_host):
        yield "memory of the host", (profile("host.gemv_bandwidth"), values)
        if case.profile.host.core_rate is not None:
            yield "cores of the host", (profile("host.core_rate"), values)
    if not case.on_host:
        yield "memory of the device", (profile("gpu.bandwidth"), values)
        launches = constants("launch ggml", "launch python", "handoff us", factor=1 / STEP)
        yield "launches and hand-overs", (case, launches)
    if case.engine.misses == "link" and case.first > 0:
        yield "link", (profile("link.pinned_h2d", "host.gemv_bandwidth"), values)
