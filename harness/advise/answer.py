"""An answer: a configuration of an engine with rates, intervals, memory and what binds it."""

from dataclasses import dataclass, field
from typing import NamedTuple

from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.question import Question

#: What the quality of configurations that change no output begins with.
LOSSLESS = "lossless"

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
