"""Parts of suggested commands that name the run store."""

import shlex
from pathlib import Path

#: Default folder of the run store.
DEFAULT_STORE = Path(".moebench")


def in_store(directory: Path | str) -> str:
    """Return the ``--store`` option that names a store; "" for the default store."""
    return "" if Path(directory) == DEFAULT_STORE else f" --store {shlex.quote(str(directory))}"


def no_runs(directory: Path | str) -> str:
    """Return the error message for a store without runs."""
    advice = f"moebench run --system smoe --setting S3{in_store(directory)}"
    return f"no runs in {directory}; run: {advice}"
