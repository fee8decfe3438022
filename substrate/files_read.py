"""Record of the store files that a run reads, so that the run's document can list them.

The store keeps fitted and prepared files for later runs; a file that no run's document lists can be
removed (`results.garbage`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_USED: ContextVar[set[Path] | None] = ContextVar("_USED", default=None)


def record_read(path: Path) -> Path:
    """Record and return a file or folder that the current run reads from its store."""
    found = _USED.get()
    if found is not None:
        found.add(path)
    return path


@contextmanager
def collect_reads() -> Iterator[set[Path]]:
    """Context manager that collects the paths with which `record_read` is called inside."""
    found: set[Path] = set()
    token = _USED.set(found)
    try:
        yield found
    finally:
        _USED.reset(token)


def below(folder: Path, found: set[Path]) -> list[str]:
    """Return the paths that are inside a folder, relative to it and sorted."""
    inside = (path for path in found if path.is_relative_to(folder))
    return sorted(path.relative_to(folder).as_posix() for path in inside)
