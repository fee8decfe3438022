"""The grid's file: small, and read as it was written."""

import json
from pathlib import Path

import pytest

from moebench.harness.advise.grid import (
    FILE,
    choices_of,
    from_columns,
    read_grid,
    rounded,
    to_columns,
    write_grid,
)
from moebench.substrate.errors import InputError
from tests.harness.advise.grids import CONTEXTS, grid, point, row


@pytest.mark.parametrize("name", ["grid.json", "grid.json.gz"])
def test_a_grid_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    rows = (
        row(decode=12.3, decode_low=None, disk_gib=0.5, prefill=1230.0),
        row("b", checked=False),
    )
    written = grid(points=(point(0, "m", "q", 2048, rows=rows), point(1, "m", "q", 8192, rows=())))
    rounded_rows = (rows[0]._replace(decode_high=15.4), rows[1])
    write_grid(tmp_path / name, written)
    found = read_grid(tmp_path / name)
    assert found.points[0].rows == rounded_rows
    for read in found.points[0].rows:
        flags = (type(read.lossless), type(read.checked), type(found.points[0].fits))
        assert flags == (bool, bool, bool), "0 and 1 would be written as numbers in an answer"
    assert found.points[1] == written.points[1]
    assert (found.machines, found.errors, found.between) == (
        written.machines, written.errors, written.between,
    )  # fmt: skip


def test_a_text_is_stored_once() -> None:
    columns = to_columns(grid())
    assert len(columns["texts"]) == len(set(columns["texts"]))
    assert columns["texts"].count("gpt-oss-120b") == 1
    assert len(columns["rows"]["engine"]) == sum(columns["points"]["rows"])


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (12.345, "12.3"), (1234.5, "1230"), (0.0, "0"), (0.012345, "0.0123")],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert json.dumps(rounded(value)) == text


def test_choices_are_the_machines_models_and_formats() -> None:
    found = choices_of(grid())
    assert len(found) == len({*found}) == len(grid().points) / len(CONTEXTS)
    assert found[0] == (0, "gpt-oss-120b", "mxfp4")


def test_a_file_that_is_no_grid_is_refused_with_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "grid.json"
    with pytest.raises(InputError, match=r"grid\.json: no such file; build it: make advice"):
        read_grid(broken)
    older = to_columns(grid()) | {"format": 0}
    short = to_columns(grid())
    short["rows"]["engine"].pop()
    for text, said in (
        ("{", "is no grid"), ("[]", "is no grid"), (json.dumps(older), "format 0; allowed: 1"),
        (json.dumps(short), "is no grid"),
    ):  # fmt: skip
        broken.write_text(text)
        with pytest.raises(InputError, match=said):
            read_grid(broken)
    (tmp_path / "grid.json.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(InputError, match="is no grid"):
        read_grid(tmp_path / "grid.json.gz")


def test_rows_need_their_texts() -> None:
    columns = to_columns(grid())
    columns["texts"] = columns["texts"][:3]
    with pytest.raises(InputError, match="x: is no grid"):
        from_columns(columns, "x")


def test_the_grid_that_ships_is_small_and_complete() -> None:
    assert FILE.stat().st_size < 5_000_000
    shipped = read_grid()
    assert len({point.model for point in shipped.points}) >= 12
    assert len(shipped.machines) >= 14
    assert {point.machine for point in shipped.points} == {*range(len(shipped.machines))}
    assert any(point.rows for point in shipped.points)
