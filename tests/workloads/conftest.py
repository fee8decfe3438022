"""The folder of evaluation data, if available."""

import os
from pathlib import Path

import pytest

DEFAULT = Path(__file__).parents[2] / ".." / "shared" / "data"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return ``MOEBENCH_DATA_DIR``, else ``../shared/data`` of the repository, or skip."""
    folder = Path(os.environ.get("MOEBENCH_DATA_DIR", DEFAULT)).resolve()
    if not folder.is_dir():
        pytest.skip("no evaluation data: set MOEBENCH_DATA_DIR to its folder")
    return folder
