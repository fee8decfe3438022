"""Functions that read DuoServe-MoE's times and memory from runs."""

from collections.abc import Iterable
from statistics import fmean, pstdev

from moebench.harness.reproduce import read
from moebench.harness.reproduce.duoserve import experiments as e
from moebench.harness.reproduce.evidence import Evidence, Experiment, MissingEvidenceError, Runs
from moebench.harness.reproduce.read import E2E, LINK, TPOT, TTFT, Figure, Measure, curried
from moebench.results.claims import Measured
from moebench.results.samples import read_samples
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.models.shape import Precision

PEAK = "metrics.peak_device_bytes"

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


#: A time of runs: a path in their documents, or the length of an output in tokens, end-to-end.
Time = str | int


def mean_time(runs: Runs, time: Time) -> float:
    """Return the mean of a time over runs, in ms.

    The end-to-end time of an output is TTFT for its first token and TPOT for each other.
    """
    if isinstance(time, str):
        return runs.mean(time)
    return runs.mean(TTFT) + (time - 1) * runs.mean(TPOT)


def speedups(
    runs: Runs, time: Time, others: Iterable[str] = BASELINES, **of: object
) -> list[float]:
    """Return each baseline's time over DuoServe's, by setting, workload and baseline."""
    return [
        mean_time(cell.of(system=other), time) / mean_time(cell.of(system="duoserve"), time)
        for cell in runs.of(**of).groups("setting", "workload").values()
        for other in others
    ]


def least(time: Time) -> Figure:
    """Return a function from runs to DuoServe's smallest speed-up over a baseline."""
    return lambda runs: min(speedups(runs, time))


def greatest(time: Time) -> Figure:
    """Return a function from runs to DuoServe's largest speed-up over a baseline."""
    return lambda runs: max(speedups(runs, time))


def faster_share(runs: Runs) -> float:
    """Return the share of cells and baselines that have longer TTFT and end-to-end time."""
    pairs = zip(speedups(runs, TTFT), speedups(runs, E2E), strict=True)
    return fmean(first > 1 and whole > 1 for first, whole in pairs)


def slower_than_acc(runs: Runs) -> float:
    """Return the share of cells in which MoESys has the longest end-to-end time."""
    pairs = zip(speedups(runs, E2E, ["acc"]), speedups(runs, E2E, ["moesys"]), strict=True)
    return fmean(moesys > max(acc, 1) for acc, moesys in pairs)


def over_acc(time: Time = E2E, **of: object) -> Figure:
    """Return a function from runs to the mean end-to-end speed-up over ACC in some cells."""
    return lambda runs: fmean(speedups(runs, time, ["acc"], **of))


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

    def ratio(cell: Runs) -> float:
        widest = max(spread(cell.of(system=other)) for other in BASELINES)
        if not widest:
            raise MissingEvidenceError("all tokens of the baselines take the same time")
        return spread(cell.of(system="duoserve")) / widest

    def figure(runs: Runs) -> float:
        return fmean(map(ratio, runs.groups("setting", "workload").values()))

    return of_both(figure, "standard deviation over mean")(evidence)


def copying_in_prefill(runs: Runs) -> float:
    """Return the share of DuoServe's prefill in which an expert is copied, in percent."""
    own = runs.of(system="duoserve")
    copied = sum(
        all_ - decode
        for all_, decode in zip(own.values("metrics.lanes.h2d"), own.values(LINK), strict=True)
    )
    whole: float = sum(run["spec"]["prompts"] * run["metrics"]["ttft_ms"]["mean"] for run in own)
    return 100 * copied / whole


def copying_in_decode(runs: Runs) -> float:
    """Return the share of DuoServe's decode in which an expert is copied, in percent."""
    return read.share_of_decode(runs.of(system="duoserve"), LINK)


def fetching_over_computing(runs: Runs, phase: str) -> float:
    """Return the link's busy time over the device's in a phase of DuoServe's runs.

    The device computes experts and all else; its time holds waits for kernels to be launched.
    """
    own = runs.of(system="duoserve")

    def busy(lane: str) -> float:
        decode = sum(own.values(f"metrics.decode.lanes.{lane}"))
        return decode if phase == "decode" else sum(own.values(f"metrics.lanes.{lane}")) - decode

    return busy("h2d") / busy("device")


#: Texts that are 2.5 % of the data sets' training texts (§6.4): SQuAD v1.1 has 87,599 and Orca-Math
#: 200,035 in one split.
COLLECTED = {"passages": 2190, "equations": 5001}


def collection_hours(time: Time = E2E) -> Figure:
    """Return a function from runs to ACC's time for the predictor's data, in h, mean of cells."""

    def figure(runs: Runs) -> float:
        cells = runs.of(system="acc").groups("setting", "workload").items()
        return fmean(
            COLLECTED[workload] * mean_time(cell, time) / 3.6e6 for (_, workload), cell in cells
        )

    return figure


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
    said = "exact: weights in 4 bits and what the profile reserves; no KV cache"
    return Measured.of([gpu_only_gb(model)], "counted", said)


@curried
def of_non_experts(
    evidence: Evidence, model: str, precision: Precision = "4bit", share: bool = False
) -> Measured:
    """Measure the weights that are of no expert, in GB or in percent of all weights.

    Args:
        precision: of these weights; experts have 4 bits.
    """
    shape = model_shape(model)
    own = shape.common_bytes(precision)
    experts = len(shape.moe_layers) * shape.num_experts * shape.expert_bytes("4bit")
    value = 100 * own / (own + experts) if share else own / 1e9
    return Measured.of([value], "counted", f"exact: weights in {precision}, without a run")


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


def settings_of(model: str) -> tuple[str, ...]:
    """Return the settings of a model, by its short name."""
    return e.SMALL_CELLS if model == "8x7B" else e.LARGE_CELLS
