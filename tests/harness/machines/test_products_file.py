"""The file of an expert's products: what is written, read again, and refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.machines.products_file import (
    EXPERT,
    Products,
    as_document,
    products_file,
    read_products,
    write_products,
)
from moebench.harness.machines.rates import Rate
from moebench.substrate.errors import ProfileError

FOUND = Products(
    kernels={"q4_k": "ggml", "f32": "numpy"},
    bits={"q4_k": 4.5, "f32": 32.0},
    rates={
        "q4_k": {1: {1: Rate(4.0, 3.5, 4.5), 8: Rate(20.0, 19.0, 21.0)}, 64: {8: Rate(2, 2, 2)}},
        "f32": {1: {8: Rate(30.0, 29.0, 31.12345)}},
    },
)


def test_what_is_written_is_read_again_with_four_digits(tmp_path: Path) -> None:
    profile = tmp_path / "here.yaml"
    assert read_products(profile) is None
    write_products(FOUND, profile)
    assert products_file(profile) == tmp_path / "here.products.json"
    rounded = {**FOUND.rates, "f32": {1: {8: Rate(30.0, 29.0, 31.12)}}}
    assert read_products(profile) == FOUND._replace(rates=rounded)
    document = json.loads(products_file(profile).read_text())
    assert document == as_document(FOUND)
    assert document["expert"] == {"hidden_size": EXPERT[0], "width": EXPERT[1]}
    assert EXPERT == (2048, 1024)


def test_the_best_is_the_fastest_of_all_threads_and_formats_that_were_asked_for() -> None:
    assert FOUND.best(1) == ("f32", 8, Rate(30.0, 29.0, 31.12345))
    assert FOUND.best(1, ("q4_k",)) == ("q4_k", 8, Rate(20.0, 19.0, 21.0))
    assert FOUND.best(64) == ("q4_k", 8, Rate(2, 2, 2))


@pytest.mark.parametrize(
    ("numbers", "taken"),
    [
        ([2, 1, 3], True), ([1, 1, 1], True), ([5, 0.01, 999_999], True), ([0.5, 0.1, 0.6], True),
        ([2, 0, 3], False), ([2, 2.5, 3], False), ([4, 1, 3], False), ([2, 1, 1e6], False),
        ([2, 1], False), ([2, 1, 3, 4], False), ("2", False), ([2, 1, "fast"], False),
    ],
)  # fmt: skip
def test_a_rate_lies_in_its_range_above_zero(numbers: Any, taken: bool, tmp_path: Path) -> None:
    document = as_document(FOUND)
    document["formats"]["q4_k"]["gb_s"]["1"]["1"] = numbers
    profile = tmp_path / "here.yaml"
    products_file(profile).write_text(json.dumps(document))
    if taken:
        found = read_products(profile)
        assert found is not None
        assert found.rates["q4_k"][1][1] == Rate(*numbers)
        return
    with pytest.raises(ProfileError, match="not a file of measured products"):
        read_products(profile)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"formats": 3}', '{"formats": {"a": 1}}']
)
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    products_file(tmp_path / "here.yaml").write_text(text)
    with pytest.raises(ProfileError, match="type moebench calibrate --quick again"):
        read_products(tmp_path / "here.yaml")
