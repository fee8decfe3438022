"""What is said of wrong usage."""

import sys
from typing import Any


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
