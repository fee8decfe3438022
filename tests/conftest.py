"""Selects hypothesis's examples: the same ones in every run, or new ones (`make fuzz`).

With ``MOEBENCH_REQUIRE=1`` a skipped test fails: for targets whose own test must not be skipped.
"""

import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.browser import started
from tests.modules import forget

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("MOEBENCH_EXAMPLES", "repeatable"))


def pytest_collection_finish() -> None:
    """Keep the collector from visiting all that collection imported: 0.4 s each time.

    Runs freeze what exists before them, and unfreeze all of it at their end; here, neither.
    """
    gc.collect()
    gc.freeze()
    gc.freeze = gc.unfreeze = lambda: None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("MOEBENCH_REQUIRE"):
        report.outcome, report.longrepr = "failed", f"skipped, and required: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return a Chromium that runs for the whole session."""
    yield from started()


@pytest.fixture(scope="module", autouse=True)
def _modules_of_other_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget the modules that a file's tests wrote: another file's tests write ``mine.py``, too."""
    path = [*sys.path]
    yield
    sys.path[:] = path
    forget(tmp_path_factory.getbasetemp())
