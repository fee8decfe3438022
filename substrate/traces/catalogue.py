"""Traces that ship with moebench, and how a trace is found by name."""

from pathlib import Path

from moebench.substrate.errors import InputError

SHIPPED = Path(__file__).parents[1] / "catalogue" / "traces"


def trace_names() -> list[str]:
    """The shipped traces."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/trace.json"))


def find_trace(name: str) -> Path:
    """A trace's folder: a path, or the name of a shipped one.

    Raises:
        InputError: there is neither.
    """
    if name in trace_names():
        return SHIPPED / name
    if not Path(name).is_dir():
        raise InputError(
            f"no trace {name}: no such folder, and none of that name ships "
            f"(shipped: {', '.join(trace_names()) or 'none'}); record one: moebench trace record"
        )
    return Path(name)
