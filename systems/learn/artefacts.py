"""Stores what was learnt, under a hash of the data and options that it was learnt from.

An artefact is a safetensors file: arrays by name, and a note on how learning went as its metadata.
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
from moebench.substrate.files_read import use


class Artefact(NamedTuple):
    """Arrays by name, and what there is to say about them."""

    arrays: Mapping[str, np.ndarray]
    note: Mapping[str, str] = {}


def content_hash(description: object, arrays: Iterable[np.ndarray] = ()) -> str:
    """16 hexadecimal digits of a SHA-256 over a JSON description and the content of arrays."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for array in arrays:
        kept = np.ascontiguousarray(array)
        digest.update(f"{kept.dtype} {kept.shape}".encode() + kept.tobytes())
    return digest.hexdigest()[:16]


def kept(file: Path, make: Callable[[], Artefact]) -> Artefact:
    """The artefact of this name, made and written if it is not there yet.

    Of several processes that want it at once, one makes it and the others wait.

    Raises:
        InputError: what is there cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    use(file)
    if not file.exists():
        with _alone(file):
            if not file.exists():
                _write(file, make())
    try:
        with safe_open(file, "np") as found:
            arrays = {name: found.get_tensor(name) for name in found.keys()}  # noqa: SIM118
            return Artefact(arrays, found.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{file}: cannot be read ({error}); remove it, and it is made again"
        ) from error


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Wait until no other process makes this file; one that dies lets go of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = file.with_suffix(".lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)  # those that wait for it find the file


def _write(file: Path, artefact: Artefact) -> None:
    """Write under another name first, so that a file of this name is always complete.

    Each process has its own: should two make the same one, they do not write into one file.
    """
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(array) for name, array in artefact.arrays.items()}
    half_written = file.with_suffix(f".{os.getpid()}.partial")
    save_file(arrays, half_written, dict(artefact.note))
    half_written.replace(file)
