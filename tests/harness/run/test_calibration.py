"""Which texts a learning system is shown, unless it is told."""

from pathlib import Path

import pytest

from moebench.harness.run.calibration import source
from moebench.harness.run.spec import resolve


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder that holds ShareGPT."""
    (tmp_path / "sharegpt").mkdir()
    (tmp_path / "sharegpt" / "train.jsonl").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("system", "has_sharegpt", "told", "learns_from"),
    [
        ("daop", True, None, "sharegpt"),
        ("daop", False, None, "facts"),
        ("flashmoe", True, None, "sharegpt"),
        ("duoserve", True, None, "facts"),  # DuoServe-MoE §4: a part of the data set itself
        ("duoserve", True, "passages", "passages"),
        ("daop", True, "passages", "passages"),
    ],
)
def test_whose_train_half(
    data: Path, system: str, has_sharegpt: bool, told: str | None, learns_from: str
) -> None:
    folder = data if has_sharegpt else None
    spec = resolve(folder, system=system, setting="D1", workload="facts", calibrate_from=told)
    assert source(spec, folder).name == learns_from
