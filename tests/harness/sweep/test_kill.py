"""A sweep that is killed, at any moment and any number of times, ends as one that was not."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from moebench.results.samples import read_samples
from moebench.results.store import Store

pytestmark = pytest.mark.usefixtures("tiny_models")

ROOT = Path(__file__).parents[3]
KILLS = 20

#: 12 cells of two groups.
CELLS = (
    "--systems", "smoe,moe-ondemand", "--settings", "S3", "--machines", "a6000,h100",
    "--alphas", "0.1,0.2", "--workloads", "arithmetic", "--seeds", "0,1", "--prompts", "1",
    "--new-tokens", "3",
)  # fmt: skip
COUNT = 12

#: Sweeps in forks of a process that has carried out a run: nothing but the sweep takes time.
#: A limit on a fork's CPU time is a kill at a random instruction, however busy the computer is.
FORKS = """
import contextlib, io, os, signal, sys, tempfile
from moebench.harness.cli.app import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    with tempfile.TemporaryDirectory() as store:
        main(["sweep", *sys.argv[1:], "--jobs", "0", "--store", store])
for line in sys.stdin:
    folder, seconds, *arguments = line.split()
    child = os.fork()
    if not child:
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        if float(seconds):  # the signal's default action ends the process as SIGKILL does
            signal.setitimer(signal.ITIMER_PROF, float(seconds))
        os._exit(main(arguments))
    _, status, used = os.wait4(child, 0)
    print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, flush=True)
"""


class Ended(NamedTuple):
    """How a fork ended."""

    code: int
    cpu_s: float


class Forks:
    """Runs `moebench` with a limit of CPU seconds; 0 is no limit."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(self, seconds: float, *arguments: str) -> Ended:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(Path.cwd(), seconds, *arguments, file=self._process.stdin, flush=True)
        code, cpu_s = self._process.stdout.readline().split()
        return Ended(int(code), float(cpu_s))


@pytest.fixture(scope="module")
def forks(tiny_models: None) -> Iterator[Forks]:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{FORKS}"
    command = [sys.executable, "-c", program, *CELLS, "--seeds", "0"]
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
    sweep = ("sweep", *CELLS, "--jobs", "0", "--store")
    # Of two runs the shorter: on a busy computer one may take twice its time.
    whole = min((forks(0, *sweep, store) for store in ("whole", "again")), key=itemgetter(1))
    known = min((forks(0, *sweep, "whole") for _ in range(2)), key=itemgetter(1))
    assert (whole.code, known.code) == (0, 0)
    cells = whole.cpu_s - known.cpu_s
    undisturbed = contents("whole")
    assert len(undisturbed) == COUNT
    draw = random.Random(4)
    survivors: set[str] = set()
    codes, counts = [], []
    reach, store = 0.2, "killed"
    for number in range(KILLS):
        # From before the first cell until after several.
        limit = draw.uniform(0.7 * known.cpu_s, known.cpu_s + reach * cells)
        codes.append(forks(limit, *sweep, store).code)
        stored = {run["run_id"] for run in Store(Path(store)).runs()}
        assert survivors <= stored, "a finished cell was lost"
        survivors = stored
        counts.append(len(stored))
        if not stored:  # the first cell takes longest
            reach += 0.05
        if len(stored) == COUNT:  # nothing is left to kill: begin again
            assert contents(store) == undisturbed
            survivors, store = set(), f"killed-{number}"
    assert codes.count(-signal.SIGPROF) > KILLS / 2, codes
    assert any(0 < count < COUNT for count in counts), "no kill between two cells"
    assert forks(0, *sweep, store).code == 0
    assert contents(store) == undisturbed


#: A system whose runs do not end while there is a pipe of the name "gate" that nobody opens.
HELD = """
from pathlib import Path
from moebench.systems.baselines import MoEOnDemand

class Held(MoEOnDemand):
    def begin_sequences(self, prompts):
        if Path("gate").exists():
            Path("gate").read_bytes()
        super().begin_sequences(prompts)
"""


def open_gate() -> None:
    """Whoever waits at the gate goes on, and nobody will wait again."""
    end = os.open("gate", os.O_RDWR)
    Path("gate").unlink()
    os.close(end)


def hears_ctrl_c() -> None:
    """A child of a shell's background job inherits that Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_processes_end_with_the_sweep(forks: Forks, number: signal.Signals, code: int) -> None:
    Path("held.py").write_text(HELD)
    os.mkfifo("gate")
    sweep = (
        "sweep", "--systems", "moe-ondemand,smoe,held:Held", "--settings", "S3", "--workloads",
        "arithmetic", "--seeds", "0,1", "--prompts", "1", "--new-tokens", "3", "--store",
    )  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(
        [sys.executable, "-m", "moebench", *sweep, "killed", "--jobs", "2"],
        stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=hears_ctrl_c,
    )  # fmt: skip
    assert running.stderr is not None
    first = running.stderr.readline()
    assert first.startswith("sweep: "), first
    running.send_signal(number)
    open_gate()
    _, rest = running.communicate(timeout=60)  # the pipe closes with the last of its workers
    assert running.returncode == code
    assert "Traceback" not in rest
    stored = {run["run_id"] for run in Store(Path("killed")).runs()}
    assert stored
    assert forks(0, *sweep, "killed", "--jobs", "0").code == 0
    assert forks(0, *sweep, "whole", "--jobs", "0").code == 0
    assert len(contents("whole")) == 6
    assert contents("killed") == contents("whole")
