"""Accuracy by α: the committed table next to the paper's, and verdicts on the change with α.

All functions but `load` are pure.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from moebench.reports.text import MISSING, counted
from moebench.results.accuracy_table import ALPHA_TABLE, AccuracyRow, key, read_items, read_table
from moebench.results.document import ERRORS, at_floor
from moebench.results.metrics import metric_of, written
from moebench.results.paper_tables import smoe_table_4, workload_of

CAVEAT = (
    "Scale models have the papers' routing topology, but small trained weights of their own. "
    "Compare the change with α with the paper's, not the level of the scores."
)
METHOD = (
    "Negligible up to α: at this and every smaller α the score is within 2 standard errors of the "
    "score at α = 0; one comparison in twenty exceeds that by chance, and few examples cannot show "
    "a small change. At chance level: the score at α = 0 is within 2 standard errors of guessing, "
    "so a loss cannot be seen. Answers cut: they reached the allowed length before they ended. "
    "Paired standard errors are over the same examples. Agreement and KL compare the next tokens "
    "with the lossless model's and change long before a score does."
)

#: "Negligible when the substitution threshold is below 0.35" (SMoE, section VI-B).
CLAIMED_ALPHA = 0.35

AGREEMENTS = (0.99, 0.95)

Items = Mapping[str, str]


class Series(NamedTuple):
    """Accuracy rows of one workload by α, everything else equal."""

    setting: str
    system: str
    generated: bool
    workload: str
    scoring: str
    rows: tuple[AccuracyRow, ...]


class Change(NamedTuple):
    """A score's change from α = 0, in points, with its standard error."""

    alpha: float
    points: float
    stderr: float
    paired: bool

    @property
    def negligible(self) -> bool:
        """Whether the change is within `ERRORS` standard errors of 0."""
        return self.points == 0 or abs(self.points) < ERRORS * self.stderr


class Verdict(NamedTuple):
    """Effect of α on one workload's score and agreement.

    Attributes:
        start: row at α = 0; None, without changes, if there is none.
        changes: change at each α above 0.
        negligible_up_to: largest α at and below which every change is negligible (0 if the
            first is not); None without changes.
        visible: smallest change that is visible at every α, in points; None without changes.
        falls: for each of `AGREEMENTS`, the smallest α with a lower agreement, or None.
    """

    series: Series
    start: AccuracyRow | None
    changes: tuple[Change, ...]
    negligible_up_to: float | None
    visible: float | None
    falls: tuple[float | None, ...]

    @property
    def at_floor(self) -> bool:
        """Whether the score at α = 0 is at chance level, so that α cannot lower it."""
        start = self.start
        return start is not None and at_floor(
            start.score, start.stderr, start.n, start.chance, whole=100
        )


class Line(NamedTuple):
    """One line of a table by α.

    Attributes:
        values: value at each α, or None; agreement is a share.
        errors: standard errors of the values, or empty.
        form: number format, as in `format`.
    """

    name: str
    measure: str
    n: str
    values: tuple[float | None, ...]
    errors: tuple[float | None, ...]
    form: str

    @property
    def texts(self) -> list[str]:
        """The values as cells of text."""
        errors = self.errors or (None,) * len(self.values)
        return [
            _text(value, self.form) + (f" ± {error:{self.form}}" if error is not None else "")
            for value, error in zip(self.values, errors, strict=True)
        ]


class Block(NamedTuple):
    """A titled group of lines: real datasets, generated exercises, or the paper's values."""

    title: str
    lines: list[Line]

    @property
    def text_lines(self) -> list[list[str]]:
        """The lines as text, a cell for each of `View.headers`."""
        return [[line.name, line.n, line.measure, *line.texts] for line in self.lines]


class View(NamedTuple):
    """Tables and verdicts of one setting and system.

    Attributes:
        origin: source of the table, and the code that made it.
    """

    title: str
    origin: str
    alphas: list[float]
    blocks: list[Block]
    series: list[Series]
    verdicts: list[Verdict]
    summary: str

    @property
    def headers(self) -> list[str]:
        """Column headers of every block: workload, n, measure, and each α."""
        return ["workload", "n", "α", *(f"{alpha:g}" for alpha in self.alphas)]

    @property
    def verdict_lines(self) -> list[list[str]]:
        """The verdicts as rows of text."""
        return [verdict_cells(one) for one in self.verdicts]


# ---------------------------------------------------------------------- from files to views


def load(path: Path = ALPHA_TABLE) -> list[View]:
    """Read a table and its items, and return their views.

    Raises InputError: the table is absent, or a file is damaged.
    """
    where = "shipped with moebench" if path == ALPHA_TABLE else str(path)
    return views(read_table(path), read_items(path), where)


def views(rows: Sequence[AccuracyRow], items: Items, where: str = "computed here") -> list[View]:
    """Return one view for each setting and system.

    Args:
        where: description of the table's file.
    """

    def group(one: Series) -> tuple[str, str]:
        return one.setting, one.system

    return [
        _view(list(members), items, where)
        for _, members in groupby(sorted(series(rows), key=group), group)
    ]


def series(rows: Sequence[AccuracyRow]) -> list[Series]:
    """Group the rows into curves over α, real datasets before generated exercises."""

    def curve(row: AccuracyRow) -> tuple[str, str, bool, str, str]:
        return row.setting, row.system, row.generated, row.workload, row.scoring

    ordered = sorted(sorted(rows, key=key), key=curve)
    return [Series(*name, tuple(members)) for name, members in groupby(ordered, curve)]


def verdict(one: Series, items: Items) -> Verdict:
    """Return the effect of α on a workload's score and agreement.

    Args:
        items: right and wrong answers ("0110...") by run id; changes are paired if both runs
            have them for the same examples.
    """
    start = next((row for row in one.rows if row.alpha == 0), None)
    above = [row for row in one.rows if row.alpha > 0]
    changes = () if start is None else tuple(change(start, row, items) for row in above)
    up_to = 0.0
    for step in changes:
        if not step.negligible:
            break
        up_to = step.alpha
    falls = tuple(
        next((r.alpha for r in one.rows if r.agreement is not None and r.agreement < limit), None)
        for limit in AGREEMENTS
    )
    visible = ERRORS * max((step.stderr for step in changes), default=0.0)
    return Verdict(
        one, start, changes, up_to if changes else None, visible if changes else None, falls
    )


def change(start: AccuracyRow, row: AccuracyRow, items: Items) -> Change:
    """Return the change of the score from ``start`` to ``row``.

    The standard error is that of the mean difference of paired examples, or otherwise that of
    the difference of two independent shares, which is larger.
    """
    before, after = items.get(start.run_id, ""), items.get(row.run_id, "")
    same = start.data_hash == row.data_hash and len(before) == len(after) == start.n == row.n
    if not same:
        stderr = math.hypot(start.stderr, row.stderr)
        return Change(row.alpha, row.score - start.score, stderr, paired=False)
    differences = [int(b) - int(a) for a, b in zip(before, after, strict=True)]
    n = len(differences)
    mean = sum(differences) / n
    variance = sum(d * d for d in differences) / n - mean * mean
    stderr = 100 * math.sqrt(max(variance, 0.0) / n)
    return Change(row.alpha, 100 * mean, stderr, paired=True)


def paper_scores(setting: str) -> dict[str, dict[float, float]]:
    """Return SMoE's Table IV for a setting: percent by workload and α; {} for other settings."""
    found: dict[str, dict[float, float]] = {}
    for cell in smoe_table_4():
        if cell.setting == setting:
            found.setdefault(workload_of("smoe", cell.dataset), {})[cell.alpha] = cell.score
    return found


# ---------------------------------------------------------------------- what is shown

#: Columns of the table of verdicts.
VERDICT_HEADERS = (
    "workload", "scoring", "n", "score at α = 0 (%)", "chance (%)", "standard error",
    "negligible up to α", "least visible change (points)", "change at the largest α (points)",
    "paper's change (points)", "agreement < 99 % from α", "< 95 % from α",
)  # fmt: skip


def verdict_cells(one: Verdict) -> list[str]:
    """Return a verdict as text, a cell for each of `VERDICT_HEADERS`."""
    start, last = one.start, one.changes[-1] if one.changes else None
    kinds = sorted({"paired" if step.paired else "unpaired" for step in one.changes})
    paper = None if last is None else paper_change(one.series, last.alpha)
    return [
        one.series.workload,
        one.series.scoring,
        _counts(one.series.rows),
        MISSING if start is None else f"{start.score:.1f} ± {start.stderr:.1f}",
        MISSING if start is None else _text(start.chance, ".1f"),
        ", ".join(kinds) or MISSING,
        _negligible(one),
        _text(one.visible, ".1f"),
        MISSING if last is None else f"{last.points:+.1f} ± {last.stderr:.1f} (α = {last.alpha:g})",
        _text(paper, "+.1f"),
        *("never" if alpha is None else f"{alpha:g}" for alpha in one.falls),
    ]


def _negligible(one: Verdict) -> str:
    if one.at_floor:
        return "at chance level"
    return "none" if one.negligible_up_to == 0 else _text(one.negligible_up_to, "g")


def paper_change(one: Series, alpha: float) -> float | None:
    """Return the paper's change of the score from α = 0 to α, in points; None if it has none."""
    scores = {} if one.generated else paper_scores(one.setting).get(one.workload, {})
    return scores[alpha] - scores[0.0] if {0.0, alpha} <= scores.keys() else None


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return a sentence: in how many workloads the paper's statement on α holds."""
    parts = []
    for generated, what in ((False, "real datasets"), (True, "generated families")):
        tested = [
            one for one in verdicts
            if one.series.generated == generated
            and one.changes and one.changes[-1].alpha >= CLAIMED_ALPHA and not one.at_floor
        ]  # fmt: skip
        if tested:
            held = sum((one.negligible_up_to or 0.0) >= CLAIMED_ALPHA for one in tested)
            parts.append(f"in {held} of {len(tested)} {what}")
    text = f"No visible change of the score up to α = {CLAIMED_ALPHA:g} {' and '.join(parts)}."
    if not parts:
        text = (
            f"No workload that scores above guessing was run at α = 0 and up to α = "
            f"{CLAIMED_ALPHA:g}."
        )
    flat = [one.series.workload for one in verdicts if one.at_floor]
    if flat:
        text += f" Not counted, as they are at chance level at α = 0: {', '.join(flat)}."
    return text


def _view(members: list[Series], items: Items, where: str) -> View:
    first = members[0]
    alphas = sorted({row.alpha for one in members for row in one.rows})
    verdicts = [verdict(one, items) for one in members]
    blocks = [
        Block(title, [line for one in members if one.generated == generated
                      for line in _lines(one, alphas)])
        for generated, title in ((False, "real datasets"), (True, "generated exercises"))
    ]  # fmt: skip
    blocks.append(Block("SMoE, Table IV: the paper's own models", _paper_lines(first, alphas)))
    models = " and ".join(sorted({row.model for one in members for row in one.rows}))
    return View(
        title=f"{first.setting} · {models} · {first.system}",
        origin=_origin([row for one in members for row in one.rows], where),
        alphas=alphas,
        blocks=[block for block in blocks if block.lines],
        series=members,
        verdicts=verdicts,
        summary=summary(verdicts),
    )


def _origin(rows: Sequence[AccuracyRow], where: str) -> str:
    codes, torch = ({getattr(row, name) for row in rows} for name in ("code_hash", "torch"))
    made = f"code {', '.join(sorted(codes))}; torch {', '.join(sorted(torch))}"
    return f"{where}: {counted(len(rows), 'cell')} computed by {made}"


def _lines(one: Series, alphas: list[float]) -> list[Line]:
    found = {row.alpha: row for row in one.rows}
    cells = [found.get(alpha) for alpha in alphas]

    def values(name: str) -> tuple[float | None, ...]:
        return tuple(None if cell is None else getattr(cell, name) for cell in cells)

    n, cut = _counts(one.rows), values("cut")
    score, answers, *more = map(metric_of, ("score", "cut", "agreement", "kl"))
    return [
        Line(
            one.workload,
            f"{score.header}, {one.scoring}",
            n,
            values("score"),
            values("stderr"),
            score.form,
        ),
        *(Line("", metric.header, "", values(metric.key), (), metric.form) for metric in more),
        *([Line("", answers.header, "", cut, (), answers.form)] if any(cut) else []),
    ]


def _paper_lines(first: Series, alphas: list[float]) -> list[Line]:
    score = metric_of("score")
    return [
        Line(workload, score.header, "", tuple(map(scores.get, alphas)), (), score.form)
        for workload, scores in paper_scores(first.setting).items()
        if not scores.keys().isdisjoint(alphas)
    ]


def _counts(rows: Sequence[AccuracyRow]) -> str:
    low, high = min(row.n for row in rows), max(row.n for row in rows)
    return str(low) if low == high else f"{low}–{high}"


def _text(value: float | None, form: str) -> str:
    return MISSING if value is None else written(value, form)
