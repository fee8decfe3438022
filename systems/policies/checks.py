"""Checks that many policies share: options out of range, and training for another model."""

from moebench.substrate.errors import UsageError
from moebench.substrate.models.shape import ModelShape


def require_at_least(decision: str, policy: object, **least: float) -> None:
    """Raise `UsageError` if a policy's option ``--set decision.name`` is below its least value."""
    for name, allowed in least.items():
        value = getattr(policy, name)
        if value is not None and not value >= allowed:
            raise UsageError(f"{decision}.{name} is {value}; allowed: {allowed} or more")


def require_above_zero(decision: str, policy: object, *names: str) -> None:
    """Raise `UsageError` if one of these options of a policy is not above zero."""
    for name in names:
        if not getattr(policy, name) > 0:
            raise UsageError(f"{decision}.{name} is {getattr(policy, name)}; allowed: above 0")


def require_learnt_for(learnt: str, shape: ModelShape, known: tuple[int, ...]) -> None:
    """Raise `UsageError` if a policy was trained for a model of another size.

    Args:
        learnt: the policy and how it was trained: "prefetch=stride was trained for".
        known: numbers of MoE layers and of experts in training.
    """
    has = (len(shape.moe_layers), shape.num_experts)
    if has != known:
        raise UsageError(
            f"{learnt} {known[0]} layers of {known[1]} experts, the model has {has[0]} of {has[1]}"
        )
