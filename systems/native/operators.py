"""DeepSpeed's compiled operators: built once, kept beside the interpreter.

python -m moebench.systems.native.operators
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from moebench.substrate.errors import MoeBenchError

#: What a run in one process needs, and what reads from NVMe.
BUILDERS = ("deepspeed_shm_comm", "async_io")


def extensions() -> Path:
    """Where they are: the interpreter's own folder, so that another environment has its own."""
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(sys.prefix) / "torch_extensions")


def check_locks() -> None:
    """Refuse to wait for a build that may never end.

    PyTorch's build leaves its lock behind when it is killed, and every later one waits for it.

    Raises:
        MoeBenchError: a lock is there.
    """
    for name in BUILDERS:
        lock = extensions() / name / "lock"
        if lock.exists():
            raise MoeBenchError(
                f"{lock}: DeepSpeed's operators are being built by another process, or one was "
                "killed while it built them: then delete this file"
            )


def build() -> None:
    """Compile what is missing.

    Raises:
        MoeBenchError: libaio's headers are missing.
    """
    os.environ["TORCH_EXTENSIONS_DIR"] = str(extensions())
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # The build calls ninja, which pip puts beside the interpreter.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    check_locks()
    shared: Any = import_module("deepspeed.ops.op_builder.cpu")
    asynchronous: Any = import_module("deepspeed.ops.op_builder")
    shared.ShareMemCommBuilder().load()
    reader = asynchronous.AsyncIOBuilder()
    if not reader.is_compatible():
        raise MoeBenchError(
            "DeepSpeed's NVMe offload needs libaio's headers; type: apt-get install libaio-dev"
        )
    reader.load()


if __name__ == "__main__":
    try:
        build()
    except MoeBenchError as error:
        sys.exit(str(error))
