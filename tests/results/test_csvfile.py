"""CSV files: columns in order, damage named by file and line, cells that are no formulas."""

from pathlib import Path

import pytest
from pydantic import Field

from moebench.results.csvfile import TableRow, csv_text, read_rows
from moebench.substrate.errors import InputError


class Row(TableRow):
    """A name, a number and two columns that a file may lack at its end."""

    name: str
    score: float | None = Field(ge=0)
    n: int = 7
    note: str | None = None


def written(folder: Path, text: str) -> Path:
    file = folder / "rows.csv"
    file.write_text(text, encoding="utf-8", newline="")
    return file


def test_cells_are_values_and_empty_ones_none(tmp_path: Path) -> None:
    file = written(tmp_path, 'name,score,n,note\na,1.5,2,x\n"b,c",,3,\n')
    assert read_rows(file, Row) == [
        Row(name="a", score=1.5, n=2, note="x"), Row(name="b,c", score=None, n=3, note=None)
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "n"), [("name,score\na,1\n", 7), ("name,score,n\na,1,2\n", 2)])
def test_last_columns_may_be_absent(tmp_path: Path, text: str, n: int) -> None:
    assert read_rows(written(tmp_path, text), Row) == [Row(name="a", score=1.0, n=n)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ":1: lacks the column name, score; wanted: name,score"),
        ("name\n", ":1: lacks the column score; wanted: name,score"),
        ("name,score,note\n", ":1: lacks the column n; wanted: name,score,n,note"),
        ("name,score,x,y\n", ":1: has the unknown column x, y; wanted: name,score"),
        ("score,name\n", ":1: the columns must be, in this order: name,score"),
        ("name,score\na,1\nb\n", ":3: 1 cells, 2 columns"),
        ("name,score\na,1,2\n", ":2: 3 cells, 2 columns"),
        ("name,score\na,-1\n", ":2: score: '-1': "),
        ("name,score\na,nan\n", ":2: score: 'nan': "),
        ("name,score,n\na,1,\n", ":2: n: an empty cell: "),
        ("name,score\n,1\n", ":2: name: an empty cell: "),
        ('name,score\n"a,1\n', ": not CSV: "),
    ],
)  # fmt: skip
def test_damage_is_named_by_file_and_line(tmp_path: Path, text: str, says: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_rows(file, Row)
    assert str(caught.value).startswith(str(file))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_absent_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv cannot be read: No such file or directory$"):
        read_rows(tmp_path / "none.csv", Row)
    (tmp_path / "binary.csv").write_bytes(b"name,score\n\xff,1\n")
    with pytest.raises(InputError, match=r"binary\.csv is not UTF-8 text: invalid start byte$"):
        read_rows(tmp_path / "binary.csv", Row)


@pytest.mark.parametrize("name", ["=1+1", "@x", "+x", "-x", "'quoted", "plain", "a,b", "'=1"])
def test_what_looks_like_a_formula_is_written_with_an_apostrophe(tmp_path: Path, name: str) -> None:
    text = csv_text(["name", "score"], [[name, "1"]])
    assert read_rows(written(tmp_path, text), Row) == [Row(name=name, score=1.0)]
    assert text.splitlines()[1].lstrip('"')[0] not in "=@+-"
    assert text.startswith("name,score\n")
    assert "\r" not in text


def test_rows_are_frozen_and_have_no_other_fields() -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        Row.model_validate({"name": "a", "score": 1, "x": 2})
    with pytest.raises(ValueError, match="frozen"):
        Row(name="a", score=1).name = "b"
