"""Functions that read figures of DuoServe-MoE's predictor from runs and from trained files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from safetensors.numpy import load_file

from moebench.harness.reproduce import read
from moebench.harness.reproduce.duoserve import experiments as e
from moebench.harness.reproduce.duoserve.measures import of_both, of_one
from moebench.harness.reproduce.evidence import Evidence, Experiment, MissingEvidenceError, Runs
from moebench.harness.reproduce.read import Figure, Measure, curried, difference
from moebench.results.claims import Measured

BOTH_RIGHT, ONE_RIGHT = "metrics.prefetch.all_of_top_k", "metrics.prefetch.at_least_one"

# ----------------------------------------------------------------------------- the predictor


def hits(path: str, workload: str) -> Figure:
    """Return a function from runs to the predictor's hit rate on a workload, in percent."""
    return lambda runs: 100 * _on(runs.of(system="duoserve"), workload).mean(path)


def _on(runs: Runs, workload: str) -> Runs:
    """Return the runs of a workload; runs with recorded routing count for every workload."""
    return runs if runs[0]["spec"]["routing"] == "real" else runs.of(workload=workload)


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


def predicting_share_at(ms: float) -> Figure:
    """Return a function from runs to `predicting_share` if a prediction takes ``ms``."""

    def figure(runs: Runs) -> float:
        (row,) = read.components("predictor", machine="a5000@duoserve")
        return predicting_share(runs) * ms / float(row["charged"])

    return figure


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
    said = f"exact: as the cost model charges {row['model']} on {machine}"
    return Measured.of([times * row["charged"]], "estimate", said)


def reserved_mb(evidence: Evidence) -> Measured:
    """Measure the memory that the device's budget reserves for the predictor, in MB."""
    runs = evidence.runs(e.SMALL).of(system="duoserve")
    held = float(runs[0]["spec"]["options"]["prefetch.memory_mb"])
    return Measured.of([held], "counted", "exact: an option of ours, the paper's figure by default")


# ----------------------------------------------------------------------------- Fig. 2


def trained_matrices(evidence: Evidence) -> Sequence[Mapping[str, np.ndarray]]:
    """Return what each of DuoServe's predictors of 8x7B counted, one for each set of its texts.

    Each has a ``popularity`` [L, E] and an ``affinity`` [L-1, E, E].

    Raises MissingEvidenceError: no trained file exists any more.
    """
    kept = dict.fromkeys(
        Path(evidence.scratch) / name
        for run in evidence.runs(e.SMALL).of(system="duoserve")
        for name in run["provenance"].get("kept", ())
        if "expert-mlp" in name
    )
    found = [load_file(file) for file in kept if file.exists()]
    if not found:
        raise MissingEvidenceError("what the predictor learnt from is not there; run it again")
    return found


def matrices(evidence: Evidence) -> Mapping[str, np.ndarray]:
    """Return the matrices of DuoServe's first predictor of 8x7B."""
    return trained_matrices(evidence)[0]


def popular(evidence: Evidence) -> Measured:
    """Measure the share of a layer's most popular expert over the even share, mean of layers."""
    shares = [one["popularity"] for one in trained_matrices(evidence)]
    found = [float(of_LE.max(1).mean() * of_LE.shape[1]) for of_LE in shares]
    return _of_matrices(found, "the most popular expert, mean over layers")


def affine(evidence: Evidence) -> Measured:
    """Measure the share of an expert's likeliest successor over the even share, mean of experts."""
    found = []
    for one in trained_matrices(evidence):
        of_LEE = one["affinity"]
        likeliest_LE = of_LEE.max(2) * of_LEE.shape[2]
        found.append(float(likeliest_LE[of_LEE.sum(2) > 0].mean()))
    return _of_matrices(found, "the likeliest next expert, mean over experts")


def _of_matrices(values: list[float], said: str) -> Measured:
    return Measured.of(values, "counted", f"{said}; scale model of 8x7B", "sets of training texts")
