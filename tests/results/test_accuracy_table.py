"""Accuracy tables: what is written is what is read, and nothing wrong is read."""

from pathlib import Path

import pytest

from moebench.results.accuracy_table import (
    items_from_run,
    items_path,
    read_items,
    read_table,
    row_from_run,
    write_items,
    write_table,
)
from moebench.substrate.errors import InputError
from tests.results.tables import HEADER, LINE, row, scored_run


def table(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "alpha.csv"
    path.write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    return path


# ---------------------------------------------------------------------- reading and writing


def test_a_line_is_a_row(tmp_path: Path) -> None:
    assert read_table(table(tmp_path, LINE)) == [row()]


def test_a_row_is_written_as_its_line(tmp_path: Path) -> None:
    write_table(tmp_path / "new" / "alpha.csv", [row()])
    assert (tmp_path / "new" / "alpha.csv").read_text() == f"{HEADER}\n{LINE}\n"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["alpha.csv"]


def test_a_table_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    path = table(tmp_path, LINE.rpartition(",")[0], header=HEADER.rpartition(",")[0])
    assert read_table(path) == [row(cut=None)]


def test_order_is_by_setting_kind_workload_and_alpha(tmp_path: Path) -> None:
    names = [
        ("S1", False, "gsm8k", 0.05), ("S1", False, "gsm8k", 0.5), ("S1", False, "wic", 0.0),
        ("S1", True, "facts", 0.0), ("S2", False, "gsm8k", 0.0),
    ]  # fmt: skip
    keys = ("setting", "generated", "workload", "alpha")
    rows = [row(**dict(zip(keys, name, strict=True))) for name in names]
    write_table(tmp_path / "a.csv", reversed(rows))
    write_table(tmp_path / "b.csv", rows)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    found = read_table(tmp_path / "a.csv")
    assert [tuple(getattr(one, key) for key in keys) for one in found] == names


def test_what_is_not_defined_is_an_empty_cell(tmp_path: Path) -> None:
    given = row(chance=None, agreement=None, kl=None, cache_ratio=None)
    write_table(tmp_path / "alpha.csv", [given])
    assert ",3.5178,,,,,0," in (tmp_path / "alpha.csv").read_text()
    assert read_table(tmp_path / "alpha.csv") == [given]


def test_a_failed_write_leaves_the_old_table(tmp_path: Path) -> None:
    path = table(tmp_path, LINE)
    with pytest.raises(InputError, match=r"S1 smoe gsm8k α 0\.25 generation stands already"):
        write_table(path, [row(), row(run_id="run2")])
    assert read_table(path) == [row()]
    with pytest.raises(InputError, match="cannot be written"):
        write_table(path / "below" / "alpha.csv", [row()])
    assert list(tmp_path.iterdir()) == [path]


# ---------------------------------------------------------------------- bad tables


@pytest.mark.parametrize(
    ("column", "value", "complaint"),
    [
        ("score", "100.1", "score: '100.1': Input should be less than or equal to 100"),
        ("score", "nan", "score: 'nan': Input should be a finite number"),
        ("score", "", "score: an empty cell: Input should be a valid number"),
        ("stderr", "-1", "stderr: '-1': Input should be greater than or equal to 0"),
        ("agreement", "98.1", "agreement: '98.1': Input should be less than or equal to 1"),
        ("kl", "-0.1", "kl: '-0.1': Input should be greater than or equal to 0"),
        ("alpha", "-0.05", "alpha: '-0.05': Input should be greater"),
        ("n", "0", "n: '0': Input should be greater than or equal to 1"),
        ("n", "many", "n: 'many': Input should be a valid integer"),
        ("stderr", "50.1", "stderr: '50.1': Input should be less than or equal to 50"),
        ("seed", "-1", "seed: '-1': Input should be greater than or equal to 0"),
        ("cut", "-1", "cut: '-1': Input should be greater than or equal to 0"),
        ("cache_ratio", "-0.1", "cache_ratio: '-0.1': Input should be greater than or equal to 0"),
        ("chance", "-0.1", "chance: '-0.1': Input should be greater than or equal to 0"),
        ("generated", "yes", "generated: 'yes': Value error, expected true or false"),
        ("setting", "", "setting: an empty cell: Input should be a valid string"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(
    tmp_path: Path, column: str, value: str, complaint: str
) -> None:
    cells = dict(zip(HEADER.split(","), LINE.split(","), strict=True)) | {column: value}
    path = table(tmp_path, LINE, ",".join(cells.values()))
    with pytest.raises(InputError) as caught:
        read_table(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:3: {complaint}")
    assert "\n" not in message


def test_values_at_the_ends_of_what_is_allowed(tmp_path: Path) -> None:
    """One question of which none or all are right has a standard error of 0, a half of 50."""
    least = row(alpha=0.0, n=1, score=0.0, stderr=0.0, chance=0.0, agreement=0.0, kl=0.0,
                cache_ratio=0.0, seed=0, cut=0)  # fmt: skip
    most = row(score=100.0, stderr=50.0, chance=100.0, agreement=1.0, cache_ratio=1.0)
    write_table(tmp_path / "alpha.csv", [most, least])
    assert read_table(tmp_path / "alpha.csv") == [least, most]


@pytest.mark.parametrize(
    ("header", "lines", "complaint"),
    [
        (HEADER.replace(",kl", ""), [], "alpha.csv:1: lacks the column kl; wanted: setting,"),
        (HEADER + ",mood", [], "alpha.csv:1: has the unknown column mood; wanted: setting,"),
        (HEADER.replace("n,score", "score,n"), [], "alpha.csv:1: the columns must be, in this"),
        ("", [], "alpha.csv:1: lacks the column setting"),
        (HEADER, [LINE, LINE + ",1"], "alpha.csv:3: 23 cells, 22 columns"),
        (HEADER, [LINE, LINE], "alpha.csv:3: S1 smoe gsm8k .* stands already in line 2"),
        (HEADER, ['S1,"open'], "alpha.csv:2: not CSV: unexpected end of data"),
    ],
)
def test_a_wrong_shape_is_named(
    tmp_path: Path, header: str, lines: list[str], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        read_table(table(tmp_path, *lines, header=header))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_table(tmp_path / "alpha.csv")
    (tmp_path / "alpha.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        read_table(tmp_path / "alpha.csv")


# ---------------------------------------------------------------------- from runs


def test_a_run_becomes_its_row() -> None:
    found = row_from_run(scored_run(), generated=False, category="reasoning")
    assert found == row()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"accuracy": {"score": None, "n": 0}}, "accuracy.n is 0"),
        ({"spec": {"alpha": None}}, "spec.alpha is None"),
        ({"spec": {"setting": None}}, "spec.setting is None"),
        ({"provenance": {"versions": None}}, "provenance.versions.torch is None"),
    ],
)
def test_a_run_without_a_row_says_why(change: dict[str, dict[str, object]], complaint: str) -> None:
    document = scored_run()
    for part, values in change.items():
        document[part] |= values
    with pytest.raises(InputError, match=f"^run run1 has no row .*: {complaint}: "):
        row_from_run(document, generated=False, category="reasoning")


# ---------------------------------------------------------------------- items


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("0110", "0110"),
        ({"value": [0.0, 1.0, 1, 0]}, "0110"),
        ({"value": [0.0, 0.5]}, None),
        ({"value": [None, 1.0]}, "1"),
        ({"value": []}, None),
        (None, None),
    ],
)
def test_items_of_a_run(items: object, expected: str | None) -> None:
    assert items_from_run(scored_run(items=items)) == expected


def test_items_come_back(tmp_path: Path) -> None:
    path = tmp_path / "alpha.csv"
    assert read_items(path) == {}
    write_items(path, {"run2": "0110", "run1": "1"})
    assert items_path(path) == tmp_path / "alpha.items.csv"
    assert items_path(path).read_text() == "run_id,items\nrun1,1\nrun2,0110\n"
    assert read_items(path) == {"run1": "1", "run2": "0110"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("run1,012\n", "items.csv:2: items: '012'"), ("run1,1\nrun1,1\n", "run run1 stands there tw")],
)
def test_bad_items(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "alpha.items.csv").write_text(f"run_id,items\n{text}")
    with pytest.raises(InputError, match=complaint):
        read_items(tmp_path / "alpha.csv")
