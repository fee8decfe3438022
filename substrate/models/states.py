"""What a decoder keeps for later: a prediction that comes true, and a finished prefill."""

from typing import NamedTuple

from torch import Tensor


class Foreseen(NamedTuple):
    """A prediction that is no guess: every active expert was done, so it is the next layer's truth.

    Where time is virtual the next layer takes it instead of computing the same bits again; the
    machine charges both.
    """

    mixed: Tensor
    attended: Tensor
    scored: tuple[Tensor, Tensor, Tensor]


class Prefilled(NamedTuple):
    """The result of a prefill: each sequence's KV cache, and the logits ``[B, V]``."""

    caches: list[Tensor]
    logits: Tensor
