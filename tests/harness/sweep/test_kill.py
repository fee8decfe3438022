"""A sweep that is killed at random moments, repeatedly, ends as an undisturbed one."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import pytest

from moebench.results import garbage
from moebench.results.store import Store
from moebench.substrate.models import catalogue
from moebench.substrate.models.imported import Imported
from tests.harness.sweep.forks import (
    CELLS,
    COUNT,
    POINTS,
    ROOT,
    Forks,
    contents,
    ready_to_fork,
    say,
    strangers,
)

#: The first cells take longest: half as many kills would seldom hit between two cells.
KILLS = 2 * POINTS

pytestmark = pytest.mark.usefixtures("tiny_models")


@pytest.fixture(scope="module")
def forks(tiny_models: None) -> Iterator[Forks]:
    with ready_to_fork() as forks:
        yield forks


@pytest.mark.slow
def test_kills_at_random_points_change_nothing(forks: Forks) -> None:
    sweep = ("sweep", *CELLS, "--jobs", "0", "--store")
    # Use the shorter of two runs: on a busy computer one may take twice as long.
    whole = min((forks(*sweep, store) for store in ("whole", "again")), key=itemgetter(1))
    known = min((forks(*sweep, "whole") for _ in range(2)), key=itemgetter(1))
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
        codes.append(forks(*sweep, store, cpu_s=limit).code)
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
    assert forks(*sweep, store).code == 0
    assert contents(store) == undisturbed
    assert_removable(store)
    say("sweep killed at random points", len(codes), "store equal to an undisturbed one")


def assert_removable(store: str) -> None:
    """Check that `gc` recognises a file that was in part written when the process was killed."""
    later = time.time() + 2 * garbage.RECENT_S
    removable = {found.path for found in garbage.find(Store(Path(store)), later).garbage}
    assert {Path(store) / name for name in strangers(store)} <= removable


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
    """Release all processes that wait at the gate, now and later."""
    end = os.open("gate", os.O_RDWR)
    Path("gate").unlink()
    os.close(end)


def hears_ctrl_c() -> None:
    """Handle Ctrl-C again, which children of a shell's background job ignore by inheritance."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, -15), (signal.SIGINT, 130)]
)
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
    # On a slow computer, progress before the first cell may be printed, too.
    assert any(line.startswith("sweep: ") for line in iter(running.stderr.readline, ""))
    running.send_signal(number)
    if sys.platform != "linux":  # elsewhere a worker ends with its cell
        open_gate()
    _, rest = running.communicate(timeout=60)  # the pipe closes with the last of its workers
    Path("gate").unlink(missing_ok=True)
    assert running.returncode == code
    assert "Traceback" not in rest
    stored = {run["run_id"] for run in Store(Path("killed")).runs()}
    assert stored
    assert forks(*sweep, "killed", "--jobs", "0").code == 0
    assert forks(*sweep, "whole", "--jobs", "0").code == 0
    assert len(contents("whole")) == 6
    assert contents("killed") == contents("whole")


def killed(forks: Forks, whole_s: float, least: float, place: Path, *command: str) -> int:
    """Run a command until it was killed at several random points; return how many.

    Args:
        whole_s: CPU time of the undisturbed command. A busy processor counts more time for the
            same work: a run that ends before its kill lowers it, and what it wrote is removed.
        least: the earliest kill, as a share of ``whole_s``.
        place: file or folder that the command writes.
    """
    draw = random.Random(7)
    kills, wanted = 0, max(3, POINTS // 3)
    for _ in range(10 * wanted):
        limit = whole_s * draw.uniform(least, 0.9)
        code = forks(*command, cpu_s=limit).code
        if code == 0:
            whole_s = limit
            remove(place)
            continue
        assert code == -signal.SIGPROF
        kills += 1
        if kills == wanted:
            return kills
    raise AssertionError(f"{kills} of {wanted} kills before the end of the command")


def remove(place: Path) -> None:
    """Delete a file or a folder, where it is there."""
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def test_a_killed_import_goes_on_and_is_whole(forks: Forks) -> None:
    source = str(catalogue.scale_path("qwen2-57b-a14b"))
    whole = forks("models", "import", source, "--out", "whole")
    assert whole.code == 0
    command = ("models", "import", source, "--out", "killed")
    kills = killed(forks, whole.cpu_s, 0.2, Path("killed"), *command)
    assert forks(*command).code == 0
    Imported(Path("killed")).verify()
    assert {file.name: file.read_bytes() for file in Path("killed").iterdir()} == {
        file.name: file.read_bytes() for file in Path("whole").iterdir()
    }
    say("import killed at random points", kills, "files equal to an undisturbed one's")


@pytest.mark.slow
def test_a_killed_report_leaves_whole_files_or_none(forks: Forks) -> None:
    assert forks("sweep", *CELLS, "--jobs", "0", "--store", "store").code == 0
    before = Path("store/runs.sqlite").read_bytes()
    for option, out in (("--html", "page.html"), ("--csv", "tables"), ("--latex", "tables")):
        whole = forks("report", option, f"whole-{out}", "--store", "store")
        assert whole.code == 0
        command = ("report", option, out, "--store", "store")
        kills = killed(forks, whole.cpu_s, 0.3, Path(out), *command)
        expected, place = Path(f"whole-{out}"), Path(out)
        pairs = [(place, expected)] if expected.is_file() else [
            (place / file.name, file) for file in expected.iterdir()
        ]  # fmt: skip
        for found, right in pairs:
            if found.exists():
                assert found.stat().st_size == pytest.approx(right.stat().st_size, abs=200)
                assert found.read_bytes()[-100:] == right.read_bytes()[-100:]
        say(f"report {option} killed at random points", kills, "whole files or none")
    assert Path("store/runs.sqlite").read_bytes() == before


@pytest.mark.slow
def test_a_killed_evaluation_stores_nothing_and_can_be_given_again(forks: Forks) -> None:
    pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install '.[eval]'")
    command = ("eval", "--engine", "lm-eval", "--tasks", "passages", "--system", "moe-ondemand",
               "--setting", "S3", "--prompts", "2", "--store")  # fmt: skip
    whole = forks(*command, "whole")
    assert whole.code == 0, whole.said
    undisturbed = contents("whole")
    kills = killed(forks, whole.cpu_s, 0.3, Path("killed"), *command, "killed")
    assert forks(*command, "killed").code == 0
    assert contents("killed").keys() == undisturbed.keys()
    assert_removable("killed")
    say("eval killed at random points", kills, "the same run in the store")
