"""Runs portions of one checkout's tests, each in a process forked from one that loaded packages.

Importing them takes longer than most portions.  The product and its tests are imported by the
forked process alone, so that each portion reads the checkout's files as they are then.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

#: Loaded once; other packages are imported by the tests that need them.
PACKAGES = (
    "coverage", "hypothesis", "numpy", "pandas", "pydantic", "pytest", "rich", "safetensors.torch",
    "scipy.stats", "torch", "typer", "yaml",
)  # fmt: skip

#: A defect may not fill the computer's memory.
MOST_BYTES = 12 << 30

#: In place of the exit code of a portion that was ended because it took too long.
HANGS = "hangs"


class TestServer:
    """The process of one checkout that forks one process for each portion of tests."""

    __test__ = False  # pytest collects no class of this name

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        environment = os.environ | {
            "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__], cwd=checkout, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip  # -P: this folder has a module of a package's name

    def run(self, arguments: list[str], scratch: Path, limit_s: float) -> tuple[int | str, str]:
        """Run pytest with these arguments; return its exit code or `HANGS`, and what it printed.

        Args:
            scratch: an empty folder for temporary files; ``printed.txt`` is written there.
            limit_s: the portion is ended after so many seconds.
        """
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        assert pipe_in is not None
        assert pipe_out is not None
        request = {"arguments": arguments, "scratch": str(scratch), "limit_s": limit_s}
        print(json.dumps(request), file=pipe_in, flush=True)
        answer = pipe_out.readline()
        if not answer:
            raise SystemExit(f"the process that runs tests of {self.checkout} ended")
        return json.loads(answer), (scratch / "printed.txt").read_text(errors="replace")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _forked(request: dict[str, Any]) -> int | str:
    """Run one portion in a process of its own; return its exit code, or `HANGS`."""
    child = os.fork()
    if child == 0:
        _run(request)
    signal.setitimer(signal.ITIMER_REAL, request["limit_s"])  # a forked process has none
    try:
        _, status = os.waitpid(child, 0)
        code: int | str = os.waitstatus_to_exitcode(status)
    except TimeoutError:
        code = HANGS
    signal.setitimer(signal.ITIMER_REAL, 0)
    _end_group(child)  # and processes that its tests started
    if code == HANGS:
        os.waitpid(child, 0)
    return code


def _too_long(*_: object) -> None:
    raise TimeoutError


def _end_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def _run(request: dict[str, Any]) -> None:
    """Become a process that runs pytest; its output goes to a file.  It does not return."""
    code = 3
    try:
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        os.environ["TMPDIR"] = request["scratch"]
        out = os.open(f"{request['scratch']}/printed.txt", os.O_WRONLY | os.O_CREAT)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for stream, file in ((0, nothing), (1, out), (2, out)):
            os.dup2(file, stream)
        import pytest

        code = int(pytest.main(request["arguments"]))
        sys.stdout.flush()
    finally:
        os._exit(code)


def main() -> None:
    """Answer requests from standard input until it is closed."""
    for package in PACKAGES:
        __import__(package)
    signal.signal(signal.SIGALRM, _too_long)
    for line in sys.stdin:
        print(json.dumps(_forked(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
