"""Compiles ``replay.cpp`` when it is first needed, and loads it.

The compiler is ``c++``, or what the environment variable ``CXX`` names.  What it makes is kept in
the user's cache folder, named by the source's hash.  Without a compiler, or a folder that can be
written, there is no library, and the engine in Python replays.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

#: The file that is compiled, and those that it includes.
SOURCES = tuple(Path(__file__).with_name(n) for n in ("replay.cpp", "parts.h", "policies.h"))

#: Sums are neither contracted nor rearranged, so that they are Python's.
FLAGS = ("-std=c++17", "-O2", "-ffp-contract=off", "-shared", "-fPIC")


def compiler() -> str | None:
    """Return the path of the C++ compiler, or None if there is none."""
    return shutil.which(os.environ.get("CXX", "c++"))


def folder() -> Path:
    """Return the folder in which compiled code is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "moebench"


def compiled(sources: Sequence[Path], kept_in: Path) -> Path | None:
    """Return the shared library of a source file, compiled before or now; None if it cannot be.

    Args:
        sources: the file, then those that it includes.
    """
    made_by = compiler()
    content = [source.read_bytes() for source in sources]
    content += [" ".join(FLAGS).encode(), platform.machine().encode()]
    made = kept_in / f"replay-{hashlib.sha256(b'|'.join(content)).hexdigest()[:16]}.so"
    if made.exists():
        return made
    if made_by is None:
        return None
    try:
        kept_in.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept_in) as own:
            written = Path(own) / made.name
            command = [made_by, *FLAGS, "-o", str(written), str(sources[0])]
            done = subprocess.run(command, capture_output=True, check=False)
            if done.returncode:
                return None
            written.replace(made)  # at once, as others may compile the same meanwhile
    except OSError:
        return None
    return made


@cache
def library() -> ctypes.CDLL | None:
    """Return the loaded library; None without a compiler, or if it cannot be loaded."""
    made = compiled(SOURCES, folder())
    if made is None:
        return None
    try:
        loaded = ctypes.CDLL(str(made))
    except OSError:  # a damaged file, or one for other libraries of this computer
        return None
    for name in ("size_of_setup", "size_of_batch", "replay_run"):
        getattr(loaded, name).restype = ctypes.c_int64
    loaded.replay_new.restype = loaded.replay_part.restype = ctypes.c_void_p
    return loaded
