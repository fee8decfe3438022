"""The page of all commands and their options, from what Typer is given.

`docs/commands.md` and ``moebench list commands --long`` show the same.
"""

import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import typer

COMMAND = "moebench list commands --long > docs/commands.md"

_INTRODUCTION = f"""# Commands and their options

This page is generated from the commands: `{COMMAND}`.

*Required* stands where an option or argument must be given, and a dash where nothing is taken
unless it is given; what a run then does is in the brackets of the text.  Questions and the command
that answers each are on a [page of their own](questions.md), the options of systems in the
[list of policies](policies.md).
"""

_HEADERS = ("option", "values", "default", "what it does")

#: What the values of a type are called.
_WORDS: dict[Any, str] = {int: "whole number", float: "number", str: "text", Path: "path"}


class Named(NamedTuple):
    """A command's name, such as ``trace record``, and the function that carries it out."""

    name: str
    function: Callable[..., Any]

    @property
    def what(self) -> str:
        """The first line of its help."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]


def commands(app: typer.Typer, before: str = "") -> Iterator[Named]:
    """Yield the commands of an application in the order of its help, then those of its groups."""
    for one in app.registered_commands:
        assert one.callback is not None, "a command that does nothing"
        yield Named(before + (one.name or one.callback.__name__.replace("_", "-")), one.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None, "a group without commands"
        yield from commands(group.typer_instance, f"{before}{group.name} ")


def document(app: typer.Typer) -> str:
    """Return the page in Markdown: of each command its help, and a row for each option."""
    from moebench.systems.description import markdown_table

    parts = [_INTRODUCTION]
    for one in commands(app):
        parts += [f"## {one.name}", "", inspect.getdoc(one.function) or "", ""]
        given = inspect.signature(one.function, eval_str=True).parameters.values()
        rows = [_row(found) for found in given if get_origin(found.annotation) is Annotated]
        if rows:
            parts.append(markdown_table(_HEADERS, rows))
    return "\n".join(parts)


def _row(found: inspect.Parameter) -> list[str]:
    """Return the cells of a parameter: how it is typed, its values, its default and its help."""
    kind, info = get_args(found.annotation)[:2]
    flag = kind is bool or bool in get_args(kind)
    if isinstance(info, typer.models.ArgumentInfo):
        typed = found.name.rstrip("_").upper()
    else:
        own = "--" + found.name.strip("_").replace("_", "-")
        # Of names that are given without a default, Typer keeps the first one as the default.
        first = [info.default] if isinstance(info.default, str) else []
        names = [*first, *(info.param_decls or ())]
        names = names or ([own, own.replace("--", "--no-")] if flag else [own])
        typed = ", ".join(f"`{part.strip()}`" for name in names for part in name.split("/"))
    values = "flag" if flag else _values(kind, info.min, info.max)
    shown = info.show_default  # a text stands for a default that differs by computer
    default = shown if isinstance(shown, str) else _default(found.default, flag)
    return [typed, values, default, info.help or ""]


def _values(kind: Any, least: float | None, most: float | None) -> str:
    """Return what may be typed as a value of a type, within its bounds."""
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (one for one in get_args(kind) if one is not type(None))
    if get_origin(kind) is list:
        return f"{_values(get_args(kind)[0], least, most)}, repeatable"
    if get_origin(kind) is Literal:
        return ", ".join(f"`{one}`" for one in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{one.value}`" for one in kind)
    bounds = [f"at least {least:g}"] if least is not None else []
    bounds += [f"at most {most:g}"] if most is not None else []
    return ": ".join([_WORDS[kind], *([", ".join(bounds)] if bounds else [])])


def _default(value: Any, flag: bool) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    if value is None or (flag and not value):
        return "-"
    return f"`{value.value if isinstance(value, Enum) else value}`"
