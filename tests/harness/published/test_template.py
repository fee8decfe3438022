"""Template of a new row, and what a filled-in one lacks."""

import pytest

from moebench.harness.published.rows import COLUMNS, read_rows
from moebench.harness.published.template import lacking, write_template
from moebench.substrate.errors import InputError
from tests.harness.published.made import write


def test_template_has_all_columns_and_one_empty_row(tmp_path) -> None:
    file = tmp_path / "x.csv"
    write_template(file)
    assert file.read_text().splitlines() == [",".join(COLUMNS), "," * (len(COLUMNS) - 1)]
    ((name, needed, absolute),) = lacking(file)
    assert name == "line 2"
    assert needed == [
        "id", "source", "where", "model", "quant", "system", "gpu or cpu",
        "decode_tok_s or prefill_tok_s",
    ]  # fmt: skip
    assert len(absolute) == 6


def test_complete_row_lacks_nothing_and_is_read(tmp_path) -> None:
    file = write(tmp_path / "x.csv", {})
    assert lacking(file) == [("line 2 (a1)", [], [])]
    assert len(read_rows(file)) == 1


@pytest.mark.parametrize(
    ("changes", "needed", "absolute"),
    [
        ({"where": " "}, ["where"], []),
        ({"gpu": "", "n_gpu": "0"}, [], []),
        ({"gpu": ""}, [], ["gpu (or n_gpu 0)"]),
        ({"cpu": ""}, [], ["cpu"]),
        ({"gpu": "", "n_gpu": "0", "cpu": ""}, ["gpu or cpu"], ["cpu"]),
        ({"decode_tok_s": ""}, [], []),
        ({"decode_tok_s": "", "prefill_tok_s": "", "decode_lo": "3"}, [],
         ["a central value (decode_tok_s or prefill_tok_s)"]),
        ({"decode_lo": "3", "decode_hi": "2"}, ["decode_lo that is not above decode_hi"], []),
        ({"decode_lo": "3", "decode_hi": "3"}, [], []),
        ({"ram_gb_s": ""}, [], ["ram_gb_s, or ram_type with its rate and ram_channels"]),
        ({"ram_gb_s": "", "ram_type": "DDR4-3200", "ram_channels": "2"}, [], []),
        ({"n_cpu_moe": ""}, [], ["n_cpu_moe or cached_experts_or_slots"]),
        ({"n_cpu_moe": "", "cached_experts_or_slots": "auto"}, [], []),
        ({"prompt_tokens": ""}, [], ["prompt_tokens"]),
    ],
)  # fmt: skip
def test_missing_cells_are_named(changes, needed, absolute, tmp_path) -> None:
    file = write(tmp_path / "x.csv", changes)
    assert lacking(file) == [("line 2 (a1)", needed, absolute)]


def test_second_row_of_an_id_is_named(tmp_path) -> None:
    first, second = lacking(write(tmp_path / "x.csv", {}, {}))
    assert first[1] == []
    assert second[1] == ["another id: this one occurs twice"]


def test_impossible_number_and_file_without_rows_are_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="threads 0: cannot be"):
        lacking(write(tmp_path / "x.csv", {"threads": "0"}))
    with pytest.raises(InputError, match="has no rows; fill in one line"):
        lacking(write(tmp_path / "x.csv"))
