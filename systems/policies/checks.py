"""Checks that many policies share: options out of range, and training for another model."""

from moebench.substrate.errors import UsageError
from moebench.substrate.models.shape import ModelShape

#: Largest values of options that decide how much memory a policy takes, or how long it trains: a
#: thousand times what papers use, or a network that still fits in memory.
MOST = {
    "window": 4096, "hidden": 8192, "width": 65_536, "trained_width": 8192, "epochs": 100_000,
    "capacity": 10_000,
}  # fmt: skip


def require_at_least(decision: str, policy: object, **least: float) -> None:
    """Raise `UsageError` if a policy's option ``--set decision.name`` is out of range.

    Args:
        least: the least value of each option; `MOST` has the largest of some.
    """
    for name, lowest in least.items():
        value, most = getattr(policy, name), MOST.get(name)
        if value is None or (value >= lowest and (most is None or value <= most)):
            continue
        allowed = f"{lowest} or more" if most is None else f"{lowest} to {most}"
        raise UsageError(f"{decision}.{name} is {value}; allowed: {allowed}")


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


def why_not_in_groups(shape: ModelShape) -> str | None:
    """Return why a rule of routing is not defined if a router chooses among groups of experts."""
    if shape.gate_groups is not None and shape.gate_groups[0] > 1:
        return "defined for routers that choose among all experts, not in groups"
    return None
