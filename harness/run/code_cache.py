"""Keeps what is computed from source code, by the hash of the code, for later processes.

Parsing the modules that a run depends on takes 0.4 s, which every command that names a run would
pay.  What is kept is named by the content from which it was computed, so it is never out of date.
The file is ``moebench/code-PYTHON.json`` in the user's cache folder; without one, or if the file
cannot be read or written, everything is computed again.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from moebench.substrate.errors import InputError
from moebench.substrate.files import write_text

#: The most entries that are kept: the code of some hundred versions.
MOST = 20_000

Entries = dict[str, list[str]]


def key_of(parts: Iterable[bytes]) -> str:
    """Return the name of what is computed from these parts, in their order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


class CodeCache:
    """Texts that were computed from code, by `key_of` that code.

    Args:
        file: where they are kept; None keeps nothing.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._found: Entries | None = None
        self._changed = False

    def texts(self, key: str, compute: Callable[[], list[str]]) -> list[str]:
        """Return the kept texts of a key, or compute and remember them."""
        if self._found is None:
            self._found = self._read()
        if key not in self._found:
            self._found[key] = compute()
            self._changed = True
        return self._found[key]

    def save(self) -> None:
        """Write what was computed since the last time, atomically."""
        if not self._changed or self._file is None or self._found is None:
            return
        # Others may have written meanwhile; of too many entries, the oldest go.
        entries = {**self._read(), **self._found}
        kept = dict(list(entries.items())[-MOST:])
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_text(self._file, json.dumps(kept))
        except (OSError, InputError):
            self._file = None  # a folder that cannot be written: not tried again
        self._changed = False

    def _read(self) -> Entries:
        """Return the kept entries; none of a file that is missing or not ours."""
        if self._file is None:
            return {}
        try:
            found = json.loads(self._file.read_bytes())
        except (OSError, ValueError):
            return {}
        if not isinstance(found, dict):
            return {}
        return {key: texts for key, texts in found.items() if _are_texts(texts)}


def _are_texts(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(text, str) for text in found)


def cache_file() -> Path | None:
    """Return the file in the user's cache folder; None if the user has no home."""
    name = f"code-{sys.version_info.major}.{sys.version_info.minor}.json"
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return folder / "moebench" / name


#: The cache of this process.
CACHE = CodeCache(cache_file())
