"""A test sees the tiny models exactly if it asks for them, whatever other tests of its file do."""

from pathlib import Path

import pytest

from moebench.substrate.models import catalogue
from tests.harness.conftest import SHIPPED


def folders() -> dict[str, Path]:
    return {"MODELS": catalogue.MODELS, "SCALE": catalogue.SCALE}


# pytest runs these in their order: one that asks stands before one that does not, and after.


def test_one_that_asks_sees_the_tiny_models(tiny_models: None, tiny_catalogue: Path) -> None:
    assert folders() == {"MODELS": tiny_catalogue / "models", "SCALE": tiny_catalogue / "scale"}


def test_one_that_does_not_ask_sees_the_shipped_ones() -> None:
    assert folders() == SHIPPED


@pytest.mark.usefixtures("shipped_models")
def test_one_that_asks_for_both_sees_the_shipped_ones(tiny_models: None) -> None:
    assert folders() == SHIPPED


def test_another_that_asks_sees_the_tiny_models(tiny_models: None, tiny_catalogue: Path) -> None:
    assert folders()["MODELS"] == tiny_catalogue / "models"
