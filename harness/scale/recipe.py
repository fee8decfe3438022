"""Training recipes of scale models: first from random weights, then for routing locality.

The first training produces a model that answers prompts.  The second continues from its weights
with a smaller learning rate, on text whose windows are of one kind, and trains the gates to reuse
the experts that the text already used (`trainable.locality_loss`).  Real models do so; a model that
is balanced over a mixture of texts does not.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class TrainingRecipe(BaseModel):
    """Every training setting that changes a scale model's weights; stored next to them.

    Attributes:
        balance, balance_end: weight of the balance loss at the first and last step.
        router_z: weight of the z-loss.
        locality: weight of the locality loss over the 32 preceding tokens.
        recency: weight of the locality loss over the one preceding token.
        exercise_share: share of the tokens that are exercises; the rest is real text.
        text_tokens: how many tokens of text are drawn; None draws as many as are trained on.
        chunk: number of successive tokens from one kind of text; 0 mixes kinds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=0, ge=0)
    tokens: int = Field(default=3_000_000, gt=0)
    sequence_length: int = Field(default=256, gt=0)
    batch_size: int = Field(default=8, gt=0)
    learning_rate: float = 6e-3
    warmup_steps: int = 100
    weight_decay: float = 0.1
    balance: float = 0.08
    balance_end: float = 0.04
    router_z: float = 1e-3
    locality: float = Field(default=0.0, ge=0)
    recency: float = Field(default=0.0, ge=0)
    exercise_share: float = Field(default=0.8, ge=0, le=1)
    text_tokens: int | None = Field(default=None, gt=0)
    chunk: int = Field(default=0, ge=0)
    checkpoint_every: int = Field(default=200, gt=0)

    @property
    def tokens_per_step(self) -> int:
        """Training tokens in a batch."""
        return self.sequence_length * self.batch_size

    @property
    def steps(self) -> int:
        """Number of training steps, each on one batch."""
        return self.tokens // self.tokens_per_step

    def learning_rate_at(self, step: int) -> float:
        """Return a step's learning rate: linear warm-up, plateau, linear decay over a third."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        return self.learning_rate * warm * min(1.0, 3 * (self.steps - step) / self.steps)

    def balance_at(self, step: int) -> float:
        """Return the weight of the balance loss at a step, linear from first to last step."""
        return self.balance + (self.balance_end - self.balance) * step / self.steps


#: Loss weights of the second training: the largest ones whose held-out loss stays within 3 % of the
#: first training's, or that reach the family's targets (`substrate.analysis.targets`).  Mixtral and
#: Phi reuse few experts beyond those of the preceding token.
LOCALITY: dict[str, dict[str, Any]] = {
    "olmoe-1b-7b": {"locality": 0.056, "recency": 0.027, "balance": 0.2, "tokens": 700_000},
    "deepseek-moe-16b": {"locality": 0.035, "recency": 0.012, "balance": 0.15, "tokens": 800_000},
    "xverse-moe-a4.2b": {"locality": 0.043, "recency": 0.018, "balance": 0.15, "tokens": 500_000},
    "qwen2-57b-a14b": {"locality": 0.015, "recency": 0.03, "balance": 0.15, "tokens": 500_000},
    "qwen3-30b-a3b": {"locality": 0.056, "recency": 0.023, "balance": 0.6, "tokens": 800_000},
    "mixtral-8x7b": {"locality": 0.0, "recency": 0.025, "balance": 0.2, "tokens": 400_000},
    "mixtral-8x22b": {"locality": 0.0, "recency": 0.025, "balance": 0.2, "tokens": 400_000},
    "phi-3.5-moe": {"locality": 0.0, "recency": 0.006, "balance": 0.25, "tokens": 400_000},
}


def second_training(name: str, first: Mapping[str, Any]) -> TrainingRecipe:
    """Return the recipe that continues a scale model's training for its family's locality.

    The second training holds out the same tokens as the first, and draws its text from the others.

    Args:
        name: the full-size model's name.
        first: the recipe of the first training, empty if unknown.
    """
    before = TrainingRecipe.model_validate(first)
    weights = LOCALITY[name]
    return before.model_copy(
        update={
            "text_tokens": before.text_tokens or before.tokens, "learning_rate": 2e-3,
            "warmup_steps": 20, "chunk": 600, "checkpoint_every": 100,
            "balance_end": weights["balance"], **weights,
        }
    )  # fmt: skip
