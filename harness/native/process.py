"""Starts a third-party package's process, exchanges messages with it, and cleans up after it."""

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from moebench.harness.native.limits import Limit
from moebench.substrate.errors import MoeBenchError
from moebench.systems.native.base import Job

#: Seconds that the process has to end by itself after its input is closed.
_FAREWELL_S = 5.0


class NativeProcess:
    """Process of a third-party package; a context manager that always stops and cleans it up.

    Args:
        name: the native system's name, for errors.
        job: the process's job, whose folder is removed at the end.
        log: the file for the process's output, removed if nothing failed.
        timeout_s: longest time without a message.
        limit: limit on the process's memory; None for no limit.

    Raises MoeBenchError: the process failed, ended, or sent no message for too long.
    """

    def __init__(
        self, name: str, job: Job, log: Path, timeout_s: float, limit: Limit | None
    ) -> None:
        self._name, self._job, self._log = name, job, log
        self._timeout_s, self._limit = timeout_s, limit
        self._pending = b""

    def __enter__(self) -> "NativeProcess":
        _remove_leftovers(Path(self._job.folder))
        Path(self._job.folder).mkdir(parents=True, exist_ok=True)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            # In its own session, the process gets no Ctrl-C, and its children can be killed.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moebench.harness.native.serve"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=environment(self._job.options["threads"]), start_new_session=True,
            )  # fmt: skip
        try:
            if self._limit is not None:
                self._limit.enclose(self._process.pid, Path(self._job.model))
            self.send(asdict(self._job))
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if error is None:
            with suppress(subprocess.TimeoutExpired, OSError):
                self._stdin.close()
                self._process.wait(_FAREWELL_S)
        if not isinstance(error, Exception):  # keep the log of failures only; Ctrl-C is none
            self._log.unlink(missing_ok=True)
        self._stop()

    @property
    def _stdin(self) -> Any:
        assert self._process.stdin is not None
        return self._process.stdin

    def _stop(self) -> None:
        """Kill the process and its children, and remove its folder and memory limit."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                assert stream is not None
                stream.close()
        shutil.rmtree(self._job.folder, ignore_errors=True)
        if self._limit is not None:
            self._limit.release()

    def send(self, order: Mapping[str, Any]) -> None:
        """Send an order to the process as one line of JSON."""
        try:
            self._stdin.write(json.dumps(order).encode() + b"\n")
            self._stdin.flush()
        except OSError:  # the process has ended, and its last message is the reason
            self.receive()

    def receive(self) -> dict[str, Any]:
        """Return the next message of the process, or raise if it failed or ended."""
        line = self._line()
        if line is None:
            raise MoeBenchError(self._ended())
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise MoeBenchError(f"{self._name}: {answer['failed']}; all of it: {self._log}")
        return answer

    def _line(self) -> bytes | None:
        """Return the next line of the process's output, or None at its end."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + self._timeout_s
        descriptor = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise MoeBenchError(
                        f"{self._name}: stopped, it said nothing for {self._timeout_s:g} s; allow "
                        f"more with --set timeout_s=SECONDS; what it printed: {self._log}"
                    )
                read = os.read(descriptor, 1 << 16)
                if not read:
                    return None
                self._pending += read
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _ended(self) -> str:
        """Return one line on how the process ended without an error message."""
        code = self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        if code == -signal.SIGKILL and self._limit is not None:
            how = f"was killed: it needs more memory than {self._limit.text}"
        printed = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = f" ({printed[-1].strip()})" if printed else ""
        return f"{self._name}: its process {how}{last}; all of it: {self._log}"


def _remove_leftovers(folder: Path) -> None:
    """Remove folders ``name-PID`` of earlier runs that were killed before they could do so."""
    name = folder.name.rpartition("-")[0]
    for other in folder.parent.glob(f"{name}-*[0-9]"):
        alive = Path("/proc", other.name.rpartition("-")[2]).exists()
        if Path("/proc/self").exists() and not alive and other.is_dir():
            shutil.rmtree(other, ignore_errors=True)


def environment(threads: int) -> dict[str, str]:
    """Return a package process's environment: offline, CPU only, ``threads`` OpenMP threads."""
    root = str(Path(__file__).parents[3])
    inherited = os.environ.get("PYTHONPATH")
    return os.environ | {
        "PYTHONPATH": root if not inherited else f"{root}{os.pathsep}{inherited}",
        "PYTHONSAFEPATH": "1",  # a file in the current folder must not hide a package
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cpu",
    }
