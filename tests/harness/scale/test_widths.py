"""Configurations of scale models: those of the files that ship."""

import json

import pytest

from moebench.harness.scale.widths import SCALE_WIDTHS, scale_config
from moebench.substrate.errors import UnknownNameError
from moebench.substrate.models.catalogue import MODELS, scale_names, scale_path


@pytest.mark.parametrize("name", SCALE_WIDTHS)
def test_the_models_that_ship_have_these_configurations(name: str) -> None:
    shipped = json.loads((scale_path(name) / "config.json").read_text())
    assert scale_config(name) == shipped
    original = json.loads((MODELS / f"{name}.json").read_text())
    changed = {key for key, value in shipped.items() if original.get(key) != value}
    assert changed <= {*SCALE_WIDTHS[name], "torch_dtype", "eos_token_id"}


def test_every_model_that_ships_has_widths() -> None:
    assert set(SCALE_WIDTHS) == set(scale_names())


def test_a_model_without_widths_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown scale model 'nope'.*moebench models list"):
        scale_config("nope")
