"""Functions that read DAOP's times, speeds and energy from runs."""

from collections.abc import Sequence
from statistics import fmean

from moebench.harness.reproduce import read
from moebench.harness.reproduce.daop import experiments as e
from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.harness.reproduce.read import (
    HOST,
    LINK,
    TPOT,
    TTFT,
    Figure,
    Measure,
    measured,
    percent,
)
from moebench.results.claims import Measured
from moebench.substrate.machines.costs import ACTIVATION_BYTES
from moebench.substrate.models.catalogue import model_shape


def _conditions(runs: Runs, said: str) -> str:
    spec = runs[0]["spec"]
    how = f"{spec['prompts']} prompts, {spec['new_tokens']} tokens decoded, {spec['routing']}"
    return f"{said}; {how} routing"


def at_ratio(runs: Runs, ratio: float | None) -> Runs:
    """Return the runs whose cache ratio is ``ratio`` up to rounding; None: all runs."""
    if ratio is None:
        return runs
    return Runs(run for run in runs if abs(run["spec"]["cache_ratio"] - ratio) < 0.01)


# ----------------------------------------------------------------------------- speed and energy


def tokens_per_s(runs: Runs, tokens: int) -> float:
    """Return the mean tokens/s for an output of ``tokens`` tokens, prefill included (§V-A).

    The first token takes TTFT, each further token TPOT.
    """
    return 1e3 * tokens / (runs.mean(TTFT) + (tokens - 1) * runs.mean(TPOT))


def speed(setting: str, system: str, tokens: int, ratio: float | None = None) -> Figure:
    """Return a function from runs to the speed of one system, in tokens/s."""
    return lambda runs: tokens_per_s(
        at_ratio(runs.of(setting=setting).named(system), ratio), tokens
    )


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
    said = "exact: a100@daop, as the cost model charges"
    return Measured.of([times * component(what)], "estimate", said)


#: Component of the fourth row of Table I.
ACTIVATION = "an expert's input or output between host and device"


#: Components of the other rows of Table I.
HOST_BLOCK = "transformer block on the host: attention, 2 experts"
DEVICE_BLOCK = "transformer block on the device: attention, gate, 2 experts, sum"
MIGRATION = "expert, host to device"


def migration_over_block(evidence: Evidence) -> Measured:
    """Return the charged time of an expert's migration over that of a whole block on the GPU."""
    said = "exact: a100@daop, as the cost model charges"
    return Measured.of([component(MIGRATION) / component(DEVICE_BLOCK)], "estimate", said)


def component(what: str) -> float:
    """Return the charged time of a row of Table I, in ms."""
    (row,) = read.components(what, source="DAOP Table I")
    return float(row["charged"])


@read.curried
def moved_over_weights(
    evidence: Evidence, copies: int = 2, value_bytes: int = ACTIVATION_BYTES
) -> Measured:
    """Return the bytes that a host expert of Mixtral moves for a token over those of its weights.

    The figure is in ten-thousandths.

    Args:
        copies: 2 is input and output, 1 the input alone.
        value_bytes: bytes of a value of the activations; weights are in bf16.
    """
    shape = model_shape("mixtral-8x7b")
    moved = copies * shape.hidden_size * value_bytes
    said = f"{moved:,} of {2 * shape.expert_params:,} bytes"
    return Measured.of([1e4 * moved / (2 * shape.expert_params)], "counted", f"exact; {said}")


# ----------------------------------------------------------------------------- Fig. 8


def copying(system: str) -> Figure:
    """Return a function from runs to the share of a system's decode with a copy under way, in %."""
    return lambda runs: read.share_of_decode(runs.named(system), LINK)


def in_parallel(system: str) -> Figure:
    """Return a function from runs to the share of the host's work that the GPU does not await.

    The share is in percent of the host's busy time in decode.
    """

    def figure(runs: Runs) -> float:
        of = runs.named(system)
        waited: float = sum(run["metrics"]["decode"]["stall_ms"].get("host", 0.0) for run in of)
        return 100 * (1 - waited / sum(of.values(HOST)))

    return figure


def of_timelines(figure: Figure, said: str) -> Measure:
    """Return a function that measures a figure of the runs for Fig. 8."""
    return measured(figure, e.TIMELINES, said=said, conditions=_conditions)


def by_ratio(figure: Figure, said: str) -> Measure:
    """Return a function that measures a figure of the runs for Fig. 10."""
    return measured(figure, e.BY_RATIO, said=said, conditions=_conditions)


def at_setting(figure: Figure, said: str) -> Measure:
    """Return a function that measures a figure of the runs for Fig. 9 and Table IV."""
    return measured(figure, e.SPEED, said=said, conditions=_conditions)
