"""Recipes of synthesized routing: their ranges, files and models."""

from pathlib import Path

import pytest

from moebench.substrate.errors import InputError, UnknownNameError, UsageError
from moebench.substrate.traces import recipes as module
from moebench.substrate.traces.recipes import (
    RECIPES,
    SynthesisRecipe,
    as_yaml,
    family,
    recall_of,
    recipes,
    write_recipe,
)


def test_defaults() -> None:
    plain = SynthesisRecipe(static=0.4)
    assert (plain.ar1, plain.rho, plain.common, plain.depth) == (0, 0, 0.3, (1, 1, 1))
    assert (plain.prefill, plain.recall, plain.spread) == (1, None, 1)


@pytest.mark.parametrize(
    ("name", "most"),
    [("static", 1), ("ar1", 0.6), ("rho", 0.9999), ("common", 1), ("prefill", 1), ("recall", 1)],
)
def test_shares_lie_between_0_and_their_most(name: str, most: float) -> None:
    plain = {"static": 0.4}
    for value in (0, most):
        made = SynthesisRecipe(**plain | {name: value})
        assert getattr(made, name) == value
    for value in (-0.001, 1.001 if name == "ar1" else most + 0.001):
        allowed = "1" if name == "ar1" else f"{most:g}"
        with pytest.raises(UsageError, match=rf"{name} is {value:g}; allowed: 0 to {allowed}$"):
            SynthesisRecipe(**plain | {name: value})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"ar1": 0.601}, "static 0.4 and ar1 0.601 are shares of one variance; their sum may be 1"),
        ({"spread": 0.0}, "spread must be positive, depth not negative and not all zero"),
        ({"spread": -1.0}, "spread must be positive"),
        ({"depth": (1, -0.1, 1)}, "depth not negative"),
        ({"depth": (0, 0, 0)}, "not all zero"),
    ],
)
def test_impossible_recipes_are_refused(fields: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        SynthesisRecipe(static=0.4, **fields)
    assert SynthesisRecipe(static=0.4, ar1=0.6, depth=(0, 0, 1), spread=0.1).depth == (0, 0, 1)


def test_models_have_recipes_and_recalls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "recipes.yaml"
    file.write_text("# a remark\none: {static: 0.5, recall: 0.7}\ntwo: {static: 0.25}\n")
    monkeypatch.setattr(module, "RECIPES", file)
    monkeypatch.setattr(module, "recipes", lambda: recipes.__wrapped__(file))
    assert family("one") == SynthesisRecipe(static=0.5, recall=0.7)
    assert [recall_of(name) for name in ("one", "two", "three")] == [0.7, 0.84, 0.84]
    with pytest.raises(UnknownNameError, match=r"unknown family 'three'.* or give --static and"):
        family("three")


def test_a_recipe_is_written_in_its_models_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "recipes.yaml"
    file.write_text("# a remark\none: {static: 0.5}\ntwo: {static: 0.25}\n")
    monkeypatch.setattr(module, "RECIPES", file)
    made = SynthesisRecipe(static=0.125, ar1=0.5, depth=(2.0, 1.0, 0.0), recall=None)
    line = (
        "one: {static: 0.125, ar1: 0.5, rho: 0.0, common: 0.3, depth: [2.0, 1.0, 0.0], "
        "prefill: 1.0, recall: null, spread: 1.0}"
    )
    assert as_yaml("one", made) == line
    write_recipe("one", made)
    assert file.read_text() == f"# a remark\n{line}\ntwo: {{static: 0.25}}\n"
    write_recipe("three", SynthesisRecipe(static=0.5))
    assert [text.partition(":")[0] for text in file.read_text().splitlines()] == [
        "# a remark", "one", "two", "three",
    ]  # fmt: skip
    recipes.cache_clear()
    assert recipes(file)["one"] == made
    assert file != RECIPES


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"one: {static: much}", r"one\.static: .*valid number"),
        (b"one: {static: 0.5, what: 1}", r"one\.what: Unexpected"),
        (b"3", "the file: "), (b"\xff", "cannot be read"), (b"{", "cannot be read"),
    ],
)  # fmt: skip
def test_other_files_are_refused_in_one_line(content: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "recipes.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        recipes(file)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"cannot be read .*No such file"):
        recipes(tmp_path / "absent.yaml")
