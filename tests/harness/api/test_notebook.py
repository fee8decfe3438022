"""The notebook of the documentation runs as it is shown."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[3] / "docs" / "python.ipynb"


def printed(cell: Any) -> list[str]:
    """Return the kinds of a cell's outputs, of frames with the number of their rows."""
    return [
        f"{out.output_type} {out.get('data', {}).get('text/html', '').count('<tr')}"
        for out in cell.outputs
    ]


@pytest.fixture(scope="module")
def shown() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.mark.slow
def test_the_notebook_runs_as_it_is_shown(shown: Any, tmp_path: Path) -> None:
    fresh = nbformat.read(NOTEBOOK, as_version=4)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    client = NotebookClient(
        fresh, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    codes = [(a, b) for a, b in zip(shown.cells, fresh.cells, strict=True) if a.cell_type == "code"]
    assert len(codes) > 8
    for said, now in codes:
        assert printed(said) == printed(now), said.source
    assert sum(map(len, (cell.outputs for cell, _ in codes))) > 8


def test_the_notebook_names_no_folder_of_its_writer(shown: Any) -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert str(Path.home()) not in text
    assert "Traceback" not in text
    assert "/tmp" not in text
