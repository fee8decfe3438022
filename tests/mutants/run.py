"""Score the test suite: draw small defects of the product and run the tests that cover each.

    python -m tests.mutants.run --seed 1 --count 150 --jobs 2

A kind is drawn first, each as often, then one of its places in the product.  A defect is *caught*
when a test fails, hangs or crashes.  The product is what was committed last.

mutmut and cosmic-ray do not fit: mutmut rewrites every function of the product for all of its
defects at once, which changes the syntax trees that a run's identity is a hash of; cosmic-ray gives
all defects one test command, here a suite of eight minutes, and does not remove statements.
"""

import argparse
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from scipy.stats import binomtest

from tests.mutants.coverage import PRODUCT, Covering, product_files, state
from tests.mutants.operators import KINDS, Mutant, is_python, mutants
from tests.mutants.server import HANGS, TestServer

ROOT = Path(__file__).parents[2]

#: Tests are given in portions of so many seconds: most defects are caught by the first.  A line of
#: the engine is covered by half of the suite, so the longest tests are left out: with them, a
#: defect that changes nothing would take a quarter of an hour.
PORTIONS_S = (15.0, 30.0, 60.0, 120.0)
#: A portion that lasts so many times as long as usual, and a minute, hangs.
PATIENCE = 5

#: What is said of tests that could not be run or were ended.
ENDED = "pytest ended with"

#: A test of the hash of files fails with any change of them, right or wrong: it says nothing here.
SEES_ALL = (
    "tests/systems/compiled/test_engine.py::"
    "test_the_files_that_compiled_code_repeats_are_as_they_were"
)


@dataclass(frozen=True)
class Verdict:
    """What the tests said of one defect.

    Args:
        outcome: ``caught``, ``survived``, ``uncovered`` (no test executes the line), or ``unsound``
            (the test that failed fails without the defect, too).
        by: the test that failed, or how the tests ended.
        ran: how many tests were run, at most until the first failure.
        tests: how many cover the line.
    """

    shown: str
    kind: str
    outcome: str
    by: str
    ran: int
    tests: int


def drawn(root: Path, seed: int, count: int) -> list[tuple[Mutant, bytes]]:
    """Return ``count`` different defects of the product, each with its file's sound content."""
    contents = {file: (root / file).read_bytes() for file in product_files(root)}
    by_kind: dict[str, list[Mutant]] = {kind: [] for kind in KINDS}
    for file, content in contents.items():
        for one in mutants(file, content):
            by_kind[one.kind].append(one)
    draw, found = random.Random(seed), dict[Mutant, bytes]()
    while len(found) < count:
        one = draw.choice(by_kind[draw.choice(KINDS)])
        if is_python(one.applied(contents[one.file])):
            found[one] = contents[one.file]
    return list(found.items())


def judged(server: TestServer, mutant: Mutant, content: bytes, covering: Covering) -> Verdict:
    """Return what the tests of a checkout say of a defect, which is put in and taken out again."""
    tests = covering.tests(mutant)
    outcome, by, ran = "survived" if tests else "uncovered", "", 0
    file = server.checkout / mutant.file
    file.write_bytes(mutant.applied(content))
    try:
        for portion in _portions(tests, covering.seconds):
            by = _failure(server, portion, covering.total_s(portion))
            ran += len(portion)
            if by:
                outcome = "caught"
                break
    finally:
        file.write_bytes(content)
    if by.startswith(ENDED) and _failure(server, portion, covering.total_s(portion)) == by:
        raise SystemExit(f"{by} without a defect, too, for these tests: {' '.join(portion)[:500]}")
    return Verdict(mutant.shown(content), mutant.kind, outcome, by, ran, len(tests))


def _portions(tests: list[str], seconds: dict[str, float]) -> Iterator[list[str]]:
    """Yield the tests in order, in portions that last `PORTIONS_S`; at least one test in each."""
    left = list(tests)
    for limit in PORTIONS_S:
        total, portion = 0.0, list[str]()
        while left and (not portion or total + seconds[left[0]] <= limit):
            total += seconds[left[0]]
            portion.append(left.pop(0))
        if portion:
            yield portion


def _failure(server: TestServer, tests: list[str], usual_s: float) -> str:
    """Run tests until the first fails; return it or how they ended, nothing if all pass."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        scratch = Path(folder)
        listed = scratch / "tests.txt"
        listed.write_text("\n".join(tests))
        longest_s = round(60 + PATIENCE * max(usual_s / len(tests), 1))
        arguments = [
            f"@{listed}", "-x", "--timeout", str(longest_s), "-p",
            "no:cacheprovider", "--basetemp", f"{scratch}/pytest", "--tb=no", "--durations=0",
            "--deselect", SEES_ALL,
        ]  # fmt: skip
        code, printed = server.run(arguments, scratch, 60 + PATIENCE * usual_s)
    if code in (0, HANGS):
        return HANGS if code else ""
    for line in printed.splitlines():
        kind, _, rest = line.partition(" ")
        named = [test for test in tests if rest.startswith(test)]
        if kind in ("FAILED", "ERROR") and named:
            return max(named, key=len)
    return f"{ENDED} {code}"


def confirmed(
    server: TestServer, verdicts: list[Verdict], seconds: dict[str, float]
) -> list[Verdict]:
    """Return the verdicts after running the tests that failed once more, without any defect."""
    tests = sorted({one.by for one in verdicts if one.by in seconds})
    wrong = set[str]()
    while tests and (failed := _failure(server, tests, sum(seconds[test] for test in tests))):
        if failed not in tests:
            raise SystemExit(f"the tests that caught a defect cannot run without one: {failed}")
        wrong.add(failed)
        tests.remove(failed)
    return [replace(one, outcome="unsound") if one.by in wrong else one for one in verdicts]


@contextmanager
def checkouts(number: int) -> Iterator[list[Path]]:
    """Provide clones of what was committed last; they are removed at the end.

    The product is compiled once: each portion of tests imports it anew and writes no bytecode.  A
    file's bytecode is used as long as its content is that which was compiled.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        clones = [Path(folder) / str(n) for n in range(number)]
        for clone in clones:
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
            compiled = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash"]
            subprocess.run([sys.executable, *compiled, *PRODUCT], cwd=clone, check=True)
        yield clones


def main(seed: int, count: int, jobs: int, kept: Path) -> int:
    """Judge drawn defects, print those that survive and the score; return 1 if one survives."""
    with checkouts(jobs) as clones, ExitStack() as stack:
        first = clones[0]
        known = kept / state(first)
        covering = Covering.measured(first, known, jobs)
        found = drawn(first, seed, count)
        log = known / f"seed-{seed}.jsonl"
        before = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        done = {one["shown"]: Verdict(**one) for one in before}
        servers = [stack.enter_context(closing(TestServer(clone))) for clone in clones]
        free: queue.Queue[TestServer] = queue.Queue()
        for server in servers:
            free.put(server)

        def judge(one: tuple[Mutant, bytes]) -> Verdict:
            mutant, content = one
            shown = mutant.shown(content)
            if shown not in done:
                server = free.get()
                try:
                    verdict = judged(server, mutant, content, covering)
                finally:
                    free.put(server)
                with log.open("a") as file:
                    print(json.dumps(vars(verdict)), file=file)
                done[shown] = verdict
            print(f"{done[shown].outcome}: {shown}  {done[shown].by}", flush=True)
            return done[shown]

        with ThreadPoolExecutor(jobs) as workers:
            verdicts = list(workers.map(judge, found))
        verdicts = confirmed(servers[0], verdicts, covering.seconds)
    print(report(verdicts))
    return 0 if all(one.outcome == "caught" for one in verdicts) else 1


def report(verdicts: list[Verdict]) -> str:
    """Return the score with its 95 % Wilson interval, by kind, and all that was not caught."""
    lines = ["", "| kind | caught | of |", "|---|---|---|"]
    for kind in KINDS:
        of = [one for one in verdicts if one.kind == kind]
        lines.append(f"| {kind} | {sum(one.outcome == 'caught' for one in of)} | {len(of)} |")
    caught = sum(one.outcome == "caught" for one in verdicts)
    interval = binomtest(caught, len(verdicts)).proportion_ci(method="wilson")
    lines += ["", f"caught {caught} of {len(verdicts)}: {caught / len(verdicts):.1%}, "
              f"95 % interval {interval.low:.1%} to {interval.high:.1%}"]  # fmt: skip
    lines += [f"{one.outcome}: {one.shown} ({one.ran} of {one.tests} tests)" for one in verdicts
              if one.outcome != "caught"]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2)))
    parser.add_argument("--kept", type=Path, default=ROOT / ".mutants")
    sys.exit(main(**vars(parser.parse_args())))
