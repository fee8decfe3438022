"""Which answers have a row, in which order, and which of them are tied."""

import math
from collections.abc import Sequence

from moebench.harness.advise.answer import LOSSLESS, Answer
from moebench.harness.advise.rules import RULES
from moebench.harness.published.case import NOISE
from moebench.harness.published.coverage import EIGHTY
from moebench.results.published_errors import ratio_error

#: Most rows of an answer.
ROWS = 8

#: How much faster another configuration of an engine has to be to have a row of its own.
GAIN = 1.1

#: Standard deviation of the logarithm of a rate with reads of a mapped file: an assumption.
PAGING = 0.8

#: A difference of two configurations of one engine that repetitions alone can make.
SAME_ENGINE = math.exp(EIGHTY * NOISE * math.sqrt(2))


def chosen(found: Sequence[Answer]) -> list[Answer]:
    """Return the rows of an answer: the best of each engine, then others, the fastest first.

    What does not fit is not among them unless it was forced.  Of configurations without loss and
    others with the same engine, the best of both kinds count.
    """
    ordered = sorted(found, key=lambda one: one.request_s)
    ordered = [one for one in ordered if one.fits != "does not fit" or one.forced]
    exact_first = sorted(ordered, key=lambda one: one.request_s * _handicap(one))
    worth: list[Answer] = []
    for one in exact_first:
        if one.forced or not _repeats(one, worth):
            worth.append(one)
    ordered = sorted(worth, key=lambda one: one.request_s)
    first: list[Answer] = []
    seen = set[str]()
    for one in ordered:
        if one.engine not in seen or one.forced:
            first.append(one)
            seen.add(one.engine)
    others = [one for one in ordered if one not in first]
    kept = sorted(first, key=lambda one: not one.forced)[:ROWS]
    kept += others[: ROWS - len(kept)]
    return sorted(kept, key=lambda one: (_unasked(one), one.request_s))


def _unasked(one: Answer) -> bool:
    """Return whether the time of a request lacks that of its prompt, which was not computed."""
    return one.engine not in RULES


def _handicap(one: Answer) -> float:
    """Return the factor by which a configuration that is not exact has to be faster."""
    return 1.0 if one.quality.startswith(LOSSLESS) else GAIN


def _repeats(one: Answer, better: Sequence[Answer]) -> bool:
    """Return whether a better configuration of the engine is as exact and as fast in both phases.

    A configuration has to be `GAIN` faster in decode or in prefill to have a row of its own.
    """

    def rates(row: Answer) -> tuple[float, float]:
        return row.decode.value, 0.0 if row.prefill is None else row.prefill.value

    return any(
        other.engine == one.engine and not other.forced
        and (other.quality == one.quality or other.quality.startswith(LOSSLESS))
        and all(theirs * GAIN >= mine
                for theirs, mine in zip(rates(other), rates(one), strict=True))
        for other in better
    )  # fmt: skip


def tie(rows: Sequence[Answer]) -> None:
    """Mark the rows that do not differ from the best beyond the error of a ratio."""
    if not rows:
        return
    best = rows[0]
    best.tied = False
    for row in rows[1:]:
        row.tied = row.request_s / best.request_s < time_error(row, best)


def time_error(row: Answer, best: Answer) -> float:
    """Return the factor within which 80 % of the ratios of two requests' times are.

    The errors of decode and prefill count by their shares of the time.
    """
    if row.engine == best.engine and row.fits == best.fits:
        return SAME_ENGINE
    share = (row.ttft_s or 0.0) / row.request_s
    logs = (math.log(ratio_error("prefill")), math.log(ratio_error("decode")))
    factor = math.exp(share * logs[0] + (1 - share) * logs[1])
    return factor if row.fits == best.fits == "fits" else factor * math.exp(EIGHTY * PAGING)
