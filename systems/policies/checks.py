"""Checks that many policies share: training for another model, and routers of groups."""

from moebench.substrate.errors import UsageError
from moebench.substrate.models.shape import ModelShape


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
