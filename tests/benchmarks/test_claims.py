"""The comparison of two reproductions: equal ones agree, and every other figure is named."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.claims import differences
from moebench.results.claims import FOLDER


@pytest.fixture
def copies(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("first", "second"):
        shutil.copytree(FOLDER, tmp_path / name)
    return tmp_path / "first", tmp_path / "second"


def change(folder: Path, *path: Any, to: Any) -> None:
    """Change one value of SMoE's results."""
    file = folder / "smoe.json"
    held = json.loads(file.read_text(encoding="utf-8"))
    part = held
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = to
    file.write_text(json.dumps(held), encoding="utf-8")


def test_equal_results_agree_whenever_they_were_made(copies: tuple[Path, Path]) -> None:
    assert differences(*copies) == []
    change(copies[1], "provenance", "created", to="2027-01-01")
    assert differences(*copies) == []


def test_another_figure_is_named(copies: tuple[Path, Path]) -> None:
    change(copies[1], "claims", 0, "measured", "value", to=12345.0)
    (line,) = differences(*copies)
    assert line.startswith("smoe: claims.S-1 b1.measured.value: ")
    assert line.endswith("12345.0")


def test_a_time_of_this_computer_may_differ_and_its_verdict_may_not(
    copies: tuple[Path, Path],
) -> None:
    for folder in copies:
        change(folder, "claims", 0, "verdict", to="no verdict")
    change(copies[1], "claims", 0, "measured", "value", to=12345.0)
    assert differences(*copies) == []
    change(copies[1], "claims", 0, "verdict", to="reproduced")
    assert any("S-1 b1.verdict" in line for line in differences(*copies))


def test_a_missing_paper_is_a_difference(copies: tuple[Path, Path]) -> None:
    (copies[1] / "daop.json").unlink()
    (line,) = differences(*copies)
    assert "daop" in line
