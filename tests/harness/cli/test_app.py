"""The command line as a whole: version, help, and exit codes of errors."""

from importlib.metadata import version
from typing import Any

import pytest
import typer

from moebench.harness.cli import app
from moebench.substrate.errors import IntegrityError, UsageError
from tests.harness.commands import call


def test_the_version_and_the_help() -> None:
    assert call("--version") == (0, f"moebench {version('moebench')}\n", "")
    bare = call()
    assert bare.code == 0
    assert bare.out == call("--help").out == call("-h").out
    assert all(f" {name}" in bare.out for name in ("run", "list", "eval", "machines", "trace"))


def raising(error: BaseException) -> Any:
    def program(**more: Any) -> None:
        assert more["prog_name"] == "moebench"
        assert more["standalone_mode"] is False
        raise error

    return program


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("no\n  such thing"), 2, "moebench: no such thing\n"),
        (OSError(28, "No space left on device"), 2, "moebench: [Errno 28] No space left on "
         "device\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (typer.Abort(), 130, "interrupted\n"),
        (typer.BadParameter("that is wrong."), 2,
         "moebench: Invalid value: that is wrong; see: moebench --help\n"),
    ],
)  # fmt: skip
def test_an_error_is_one_line_with_its_exit_code(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "app", raising(error))
    assert call("doctor") == (code, "", said)


def test_a_defect_is_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (IntegrityError("a broken invariant"), ValueError("a defect")):
        monkeypatch.setattr(app, "app", raising(error))
        with pytest.raises(type(error)):
            call("doctor")


def test_what_a_command_returns_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for done, code in ((3, 3), (None, 0), (130, 130), ("text", 0)):
        monkeypatch.setattr(app, "app", lambda done=done, **more: done)
        assert call("doctor") == (code, "", "interrupted\n" if code == 130 else "")
