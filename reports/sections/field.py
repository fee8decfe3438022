"""Which system should run on which machine: the table of the field sweep, as cells of plain text.

Lossless systems are ranked by their time of a decoded token; lossy ones are named apart.  Two
predictions on one machine share most of their error.  So a rate has the left-out error of its kind
of machine and system, and a ratio of two systems the left-out error of ratios of two engines on one
machine (`results.published_errors`).  Systems whose ratio to the best may be 1 are *tied* with it.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from moebench.reports.text import MISSING
from moebench.results.field import FieldRow, Place
from moebench.substrate.errors import MoeBenchError

if TYPE_CHECKING:
    from moebench.results.published_errors import Error

TITLE = "Which system should run on which machine?"

HEADERS = (
    "machine", "model", "context", "best", "tokens/s", "over llama.cpp --fit", "tied with the best",
    "fastest lossy", "not possible here",
)  # fmt: skip

SUMMARY_TITLE = "How often each system is the best"
SUMMARY = ("system", "best", "tied with the best", "slower", "not possible", "over --fit, median")
REASONS_TITLE = "Not possible here"
REASONS = ("because", "systems", "places")

#: The system that is compared with: llama.cpp's own automatic placement.
INCUMBENT = ("llamacpp", "place=fit")

#: Most names in a cell.
NAMED = 4


class Verdict(NamedTuple):
    """What was found at a place.

    Attributes:
        best: the fastest lossless system; None if none ran.
        tied: other lossless systems that cannot be told from it, the fastest first.
        slower: all other lossless systems.
        fit: the incumbent's row, with its time or the reason why it did not run; None without one.
        lossy: the fastest lossy system.
        impossible: systems that did not run.
    """

    place: Place
    best: FieldRow | None
    tied: Sequence[FieldRow]
    slower: Sequence[FieldRow]
    fit: FieldRow | None
    lossy: FieldRow | None
    impossible: Sequence[FieldRow]

    @property
    def over_fit(self) -> float | None:
        """The best system's rate over the incumbent's; None if either did not run."""
        return None if self.best is None else ratio(self.best, self.fit)


def verdicts(rows: Sequence[FieldRow], factor: float | None = None) -> list[Verdict]:
    """Return a verdict for each place, in the order of the rows.

    Args:
        factor: within which 80 % of predicted ratios are; that of the published rows if None.
    """
    places: dict[Place, list[FieldRow]] = {}
    for row in rows:
        places.setdefault(row.place, []).append(row)
    within = _ratio_error() if factor is None else factor
    return [_verdict(place, ones, within) for place, ones in places.items()]


def _ratio_error() -> float:
    from moebench.results.published_errors import ratio_error

    return ratio_error()


def _verdict(place: Place, rows: Sequence[FieldRow], factor: float) -> Verdict:
    ran = sorted((row for row in rows if row.tpot_ms), key=lambda row: row.tpot_ms or 0)
    lossless = [row for row in ran if row.lossless]
    best, others = lossless[0] if lossless else None, lossless[1:]
    tied = [row for row in others if best and (ratio(best, row) or 0) <= factor]
    slower = [row for row in others if row not in tied]
    fit = next((row for row in rows if (row.system, row.options) == INCUMBENT), None)
    lossy = next((row for row in ran if not row.lossless), None)
    return Verdict(place, best, tied, slower, fit, lossy, [row for row in rows if not row.tpot_ms])


def ratio(one: FieldRow, other: FieldRow | None) -> float | None:
    """Return the rate of a system over another's; None if either did not run."""
    if other is None or not one.tpot_ms or not other.tpot_ms:
        return None
    return other.tpot_ms / one.tpot_ms


# ----------------------------------------------------------------------------- cells


def lines(rows: Sequence[FieldRow]) -> list[list[str]]:
    """Return the table's rows of cells, `HEADERS`."""
    factor = _ratio_error() if rows else 1.0
    return [_line(one, factor) for one in verdicts(rows, factor)]


def _line(one: Verdict, factor: float) -> list[str]:
    machine, model, bits, context = one.place
    return [
        machine, f"{model}, {bits}", str(context),
        one.best.name if one.best else "none can run",
        _rate(one.best) if one.best else MISSING,
        _over(one, factor),
        _names([row.name for row in one.tied]),
        _lossy(one, factor),
        _names([row.name for row in one.impossible]),
    ]  # fmt: skip


def _rate(row: FieldRow) -> str:
    """Return tokens/s with the interval of the left-out error."""
    assert row.tpot_ms is not None
    rate, error = 1e3 / row.tpot_ms, error_of(row)
    if error is None:
        return f"{rate:.3g}"
    known = "" if error.checked else ", not checked"
    return f"{rate:.3g} ({rate / error.factor:.3g} to {rate * error.factor:.3g}{known})"


def error_of(row: FieldRow) -> "Error | None":
    """Return the left-out error of a row's rate; None if its machine or software is not known."""
    # Imported here: profiles of machines are much code, and most reports show no field.
    from moebench.results.published_errors import rate_error
    from moebench.substrate.machines.profile import load_profile

    try:
        return rate_error(row.system, load_profile(row.machine, row.software))
    except MoeBenchError:
        return None


def _over(one: Verdict, factor: float) -> str:
    if one.fit is None or one.best is None:
        return MISSING
    if one.fit is one.best:
        return "it is --fit"
    value = one.over_fit
    if value is None:
        return "--fit cannot run"
    return _ratio(value, factor)


def _ratio(value: float, factor: float) -> str:
    """Return a ratio with its interval, and whether the interval holds 1."""
    low, high = value / factor, value * factor
    tied = ", tied" if low <= 1 <= high else ""
    return f"{value:.2f} ({low:.2f} to {high:.2f}){tied}"


def _lossy(one: Verdict, factor: float) -> str:
    if one.lossy is None:
        return MISSING
    value = None if one.best is None else ratio(one.lossy, one.best)
    said = "" if value is None else f", over the best: {_ratio(value, factor)}"
    return f"{one.lossy.name}{said}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (", ".join(names[:NAMED]) + more) or MISSING


def summary(rows: Sequence[FieldRow]) -> list[list[str]]:
    """Return how often each system is best, tied, slower and not possible: cells of `SUMMARY`."""
    found = verdicts(rows)
    lossy = {row.name for row in rows if row.lossless is False}
    counted = [(_counts(name, found), name) for name in dict.fromkeys(row.name for row in rows)]
    ordered = sorted(counted, key=lambda one: ([-n for n in one[0]], one[1]))
    fits = {one.place: one.fit for one in found}
    return [
        [f"≈ {name}" if name in lossy else name, *map(str, counts), _median(name, rows, fits)]
        for counts, name in ordered
    ]


def _counts(name: str, found: Sequence[Verdict]) -> list[int]:
    parts = [
        [one.best] for one in found if one.best
    ], [one.tied for one in found], [one.slower for one in found], [
        one.impossible for one in found
    ]  # fmt: skip
    return [sum(row.name == name for ones in part for row in ones) for part in parts]


def _median(name: str, rows: Sequence[FieldRow], fits: Mapping[Place, FieldRow | None]) -> str:
    """Return the median, over places, of a system's rate over the incumbent's."""
    found = [ratio(row, fits[row.place]) for row in rows if row.name == name]
    values = [value for value in found if value is not None]
    return f"{statistics.median(values):.2f}" if values else MISSING


def reasons(rows: Sequence[FieldRow]) -> list[list[str]]:
    """Return why systems cannot run, the most frequent reason first: cells of `REASONS`."""
    found: dict[str, list[FieldRow]] = {}
    for row in rows:
        if row.reason:
            found.setdefault(_short(row), []).append(row)
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        [why, ", ".join(dict.fromkeys(row.name for row in ones)), str(len(ones))]
        for why, ones in ordered
    ]


def _short(row: FieldRow) -> str:
    """Return a reason without the names of its place and system, and without advice."""
    text = (row.reason or "").partition("; ")[0].replace(row.model, "the model")
    names = (f"{row.system} with the model: ", f"{row.system} ")
    for name in names:
        text = text.removeprefix(name)
    return text


def caption() -> str:
    """Return how to read the table."""
    from moebench.results.published_errors import shipped_errors

    known = shipped_errors()["ratios"]["decode"]
    return (
        "Simulated, one text at a time. Best: the fastest lossless system. In brackets: intervals "
        "of 80 % from errors on published rates, machine and author left out. A rate has the error "
        "of its kind of machine, system and software; not checked: nobody published rates of such "
        "a system, and the largest error of such machines is shown. Ratios of systems on one "
        f"machine have the error of {known['pairs']} pairs of two engines, in {known['groups']} "
        f"groups of published rows: a factor of {known['within_80']:.2f}. Tied: the interval of "
        "the ratio to the best holds 1. Lossy systems change the model's output; they are not "
        "ranked. Context: tokens in the KV cache before each prompt; their prefill is not "
        "simulated. Each system has the kind of software of its authors' code, as far as it is "
        "known, and it decides much on fast cards: DALI's is not known, and as a CUDA graph of all "
        "of decode it would be up to 2.4 times as fast. Systems that predict later layers read "
        "drawn predictions."
    )
