"""How DAOP's figures are read from runs and texts."""

from collections.abc import Iterable, Sequence
from statistics import fmean

import numpy as np

from moebench.harness.reproduce import read
from moebench.harness.reproduce.daop.experiments import (
    BY_RATIO,
    FIRST_TOKEN,
    MATHS,
    ON_REAL_SETS,
    OTHERS,
    SPEED,
    WHOLE_ANSWERS,
)
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
    """With an output of so many tokens: prefill counts (§V-A).

    The first token takes TTFT, each other one TPOT.
    """
    return 1e3 * tokens / (runs.mean(TTFT) + (tokens - 1) * runs.mean(TPOT))


def speed(setting: str, system: str, tokens: int, ratio: float | None = None) -> Figure:
    """Of one system, in tokens/s."""
    return lambda runs: tokens_per_s(_at(runs.of(setting=setting).named(system), ratio), tokens)


def _at(runs: Runs, ratio: float | None) -> Runs:
    """Those of a cache ratio as it was asked for: to the nearest expert."""
    if ratio is None:
        return runs
    return Runs(run for run in runs if abs(run["spec"]["cache_ratio"] - ratio) < 0.01)


def over_fiddler(runs: Runs, tokens: int) -> float:
    """DAOP's gain, the mean over models and cache ratios, in percent."""
    return percent(fmean(
        tokens_per_s(one.named("daop"), tokens) / tokens_per_s(one.named("fiddler"), tokens)
        for one in runs.groups("setting", "cache_ratio").values()
    ))  # fmt: skip


def of_shared_ratio(runs: Runs) -> Runs:
    """DAOP's, Fiddler's and on-demand loading's: all have the setting's cache ratio."""
    return runs.named("daop", "fiddler", "moe-ondemand")


def gain_of_length(system: str, runs: Runs) -> float:
    """Of outputs of 512 tokens over 128, the mean over models, in percent."""
    return percent(fmean(
        tokens_per_s(place.named(system), 512) / tokens_per_s(place.named(system), 128)
        for place in runs.by("setting").values()
    ))  # fmt: skip


def greatest_over(others: Sequence[str], runs: Runs) -> float:
    """DAOP's greatest speed-up over some others, over models and output lengths."""
    return max(
        tokens_per_s(place.named("daop"), tokens) / tokens_per_s(chosen, tokens)
        for place in runs.by("setting").values()
        for other in others
        if len(chosen := place.named(other))
        for tokens in (256, 512)
    )


def tokens_per_kj(runs: Runs, tokens: int) -> float:
    """With an output of so many tokens: prefill's energy, and decode's in proportion.

    Idle power is drawn all the time; GPU and host work while their lanes do, in decode as
    documents say.
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
    """Tokens per kJ with 256 tokens out."""
    return lambda runs: tokens_per_kj(runs.of(setting=setting).named(system), 256)


def efficiency_over_fiddler(runs: Runs) -> float:
    """The mean over models."""
    return fmean(
        efficiency(setting, "daop")(runs) / efficiency(setting, "fiddler")(runs)
        for setting in runs.by("setting")
    )


def most_efficient(runs: Runs) -> float:
    """Share of the other systems, over both models, that DAOP is more efficient than."""
    beaten = [
        efficiency(setting, "daop")(runs) > efficiency(setting, other)(runs)
        for setting, place in runs.by("setting").items()
        for other in {run["spec"]["system"] for run in place} - {"daop"}
    ]
    return fmean(beaten)


@read.curried
def charged(evidence: Evidence, what: str, times: int = 1) -> Measured:
    """What the simulated machine charges for a component of Table I, so many times in a row."""
    said = "a100@daop, as the cost model charges"
    return Measured.of([times * component(what)], "estimate", said)


#: The fourth row of Table I.
ACTIVATION = "an expert's input or output between host and device"


def component(what: str) -> float:
    """The charge of a row of DAOP's Table I, in ms."""
    (row,) = read.components(what, source="DAOP Table I")
    return float(row["charged"])


# ----------------------------------------------------------------------------- routing


@read.curried
def similarity(evidence: Evidence, *datasets: str) -> Measured:
    """Prefill and decode (Eq. 1), in percent; of several data sets the mean of their means."""
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


#: Those of Fig. 5.
PREDICTED = ("alpaca", "math", "c4")


def recall_by_layer(evidence: Evidence, datasets: Iterable[str] = PREDICTED) -> list[np.ndarray]:
    """Share of each layer's experts that the layer before predicted, for each data set."""
    return [
        prediction_by_layer(routed(evidence, MIXTRAL, dataset), Lookahead.NORMED.value)
        for dataset in datasets
    ]


def recall(evidence: Evidence) -> Measured:
    """The mean over layers, of each data set."""
    found = [100 * float(np.nanmean(layers)) for layers in recall_by_layer(evidence)]
    return Measured.of(found, "counted", "Alpaca, MATH, C4; scale model", "data sets")


def low_at_first(evidence: Evidence) -> Measured:
    """Predicted layers before the fifth against those after, in points."""
    found = [
        100 * float(np.nanmean(layers[:5]) - np.nanmean(layers[5:]))
        for layers in recall_by_layer(evidence)
    ]
    return Measured.of(found, "counted", "layers 1 to 4 less the others; scale model", "data sets")


def windows_change(evidence: Evidence) -> Measured:
    """Similarity of windows of 15 tokens on GSM8K against TriviaQA, in percent."""
    of = {
        name: window_similarity(routed(evidence, MIXTRAL, name), EXPERTS)
        for name in ("gsm8k", "triviaqa")
    }
    value = percent(of["gsm8k"] / of["triviaqa"])
    said = f"GSM8K {of['gsm8k']:.3f}, TriviaQA {of['triviaqa']:.3f}; scale model"
    return Measured.of([value], "counted", said)


#: Models other than Mixtral of which mathematics and other texts were recorded at length.
ON_BOTH = ("gpt-oss-20b", "olmoe-1b-7b")


def recorded_windows_change(evidence: Evidence) -> Measured:
    """`windows_change` on recordings of other models: mathematics against dialogue and prose."""
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
    """DAOP's mean score less the model's own, in points."""
    return _at(runs.named("daop"), ratio).mean(SCORE) - runs.named("moe-ondemand").mean(SCORE)


@read.curried
def first_token_change(evidence: Evidence, setting: str) -> Measured:
    """The largest change of a score that prefill alone decides, in points."""
    runs = evidence.runs(FIRST_TOKEN).of(setting=setting)
    by_workload = runs.by("workload")
    change = max(abs(score_change(one)) for one in by_workload.values())
    said = f"{', '.join(by_workload)}; {runs[0]['spec']['prompts']} questions each, scale model"
    return Measured.of([change], "counted", said, "runs")


def answers_change(runs: Runs, setting: str, ratio: float, families: Iterable[str]) -> float:
    """What DAOP changes in the mean score of generated families, in points."""
    place = runs.of(setting=setting)
    present = [place.of(workload=name) for name in families if len(place.of(workload=name))]
    if not present:
        raise MissingEvidenceError(f"no answers of {setting} on {', '.join(families)}")
    return fmean(score_change(one, ratio) for one in present)


@read.curried
def whole_answers(evidence: Evidence, figure: Figure, said: str) -> Measured:
    """A figure of whole answers."""
    runs = evidence.runs(WHOLE_ANSWERS)
    n = runs[0]["spec"]["prompts"]
    names = ", ".join(runs.by("workload"))
    return Measured.of([figure(runs)], "counted", f"{said}; {names}; {n} questions each")


def others_change(setting: str, ratio: float) -> Measure:
    """Families that stand for all of Table VI but GSM8K."""
    return whole_answers(
        lambda runs: answers_change(runs, setting, ratio, OTHERS), "all but mathematics"
    )


def maths_falls_more(setting: str) -> Measure:
    """Mathematics' change less the others', at 25 %."""
    return whole_answers(
        lambda runs: (
            answers_change(runs, setting, 0.25, MATHS) - answers_change(runs, setting, 0.25, OTHERS)
        ),
        "mathematics against the others",
    )


def words_change_more(evidence: Evidence) -> Measured:
    """Share of decoded tokens that DAOP leaves as they were, GSM8K's less TriviaQA's, in points."""
    runs = evidence.runs(WHOLE_ANSWERS)
    kept = {
        name: 100 * runs.of(workload=name).named("daop").mean("accuracy.agreement")
        for name in ON_REAL_SETS["workload"]
    }
    said = ", ".join(f"{name} {value:.1f} %" for name, value in kept.items())
    return Measured.of([kept["gsm8k"] - kept["triviaqa"]], "counted", f"tokens unchanged: {said}")


def by_ratio(figure: Figure, said: str) -> Measure:
    """A figure of Fig. 10."""
    return measured(figure, BY_RATIO, said=said, conditions=_conditions)


def at_setting(figure: Figure, said: str) -> Measure:
    """A figure of Fig. 9 or Table IV."""
    return measured(figure, SPEED, said=said, conditions=_conditions)
