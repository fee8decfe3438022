"""What a command needs to be typed with, so that it reads the same store."""

import shlex
from pathlib import Path

#: Where results are kept unless another place is named.
DEFAULT = Path(".moebench")


def in_store(directory: Path | str) -> str:
    """What a command needs to read a store: nothing, or the option that names it."""
    return "" if Path(directory) == DEFAULT else f" --store {shlex.quote(str(directory))}"


def no_runs(directory: Path | str) -> str:
    """What is said of a store without runs."""
    advice = f"moebench run --system smoe --setting S3{in_store(directory)}"
    return f"no runs in {directory}; run: {advice}"
