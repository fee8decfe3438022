"""Catalogue of the traces that ship with moebench, and lookup of a trace by name."""

from pathlib import Path

from moebench.substrate.errors import InputError

SHIPPED = Path(__file__).parents[1] / "catalogue" / "traces"


def trace_names() -> list[str]:
    """Return the names of all shipped traces."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/trace.json"))


def find_trace(name: str) -> Path:
    """Return the folder of a trace that is given by its path or by a shipped trace's name.

    Raises InputError: there is no such folder and no such shipped trace.
    """
    if name in trace_names():
        return SHIPPED / name
    if not Path(name).is_dir():
        raise InputError(
            f"no trace {name}: no such folder, and none of that name ships "
            f"(shipped: {', '.join(trace_names()) or 'none'}); record one: moebench trace record"
        )
    return Path(name)
