"""The HTML report stays small for large stores; `benchmarks.page` measures its speed."""

from pathlib import Path

import pytest

from benchmarks.page import contents
from moebench.reports.page.page import render


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "megabytes"), [(200, 5), (2000, 10)])
def test_the_page_of_many_runs_is_small(tmp_path: Path, runs: int, megabytes: int) -> None:
    found = contents(runs)
    assert len(found.runs) == runs
    render(found, tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < megabytes * 1e6
