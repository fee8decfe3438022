"""One predicted figure of a published row."""

from typing import Literal, NamedTuple

Phase = Literal["decode", "prefill"]


class Prediction(NamedTuple):
    """A row's measured rate in one phase, and the simulated one.

    Attributes:
        id: the row's.
        measured: tokens per second, as published.
        predicted: tokens per second; None if the row cannot be predicted.
        low, high: ends of the 80 % interval of the prediction; None with it.
        reason: why the row cannot be predicted, as one line; empty if it is.
        remarks: what the row does not say and was assumed; what is impossible about it.
    """

    id: str
    phase: Phase
    measured: float
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    remarks: tuple[str, ...] = ()
