"""A sweep that is killed, at any moment and any number of times, ends as one that was not."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from moebench.results.samples import read_samples
from moebench.results.store import Store

ROOT = Path(__file__).parents[3]
KILLS = 20

#: 18 cells of two groups, each some tenths of a second.
CELLS = (
    "--systems", "smoe,moe-ondemand", "--settings", "S3", "--machines", "a6000,h100",
    "--alphas", "0.1,0.2", "--workloads", "arithmetic", "--seeds", "0,1,2", "--prompts", "1",
    "--new-tokens", "3",
)  # fmt: skip
COUNT = 18

#: Sweeps in forks of a process that has imported everything: nothing but the sweep takes time.
#: A limit on a fork's CPU time is a kill at a random instruction, however busy the computer is.
FORKS = """
import os, signal, sys
import moebench.harness.cli.sweep, moebench.harness.run.runner, pyarrow.parquet
from moebench.harness.cli.app import main
from moebench.harness.run.spec import code_hash
code_hash()  # kept by all forks
for line in sys.stdin:
    seconds, *arguments = line.split()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        if float(seconds):  # the signal's default action ends the process as SIGKILL does
            signal.setitimer(signal.ITIMER_PROF, float(seconds))
        os._exit(main(arguments))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forks:
    """Runs `moebench` with a limit of CPU seconds; 0 is no limit."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(self, seconds: float, *arguments: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(seconds, *arguments, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


@pytest.fixture
def forks() -> Iterator[Forks]:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{FORKS}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield Forks(process)


def contents(folder: str) -> dict[str, Any]:
    """What a store holds, cell by cell, but for times of day and wall times."""
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


def test_twenty_kills_change_nothing(forks: Forks) -> None:
    assert forks(0, "sweep", *CELLS, "--jobs", "0", "--store", "whole") == 0
    draw = random.Random(4)
    survivors: set[str] = set()
    codes = []
    for _ in range(KILLS):
        limit = draw.uniform(0.02, 0.8)
        codes.append(forks(limit, "sweep", *CELLS, "--jobs", "0", "--store", "killed"))
        stored = {run["run_id"] for run in Store(Path("killed")).runs()}
        assert survivors <= stored, "a finished cell was lost"
        survivors = stored
    assert codes.count(-signal.SIGPROF) > KILLS / 2, codes
    assert forks(0, "sweep", *CELLS, "--jobs", "0", "--store", "killed") == 0
    undisturbed = contents("whole")
    assert len(undisturbed) == COUNT
    assert contents("killed") == undisturbed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_processes_end_with_the_sweep(forks: Forks, number: signal.Signals, code: int) -> None:
    cells = (*CELLS, "--seeds", "0,1,2")  # more than end while a busy computer wakes this process
    command = [sys.executable, "-m", "moebench", "sweep", *cells, "--jobs", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    sweep = subprocess.Popen(
        [*command, "--store", "killed"], stderr=subprocess.PIPE, text=True, env=environment
    )
    assert sweep.stderr is not None
    first = sweep.stderr.readline()
    assert first.startswith("sweep: "), first
    sweep.send_signal(number)
    _, rest = sweep.communicate(timeout=60)  # the pipe closes with the last of its workers
    assert sweep.returncode == code
    assert "Traceback" not in rest
    stored = {run["run_id"] for run in Store(Path("killed")).runs()}
    assert stored
    assert forks(0, "sweep", *cells, "--jobs", "0", "--store", "killed") == 0
    assert forks(0, "sweep", *cells, "--jobs", "0", "--store", "whole") == 0
    assert contents("killed") == contents("whole")
