"""Limits of a process's memory, in control groups that are plain folders."""

import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.native import limits
from moebench.harness.native.limits import Limit
from moebench.substrate.errors import MoeBenchError

MB = 10**6
#: Files of a group of each version, as the kernel makes them with its folder.
FILES = {
    2: {
        "memory.max": "max",
        "cgroup.procs": "",
        "memory.stat": "anon 7000000\nfile_mapped 2000000\nfile 900\n",
    },
    1: {
        "memory.limit_in_bytes": "9",
        "cgroup.procs": "",
        "memory.stat": "cache 5\nrss 3000000\nmapped_file 1000000\n",
    },
}


class Kernel:
    """Folders below ``root`` are control groups, and files of ``/proc`` say what a test says."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.version, self.proc = root, 2, dict[str, str]()
        self.refused: set[Path] = set()
        read, make = Path.read_text, Path.mkdir

        def mkdir(path: Path, *given: Any, **more: Any) -> None:
            if path.parent in self.refused:
                raise PermissionError(path)
            make(path, *given, **more)
            for name, text in FILES[self.version].items() if path.name[:8] == "moebench" else ():
                (path / name).write_text(text)

        def read_text(path: Path, *given: Any, **more: Any) -> str:
            if str(path).startswith("/proc"):
                if str(path) not in self.proc:
                    raise FileNotFoundError(path)
                return self.proc[str(path)]
            return read(path, *given, **more)

        patch.setattr(limits, "_ROOT", root)
        patch.setattr(Path, "mkdir", mkdir)
        patch.setattr(Path, "read_text", read_text)
        patch.setattr(Path, "rmdir", shutil.rmtree)

    def group_of(self, line: str, folder: str) -> Path:
        """Put this process into a group."""
        self.proc["/proc/self/cgroup"] = f"{line}\n"
        os.makedirs(self.root / folder)
        return self.root / folder


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path / "groups", monkeypatch)


def enclosed(size: int, model: Path = Path("none")) -> Limit:
    limit = Limit(size)
    limit.enclose(77, model)
    return limit


def test_a_group_holds_the_process_and_limits_it_beside_its_libraries(kernel: Kernel) -> None:
    group = kernel.group_of("0::/user/session", "user/session") / "moebench-77"
    limit = enclosed(5 * MB)
    assert (limit.by, limit.page_cache) == ("cgroup", True)
    assert limit.text == ("5 MB beside its libraries (by a control group, its page cache included)")
    assert (group / "cgroup.procs").read_text() == "77"
    assert (group / "memory.max").read_text() == str(2**50)
    limit.imported()
    (group / "memory.stat").write_text("anon 90000000\nfile_mapped 0\n")  # the model is loaded
    limit.apply()
    assert (group / "memory.max").read_text() == str(9 * MB + 5 * MB)
    limit.release()
    assert not group.exists()
    assert group.parent.exists()


def test_groups_of_the_first_version_have_other_names(kernel: Kernel) -> None:
    kernel.version = 1
    lines = "7:cpuset:/other\n5:cpu,memory:/docker/x"
    group = kernel.group_of(lines, "memory/docker/x") / "moebench-77"
    limit = enclosed(MB)
    assert limit.by == "cgroup"
    limit.imported()
    limit.apply()
    assert (group / "memory.limit_in_bytes").read_text() == str(4 * MB + MB)


@pytest.mark.parametrize(
    "fails", ["no folder can be made", "no limit can be set", "it cannot be entered"]
)
def test_where_a_group_cannot_hold_the_process_its_parent_does(
    kernel: Kernel, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = kernel.group_of("0::/user/session", "user/session")
    write = Path.write_text

    def write_text(path: Path, text: str, *more: Any) -> int:
        refused = {"no limit can be set": str(2**50), "it cannot be entered": "77"}.get(fails)
        if path.is_relative_to(own) and text == refused:
            raise OSError(16, "busy")
        return write(path, text, *more)

    if fails.startswith("no folder"):
        kernel.refused.add(own)
    monkeypatch.setattr(Path, "write_text", write_text)
    limit = enclosed(MB)
    assert (own.parent / "moebench-77" / "cgroup.procs").read_text() == "77"
    assert not (own / "moebench-77").exists()
    limit.release()
    assert [path.name for path in own.parent.iterdir()] == ["session"]


@pytest.mark.parametrize("why", ["none", "read-only", "without limits", "outside"])
def test_without_a_group_the_process_has_a_resource_limit(
    kernel: Kernel, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why != "none":
        kernel.group_of("0::/" if why == "outside" else "0::/user", "user")
    if why == "read-only":
        monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    if why == "without limits":
        monkeypatch.setitem(FILES, 2, {"cgroup.procs": ""})
    if why == "outside":  # the root's parent is no group
        kernel.refused |= {kernel.root}
    limit = enclosed(3 * MB)
    assert (limit.by, limit.page_cache) == ("rlimit", False)
    assert limit.text == "3 MB beside its libraries (by RLIMIT_DATA, the page cache not included)"
    assert not [*kernel.root.parent.rglob("moebench-*")]
    kernel.proc["/proc/77/status"] = "Name:\tx\nVmRSS:\t9 kB\nVmData:\t   2000 kB\n"
    limit.imported()
    asked: list[Any] = []
    monkeypatch.setattr("resource.prlimit", lambda *given: asked.append(given))
    limit.apply()
    total = 2000 * 1024 + 3 * MB
    assert asked == [(77, resource.RLIMIT_DATA, (total, total))]
    limit.release()


@pytest.mark.parametrize("failing", [4, 5])
def test_a_limit_is_tried_five_times_while_the_kernel_makes_room(
    kernel: Kernel, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = enclosed(3 * MB)
    kernel.proc["/proc/77/status"] = "VmData: 1000 kB\n"
    limit.imported()
    kernel.proc["/proc/77/status"] = "VmData: 6000 kB\n"
    tries: list[int] = []

    def prlimit(*given: Any) -> None:
        tries.append(1)
        if len(tries) <= failing:
            raise OSError(22, "too little")

    monkeypatch.setattr("resource.prlimit", prlimit)
    if failing < 5:
        limit.apply()
    else:
        with pytest.raises(MoeBenchError) as caught:
            limit.apply()
        assert str(caught.value) == (
            "memory_limit: 3 MB beside the libraries is less than the loaded model needs at least: "
            "it has 5.12 MB"
        )
    assert len(tries) == 5


def test_the_model_leaves_the_page_cache_before(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group counts what its own processes read into it."""
    folder = tmp_path / "model"
    os.makedirs(folder / "deeper")
    files = [folder / "a.bin", folder / "deeper" / "b.bin"]
    for file in files:
        file.write_bytes(b"x")
    dropped: list[tuple[str, Any]] = []

    def fadvise(descriptor: int, first: int, length: int, advice: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        dropped.append((name, (first, length, advice)))

    monkeypatch.setattr("os.posix_fadvise", fadvise)
    enclosed(MB, folder)
    enclosed(MB, files[0])
    whole = (0, 0, os.POSIX_FADV_DONTNEED)
    assert sorted(dropped) == sorted((str(file), whole) for file in [*files, files[0]])
    assert not [n for n in os.listdir("/proc/self/fd") if _is_open(n, folder)]


def _is_open(descriptor: str, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder))
    except OSError:
        return False
