"""The Muon optimizer: momentum matrices are orthogonalised before they update the weights.

Jordan et al. 2024 ("Muon: an optimizer for hidden layers"), with the update scaled to AdamW's as
in Liu et al. 2025 ("Muon is scalable for LLM training", section 2.2), so that both optimizers share
one learning rate.  ``torch.optim.Muon`` accepts single matrices only, but a layer's experts are
stacked.  Updating them one by one needs ten times as long (64 experts of 28 by 64, one thread),
which more than doubles a training step of OLMoE's scale model.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

#: Coefficients of the quintic iteration (Jordan et al.) that moves singular values to about 1.
_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonalise(matrices: Tensor, iterations: int = 5) -> Tensor:
    """Return matrices ``[..., M, N]`` with singular values moved to about 1 (Newton-Schulz)."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    result: Tensor = x.mT if tall else x
    return result


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay, for parameters ``[..., M, N]``."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95,
                 weight_decay: float = 0.1) -> None:  # fmt: skip
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters from their gradients; closures are not supported."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state: dict[str, Any] = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                kept, gradient = state["momentum"], parameter.grad
                kept.lerp_(gradient, 1 - group["momentum"])
                update = orthogonalise(gradient.lerp(kept, group["momentum"]))
                scale = 0.2 * math.sqrt(max(parameter.shape[-2:]))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"] * scale)
