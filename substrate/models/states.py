"""Stored intermediate results of a decoder: an exact prediction, and a finished prefill."""

from typing import NamedTuple

from torch import Tensor


class Foreseen(NamedTuple):
    """An exact prediction of the next layer's attention and gate, made with all experts done.

    In virtual time the next layer uses it instead of computing the same bits again; the machine
    charges both.
    """

    mixed: Tensor
    attended: Tensor
    scored: tuple[Tensor, Tensor, Tensor]


class Prefilled(NamedTuple):
    """The result of a prefill: the KV cache of each sequence, and the logits ``[B, V]``."""

    caches: list[Tensor]
    logits: Tensor
