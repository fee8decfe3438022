"""How DuoServe-MoE's figures are read from runs, and its matrices from what it learnt."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
from safetensors.numpy import load_file

from moebench.harness.reproduce import read
from moebench.harness.reproduce.duoserve.experiments import (
    BOTH,
    DATASETS,
    LARGE_CELLS,
    SMALL,
    SMALL_CELLS,
)
from moebench.harness.reproduce.evidence import Evidence, Experiment, MissingEvidenceError, Runs
from moebench.harness.reproduce.read import E2E, TTFT, Figure, Measure, curried, difference
from moebench.results.claims import Measured
from moebench.results.samples import read_samples
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import model_shape

PEAK = "metrics.peak_device_bytes"
BOTH_RIGHT, ONE_RIGHT = "metrics.prefetch.all_of_top_k", "metrics.prefetch.at_least_one"

#: Table 2 and Fig. 5 have two baselines.
BASELINES = ("acc", "moesys")

MODEL_OF = {"8x7B": "mixtral-8x7b", "8x22B": "mixtral-8x22b"}


def of_both(figure: Figure, said: str = "") -> Measure:
    """A figure of both models' runs, a sample a seed."""
    return read.measured(figure, *BOTH, said=said, conditions=_conditions)


def of_one(experiment: Experiment, figure: Figure, said: str = "") -> Measure:
    """The same of one model's."""
    return read.measured(figure, experiment, said=said, conditions=_conditions)


def _conditions(runs: Runs, said: str) -> str:
    spec = runs[0]["spec"]
    texts = {r["spec"]["calibrate_texts"] or 64 for r in runs.named("duoserve")}
    how = (
        f"{spec['prompts']} prompts of {spec['new_tokens']} new tokens, {spec['routing']} routing, "
        f"predictor learnt from {'/'.join(map(str, sorted(texts)))} texts"
    )
    return f"{said}; {how}" if said else how


# ----------------------------------------------------------------------------- speed-ups


def speedups(runs: Runs, path: str, others: Iterable[str] = BASELINES, **of: object) -> list[float]:
    """A baseline's time over DuoServe's, by setting, workload and baseline."""
    return [
        cell.of(system=other).mean(path) / cell.of(system="duoserve").mean(path)
        for cell in runs.of(**of).groups("setting", "workload").values()
        for other in others
    ]


def least(path: str) -> Figure:
    """The smallest speed-up."""
    return lambda runs: min(speedups(runs, path))


def greatest(path: str) -> Figure:
    """The largest speed-up."""
    return lambda runs: max(speedups(runs, path))


def faster_share(runs: Runs) -> float:
    """Share of cells and baselines with a later first token and a longer end-to-end time."""
    pairs = zip(speedups(runs, TTFT), speedups(runs, E2E), strict=True)
    return fmean(first > 1 and whole > 1 for first, whole in pairs)


def slower_than_acc(runs: Runs) -> float:
    """Share of cells in which MoESys is the slowest of all, end-to-end."""
    pairs = zip(speedups(runs, E2E, ["acc"]), speedups(runs, E2E, ["moesys"]), strict=True)
    return fmean(moesys > max(acc, 1) for acc, moesys in pairs)


def over_acc(**of: object) -> Figure:
    """The mean end-to-end speed-up over ACC of some cells."""
    return lambda runs: fmean(speedups(runs, E2E, ["acc"], **of))


def card(settings: tuple[str, ...], path: str) -> Figure:
    """The mean speed-up of some settings over both baselines."""
    return lambda runs: fmean(speedups(runs, path, setting=settings))


def broader(evidence: Evidence) -> Measured:
    """Spread of decode throughput over tokens: DuoServe's over the wider of the baselines'.

    The standard deviation over the mean, the mean over cells.
    """

    def spread(runs: Runs) -> float:
        speeds: list[float] = []
        for run in runs:
            samples = read_samples(evidence.scratch, run["run_id"])
            if not samples:
                raise MissingEvidenceError(f"no samples were kept of {run['run_id']}")
            speeds += [1e9 / sample.ns for sample in samples if sample.step > 0]
        return pstdev(speeds) / fmean(speeds)

    def figure(runs: Runs) -> float:
        return fmean(
            spread(cell.of(system="duoserve"))
            / max(spread(cell.of(system=other)) for other in BASELINES)
            for cell in runs.groups("setting", "workload").values()
        )

    return of_both(figure, "standard deviation over mean")(evidence)


# ----------------------------------------------------------------------------- memory


def peak_gb(system: str, settings: tuple[str, ...]) -> Figure:
    """The device's peak, in GB."""
    return lambda runs: max(runs.of(system=system, setting=settings).values(PEAK)) / 1e9


def gpu_only_gb(model: str, machine: str = "a6000@duoserve") -> float:
    """All weights in 4 bits, and what the profile reserves, in GB."""
    shape = model_shape(model)
    experts = len(shape.moe_layers) * shape.num_experts
    size = shape.common_bytes("4bit") + experts * shape.expert_bytes("4bit")
    return (size + load_profile(machine).gpu.reserved_memory.bytes) / 1e9


@curried
def of_gpu_only(evidence: Evidence, model: str) -> Measured:
    """`gpu_only_gb`, counted."""
    said = "weights in 4 bits and what the profile reserves; no KV cache"
    return Measured.of([gpu_only_gb(model)], "counted", said)


def share_of_model(settings: tuple[str, ...], model: str) -> Figure:
    """DuoServe's peak over a resident model's, in percent."""
    return lambda runs: 100 * peak_gb("duoserve", settings)(runs) / gpu_only_gb(model)


def order_of_peaks(runs: Runs) -> float:
    """Share of settings in which ACC needs least and MoESys most."""
    return fmean(
        max(p.of(system="acc").values(PEAK)) < max(p.of(system="duoserve").values(PEAK))
        < max(p.of(system="moesys").values(PEAK))
        for p in runs.by("setting").values()
    )  # fmt: skip


# ----------------------------------------------------------------------------- the predictor


def hits(path: str, workload: str) -> Figure:
    """Share of predicted layers, in percent: both, or at least one expert right."""
    return lambda runs: 100 * _on(runs.of(system="duoserve"), workload).mean(path)


def _on(runs: Runs, workload: str) -> Runs:
    """Those of a data set; recordings are of none of ours, and stand for each."""
    return runs.of(workload=workload) if runs[0]["spec"]["routing"] == "model" else runs


def orca_more(path: str) -> Figure:
    """The predictor on Orca-Math's stand-in less on SQuAD's, in points."""
    orca, squad = DATASETS
    return difference(hits(path, orca), hits(path, squad))


def gsm8k_more(experiment: Experiment) -> Measure:
    """The predictor on GSM8K's own texts less on SQuAD's, in points."""
    return of_one(experiment, difference(hits(BOTH_RIGHT, "gsm8k"), hits(BOTH_RIGHT, "squad")))


def predicting_share(runs: Runs) -> float:
    """The most that the prediction could add to a token: its stream's busy time, in % of TPOT."""
    return read.share_of_decode(runs.of(system="duoserve"), "metrics.decode.lanes.predict")


@curried
def sufficient(evidence: Evidence, experiment: Experiment) -> Measured:
    """Epochs after which a model's predictors were best."""
    _require_full(evidence)
    return of_one(experiment, _epochs)(evidence)


def more_epochs(evidence: Evidence) -> Measured:
    """8x22B's less 8x7B's."""
    _require_full(evidence)
    return of_both(
        lambda runs: _epochs(runs.of(setting=LARGE_CELLS)) - _epochs(runs.of(setting=SMALL_CELLS))
    )(evidence)


def _require_full(evidence: Evidence) -> None:
    if evidence.quick:
        raise MissingEvidenceError(
            "with --quick predictors learn from few texts, for 20 epochs at most; leave it out"
        )


def _epochs(runs: Runs) -> float:
    learnt = [run["provenance"]["learnt"]["prefetch"] for run in runs.of(system="duoserve")]
    return fmean(float(one["best_epoch"]) for one in learnt)


@curried
def component(evidence: Evidence, what: str, machine: str, times: int = 1) -> Measured:
    """What the simulated machine charges for the predictor, or for so many of them."""
    (row,) = read.components(what, machine=machine)
    return Measured.of([times * row["charged"]], "estimate", f"{row['model']} on {machine}")


def reserved_mb(evidence: Evidence) -> Measured:
    """What the device's budget holds for the predictor."""
    runs = evidence.runs(SMALL).of(system="duoserve")
    held = float(runs[0]["spec"]["options"]["prefetch.memory_mb"])
    return Measured.of([held], "counted", "an option of ours, the paper's figure by default")


# ----------------------------------------------------------------------------- Fig. 2


def matrices(evidence: Evidence) -> Mapping[str, np.ndarray]:
    """``popularity`` [L, E] and ``affinity`` [L-1, E, E] of 8x7B, as DuoServe learnt them.

    Raises:
        MissingEvidenceError: what was learnt is not there any more.
    """
    runs = evidence.runs(SMALL).of(system="duoserve")
    for run in runs:
        for name in run["provenance"].get("kept", ()):
            if "expert-mlp" in name and (file := Path(evidence.scratch) / name).exists():
                return load_file(file)
    raise MissingEvidenceError("what DuoServe's predictor learnt from is not there; run it again")


def popular(evidence: Evidence) -> Measured:
    """A layer's most popular expert over the even share, the mean over layers."""
    found = matrices(evidence)["popularity"]
    return _matrix(found.max(1) * found.shape[1], "the most popular expert, mean over layers")


def affine(evidence: Evidence) -> Measured:
    """The likeliest next expert over the even share, the mean over experts of all layers."""
    found = matrices(evidence)["affinity"]
    likeliest = found.max(2) * found.shape[2]
    return _matrix(likeliest[found.sum(2) > 0], "the likeliest next expert, mean over experts")


def _matrix(values: np.ndarray, said: str) -> Measured:
    return Measured.of([float(values.mean())], "counted", f"{said}; scale model of 8x7B")


def settings_of(model: str) -> tuple[str, ...]:
    """The settings of a model by its short name."""
    return SMALL_CELLS if model == "8x7B" else LARGE_CELLS
