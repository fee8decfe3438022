"""The columns of a comparison: each figure's unit, form, and how it is read from a run."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from moebench.reports.tables import Document, dig, perplexity_of, score_of


class Figure(NamedTuple):
    """A column of a comparison.

    Attributes:
        of: reads it from a run; None where the run lacks it.
        better: which values are better; None where neither is.
        form: how it is written, as in `format`; a share (``%``) is stored from 0 to 1.
        brief: also in a terminal's table.
    """

    key: str
    title: str
    unit: str
    form: str
    better: Literal["less", "more"] | None
    of: Callable[[Document], float | None]
    brief: bool = False

    @property
    def header(self) -> str:
        """The title with its unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


def _at(path: str) -> Callable[[Document], float | None]:
    return lambda run: dig(run, path)


def _decode_stall_share(run: Document) -> float | None:
    """Of the time line of the device in decode, the part in which it stood idle."""
    idle = sum((dig(run, "metrics.decode.stall_ms") or {}).values())
    busy = dig(run, "metrics.decode.lanes.device")
    return None if not busy else idle / (busy + idle)


def _gigabytes_a_token(run: Document) -> float | None:
    """Weights that crossed the link to the device in decode, over decoded tokens."""
    moved, tokens = dig(run, "metrics.decode.bytes_h2d"), dig(run, "metrics.decoded_tokens")
    return None if moved is None or not tokens else moved / 1e9 / tokens


def _slot_gigabytes(run: Document) -> float | None:
    """What its experts' slots take; a package that runs by itself has none that are known."""
    taken = dig(run, "memory.slot_bytes")
    known = dig(run, "metrics.process") is None
    return (taken or 0) / 1e9 if known else None


TPOT, RATIO = "tpot_ms", "ratio_best"

FIGURES = (
    Figure(TPOT, "TPOT", "ms", ".1f", "less", _at("metrics.tpot_ms.mean"), brief=True),
    Figure(RATIO, "× best", "", ".2f", None, lambda run: None, brief=True),
    # Its own slots' bound: who has fewer is no better for being nearer to it.
    Figure("ratio_bound", "× bound", "", ".2f", None, _at("bound.ratio"), brief=True),
    Figure("ttft_ms", "TTFT", "ms", ".0f", "less", _at("metrics.ttft_ms.mean"), brief=True),
    Figure("cache_ratio", "cache ratio, complete", "%", ".1%", "more", _at("metrics.cache_ratio"),
           brief=True),
    Figure("cache_ratio_begun", "or under way", "%", ".1%", "more",
           _at("metrics.cache_ratio_begun"), brief=True),
    Figure("gb_per_token", "moved", "GB/token", ".3f", "less", _gigabytes_a_token, brief=True),
    Figure("device_idle", "device idle", "%", ".1%", "less", _decode_stall_share),
    Figure("slots_gb", "slots", "GB", ".2f", None, _slot_gigabytes),
    Figure("tokens_per_kj", "energy", "tokens/kJ", ".1f", "more", _at("metrics.tokens_per_kj"),
           brief=True),
    Figure("agreement", "agreement", "%", ".1%", "more", _at("accuracy.agreement"), brief=True),
    Figure("kl", "KL", "nats", ".2g", "less", _at("accuracy.kl"), brief=True),
    Figure("score", "score", "%", ".1f", "more", score_of, brief=True),
    Figure("perplexity", "perplexity", "", ".2f", "less", perplexity_of, brief=True),
)  # fmt: skip
BY_KEY = {figure.key: figure for figure in FIGURES}

#: Figures that have a standard error over a run's questions.
OF_QUESTIONS = ("score", "perplexity")
