"""One page of three runs for all tests, as a file, as text and taken apart."""

from pathlib import Path

import pytest

from moebench.reports.page.page import Contents, render
from tests.reports.pages import Page
from tests.reports.samples import RUNS, TIMELINES


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "new" / "report.html"
    render(Contents(RUNS, timelines=TIMELINES), out, source=".moebench")
    return out


@pytest.fixture(scope="session")
def text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def page(text: str) -> Page:
    return Page(text)
