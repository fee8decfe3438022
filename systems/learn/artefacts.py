"""Cache of trained networks and tables, keyed by a hash of their data and options.

An artefact is a safetensors file: arrays by name, and a note on the training as its metadata.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from moebench.substrate.errors import InputError
from moebench.substrate.files_read import record_read


class Artefact(NamedTuple):
    """Arrays by name, and a note that describes how they were trained."""

    arrays: Mapping[str, np.ndarray]
    note: Mapping[str, str] = {}


def content_hash(description: object, arrays: Iterable[np.ndarray] = ()) -> str:
    """Return 16 hexadecimal digits of a SHA-256 over a JSON description and arrays."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for array in arrays:
        kept = np.ascontiguousarray(array)
        digest.update(f"{kept.dtype} {kept.shape}".encode() + kept.tobytes())
    return digest.hexdigest()[:16]


def kept(file: Path, make: Callable[[], Artefact]) -> Artefact:
    """Return the artefact in a file; create and write it first if there is no file.

    Of several processes that need it at once, one creates it and the others wait.  An existing file
    that cannot be read is an `InputError`.
    """
    from safetensors import SafetensorError, safe_open

    record_read(file)
    if not file.exists():
        with _alone(file):
            if not file.exists():
                _write(file, make())
    try:
        with safe_open(file, "np") as found:
            arrays = {name: found.get_tensor(name) for name in found.keys()}  # noqa: SIM118
            return Artefact(arrays, found.metadata() or {})
    except (OSError, SafetensorError) as error:
        message = f"{file}: cannot be read ({error}); remove it, and it is made again"
        raise InputError(message) from error


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Hold an exclusive lock for writing this file; it is released even if the process dies."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = file.with_suffix(".lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)  # a waiting process then finds the finished file


def _write(file: Path, artefact: Artefact) -> None:
    """Write an artefact to a temporary file and rename it, so that the file is always complete.

    The temporary name contains the process id: two processes never write to the same file.
    """
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(array) for name, array in artefact.arrays.items()}
    half_written = file.with_suffix(f".{os.getpid()}.partial")
    save_file(arrays, half_written, dict(artefact.note))
    half_written.replace(file)
