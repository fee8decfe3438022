"""Build backend of moebench: setuptools', but an editable install does not require the weights.

A wheel of moebench requires ``moebench-weights`` of the same version.  An editable install reads
the weights from its checkout; with the requirement, pip would look for them on a package index.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable",
    "get_requires_for_build_sdist", "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable", "prepare_metadata_for_build_wheel",
]  # fmt: skip

#: Beginning of the line of METADATA that an editable install lacks.
WEIGHTS = "Requires-Dist: moebench-weights"


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: dict[str, Any] | None = None
) -> str:
    """Write the metadata of an editable install, without the requirement of the weights."""
    name: str = build_meta.prepare_metadata_for_build_editable(metadata_directory, config_settings)
    file = Path(metadata_directory) / name / "METADATA"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(WEIGHTS)]
    file.write_text("".join(kept), encoding="utf-8")
    return name


def build_editable(
    wheel_directory: str, config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:  # fmt: skip
    """Build an editable wheel with the metadata of `prepare_metadata_for_build_editable`."""
    # Front ends pass the folder of the metadata or the one above it, or none: write it again.
    with TemporaryDirectory() as folder:
        prepare_metadata_for_build_editable(folder, config_settings)
        name: str = build_meta.build_editable(wheel_directory, config_settings, folder)
    return name
