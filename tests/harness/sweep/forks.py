"""Sweeps in forks of a process that has executed a run, so that only the sweep takes time.

Forks are killed at an instant of their own CPU time, meet a full disk or a clock that jumps
(`faults.c`), or run several at once.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from moebench.results.samples import read_samples
from moebench.results.store import Store

ROOT = Path(__file__).parents[3]

#: How many points of each fault are tried; `make faults` asks for a hundred.
POINTS = int(os.environ.get("MOEBENCH_FAULTS", "10"))

#: 12 cells of two groups.
CELLS = (
    "--systems", "smoe,moe-ondemand", "--settings", "S3", "--machines", "a6000,h100",
    "--alphas", "0.1,0.2", "--workloads", "arithmetic", "--seeds", "0,1", "--prompts", "1",
    "--new-tokens", "3",
)  # fmt: skip
COUNT = 12

#: A limit on a fork's CPU time is a kill at a random instruction, however busy the computer is.
PROGRAM = """
import contextlib, ctypes, io, json, os, signal, sys, tempfile
from moebench.harness.cli.app import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    with tempfile.TemporaryDirectory() as store:
        main(["sweep", *sys.argv[1:], "--jobs", "0", "--store", store])
faults = ctypes.CDLL(None)
for line in sys.stdin:
    asked = json.loads(line)
    children = []
    for number in range(asked["at_once"]):
        child = os.fork()
        if not child:
            os.chdir(asked["folder"])
            said = os.open(f"said-{number}.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(said, 2)
            if asked["cpu_s"]:  # the signal's default action ends the process as SIGKILL does
                signal.setitimer(signal.ITIMER_PROF, asked["cpu_s"])
            if asked["full_at"] is not None:
                faults.faults_arm(asked["store"].encode(), asked["full_at"])
            if asked["clock_s"]:
                faults.faults_clock(asked["clock_s"])
            code = main(asked["arguments"])
            if asked["full_at"] is not None:
                calls = faults.faults_calls()
                faults.faults_arm(b"", -1)
                with open("calls.txt", "w") as file:
                    print(calls, file=file)
            os._exit(code)
        children.append(child)
    ends = [os.wait4(child, 0)[1:] for child in children]
    codes = [os.waitstatus_to_exitcode(status) for status, _ in ends]
    print(json.dumps([codes, sum(used.ru_utime + used.ru_stime for _, used in ends)]), flush=True)
"""


class Ended(NamedTuple):
    """Result of a fork; of several forks, the first with a nonzero exit code."""

    code: int
    cpu_s: float
    said: str


class Forks:
    """Runs `moebench` in forks of a process that has imported everything."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(
        self,
        *arguments: str,
        cpu_s: float = 0.0,
        full_at: int | None = None,
        clock_s: int = 0,
        at_once: int = 1,
    ) -> Ended:
        """Run one command in a fork.

        Args:
            cpu_s: kill it after so much CPU time; 0 does not.
            full_at: the disk is full from this call on that changes a file of the store
                (``--store``, the last argument); 0 counts these calls, see `calls`.
            clock_s: each reading of the time of day is off by up to so many seconds.
            at_once: run it so many times, at once.
        """
        asked = {
            "folder": str(Path.cwd()), "arguments": list(arguments), "cpu_s": cpu_s,
            "full_at": full_at, "store": str(Path.cwd() / arguments[-1]), "clock_s": clock_s,
            "at_once": at_once,
        }  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        codes, used_s = json.loads(self._process.stdout.readline())
        said = "".join(Path(f"said-{n}.txt").read_text() for n in range(at_once))
        return Ended(next((code for code in codes if code), 0), used_s, said)


def calls() -> int:
    """Return how many calls of the last fork with ``full_at`` changed a file of its store."""
    return int(Path("calls.txt").read_text())


@contextmanager
def ready_to_fork(preload: Path | None = None) -> Iterator[Forks]:
    """Start a process that has executed a run; ``preload`` is the library of `faults.c`."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{PROGRAM}"
    command = [sys.executable, "-c", program, *CELLS, "--seeds", "0"]
    environment = os.environ | ({} if preload is None else {"LD_PRELOAD": str(preload)})
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env=environment
    ) as process:  # fmt: skip
        yield Forks(process)


def compiled(folder: Path) -> Path | None:
    """Return the compiled library of `faults.c`, or None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        return None
    library = folder / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True
    )
    return library


def say(fault: str, points: int, outcome: str) -> None:
    """Print a row of the fault table, which `make faults` shows."""
    print(f"\n| {fault} | {points} | {outcome} |")


def contents(folder: str) -> dict[str, Any]:
    """Return a store's content by cell, without times of day and wall times."""
    store = Store(Path(folder))
    with closing(sqlite3.connect(store.path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    runs = {run["run_id"]: run for run in store.runs()}
    found: dict[str, Any] = {}
    for cell in store.cells():
        run = runs.pop(cell.run_id) if cell.run_id else None
        if run is not None:
            for key in ("created", "wall_s"):
                run["provenance"].pop(key)
        samples = read_samples(store.directory, cell.run_id) if cell.run_id else None
        found[cell.cell_id] = (cell._replace(updated=""), run, samples)
    assert not runs, "a run without a cell"
    return found


def strangers(folder: str) -> list[str]:
    """Return files of a store's folder that are half-written or belong to no run."""
    store = Store(Path(folder))
    known = {f"samples/{run['run_id']}.parquet" for run in store.runs()}
    known |= {cell.traceback for cell in store.cells("failed") if cell.traceback}
    known |= {"runs.sqlite", "runs.sqlite-wal", "runs.sqlite-shm"}
    files = (path for path in store.directory.rglob("*") if path.is_file())
    return sorted({str(path.relative_to(store.directory)) for path in files} - known)
