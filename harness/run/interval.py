"""Intervals of a simulated run's latencies over the profile's ranges, and the run's badge.

Method.  The first tokens of the run's first batch are recorded, gate scores and predictions: every
replay is routed alike.  They are replayed on the profile as it is, and for each uncertain
number (`substrate.machines.profile_ranges`) at both ends of its range, all others as they are.  The
system
decides anew in each replay, as it would on that machine.  Each number then moves TPOT and TTFT by
some share; the numbers are taken as independent, so their shares add up as the root of the sum of
squares, upwards and downwards by themselves.  These shares of the short piece are applied to the
whole run's figures.

A short run depends on the order of its prompts, too: a prompt begins with the experts that the one
before it left.  So a run of `MOST_BATCHES` at most is replayed in other orders, and the largest
changes count like those of one more number.  Nothing is random: the same run has the same interval.

Routing that a law drew is drawn anew at both ends of the law (`substrate.traces.law.ENDS`), and the
changes count like those of one more number.

The cost model's own error is known where other people published measurements of the same system on
the same kind of machine: `results.published_errors` has the factor within which 80 % of the
predictions of these are, with machine and author left out.  It counts like one more number, and
the run is called *checked*.  Elsewhere the interval does not cover that error, nor anywhere the
errors of figures that count as exact.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, permutations
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
from moebench.results.published_errors import checked
from moebench.substrate.errors import NotRecordedError
from moebench.substrate.machines.profile import SPECIAL, HardwareProfile, ProfileBadge, load_profile
from moebench.substrate.machines.profile_ranges import Uncertain, moved, uncertain
from moebench.substrate.memory.capacity import Room
from moebench.substrate.models.protocol import Model
from moebench.substrate.traces.law import ENDS, LAW, Law
from moebench.substrate.traces.passes import Recorder, RoutingTrace, TracedModel, pass_steps
from moebench.systems.compiled.engine import compiled

#: Tokens of the first batch that an interval is worked out from, the prefill's included.
TOKENS = 5

#: Most batches of a run that is replayed in other orders, and most tokens of each.
MOST_BATCHES, MOST_TOKENS = 8, 32

#: A run is `datasheet` where estimates move no latency by more than this share.
SMALL = 0.05

#: Fields that a document names: those that move a latency by at least this share, the largest few.
NAMED_FROM, NAMED = 0.001, 8

#: Numbers that move nothing where no weights are quantised.
OF_QUANTISED = tuple(f"software.{name}" for name in SPECIAL)

#: Latencies that are moved, as documents call them.
MOVED = ("tpot_ms", "ttft_ms")


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of the latencies between two ends, such as those of a number's range.

    Attributes:
        changes: by latency, its change at the low and at the high end, as shares of it; only
            latencies that the piece has.
    """

    changes: dict[str, tuple[float, float]]

    def down(self, latency: str) -> float:
        """Largest decrease of a latency between the ends, as a share of it; at most 0."""
        return min(0.0, *self.changes.get(latency, (0.0,)))

    def up(self, latency: str) -> float:
        """Largest increase of a latency between the ends, as a share of it; at least 0."""
        return max(0.0, *self.changes.get(latency, (0.0,)))

    def size(self, latency: str) -> float:
        """Larger of the absolute changes of a latency."""
        return max(-self.down(latency), self.up(latency))


@dataclass(frozen=True, slots=True)
class Effect(Changes):
    """Changes of the latencies over the range of one number of the profile."""

    number: Uncertain


def combined(effects: Iterable[Changes], latency: str) -> tuple[float, float]:
    """Return the combined decrease (at most 1) and increase due to independent causes."""
    ones = list(effects)
    down = math.hypot(*(one.down(latency) for one in ones))
    return min(1.0, down), math.hypot(*(one.up(latency) for one in ones))


def badge_of(
    profile: HardwareProfile, effects: Sequence[Effect], law: Changes | None = None
) -> ProfileBadge:
    """Return the badge of a run from the effects of its estimates: the profile's, and the law's.

    ``estimate``: the estimates together move TPOT or TTFT by more than `SMALL` of it.
    ``calibrated``: otherwise, if the profile was fitted on that machine.  ``datasheet``: all
    others, whose figures rest on published ones.
    """
    estimates: list[Changes] = [e for e in effects if e.number.number.badge == "estimate"]
    estimates += [] if law is None else [law]
    most = max(max(combined(estimates, latency)) for latency in MOVED)
    if most > SMALL:
        return "estimate"
    return "datasheet" if profile.badge == "estimate" else profile.badge


# ------------------------------------------------------------------------- replays


class Piece(NamedTuple):
    """Recorded routing of the first tokens of a run's first batches.

    Attributes:
        longest: tokens of the run's longest text, for which its memory is planned.
    """

    trace: RoutingTrace
    longest: int


def recorded(
    session: LiveSession | ReplaySession, scratch: Path, tokens: int, batches: int = 1
) -> Piece:
    """Record the first tokens of a run's first batches, after its system was calibrated."""
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
        recording.begin(stage, tokens, batches)
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
    replay = _Replayer(session, recorded(session, scratch, tokens))
    base = replay(profile)

    def changes(number: Uncertain, value: float) -> dict[str, float]:
        found = replay(moved(profile, number.field, value))
        return {name: found[name] / ns - 1 for name, ns in base.items()}

    def effect(number: Uncertain) -> Effect:
        low, high = changes(number, number.low), changes(number, number.high)
        return Effect({name: (low[name], high[name]) for name in base}, number)

    dense = not _quantised(session)
    return [effect(n) for n in uncertain(profile) if not (dense and n.field in OF_QUANTISED)]


def effect_of_order(session: LiveSession | ReplaySession, scratch: Path) -> Changes | None:
    """Return the largest changes of a run's latencies in other orders of its batches.

    Orders in which the system asks for a prediction that it did not make in the run's own are left
    out.  None if no order is left, or for a run of one batch or of more than `MOST_BATCHES`.
    """
    batches = math.ceil(session.spec.prompts / session.spec.batch)
    if not orders(batches):
        return None
    replay = _Replayer(session, recorded(session, scratch, MOST_TOKENS, batches))
    profile = load_profile(session.spec.machine, session.spec.software)
    base = replay(profile)
    others = []
    for order in orders(batches):
        with suppress(NotRecordedError):
            others.append(replay(profile, order))
    if not others:
        return None
    changes = {name: [found[name] / ns - 1 for found in others] for name, ns in base.items()}
    return Changes({name: (min(0.0, *all_), max(0.0, *all_)) for name, all_ in changes.items()})


def effect_of_law(session: LiveSession | ReplaySession, scratch: Path) -> Changes | None:
    """Return the changes of a run's latencies at both ends of the law that drew its routing.

    Few distinct experts and much repetition is one end (`traces.law.ENDS`).  None if no law did.
    """
    if not isinstance(session, ReplaySession) or session.source.under is None:
        return None
    opened = replace(session)
    opened.trace = session.source.open(scratch)
    profile = load_profile(session.spec.machine, session.spec.software)

    def took(law: Law) -> dict[str, float]:
        trace = session.drawn_under(law, scratch, TOKENS)
        assert trace is not None
        return _Replayer(session, Piece(trace, opened.longest))(profile)

    base, (many, few) = took(LAW), map(took, ENDS)
    return Changes({name: (many[name] / ns - 1, few[name] / ns - 1) for name, ns in base.items()})


def orders(batches: int) -> list[tuple[int, ...]]:
    """Return other orders of a run's batches: all of three at most, else rotations and reverse.

    None for one batch, and none for more than `MOST_BATCHES`.
    """
    first = tuple(range(batches if batches <= MOST_BATCHES else 0))
    if len(first) <= 3:
        return [order for order in permutations(first) if order != first]
    return [*(first[at:] + first[:at] for at in first[1:]), first[::-1]]


def _quantised(session: LiveSession | ReplaySession) -> bool:
    spec, own = session.spec, session.system.expert_precision
    if spec.quant is not None:
        return True
    packed = {"4bit", "4bit-g64", "2bit", "int8", "int4"}
    return bool({spec.precision, spec.expert_dtype, own} & packed)


class _Replayer:
    """Replays a piece on a profile; returns its mean latencies in ns."""

    def __init__(self, session: LiveSession | ReplaySession, piece: Piece) -> None:
        self._session, self._piece = session, piece

    def __call__(
        self, profile: HardwareProfile, order: Sequence[int] | None = None
    ) -> dict[str, float]:
        """Replay the piece's batches, in another order if one is given."""
        session, longest, recorded = self._session, self._piece.longest, self._piece.trace
        spec, system, full = session.spec, session.system, session.full
        order = range(len(recorded.batches)) if order is None else order
        batches = [recorded.batches[at] for at in order]
        means = {at: recorded.embeddings[one] for at, one in enumerate(order)
                 if one in recorded.embeddings}  # fmt: skip
        trace = RoutingTrace(recorded.shape, batches, means)
        request = StageRequest(
            spec=spec, system=system, full=full, longest=longest,
            model=lambda decoder: cast(Model, TracedModel(trace)),
        )  # fmt: skip
        if system.evict.clairvoyant:
            system.evict.set_future(pass_steps(chain.from_iterable(batches)))
        memory = count_memory(spec, system, full, longest, Offer(Room.of(profile), profile))
        with ExitStack() as stack:
            stage = SimulatedKind().build(request, memory, stack)
        stage.start()
        engine = compiled(stage.engine)
        done = [engine.generate([[0] * n for n in one[0].rows], len(one)) for one in batches]
        first = [generation.ttft_ns for generation in done if generation.ttft_ns]
        steps = [ns for generation in done for ns in generation.steps_ns]
        found = {"ttft_ms": first, "tpot_ms": steps}
        return {name: float(np.mean(times)) for name, times in found.items() if times}


# ------------------------------------------------------------------------- the document


def add_interval(
    document: dict[str, Any], session: LiveSession | ReplaySession, scratch: Path
) -> None:
    """Compute a simulated run's interval and badge, and add both to its document.

    Args:
        session: the run's own; it need not have run.
        scratch: where its system keeps what it learnt.
    """
    profile = load_profile(session.spec.machine, session.spec.software)
    effects, order = effects_on(session, scratch), effect_of_order(session, scratch)
    law, published = effect_of_law(session, scratch), checked(session.spec.system, profile)
    found = interval(document["metrics"], effects, order, law, published)
    with_interval(document, badge_of(profile, effects, law), found)


def interval(
    metrics: dict[str, Any], numbers: Sequence[Effect], order: Changes | None = None,
    law: Changes | None = None, published: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the ``interval`` part of a document.

    Returns:
        ``low`` and ``high`` of each latency that the run has and of tokens/s; ``fields``: the
        numbers that move a latency most, with the change in percent of it at each end;
        ``order``: the largest changes in percent in other orders of the prompts, None if no other
        was replayed.  ``routing``, only if a law drew the routing: the changes at its two ends.
        ``checked``, only where there are published rows of its kind: by phase, how many figures
        and machines, and their errors with machine and author left out.
    """
    effects: list[Changes] = [*numbers, *(one for one in (order, law) if one is not None)]
    if published is not None:
        effects.append(_of_published(published))
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
    fields = [_named(one, means) for one in _largest(numbers, means)]
    found |= {"fields": fields, "order": order and _percent(order, means)}
    found |= {} if law is None else {"routing": _percent(law, means)}
    return found if published is None else {**found, "checked": dict(published)}


#: Phase of a published rate, by the latency that it is of.
PHASES = {"tpot_ms": "decode", "ttft_ms": "prefill"}


def _of_published(published: Mapping[str, Any]) -> Changes:
    """Return the changes of latencies to both ends of 80 % of the published figures' errors."""
    factors = {name: published[phase]["within_80"] for name, phase in PHASES.items()
               if phase in published}  # fmt: skip
    return Changes({name: (1 / factor - 1, factor - 1) for name, factor in factors.items()})


def _of_whole(prefill: float) -> Callable[[Changes], Changes]:
    """Return the change of prefill and decode together, weighted by prefill's share."""
    nothing = (0.0, 0.0)

    def whole(effect: Changes) -> Changes:
        parts = zip(*(effect.changes.get(name, nothing) for name in ("ttft_ms", "tpot_ms")),
                    strict=True)  # fmt: skip
        low, high = (prefill * first + (1 - prefill) * later for first, later in parts)
        return Changes({"e2e_ms": (low, high)})

    return whole


def _largest(effects: Sequence[Effect], latencies: Iterable[str]) -> list[Effect]:
    def size(one: Effect) -> float:
        return max((one.size(name) for name in latencies), default=0.0)

    return sorted((e for e in effects if size(e) >= NAMED_FROM), key=size, reverse=True)[:NAMED]


def _named(effect: Effect, latencies: Iterable[str]) -> dict[str, Any]:
    number = effect.number
    return {
        "field": number.field,
        "low": number.low,
        "high": number.high,
        "stated": number.stated,
        **_percent(effect, latencies),
    }


def _percent(one: Changes, latencies: Iterable[str]) -> dict[str, list[float]]:
    """Return the changes of a run's latencies at both ends, in percent."""
    changes = {name: one.changes.get(name) for name in latencies}
    return {name: [round(100 * c, 2) for c in both] for name, both in changes.items() if both}
