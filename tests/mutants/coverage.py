"""Which tests execute a line of the product, and how long each lasts: one run of the whole suite.

The result is kept by the state of the product and the tests, since that run takes half an hour.
"""

import hashlib
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import coverage

from tests.mutants.operators import Mutant

PRODUCT = ("substrate", "systems", "workloads", "results", "reports", "harness")

#: Seconds of a test that was not timed, and from which on one is long.
UNTIMED_S, LONG_S = 1.0, 5.0


def product_files(root: Path) -> list[str]:
    """Return the product's Python files, as paths from the root, in the order of their names."""
    found = (file for top in PRODUCT for file in (root / top).rglob("*.py"))
    return sorted(str(file.relative_to(root)) for file in found)


def state(root: Path) -> str:
    """Return a hash of the product's and the tests' Python files."""
    files = [*product_files(root), *sorted(str(f.relative_to(root)) for f in
                                           (root / "tests").rglob("*.py"))]  # fmt: skip
    texts = (f"{file} {hashlib.sha256((root / file).read_bytes()).hexdigest()}" for file in files)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Covering:
    """Tests of a checkout by the lines that they execute.

    Args:
        seconds: how long each test lasts, by its id; only tests that passed.
    """

    data: coverage.CoverageData
    seconds: dict[str, float]

    @classmethod
    def measured(cls, root: Path, folder: Path, jobs: int) -> "Covering":
        """Return the tests of the checkout at ``root``; results are kept in ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        lines, times = folder / "coverage", folder / "times.xml"
        if not times.exists():
            _run_suite(root, lines, times, jobs)
        data = coverage.CoverageData(str(lines))
        data.read()
        return cls(data, _seconds(times))

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the tests that can notice a defect: the mirrored file's, its folder's, the others.

        Of each, the shortest test of every file is first, then the second shortest of every file,
        and so on: where not all are run, tests of many files notice more than many of one file.

        What an import executes, or what is computed once and kept, is covered by every test that
        executes a line of the file, and by those of its folder and of the folders above it (not in
        other folders below these), which are nearest: they read what it left.  If there are none,
        it is covered by those of the nearest mirrored folder.  Short tests of pages that are
        generated come before these: such a page shows what modules declare.  A line that no test
        executes in its own process is left to the mirrored file, whose tests may start others.
        """
        by_line = self.data.contexts_by_lineno(mutant.file)
        contexts = {one for line in mutant.lines for one in by_line.get(line, ())}
        kept = mutant.module_level or "" in contexts
        if kept:
            contexts = {one for line in by_line.values() for one in line}
        found = {_test(one) for one in contexts if one}
        mirrored = _mirrored(mutant.file)
        found |= {test for test in self.seconds if test.partition("::")[0] == mirrored}
        same_folder = f"tests/{Path(mutant.file).parent}/"
        folders = Path(mutant.file).parents if by_line and not found else ()
        for folder in folders:
            beside = _mirrored(f"{folder}.py")
            places = {f"tests/{folder}/"}
            if any(test.startswith(f"{beside}::") for test in self.seconds):
                places.add(f"{Path(beside).parent}/")
            found = found or {test for test in self.seconds if test.startswith(tuple(places))}
        above = {f"tests/{folder}" for folder in Path(mutant.file).parents}
        near = {
            test
            for test in self.seconds
            if test.startswith(same_folder)
            or (kept and test.partition("::")[0].rpartition("/")[0] in above)
        }
        chosen = (found | near if kept else found) & self.seconds.keys()
        pages = {
            test
            for test in chosen
            if test.partition("::")[0].endswith("_page.py") and self.seconds[test] < LONG_S
        }
        of_files: dict[str, int] = defaultdict(int)
        turns = {}
        for test in sorted(chosen, key=self._length):
            file = test.partition("::")[0]
            turns[test] = of_files[file]
            of_files[file] += 1
        return sorted(
            chosen,
            key=lambda test: (
                not test.startswith(f"{mirrored}::"),
                not (kept and test in pages),
                test not in near,
                turns[test],
                self._length(test),
            ),
        )

    def _length(self, test: str) -> tuple[float, str]:
        return self.seconds[test], test

    def total_s(self, tests: Iterable[str]) -> float:
        """Return how long tests last together."""
        return sum(self.seconds[test] for test in tests)


def _run_suite(root: Path, lines: Path, times: Path, jobs: int) -> None:
    # Of another name: coverage erases all files that begin with its data file's.
    settings, unfinished = lines.with_name("settings.ini"), times.with_suffix(".partial")
    settings.write_text(
        f"[run]\nrelative_files = true\nsource_dirs = {','.join(PRODUCT)}\ndata_file = {lines}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--numprocesses", str(jobs), "--dist", "loadfile",
         "--timeout", "1800", "--cov=moebench", "--cov-context=test", f"--cov-config={settings}",
         "--cov-report=", f"--junitxml={unfinished}"],
        cwd=root, env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1):  # 1: a test failed, which is left out
        raise SystemExit(f"the suite ended with {done.returncode}: its coverage is not whole")
    unfinished.replace(times)


def _seconds(times: Path) -> dict[str, float]:
    """Return the seconds of each test that passed, from pytest's JUnit file."""
    found = {}
    for case in ET.parse(times).iter("testcase"):
        if not any(case.find(tag) is not None for tag in ("failure", "error", "skipped")):
            parts = case.get("classname", "").split(".")
            classes = [part for part in parts if part[:1].isupper()]
            module = "/".join(part for part in parts if part not in classes)
            test = "::".join([f"{module}.py", *classes, case.get("name", "")])
            found[test] = float(case.get("time") or UNTIMED_S)
    return found


def _test(context: str) -> str:
    """Return the test of a coverage context such as ``file::test|run``."""
    return context.rpartition("|")[0]


def _mirrored(file: str) -> str:
    """Return the test file of a product's file: ``tests/a/test_b.py`` of ``a/b.py``."""
    path = Path(file)
    return str(Path("tests") / path.parent / f"test_{path.stem.lstrip('_')}.py")
