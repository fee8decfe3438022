"""Drawn defects are small, valid, of every kind and equal for equal seeds; tests judge them."""

import ast
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import coverage
import pytest

from tests.mutants import coverage as covering
from tests.mutants.coverage import Covering
from tests.mutants.operators import KINDS, Mutant, is_python, mutants
from tests.mutants.run import Verdict, checkouts, confirmed, drawn, judged, report
from tests.mutants.server import HANGS, TestServer

SOURCE = b'''"""A text."""
LIMIT = 3
NAMES: list[int] = []


def total(rows, start=0, *, strict=False):
    """Return a text: 1 < 2."""
    if rows and not start < LIMIT:
        rows.sort(key=len, reverse=True)
        list(zip(rows, rows, strict=True))
        rows.pop()
        raise ValueError("1 + 1")
    found = start + sum(row * 2.5 for row in rows if row)
    NAMES.append(found)
    found += LIMIT
    return max(found, -found) if strict else found
'''


def shown() -> dict[str, set[tuple[str, str]]]:
    found: dict[str, set[tuple[str, str]]] = {kind: set() for kind in KINDS}
    for one in mutants("a.py", SOURCE):
        before = " ".join(SOURCE[one.start : one.end].decode().split())
        found[one.kind].add((before, " ".join(one.text.split())))
    return found


def test_each_kind_of_defect_is_found_where_it_can_be() -> None:
    found = shown()
    assert found["comparison"] == {("<", "<=")}
    assert found["arithmetic"] == {("+", "-"), ("*", "/"), ("+=", "-=")}
    assert {("3", "4"), ("0", "1"), ("2.5", "2.75"), ("False", "True")} <= found["constant"]
    assert ("and", "or") in found["condition"]
    assert ("row", "not (row)") in found["condition"]
    assert ("strict", "not (strict)") in found["condition"]
    assert ("True", "False") in found["constant"]  # of reverse, not of the guard strict
    assert len([one for one in mutants("a.py", SOURCE) if one.text == "False"]) == 1
    assert {("rows.pop()", "pass"), ("found += LIMIT", "pass")} <= found["removed statement"]
    assert {text for _, text in found["removed argument"]} == {""}
    assert len(found["removed argument"]) == 2  # not the guard strict
    assert found["returned value"] == {("max(found, -found) if strict else found", "None")}
    assert ("max", "min") in found["order"]
    assert any(before.startswith("rows.sort") for before, _ in found["order"])
    every = {before for places in found.values() for before, _ in places}
    assert not any("text" in before or "list[int]" in before for before in every)


def test_a_defect_changes_one_place_of_the_syntax_tree_and_nothing_else() -> None:
    sound = ast.dump(ast.parse(SOURCE))
    for one in mutants("a.py", SOURCE):
        changed = one.applied(SOURCE)
        assert is_python(changed)
        assert ast.dump(ast.parse(changed)) != sound, one
        assert SOURCE[: one.start] + SOURCE[one.end :] == (
            changed[: one.start] + changed[one.start + len(one.text.encode()) :]
        )


def test_the_head_of_a_statement_is_what_covers_it() -> None:
    by_line = {one.line: one for one in mutants("a.py", SOURCE)}
    assert by_line[8].lines == (8,)  # not the body of the condition
    assert by_line[2].module_level
    assert not by_line[8].module_level


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "a.py").write_bytes(SOURCE)
    return tmp_path


def test_equal_seeds_draw_equal_defects(project: Path) -> None:
    assert drawn(project, 3, 10) == drawn(project, 3, 10)
    assert drawn(project, 3, 10) != drawn(project, 4, 10)
    assert len({one for one, _ in drawn(project, 3, 15)}) == 15


TESTS = """
import sys
sys.path.insert(0, ".")
from systems.a import total

def test_sum():
    assert total([2], strict=False) == 8

def test_nothing():
    total([], 0)

def test_false():
    assert False
"""


@pytest.fixture
def server(project: Path) -> Iterator[TestServer]:
    with closing(TestServer(project)) as started:
        yield started


PORTIONS = """
import os, subprocess, sys, time
import pytest

def test_passes():
    assert "moebench" not in sys.modules

def test_hangs():
    print("waits", flush=True)
    while True:
        pass

def test_ends_its_process():
    os._exit(7)

def test_leaves_a_process():
    left = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    open("left.txt", "w").write(str(left.pid))
"""


@pytest.mark.slow
def test_a_portion_of_tests_passes_hangs_or_ends(
    project: Path, server: TestServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (project / "test_portions.py").write_text(PORTIONS)

    def run(test: str, limit_s: float = 60) -> tuple[int | str, str]:
        scratch = tmp_path_factory.mktemp("scratch")
        return server.run([f"test_portions.py::test_{test}", "-s"], scratch, limit_s)

    code, printed = run("passes")
    assert (code, "1 passed" in printed) == (0, True)
    assert run("absent")[0] == pytest.ExitCode.USAGE_ERROR
    code, printed = run("hangs", limit_s=2)
    assert (code, "waits" in printed) == (HANGS, True)
    assert run("ends_its_process")[0] == 7
    assert run("leaves_a_process")[0] == 0
    try:
        left = os.pidfd_open(int((project / "left.txt").read_text()))
    except (ProcessLookupError, AttributeError):  # ended already, or not Linux
        return
    assert select.select([left], [], [], 60)[0]  # it was killed, and ends
    os.close(left)


@pytest.mark.slow
def test_the_tests_that_cover_a_defect_judge_it(project: Path, server: TestServer) -> None:
    place = project / "tests" / "systems"
    place.mkdir(parents=True)
    (place / "test_a.py").write_text(TESTS)
    data = coverage.CoverageData(no_disk=True)
    data.add_lines({"systems/a.py": []})
    for name, lines in (("sum", [7, 8, 13, 14, 15, 16]), ("other", [8])):
        data.set_context(f"tests/systems/test_a.py::test_{name}|run")
        data.add_lines({"systems/a.py": lines})
    seconds = {f"tests/systems/test_a.py::test_{name}": 0.1 for name in ("sum", "nothing")}
    covering = Covering(data, seconds)
    by_text = {(one.line, one.text): one for one in mutants("systems/a.py", SOURCE)}
    found = judged(server, by_text[15, "-="], SOURCE, covering)
    assert (found.outcome, found.by) == ("caught", "tests/systems/test_a.py::test_sum")
    survives = judged(server, by_text[9, ""], SOURCE, covering)  # no line of a test
    assert survives.outcome == "survived"
    assert (project / "systems" / "a.py").read_bytes() == SOURCE
    assert confirmed(server, [found, survives], seconds) == [found, survives]
    unsound = Verdict("x", "order", "caught", "tests/systems/test_a.py::test_false", 1, 1)
    more = seconds | {unsound.by: 0.1}
    assert [one.outcome for one in confirmed(server, [unsound, found], more)] == [
        "unsound", "caught",
    ]  # fmt: skip
    unknown = Mutant("systems/b.py", "order", 1, (1,), False, 0, 1, "")
    assert covering.tests(unknown) == []


def test_what_only_an_import_executes_is_judged_by_the_nearest_tests() -> None:
    data = coverage.CoverageData(no_disk=True)
    data.add_lines({"systems/deep/a.py": [1]})
    one = Mutant("systems/deep/a.py", "order", 1, (1,), True, 0, 1, "")
    near = ["tests/systems/test_deep.py::test_b", "tests/systems/deep/test_b.py::test_b"]
    beside, far = ["tests/systems/test_c.py::test_c"], ["tests/test_d.py::test_d"]
    for there in (near + beside, beside):
        assert set(Covering(data, dict.fromkeys(there + far, 1.0)).tests(one)) == set(there)


def test_the_mirrored_files_tests_come_first_and_then_those_of_its_folder() -> None:
    data = coverage.CoverageData(no_disk=True)
    data.set_context("tests/far/test_b.py::test_b|run")
    data.add_lines({"systems/deep/a.py": [1]})
    for test in ("tests/systems/deep/test_b.py::test_slow", "tests/systems/deep/test_b.py::test_b"):
        data.set_context(f"{test}|run")
        data.add_lines({"systems/deep/a.py": [1]})
    seconds = {
        "tests/far/test_b.py::test_b": 0.1, "tests/systems/deep/test_b.py::test_slow": 3.0,
        "tests/systems/deep/test_b.py::test_b": 2.0, "tests/systems/deep/test_a.py::test_a": 4.0,
    }  # fmt: skip
    one = Mutant("systems/deep/a.py", "order", 1, (1,), False, 0, 1, "")
    assert Covering(data, seconds).tests(one) == [
        "tests/systems/deep/test_a.py::test_a", "tests/systems/deep/test_b.py::test_b",
        "tests/systems/deep/test_b.py::test_slow", "tests/far/test_b.py::test_b",
    ]  # fmt: skip


def test_files_take_turns_the_shortest_test_of_each_first() -> None:
    data = coverage.CoverageData(no_disk=True)
    seconds = {
        "tests/b/test_b.py::test_1": 0.1, "tests/b/test_b.py::test_2": 0.2,
        "tests/b/test_b.py::test_3": 0.3, "tests/c/test_c.py::test_1": 9.0,
        "tests/d/test_d.py::test_1": 5.0, "tests/d/test_d.py::test_2": 6.0,
    }  # fmt: skip
    for test in seconds:
        data.set_context(f"{test}|run")
        data.add_lines({"systems/deep/a.py": [1]})
    one = Mutant("systems/deep/a.py", "order", 1, (1,), False, 0, 1, "")
    assert Covering(data, seconds).tests(one) == [
        "tests/b/test_b.py::test_1", "tests/d/test_d.py::test_1", "tests/c/test_c.py::test_1",
        "tests/b/test_b.py::test_2", "tests/d/test_d.py::test_2", "tests/b/test_b.py::test_3",
    ]  # fmt: skip


def test_what_an_import_does_is_judged_by_its_folders_tests_and_those_above() -> None:
    """A command that a module adds is called by tests that execute no other line of it."""
    data = coverage.CoverageData(no_disk=True)
    for test in ("tests/far/test_b.py::test_b", "tests/far/test_page.py::test_f"):
        data.set_context(f"{test}|run")
        data.add_lines({"systems/deep/a.py": [5]})
    seconds = {
        "tests/systems/deep/test_c.py::test_c": 0.1, "tests/far/test_b.py::test_b": 3.0,
        "tests/systems/test_d.py::test_d": 0.1, "tests/systems/deep/test_a.py::test_a": 4.0,
        "tests/systems/wide/test_e.py::test_e": 0.1, "tests/far/test_page.py::test_f": 4.0,
    }  # fmt: skip
    one = Mutant("systems/deep/a.py", "order", 1, (1,), True, 0, 1, "")
    assert Covering(data, seconds).tests(one) == [
        "tests/systems/deep/test_a.py::test_a", "tests/far/test_page.py::test_f",
        "tests/systems/deep/test_c.py::test_c", "tests/systems/test_d.py::test_d",
        "tests/far/test_b.py::test_b",
    ]  # fmt: skip
    inside = replace(one, module_level=False, lines=(5,))
    assert Covering(data, seconds).tests(inside) == [
        "tests/systems/deep/test_a.py::test_a", "tests/far/test_b.py::test_b",
        "tests/far/test_page.py::test_f",
    ]  # fmt: skip


def test_a_report_counts_what_is_not_caught() -> None:
    verdicts = [Verdict(f"m{n}", "order", "caught", "t", 1, 1) for n in range(9)]
    text = report([*verdicts, Verdict("left", "constant", "survived", "", 3, 4)])
    assert "| order | 9 | 9 |" in text
    assert "caught 9 of 10: 90.0%, 95 % interval 59.6% to 98.2%" in text
    assert text.endswith("survived: left (3 of 4 tests)")


@pytest.mark.parametrize("code", [0, 1, 3])
def test_coverage_of_a_suite_that_did_not_end_is_refused(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1: some test failed; 3: pytest itself did."""

    def suite(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        (tmp_path / "times.partial").write_text("<testsuite/>")
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(covering.subprocess, "run", suite)
    if code == 3:
        with pytest.raises(SystemExit, match="ended with 3"):
            Covering.measured(tmp_path, tmp_path, 1)
    else:
        assert Covering.measured(tmp_path, tmp_path, 1).seconds == {}
    assert (tmp_path / "times.xml").exists() == (code != 3)


@pytest.mark.slow
def test_clones_are_compiled_and_a_changed_file_is_imported_as_it_is_now() -> None:
    with checkouts(1) as (clone,):
        file = clone / "substrate" / "terms.py"
        assert [*(file.parent / "__pycache__").glob("terms.*.pyc")]
        before = file.stat()
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace("\nLOOKAHEADS =", "\nLOOKAHEADZ =", 1), encoding="utf-8")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert file.stat().st_size == before.st_size, "neither size nor time tells them apart"
        asked = "import moebench.substrate.terms as t; print(hasattr(t, 'LOOKAHEADZ'))"
        printed = subprocess.run(
            [sys.executable, "-c", asked], cwd=clone, env={"PYTHONPATH": str(clone)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert printed.stdout == "True\n"
    assert not clone.exists()
