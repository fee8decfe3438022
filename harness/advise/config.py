"""Reading of a forced configuration: an engine's flags, or fields by name, as a person types them.

    llama.cpp -ngl 99 --n-cpu-moe 28 -ub 2048 -t 16 -c 32768 -ctk q8_0 -ctv q8_0
    ik -ngl 99 -ot exps=CPU -rtr -ser 6,1
    llama.cpp host_layers=28 threads=16 micro_batch=2048 kv=q8_0

The text may begin with the engine's name or with its program, as a copied command line does.
"""

import difflib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from moebench.harness.advise.config_fields import (
    KEYS,
    KV,
    SWITCHES,
    Fields,
    Forced,
    Shape,
    refuse,
    switch,
    whole,
)
from moebench.harness.advise.config_values import READERS
from moebench.harness.advise.engines import EngineOptions, Option, engines, find_engine, is_engine
from moebench.harness.advise.placement import Rule

#: Before the name of a system of this project that has an engine's name.
OURS = "moebench:"

#: Further names of fields in ``key=value`` words.
ALIASES = {
    "ubatch": "micro_batch", "ub": "micro_batch", "cached_experts": "resident", "ctx": "context",
    "cache_type": "kv", "mmap": "mapped", "numa": "bound", "experts": "experts_used",
}  # fmt: skip

_INTEGER = re.compile(r"-?\d+")
_KEY = re.compile(r"[\w-]+")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=")
_NUMBER = re.compile(r"-?\d+(\.\d+)?|-?\.\d+")


def parse_config(
    text: str,
    engine: str | None,
    moe_layers: Sequence[int],
    num_layers: int,
    num_experts: int,
    *,
    expert_bytes: float | None = None,
    cards: int = 1,
) -> Forced:
    """Read a configuration.

    Args:
        text: flags of an engine, or ``key=value`` words, after an engine's name or program.
        engine: the engine, if the text does not name it.
        expert_bytes: of one routed expert; without it, a cache's size in MiB is not counted.
        cards: that have a cache.

    Raises UsageError: an unknown engine, flag or key, a flag without its value, or a value that is
        not allowed; one line.
    """
    try:
        # A list of options may have commas or semicolons between them.
        words = shlex.split(re.sub(r"[,;](?=\s|$)", " ", text.replace("\\\n", " ")))
    except ValueError as error:
        refuse(text.strip(), f"{str(error).lower()}; close the quotes")
    named, words, program = _engine_of(words, engine)
    shape = Shape(tuple(moe_layers), num_layers, num_experts, expert_bytes, cards)
    hosts_all = named.options is not None and named.options.hosts_all
    fields = Fields(named.key, shape, hosts_all)
    _Reader(named, fields, program).read(words)
    if named.options is not None:
        fields.note_unset(named.options.name, named.options.settable)
    return fields.finish()


# ------------------------------------------------------------------------------ the engine


class _Named(NamedTuple):
    """An engine with options, or a system of this project without."""

    key: str
    options: EngineOptions | None


def _named(name: str) -> _Named:
    from moebench.systems.registry import SYSTEMS

    system = name.removeprefix(OURS)
    if not is_engine(name) and system in SYSTEMS:
        return _Named(name, None)
    found = find_engine(name)
    return _Named(found.key, found)


def _engine_of(words: list[str], engine: str | None) -> tuple[_Named, list[str], bool]:
    """Return the engine, the words after its name or program, and whether it was a program."""
    given = _named(engine) if engine else None
    before = next((at for at, one in enumerate(words) if not _VARIABLE.match(one)), len(words))
    started = _started(words[before:], given)
    if started is not None:
        found, length = started
        return found, words[:before] + words[before + length :], True
    first = words[0] if words else ""
    if _may_name(first, given):
        two = " ".join(words[:2])
        length = 2 if len(words) > 1 and is_engine(two) and not is_engine(first) else 1
        typed = _named(" ".join(words[:length]))
        if given is not None and given.key != typed.key:
            refuse(first, f"the engine is {given.key}; name one engine")
        return typed, words[length:], False
    if given is not None:
        return given, words, False
    for word in words:
        if word.startswith("engine="):
            return _named(word.partition("=")[2]), words, False
    return _inferred(words), words, False


def _may_name(word: str, given: _Named | None) -> bool:
    """Return whether a first word is read as an engine's name."""
    if not word or word.startswith("-") or "=" in word:
        return False
    return given is None or is_engine(word)


def _started(words: list[str], given: _Named | None) -> tuple[_Named, int] | None:
    """Return the engine whose program the words begin with, and the number of its words."""
    if not words:
        return None
    low = [words[0].rpartition("/")[2], *words[1:]]
    candidates = list(engines().values())
    if given is not None and given.options is not None:
        candidates = [given.options]
    for one in candidates:
        for program in sorted(one.programs, key=len, reverse=True):
            length = len(program.split())
            if low[:length] == program.split():
                return _Named(one.key, one), length
    return None


def _inferred(words: list[str]) -> _Named:
    """Return the first engine that has all flags of a text without an engine's name."""
    flags = [word.partition("=")[0] for word in words if _is_flag(word)]
    for one in engines().values() if flags else ():
        if all(flag in one.by_spelling for flag in flags):
            return _Named(one.key, one)
    if flags:
        first = next(iter(engines().values()))
        return _Named(first.key, first)
    shown = shlex.join(words) or "''"
    refuse(shown, f"names no engine; begin with one of {', '.join(engines())}")


def _is_flag(word: str) -> bool:
    return bool(re.match(r"-(?!\.?\d).", word))


# ------------------------------------------------------------------------------ the words


@dataclass(slots=True)
class _Reader:
    """Reads words into fields.

    Attributes:
        program: whether the words are a command line.
        positional: words without a flag that are allowed: a model or a script of a command line.
    """

    named: _Named
    fields: Fields
    program: bool
    positional: int = 1

    def read(self, words: list[str]) -> None:
        """Read all words."""
        rest = list(words)
        while rest:
            word = rest.pop(0)
            key, equals, value = word.partition("=")
            option = self._option(word) or (self._option(key) if equals else None)
            if option is not None:
                inline = [value] if equals and not self._option(word) else None
                self._flag(option, word if inline is None else key, inline, rest)
            elif _is_flag(word):
                self._unknown(key)
            elif self.program and _VARIABLE.match(word):
                self.fields.remarks.append(f"{word}: not read")
            elif _KEY.fullmatch(key) and equals:
                self._key(key, value)
            elif self.program and self.positional:
                self.positional -= 1
            else:
                refuse(word, "is no flag and no key=value; allowed: " + self._known())

    def _option(self, word: str) -> Option | None:
        options = self.named.options
        return None if options is None else options.by_spelling.get(word)

    def _known(self) -> str:
        name = "" if self.named.options is None else f"flags of {self.named.key}, or "
        return f"{name}{', '.join(KEYS)} followed by ="

    def _unknown(self, flag: str) -> NoReturn:
        options = self.named.options
        if options is None:
            refuse(flag, f"{self.named.key} has no flags here; allowed: {self._known()}")
        near = options.nearest(flag)
        have = [one.key for one in engines().values() if flag in one.by_spelling]
        version = options.version or "of unknown version"
        hints = [f"nearest: {', '.join(near)}"] if near else []
        hints += [f"a flag of {', '.join(have)}"] if have else []
        hint = "; ".join(hints) or f"allowed: {self._known()}"
        refuse(flag, f"no flag of {options.name} {version}; {hint}")

    def _flag(
        self, option: Option, typed: str, inline: list[str] | None, rest: list[str]
    ) -> None:  # fmt: skip
        values = self._values(option, typed, inline, rest)
        where = shlex.join([typed, *values])
        if inline is not None and not typed.startswith("-"):
            where = shlex.join([f"{typed}={inline[0]}"])
        for value in values:
            _check(option, where, value)
        if option.sets == "model":
            return
        reads = READERS.get(option.reads, READERS[""])
        exact = option.sets is not None and reads(self.fields, option, where, "".join(values[:1]))
        if not exact:
            self.fields.other.append(
                where if inline is None else shlex.join([f"{typed}={inline[0]}"])
            )

    def _values(
        self, option: Option, typed: str, inline: list[str] | None, rest: list[str]
    ) -> list[str]:  # fmt: skip
        """Return a flag's values, and take them from the words that follow it."""
        if inline is not None:
            if option.takes == "none":
                refuse(f"{typed}={inline[0]}", f"{typed} takes no value")
            return inline
        values: list[str] = []
        while option.takes != "none" and rest and (option.many or not values):
            follows = rest[0] in option.choices or not (_is_flag(rest[0]) or rest[0] == "")
            if option.optional:
                follows = follows and "=" not in rest[0] and _may_be(option, rest[0])
            if not follows:
                break
            values.append(rest.pop(0))
        if option.takes != "none" and not values and not option.optional:
            allowed = ", ".join(option.choices) or _KINDS[option.takes]
            refuse(typed, f"needs a value; allowed: {allowed}")
        return values

    def _key(self, key: str, value: str) -> None:
        """Read a ``key=value`` word."""
        where = f"{key}={value}"
        name = key.strip().lower().replace("-", "_")
        name = ALIASES.get(name, name)
        if name not in KEYS:
            near = difflib.get_close_matches(name, [*KEYS, *ALIASES], n=3, cutoff=0.5)
            hint = f"nearest: {', '.join(near)}" if near else f"allowed: {', '.join(KEYS)}"
            refuse(where, f"no such key; {hint}")
        if name == "engine":
            if _named(value).key != self.named.key:
                refuse(where, f"the engine is {self.named.key}; name one engine")
        elif name == "n_cpu_moe":
            self.fields.placement.rules.append(Rule(None, below=whole(where, value)))
        elif name == "kv":
            if value.lower() not in KV:
                refuse(where, f"no format of a KV cache; allowed: {', '.join(KV)}")
            self.fields.fields["kv"] = value.lower()
        elif name in SWITCHES:
            self.fields.fields[name] = switch(where, value)
        elif name == "host_layers" and value.lower() == "all":
            self.fields.fields[name] = len(self.fields.shape.moe_layers)
        else:
            self.fields.set(name, where, whole(where, value))


# ------------------------------------------------------------------------------ values

_KINDS = {"integer": "a whole number", "number": "a number", "text": "a text"}


def _may_be(option: Option, word: str) -> bool:
    """Return whether a word may be the value of an option whose value may be left out."""
    if option.choices:
        return word in option.choices
    return option.takes != "integer" or bool(_INTEGER.fullmatch(word))


def _check(option: Option, where: str, value: str) -> None:
    """Refuse a value of the wrong kind, or one that is not among the choices."""
    pattern = {"integer": _INTEGER, "number": _NUMBER}.get(option.takes)
    if pattern is not None and not pattern.fullmatch(value):
        refuse(where, f"{value!r} is not {_KINDS[option.takes]}")
    if option.choices and value not in option.choices:
        near = difflib.get_close_matches(value.lower(), option.choices, n=1, cutoff=0.5)
        hint = f"; nearest: {near[0]}" if near else ""
        refuse(where, f"{value!r} is not allowed; allowed: {', '.join(option.choices)}{hint}")
