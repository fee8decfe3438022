"""The page of the field sweep: made from its file, and the first table of the report."""

from pathlib import Path

import pytest

from moebench.reports import field as field_page
from moebench.reports.page.sections import tables
from moebench.reports.sections import field
from moebench.results.field import FILE, read_field
from moebench.substrate.errors import UsageError
from tests.reports.sections.test_field import FIT, row
from tests.results.test_field import run

ROOT = Path(__file__).parents[2]


def test_the_committed_page_is_made_from_the_committed_rows() -> None:
    rows = read_field()
    text = (ROOT / field_page.PAGE).read_text("utf-8")
    assert text == field_page.page(rows), "make field"
    first = rows[0].model_copy(update={"tpot_ms": 1e-3, "lossless": True, "reason": None})
    assert text != field_page.page([first, *rows[1:]])
    assert FILE.is_file()


def test_a_system_that_refuses_a_model_has_a_row_with_its_reason() -> None:
    """llama.cpp has no file of XVERSE-MoE; it has one of gpt-oss-120b."""
    other = {"model": "xverse-moe-a4.2b"}
    rows = [FIT, row("moe-ondemand", 9.0), row("moe-ondemand", 9.0, **other)]
    (found,) = field_page.refusals(rows)
    assert (found.name, found.model, found.tpot_ms) == ("llamacpp place=fit", other["model"], None)
    assert found.reason is not None
    assert "no GGUF file" in found.reason
    assert field_page.refusals(rows[:2]) == []
    assert field_page.refusals([FIT, row("gone", 9.0, **other)])[0].name == "llamacpp place=fit"


def test_the_field_is_the_first_table_of_the_report() -> None:
    runs = [run(40.0), run(20.0, system="ktransformers", overrides={}, software="kt")]
    (section,) = [one for name, one in tables(runs, [], [], []).items() if name == "field"]
    assert section.title == field.TITLE
    assert section.parts[0].rows[0][3] == "ktransformers"
    others = [run(40.0, context=0)]
    assert "field" not in tables(others, [], [], [])


def test_a_store_without_a_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="moebench sweep field --store"):
        field_page.from_store(tmp_path)


def test_the_command_says_in_one_line_what_is_missing(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert field_page.main([str(tmp_path / "nowhere")]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("moebench: ")
    assert not (tmp_path / "docs").exists()
    (tmp_path / "docs").mkdir()
    assert field_page.main([]) == 0
    assert (tmp_path / field_page.PAGE).read_text("utf-8").startswith("# Rivals")
