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


def test_a_page_says_how_many_systems_and_places_there_are() -> None:
    """A table without rows is left out; all are on the second level."""
    text = field_page.page([FIT, row("kt", 20.0), row("kt", 30.0, model="qwen3-30b-a3b")])
    assert "has 2 systems at 2 places." in text
    assert "has 1 system at 1 place." in field_page.page([FIT])
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert heads[0] == "# Rivals and papers on six machines"
    assert all(line.startswith("## ") for line in heads[1:])
    assert f"## {field.REASONS_TITLE}" not in heads
    assert f"## {field.TITLE}" in heads
    refused = field_page.page([FIT, row("kt", None)])
    assert f"## {field.REASONS_TITLE}" in refused
    assert text.splitlines()[2] == field_page.GENERATED


def test_a_variant_and_its_options_refuse_as_they_were_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    class Made:
        def why_not(self, shape: object, batch: int) -> str | None:
            asked.append(batch)
            return "no" if batch == 3 else None

    def build(*of: object) -> Made:
        asked.append(of)
        return Made()

    monkeypatch.setattr(field_page, "build", build)
    other = {"model": "xverse-moe-a4.2b"}
    shipped = row("daop (shipped)", 5.0, "a=1 b=x=y")
    rows = [shipped, row("kt", 4.0), row("kt", 4.0, **other)]
    assert field_page.refusals(rows) == []
    (found,) = field_page.refusals(rows, batch=3)
    assert asked == [("daop", {"a": "1", "b": "x=y"}, "shipped"), 1,
                     ("daop", {"a": "1", "b": "x=y"}, "shipped"), 3]  # fmt: skip
    assert (found.reason, found.lossless, found.tpot_ms) == ("no", None, None)
    assert (found.model, found.system) == (other["model"], "daop (shipped)")


def test_rows_of_a_store_are_of_places_whose_cells_have_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = [FIT, row("kt", 3.0, model="a"), row("kt", None, model="b")]
    places = {row.model: row.place for row in rows}
    monkeypatch.setattr(field_page, "rows_of", lambda runs, failed: rows)
    monkeypatch.setattr(field_page, "refusals", lambda rows: [FIT])
    monkeypatch.setattr(field_page, "unfinished", lambda cells: {places["a"]})
    assert field_page.from_store(tmp_path) == [rows[0], rows[2], FIT]
    monkeypatch.setattr(field_page, "unfinished", lambda cells: {places["a"], FIT.place})
    with pytest.raises(UsageError, match="no place with a context where all cells have ended"):
        field_page.from_store(tmp_path)


def test_the_command_writes_the_rows_of_a_store_before_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[object] = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(field_page, "from_store", lambda folder: [folder])
    monkeypatch.setattr(field_page, "write_field", told.append)
    monkeypatch.setattr(field_page, "read_field", lambda file: [FIT] if file == FILE else [])
    assert field_page.main(["store"]) == 0
    assert told == [[Path("store")]]
    assert (tmp_path / field_page.PAGE).read_text("utf-8") == field_page.page([FIT])
    assert capsys.readouterr().out == "docs/field.md\n"
