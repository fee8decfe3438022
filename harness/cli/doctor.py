"""``moebench doctor``: checks this installation, and says what to type where it is broken."""

import json
import os
import platform
import re
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.substrate.errors import MoeBenchError

Finding = tuple[str, bool, str]


def examine(data_dir: Path | None, store: Path, as_json: bool) -> int:
    """Print one line a check; returns 0 when nothing that a run needs is broken, else 1."""
    checks: list[Callable[[], Finding]] = [
        _moebench,
        _python,
        _platform,
        _torch,
        _packages,
        _scale_models,
        _profiles,
        lambda: _data(data_dir),
        lambda: _store(store),
    ]
    findings = [check() for check in checks]
    if as_json:
        keys = ("check", "ok", "detail")
        print(json.dumps([dict(zip(keys, f, strict=True)) for f in findings]))
    else:
        rows = [[name, "ok" if ok else "BROKEN", detail] for name, ok, detail in findings]
        console.table("doctor", ["check", "state", "detail"], rows)
    return 0 if all(ok for _, ok, _ in findings) else 1


def _moebench() -> Finding:
    from moebench.harness.run.provenance import commit, versions

    of = commit()
    return "moebench", True, f"{versions()['moebench']}, " + (f"commit {of}" if of else "installed")


def _platform() -> Finding:
    from moebench.harness.run.provenance import processor

    return "platform", True, f"{platform.platform()}, {processor()}"


def _packages() -> Finding:
    """Every package that ours names, with its version; those of extras may be absent."""
    needed = [
        [*re.split(r"[^\w.-]", line, maxsplit=1), line] for line in requires("moebench") or []
    ]
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


def _python() -> Finding:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    detail = f"{platform.python_version()}, {os.cpu_count()} cores, {memory:.0f} GiB memory"
    return "python", True, detail


def _torch() -> Finding:
    import torch

    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    return "torch", True, f"{torch.__version__}, {torch.get_num_threads()} threads, {cuda}"


def _scale_models() -> Finding:
    from moebench.substrate.models.catalogue import scale_names, scale_path
    from moebench.substrate.models.weights import Checkpoint

    try:
        sizes = [_describe(name, Checkpoint(scale_path(name))) for name in scale_names()]
    except MoeBenchError as error:
        return "scale models", False, str(error)
    return "scale models", bool(sizes), ", ".join(sizes) or "none installed; reinstall moebench"


def _describe(name: str, checkpoint: Any) -> str:
    return f"{name} ({checkpoint.shape.total_params / 1e6:.1f} M parameters)"


def _profiles() -> Finding:
    from moebench.substrate.machines.profile import load_profile, profile_names

    try:
        count = len([load_profile(name) for name in profile_names()])
    except MoeBenchError as error:
        return "machines", False, str(error)
    return "machines", True, f"{count} profiles"


def _data(data_dir: Path | None) -> Finding:
    from moebench.harness.arguments import find_data_dir

    try:
        found = find_data_dir(data_dir)
    except MoeBenchError as error:
        return "data", False, str(error)
    if found is None:
        return "data", True, "no folder; generated workloads only (--data-dir DIR for real sets)"
    sets = sorted(p.parent.name for p in found.glob("*/test.jsonl"))
    return "data", True, f"{found}: {len(sets)} sets"


def _store(store: Path) -> Finding:
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
