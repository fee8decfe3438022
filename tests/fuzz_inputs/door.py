"""Fuzzing of one kind of input (a door): cases are generated, run and judged.

Every case must end in one of two ways: exit code 2 with one line that names what is wrong, and
nothing written; or a right result.
"""

import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy, sampled_from

from tests.harness.commands import Called, call


class Verdict(StrEnum):
    """Outcome of a fuzzing case; only the first two are right."""

    REFUSED = "refused"
    RIGHT = "right"
    TRACEBACK = "traceback"
    SILENT = "silent acceptance"  # of bad input, or a result that is wrong
    UNCLEAR = "unclear line"  # another code, several lines, or a name that is not in it
    WRITTEN = "written"  # a refusal that left something behind
    SHUT = "refused though right"


WRONG = (
    Verdict.TRACEBACK, Verdict.SILENT, Verdict.UNCLEAR, Verdict.WRITTEN, Verdict.SHUT,
)  # fmt: skip


def _anything(called: Called) -> bool:
    return True


@dataclass(frozen=True)
class Case:
    """One fuzzing input: a command with its files and the expected outcome.

    Attributes:
        arguments: of ``moebench``.
        prepare: writes its files into the folder that the command starts in.
        names: what the line of a refusal must hold: file, field, value.
        good: whether it must be accepted; None where either may be, and `right` judges.
        right: whether the result is right.
        data: what a door with a judge of its own is given.
    """

    arguments: tuple[str, ...]
    prepare: Callable[[Path], None] = lambda folder: None
    names: tuple[str, ...] = ()
    good: bool | None = False
    right: Callable[[Called], bool] = _anything
    about: str = field(default="", compare=False)
    data: Any = None


def weighted(*parts: tuple[int, SearchStrategy[Case]]) -> SearchStrategy[Case]:
    """Return a generator that draws from several generators in proportion to their weights."""
    return sampled_from([part for n, part in parts for _ in range(n)]).flatmap(lambda part: part)


@contextmanager
def _fresh_folder() -> Iterator[Path]:
    before = Path.cwd()
    folder = Path(tempfile.mkdtemp(prefix="door-"))
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Return every path below a folder with its file's content, None for folders."""
    return {
        path.as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def judge(case: Case) -> tuple[Verdict, str]:
    """Run a case in a new folder, and return the verdict and the output."""
    with _fresh_folder() as folder:
        case.prepare(folder)
        before = snapshot(folder)
        try:
            called = call(*case.arguments)
        except BaseException as error:
            return Verdict.TRACEBACK, f"{type(error).__name__}: {error}"
        said = called.err.strip()
        if called.code == 0:
            if case.good is False:
                return Verdict.SILENT, said or called.out[:200]
            try:
                right = case.right(called)
            except (ValueError, KeyError, TypeError, AssertionError) as error:
                return Verdict.SILENT, f"{error!r}: {called.out[:200]}"
            return (Verdict.RIGHT if right else Verdict.SILENT), called.out[:200]
        if "Traceback" in said:
            return Verdict.TRACEBACK, said
        lines = [line for line in said.splitlines() if line.startswith("moebench: ")]
        if called.code != 2 or len(lines) != 1 or called.out or said.splitlines()[-1:] != lines:
            return Verdict.UNCLEAR, f"code {called.code}: {said} {called.out[:100]}"
        if snapshot(folder) != before:
            changed = sorted(set(snapshot(folder)) ^ set(before))
            return Verdict.WRITTEN, f"{said} {changed[:5]}"
        if case.good:
            return Verdict.SHUT, said
        missing = [name for name in case.names if name not in said]
        if missing:
            return Verdict.UNCLEAR, f"{missing} not in: {said}"
        return Verdict.REFUSED, said


@dataclass(frozen=True)
class Door:
    """One kind of input with its generator of cases; `ready` prepares what all cases need."""

    name: str
    cases: SearchStrategy[Case]
    ready: Callable[[], object] = lambda: None
    judge: Callable[[Case], tuple[Verdict, str]] = judge


@dataclass
class Tried:
    """Counts of verdicts for one door, and one wrong case for each distinct message."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    wrong: dict[str, tuple[Case, str]] = field(default_factory=dict)


def try_door(door: Door, examples: int, number: int = 0) -> Tried:
    """Run ``examples`` cases of a door; the seed ``number`` determines the cases."""
    tried = Tried()
    door.ready()

    @seed(number)
    @settings(
        max_examples=examples, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(door.cases)
    def each(case: Case) -> None:
        verdict, said = door.judge(case)
        tried.verdicts[verdict] += 1
        if verdict in WRONG:
            tried.wrong.setdefault(f"{verdict}: {case.about}: {said[-60:]}", (case, said))

    each()
    return tried


def finite(value: Any) -> bool:
    """Whether nowhere in a document stands NaN or an infinity."""
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)
