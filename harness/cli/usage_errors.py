"""Error messages for wrong command-line usage."""

import re
import sys
from typing import Any

from moebench.results.spec import OPTIONS, flag_of
from moebench.substrate.errors import UsageError

#: Words that Python reads as numbers that are not finite.
_NOT_FINITE = ("inf", "infinity", "nan")


def check_typed(arguments: list[str] | None) -> None:
    """Refuse empty arguments, which Python would read as the current folder, and infinite numbers.

    Raises UsageError: names the option before it.
    """
    typed = sys.argv[1:] if arguments is None else arguments
    for before, word in zip(["", *typed], typed, strict=False):
        option, equals, value = word.partition("=")
        number, of = (value, option) if equals else (word, before)
        if number.strip().lower().lstrip("+-") in _NOT_FINITE and of in _floats(typed):
            raise UsageError(f"{of} {number}: expected a finite number")
        if equals and option.startswith("--") and not value.strip():
            raise UsageError(f"{option} {value!r}: expected a value after it; see: moebench --help")
        if not word.strip():
            option = before if before.startswith("-") else "an argument"
            raise UsageError(f"{option} {word!r}: expected a value; see: moebench --help")


def with_value(said: str, error: Any, arguments: list[str] | None) -> str:
    """Return a usage error that also shows the typed value of its option."""
    typed = sys.argv[1:] if arguments is None else arguments
    for option in getattr(getattr(error, "param", None), "opts", ()):
        for place, word in enumerate(typed):
            name, equals, value = word.partition("=")
            if name == option and (equals or place + 1 < len(typed)):
                value = value if equals else typed[place + 1]
                return said if value in said else f"{option} {value}: {said}"
    return said


#: The application, which sets it: it imports this module.
program: Any = None

#: An option in prose; one of a whole command that is advised stands behind its name.
_OPTION = re.compile(r"(?<![\w/-])--[a-z][a-z-]*")
_COMMAND = re.compile(r"moebench [a-z][^;`]*")


def adapt_options(said: str, arguments: list[str] | None) -> str:
    """Return a usage error that names only options of the typed command.

    Errors of a run name `moebench run`'s options.  A sweep takes several values for each, some
    in its file alone, and other commands take what they need from elsewhere.
    """
    typed = sys.argv[1:] if arguments is None else arguments
    path, options = _options(typed)
    advised = [match.span() for match in _COMMAND.finditer(said)]
    given = {word.partition("=")[0] for word in typed}
    axes = {one.flag: flag_of(one.axis) for one in OPTIONS.values() if one.axis}

    def fit(match: re.Match[str]) -> str:
        option = match.group()
        inside = any(start <= match.start() < end for start, end in advised)
        if inside or option in options or option in given or not options:
            return option
        axis = axes.get(option, f"{option}s")
        if axis in options:
            return axis
        if path == ["sweep"]:
            return f"{option.lstrip('-').replace('-', '_')} (in the sweep's file)"
        return f"{option} (of moebench run)" if option in _options(["run"])[1] else option

    return _OPTION.sub(fit, said)


def as_fields(said: str) -> str:
    """Return a usage error of a run that names the fields of a sweep's file, not options."""
    flags = {
        one.flag: f"`{one.typed if one.former else name}`" for name, one in OPTIONS.items()
    } | {"--set": "`set`"}
    advised = [match.span() for match in _COMMAND.finditer(said)]

    def fit(match: re.Match[str]) -> str:
        inside = any(start <= match.start() < end for start, end in advised)
        return match.group() if inside else flags.get(match.group(), match.group())

    return _OPTION.sub(fit, said)


def _options(typed: list[str]) -> tuple[list[str], set[str]]:
    """Return the typed command and its options; empty if no command was typed."""
    path, params = _command(typed)
    return path, {name for param in params for name in (*param.opts, *param.secondary_opts)}


def _floats(typed: list[str]) -> set[str]:
    """Return the options of the typed command that take a number with decimals."""
    _, params = _command(typed)
    return {name for param in params if _is_float(param) for name in param.opts}


def _is_float(param: Any) -> bool:
    """Return whether a parameter takes a number with decimals, in any version of Typer."""
    if hasattr(param, "type_descriptor"):
        return param.type_descriptor.annotation is float
    return "float" in getattr(getattr(param, "type", None), "name", "")


def _command(typed: list[str]) -> tuple[list[str], list[Any]]:
    """Return the typed command and its parameters; empty if no command was typed."""
    from typer.main import get_command

    if program is None:  # without the command line
        return [], []
    command: Any = get_command(program)
    path = []
    for word in typed:
        inner = getattr(command, "commands", {}).get(word)
        if inner is None:
            break
        command = inner
        path.append(word)
    return path, [] if not path or hasattr(command, "commands") else command.params
