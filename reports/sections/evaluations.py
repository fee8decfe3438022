"""Results of evaluators next to moebench's scores on the same examples, as rows of text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moebench.reports.text import MISSING
from moebench.results.document import Document, at_floor, score_of, system_of
from moebench.results.spec import OPTIONS

HEADERS = (
    "run", "system", "setting", "α", "evaluator", "mode", "task", "version", "hash", "n", "metric",
    "value", "guessing", "our own score, %",
)  # fmt: skip

CAPTION = (
    "Each row is a metric, in the evaluator's own unit, with its standard error.  Floor: no better "
    "than guessing, or within two standard errors of it: a loss of accuracy cannot be seen.  "
    "Our own score: moebench's score, and its way of scoring, in a run of the same system, model "
    "and machine on the same examples."
)

#: Options that must be equal in an evaluation and a run next to it.  The number of experts that fit
#: may differ: the two plan the KV cache for texts of different lengths.
_SAME = [
    name for name, option in OPTIONS.items()
    if "evaluated" in option.on and option.part not in ("cell", "follows")
]  # fmt: skip

#: Ways of scoring that correspond to an evaluator's mode.
_WAYS = {"decode": ("generation", "likelihood"), "prefill": ("prefill",)}


def lines(runs: Sequence[Document]) -> list[list[str]]:
    """Return a row for each metric of each task of each evaluation among these runs."""
    return [
        [
            run["run_id"],
            system_of(run["spec"]),
            run["spec"].get("setting") or MISSING,
            _alpha(run["spec"]),
            f"{found['evaluator']} {found['version']}",
            found["mode"],
            task["task"],
            task["version"],
            task["task_hash"][:8],
            str(task["n"]),
            metric["name"],
            _value(metric, task["n"]),
            MISSING if metric["guessing"] is None else f"{metric['guessing']:.4g}",
            "; ".join(_ours(run, task, runs)) or MISSING,
        ]
        for run in runs
        if (found := run.get("evaluation")) is not None
        for task in found["tasks"]
        for metric in task["metrics"]
    ]


def _alpha(spec: Mapping[str, Any]) -> str:
    return MISSING if spec.get("alpha") is None else f"{spec['alpha']:g}"


def _value(metric: Mapping[str, Any], n: int) -> str:
    stderr = "" if metric["stderr"] is None else f" ± {metric['stderr']:.2g}"
    return f"{metric['value']:.4g}{stderr}" + (" (floor)" if metric_at_floor(metric, n) else "")


def metric_at_floor(metric: Mapping[str, Any], n: int) -> bool:
    """Return whether an evaluator's metric cannot be told from the score of guessing."""
    if metric["guessing"] is None:
        return False
    return at_floor(
        metric["value"], metric["stderr"] or 0.0, n, metric["guessing"], metric["whole"]
    )


def _ours(run: Document, task: Mapping[str, Any], runs: Sequence[Document]) -> Iterator[str]:
    """Yield the scores of moebench's own runs on the same examples, as text."""
    ways = _WAYS[run["evaluation"]["mode"]]
    for other in runs:
        spec, accuracy = other["spec"], other.get("accuracy") or {}
        if (
            "evaluation" not in other
            and other["provenance"].get("data_hash") == task["data_hash"]
            and spec.get("scoring") in ways
            and spec.get("few_shot", 0) == task["shown"]
            and all(spec.get(key) == run["spec"].get(key) for key in _SAME)
            and score_of(other) is not None
        ):
            yield f"{accuracy['score']:.4g} ± {accuracy['stderr']:.2g} ({spec['scoring']})"
