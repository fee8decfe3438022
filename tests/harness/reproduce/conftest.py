"""Evidence of an empty store."""

from pathlib import Path

import pytest

from moebench.harness.reproduce.evidence import Evidence
from moebench.results.store import Store


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    """Return evidence of ``--quick``, without a data folder."""
    return Evidence(Store(tmp_path), None, tmp_path, quick=True)
