"""A validated profile is named in the report of every run on it."""

import json
from pathlib import Path

import pytest

from moebench.reports.page.page import Contents, page
from moebench.reports.sections import fidelity
from moebench.substrate.machines.profile import load_profile
from tests.reports.pages import Page
from tests.reports.samples import run

TABLE = {
    "profile_hash": "0123456789abcdef",
    "model": "wide, 957 M parameters",
    "profile": "this computer",
    "rows": [
        {
            "system": system, "spread": 0.051,
            "tpot_ms": {"measured": 118.37, "simulated": 120.74, "error": 0.02},
            "ttft_ms": {"measured": 1119.7, "simulated": 1007.7, "error": -0.1},
        }
        for system in ("smoe", "daop")
    ],
    "summary": {
        "tpot_mean": 0.031, "tpot_worst": 0.082, "ttft_worst": 0.12, "rank_correlation": 0.96,
    },
    "provenance": {"created": "2026-11-22T12:00:00+00:00"},
}  # fmt: skip


@pytest.fixture
def stored(tmp_path, monkeypatch) -> None:
    (tmp_path / "one.json").write_text(json.dumps(TABLE))
    monkeypatch.setattr(fidelity, "TABLES", tmp_path)


def test_a_validated_profile_is_named(stored):
    document = run("b0b1b2b3b4b5", system="smoe")
    document["provenance"]["profile_hash"] = TABLE["profile_hash"]
    (line,) = fidelity.notes(document)
    assert line == (
        "its profile was validated on 2026-11-22 with wide, 957 M parameters: simulated TPOT is "
        "off by 3.1% in the mean and 8.2% at worst, TTFT by 12.0% at worst; rank correlation 0.96 "
        "(smoe, daop)"
    )


def test_the_page_shows_the_table_and_the_note(stored):
    document = run("b0b1b2b3b4b5", system="smoe")
    document["provenance"]["profile_hash"] = TABLE["profile_hash"]
    found = Page(page(Contents([document]), "here"))
    assert found.data["runs"][0]["notes"] == fidelity.notes(document)
    assert "this computer, wide, 957 M parameters: TPOT off by 3.1% in the mean" in found.text
    ((_, headers, rows),) = fidelity.parts()
    assert rows[1] == ["daop", "118.4", "120.7", "+2.0", "1119.7", "1007.7", "-10.0", "5.1", "–"]
    assert len(headers) == len(rows[1])


def test_others_are_not(stored):
    document = run("b0b1b2b3b4b5", system="smoe")
    assert fidelity.notes(document) == []
    document["provenance"]["profile_hash"] = None
    assert fidelity.notes(document) == []


def test_what_is_stored_can_be_read():
    for table in fidelity.tables(fidelity.TABLES).values():
        assert table["rows"]
        assert set(TABLE["summary"]) <= set(table["summary"])


@pytest.mark.parametrize("file", sorted(fidelity.TABLES.glob("*.json")), ids=lambda file: file.stem)
def test_a_table_that_ships_is_of_the_profile_beside_it(file: Path) -> None:
    profile = load_profile(str(file.with_suffix(".yaml")))
    assert json.loads(file.read_text())["profile_hash"] == profile.content_hash()
