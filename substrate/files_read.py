"""Which files of its store a run reads, so that its document can name them.

What is learnt or prepared before a run is kept and read again by others; a file that no run names
can be removed (`results.garbage`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_USED: ContextVar[set[Path] | None] = ContextVar("_USED", default=None)


def use(path: Path) -> Path:
    """Note, and return, a file or folder that the present run reads from its store."""
    found = _USED.get()
    if found is not None:
        found.add(path)
    return path


@contextmanager
def noting() -> Iterator[set[Path]]:
    """Collect what `use` is told inside."""
    found: set[Path] = set()
    token = _USED.set(found)
    try:
        yield found
    finally:
        _USED.reset(token)


def below(folder: Path, found: set[Path]) -> list[str]:
    """Those in a folder, relative to it, in order."""
    inside = (path for path in found if path.is_relative_to(folder))
    return sorted(path.relative_to(folder).as_posix() for path in inside)
