"""Functions that read DAOP's figures from runs and from routed texts."""

from collections.abc import Iterable, Sequence
from statistics import fmean

import numpy as np

from moebench.harness.reproduce import read
from moebench.harness.reproduce.daop import experiments as e
from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.harness.reproduce.generated_texts import over_texts, recorded, routed
from moebench.harness.reproduce.read import SCORE, TPOT, TTFT, Figure, Measure, measured, percent
from moebench.results.claims import Measured
from moebench.substrate.analysis.statistics import (
    prediction_by_layer,
    prefill_decode_similarity,
    window_similarity,
)
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.terms import Lookahead

MIXTRAL, EXPERTS = "mixtral-8x7b", 8


def _conditions(runs: Runs, said: str) -> str:
    spec = runs[0]["spec"]
    how = f"{spec['prompts']} prompts, {spec['new_tokens']} tokens decoded, {spec['routing']}"
    return f"{said}; {how} routing"


# ----------------------------------------------------------------------------- speed and energy


def tokens_per_s(runs: Runs, tokens: int) -> float:
    """Return the mean tokens/s for an output of ``tokens`` tokens, prefill included (§V-A).

    The first token takes TTFT, each further token TPOT.
    """
    return 1e3 * tokens / (runs.mean(TTFT) + (tokens - 1) * runs.mean(TPOT))


def speed(setting: str, system: str, tokens: int, ratio: float | None = None) -> Figure:
    """Return a function from runs to the speed of one system, in tokens/s."""
    return lambda runs: tokens_per_s(_at(runs.of(setting=setting).named(system), ratio), tokens)


def _at(runs: Runs, ratio: float | None) -> Runs:
    """Return the runs whose cache ratio is ``ratio`` up to rounding; None: all runs."""
    if ratio is None:
        return runs
    return Runs(run for run in runs if abs(run["spec"]["cache_ratio"] - ratio) < 0.01)


def over_fiddler(runs: Runs, tokens: int) -> float:
    """Return DAOP's mean gain over Fiddler, over models and cache ratios, in percent."""
    return percent(fmean(
        tokens_per_s(one.named("daop"), tokens) / tokens_per_s(one.named("fiddler"), tokens)
        for one in runs.groups("setting", "cache_ratio").values()
    ))  # fmt: skip


def of_shared_ratio(runs: Runs) -> Runs:
    """Return the runs of the three systems that have the cache ratio of the setting."""
    return runs.named("daop", "fiddler", "moe-ondemand")


def gain_of_length(system: str, runs: Runs) -> float:
    """Return the mean gain in tokens/s from 128 to 512 output tokens over models, in percent."""
    return percent(fmean(
        tokens_per_s(place.named(system), 512) / tokens_per_s(place.named(system), 128)
        for place in runs.by("setting").values()
    ))  # fmt: skip


def greatest_over(others: Sequence[str], runs: Runs) -> float:
    """Return DAOP's greatest speed-up over some systems, over models and output lengths."""
    return max(
        tokens_per_s(place.named("daop"), tokens) / tokens_per_s(chosen, tokens)
        for place in runs.by("setting").values()
        for other in others
        if len(chosen := place.named(other))
        for tokens in (256, 512)
    )


def tokens_per_kj(runs: Runs, tokens: int) -> float:
    """Return the tokens per kJ for an output of ``tokens`` tokens.

    Prefill's energy counts in full, decode's in proportion to its tokens.  Idle power is drawn all
    the time, working power while the lane of the GPU or host is busy.
    """
    joules = [_joules(run, tokens) for run in runs]
    if not joules:
        raise MissingEvidenceError("no run has an energy")
    return 1e3 * tokens / fmean(joules)


def _joules(run: dict, tokens: int) -> float:  # type: ignore[type-arg]
    m, prompts = run["metrics"], run["spec"]["prompts"]
    ttft, tpot = m["ttft_ms"]["mean"], m["tpot_ms"]["mean"]
    decoded = m["decoded_tokens"] / prompts
    parts = m["energy"]["parts_j"]
    if not parts:
        raise MissingEvidenceError(f"a run has no energy: {m['energy']['reason']}")
    total = 0.0
    for name, joules in parts.items():
        lane = "device" if name.startswith("gpu") else "host"
        if name.endswith("idle"):
            in_decode = decoded * tpot / (ttft + decoded * tpot)
        else:
            busy = m["lanes"][lane]
            in_decode = m["decode"]["lanes"][lane] / busy if busy else 0.0
        each = joules / prompts
        total += each * (1 - in_decode) + each * in_decode * (tokens - 1) / decoded
    return total


def efficiency(setting: str, system: str) -> Figure:
    """Return a function from runs to one system's tokens per kJ, for 256 output tokens."""
    return lambda runs: tokens_per_kj(runs.of(setting=setting).named(system), 256)


def efficiency_over_fiddler(runs: Runs) -> float:
    """Return DAOP's tokens per kJ over Fiddler's, averaged over models."""
    return fmean(
        efficiency(setting, "daop")(runs) / efficiency(setting, "fiddler")(runs)
        for setting in runs.by("setting")
    )


def most_efficient(runs: Runs) -> float:
    """Return the share of other systems, over both models, with fewer tokens per kJ than DAOP."""
    beaten = [
        efficiency(setting, "daop")(runs) > efficiency(setting, other)(runs)
        for setting, place in runs.by("setting").items()
        for other in {run["spec"]["system"] for run in place} - {"daop"}
    ]
    return fmean(beaten)


@read.curried
def charged(evidence: Evidence, what: str, times: int = 1) -> Measured:
    """Return the charged time of a component of Table I, ``times`` times in a row, in ms."""
    said = "a100@daop, as the cost model charges"
    return Measured.of([times * component(what)], "estimate", said)


#: Component of the fourth row of Table I.
ACTIVATION = "an expert's input or output between host and device"


def component(what: str) -> float:
    """Return the charged time of a row of Table I, in ms."""
    (row,) = read.components(what, source="DAOP Table I")
    return float(row["charged"])


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


def windows_change(evidence: Evidence) -> Measured:
    """Measure how similarity of 15-token windows on GSM8K differs from TriviaQA, in percent."""
    of = {
        name: window_similarity(routed(evidence, MIXTRAL, name), EXPERTS)
        for name in ("gsm8k", "triviaqa")
    }
    value = percent(of["gsm8k"] / of["triviaqa"])
    said = f"GSM8K {of['gsm8k']:.3f}, TriviaQA {of['triviaqa']:.3f}; scale model"
    return Measured.of([value], "counted", said)


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


# ----------------------------------------------------------------------------- accuracy


def score_change(runs: Runs, ratio: float | None = None) -> float:
    """Return DAOP's mean score minus that of the unchanged model, in points."""
    return _at(runs.named("daop"), ratio).mean(SCORE) - runs.named("moe-ondemand").mean(SCORE)


@read.curried
def first_token_change(evidence: Evidence, setting: str) -> Measured:
    """Measure the largest change of a score that prefill alone decides, in points."""
    runs = evidence.runs(e.FIRST_TOKEN).of(setting=setting)
    by_workload = runs.by("workload")
    change = max(abs(score_change(one)) for one in by_workload.values())
    said = f"{', '.join(by_workload)}; {runs[0]['spec']['prompts']} questions each, scale model"
    return Measured.of([change], "counted", said, "runs")


def answers_change(runs: Runs, setting: str, ratio: float, families: Iterable[str]) -> float:
    """Return DAOP's mean change of the scores of generated families, in points."""
    place = runs.of(setting=setting)
    present = [place.of(workload=name) for name in families if len(place.of(workload=name))]
    if not present:
        raise MissingEvidenceError(f"no answers of {setting} on {', '.join(families)}")
    return fmean(score_change(one, ratio) for one in present)


@read.curried
def whole_answers(evidence: Evidence, figure: Figure, said: str) -> Measured:
    """Measure a figure of the runs that score whole answers."""
    runs = evidence.runs(e.WHOLE_ANSWERS)
    n = runs[0]["spec"]["prompts"]
    names = ", ".join(runs.by("workload"))
    return Measured.of([figure(runs)], "counted", f"{said}; {names}; {n} questions each")


def others_change(setting: str, ratio: float) -> Measure:
    """Return a function that measures DAOP's score change on all families but mathematics."""
    return whole_answers(
        lambda runs: answers_change(runs, setting, ratio, e.OTHERS), "all but mathematics"
    )


def maths_falls_more(setting: str) -> Measure:
    """Return a function that measures DAOP's score change on mathematics minus other families."""
    return whole_answers(
        lambda runs: (
            answers_change(runs, setting, 0.25, e.MATHS)
            - answers_change(runs, setting, 0.25, e.OTHERS)
        ),
        "mathematics against the others",
    )


def words_change_more(evidence: Evidence) -> Measured:
    """Measure the share of tokens unchanged by DAOP, on GSM8K minus on TriviaQA, in points."""
    runs = evidence.runs(e.WHOLE_ANSWERS)
    kept = {
        name: 100 * runs.of(workload=name).named("daop").mean("accuracy.agreement")
        for name in e.ON_REAL_SETS["workload"]
    }
    said = ", ".join(f"{name} {value:.1f} %" for name, value in kept.items())
    return Measured.of([kept["gsm8k"] - kept["triviaqa"]], "counted", f"tokens unchanged: {said}")


def by_ratio(figure: Figure, said: str) -> Measure:
    """Return a function that measures a figure of the runs for Fig. 10."""
    return measured(figure, e.BY_RATIO, said=said, conditions=_conditions)


def at_setting(figure: Figure, said: str) -> Measure:
    """Return a function that measures a figure of the runs for Fig. 9 and Table IV."""
    return measured(figure, e.SPEED, said=said, conditions=_conditions)
