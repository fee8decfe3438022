"""What is said of wrong usage."""

import sys
from typing import Any

from moebench.substrate.errors import UsageError


def check_typed(arguments: list[str] | None) -> None:
    """Refuse an empty word: to Python an empty path is the current folder.

    Raises:
        UsageError: names the option before it.
    """
    typed = sys.argv[1:] if arguments is None else arguments
    for before, word in zip(["", *typed], typed, strict=False):
        option, equals, value = word.partition("=")
        if equals and option.startswith("--") and not value.strip():
            raise UsageError(f"{option} {value!r}: expected a value after it; see: moebench --help")
        if not word.strip():
            option = before if before.startswith("-") else "an argument"
            raise UsageError(f"{option} {word!r}: expected a value; see: moebench --help")


def with_value(said: str, error: Any, arguments: list[str] | None) -> str:
    """A complaint about an option with the value that was typed, which some leave out."""
    typed = sys.argv[1:] if arguments is None else arguments
    for option in getattr(getattr(error, "param", None), "opts", ()):
        for place, word in enumerate(typed):
            name, equals, value = word.partition("=")
            if name == option and (equals or place + 1 < len(typed)):
                value = value if equals else typed[place + 1]
                return said if value in said else f"{option} {value}: {said}"
    return said
