"""Functions that read DuoServe-MoE's figures from runs, and its matrices from trained files."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
from safetensors.numpy import load_file

from moebench.harness.reproduce import read
from moebench.harness.reproduce.duoserve import experiments as e
from moebench.harness.reproduce.evidence import Evidence, Experiment, MissingEvidenceError, Runs
from moebench.harness.reproduce.read import E2E, TTFT, Figure, Measure, curried, difference
from moebench.results.claims import Measured
from moebench.results.samples import read_samples
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import model_shape

PEAK = "metrics.peak_device_bytes"
BOTH_RIGHT, ONE_RIGHT = "metrics.prefetch.all_of_top_k", "metrics.prefetch.at_least_one"

#: The two baselines of Table 2 and Fig. 5.
BASELINES = ("acc", "moesys")

MODEL_OF = {"8x7B": "mixtral-8x7b", "8x22B": "mixtral-8x22b"}


def of_both(figure: Figure, said: str = "") -> Measure:
    """Return a function that measures a figure of both models' runs, one sample a seed."""
    return read.measured(figure, *e.BOTH, said=said, conditions=_conditions)


def of_one(experiment: Experiment, figure: Figure, said: str = "") -> Measure:
    """Return a function that measures a figure of one model's runs, one sample a seed."""
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
    """Return each baseline's time over DuoServe's, by setting, workload and baseline."""
    return [
        cell.of(system=other).mean(path) / cell.of(system="duoserve").mean(path)
        for cell in runs.of(**of).groups("setting", "workload").values()
        for other in others
    ]


def least(path: str) -> Figure:
    """Return a function from runs to DuoServe's smallest speed-up over a baseline."""
    return lambda runs: min(speedups(runs, path))


def greatest(path: str) -> Figure:
    """Return a function from runs to DuoServe's largest speed-up over a baseline."""
    return lambda runs: max(speedups(runs, path))


def faster_share(runs: Runs) -> float:
    """Return the share of cells and baselines that have longer TTFT and end-to-end time."""
    pairs = zip(speedups(runs, TTFT), speedups(runs, E2E), strict=True)
    return fmean(first > 1 and whole > 1 for first, whole in pairs)


def slower_than_acc(runs: Runs) -> float:
    """Return the share of cells in which MoESys has the longest end-to-end time."""
    pairs = zip(speedups(runs, E2E, ["acc"]), speedups(runs, E2E, ["moesys"]), strict=True)
    return fmean(moesys > max(acc, 1) for acc, moesys in pairs)


def over_acc(**of: object) -> Figure:
    """Return a function from runs to the mean end-to-end speed-up over ACC in some cells."""
    return lambda runs: fmean(speedups(runs, E2E, ["acc"], **of))


def card(settings: tuple[str, ...], path: str) -> Figure:
    """Return a function from runs to the mean speed-up over both baselines in some settings."""
    return lambda runs: fmean(speedups(runs, path, setting=settings))


def broader(evidence: Evidence) -> Measured:
    """Measure the spread of DuoServe's decode throughput over the wider spread of the baselines.

    The spread is the standard deviation over the mean of all tokens; cells are averaged.
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
    """Return a function from runs to a system's peak device memory, in GB."""
    return lambda runs: max(runs.of(system=system, setting=settings).values(PEAK)) / 1e9


def gpu_only_gb(model: str, machine: str = "a6000@duoserve") -> float:
    """Return the memory of all weights in 4 bits and the profile's reserved memory, in GB."""
    shape = model_shape(model)
    experts = len(shape.moe_layers) * shape.num_experts
    size = shape.common_bytes("4bit") + experts * shape.expert_bytes("4bit")
    return (size + load_profile(machine).gpu.reserved_memory.bytes) / 1e9


@curried
def of_gpu_only(evidence: Evidence, model: str) -> Measured:
    """Measure the memory of a fully resident model, in GB, which is counted without a run."""
    said = "weights in 4 bits and what the profile reserves; no KV cache"
    return Measured.of([gpu_only_gb(model)], "counted", said)


def share_of_model(settings: tuple[str, ...], model: str) -> Figure:
    """Return a function from runs to DuoServe's peak memory, in percent of a resident model's."""
    return lambda runs: 100 * peak_gb("duoserve", settings)(runs) / gpu_only_gb(model)


def order_of_peaks(runs: Runs) -> float:
    """Return the share of settings in which ACC needs the least memory and MoESys the most."""
    return fmean(
        max(p.of(system="acc").values(PEAK)) < max(p.of(system="duoserve").values(PEAK))
        < max(p.of(system="moesys").values(PEAK))
        for p in runs.by("setting").values()
    )  # fmt: skip


# ----------------------------------------------------------------------------- the predictor


def hits(path: str, workload: str) -> Figure:
    """Return a function from runs to the predictor's hit rate on a workload, in percent."""
    return lambda runs: 100 * _on(runs.of(system="duoserve"), workload).mean(path)


def _on(runs: Runs, workload: str) -> Runs:
    """Return the runs of a workload; runs with recorded routing count for every workload."""
    return runs.of(workload=workload) if runs[0]["spec"]["routing"] == "model" else runs


def orca_more(path: str) -> Figure:
    """Return a function from runs to the hit rate on Orca-Math minus that on SQuAD, in points."""
    orca, squad = e.DATASETS
    return difference(hits(path, orca), hits(path, squad))


def gsm8k_more(experiment: Experiment) -> Measure:
    """Return a function that measures the hit rate on GSM8K minus that on SQuAD, in points."""
    return of_one(experiment, difference(hits(BOTH_RIGHT, "gsm8k"), hits(BOTH_RIGHT, "squad")))


def predicting_share(runs: Runs) -> float:
    """Return the busy time of the prediction stream, in percent of TPOT."""
    return read.share_of_decode(runs.of(system="duoserve"), "metrics.decode.lanes.predict")


@curried
def sufficient(evidence: Evidence, experiment: Experiment) -> Measured:
    """Measure the number of epochs after which a model's predictors were best."""
    _require_full(evidence)
    return of_one(experiment, _epochs())(evidence)


def more_epochs(evidence: Evidence) -> Measured:
    """Measure the best number of epochs on 8x22B minus that on 8x7B."""
    _require_full(evidence)
    return of_both(difference(_epochs(setting=e.LARGE_CELLS), _epochs(setting=e.SMALL_CELLS)))(
        evidence
    )


def _require_full(evidence: Evidence) -> None:
    if evidence.quick:
        raise MissingEvidenceError(
            "with --quick predictors learn from few texts, for 20 epochs at most; leave it out"
        )


@curried
def _epochs(runs: Runs, /, **of: object) -> float:
    learnt = [run["provenance"]["learnt"]["prefetch"] for run in runs.of(system="duoserve", **of)]
    return fmean(float(one["best_epoch"]) for one in learnt)


@curried
def component(evidence: Evidence, what: str, machine: str, times: int = 1) -> Measured:
    """Measure the charged time or memory of the predictor, for ``times`` predictors."""
    (row,) = read.components(what, machine=machine)
    return Measured.of([times * row["charged"]], "estimate", f"{row['model']} on {machine}")


def reserved_mb(evidence: Evidence) -> Measured:
    """Measure the memory that the device's budget reserves for the predictor, in MB."""
    runs = evidence.runs(e.SMALL).of(system="duoserve")
    held = float(runs[0]["spec"]["options"]["prefetch.memory_mb"])
    return Measured.of([held], "counted", "an option of ours, the paper's figure by default")


# ----------------------------------------------------------------------------- Fig. 2


def matrices(evidence: Evidence) -> Mapping[str, np.ndarray]:
    """Return DuoServe's trained ``popularity`` [L, E] and ``affinity`` [L-1, E, E] of 8x7B.

    Raises MissingEvidenceError: the trained file does not exist any more.
    """
    runs = evidence.runs(e.SMALL).of(system="duoserve")
    for run in runs:
        for name in run["provenance"].get("kept", ()):
            if "expert-mlp" in name and (file := Path(evidence.scratch) / name).exists():
                return load_file(file)
    raise MissingEvidenceError("what DuoServe's predictor learnt from is not there; run it again")


def popular(evidence: Evidence) -> Measured:
    """Measure the share of a layer's most popular expert over the even share, mean of layers."""
    found = matrices(evidence)["popularity"]
    return _matrix(found.max(1) * found.shape[1], "the most popular expert, mean over layers")


def affine(evidence: Evidence) -> Measured:
    """Measure the share of an expert's likeliest successor over the even share, mean of experts."""
    found = matrices(evidence)["affinity"]
    likeliest = found.max(2) * found.shape[2]
    return _matrix(likeliest[found.sum(2) > 0], "the likeliest next expert, mean over experts")


def _matrix(values: np.ndarray, said: str) -> Measured:
    return Measured.of([float(values.mean())], "counted", f"{said}; scale model of 8x7B")


def settings_of(model: str) -> tuple[str, ...]:
    """Return the settings of a model, by its short name."""
    return e.SMALL_CELLS if model == "8x7B" else e.LARGE_CELLS
