"""Tables, lines and progress on a terminal and in a pipe."""

import contextlib
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from moebench.harness import console, progress
from moebench.reports.sections import run as sections
from moebench.reports.text import TextTable, text_table
from moebench.substrate.progress_events import report_phase
from moebench.systems import registry


class Terminal(io.StringIO):
    """A screen of 100 columns."""

    def isatty(self) -> bool:
        return True


def screen(patch: pytest.MonkeyPatch) -> Terminal:
    """Replace stdout by a terminal."""
    found = Terminal()
    patch.setenv("COLUMNS", "100")
    patch.setenv("TERM", "xterm")
    patch.setattr(sys, "stdout", found)
    return found


def test_a_table_is_drawn_with_its_title_and_as_it_is_typed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = screen(monkeypatch)
    console.table("[b]title[/b]\x1b", ["[red]one", "two"], [["[/x]\x07", "b"]])
    text = Text.from_ansi(drawn.getvalue()).plain
    first, *lines = text.splitlines()
    assert first.startswith("[b]title[/b]")
    assert "\x07" not in text
    assert any("[red]one" in line and "two" in line for line in lines)
    assert any("[/x]" in line and " b " in line for line in lines)


def test_a_table_in_a_pipe_is_lines_of_cells(capsys: pytest.CaptureFixture[str]) -> None:
    console.table("title", ["a", "b\x1b"], [["1", "x\ty\n"]])
    header, row = capsys.readouterr().out.splitlines()
    assert header.startswith("a\tb")
    assert "\x1b" not in header
    assert row.startswith("1\tx")
    assert row.count("\t") == 1, "a cell is one cell"


def test_a_text_table_has_its_caption_marks_and_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = screen(monkeypatch)
    shown = TextTable(
        "systems", ("name", "ms"), ((("a", "1.5"), ("b", "2.5")), (("c", "10"),)), "what it is",
        {(0, 0, 1): "best", (0, 1, 1): "second"}, ("[a note]",),
    )  # fmt: skip
    console.text_table(shown)
    raw = drawn.getvalue().replace(" ", "")
    assert "\x1b[1m1.5" in raw
    assert "\x1b[4m2.5" in raw
    lines = Text.from_ansi(drawn.getvalue()).plain.splitlines()
    assert lines[0].strip() == "systems"
    assert lines[-1] == "[a note]"
    assert lines[-2].strip() == "what it is"
    ends = [len(line.rstrip(" │")) for line in lines if line[:5] in ("│ a  ", "│ b  ", "│ c  ")]
    assert ends == [ends[0]] * 3, "numbers end in one column"
    assert sum(set(line) <= {*"├─┼┤"} for line in lines) == 1, "a rule between groups alone"


def test_a_text_table_in_a_pipe_says_its_caption(capsys: pytest.CaptureFixture[str]) -> None:
    console.text_table(text_table("t", ["a"], [["1"]], "what it is"))
    assert capsys.readouterr() == ("a\n1\n", "t: what it is\n")
    console.text_table(text_table("t", ["a"], [["1"]]))
    assert capsys.readouterr() == ("a\n1\n", "t\n")


def test_json_is_one_sorted_line_unless_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"b": 1, "a": [None]})
    console.print_json({"b": 1, "a": [None]}, sort_keys=False)
    assert capsys.readouterr().out == '{"a": [null], "b": 1}\n{"b": 1, "a": [null]}\n'


def test_lines_that_are_said_are_visible(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("one\ntwo\x1b[31m")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "one"
    assert "\x1b" not in err
    assert len(err.splitlines()) == 2


def test_what_was_left_out_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    console.say_left_out(SimpleNamespace(left_out={"a": "run a is damaged", "b": "b too"}))
    assert capsys.readouterr().err == "left out: run a is damaged\nleft out: b too\n"
    refused = {"mine": "mine is broken", "theirs": "theirs is broken"}
    monkeypatch.setattr(registry, "installed", lambda: SimpleNamespace(refused=refused))
    console.say_refused()
    assert capsys.readouterr().err == "left out: mine is broken\nleft out: theirs is broken\n"
    console.say_refused(["theirs", "other"])
    assert capsys.readouterr().err == "left out: theirs is broken\n"
    console.say_refused([])
    assert capsys.readouterr().err == ""


# ------------------------------------------------------------------------------ a run


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    found = [["TPOT", "10 ms"], ["hits", "50 %"]]
    monkeypatch.setattr(sections, "figures", lambda document: [tuple(row) for row in found])
    monkeypatch.setattr(sections, "title_of", lambda document: "the title")
    return found


def test_a_run_is_shown_and_then_its_intervals(
    capsys: pytest.CaptureFixture[str], rows: list[list[str]]
) -> None:
    document: dict[str, Any] = {"notes": ["one", "two"], "run_id": "r"}

    def complete() -> bool:
        rows[0][1] = "10 ± 1 ms"
        document["interval"] = {
            "fields": [{"field": name} for name in "abcd"], "order": True, "routing": True,
            "checked": {"decode": {"figures": 9, "machines": 3, "median_error": 0.123,
                                   "within_80": 1.456}},
        }  # fmt: skip
        return True

    console.show_run(document, Path("runs"), complete)
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "figure\tvalue", "TPOT\t10 ms", "hits\t50 %", "figure\tvalue", "TPOT\t10 ± 1 ms",
    ]  # fmt: skip
    assert err.splitlines() == [
        "note: one", "note: two",
        "± over the ranges of the profile's numbers and other orders of the prompts and the law of "
        "drawn routing, most by a, b, c",
        "checked: 9 published decode rates of such runs on 3 other machines are predicted with a "
        "median error of 12%, 80 % of them within a factor of 1.46",
        "run r; moebench report --html out.html --store runs shows it",
    ]  # fmt: skip
    document["interval"] = {"fields": [{"field": "a"}]}
    console.show_run(document, Path(".moebench"))
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert err.splitlines()[2:] == [
        "± over the ranges of the profile's numbers, most by a",
        "run r; moebench report --html out.html shows it",
    ]
    del document["interval"]
    console.show_run(document, Path(".moebench"))
    assert len(capsys.readouterr().err.splitlines()) == 3


# ------------------------------------------------------------------------------ progress


def test_progress_on_a_terminal_is_a_bar_with_phases() -> None:
    shown, told = io.StringIO(), list[Any]()
    terminal = Console(file=shown, force_terminal=True, width=120)
    with progress.shown("smoe", terminal, also=lambda *what: told.append(what)) as step:
        step(3, 8)
        report_phase("decode", 12, 64)
    drawn = Text.from_ansi(shown.getvalue()).plain
    assert "smoe: decode 12/64" in drawn
    assert "3/8" in drawn
    assert told == [("decode", 12, 64)]
    with progress.shown("smoe", terminal) as step:
        report_phase("load")
    assert "smoe: load " in Text.from_ansi(shown.getvalue()).plain


def test_progress_in_a_pipe_is_lines_and_phases_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        with console.progress("work", also=lambda *what: told.append(what)) as step:
            report_phase("load", 1, 2)
            step(5, 10)
        with console.progress("quick", after_s=60) as step:
            step(5, 10)
    assert err.getvalue() == "work: 5/10\n"
    assert told == [("load", 1, 2)]
    said: list[str] = []
    now = iter([0.0, 3.0, 6.0, 6.0])
    lines = progress.Lines("late", lambda: next(now), said.append, after_s=5.0)
    lines.step(1, 2)
    lines.step(2, 2)
    assert said == ["late: 2/2"]
