"""``moebench doctor --system``: the conformance suite on one system or on all that ship."""

import json
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import cast, get_args

from moebench.harness import console
from moebench.harness.conformance.cases import CASES
from moebench.harness.conformance.suite import CHECKS, Finding, Report, check_system
from moebench.substrate.errors import UsageError
from moebench.systems.registry import SYSTEMS, Variant, system_class, variants_of

#: A system in a variant.
Subject = tuple[str, Variant]


def conformance_command(system: str, variant: str | None, jobs: int, as_json: bool) -> int:
    """Check, show; 0 where nothing failed, else 1."""
    subjects = _subjects(system, variant)
    if system != "all":
        console.say_refused([system])
    with tempfile.TemporaryDirectory(prefix="moebench-") as scratch:
        reports = list(_reports(subjects, jobs, Path(scratch)))
    findings = [found for report in reports for found in report.findings]
    findings += [_nowhere(report) for report in reports if not report.ran]
    failed = [found for found in findings if found.state == "failed"]
    if as_json:
        rows = [asdict(found) for found in findings]
        print(json.dumps({"ok": not failed, "findings": rows}, sort_keys=True))
    else:
        _show(findings)
    return 1 if failed else 0


def _subjects(system: str, variant: str | None) -> list[Subject]:
    """What is to be checked.

    Raises:
        UnknownNameError, UsageError: no such system or variant, or it cannot be imported.
    """
    if system == "all":
        found = [(n, v) for n in sorted(SYSTEMS) for v in variants_of(n) if variant in (None, v)]
        if not found:
            raise UsageError(f"--variant {variant}: allowed: {', '.join(get_args(Variant))}")
        return found
    wanted = variants_of(system) if variant is None else (variant,)
    for one in wanted:
        system_class(system, one)
    return [(system, cast(Variant, one)) for one in wanted]


def _reports(subjects: Sequence[Subject], jobs: int, scratch: Path) -> Iterator[Report]:
    """In the order of the subjects; several at once on processes of their own."""
    if jobs == 1 or len(subjects) == 1:
        for name, variant in subjects:
            with console.progress(f"{name}, {variant}") as progress:
                yield check_system(name, variant, CASES, progress, scratch)
        return
    spawn = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads
    pool = ProcessPoolExecutor(jobs, spawn, initializer=_end_with_parent)
    with pool, console.progress("doctor") as progress:
        work = partial(check_system, cases=CASES, scratch=scratch)
        futures = [pool.submit(work, *subject) for subject in subjects]
        for done, _ in enumerate(as_completed(futures), start=1):
            progress(done, len(futures))
    yield from (future.result() for future in futures)


def _end_with_parent() -> None:
    """A worker of this pool would wait for work for ever if its parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _nowhere(report: Report) -> Finding:
    """A system that exists in no case would pass without having been looked at."""
    one = report.findings[0]
    why = "it exists in no case, so nothing was checked"
    return Finding(one.system, one.variant, "runs", None, "failed", why)


# ----------------------------------------------------------------------------- showing


def _show(findings: Sequence[Finding]) -> None:
    """A row a system; below, what failed and what could not be checked, alike lines together."""
    found: dict[tuple[str, str], list[Finding]] = {}
    for one in findings:
        found.setdefault((one.title, one.check), []).append(one)
    titles = dict.fromkeys(title for title, _ in found)
    rows = [[title, *(_state(found.get((title, c), [])) for c in CHECKS)] for title in titles]
    console.table("conformance", ["system", *CHECKS], rows)
    details = [
        line for (title, check), all_ in found.items() for line in _lines(title, check, all_)
    ]
    if details:
        details.sort(key=lambda line: line[2] != "failed")
        console.table("details", ["system", "check", "state", "where", "why"], details)


def _state(found: Sequence[Finding]) -> str:
    """``ok``, ``n/a``, or how many cases failed; how many could not be checked."""
    states = [one.state for one in found]
    if "failed" in states:
        return f"FAILED {states.count('failed')} of {len(states)}"
    if "ok" not in states:
        return "n/a"
    return "ok" if "n/a" not in states else f"ok, {states.count('n/a')} n/a"


def _lines(title: str, check: str, found: Sequence[Finding]) -> Iterator[list[str]]:
    """What is not ok, with the cases in which it is so."""
    alike: dict[tuple[str, str], list[str]] = {}
    for one in found:
        if one.state != "ok":
            alike.setdefault((one.state, one.detail), []).append(str(one.case or "-"))
    for (state, why), where in alike.items():
        everywhere = len(where) == len(found) > 1
        yield [title, check, state, "every case" if everywhere else "; ".join(where), why]
