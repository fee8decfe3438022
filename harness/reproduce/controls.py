"""Positive controls of accuracy claims: questions on which a loss must show to be seen at all.

That a system loses no answers means something only if the same questions show a loss where there
must be one.  Three controls answer them, and the unchanged model:

    α = 1        SMoE's substitution with the widest band of scores
    random       every active expert of a decoded token is replaced by a random inactive one
    degraded     all experts are quantised to int4, the coarsest type that experts compute with

A control shows a loss where an exact sign test over the questions that only one of the two answers
right finds fewer right answers than the unchanged model's, one-sided at the level `LEVEL`.  With no
question won, five lost ones are enough.  Workloads whose unchanged score is no better than guessing
or above `CEILING` show no loss of ability either and are left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import comb
from statistics import fmean
from typing import Any, NamedTuple

from moebench.harness.reproduce.evidence import Evidence, Experiment, MissingEvidenceError, Runs
from moebench.results.document import Document, dig, score_at_floor

#: Score in percent above which a workload can hide a loss.
CEILING = 97.0

#: Largest probability, under no difference, of a result that counts as a loss.
LEVEL = 0.05

#: Questions of each workload and their seed, as in the committed α table.
QUESTIONS, SEED = 24, 0

#: Everything on the device: the cheapest run that computes the model's own answers.
_WHOLE: dict[str, Any] = {"system": "gpu-only", "allow_overcommit": True}

#: Fields of the unchanged model's cells.
UNCHANGED = _WHOLE

#: Fields of the cells of each control, by its name in messages.
CONTROLS: dict[str, dict[str, Any]] = {
    "α = 1": {"system": "smoe", "alpha": 1.0},
    "random substitution": {**_WHOLE, "set": {"route": "random"}},
    "all experts in int4": {**_WHOLE, "expert_dtype": "int4"},
}

#: The same for answers that the prompt's pass decides, where α has no effect.
IN_PREFILL: dict[str, dict[str, Any]] = {
    "random substitution": {**_WHOLE, "set": {"route": "random", "route.prefill": "true"}},
    "all experts in int4": {**_WHOLE, "expert_dtype": "int4"},
}


def controls(
    name: str, settings: Sequence[str], workloads: Sequence[str], scoring: str = "generation",
    prompts: int = QUESTIONS, seed: int = SEED, few_shot: int = 0, quick_prompts: int = 12,
) -> Experiment:  # fmt: skip
    """Return the runs of the unchanged model and of each control, on each setting and workload.

    Args:
        scoring: of the claim; ``prefill`` and ``likelihood`` answers get the controls of prefill.
        prompts, seed, few_shot: of the claim's questions, which must be the same.
        quick_prompts: number of questions with ``--quick``.
    """
    chosen = IN_PREFILL if scoring in ("prefill", "likelihood") else CONTROLS
    return Experiment(
        name,
        {
            "common": {"scoring": scoring, "prompts": prompts, "seed": seed, "few_shot": few_shot},
            "product": {
                "setting": [*settings],
                "workload": [*workloads],
                "system": [UNCHANGED, *chosen.values()],
            },
        },
        quick={"common": {"prompts": quick_prompts}},
    )


class Change(NamedTuple):
    """The right answers of a control against those of the unchanged model, on the same questions.

    Attributes:
        before, after: scores in percent.
        lost, won: questions whose score is lower, and higher, than the unchanged model's.
    """

    before: float
    after: float
    lost: int
    won: int

    @property
    def chance(self) -> float:
        """Probability of at least as many lost questions if lost and won are equally likely."""
        n = self.lost + self.won
        return sum(comb(n, k) for k in range(self.lost, n + 1)) / 2**n

    @property
    def shows_loss(self) -> bool:
        """Whether the loss is beyond noise."""
        return self.chance <= LEVEL


def compared(unchanged: Sequence[Document], control: Sequence[Document]) -> Change:
    """Compare the runs of a control with those of the unchanged model, question by question.

    Raises MissingEvidenceError: there is no run, or the two did not answer the same questions.
    """
    asked, put = ({_place(run): run for run in runs} for runs in (unchanged, control))
    if not asked or asked.keys() != put.keys():
        raise MissingEvidenceError("a control and the unchanged model answered other questions")
    before = [value for place in asked for value in _values(asked[place])]
    after = [value for place in asked for value in _values(put[place])]
    pairs = list(zip(before, after, strict=True))
    return Change(
        100 * fmean(before), 100 * fmean(after), sum(b > a for b, a in pairs),
        sum(b < a for b, a in pairs),
    )  # fmt: skip


def hidden(score: float, floor: bool) -> str:
    """Return why a workload with this unchanged score cannot show a loss, or "".

    Args:
        score: in percent.
        floor: whether it cannot be told from guessing.
    """
    if floor:
        return "no better than a guess"
    return f"above {CEILING:g} %" if score > CEILING else ""


def blind(
    evidence: Evidence, experiment: Experiment, setting: str, workloads: Iterable[str] | None = None
) -> str:
    """Return "" if each control shows a loss on a setting's questions, else why one could not.

    Args:
        experiment: made by `controls`.
        workloads: those of the claim; by default all of the experiment.

    Raises MissingEvidenceError: a cell failed, or a control lacks questions.
    """
    runs = evidence.runs(experiment).of(setting=setting)
    if workloads is not None:
        runs = runs.of(workload=tuple(workloads))
    unchanged = _cells(runs, UNCHANGED)
    reasons = {one["spec"]["workload"]: _hidden(one) for one in unchanged}
    names = tuple(name for name, why in reasons.items() if not why)
    if not names:
        said = ", ".join(
            f"{one['spec']['workload']} {dig(one, 'accuracy.score'):.0f} % "
            f"({reasons[one['spec']['workload']]})"
            for one in unchanged
        )
        return f"the unchanged model's scores leave no room for a loss: {said or 'no questions'}"
    seen = runs.of(workload=names)
    asked = [fields for fields in _all_controls() if len(_cells(seen, fields[1]))]
    found = {
        name: compared(_cells(seen, UNCHANGED), _cells(seen, fields)) for name, fields in asked
    }
    if not found:
        raise MissingEvidenceError(f"{experiment.name}: no control answered {', '.join(names)}")
    failed = [
        f"{name} {change.before:.1f} → {change.after:.1f} % ({change.lost} lost, {change.won} won)"
        for name, change in found.items()
        if not change.shows_loss
    ]
    if not failed:
        return ""
    return (
        f"{len(failed)} of {len(found)} controls show no loss beyond noise on "
        f"{', '.join(names)} either: {'; '.join(failed)}"
    )


def _all_controls() -> list[tuple[str, Mapping[str, Any]]]:
    """Return the controls of answers that are written, and of those that prefill decides."""
    return [*CONTROLS.items(), ("random substitution", IN_PREFILL["random substitution"])]


def _cells(runs: Runs, fields: Mapping[str, Any]) -> Runs:
    """Return the runs of the unchanged model or of one control."""
    found = runs.of(system=fields["system"], set=fields.get("set", {}))
    return found.of(expert_dtype=fields.get("expert_dtype"))


def _place(run: Document) -> tuple[Any, ...]:
    spec = run["spec"]
    return (spec["setting"], spec["workload"], spec["seed"], spec["prompts"])


def _values(run: Document) -> list[float]:
    """Return the score of each question of a run, 0 to 1.

    Raises MissingEvidenceError: the run scored no question.
    """
    values = [value for value in dig(run, "accuracy.items.value") or () if value is not None]
    if not values:
        raise MissingEvidenceError(f"{run['spec']['workload']}: a run scored no question")
    return values


def _hidden(run: Document) -> str:
    return hidden(float(dig(run, "accuracy.score") or 0.0), score_at_floor(run))
