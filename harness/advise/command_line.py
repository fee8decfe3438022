"""The words of a command line while they are collected from a configuration."""

import shlex
from dataclasses import dataclass, field, fields

from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.engines import EngineOptions
from moebench.harness.advise.question import Question
from moebench.substrate.models.gguf_shape import is_gguf

#: Values of fields that every engine has without a flag.
_USUAL = {"kv": "f16", "mapped": True, "bound": False, "pinned": False, "repacked": False,
          "resident": 0}  # fmt: skip


@dataclass(slots=True)
class Line:
    """The words of a command line while they are collected.

    Attributes:
        written: the fields that its flags set.
    """

    engine: EngineOptions
    config: Configuration
    question: Question
    words: list[str] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def start(self, *words: object) -> None:
        """Begin with the engine's first program and further words."""
        self.words = [*self.engine.programs[0].split(), *map(str, words)]

    def add(self, flag: str, *values: object, sets: str = "") -> None:
        """Add a flag with its values, unless the options as typed have it."""
        if sets:
            self.written.add(sets)
        option = self.engine.by_spelling[flag]
        typed = {shlex.split(one)[0].partition("=")[0] for one in self.config.other}
        if not typed & set(option.spellings):
            self.words += [flag, *map(str, values)]

    def add_field(self, flag: str, name: str) -> None:
        """Add a flag whose value is that of a field, unless the field is open."""
        value = getattr(self.config, name)
        if value is not None:
            self.add(flag, value, sets=name)

    def note(self, text: str) -> None:
        """Add a note."""
        self.notes.append(text)

    def note_unset(self) -> None:
        """Note the fields that no flag sets, unless the engine has their value without one."""
        for one in fields(self.config):
            value = getattr(self.config, one.name)
            if one.name in ("engine", "other", "host_layers", "whole_layers", *self.written):
                continue
            if value is not None and value != _USUAL.get(one.name):
                self.note(f"{one.name} {value}: no option of {self.engine.name} sets it")

    def note_typed(self, place: str) -> None:
        """Note the options as typed, which belong into a program's text."""
        if self.config.other:
            self.note(f"options as typed belong into {place}: {', '.join(self.config.other)}")

    def end(self) -> str:
        """Return the line, with the options as typed at its end."""
        return " ".join([shlex.join(self.words), *self.config.other])


def weights_name(question: Question) -> str:
    """Return the name of the file: the given GGUF file, or one derived from model and format."""
    if is_gguf(question.model):
        return question.model
    name = question.model.rstrip("/").rpartition("/")[2]
    return f"{name}.gguf" if question.quant in ("", "file") else f"{name}-{question.quant}.gguf"


def room(question: Question) -> int:
    """Return the tokens that the KV cache has room for, of all texts."""
    return question.lengths.context * question.batch
