"""Writes a trace's folder row by row, in the format of `substrate.traces.file`.

The folder is written under a temporary name and renamed when it is complete.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from moebench.substrate.errors import UsageError
from moebench.substrate.traces.file import COLUMNS, HEADER, Array, Header

#: Bytes before an array's data, enough for any shape.
_HEADER_BYTES = 192


class TraceWriter:
    """Writer of a new trace that appends rows to its files; only the rows of a call use memory."""

    def __init__(self, folder: Path, header: Header) -> None:
        self._folder, self._header = folder, header
        self._files: dict[str, tuple[IO[bytes], np.dtype[Any], tuple[int, ...]]] = {}
        self._rows: dict[str, int] = {}

    def append(self, **arrays: np.ndarray) -> None:
        """Add rows to all arrays; every call has the same array names."""
        for name, values in arrays.items():
            if name not in self._files:
                fixed = self._header.ids_type if name in ("ids", "candidates") else None
                dtype = np.dtype(COLUMNS.get(name, fixed) or values.dtype).newbyteorder("<")
                new = (self._folder / f"{name}.npy").open("wb")
                new.write(_npy_header(dtype, (0, *values.shape[1:])))
                self._files[name], self._rows[name] = (new, dtype, values.shape[1:]), 0
            stream, dtype, row_shape = self._files[name]
            if values.shape[1:] != row_shape:
                raise ValueError(f"{name}: rows of {values.shape[1:]} after rows of {row_shape}")
            stream.write(np.ascontiguousarray(values, dtype=dtype).data)
            self._rows[name] += len(values)

    def describe(self, **fields: Any) -> None:
        """Change fields of the trace's header."""
        self._header = self._header.model_copy(update=fields)

    def finish(self) -> None:
        """Write the final sizes of all array files, and the header."""
        arrays = {}
        for name, (stream, dtype, row_shape) in self._files.items():
            shape = (self._rows[name], *row_shape)
            stream.seek(0)
            stream.write(_npy_header(dtype, shape))
            stream.flush()
            os.fsync(stream.fileno())
            stream.close()
            with (self._folder / f"{name}.npy").open("rb") as written:
                digest = hashlib.file_digest(written, "sha256").hexdigest()
            arrays[name] = Array(dtype=dtype.str, shape=shape, sha256=digest)
        self.describe(arrays=arrays)
        text = self._header.model_dump_json(indent=1)
        (self._folder / HEADER).write_text(text + "\n", encoding="utf-8")

    def close(self) -> None:
        """Close all array files, without the rows that a full disk does not take any more."""
        for stream, _, _ in self._files.values():
            with suppress(OSError):
                stream.close()


@contextmanager
def writing(out: Path, header: Header) -> Iterator[TraceWriter]:
    """Context manager that writes a trace, and renames it to ``out`` if the block succeeds.

    Raises:
        UsageError: the folder exists.
        OSError: the folder cannot be written.
    """
    if out.exists():
        raise UsageError(f"{out}: exists; give another --out, or remove it first")
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(".part", f".{out.name}.", out.absolute().parent))
    folder.chmod(0o755)
    writer = TraceWriter(folder, header)
    try:
        yield writer
        writer.finish()
        folder.rename(out)
    except BaseException:
        writer.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _npy_header(dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> bytes:
    """Return a version 1.0 ``.npy`` header of fixed length, which can be overwritten later."""
    text = repr({"descr": dtype.str, "fortran_order": False, "shape": shape})
    length = _HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + f"{text:<{length - 1}}\n".encode()
