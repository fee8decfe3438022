"""Options of the engines that advice names, with the version and the source that were read.

``engines.yaml`` has the table.  A flag that no source documents is not in it, so it is neither
accepted nor written.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from moebench.substrate.errors import UnknownNameError
from moebench.substrate.files import read_yaml

ENGINES = Path(__file__).with_name("engines.yaml")

#: What an option sets: a field of `Configuration`, the room of the KV cache, or the model's file.
Sets = Literal[
    "host_layers", "whole_layers", "resident", "threads", "micro_batch", "kv", "repacked", "mapped",
    "bound", "experts_used", "pinned", "context", "model",
]  # fmt: skip

#: How an option's value becomes that of a field; "" is as it is.
Reads = Literal[
    "", "yes", "no", "number", "first-layers", "all-layers", "automatic", "tensors", "entries",
    "layers", "host-experts", "device-share", "slots", "budget", "keys", "values", "both", "dtype",
    "bits", "level", "load-mode", "numa", "pools", "reduction", "metadata",
]  # fmt: skip


class Option(BaseModel):
    """A flag of an engine.

    Attributes:
        spellings: of the flag, the first is shown; a word without a dash is an argument's name.
        takes: kind of its value.
        optional: whether the value may be left out.
        many: whether it takes several values.
        choices: the allowed values; () is any.
        sets: what it sets; None is nothing that a prediction depends on.
        reads: how its value becomes that of the field.
        removed: since when the engine refuses it; "" is not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    spellings: tuple[str, ...] = Field(min_length=1)
    takes: Literal["none", "integer", "number", "text"]
    optional: bool = False
    many: bool = False
    choices: tuple[str, ...] = ()
    sets: Sets | None = None
    reads: Reads = ""
    removed: str = ""

    @model_validator(mode="before")
    @classmethod
    def _split(cls, fields: object) -> object:
        if isinstance(fields, dict) and isinstance(fields.get("spellings"), str):
            return {**fields, "spellings": tuple(fields["spellings"].split())}
        return fields


class Unread(BaseModel):
    """Spellings of the flags that no prediction depends on, by what they take."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    none: tuple[str, ...] = ()
    value: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    def options(self) -> Iterator[Option]:
        """Yield an option for each flag."""
        for text in self.none:
            yield Option(spellings=tuple(text.split()), takes="none")
        for text in self.value:
            yield Option(spellings=tuple(text.split()), takes="text")
        for text in self.optional:
            yield Option(spellings=tuple(text.split()), takes="text", optional=True)
        for text in self.values:
            yield Option(spellings=tuple(text.split()), takes="text", optional=True, many=True)


class EngineOptions(BaseModel):
    """An engine, and its documented options.

    Attributes:
        version: release or commit whose options were read; None is not known.
        source: where they were read.
        programs: ways to start it; () if no program is documented.
        hosts_all: whether the experts of all MoE layers are in host memory.
        like: key of the engine whose options it has, too; "" is none.
        options: those that a prediction depends on.
        unread: the others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))

    key: str
    name: str
    home: str
    version: str | None
    source: str
    programs: tuple[str, ...]
    aliases: tuple[str, ...]
    hosts_all: bool = False
    like: str = ""
    options: tuple[Option, ...]
    unread: Unread = Unread()

    @cached_property
    def by_spelling(self) -> Mapping[str, Option]:
        """Every option by each of its spellings, with those of the engine that it is like."""
        inherited = engines()[self.like].by_spelling if self.like else {}
        own = (*self.options, *self.unread.options())
        return {**inherited, **{text: one for one in own for text in one.spellings}}

    @property
    def settable(self) -> frozenset[str]:
        """Fields that some option sets."""
        return frozenset(one.sets for one in self.by_spelling.values() if one.sets)

    @property
    def read_version(self) -> str:
        """The version and the source of the options, as text."""
        if self.version is None:
            return f"options of {self.name}, version unknown ({self.source})"
        return f"options of {self.name} {self.version} ({self.source})"

    def nearest(self, flag: str) -> list[str]:
        """Return up to three spellings that resemble a flag."""
        known = [text for text, one in self.by_spelling.items() if not one.removed]
        return difflib.get_close_matches(flag, known, n=3, cutoff=0.5)


@cache
def engines() -> Mapping[str, EngineOptions]:
    """Return all engines by their keys, in the table's order."""
    table = read_yaml(ENGINES)
    keyed = {key: {"key": key, **fields} for key, fields in table.items()}
    return TypeAdapter(dict[str, EngineOptions]).validate_python(keyed)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


@cache
def _names() -> Mapping[str, str]:
    """Return the keys by all plain names."""
    found: dict[str, str] = {}
    for key, one in engines().items():
        for name in (key, one.name, *one.aliases):
            found.setdefault(_plain(name), key)
    return found


def is_engine(name: str) -> bool:
    """Return whether an engine has this name, in any spelling."""
    return _plain(name) in _names()


def find_engine(name: str) -> EngineOptions:
    """Return the engine of a name; case, punctuation and common short forms do not matter.

    Raises UnknownNameError: no such engine; names the nearest ones.
    """
    key = _names().get(_plain(name))
    if key is None:
        known = [*engines(), *(text for one in engines().values() for text in one.aliases)]
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        raise UnknownNameError("engine", name, near or engines())
    return engines()[key]


def options_table() -> str:
    """Return the engines with the version and source of their options, as a table in Markdown."""
    rows = [
        f"| [{one.name}]({one.home}) | {one.version or 'not stated'} | {one.source} |"
        for one in engines().values()
    ]
    return "\n".join(["| engine | version | options read in |", "|---|---|---|", *rows])
