"""Where a number comes from: versions, commit, hashes, machine and data of a run."""

import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from moebench.harness.run.identity import code_hash
from moebench.harness.run.session import Prepared
from moebench.substrate.machines import accelerator
from moebench.substrate.machines.profile import HardwareProfile


def provenance(session: Prepared, profile: HardwareProfile | None) -> dict[str, Any]:
    """The ``provenance`` part of a run; ``profile`` is None for a local machine."""
    spec, sample, hashes = session.spec, session.sample, session.hashes
    drawn = f"{len(sample.examples)} of {sample.available}"
    here = processor()
    if profile is None and spec.device == "cuda":
        here = f"{accelerator.Cuda().name}; {here}"
    calibration = None if profile is None else profile.calibration
    return {
        "versions": versions(),
        "commit": commit(),
        "code_hash": code_hash(),
        "system_hash": hashes["system"],
        "machine": here if profile is None else spec.machine,
        "profile": None if profile is None else profile.description,
        "profile_hash": None if profile is None else hashes["profile"],
        "profile_error": None if calibration is None else calibration.error.ratio,
        "weights": spec.weights or f"scale model of {spec.model}",
        "weights_hash": hashes["weights"],
        "data": f"{sample.source}: {drawn}, seed {sample.seed}",
        "data_hash": hashes["data"],
        "threads": torch.get_num_threads(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def processor() -> str:
    """This computer's, as it calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        named = next(line for line in lines if line.startswith("model name"))
        return named.partition(":")[2].strip()
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def versions() -> dict[str, str | None]:
    """Of what computes: Python and the packages that results depend on."""
    names = ("moebench", "torch", "numpy", "tokenizers")
    return {name: _version(name) for name in names} | {"python": platform.python_version()}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """The checkout's commit, where moebench runs from one."""
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists() or shutil.which("git") is None:
        return None
    done = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True
    )
    return done.stdout.strip() or None
