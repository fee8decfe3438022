"""Main program of a third-party package's process: reads orders, runs it, streams its tokens.

    python -m moebench.harness.native.serve

    stdin                                           stdout
    ─────                                           ──────
    a `Job`                                         {"imported": versions}, before reading weights
                                                    {"loaded": facts, "load_ns": t, "usage": ...}
    {"prompts", "new_tokens", "end"}, a batch       {"started": t}, then for each step
                                                    {"tokens": one per sequence, "ns": t}
                                                    {"done": usage}

Times are read from the monotonic clock in this process when each token arrives.  Output that a
package prints is redirected to stderr.  Every error is reported as ``{"failed": one line}``, with a
traceback on stderr.
"""

import ctypes
import gc
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from moebench.substrate.errors import MoeBenchError
from moebench.systems.native.base import Job, Runner

#: Counters in files of ``/proc/PID``: bytes read from the disk, bytes requested by ``read``, and
#: peak memory since the program started (``ru_maxrss`` also counts the parent's before ``exec``).
_PROC = {
    "io": {"read_bytes": "read_bytes", "rchar": "asked_bytes"},
    "status": {"VmHWM": "peak_rss_bytes"},
}


def usage() -> dict[str, int]:
    """Return this process's page faults, switches, bytes read and peak memory, where available."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    found = {"major_faults": own.ru_majflt, "minor_faults": own.ru_minflt}
    found["involuntary_switches"] = own.ru_nivcsw
    for file, names in _PROC.items():
        with suppress(OSError):
            for line in Path(f"/proc/self/{file}").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in names:
                    number, *unit = value.split()
                    found[names[name]] = int(number) * (1024 if unit == ["kB"] else 1)
    return found


def main() -> None:
    """Run one job from stdin, and exit with 1 if it fails."""
    _die_with_parent()
    # Packages print to stdout, so redirect it to stderr and keep the original for answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**what: Any) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    try:
        _serve(_orders(sys.stdin), say)
    except Exception as error:  # a package may raise any exception
        traceback.print_exc()
        say(failed=_one_line(error))
        answers.close()
        # Exit at once, since threads of a package could keep the process alive.
        os._exit(1)
    os._exit(0)


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    if isinstance(error, MoeBenchError):
        return lines[0]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def _orders(stream: IO[str]) -> Iterator[dict[str, Any]]:
    for line in stream:
        yield json.loads(line)


def _serve(orders: Iterator[dict[str, Any]], say: Any) -> None:
    job = Job(**next(orders))
    for library in job.libraries:
        import_module(library)
    say(imported={name: _version(name) for name in job.libraries})
    if "torch" in job.libraries:
        torch: Any = import_module("torch")
        torch.set_num_threads(job.options["threads"])
    begun = time.monotonic_ns()
    runner: Runner = import_module(job.adapter).runner(job)
    _settle(Path(job.folder))
    say(loaded=list(runner.facts), load_ns=time.monotonic_ns() - begun, usage=usage())

    def put(tokens: Sequence[int]) -> None:
        say(ns=time.monotonic_ns(), tokens=list(tokens))

    for order in orders:
        say(started=time.monotonic_ns())
        runner.generate(order["prompts"], order["new_tokens"], order["end"], put)
        say(done=usage())


def _settle(folder: Path) -> None:
    """Free memory that only loading needed, so that the memory limit can be applied."""
    gc.collect()
    with suppress(AttributeError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
    for file in folder.rglob("*"):  # only pages written to disk can leave the page cache
        if file.is_file():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())


def _version(module: str) -> str | None:
    with suppress(Exception):  # the module's name may differ from its package's
        return version(module)
    found: str | None = getattr(sys.modules[module], "__version__", None)
    return found


def _die_with_parent() -> None:
    """On Linux, let the kernel kill this process when its parent process ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    main()
