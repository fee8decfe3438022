"""Progress events: code reports the phase of a run, and a registered callback displays it.

The phases of a run are ``load``, ``calibrate``, ``prefill``, ``decode`` and ``scoring``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: Called with the phase, its finished work, and its total work if known.
Listener = Callable[[str, int, int | None], None]

_LISTENER: ContextVar[Listener | None] = ContextVar("_LISTENER", default=None)


def report_phase(phase: str, done: int = 0, total: int | None = None) -> None:
    """Report the current phase of a run to the registered callback, if there is one."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(phase, done, total)


@contextmanager
def phase_listener(listener: Listener) -> Iterator[None]:
    """Register a callback for the phases that `report_phase` reports inside the context."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
