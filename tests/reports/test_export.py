"""CSV and LaTeX: the same numbers, nothing that breaks a table."""

import csv
from pathlib import Path

import pytest

from moebench.reports.accuracy import views
from moebench.reports.export import latex, write_csv, write_latex
from moebench.substrate.errors import InputError
from tests.reports.alpha import ITEMS, ROWS
from tests.reports.samples import RUNS

VIEWS = views(ROWS, ITEMS)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_holds_the_stored_numbers(tmp_path: Path) -> None:
    runs, accuracy = write_csv(RUNS, tmp_path / "new", VIEWS)
    first, _, traced = read(runs)
    assert first["tpot_ms"] == "61.23456"
    assert first["badge"] == "estimate"
    assert traced["tpot_ms"] == ""
    cells = read(accuracy)
    assert len(cells) == len(ROWS)
    assert (cells[0]["workload"], cells[0]["alpha"], cells[0]["score"]) == ("gsm8k", "0.0", "45.0")


def test_without_an_accuracy_table_there_is_one_file(tmp_path: Path) -> None:
    assert [path.name for path in write_csv(RUNS, tmp_path)] == ["runs.csv"]
    assert [path.name for path in write_latex(RUNS, tmp_path)] == ["runs.tex"]


def test_latex_tables_are_rectangular(tmp_path: Path) -> None:
    files = write_latex(RUNS, tmp_path, VIEWS)
    assert [path.name for path in files] == [
        "runs.tex", "accuracy-S1-smoe.tex", "verdict-S1-smoe.tex"
    ]  # fmt: skip
    for path in files:
        top, *lines = path.read_text(encoding="utf-8").splitlines()
        columns = top.removeprefix("\\begin{tabular}{").removesuffix("}")
        rows = [line.replace(r"\&", "") for line in lines if not line.startswith("\\")]
        assert rows
        assert {row.count("&") for row in rows} == {len(columns) - 1}
        assert all(row.endswith(r" \\") for row in rows)
    assert r"45.0 $\pm$ 3.5 & 44.0 $\pm$ 3.5" in files[1].read_text(encoding="utf-8")


def test_special_characters_are_escaped() -> None:
    assert r"a\_b \& 50\% \textbackslash{}x & y" in latex(["a_b & 50% \\x", "y"], [])


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_csv(RUNS, tmp_path / "file")
