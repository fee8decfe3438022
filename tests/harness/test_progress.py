"""Progress lines in a pipe and their times, on a clock that the test controls."""

import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest

from moebench.harness import progress
from moebench.harness.progress import NAMED_S, SILENT_S, Lines
from moebench.substrate.progress_events import phase_listener, report_phase
from tests.harness.commands import call


class Pipe:
    """Progress lines with a controlled clock, and the printed lines with their times."""

    def __init__(self) -> None:
        self.now = 100.0
        self.said: list[tuple[float, str]] = []
        self.lines = Lines(
            "smoe", lambda: self.now, lambda text: self.said.append((self.now, text))
        )

    def wait(self, seconds: float, tick: float = 0.5) -> None:
        """Advance the clock, calling `Lines.tick` as the thread would."""
        end = self.now + seconds
        while self.now < end:
            self.now += tick
            self.lines.tick()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    found = Pipe()
    with phase_listener(found.lines.phase):
        yield found


def test_a_phase_of_two_seconds_is_named_once_and_a_shorter_one_is_not(pipe: Pipe) -> None:
    report_phase("load")
    pipe.wait(NAMED_S - 0.5)
    assert pipe.said == []
    report_phase("calibrate")
    pipe.wait(NAMED_S)
    assert [text for _, text in pipe.said] == ["smoe: calibrate, 4 s"]
    pipe.wait(NAMED_S)
    assert len(pipe.said) == 1


def test_no_silence_is_longer_than_ten_seconds(pipe: Pipe) -> None:
    report_phase("load")
    pipe.wait(7)
    report_phase("prefill")
    pipe.wait(45)
    for token in range(1, 100):
        report_phase("decode", token, 100)
        pipe.wait(1)
    times = [100.0, *(at for at, _ in pipe.said), pipe.now]
    silences = [after - before for before, after in pairwise(times)]
    assert max(silences) <= SILENT_S
    assert len(pipe.said) <= 3 + (pipe.now - 100) / SILENT_S, "and no more lines than that"
    assert "decode 9" in pipe.said[-1][1]


def test_a_line_says_phase_tokens_work_done_and_time(pipe: Pipe) -> None:
    pipe.lines.step(1, 32)
    report_phase("decode", 12, 64)
    pipe.wait(NAMED_S + SILENT_S)
    assert pipe.said == [
        (102.0, "smoe: decode 12/64, 1/32 done, 2 s"),
        (112.0, "smoe: decode 12/64, 1/32 done, 12 s"),
    ]


def test_work_without_phases_is_not_silent_either(pipe: Pipe) -> None:
    pipe.wait(SILENT_S)
    assert [text for _, text in pipe.said] == ["smoe: 10 s"]


def test_every_tenth_is_said_and_counts_as_a_line(pipe: Pipe) -> None:
    for done in range(1, 41):
        pipe.lines.step(done, 40)
        pipe.wait(1)
    tenths = [text for _, text in pipe.said if "done" not in text]
    assert tenths == [f"smoe: {done}/40" for done in range(4, 41, 4)]
    assert len(pipe.said) == len(tenths), "a tenth came every four seconds"


def test_short_phases_that_alternate_are_not_named(pipe: Pipe) -> None:
    for _ in range(9):
        for phase in ("prefill", "decode", "scoring"):
            report_phase(phase)
            pipe.wait(1, tick=0.25)
    assert len(pipe.said) == 27 // SILENT_S


def test_phase_without_a_listener_prints_nothing() -> None:
    pipe = Pipe()
    report_phase("load")
    pipe.wait(NAMED_S)
    assert pipe.said == []


@pytest.mark.usefixtures("tiny_models")
def test_a_run_tells_all_of_its_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def phase(self: Lines, name: str, done: int, total: int | None) -> None:
        if name not in told:
            told.append(name)
        assert total is None or 0 < done < total

    monkeypatch.setattr(Lines, "phase", phase)
    done = call(
        "run", "--system", "daop", "--setting", "S3", "--workload", "arithmetic", "--prompts", "2",
        "--new-tokens", "3", "--no-interval",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert set(told) == {"load", "calibrate", "prefill", "decode", "scoring"}
    assert told[:2] == ["load", "calibrate"]


def test_a_line_is_due_without_any_work_that_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "TICK_S", 0.001)
    told = threading.Event()
    with progress._ticking(told.set):
        assert told.wait(60)
        (own,) = (thread for thread in threading.enumerate() if thread.name == "progress")
        assert own.daemon, "a pipe that nobody reads does not keep the process"
    assert not any(thread.name == "progress" for thread in threading.enumerate())
