"""Intervals of a simulated run's latencies over the profile's ranges, and the run's badge.

Method.  The first tokens of the run's first batch are recorded, gate scores and predictions: every
replay is routed alike.  They are replayed on the profile as it is, and for each uncertain
number (`substrate.machines.profile_ranges`) at both ends of its range, all others as they are.  The
system
decides anew in each replay, as it would on that machine.  Each number then moves TPOT and TTFT by
some share; the numbers are taken as independent, so their shares add up as the root of the sum of
squares, upwards and downwards by themselves.  These shares of the short piece are applied to the
whole run's figures.  Nothing is random: the same run has the same interval.

What it does not cover: errors of the cost model itself, and of figures that count as exact.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from moebench.harness.run.document import with_interval
from moebench.harness.run.learn import calibrate, silent
from moebench.harness.run.live import LiveSession
from moebench.harness.run.replay import ReplaySession
from moebench.harness.stage.memory import Offer, count_memory
from moebench.harness.stage.simulated import SimulatedKind
from moebench.harness.stage.stage import StageRequest
from moebench.substrate.machines.profile import SPECIAL, HardwareProfile, ProfileBadge, load_profile
from moebench.substrate.machines.profile_ranges import Uncertain, moved, uncertain
from moebench.substrate.memory.capacity import Room
from moebench.substrate.models.protocol import Model
from moebench.substrate.traces.passes import Recorder, RoutingTrace, TracedModel, pass_steps

#: Tokens of the first batch that an interval is worked out from, the prefill's included.
TOKENS = 5

#: A run is `datasheet` where estimates move no latency by more than this share.
SMALL = 0.05

#: Fields that a document names: those that move a latency by at least this share, the largest few.
NAMED_FROM, NAMED = 0.001, 8

#: Numbers that move nothing where no weights are quantised.
OF_QUANTISED = tuple(f"software.{name}" for name in SPECIAL)

#: Latencies that are moved, as documents call them.
MOVED = ("tpot_ms", "ttft_ms")


@dataclass(frozen=True, slots=True)
class Effect:
    """Change of the latencies over the range of one number of the profile.

    Attributes:
        changes: by latency, its change at the low and at the high end, as shares of it; only
            latencies that the piece has.
    """

    number: Uncertain
    changes: dict[str, tuple[float, float]]

    def down(self, latency: str) -> float:
        """Largest decrease of a latency over the number's range, as a share of it; at most 0."""
        return min(0.0, *self.changes.get(latency, (0.0,)))

    def up(self, latency: str) -> float:
        """Largest increase of a latency over the number's range, as a share of it; at least 0."""
        return max(0.0, *self.changes.get(latency, (0.0,)))

    def size(self, latency: str) -> float:
        """Larger of the absolute changes of a latency."""
        return max(-self.down(latency), self.up(latency))


def combined(effects: Iterable[Effect], latency: str) -> tuple[float, float]:
    """Return the combined decrease (at most 1) and increase due to independent numbers."""
    ones = list(effects)
    down = math.hypot(*(one.down(latency) for one in ones))
    return min(1.0, down), math.hypot(*(one.up(latency) for one in ones))


def badge_of(profile: HardwareProfile, effects: Sequence[Effect]) -> ProfileBadge:
    """Return the badge of a run from the effects of its profile's estimates.

    ``estimate``: the profile's estimates together move TPOT or TTFT by more than `SMALL` of it.
    ``calibrated``: otherwise, if the profile was fitted on that machine.  ``datasheet``: all
    others, whose figures rest on published ones.
    """
    estimates = [one for one in effects if one.number.number.badge == "estimate"]
    most = max(max(combined(estimates, latency)) for latency in MOVED)
    if most > SMALL:
        return "estimate"
    return "datasheet" if profile.badge == "estimate" else profile.badge


# ------------------------------------------------------------------------- replays


class Piece(NamedTuple):
    """Recorded routing of the first tokens of a run's first batch.

    Attributes:
        longest: tokens of the run's longest text, for which its memory is planned.
    """

    trace: RoutingTrace
    longest: int


def recorded(session: LiveSession | ReplaySession, scratch: Path, tokens: int) -> Piece:
    """Record the routing of a run's first tokens, after its system was calibrated."""
    learnable = partial(session.learnable, scratch, silent)
    calibrate(session.system, session.full, learnable, scratch, silent)
    recorders: list[Recorder] = []

    def record(model: Model) -> Model:
        recorders.append(Recorder(session.wrap(model)))
        return cast(Model, recorders[0])  # what it does not record, it passes on

    with ExitStack() as stack, torch.inference_mode():
        recording = replace(session, wrap=record)
        stage = recording.open(scratch, False, stack)
        stage.start()
        recording.begin(stage, tokens)
        return Piece(recorders[0].trace, recording.longest)


def effects_on(
    session: LiveSession | ReplaySession, scratch: Path, tokens: int = TOKENS
) -> list[Effect]:
    """Return the effect of each uncertain number of the run's profile on its latencies.

    Args:
        session: of a simulated run, from `execute.prepare`.
        tokens: of the first batch that are replayed, the prefill's included.
    """
    profile = load_profile(session.spec.machine, session.spec.software)
    replay = _replayer(session, recorded(session, scratch, tokens))
    base = replay(profile)

    def changes(number: Uncertain, value: float) -> dict[str, float]:
        found = replay(moved(profile, number.field, value))
        return {name: found[name] / ns - 1 for name, ns in base.items()}

    def effect(number: Uncertain) -> Effect:
        low, high = changes(number, number.low), changes(number, number.high)
        return Effect(number, {name: (low[name], high[name]) for name in base})

    dense = not _quantised(session)
    return [effect(n) for n in uncertain(profile) if not (dense and n.field in OF_QUANTISED)]


def _quantised(session: LiveSession | ReplaySession) -> bool:
    spec, own = session.spec, session.system.expert_precision
    return bool({spec.precision, spec.expert_dtype, own} & {"4bit", "2bit", "int8", "int4"})


def _replayer(
    session: LiveSession | ReplaySession, piece: Piece
) -> Callable[[HardwareProfile], dict[str, float]]:
    """Return a function that replays a piece on a profile and returns its latencies in ns."""
    spec, system, full = session.spec, session.system, session.full
    (batch,) = piece.trace.batches
    steps = pass_steps(batch)
    request = StageRequest(
        spec=spec, system=system, full=full, longest=piece.longest,
        model=lambda decoder: cast(Model, TracedModel(piece.trace)),
    )  # fmt: skip

    def replay(profile: HardwareProfile) -> dict[str, float]:
        if system.evict.clairvoyant:
            system.evict.set_future(steps)
        offer = Offer(Room.of(profile), profile)
        memory = count_memory(spec, system, full, piece.longest, offer)
        with ExitStack() as stack:
            stage = SimulatedKind().build(request, memory, stack)
        stage.start()
        done = stage.engine.generate([[0] * n for n in batch[0].rows], len(batch))
        found = {"ttft_ms": float(done.ttft_ns)} if done.ttft_ns else {}
        if done.steps_ns:
            found["tpot_ms"] = float(np.mean(done.steps_ns))
        return found

    return replay


# ------------------------------------------------------------------------- the document


def add_interval(
    document: dict[str, Any], session: LiveSession | ReplaySession, scratch: Path
) -> None:
    """Compute a simulated run's interval and badge, and add both to its document.

    Args:
        session: the run's own; it need not have run.
        scratch: where its system keeps what it learnt.
    """
    profile, effects = (
        load_profile(session.spec.machine, session.spec.software),
        effects_on(session, scratch),
    )
    with_interval(document, badge_of(profile, effects), interval(document["metrics"], effects))


def interval(metrics: dict[str, Any], effects: Sequence[Effect]) -> dict[str, Any]:
    """Return the ``interval`` part of a document.

    Returns:
        ``low`` and ``high`` of each latency that the run has and of tokens/s, and ``fields``: the
        numbers that move a latency most, with the change in percent of it at each end.
    """
    means = {name: metrics[name]["mean"] for name in MOVED if metrics[name]}
    found: dict[str, Any] = {}
    for name, mean in means.items():
        down, up = combined(effects, name)
        found[name] = {"low": round(mean * (1 - down), 6), "high": round(mean * (1 + up), 6)}
    whole = metrics["e2e_ms"]
    if whole and "ttft_ms" in means:
        down, up = combined(map(_of_whole(means["ttft_ms"] / whole), effects), "e2e_ms")
        low, high = whole * (1 - down), whole * (1 + up)
        found["e2e_ms"] = {"low": round(low, 6), "high": round(high, 6)}
        speed = metrics["tokens_per_s"]
        found["tokens_per_s"] = {
            "low": round(speed * whole / high, 4),
            "high": round(speed * whole / low, 4) if low else None,
        }
    return {**found, "fields": [_named(one, means) for one in _largest(effects, means)]}


def _of_whole(prefill: float) -> Callable[[Effect], Effect]:
    """Return the change of prefill and decode together, weighted by prefill's share."""
    nothing = (0.0, 0.0)

    def whole(effect: Effect) -> Effect:
        parts = zip(*(effect.changes.get(name, nothing) for name in ("ttft_ms", "tpot_ms")),
                    strict=True)  # fmt: skip
        low, high = (prefill * first + (1 - prefill) * later for first, later in parts)
        return Effect(effect.number, {"e2e_ms": (low, high)})

    return whole


def _largest(effects: Sequence[Effect], latencies: Iterable[str]) -> list[Effect]:
    def size(one: Effect) -> float:
        return max((one.size(name) for name in latencies), default=0.0)

    return sorted((e for e in effects if size(e) >= NAMED_FROM), key=size, reverse=True)[:NAMED]


def _named(effect: Effect, latencies: Iterable[str]) -> dict[str, Any]:
    number = effect.number
    changes = {name: effect.changes.get(name) for name in latencies}
    return {
        "field": number.field,
        "low": number.low,
        "high": number.high,
        "stated": number.stated,
        **{name: [round(100 * c, 2) for c in both] for name, both in changes.items() if both},
    }
