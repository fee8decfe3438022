"""Recipes of training: steps, learning rates, and weights of losses by hand."""

import json

import pytest
from pydantic import ValidationError

from moebench.harness.scale.recipe import LOCALITY, TrainingRecipe, second_training
from moebench.substrate.models.catalogue import scale_path

RECIPE = TrainingRecipe(
    tokens=9_500, sequence_length=10, batch_size=5, learning_rate=0.6, warmup_steps=10,
    balance=0.08, balance_end=0.04,
)  # fmt: skip


def test_steps_are_whole_batches() -> None:
    assert (RECIPE.tokens_per_step, RECIPE.steps) == (50, 190)
    assert TrainingRecipe(tokens=9_499, sequence_length=10, batch_size=5).steps == 189


def test_the_learning_rate_warms_up_stays_and_falls_over_a_third() -> None:
    recipe = RECIPE.model_copy(update={"tokens": 150 * 50})
    rates = {step: recipe.learning_rate_at(step) for step in (0, 4, 9, 10, 100, 125, 149, 150)}
    assert rates == pytest.approx({
        0: 0.06, 4: 0.3, 9: 0.6, 10: 0.6, 100: 0.6, 125: 0.3, 149: 0.012, 150: 0.0,
    })  # fmt: skip


def test_the_balance_is_linear() -> None:
    assert [RECIPE.balance_at(step) for step in (0, 95, 190)] == pytest.approx([0.08, 0.06, 0.04])


def test_values_that_cannot_be_are_refused() -> None:
    for wrong in ({"tokens": 0}, {"seed": -1}, {"exercise_share": 1.1}, {"chunk": -1}, {"new": 1},
                  {"batch_size": 0}, {"locality": -0.1}, {"text_tokens": 0}):  # fmt: skip
        with pytest.raises(ValidationError):
            TrainingRecipe.model_validate(wrong)
    least = TrainingRecipe(tokens=1, seed=0, exercise_share=0, chunk=0, locality=0, text_tokens=1)
    assert least.steps == 0
    with pytest.raises(ValidationError):
        least.seed = 3


@pytest.mark.parametrize("name", LOCALITY)
def test_a_second_training_draws_the_same_text_with_its_familys_weights(name: str) -> None:
    first = {"seed": 5, "tokens": 3_000, "text_tokens": 700}
    found = second_training(name, first)
    assert (found.seed, found.text_tokens) == (5, 700)
    assert second_training(name, {"tokens": 3_000}).text_tokens == 3_000
    assert second_training(name, {}).text_tokens == TrainingRecipe().tokens
    weights = LOCALITY[name]
    assert {key: getattr(found, key) for key in weights} == weights
    assert found.balance_end == found.balance
    assert (found.learning_rate, found.warmup_steps, found.chunk) == (2e-3, 20, 600)
    assert found.checkpoint_every == 100
    assert found.exercise_share == TrainingRecipe().exercise_share


@pytest.mark.parametrize("name", LOCALITY)
def test_the_models_that_ship_were_trained_with_these_recipes(name: str) -> None:
    """The second training's recipe follows from the first one's, which has a given balance."""
    report = json.loads((scale_path(name) / "training.json").read_text())
    first = report["started_from"]["recipe"]
    asked = {key: first[key] for key in ("seed", "tokens", "balance", "balance_end")}
    assert TrainingRecipe.model_validate(first) == TrainingRecipe(**asked)
    assert TrainingRecipe.model_validate(report["recipe"]) == second_training(name, first)


def test_a_first_training_has_the_numbers_of_the_page_of_scale_models() -> None:
    """Warm-up over 100 steps to 0.006, and a balance that falls from 0.08 to 0.04."""
    plain = TrainingRecipe()
    assert (plain.warmup_steps, plain.learning_rate) == (100, 0.006)
    assert (plain.balance, plain.balance_end, plain.exercise_share) == (0.08, 0.04, 0.8)
    assert (plain.locality, plain.recency, plain.chunk, plain.text_tokens) == (0, 0, 0, None)
