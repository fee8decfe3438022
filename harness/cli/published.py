"""``moebench validate --published`` and ``--add-row``: predictions of published measurements."""

import json as json_text
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.harness.published.prediction import Prediction
from moebench.harness.published.rows import Row
from moebench.substrate.errors import InputError, UsageError

#: Remarks that are printed; all are in the document of --json.
REMARKS = 10

#: Keys of the summary: what the table calls each, how it is printed, and what is aimed at.
FIGURES = {
    "absolute_rows": ("decode: absolute rows", "d", ""),
    "median_error": ("decode: median error", "%", "≤ 20 %"),
    "p90_ratio": ("decode: 90th percentile", "x", "≤ × 1.7"),
    "prefill_absolute_rows": ("prefill: absolute rows", "d", ""),
    "prefill_median_error": ("prefill: median error", "%", "≤ 35 %"),
    "prefill_p90_ratio": ("prefill: 90th percentile", "x", "≤ × 2.2"),
    "kendall_tau": ("decode: Kendall's τ over machines", ".2f", ""),
    "pairs_in_order": ("decode: pairs in order", "%", "≥ 90 %"),
    "slopes_within_30": ("decode: spans of curves within 30 %", "%", "≥ 60 %"),
    "coverage_80": ("measured within the 80 % interval", "%", "70 to 90 %"),
    "predicted_share": ("absolute rows predicted", "%", "≥ 90 %"),
}


def show(
    path: Path | None, left_out: bool, check: bool, html: Path | None, out: Path | None, json: bool
) -> int:
    """Predict published rows, and print or write how far the predictions are off.

    Returns:
        the exit code: 0, or with ``check`` 1 if an error is larger than accepted, 4 if none is and
        some are smaller.
    """
    from moebench.harness.arguments import require_file
    from moebench.harness.published.rows import read_rows, shipped
    from moebench.harness.published.score import summary
    from moebench.substrate.files import write_text

    if check and path is not None:
        raise UsageError(f"--check: accepted errors are of the rows that ship; leave out {path}")
    for option, file in (("--html", html), ("--out", out)):
        if file is not None:
            require_file(option, file, folder_exists=True)
    rows = read_rows(shipped() if path is None else path)
    module = _predictor()
    predictions: list[Prediction] = module.predict(rows)
    without: list[Prediction] = module.left_out(rows, predictions)
    scores = {**summary(rows, predictions), "left_out": summary(rows, without)}
    shown = without if left_out else predictions
    document = {
        "rows": _rows(rows, predictions), "summary": scores, "laws": _laws(rows, shown),
    }  # fmt: skip
    if html is not None:
        from moebench.harness.published.page import page

        write_text(html, page(rows, shown))
        console.say(f"predicted against measured: {html}")
    if out is not None:
        write_text(out, json_text.dumps(document, indent=1, sort_keys=True) + "\n")
    if json:
        console.print_json(document)
        return _check(scores) if check else 0
    _show_summary(f"{len(rows)} published rows", scores)
    _show_rows(rows, shown)
    return _check(scores) if check else 0


def _check(scores: Mapping[str, Any]) -> int:
    """Compare the errors with those that ship, say what moved, and return the exit code."""
    from moebench.harness.published.errors import moved
    from moebench.results.published_errors import shipped_errors

    found = moved(shipped_errors(), {"in_sample": scores, "left_out": scores["left_out"]})
    for one in found:
        how = "worse" if one.worse else "better"
        console.say(f"{one.name}: {how}: {one.now} instead of {one.accepted}")
    if not found:
        console.say("errors of published rows: as accepted")
        return 0
    return 1 if any(one.worse for one in found) else 4


def add_row(file: Path) -> bool:
    """Write a template row, or print what the rows of an existing file lack.

    Returns:
        Whether the file is new or each of its rows is complete.
    """
    from moebench.harness.arguments import require_file
    from moebench.harness.published.template import lacking, write_template

    if file.suffix != ".csv":
        raise InputError(f"--add-row {file}: the name of a file of rows ends in .csv")
    require_file("--add-row", file, folder_exists=True)
    if not file.exists():
        write_template(file)
        console.say(
            f"{file}: fill in the row; results/measured/README.md explains the columns; then check "
            f"it: moebench validate --add-row {file}"
        )
        return True
    found = lacking(file)
    table = [
        [name, "; ".join(needed) or "complete", "; ".join(absolute) or "all named"]
        for name, needed, absolute in found
    ]
    headers = ["row", "missing", "missing for an absolute prediction"]
    console.table(f"{file}: {len(found)} rows", headers, table)
    return not any(needed for _, needed, _ in found)


def _predictor() -> Any:
    """Return the module that predicts rows; it is imported late, because it loads the simulator."""
    return import_module("moebench.harness.published.predict")


def _rows(rows: Sequence[Row], predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Return the rows of the document: a figure each, and each row that has only a bound."""
    figures = [_figure(one) for one in predictions]
    known = {one.id for one in predictions}
    return figures + [
        {"id": row.id, "phase": "decode", "measured": None, "reason": "only a bound was measured"}
        for row in rows
        if not row.phases and row.id not in known
    ]


def _figure(one: Prediction) -> dict[str, Any]:
    figure: dict[str, Any] = {"id": one.id, "phase": one.phase, "measured": one.measured}
    if one.predicted is None:
        figure["reason"] = one.reason or "not predicted"
    else:
        figure |= {"predicted": one.predicted, "ratio": one.predicted / one.measured}
        figure |= {"low": one.low, "high": one.high}
    return figure | ({"remarks": list(one.remarks)} if one.remarks else {})


def _show_summary(title: str, scores: Mapping[str, Any]) -> None:
    without = scores["left_out"]
    figures = [[name, _said(scores.get(key), form), _said(without.get(key), form), aim]
               for key, (name, form, aim) in FIGURES.items()]  # fmt: skip
    console.table(title, ["figure", "in sample", "machine left out", "aim"], figures)


def _show_rows(rows: Sequence[Row], predictions: Sequence[Prediction]) -> None:
    """Print groups, the rows that are furthest off, rows without a prediction, and remarks."""
    from moebench.harness.published.score import by_group, ratio, worst

    groups = [
        [one.group, one.phase, f"{one.rows}", f"{one.median_error:.0%}",
         f"{one.in_order} of {one.pairs}" if one.pairs else "–",
         ", ".join(f"{span:.2f} {system}" for system, span in one.spans) or "–"]
        for one in by_group(rows, predictions)
    ]  # fmt: skip
    headers = ["group", "phase", "rows", "median error", "pairs in order", "span"]
    console.table("by group (span: predicted / measured)", headers, groups)
    far = [
        [row.id, one.phase, f"{one.measured:.4g}", f"{one.predicted:.4g}", f"{ratio(one):.2f}",
         _range(one), row.cluster]
        for phase in ("decode", "prefill")
        for row, one in worst(rows, [guess for guess in predictions if guess.phase == phase])
    ]  # fmt: skip
    headers = ["row", "phase", "measured tok/s", "predicted", "ratio", "80 % interval", "machine"]
    console.table("absolute rows that are furthest off", headers, far)
    _show_laws(rows, predictions)
    reasons: dict[str, list[str]] = defaultdict(list)
    for figure in _rows(rows, predictions):
        if "reason" in figure:
            reasons[figure["reason"]].append(f"{figure['id']} {figure['phase']}")
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        console.say(f"not predicted: {reason}: {', '.join(names[:3])}{more}")
    remarks = Counter(remark for one in predictions for remark in one.remarks)
    for remark, count in remarks.most_common(REMARKS):
        console.say(f"remark: {remark}: {count} figures")
    if len(remarks) > REMARKS:
        console.say(f"{len(remarks) - REMARKS} other remarks: see --json")


def _show_laws(rows: Sequence[Row], predictions: Sequence[Prediction]) -> None:
    """Print the line of each curve, and where curves of a group cross."""
    from moebench.harness.published.laws import crossings, laws

    found = laws(rows, predictions)
    lines = [
        [law.group, law.phase, law.system, law.variable,
         *(f"{line.start:.3g} {'+' if line.slope >= 0 else '−'} {abs(line.slope):.3g} x"
           for line in (law.measured, law.predicted))]
        for law in found
    ]  # fmt: skip
    headers = ["group", "phase", "system", "x", "measured ms/token", "predicted"]
    console.table("laws of curves", headers, lines)
    for one in crossings(found):
        if (one.measured, one.predicted) != (None, None):
            here, there = (("nowhere" if x is None else f"x = {x:.3g}")
                           for x in (one.measured, one.predicted))  # fmt: skip
            who = f"{' and '.join(one.systems)} over {one.variable}"
            console.say(f"{one.group}, {one.phase}: {who} cross at {here}, predicted {there}")


def _laws(rows: Sequence[Row], predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Return the laws of the document."""
    from moebench.harness.published.laws import laws

    return [
        {"group": law.group, "phase": law.phase, "system": law.system, "variable": law.variable,
         "measured": law.measured._asdict(), "predicted": law.predicted._asdict()}
        for law in laws(rows, predictions)
    ]  # fmt: skip


def _range(one: Prediction) -> str:
    if one.low is None or one.high is None:
        return "–"
    return f"{one.low:.4g} to {one.high:.4g}"


def _said(value: float | None, form: str) -> str:
    """Return a figure of the summary as text; "–" if it could not be computed."""
    if value is None:
        return "–"
    return {"%": f"{value:.1%}", "x": f"× {value:.2f}"}.get(form) or format(value, form)
