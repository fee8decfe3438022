"""Checks that many policies share: options out of range, and training for another model."""

from moebench.substrate.errors import UsageError
from moebench.substrate.models.shape import ModelShape


def require_at_least(decision: str, policy: object, **least: float) -> None:
    """Check that options of a policy are None or not below their least value.

    Args:
        decision: prefix of the options' names in ``--set``, such as "prefetch".
        least: least value of each option.

    Raises:
        UsageError: an option is too small.
    """
    for name, allowed in least.items():
        value = getattr(policy, name)
        if value is not None and not value >= allowed:
            raise UsageError(f"{decision}.{name} is {value}; allowed: {allowed} or more")


def require_above_zero(decision: str, policy: object, *names: str) -> None:
    """Check that options of a policy are above zero.

    Raises:
        UsageError: an option is not above zero.
    """
    for name in names:
        if not getattr(policy, name) > 0:
            raise UsageError(f"{decision}.{name} is {getattr(policy, name)}; allowed: above 0")


def require_learnt_for(learnt: str, shape: ModelShape, known: tuple[int, ...]) -> None:
    """Check that a trained policy was trained for a model with as many layers and experts.

    Args:
        learnt: the policy and how it was trained: "prefetch=stride was trained for".
        known: numbers of MoE layers and of experts in training.

    Raises:
        UsageError: the model has other numbers.
    """
    has = (len(shape.moe_layers), shape.num_experts)
    if has != known:
        raise UsageError(
            f"{learnt} {known[0]} layers of {known[1]} experts, the model has {has[0]} of {has[1]}"
        )
