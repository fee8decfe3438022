"""What is said while a sweep runs, line by line."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from moebench.harness import console
from moebench.harness.run.rules import resolve
from moebench.harness.sweep import progress
from moebench.harness.sweep.estimate import Task
from moebench.harness.sweep.forecast import Forecast
from moebench.harness.sweep.progress import Left, _is_failure, _Lines, board, title
from moebench.harness.sweep.worker import Failed, Finished, Job

SPEC = resolve(None, system="smoe", model="mixtral-8x7b", machine="a6000")
DONE = Finished({}, [], [])


def jobs(count: int) -> list[Job]:
    return [Job(f"c{n}", SPEC, "") for n in range(count)]


class Clock:
    now = 10.0
    looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now


def left(count: int, clock: Any, processes: int = 1) -> Left:
    tasks = {job.cell_id: Task("smoe", 10) for job in jobs(count)}
    return Left(Forecast(tasks, 0.0, {}, processes), clock)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(console, "say", found.append)
    return found


def lines(count: int, failing: dict[int, Failed], said: list[str]) -> list[str]:
    clock = Clock()
    shown = _Lines(count, left(count, clock))
    for n, job in enumerate(jobs(count)):
        shown.started(0, job)
        clock.now += 20
        shown.ended(0, job, failing.get(n, DONE))
    return said


def test_a_line_for_every_tenth_with_the_time_that_is_left(said: list[str]) -> None:
    # Twice as long as expected: 20 s a cell.
    assert lines(25, {}, said) == [
        f"sweep: {n}/25, 0 failed, {left}"
        for n, left in (
            (3, "7 min left"), (5, "7 min left"), (8, "6 min left"), (10, "5 min left"),
            (13, "4 min left"), (15, "3 min left"), (18, "2 min left"), (20, "2 min left"),
            (23, "40 s left"),
        )
    ] + ["sweep: 25/25, 0 failed"]  # fmt: skip


def test_a_line_for_every_failure_but_not_for_what_cannot_be(said: list[str]) -> None:
    failing = {0: Failed("went\n wrong", "a traceback"), 1: Failed("cannot run here", None)}
    assert lines(3, failing, said) == [
        f"failed: {title(SPEC)}: went wrong", "sweep: 1/3, 1 failed, 20 s left",
        "sweep: 2/3, 1 failed, 10 s left", "sweep: 3/3, 1 failed",
    ]  # fmt: skip
    assert [_is_failure(one) for one in (*failing.values(), DONE)] == [True, False, False]
    assert title(SPEC).startswith("smoe")


def test_the_time_left_is_not_computed_for_every_look() -> None:
    """Of 20 cells, again after 20 ms."""
    clock = Clock()
    found = left(20, clock, processes=2)
    (first,) = jobs(1)
    found.started(first)
    assert str(found) == "2 min left"  # 20 cells of 10 s on two processes
    clock.now += 0.019
    found.ended(first, DONE)  # all cells take 19 ms, as it seems
    assert str(found) == "2 min left"
    clock.now += 0.002
    assert str(found) == "0 s left"
    assert left(1, lambda: 0.0)._said == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_a_board_is_drawn_on_a_terminal_alone(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = console.stderr()
    monkeypatch.setattr(type(made), "is_terminal", terminal)
    shown: list[Any] = []

    class Drawn:
        def __init__(self, total: int, left: Left) -> None:
            shown.append(total)

        @property
        def live(self) -> "Drawn":
            return self

        def __enter__(self) -> None:
            shown.append("live")

        def __exit__(self, *error: object) -> None:
            shown.append("over")

    monkeypatch.setattr(progress, "_Live", Drawn)
    tasks = {job.cell_id: Task("smoe", 10) for job in jobs(4)}
    with board(Forecast(tasks, 0.0, {}, 1)) as drawn:
        assert isinstance(drawn, Drawn if terminal else _Lines)
    assert shown == ([4, "live", "over"] if terminal else [])


def test_a_live_board_counts_running_and_failed_cells() -> None:
    shown = progress._Live(3, left(3, Clock(), processes=2))
    printed: list[str] = []
    shown.live = SimpleNamespace(console=SimpleNamespace(print=printed.append))  # type: ignore

    def fields() -> tuple[Any, ...]:
        task = shown._bar.tasks[0]
        return task.total, task.completed, task.fields["running"], task.fields["failed"]

    assert fields() == (3, 0, 0, 0)
    one, other, last = jobs(3)
    shown.started(0, one)
    shown.started(1, other)
    assert fields() == (3, 0, 2, 0)
    shown.ended(0, one, DONE)
    assert fields() == (3, 1, 1, 0)
    shown.ended(1, other, Failed("[red]bad", "a traceback"))
    assert fields() == (3, 2, 0, 1)
    assert printed == [f"failed: {title(SPEC)}: \\[red]bad"]
    shown.started(1, last)
    shown.ended(1, last, Failed("not here", None))
    assert fields() == (3, 3, 0, 1)
    assert len(printed) == 1


def test_a_live_board_is_drawn_on_stderr_with_what_every_worker_runs() -> None:
    clock = Clock()
    shown = progress._Live(3, left(3, clock, processes=3))
    assert shown.live.console.stderr
    assert shown.live.transient, "stdout and what is said stay, and the board goes"
    one, other, _ = jobs(3)
    shown.started(11, other)
    shown.started(2, one)
    clock.now += 4
    drawn = Console(width=120, record=True, file=io.StringIO())
    drawn.print(shown.live.get_renderable())
    bar, *workers = [line.rstrip() for line in drawn.export_text().splitlines()]
    assert bar.startswith("sweep ")
    assert "0/3" in bar
    assert f"{shown._left} 2 running, 0 failed" in bar
    assert str(shown._left).endswith(" left")
    assert workers == [f"  2: {title(SPEC)}", f"  11: {title(SPEC)}"]
    shown.ended(2, one, DONE)
    drawn.print(shown.live.get_renderable())
    bar, *workers = [line.rstrip() for line in drawn.export_text().splitlines()][-2:]
    assert "1/3" in bar
    assert workers == [f"  11: {title(SPEC)}"]
