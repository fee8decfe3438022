"""Compiles DeepSpeed's operators once and stores them next to the interpreter.

DeepSpeed compiles them when they are first needed, for many minutes without any output; here no run
compiles them.

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

#: Operators that every run needs, and those that reads from NVMe need too.
ALWAYS = ("deepspeed_shm_comm", "pin_memory")
FROM_NVME = ("async_io",)


def extensions() -> Path:
    """Return the folder of compiled operators, one for each Python environment."""
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(sys.prefix) / "torch_extensions")


def use() -> None:
    """Make PyTorch use the compiled operators, and the same ninja that built them.

    PyTorch runs ninja at each start to check whether they are current, and another ninja version
    (the system's, where the first is next to the interpreter) would compile them all again.
    """
    os.environ["TORCH_EXTENSIONS_DIR"] = str(extensions())
    beside, others = str(Path(sys.executable).parent), os.environ.get("PATH", "")
    if others.split(os.pathsep)[0] != beside:
        os.environ["PATH"] = f"{beside}{os.pathsep}{others}"


#: A younger lock belongs to a process that only checks whether there is anything to build.
_LOOKING_S = 60.0


def built(names: Iterable[str]) -> bool:
    """Return whether these operators are compiled."""
    return all((extensions() / name / f"{name}.so").exists() for name in names)


def check(names: Iterable[str]) -> None:
    """Raise `MoeBenchError` if an operator is not compiled, or a build's lock exists.

    PyTorch's build leaves its lock behind when it is killed, and every later build waits for it.
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
    """Compile missing operators; without libaio's headers, only those that do not need them."""
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
