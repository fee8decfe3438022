"""Keeps answers by their content, for the same question to the same code.

An answer is named by the hash of its question and of every file that it depends on, so it is never
out of date.  The files are in ``moebench/advice`` of the user's cache folder; where that cannot be
read or written, everything is computed again.
"""

import json
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from moebench.harness.run import code_cache
from moebench.substrate.errors import InputError
from moebench.substrate.files import write_text

_PACKAGE = Path(__file__).parents[2]

#: What an answer depends on, as patterns below the package.
_SOURCES = (
    "harness/advise/*.py", "harness/advise/*.yaml", "harness/published/*.py",
    "harness/machines/*.py", "results/measured/*.json", "results/published_errors.py",
    "substrate/**/*.py", "substrate/catalogue/*.yaml", "substrate/catalogue/parts/*.yaml",
    "substrate/catalogue/software/*.yaml", "substrate/catalogue/models/*.json", "systems/**/*.py",
)  # fmt: skip


def key_of(question: str) -> str:
    """Return the name of an answer to a question, given as text."""
    return code_cache.key_of(
        [question.encode(), _code().encode(), f"{date.today():%Y-%m}".encode()]
    )


@cache
def _code() -> str:
    files = sorted({file for pattern in _SOURCES for file in _PACKAGE.glob(pattern)})
    return code_cache.key_of(
        part for file in files for part in (file.name.encode(), file.read_bytes())
    )


def read(key: str) -> dict[str, Any] | None:
    """Return a kept answer; None if there is none that can be read."""
    file = _file(key)
    try:
        found = json.loads(file.read_bytes()) if file is not None else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "answers" in found else None


def write(key: str, document: dict[str, Any]) -> None:
    """Keep an answer, where the folder can be written."""
    file = _file(key)
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(document))
    except (OSError, InputError):
        return  # the next answer is computed again


def _file(key: str) -> Path | None:
    beside = code_cache.cache_file()
    return None if beside is None else beside.parent / "advice" / f"{key}.json"
