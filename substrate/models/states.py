"""Stored intermediate results of a decoder: an exact prediction, and a finished prefill."""

from typing import NamedTuple

from torch import Tensor

from moebench.substrate.models.rows import Values


class Foreseen(NamedTuple):
    """An exact prediction of the next layer's attention and gate, made with all experts done.

    In virtual time the next layer uses it instead of computing the same bits again; the machine
    charges both.
    """

    mixed: Values
    attended: Values
    scored: tuple[Values, Values, Values]


class Prefilled(NamedTuple):
    """The result of a prefill: the KV cache of each sequence, and the logits ``[B, V]``."""

    caches: list[Tensor]
    logits: Tensor
