"""Calls the command line inside the test process."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

from moebench.harness.cli.app import main

SCALE_MODEL = "qwen2-57b-a14b"

#: As little work as a run can be and still decode.
SMALL = (
    "--setting", "S3", "--workload", "arithmetic", "--prompts", "1", "--new-tokens", "3",
)  # fmt: skip


class Called(NamedTuple):
    """Exit code, stdout and stderr of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Stdout as exactly one JSON document."""
        return json.loads(self.out)


def call(*arguments: str | Path) -> Called:
    """Call `moebench` with arguments; both output streams are pipes, not terminals."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Called(code, out.getvalue(), err.getvalue())


def run(system: str, *arguments: str | Path) -> dict[str, Any]:
    """Return the document of a small run without an interval; arguments override `SMALL`."""
    called = call("run", "--system", system, *SMALL, "--no-interval", "--json", *arguments)
    assert called.code == 0, called.err
    document: dict[str, Any] = called.json
    return document


def refused(*arguments: str | Path) -> str:
    """Call a command that must be refused, and return its one line."""
    called = call(*arguments)
    assert (called.code, called.out) == (2, "")
    (line,) = [text for text in called.err.splitlines() if text.startswith("moebench: ")]
    assert "Traceback" not in called.err
    return line
