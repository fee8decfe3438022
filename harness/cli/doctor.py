"""``moebench doctor``: checks the installation, or the conformance of systems."""

import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moebench.harness import console
from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, PER_CORE, STORE, option
from moebench.substrate.errors import MoeBenchError, UsageError

if TYPE_CHECKING:
    from moebench.harness.conformance.suite import Finding, Report
    from moebench.systems.registry import Variant


def doctor(
    system: Annotated[
        str | None,
        option("Check a system instead of the installation: a name, module:Class, or all."),
    ] = None,
    variant: Annotated[
        str | None, option("Variant of the system to check: published, shipped or earlier [all].")
    ] = None,
    jobs: Annotated[
        int, option("Number of worker processes.", min=1, show_default=PER_CORE)
    ] = os.cpu_count() or 1,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Check this installation (packages, models, data, store), or a system's conformance.

    Exit code: 0 every check passed, 1 a check failed.
    """
    if system is not None:
        raise typer.Exit(_check_systems(system, variant, jobs, json))
    if variant is not None:
        raise typer.BadParameter("--variant is a system's: give --system NAME")
    raise typer.Exit(_check_installation(data_dir, store, json))


# ----------------------------------------------------------------------------- the installation

#: A check's name, whether it passed, and what was found.
Checked = tuple[str, bool, str]


def _check_installation(data_dir: Path | None, store: Path, json: bool) -> int:
    """Print one line per check; return 0 if every check passed, else 1."""
    checks: list[Callable[[], Checked]] = [
        _moebench, _python, _platform, _torch, _packages, _scale_models, _profiles,
        lambda: _data(data_dir), lambda: _store(store),
    ]  # fmt: skip
    found = [check() for check in checks]
    if json:
        keys = ("check", "ok", "detail")
        console.print_json([dict(zip(keys, f, strict=True)) for f in found], sort_keys=False)
    else:
        rows = [[name, "ok" if ok else "BROKEN", detail] for name, ok, detail in found]
        console.table("doctor", ["check", "state", "detail"], rows)
    return 0 if all(ok for _, ok, _ in found) else 1


def _moebench() -> Checked:
    from moebench.harness.run.document import commit, versions

    of = commit()
    return "moebench", True, f"{versions()['moebench']}, " + (f"commit {of}" if of else "installed")


def _platform() -> Checked:
    from moebench.harness.run.document import processor

    return "platform", True, f"{platform.platform()}, {processor()}"


def _packages() -> Checked:
    """Check every required package; optional packages may be absent."""
    from importlib.metadata import PackageNotFoundError, requires, version

    # Its own extras are not packages, and `_scale_models` checks the weights by their files.
    lines = [line for line in requires("moebench") or [] if not line.startswith("moebench")]
    needed = [[*re.split(r"[^\w.-]", line, maxsplit=1), line] for line in lines]
    found: dict[str, str] = {}
    missing = []
    for name, *rest in needed:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "-"
            if "extra ==" not in rest[-1]:
                missing.append(name)
    if missing:
        return "packages", False, f"missing: {', '.join(missing)}; reinstall moebench"
    return "packages", True, ", ".join(f"{name} {found[name]}" for name in sorted(found))


def _python() -> Checked:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    detail = f"{platform.python_version()}, {os.cpu_count()} cores, {memory:.0f} GiB memory"
    return "python", True, detail


def _torch() -> Checked:
    import torch

    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    return "torch", True, f"{torch.__version__}, {torch.get_num_threads()} threads, {cuda}"


def _scale_models() -> Checked:
    from moebench.harness.extras import require_weights
    from moebench.substrate.models.catalogue import scale_names, scale_path
    from moebench.substrate.models.checkpoint import Checkpoint

    try:
        require_weights()
        sizes = [
            f"{name} ({Checkpoint(scale_path(name)).shape.total_params / 1e6:.1f} M parameters)"
            for name in scale_names()
        ]
    except MoeBenchError as error:
        return "scale models", False, str(error)
    return "scale models", bool(sizes), ", ".join(sizes) or "none installed; reinstall moebench"


def _profiles() -> Checked:
    from moebench.substrate.machines.profile import load_profile, profile_names

    try:
        count = len([load_profile(name) for name in profile_names()])
    except MoeBenchError as error:
        return "machines", False, str(error)
    return "machines", True, f"{count} profiles"


def _data(data_dir: Path | None) -> Checked:
    from moebench.harness.arguments import find_data_dir

    try:
        found = find_data_dir(data_dir)
    except MoeBenchError as error:
        return "data", False, str(error)
    if found is None:
        return "data", True, "no folder; generated workloads only (--data-dir DIR for real sets)"
    sets = sorted(p.parent.name for p in found.glob("*/test.jsonl"))
    return "data", True, f"{found}: {len(sets)} sets"


def _store(store: Path) -> Checked:
    from moebench.harness.arguments import require_writable
    from moebench.results.schema import SCHEMA_VERSION
    from moebench.results.store import Store

    try:
        require_writable(store)
        runs, schema = len(Store(store).runs()), Store(store).schema()
    except MoeBenchError as error:
        return "store", False, str(error)
    parent = next(p for p in (store, *store.absolute().parents) if p.exists())
    free = shutil.disk_usage(parent).free / 1e9
    written = f"schema {schema}, this version's is {SCHEMA_VERSION}" if schema else "none yet"
    return "store", True, f"{store}: {runs} runs, {free:.0f} GB free; {written}"


# ----------------------------------------------------------------------------- systems

#: A system in a variant.
Subject = tuple[str, "Variant"]


def _check_systems(system: str, variant: str | None, jobs: int, json: bool) -> int:
    """Run the conformance suite; return 0 if every case passed, else 1."""
    import tempfile
    from dataclasses import asdict

    subjects = _subjects(system, variant)
    if system != "all":
        console.say_refused([system])
    with tempfile.TemporaryDirectory(prefix="moebench-") as scratch:
        reports = list(_reports(subjects, jobs, Path(scratch)))
    findings = [found for report in reports for found in report.findings]
    findings += [_nowhere(report) for report in reports if not report.ran]
    failed = [found for found in findings if found.state == "failed"]
    if json:
        rows = [asdict(found) for found in findings]
        console.print_json({"ok": not failed, "findings": rows})
    else:
        _show(findings)
    return 1 if failed else 0


def _subjects(system: str, variant: str | None) -> list[Subject]:
    """Return the systems and variants to check.

    Raises UnknownNameError, UsageError: no such system or variant, or it cannot be imported.
    """
    from typing import cast, get_args

    from moebench.systems.registry import SYSTEMS, Variant, system_class, variants_of

    if system == "all":
        found = [(n, v) for n in sorted(SYSTEMS) for v in variants_of(n) if variant in (None, v)]
        if not found:
            raise UsageError(f"--variant {variant}: allowed: {', '.join(get_args(Variant))}")
        return found
    wanted = variants_of(system) if variant is None else (variant,)
    for one in wanted:
        system_class(system, one)
    return [(system, cast(Variant, one)) for one in wanted]


def _reports(subjects: Sequence[Subject], jobs: int, scratch: Path) -> Iterator["Report"]:
    """Yield the reports of all systems in order, computed by several processes."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from functools import partial

    from moebench.harness.conformance.cases import CASES
    from moebench.harness.conformance.suite import check_system
    from moebench.harness.sweep.pool import end_with_parent

    if jobs == 1 or len(subjects) == 1:
        for name, variant in subjects:
            with console.progress(f"{name}, {variant}") as progress:
                yield check_system(name, variant, CASES, progress, scratch)
        return
    spawn = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads
    pool = ProcessPoolExecutor(jobs, spawn, initializer=end_with_parent)
    with pool, console.progress("doctor") as progress:
        work = partial(check_system, cases=CASES, scratch=scratch)
        futures = [pool.submit(work, *subject) for subject in subjects]
        for done, _ in enumerate(as_completed(futures), start=1):
            progress(done, len(futures))
    yield from (future.result() for future in futures)


def _nowhere(report: "Report") -> "Finding":
    """Return a failure for a system that supports no case and so was never checked."""
    from moebench.harness.conformance.suite import Finding

    one = report.findings[0]
    why = "it exists in no case, so nothing was checked"
    return Finding(one.system, one.variant, "runs", None, "failed", why)


def _show(findings: Sequence["Finding"]) -> None:
    """Print one row per system, then its failures, with equal lines merged."""
    from moebench.harness.conformance.suite import CHECKS

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


def _state(found: Sequence["Finding"]) -> str:
    """Return ``ok``, ``n/a``, or the numbers of failed and unchecked cases."""
    states = [one.state for one in found]
    if "failed" in states:
        return f"FAILED {states.count('failed')} of {len(states)}"
    if "ok" not in states:
        return "n/a"
    return "ok" if "n/a" not in states else f"ok, {states.count('n/a')} n/a"


def _lines(title: str, check: str, found: Sequence["Finding"]) -> Iterator[list[str]]:
    """Return the failures of a system, each with its cases."""
    alike: dict[tuple[str, str], list[str]] = {}
    for one in found:
        if one.state != "ok":
            alike.setdefault((one.state, one.detail), []).append(str(one.case or "-"))
    for (state, why), where in alike.items():
        everywhere = len(where) == len(found) > 1
        yield [title, check, state, "every case" if everywhere else "; ".join(where), why]
