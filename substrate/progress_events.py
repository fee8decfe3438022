"""Which part of a run is under way: who shows progress listens, who works tells.

The phases of a run are ``load``, ``calibrate``, ``prefill``, ``decode`` and ``scoring``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: Told the phase, and how much of it is done of how much, where that is known.
Listener = Callable[[str, int, int | None], None]

_LISTENER: ContextVar[Listener | None] = ContextVar("_LISTENER", default=None)


def tell(phase: str, done: int = 0, total: int | None = None) -> None:
    """Say what is under way; nothing happens where nobody listens."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(phase, done, total)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have what `tell` is told inside."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
