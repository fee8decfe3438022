"""Completion in the shell: asked as a shell asks, through Typer's protocol."""

import contextlib
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from moebench.harness.cli import completion
from moebench.harness.cli.app import app, main
from moebench.results.store import Store
from moebench.substrate.machines.profile import profile_names
from moebench.systems.registry import POLICIES, SYSTEMS
from tests.results.documents import document

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "transformers", "numpy", "pandas", "altair", "pyarrow", "ray")


def asked(line: str) -> dict[str, str]:
    """How bash asks what may stand at the end of a line."""
    words = [*shlex.split(line), *([""] if line.endswith(" ") else [])]
    return {
        "_MOEBENCH_COMPLETE": "complete_bash", "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }  # fmt: skip


def complete(line: str) -> list[str]:
    """What bash would offer."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        for name, value in asked(line).items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit):
            main([])
    return said.getvalue().split()


#: Completes as the shell does, and says which heavy modules that brought.
SCRIPT = f"""
import sys
from moebench.__main__ import main
try:
    main()
finally:
    print("heavy:", *(name for name in {HEAVY!r} if name in sys.modules))
"""


CASES = {
    "moebench run --system duo": ["duoserve"],
    "moebench run --setting D": ["D1", "D2"],
    "moebench sweep --systems smoe,dao": ["smoe,daop"],
    "moebench sweep --settings S1,S": ["S1,S2", "S1,S3"],
    "moebench run --model olm": ["olmoe-1b-7b"],
    "moebench run --machine a5": ["a5000", "a5000@duoserve"],
    "moebench run --machine de": ["desk.yaml"],
    "moebench machines show h": ["h100", "h200"],
    "moebench machines diff a6000 rtx4": ["rtx4060ti", "rtx4090"],
    "moebench run --workload arith": ["arithmetic"],
    "moebench run --software hf": ["hf-eager"],
    "moebench trace caches DIR --policies lru,lf": ["lru,lfu", "lru,lfru"],
    "moebench trace caches DIR --policies belady-": ["belady-bypass"],
    "moebench show ab": ["abc123", "abd456"],
    "moebench rm abc123 xy": ["xyz789"],
    "moebench show --store elsewhere ": ["far"],
    "moebench show --store damaged ": [],
    "moebench run --system nothing-has-this-name": [],
}


@pytest.fixture
def stores(here: Path) -> None:
    (here / "desk.yaml").write_text("name: desk")
    for folder, ids in ((".moebench", ("abc123", "abd456", "xyz789")), ("elsewhere", ("far",))):
        for run_id in ids:
            Store(here / folder).put(document(run_id))
    (here / "damaged").mkdir()
    (here / "damaged" / "runs.sqlite").write_bytes(b"no database" * 500)


@pytest.mark.usefixtures("stores")
@pytest.mark.parametrize("line", CASES)
def test_names_are_completed(line: str) -> None:
    assert complete(line) == CASES[line]


@pytest.mark.usefixtures("stores")
@pytest.mark.parametrize(
    "line", ["moebench run --system ", "moebench run --machine ", "moebench run --setting ",
             "moebench run --workload ", "moebench run --model ", "moebench show "],
)  # fmt: skip
def test_completing_imports_nothing_heavy(line: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, "PYTHONPATH": str(ROOT), **asked(line)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    *offered, heavy = done.stdout.splitlines()
    assert offered, done.stderr
    assert heavy == "heavy:"


def test_all_names_are_offered(here: Path) -> None:
    assert set(complete("moebench run --system ")) >= set(SYSTEMS)
    assert complete("moebench run --machine ") == [*profile_names(), "local"]
    assert complete("moebench trace caches X --policies ") == [*POLICIES["evict"], "belady-bypass"]


def test_every_parameter_that_names_something_is_completed() -> None:
    """A name that some command has and that completion knows; so a renamed one is noticed."""
    found = set()

    def walk(command: object) -> None:
        for below in getattr(command, "commands", {}).values():
            walk(below)
        found.update(parameter.name for parameter in getattr(command, "params", ()))

    walk(typer.main.get_command(app))
    assert set(completion.NAMES) - {"models"} <= found
