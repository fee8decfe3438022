"""DeepSpeed's compiled operators: built once, kept beside the interpreter, never within a run.

It would compile them when they are first needed, for many minutes in which nothing is said.

python -m moebench.systems.native.operators
"""

import os
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from moebench.substrate.errors import MoeBenchError

#: What every run needs, and what one that reads from NVMe needs besides.
ALWAYS = ("deepspeed_shm_comm", "pin_memory")
FROM_NVME = ("async_io",)


def extensions() -> Path:
    """Where they are: the interpreter's own folder, so that another environment has its own."""
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(sys.prefix) / "torch_extensions")


def use() -> None:
    """Have PyTorch find them, and look after them with the same ninja as when they were built.

    It asks ninja at each start whether they are up to date, and another version of ninja (the
    system's, where the first is beside the interpreter) would compile them all again.
    """
    os.environ["TORCH_EXTENSIONS_DIR"] = str(extensions())
    beside, others = str(Path(sys.executable).parent), os.environ.get("PATH", "")
    if others.split(os.pathsep)[0] != beside:
        os.environ["PATH"] = f"{beside}{os.pathsep}{others}"


#: A lock that is younger is that of another process that looks whether there is anything to build.
_LOOKING_S = 60.0


def built(names: Iterable[str]) -> bool:
    """Whether these are compiled."""
    return all((extensions() / name / f"{name}.so").exists() for name in names)


def check(names: Iterable[str]) -> None:
    """Refuse to compile, or to wait for a build that may never end.

    PyTorch's build leaves its lock behind when it is killed, and every later one waits for it.

    Raises:
        MoeBenchError: one is not compiled, or a lock is there.
    """
    for name in names:
        lock = extensions() / name / "lock"
        if lock.exists() and time.time() - lock.stat().st_mtime > _LOOKING_S:
            raise MoeBenchError(
                f"{lock}: DeepSpeed's operators are being built by another process, or one was "
                "killed while it built them: then delete this file"
            )
        if not built([name]):
            headers = "apt-get install libaio-dev; " if name in FROM_NVME else ""
            raise MoeBenchError(
                f"DeepSpeed's operator {name} is not compiled in {extensions()}; type: {headers}"
                "python -m moebench.systems.native.operators"
            )


def build() -> None:
    """Compile what is missing; without libaio's headers, only what needs none.

    Raises:
        MoeBenchError: another process builds them, or was killed while it did.
    """
    use()
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("MAX_JOBS", str(os.cpu_count() or 1))
    for name in (*ALWAYS, *FROM_NVME):
        if (extensions() / name / "lock").exists():
            check([name])
    shared: Any = import_module("deepspeed.ops.op_builder.cpu")
    asynchronous: Any = import_module("deepspeed.ops.op_builder")
    shared.ShareMemCommBuilder().load()
    reader = asynchronous.AsyncIOBuilder()
    if not reader.is_compatible():
        print("no libaio headers: DeepSpeed's NVMe offload is not compiled")
        return
    reader.load()


if __name__ == "__main__":
    try:
        build()
    except MoeBenchError as error:
        sys.exit(str(error))
