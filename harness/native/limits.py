"""Holds a process's memory to a number of bytes: by a control group, else by a resource limit.

A control group counts the page cache that the process fills, so that files that were read before do
not stay in memory for free.  It needs a folder of ``/sys/fs/cgroup`` that can be written (version 1
or 2).  Where there is none, RLIMIT_DATA holds what the process allocates, and not the page cache.

Libraries take memory too, hundreds of megabytes of it.  The limit is on top of what the process has
when its libraries are imported, and holds from when its model is loaded: loading may need more.
"""

import os
import resource
from contextlib import suppress
from pathlib import Path

from moebench.substrate.errors import MoeBenchError

#: How often a control group is asked to shrink.
_TRIES = 5

_ROOT = Path("/sys/fs/cgroup")


class Limit:
    """A limit on one process.

    Args:
        size: bytes beside the libraries.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._group: Path | None = None
        self._pid = 0
        self._libraries = 0

    @property
    def by(self) -> str:
        """``cgroup`` or ``rlimit``."""
        return "rlimit" if self._group is None else "cgroup"

    @property
    def page_cache(self) -> bool:
        """Whether the page cache counts."""
        return self._group is not None

    @property
    def text(self) -> str:
        """In words."""
        kind = (
            "by a control group, its page cache included"
            if self.page_cache
            else "by RLIMIT_DATA, the page cache not included"
        )
        return f"{self._size / 1e6:.4g} MB beside its libraries ({kind})"

    def enclose(self, pid: int, model: Path) -> None:
        """Put a process under it; nothing is limited yet.

        Args:
            model: the file or folder that it will read.  A control group is charged for pages that
                it brings into the page cache, not for those that others brought: they are dropped.
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
                # A file that is not there already is none of a control group's.
                if (group / file).exists():
                    (group / file).write_text(str(1 << 50))  # whether it can be set at all
                    (group / "cgroup.procs").write_text(str(pid))
                    self._group = group
                    return
            except OSError:
                pass
            _remove(group)

    def imported(self) -> None:
        """The libraries are there: what the process has now is not counted."""
        self._libraries = self._used()

    def apply(self) -> None:
        """The model is loaded: from now on it holds.

        Raises:
            MoeBenchError: the process has more already, and it cannot be taken away.
        """
        total = self._libraries + self._size
        for tries_left in reversed(range(_TRIES)):
            try:
                if self._group is None:
                    resource.prlimit(self._pid, resource.RLIMIT_DATA, (total, total))
                else:
                    (self._group / _limit_file(self._group)).write_text(str(total))
                return
            except OSError as error:  # the kernel has not freed enough yet, or cannot
                if not tries_left:
                    held = max(0, self._used() - self._libraries)
                    raise MoeBenchError(
                        f"memory_limit: {self._size / 1e6:.4g} MB beside the libraries is less "
                        f"than the loaded model needs at least: it has {held / 1e6:.4g} MB"
                    ) from error

    def release(self) -> None:
        """Remove the control group; its process has ended."""
        if self._group is not None:
            _remove(self._group)

    def _used(self) -> int:
        """Of a control group, memory and mapped files; else what counts as data."""
        if self._group is not None:
            lines = (self._group / "memory.stat").read_text().splitlines()
            stat = dict(line.split() for line in lines)
            names = ("anon", "file_mapped") if "anon" in stat else ("rss", "mapped_file")
            return sum(int(stat[name]) for name in names)
        status = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        (data,) = (line.split()[1] for line in status if line.startswith("VmData:"))
        return int(data) * 1024


def _groups() -> list[tuple[Path, str]]:
    """Groups that this process is in, below which one may be made, with the file of the limit."""
    found = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                # Where a group holds processes it can hold no limited groups: beside it, then.
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
