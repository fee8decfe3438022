"""Rows of the field sweep: what a store's runs and cells make, and the file of them."""

from pathlib import Path
from typing import Any

import pytest

from moebench.results.field import FieldRow, Place, read_field, rows_of, unfinished, write_field
from moebench.results.store import Cell
from moebench.substrate.errors import InputError

SPEC: dict[str, Any] = {
    "system": "llamacpp", "overrides": {"place": "fit"}, "machine": "rtx-3090+ryzen-9-5950x",
    "model": "gpt-oss-120b", "precision": "bf16", "quant": "mxfp4", "context": 2048,
    "software": "ggml", "setting": None, "batch": 1, "prompts": 2, "new_tokens": 8,
    "workload": "passages", "routing": "drawn", "seed": 0,
}  # fmt: skip

PLACE = Place("rtx-3090+ryzen-9-5950x", "gpt-oss-120b", "mxfp4", 2048)


def run(tpot: float, lossless: bool = True, oracle: bool = False, **spec: Any) -> dict[str, Any]:
    return {"spec": SPEC | spec, "metrics": {"tpot_ms": {"mean": tpot}}, "lossless": lossless,
            "simulated": True, "oracle": oracle, "accuracy": {}}  # fmt: skip


def impossible(**spec: Any) -> Cell:
    return Cell("c", "failed", SPEC | spec, None, "no room")


def test_a_run_is_a_row_with_its_place_and_options() -> None:
    (row,) = rows_of([run(40.0)])
    assert row.place == PLACE
    assert (row.name, row.software, row.lossless) == ("llamacpp place=fit", "ggml", True)
    assert (row.tpot_ms, row.reason) == (40.0, None)
    (row,) = rows_of([run(40.0, quant=None, variant="shipped", overrides={})])
    assert (row.bits, row.name) == ("bf16", "llamacpp (shipped)")


def test_what_is_not_of_the_field_is_left_out() -> None:
    others = [run(1.0, context=0), run(1.0, setting="S3"), run(1.0, oracle=True),
              run(1.0) | {"simulated": False}, run(1.0, seed=1)]  # fmt: skip
    usual = [run(40.0), run(30.0, system="ktransformers")]
    # In the order of names: ktransformers comes before llamacpp.
    assert [row.tpot_ms for row in rows_of([*others, *usual])] == [30.0, 40.0]
    without = {key: value for key, value in SPEC.items() if key != "context"}
    assert rows_of([run(1.0) | {"spec": without}]) == []


def test_a_newer_run_replaces_an_older_one_and_an_impossible_cell() -> None:
    (row,) = rows_of([run(40.0), run(41.0)], [impossible()])
    assert (row.tpot_ms, row.reason) == (41.0, None)
    of_kt, _ = rows_of([run(40.0)], [impossible(system="ktransformers")])
    assert (of_kt.tpot_ms, of_kt.lossless, of_kt.reason) == (None, None, "no room")
    broken = Cell("c", "failed", SPEC, None, "KeyError", "failures/c.txt")
    assert rows_of([], [broken]) == [], "a defect says nothing about the machine"


def test_cells_of_other_lengths_than_the_runs_are_left_out() -> None:
    """Without a run, every cell that is not possible is a row."""
    other = impossible(system="ktransformers", new_tokens=9)
    assert [row.name for row in rows_of([run(40.0)], [other])] == ["llamacpp place=fit"]
    assert [row.reason for row in rows_of([], [other, impossible()])] == ["no room", "no room"]


def test_a_place_is_unfinished_while_a_cell_waits() -> None:
    waiting = Cell("c", "queued", SPEC | {"system": "smoe"})
    others = [Cell("d", "queued", SPEC | {"setting": "S3"}), impossible(context=9)]
    assert unfinished([waiting, *others]) == {PLACE}
    assert unfinished(others) == set()


def test_a_file_holds_the_rows_in_order(tmp_path: Path) -> None:
    rows = rows_of([run(40.0), run(30.0, lossless=False, system="smoe", overrides={})],
                   [impossible(system="finemoe")])  # fmt: skip
    file = tmp_path / "field.csv"
    write_field(rows, file)
    assert read_field(file) == sorted(rows, key=lambda row: row.name)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [("true", "yes", "lossless"), ("40.0", "-1", "tpot_ms"), ("context", "length", "lacks")],
)
def test_a_damaged_file_is_refused(tmp_path: Path, before: str, after: str, why: str) -> None:
    file = tmp_path / "field.csv"
    write_field(rows_of([run(40.0)]), file)
    file.write_text(file.read_text().replace(before, after, 1))
    with pytest.raises(InputError, match=why):
        read_field(file)


def test_a_row_needs_a_place() -> None:
    with pytest.raises(ValueError, match="machine"):
        FieldRow.model_validate({"model": "m"})


def test_prompts_may_start_with_an_empty_cache_but_no_shorter_one() -> None:
    good = {"machine": "m", "model": "n", "bits": "bf16", "context": 0, "software": "s",
            "system": "lru"}  # fmt: skip
    assert FieldRow.model_validate(good).place == Place("m", "n", "bf16", 0)
    assert FieldRow.model_validate(good).name == "lru"
    for change in ({"context": -1}, {"tpot_ms": 0.0}):
        with pytest.raises(ValueError, match=next(iter(change))):
            FieldRow.model_validate(good | change)
