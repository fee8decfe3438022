"""A package's process: every failure is one line, and nothing is left behind."""

import os
import re
import select
from pathlib import Path

import pytest

from moebench.harness.native.limits import Limit
from moebench.harness.native.process import NativeProcess, _remove_leftovers
from moebench.substrate.errors import MoeBenchError
from moebench.systems.native.base import Job

ORDER = {"prompts": [[1, 2], [3]], "new_tokens": 2, "end": None}


def process(folder: Path, limit: Limit | None = None, **options: object) -> NativeProcess:
    given = {"does": "answer", "loads": True, "threads": 1, "timeout_s": 60.0} | options
    job = Job(
        adapter="tests.systems.native.fake", libraries=("json",), model="none",
        folder=str(folder / "work"), options=given, context=9, batch=2,
    )  # fmt: skip
    return NativeProcess("native-fake", job, folder / "a.log", float(given["timeout_s"]), limit)


def loaded(started: NativeProcess) -> dict[str, object]:
    assert set(started.receive()) == {"imported"}
    return started.receive()


def gone(pid: int) -> bool:
    """Return whether a killed process has ended, or is a zombie that no process waits for."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor) as file:
        return bool(select.select([file], [], [], 10)[0])


def carried_out(started: NativeProcess) -> None:
    """Load the package, send orders and receive messages until it fails."""
    with started:
        loaded(started)
        started.send(ORDER)
        while True:
            started.receive()


def test_process_streams_tokens_with_their_times(tmp_path: Path) -> None:
    with process(tmp_path) as started:
        said = loaded(started)
        assert said["loaded"] == ["a batch of 2, 9 tokens at most"]
        for _ in range(2):  # batch after batch
            started.send(ORDER)
            times = [started.receive()["started"]]
            for _ in range(2):
                answer = started.receive()
                assert answer["tokens"] == [7, 7]
                times.append(answer["ns"])
            assert times == sorted(times)
            done = started.receive()["done"]
        assert done["peak_rss_bytes"] > 1e6
        assert done["read_bytes"] >= 0
    assert not (tmp_path / "work").exists()
    assert not (tmp_path / "a.log").exists(), "nothing failed"


@pytest.mark.parametrize(
    ("does", "line"),
    [
        ("fail", r"native-fake: RuntimeError: out of luck; all of it: .*a\.log"),
        ("exit", r"native-fake: its process ended with code 3 \(last words\); all of it: .*a\.log"),
        ("die", r"native-fake: its process was killed by signal 9 .*; all of it: .*a\.log"),
    ],
)
def test_process_failure_is_reported_in_one_line(tmp_path: Path, does: str, line: str) -> None:
    with pytest.raises(MoeBenchError) as raised:
        carried_out(process(tmp_path, does=does))
    assert re.fullmatch(line, str(raised.value))
    log = (tmp_path / "a.log").read_text()
    assert "the package prints to stdout" in log
    assert ("Traceback" in log) == (does == "fail")
    assert not (tmp_path / "work").exists()


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    message = r"native-fake: ValueError: the model cannot be loaded; all of it"
    with pytest.raises(MoeBenchError, match=message):
        carried_out(process(tmp_path, loads=False))


def pids(folder: Path) -> list[int]:
    (found,) = re.findall(r"children (\d+) (\d+)", (folder / "a.log").read_text())
    return [*map(int, found)]


@pytest.mark.slow
def test_hanging_process_is_killed_with_its_children(tmp_path: Path) -> None:
    message = r"stopped, it said nothing for 2 s; allow more with --set timeout_s"
    with pytest.raises(MoeBenchError, match=message):
        carried_out(process(tmp_path, does="hang", timeout_s=2.0))
    assert all(map(gone, pids(tmp_path)))


def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    found: list[int] = []

    def interrupted(started: NativeProcess) -> None:
        with started:
            loaded(started)
            started.send(ORDER)
            assert "started" in started.receive()
            assert "tokens" in started.receive()
            found.extend(pids(tmp_path))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(process(tmp_path, does="hang"))
    assert found
    assert all(map(gone, found))
    assert not (tmp_path / "a.log").exists(), "an interrupt is no failure"


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "work-999999999", tmp_path / "other-999999999"
    alive = tmp_path / f"work-{os.getpid()}"
    for folder in (ours, theirs, alive):
        folder.mkdir()
    _remove_leftovers(tmp_path / "work-1")
    assert [folder.exists() for folder in (ours, theirs, alive)] == [False, True, True]


def test_a_limit_is_kept_and_released(tmp_path: Path) -> None:
    limit = Limit(50_000_000)
    with process(tmp_path, limit) as started:
        assert "imported" in started.receive()
        limit.imported()
        assert "loaded" in started.receive()
        limit.apply()
        started.send(ORDER)
        assert "started" in started.receive()
        group = limit._group
        assert (group is not None) == limit.page_cache == (limit.by == "cgroup")
        assert limit.text.startswith("50 MB beside its libraries (by ")
    assert group is None or not group.exists()


def test_where_no_control_group_can_be_made_a_resource_limit_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moebench.harness.native.limits._groups", list)
    limit = Limit(50_000_000)
    with process(tmp_path, limit) as started:
        assert "imported" in started.receive()
        limit.imported()
        assert "loaded" in started.receive()
        limit.apply()
        held = Path(f"/proc/{limit._pid}/limits").read_text()
        (line,) = [line for line in held.splitlines() if line.startswith("Max data size")]
        assert int(line.split()[3]) == limit._libraries + 50_000_000
        started.send(ORDER)
        assert "started" in started.receive()
    assert (limit.by, limit.page_cache) == ("rlimit", False)
    assert "the page cache not included" in limit.text
