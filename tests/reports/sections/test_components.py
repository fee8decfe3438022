"""The table of components as text: on its own and in the page."""

import pytest

from moebench.reports.page.page import Contents, page
from moebench.reports.sections.components import HEADERS, table
from tests.reports.samples import run

ROWS = [
    {"what": "expert, host to device", "model": "m", "machine": "a", "software": "lean",
     "published": [39.87], "unit": "ms", "charged": 39.8612, "ratio": 0.99978, "agrees": True,
     "why": None, "source": "a paper"},
    {"what": "load / device", "model": "m", "machine": "a", "software": "hf-eager",
     "published": [10.0, 100.0], "unit": "1", "charged": 7.5, "ratio": 0.75, "agrees": False,
     "why": "two links", "source": "its code"},
]  # fmt: skip


def test_figures_carry_their_units() -> None:
    first, second = (dict(zip(HEADERS, row, strict=True)) for row in table(ROWS).rows)
    assert (first["published"], first["charged"], first["ratio"]) == (
        "39.87 ms", "39.86 ms", "1.00"
    )  # fmt: skip
    assert (second["published"], second["charged"]) == ("10 to 100", "7.5")
    assert (first["why"], second["why"]) == ("", "two links")


def test_the_summary_counts() -> None:
    summary = table(ROWS).summary
    assert summary.startswith("1 of 2 within 15 %")
    assert "explains the other 1" in summary


@pytest.mark.parametrize("shown", [True, False])
def test_the_page_has_them_where_they_are_given(shown: bool) -> None:
    text = page(Contents([run()], components=ROWS if shown else ()), "here")
    assert ("two links" in text) == shown
    assert ("Components of the simulated machines" in text) == shown
