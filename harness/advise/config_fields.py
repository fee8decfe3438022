"""Fields of a configuration while it is read from words, and what they stand for at the end."""

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.placement import Placement
from moebench.substrate.errors import UsageError

NUMBERS = ("host_layers", "whole_layers", "resident", "threads", "micro_batch", "experts_used",
            "context")  # fmt: skip
SWITCHES = ("repacked", "mapped", "bound", "pinned")
KEYS = (*NUMBERS, *SWITCHES, "kv", "n_cpu_moe", "engine")

#: Formats of the KV cache that predictions know.
KV = ("f16", "q8_0", "q4_0", "fp8")

#: Other formats of the KV cache, and the one that stands for each.
CACHE = {
    "bf16": "f16", "bfloat16": "f16", "fp16": "f16", "q4_1": "q4_0", "iq4_nl": "q4_0",
    "q5_0": "q8_0", "q5_1": "q8_0", "q6_0": "q8_0", "q8_kv": "q8_0", "fp8_e5m2": "fp8",
    "fp8_e4m3": "fp8", "fp4_e2m1": "q4_0",
}  # fmt: skip
EXACT = {*KV, "fp8_e5m2", "fp8_e4m3"}


class Forced(NamedTuple):
    """A configuration that was typed.

    Attributes:
        context: tokens that the KV cache has room for; None was not typed.
        remarks: values that stand for what was typed, one line each.
    """

    configuration: Configuration
    context: int | None
    remarks: tuple[str, ...] = ()


def refuse(where: str, problem: str) -> NoReturn:
    """Refuse what was typed.

    Raises UsageError: always.
    """
    raise UsageError(f"--config {where}: {problem}")


class Shape(NamedTuple):
    """The numbers of a model, and of the cards that have a cache."""

    moe_layers: tuple[int, ...]
    num_layers: int
    num_experts: int
    expert_bytes: float | None
    cards: int


@dataclass(slots=True)
class Fields:
    """The fields that words have set so far.

    Attributes:
        engine: key of the engine.
        hosts_all: whether it keeps the experts of all MoE layers in host memory.
        cache_words: flags of the KV cache as typed.
        layers: a number of layers on the device was typed.
        automatic: the engine chooses the placement.
        megabytes: size of a cache on each card in MiB.
    """

    engine: str
    shape: Shape
    hosts_all: bool = False
    fields: dict[str, Any] = field(default_factory=dict)
    caches: dict[str, str] = field(default_factory=dict)
    cache_words: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    placement: Placement = field(default_factory=Placement)
    layers: bool = False
    automatic: bool = False
    megabytes: int | None = None

    def set(self, name: str, where: str, value: int) -> None:
        """Set a field that is a number, within its limits."""
        low = 1 if name in ("threads", "micro_batch", "experts_used") else 0
        most = {
            "host_layers": len(self.shape.moe_layers), "whole_layers": self.shape.num_layers,
            "resident": self.shape.num_experts, "experts_used": self.shape.num_experts,
        }.get(name)  # fmt: skip
        if value < low or (most is not None and value > most):
            span = f"{low} to {most}" if most is not None else f"{low} or more"
            refuse(where, f"allowed: {span}")
        self.fields[name] = value

    def host_all(self) -> None:
        """Put the experts of all MoE layers in host memory."""
        self.fields.setdefault("host_layers", len(self.shape.moe_layers))

    def note_unset(self, name: str, settable: frozenset[str]) -> None:
        """Remark the fields that were set by name and that no option of the engine sets."""
        for one in (*NUMBERS, *SWITCHES, "kv"):
            if one in self.fields and one not in settable and one != "host_layers":
                self.remarks.append(f"no option of {name} sets {one}")

    def finish(self) -> Forced:
        """Return the configuration of all words."""
        self._caches()
        self._place()
        self._budget()
        context = self.fields.pop("context", None)
        configuration = Configuration(
            engine=self.engine, other=tuple(self.other), **self.fields
        )  # fmt: skip
        return Forced(configuration, context or None, tuple(self.remarks))

    def _caches(self) -> None:
        """Set the format of the KV cache from those of its keys and values."""
        if not self.caches:
            return
        both = {self.caches.get("keys", "f16"), self.caches.get("values", "f16")}
        stand = {CACHE.get(one, one) for one in both}
        wide = min(stand, key=KV.index)
        self.fields["kv"] = wide
        if len(stand) > 1 or not both <= EXACT:
            self.other += self.cache_words
            typed = " and ".join(f"{part} in {self.caches.get(part, 'f16')}"
                                 for part in ("keys", "values"))  # fmt: skip
            self.remarks.append(f"KV cache with {typed}: counted as {wide}")

    def _place(self) -> None:
        """Set the number of MoE layers whose experts are in host memory."""
        if "host_layers" not in self.fields and not self.automatic:
            if self.placement.rules or self.layers:
                whole = self.fields.get("whole_layers", self.shape.num_layers)
                self.placement.below = self.shape.num_layers - whole
                placed = self.placement.place(self.shape.moe_layers)
                self.fields["host_layers"] = placed.host_layers
                self.remarks += placed.remarks
            elif self.hosts_all:
                self.host_all()

    def _budget(self) -> None:
        """Set the experts of each host layer that a cache of some MiB holds."""
        if self.megabytes is None:
            return
        layers = self.fields.get("host_layers", len(self.shape.moe_layers))
        each = self.shape.expert_bytes
        if self.megabytes and each is None:
            self.other.append(f"--moe-cache {self.megabytes}")
            self.remarks.append(f"a cache of {self.megabytes} MiB: experts not counted")
            return
        size = self.megabytes * 2**20 * self.shape.cards
        held = int(size / (each * layers)) if each and layers else 0
        self.fields["resident"] = min(held, self.shape.num_experts)


def whole(where: str, value: str) -> int:
    """Return a whole number from 0.

    Raises UsageError: the text is none.
    """
    if not re.fullmatch(r"\d+", value.strip()):
        refuse(where, f"{value!r} is not a whole number from 0")
    return int(value)


def switch(where: str, value: str) -> bool:
    """Return the truth of yes, no, and other words for them.

    Raises UsageError: another word.
    """
    known = {"yes": True, "true": True, "on": True, "1": True,
             "no": False, "false": False, "off": False, "0": False}  # fmt: skip
    if value.lower() not in known:
        refuse(where, "allowed: yes or no")
    return known[value.lower()]
