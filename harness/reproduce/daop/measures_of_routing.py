"""Functions that read DAOP's figures from routed texts, and its scores from runs."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

import numpy as np

from moebench.harness.reproduce import read
from moebench.harness.reproduce.daop import experiments as e
from moebench.harness.reproduce.daop.measures import at_ratio
from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.harness.reproduce.generated_texts import over_texts, recorded, routed
from moebench.harness.reproduce.read import SCORE, Measure, percent
from moebench.results.claims import Measured
from moebench.substrate.analysis.statistics import (
    WINDOW,
    popularity,
    prediction_by_layer,
    prefill_decode_similarity,
    window_similarity,
)
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.terms import Lookahead, RoutedSequence

MIXTRAL, EXPERTS = "mixtral-8x7b", 8

# ----------------------------------------------------------------------------- routing


@read.curried
def similarity(evidence: Evidence, *datasets: str) -> Measured:
    """Measure the mean similarity of expert use in prefill and decode (Eq. 1), in percent."""
    found = [
        over_texts(
            evidence, MIXTRAL, dataset,
            lambda text: 100 * prefill_decode_similarity([text], EXPERTS),
            f"{dataset}, 64 tokens written",
        )
        for dataset in datasets
    ]  # fmt: skip
    if len(found) == 1:
        return found[0]
    said = f"mean of {', '.join(datasets)}"
    return Measured.of([one.value for one in found], "counted", said, "data sets")


#: Data sets of Fig. 5.
PREDICTED = ("alpaca", "math", "c4")


def recall_by_layer(evidence: Evidence, datasets: Iterable[str] = PREDICTED) -> list[np.ndarray]:
    """Return the share of each layer's experts that the layer before predicts, by data set."""
    return [
        prediction_by_layer(routed(evidence, MIXTRAL, dataset), Lookahead.NORMED.value)
        for dataset in datasets
    ]


def recall(evidence: Evidence) -> Measured:
    """Measure the share of predicted experts, averaged over layers, for each data set."""
    found = [100 * float(np.nanmean(layers)) for layers in recall_by_layer(evidence)]
    return Measured.of(found, "counted", "Alpaca, MATH, C4; scale model", "data sets")


def low_at_first(evidence: Evidence) -> Measured:
    """Measure the share of predicted experts in layers 1 to 4 minus that in later layers."""
    found = [
        100 * float(np.nanmean(layers[:5]) - np.nanmean(layers[5:]))
        for layers in recall_by_layer(evidence)
    ]
    return Measured.of(found, "counted", "layers 1 to 4 less the others; scale model", "data sets")


#: A function from routed texts to the mean similarity of their windows.
Similarity = Callable[[Sequence[RoutedSequence]], float]

#: Number of groups into which the texts of a data set are divided for an interval.
GROUPS = 8


@read.curried
def windows_change(evidence: Evidence, similarity: Similarity) -> Measured:
    """Measure how similarity of 15-token windows on GSM8K differs from TriviaQA, in percent.

    The texts of both are divided into `GROUPS` groups, each of which is one sample.
    """
    maths, others = (routed(evidence, MIXTRAL, name) for name in ("gsm8k", "triviaqa"))
    changes = [
        percent(similarity(maths[i::GROUPS]) / similarity(others[i::GROUPS])) for i in range(GROUPS)
    ]
    said = (
        f"GSM8K {similarity(maths):.3f}, TriviaQA {similarity(others):.3f}; "
        f"{len(maths)} texts each, scale model"
    )
    return Measured.of(changes, "counted", said, "groups of texts")


def successive(texts: Sequence[RoutedSequence]) -> float:
    """Return the mean cosine of expert use in each window of a text and the next one."""
    return window_similarity(texts, EXPERTS)


def to_the_whole(texts: Sequence[RoutedSequence]) -> float:
    """Return the mean cosine of expert use in each window and in its text's whole decode."""
    cosines = []
    for text in texts:
        used_TLE = np.eye(EXPERTS)[text.ids_TLK[text.prefill :]].sum(2)
        windows = [used_TLE[at : at + WINDOW].sum(0) for at in range(0, len(used_TLE), WINDOW)]
        whole_LE = used_TLE.sum(0)
        for one_LE in windows[: len(used_TLE) // WINDOW]:
            norms = np.linalg.norm(one_LE, axis=1) * np.linalg.norm(whole_LE, axis=1)
            cosines.append(((one_LE * whole_LE).sum(1) / norms).mean())
    return float(np.mean(cosines))


#: Models other than Mixtral with long recordings of mathematical and of other texts.
ON_BOTH = ("gpt-oss-20b", "olmoe-1b-7b")


def recorded_windows_change(evidence: Evidence) -> Measured:
    """Measure `windows_change` on recordings of other models, mathematics against other texts."""
    found = {}
    for model in ON_BOTH:
        maths, others = (
            window_similarity(recorded(evidence, model, *kinds), model_shape(model).num_experts)
            for kinds in (("math",), ("dialogue", "prose"))
        )
        found[model] = percent(maths / others)
    said = ", ".join(f"{model} {value:+.2f}" for model, value in found.items())
    return Measured.of(list(found.values()), "counted", said, "models")


def most_popular(evidence: Evidence) -> Measured:
    """Measure the share of a layer's most popular expert over the even share, on all of C4."""
    shares_LE = popularity(routed(evidence, MIXTRAL, "c4"), EXPERTS)
    return Measured.of(
        shares_LE.max(1) * EXPERTS, "counted", "C4, all texts; scale model", "layers"
    )


def more_in_one(evidence: Evidence) -> Measured:
    """Measure how much more popular a layer's first expert is in single texts than over all of C4.

    Both are shares over the even share; the mean is over layers, then over texts.
    """
    texts = routed(evidence, MIXTRAL, "c4")
    in_all = float((popularity(texts, EXPERTS).max(1) * EXPERTS).mean())
    found = [float((popularity([t], EXPERTS).max(1) * EXPERTS).mean()) - in_all for t in texts]
    return Measured.of(found, "counted", f"{len(texts)} texts of C4; scale model", "texts")


# ----------------------------------------------------------------------------- sizes

#: The models of Table III, and the machine of §V-A.
MODELS, MACHINE = (MIXTRAL, "phi-3.5-moe"), "a6000@daop"

#: Data sets of whose texts `of_sequences` counts the experts; the paper names none.
COUNTED = ("c4", "math", "gsm8k")


def used_share(model: str, experts: float) -> float:
    """Return the share of a model's parameters that ``experts`` experts a layer have, in percent.

    The parameters outside routed experts are counted, too.
    """
    shape = model_shape(model)
    routed_params = shape.routed_params * experts / shape.num_experts
    return 100 * (shape.total_params - shape.routed_params + routed_params) / shape.total_params


def of_token(evidence: Evidence) -> Measured:
    """Measure the share of Mixtral's parameters that a token's top-k uses, in percent."""
    share = used_share(MIXTRAL, model_shape(MIXTRAL).top_k)
    return Measured.of([share], "counted", "exact: a count of the model's parameters")


def of_sequences(evidence: Evidence) -> Measured:
    """Measure the share of Mixtral's parameters that a text's tokens use together, in percent."""

    def used(text: RoutedSequence) -> float:
        chosen_LE = np.eye(EXPERTS, dtype=bool)[text.ids_TLK].any(axis=(0, 2))
        return used_share(MIXTRAL, float(chosen_LE.sum(1).mean()))

    found = [
        over_texts(evidence, MIXTRAL, name, used, f"{name}, 64 tokens written").value
        for name in COUNTED
    ]
    said = f"mean of {', '.join(COUNTED)}; prompts of up to 256 tokens, 64 written"
    return Measured.of(found, "counted", said, "data sets")


def weights_gb(model: str) -> float:
    """Return the bytes of a model's parameters in bf16, in GB."""
    return 2 * model_shape(model).total_params / 1e9


def over_memory(evidence: Evidence) -> Measured:
    """Measure the parameters in bf16 over the GPU's memory, the smaller of both models."""
    memory = load_profile(MACHINE).gpu.memory.bytes / 1e9
    found = {model: weights_gb(model) / memory for model in MODELS}
    said = ", ".join(f"{model} {ratio:.2f}" for model, ratio in found.items())
    return Measured.of([min(found.values())], "counted", f"exact: a smallest value; {said}")


# ----------------------------------------------------------------------------- accuracy


def score_change(runs: Runs, ratio: float | None = None) -> float:
    """Return DAOP's mean score minus that of the unchanged model, in points."""
    return at_ratio(runs.named("daop"), ratio).mean(SCORE) - runs.named("moe-ondemand").mean(SCORE)


@read.curried
def first_token_change(evidence: Evidence, setting: str) -> Measured:
    """Measure the largest change of a score that prefill alone decides, in points.

    One data set has the largest, so that there is no sample of it.
    """
    runs = evidence.runs(e.FIRST_TOKEN).of(setting=setting)
    by_workload = runs.by("workload")
    change = max(abs(score_change(one)) for one in by_workload.values())
    said = f"{', '.join(by_workload)}; {runs[0]['spec']['prompts']} questions each, scale model"
    return Measured.of([change], "counted", f"exact: a largest value; {said}", "data sets")


@read.curried
def first_token_cell(evidence: Evidence, setting: str, workload: str) -> Measured:
    """Measure the change of one score that prefill alone decides, with a sample a question."""
    runs = evidence.runs(e.FIRST_TOKEN)
    changes = question_changes(runs, setting, 0.25, (workload,))
    said = f"{workload}; {len(changes)} questions, scale model"
    return Measured.of(changes, "counted", said, "questions")


def question_changes(
    runs: Runs, setting: str, ratio: float, families: Iterable[str]
) -> list[float]:
    """Return DAOP's change of each question's score in points, the mean over generated families.

    Raises MissingEvidenceError: no family was answered in this setting.
    """
    place = runs.of(setting=setting)
    present = [place.of(workload=name) for name in families if len(place.of(workload=name))]
    if not present:
        raise MissingEvidenceError(
            f"no answers of {setting} on {', '.join(families)}; leave --quick out"
        )
    by_family = [
        [
            100 * (ours - unchanged)
            for ours, unchanged in zip(
                _scores(at_ratio(one.named("daop"), ratio)), _scores(one.named("moe-ondemand")),
                strict=True,
            )
        ]
        for one in present
    ]  # fmt: skip
    return [fmean(changes) for changes in zip(*by_family, strict=True)]


def _scores(runs: Runs) -> list[float]:
    """Return the score of each question of the only run, 0 to 1.

    Raises MissingEvidenceError: there is no run.
    """
    if not len(runs):
        raise MissingEvidenceError("no such answers; leave --quick out")
    return [float(value) for value in runs[0]["accuracy"]["items"]["value"]]


@read.curried
def whole_answers(evidence: Evidence, figure: Callable[[Runs], list[float]], said: str) -> Measured:
    """Measure a figure of the runs that score whole answers, with one sample for each question."""
    runs = evidence.runs(e.WHOLE_ANSWERS)
    n, names = runs[0]["spec"]["prompts"], ", ".join(runs.by("workload"))
    return Measured.of(figure(runs), "counted", f"{said}; {names}; {n} questions each", "questions")


def others_change(setting: str, ratio: float) -> Measure:
    """Return a function that measures DAOP's score change on all families but mathematics."""
    return whole_answers(
        lambda runs: question_changes(runs, setting, ratio, e.OTHERS), "all but mathematics"
    )


def maths_falls_more(setting: str) -> Measure:
    """Return a function that measures DAOP's score change on mathematics minus other families."""

    def figure(runs: Runs) -> list[float]:
        both = (question_changes(runs, setting, 0.25, of) for of in (e.MATHS, e.OTHERS))
        return [maths - others for maths, others in zip(*both, strict=True)]

    return whole_answers(figure, "mathematics against the others")


def words_change_more(evidence: Evidence) -> Measured:
    """Measure the share of tokens unchanged by DAOP, on GSM8K minus on TriviaQA, in points."""
    runs = evidence.runs(e.WHOLE_ANSWERS)
    kept = {
        name: 100 * runs.of(workload=name).named("daop").mean("accuracy.agreement")
        for name in e.ON_REAL_SETS["workload"]
    }
    said = ", ".join(f"{name} {value:.1f} %" for name, value in kept.items())
    return Measured.of([kept["gsm8k"] - kept["triviaqa"]], "counted", f"tokens unchanged: {said}")
