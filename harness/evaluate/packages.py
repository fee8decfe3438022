"""Whether an evaluator is installed, and the line that installs it."""

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from moebench.substrate.errors import UsageError

#: Where `make opencompass` puts OpenCompass, beside the checkout's own environment; the variable
#: names another place.
OPENCOMPASS_FOLDER, OPENCOMPASS_VARIABLE = ".venv-opencompass", "MOEBENCH_OPENCOMPASS"


def require_lm_eval() -> str:
    """The installed lm-eval's version.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return version("lm-eval")
    except PackageNotFoundError:
        raise UsageError("lm-eval is not installed; type: pip install 'moebench[eval]'") from None


def find_opencompass() -> Path | None:
    """The Python of OpenCompass's own environment; None where there is none."""
    named = os.environ.get(OPENCOMPASS_VARIABLE)
    folder = Path(named) if named else Path(__file__).parents[2] / OPENCOMPASS_FOLDER
    python = folder / "bin" / "python"
    return python if python.exists() else None


def require_opencompass() -> Path:
    """The same.

    Raises:
        UsageError: there is none.
    """
    found = find_opencompass()
    if found is None:
        raise UsageError(
            "OpenCompass has no environment of its own; a checkout's make opencompass makes it "
            f"({OPENCOMPASS_FOLDER}), or set {OPENCOMPASS_VARIABLE} to one that has it"
        )
    return found
