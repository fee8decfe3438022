"""Limits a process's memory to a number of bytes, by a control group or else a resource limit.

A control group also counts the page cache that the process fills, so that files read earlier do not
stay in memory for free.  It needs a writable folder of ``/sys/fs/cgroup`` (version 1 or 2); without
one, RLIMIT_DATA limits the process's allocations, but not the page cache.

Libraries need hundreds of megabytes themselves.  The limit is added to the process's memory after
the import of its libraries, and applies once its model is loaded, since loading may need more.
"""

import os
import resource
from contextlib import suppress
from pathlib import Path

from moebench.substrate.errors import MoeBenchError

#: Attempts at setting the limit of a control group that holds more memory.
_TRIES = 5

_ROOT = Path("/sys/fs/cgroup")


class Limit:
    """A memory limit on one process.

    Args:
        size: bytes in addition to the libraries.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._group: Path | None = None
        self._pid = 0
        self._libraries = 0

    @property
    def by(self) -> str:
        """The mechanism of the limit: ``cgroup`` or ``rlimit``."""
        return "rlimit" if self._group is None else "cgroup"

    @property
    def page_cache(self) -> bool:
        """Whether the limit includes the page cache."""
        return self._group is not None

    @property
    def text(self) -> str:
        """The limit's size and mechanism in words."""
        kind = (
            "by a control group, its page cache included"
            if self.page_cache
            else "by RLIMIT_DATA, the page cache not included"
        )
        return f"{self._size / 1e6:.4g} MB beside its libraries ({kind})"

    def enclose(self, pid: int, model: Path) -> None:
        """Put a process into a new control group if possible; no limit applies yet.

        Args:
            model: the file or folder that the process will read.  Its cached pages are dropped, as
                a control group counts only pages that its own processes read into the page cache.
        """
        for path in (model, *model.rglob("*")):
            if path.is_file():
                _drop_from_page_cache(path)
        self._pid = pid
        for parent, file in _groups():
            group = parent / f"moebench-{pid}"
            try:
                group.mkdir()
            except OSError:
                continue
            try:
                # Only a control group with a memory limit has this file.
                if (group / file).exists():
                    (group / file).write_text(str(1 << 50))  # fails if limits cannot be set
                    (group / "cgroup.procs").write_text(str(pid))
                    self._group = group
                    return
            except OSError:
                pass
            _remove(group)

    def imported(self) -> None:
        """Called when the libraries are imported: exclude the memory in use from the limit."""
        self._libraries = self._used()

    def apply(self) -> None:
        """Apply the limit, when the model is loaded.

        Raises MoeBenchError: the process holds more memory, which the kernel cannot reclaim.
        """
        total = self._libraries + self._size
        for tries_left in reversed(range(_TRIES)):
            try:
                if self._group is None:
                    resource.prlimit(self._pid, resource.RLIMIT_DATA, (total, total))
                else:
                    (self._group / _limit_file(self._group)).write_text(str(total))
                return
            except OSError as error:  # the kernel has not reclaimed enough memory
                if not tries_left:
                    held = max(0, self._used() - self._libraries)
                    raise MoeBenchError(
                        f"memory_limit: {self._size / 1e6:.4g} MB beside the libraries is less "
                        f"than the loaded model needs at least: it has {held / 1e6:.4g} MB"
                    ) from error

    def release(self) -> None:
        """Remove the control group after its process has ended."""
        if self._group is not None:
            _remove(self._group)

    def _used(self) -> int:
        """Return the process's bytes: anonymous and mapped pages, or VmData without a group."""
        if self._group is not None:
            lines = (self._group / "memory.stat").read_text().splitlines()
            stat = dict(line.split() for line in lines)
            names = ("anon", "file_mapped") if "anon" in stat else ("rss", "mapped_file")
            return sum(int(stat[name]) for name in names)
        status = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        (data,) = (line.split()[1] for line in status if line.startswith("VmData:"))
        return int(data) * 1024


def _groups() -> list[tuple[Path, str]]:
    """Return writable control groups of this process, each with its memory limit's file name."""
    found = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                # A group with processes cannot contain limited groups, so try its parent, too.
                for own in (_ROOT / path.lstrip("/"), (_ROOT / path.lstrip("/")).parent):
                    if own.is_relative_to(_ROOT):
                        found.append((own, "memory.max"))
            elif "memory" in controllers.split(","):
                found.append((_ROOT / "memory" / path.lstrip("/"), "memory.limit_in_bytes"))
    return [(parent, file) for parent, file in found if os.access(parent, os.W_OK)]


def _drop_from_page_cache(file: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _limit_file(group: Path) -> str:
    return next(f for f in ("memory.max", "memory.limit_in_bytes") if (group / f).exists())


def _remove(group: Path) -> None:
    with suppress(OSError):
        group.rmdir()
