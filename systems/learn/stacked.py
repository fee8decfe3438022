"""Training of independent networks, one per layer, all at once in batched matrix products.

Parameters are stacked, weights ``[L, in, out]`` and biases ``[L, 1, out]`` in turn.  A tenth of the
data is for validation; each network keeps the weights of its best epoch, and training ends when the
mean of all validation losses has not improved for some epochs.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch

#: The share of the data for validation, and the tokens of a training step.
VALIDATION, BATCH = 0.1, 256


def validating(lengths: Sequence[int]) -> np.ndarray:
    """Return which tokens are for validation, ``[N]``, given the lengths of the texts.

    The last tenth of the texts, or of each text if there are fewer than ten: at least one token.
    """
    if len(lengths) >= round(1 / VALIDATION):
        kept = round(VALIDATION * len(lengths))
        return np.repeat(np.arange(len(lengths)) >= len(lengths) - kept, lengths)
    places = np.concatenate([np.arange(n) / n for n in lengths])
    found: np.ndarray = places >= 1 - VALIDATION
    found[-1] = True
    return found


def initial(
    networks: int, sizes: Sequence[int], generator: "torch.Generator"
) -> "list[torch.nn.Parameter]":
    """Return weights and biases between layers of these sizes, initialised as torch.nn.Linear."""
    import torch

    made = []
    for fan_in, fan_out in pairwise(sizes):
        for rows in (fan_in, 1):
            uniform = torch.rand(networks, rows, fan_out, generator=generator) * 2 - 1
            made.append(torch.nn.Parameter(uniform / fan_in**0.5))
    return made


class Trained(NamedTuple):
    """Parameters of each network's best epoch, their validation losses ``[L]``, and epoch counts.

    ``best_epoch`` is the epoch with the smallest mean loss.
    """

    parameters: "list[torch.Tensor]"
    loss: "torch.Tensor"
    epochs: int
    best_epoch: int


def train(
    parameters: "Sequence[torch.nn.Parameter]", optimizer: "torch.optim.Optimizer",
    losses: "Callable[..., torch.Tensor]", data: "Sequence[torch.Tensor]", split: int, epochs: int,
    patience: int, generator: "torch.Generator", progress: Callable[[int, int], None],
) -> Trained:  # fmt: skip
    """Train on the tokens before ``split`` of all data ``[L, N, ...]``; validate on the others.

    Args:
        losses: each network's loss ``[L]``, from the parameters and some tokens of all data.
        progress: called with the epochs done and the most to do.
    """
    import torch

    data = [part.contiguous() for part in data]  # whole rows are copied several times faster
    best = [p.detach().clone() for p in parameters]
    best_loss = torch.full((len(best[0]),), torch.inf)
    best_mean, best_epoch, epoch = torch.inf, 0, 0
    while epoch < epochs and epoch - best_epoch < patience:
        order = torch.randperm(split, generator=generator)
        for rows in torch.split(order, BATCH):
            loss = losses(parameters, *(part.index_select(1, rows) for part in data)).sum()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        with torch.no_grad():
            found = losses(parameters, *(part[:, split:] for part in data))
        better = found < best_loss
        for best_of, p in zip(best, parameters, strict=True):
            best_of[better] = p.detach()[better]
        best_loss = torch.where(better, found, best_loss)
        epoch += 1
        mean = float(found.mean())
        if mean < best_mean:
            best_mean, best_epoch = mean, epoch
        progress(epoch, epochs)
    return Trained(best, best_loss, epoch, best_epoch)
