"""Checks that an evaluator is installed, with the install command in the error."""

import os
from importlib.metadata import version
from pathlib import Path

from moebench.harness.checkout import checkout
from moebench.harness.extras import require
from moebench.substrate.errors import UsageError

#: Folder into which `make opencompass` installs OpenCompass, next to the checkout's own
#: environment, and the environment variable that overrides it.
OPENCOMPASS_FOLDER, OPENCOMPASS_VARIABLE = ".venv-opencompass", "MOEBENCH_OPENCOMPASS"


def require_lm_eval() -> str:
    """Return the version of the installed lm-eval.

    Raises UsageError: lm-eval is not installed.
    """
    require("lm_eval")
    return version("lm-eval")


def find_opencompass() -> Path | None:
    """Return the Python interpreter of OpenCompass's environment, or None if there is none."""
    named, root = os.environ.get(OPENCOMPASS_VARIABLE), checkout()
    if named:
        python = Path(named) / "bin" / "python"
    elif root is not None:
        python = root / OPENCOMPASS_FOLDER / "bin" / "python"
    else:
        return None
    return python if python.exists() else None


def require_opencompass() -> Path:
    """Return the Python interpreter of OpenCompass's environment, or fail if there is none.

    Raises UsageError: OpenCompass has no environment.
    """
    found = find_opencompass()
    if found is None:
        raise UsageError(
            "OpenCompass has no environment of its own; a checkout's make opencompass makes it "
            f"({OPENCOMPASS_FOLDER}), or set {OPENCOMPASS_VARIABLE} to one that has it"
        )
    return found
