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
        parts: milliseconds of a token (decode) or of the prompt (prefill) by lane or cause.
        remarks: what the row does not say and was assumed; what is impossible about it.
    """

    id: str
    phase: Phase
    measured: float
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    parts: tuple[tuple[str, float], ...] = ()
    remarks: tuple[str, ...] = ()
