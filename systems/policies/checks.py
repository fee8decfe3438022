"""What many policies refuse: options out of range, and what was learnt from another model."""

from moebench.substrate.errors import UsageError
from moebench.substrate.models.shape import ModelShape


def require_at_least(decision: str, policy: object, **least: float) -> None:
    """Refuse options that are below their least value; None passes.

    Args:
        decision: with which the options' names begin in ``--set``: "prefetch".
        least: by option.

    Raises:
        UsageError: one is too small.
    """
    for name, allowed in least.items():
        value = getattr(policy, name)
        if value is not None and not value >= allowed:
            raise UsageError(f"{decision}.{name} is {value}; allowed: {allowed} or more")


def require_above_zero(decision: str, policy: object, *names: str) -> None:
    """Refuse options that are not above zero.

    Raises:
        UsageError: one is not.
    """
    for name in names:
        if not getattr(policy, name) > 0:
            raise UsageError(f"{decision}.{name} is {getattr(policy, name)}; allowed: above 0")


def require_learnt_for(learnt: str, shape: ModelShape, known: tuple[int, ...]) -> None:
    """Refuse what was learnt for a model of another shape.

    Args:
        learnt: the policy and how it learnt: "prefetch=stride was trained for".
        known: numbers of MoE layers and of experts that it was learnt for.

    Raises:
        UsageError: the model has others.
    """
    has = (len(shape.moe_layers), shape.num_experts)
    if has != known:
        raise UsageError(
            f"{learnt} {known[0]} layers of {known[1]} experts, the model has {has[0]} of {has[1]}"
        )
