"""Reading of published rows: values, properties, and each refusal with its accepted counterpart."""

import math
from pathlib import Path

import pytest

from moebench.harness.published import rows as rows_module
from moebench.harness.published.rows import COLUMNS, FOLDER, Row, read_rows, shipped
from moebench.substrate.errors import InputError
from tests.harness.published.made import CELLS, row, write


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_rows(path)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_shipped_rows_are_read_with_their_absolute_ids() -> None:
    found = read_rows(shipped())
    assert len(found) == 384
    listed = set((FOLDER / "absolute.txt").read_text().split())
    assert {one.id for one in found if one.absolute} == listed
    assert len({one.group for one in found}) == 122
    assert read_rows(FOLDER / "develop.csv") == found
    assert all(one.owner and one.system and one.model for one in found)


def test_absent_shipped_rows_are_one_clear_line(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(rows_module, "FOLDER", tmp_path / "measured")
    with pytest.raises(InputError, match="has no rows; give a file or folder"):
        shipped()
    (tmp_path / "measured").mkdir()
    assert shipped() == tmp_path / "measured"


def test_readme_of_shipped_rows_documents_every_column() -> None:
    text = (FOLDER / "README.md").read_text()
    assert [name for name in COLUMNS if f"`{name}`" not in text] == []


def test_numbers_are_numbers_and_texts_are_kept(tmp_path) -> None:
    cells = {"ram_channels": "8 per socket", "notes": ' "two", \nlines ', "threads": "16.0",
             "hit_rate": "0", "n_cpu_moe": " 31 ", "bits_per_weight": "4.25"}  # fmt: skip
    (one,) = read_rows(write(tmp_path / "x.csv", cells))
    assert (one.threads, one.hit_rate, one.n_cpu_moe) == (16, 0.0, 31)
    assert (one.bits_per_weight, one.ram_gb_s, one.sockets) == (4.25, 51.2, None)
    assert (one.ram_channels, one.notes) == ("8 per socket", ' "two", \nlines ')
    assert type(one.threads) is int
    (one,) = read_rows(write(tmp_path / "x.csv", {}))
    assert one.n_cpu_moe == "all"


def test_columns_may_be_in_any_order_after_a_byte_order_mark(tmp_path) -> None:
    file = write(tmp_path / "x.csv", {}, columns=COLUMNS[::-1])
    file.write_text("\ufeff" + file.read_text() + "\n\n")
    assert [one.id for one in read_rows(file)] == ["a1"]


def test_folder_is_read_without_the_file_of_groups(tmp_path) -> None:
    write(tmp_path / "b.csv", {"id": "b"})
    write(tmp_path / "a.csv", {"id": "a"}, {"id": "c"})
    (tmp_path / "groups.csv").write_text("group,rows\ng,3\n")
    (tmp_path / "absolute.txt").write_text("a\nb\nof-another-file\n")
    found = read_rows(tmp_path)
    assert [(one.id, one.absolute) for one in found] == [("a", True), ("c", False), ("b", True)]
    assert [one.absolute for one in read_rows(tmp_path / "a.csv")] == [True, False]


@pytest.mark.parametrize(
    ("abs_class", "listed", "absolute"),
    [("strict", True, True), ("stream", True, True), ("weak", True, False), ("", True, False),
     ("strict", False, False)],
)  # fmt: skip
def test_absolute_rows_name_everything_and_are_no_listed_failure(abs_class, listed, absolute):
    assert row("a", 1, abs_class=abs_class, listed=listed).absolute is absolute


@pytest.mark.parametrize(
    ("where", "owner"),
    [
        ("ikawrakow/ik_llama.cpp@abc: discussions/1", "ikawrakow"),
        ("https://github.com/ggml-org/llama.cpp/issues/1", "ggml-org"),
        ("https://www.github.com/ggml-org", "ggml-org"),
        ("https://www.example.org/a/b", "example.org"),
        ("a document (file 1; ggml-org/llama.cpp)", "a document"),
        ("", ""),
    ],
)
def test_owner_of_a_source(where, owner) -> None:
    assert row("a", where=where).owner == owner


def test_cluster_is_machine_and_owner() -> None:
    assert row("a", gpu="RTX 4090", cpu="EPYC").cluster == "RTX 4090 + EPYC (someone)"
    assert row("a", cpu="EPYC").cluster == "EPYC (someone)"
    assert row("a", where="").cluster == "machine not named (no source)"
    same = {row(n, 1, gpu="RTX 4090", model=n, quant=n).cluster for n in "abc"}
    assert len(same) == 1


@pytest.mark.parametrize(
    ("more", "phases", "decode"),
    [
        ({"decode_tok_s": 2}, ("decode",), 2),
        ({"prefill_tok_s": 2}, ("prefill",), None),
        ({"decode_tok_s": 2, "prefill_tok_s": 3}, ("decode", "prefill"), 2),
        ({"decode_lo": 2, "decode_hi": 8}, ("decode",), 4),
        ({"decode_tok_s": 3, "decode_lo": 2, "decode_hi": 8}, ("decode",), 3),
        ({"decode_lo": 2}, (), None),
        ({"decode_hi": 2}, (), None),
        ({}, (), None),
    ],
)
def test_phases_have_a_central_value(more, phases, decode) -> None:
    one = Row(id="a", **more)
    assert one.phases == phases
    measured = one.measured("decode")
    assert measured == decode or math.isclose(measured or 0, decode or 0)


ABOVE = ("bits_per_weight", "gpu_mem_gb", "ram_gb", "ram_gb_s", "h2d_gb_s", "prefill_tok_s",
         "decode_tok_s", "decode_lo", "decode_hi")  # fmt: skip
SEVERAL = ("sockets", "pcie_gen", "pcie_lanes", "threads", "ubatch", "batch")
COUNT = ("n_gpu", "prompt_tokens", "new_tokens")
NUMBERS = [
    *((name, bad, "a number above 0", "0.5") for name in ABOVE
      for bad in ("0", "-1", "nan", "inf", "1e999", "8 GB", "1,5", "1_0")),
    *((name, bad, "a whole number from 1", "1") for name in SEVERAL
      for bad in ("0", "-2", "1.5", "two")),
    *((name, bad, "a whole number from 0", "0") for name in COUNT for bad in ("-1", "0.5", "x")),
    *(("n_cpu_moe", bad, "a whole number from 0, or all", "0") for bad in ("-1", "none", "2.5")),
    *(("hit_rate", bad, "a number from 0 to 1", "1") for bad in ("-0.1", "1.1", "90%")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bad", "allowed", "good"), NUMBERS)
def test_bad_number_is_refused_with_file_line_column_and_range(name, bad, allowed, good, tmp_path):
    file = write(tmp_path / "x.csv", {"id": "first"}, {name: bad})
    assert (
        refused(file) == f"{file}:3: {name} {bad}: cannot be; allowed: {allowed}, or an empty cell"
    )
    assert len(read_rows(write(file, {"id": "first"}, {name: good}))) == 2
    assert len(read_rows(write(file, {"id": "first"}, {name: ""}))) == 2


def test_every_number_has_a_tested_range() -> None:
    numbers = {name for name, field in Row.model_fields.items() if field.annotation is not str}
    assert {name for name, *_ in NUMBERS} == numbers - {"listed"}


def test_implausible_numbers_are_kept(tmp_path) -> None:
    (one,) = read_rows(write(tmp_path / "x.csv", {"decode_tok_s": "1e9", "threads": "100000"}))
    assert one.decode_tok_s == 1e9


def test_id_that_is_empty_or_occurs_twice_is_refused(tmp_path) -> None:
    file = write(tmp_path / "x.csv", {}, {"id": " "})
    assert refused(file) == f"{file}:3: id is empty; allowed: a text that no other row has"
    write(file, {}, {"id": "a2"}, {})
    assert refused(file) == (f"{file}:4: id a1 is also the id of {file}:2; give each row its own")
    write(file, {}, {"id": "a2"})
    assert len(read_rows(file)) == 2
    other = write(tmp_path / "y.csv", {"id": "a2"})
    assert refused(tmp_path).startswith(f"{other}:2: id a2 is also the id of {file}:3")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ([c for c in COLUMNS if c != "gpu"], "lacks the column gpu;"),
        ([c for c in COLUMNS if c not in ("gpu", "cpu")], "lacks the columns gpu, cpu;"),
        ([*COLUMNS, "speed"], "has the unknown column speed;"),
        ([*COLUMNS, "speed", ""], "has the unknown columns speed, (no name);"),
        ([*COLUMNS, "gpu"], "has twice the column gpu;"),
        (["group", "rows"], "lacks the columns"),
    ],
)
def test_wrong_columns_are_named(columns, says, tmp_path) -> None:
    file = write(tmp_path / "x.csv", {}, columns=columns)
    assert f"{file}:1: {says}" in refused(file)
    assert read_rows(write(file, {}))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty; write a row: moebench validate --add-row FILE.csv"),
        (b"\n\n", "is empty"),
        (b'{"rows": []}', "is no CSV of published rows"),
        (b"\x89PNG\x00\xff\xfe", "UTF-8"),
        (",".join(COLUMNS).encode() + b"\n", "has no rows; write one"),
        (",".join(COLUMNS).encode() + b"\na,b\n", ":2: has 2 cells; allowed: one for each of 41"),
        (",".join(COLUMNS).encode() + b'\na,"b\n', ":2: not CSV: "),
        (",".join(COLUMNS).encode() + b'\na,"b"c\n', ":2: not CSV: "),
    ],
)
def test_damaged_file_is_one_line(content, says, tmp_path) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(content)
    line = refused(file)
    assert says in line
    assert str(file) in line


def test_absent_file_and_folder_without_rows_are_refused(tmp_path) -> None:
    assert refused(tmp_path / "no.csv") == f"{tmp_path / 'no.csv'}: no such file or folder"
    (tmp_path / "groups.csv").write_text("group\n")
    assert "has no CSV file of rows" in refused(tmp_path)
    write(tmp_path / "x.csv", {})
    assert len(read_rows(tmp_path)) == 1


def test_cells_of_the_tests_are_columns() -> None:
    assert set(CELLS) <= set(COLUMNS)
