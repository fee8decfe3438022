"""A store that is not there yet."""

from pathlib import Path

import pytest

from moebench.results.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / ".moebench")
