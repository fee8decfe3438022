"""Records modules that users' systems import by a computed name, for the hash of their code.

``import_module(name)`` and ``__import__(name)`` with a variable can be known only by carrying them
out.  A module's code runs once in a process, so what it imports is kept for the whole process.
"""

import builtins
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import resolve_name
from typing import Any

#: By importing module: the modules that it imported with a call.
_IMPORTED: dict[str, set[str]] = {}


def imported_by(module: str) -> list[str]:
    """Return the modules that a module imported with calls, in alphabetical order."""
    return sorted(_IMPORTED.get(module, ()))


@contextmanager
def recorded() -> Iterator[None]:
    """Context manager in which calls that import a module are recorded."""
    statement, call = builtins.__import__, importlib.import_module

    def import_statement(name: str, *arguments: Any, **options: Any) -> Any:
        if not (arguments or options):  # A statement gives its module's names, a call does not.
            _note(name)
        return statement(name, *arguments, **options)

    def import_module(name: str, package: str | None = None) -> Any:
        _note(resolve_name(name, package) if name.startswith(".") else name)
        return call(name, package)

    builtins.__import__ = import_statement
    importlib.import_module = import_module
    try:
        yield
    finally:
        builtins.__import__, importlib.import_module = statement, call


def _note(name: str) -> None:
    importer = sys._getframe(2).f_globals.get("__name__")
    if isinstance(importer, str) and isinstance(name, str) and name:
        _IMPORTED.setdefault(importer, set()).add(name)
