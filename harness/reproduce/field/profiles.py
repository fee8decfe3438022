"""Hits of experts pinned by a profile of the same texts, of other texts, and of a cache (R-3).

All hits are counted on half of a stream's sequences, in each layer with the same number of slots.
The profile of *its own* texts is the other half; that of *other* texts is the whole of another
stream of the same model.  *Chance* is the share of experts that are pinned.
"""

import re
from collections.abc import Callable, Iterable
from statistics import fmean
from typing import NamedTuple

import numpy as np

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError
from moebench.harness.reproduce.field.recorded import Stream, most_tokens, streams, totals
from moebench.results.claims import Measured
from moebench.substrate.analysis.cache_replay import replay, token_steps, topology
from moebench.substrate.engine.policies import Eviction
from moebench.systems.registry import make

#: Shares of a layer's experts that are pinned; claims are about the second.
SHARES = (0.125, 0.25, 0.5)
SHARE = 0.25

#: Least gain over chance of own profiles, 0 to 1, of which a share is computed.
GAIN = 0.03


class Pinned(NamedTuple):
    """Hit rates of a stream with some slots, 0 to 1; means over profiles of other texts.

    Attributes:
        own, other: with the profile of its own and of other texts.
        lru: of a cache in each layer that starts empty; None for totals, which hold no tokens.
    """

    model: str
    workload: str
    share: float
    chance: float
    own: float
    other: float
    lru: float | None


def keeps(rows: Iterable[Pinned]) -> float | None:
    """Return the share of own profiles' gain over chance that others keep, in percent.

    None if own profiles gain less than `GAIN`.
    """
    listed = list(rows)
    own = fmean(row.own - row.chance for row in listed)
    return None if own < GAIN else 100 * fmean(r.other - r.chance for r in listed) / own


def counts(stream: Stream) -> np.ndarray:
    """Return how often each expert of each layer is used, ``[L, E]``."""
    rows = np.concatenate(stream.sequences)
    layers = range(rows.shape[1])
    return np.stack([np.bincount(rows[:, l].ravel(), minlength=stream.experts) for l in layers])  # noqa: E741


def covered(profile_LE: np.ndarray, used_LE: np.ndarray, slots: int) -> float:
    """Return the share of uses whose experts are the ``slots`` most used of a profile's layer."""
    top = np.argsort(-profile_LE, axis=1, kind="stable")[:, :slots]
    return float(np.take_along_axis(used_LE, top, axis=1).sum() / used_LE.sum())


def lru_hits(stream: Stream, slots: int) -> float:
    """Return the hit rate of an LRU cache in each layer that starts empty."""
    layers, k = stream.sequences[0].shape[1:]
    steps = [token_steps(rows) for rows in stream.sequences]
    policy = make("evict", "lru")
    assert isinstance(policy, Eviction)
    return replay(policy, steps, topology(layers, stream.experts, k), slots * layers).hit_rate


def of_streams(evidence: Evidence, share: float) -> list[Pinned]:
    """Return the hits on each stream of which the model has another one."""
    listed, most = streams(evidence, whole=True), most_tokens(evidence)
    rows = []
    for stream in listed:
        others = [o for o in listed if o.model == stream.model and o.name != stream.name]
        slots = round(share * stream.experts)
        if not others or slots < stream.sequences[0].shape[2]:
            continue
        first, second = stream.halves()
        second = second.cut(most)
        used = counts(second)
        other = fmean(covered(counts(one), used, slots) for one in others)
        rows.append(
            Pinned(
                stream.model, stream.workload, share, slots / stream.experts,
                covered(counts(first), used, slots), other, lru_hits(second, slots),
            )
        )  # fmt: skip
    return rows


def of_totals(evidence: Evidence, share: float) -> list[Pinned]:
    """Return the hits on each kind of text of published totals."""
    by: dict[tuple[str, tuple[int, ...]], list[tuple[str, np.ndarray]]] = {}
    for one in totals(evidence):
        by.setdefault((one.model, one.counts.shape), []).append((one.workload, one.counts))
    rows = []
    for (model, _), kinds in by.items():
        slots = round(share * kinds[0][1].shape[1])
        for name, used in kinds:
            others = [covered(of, used, slots) for other, of in kinds if text(other) != text(name)]
            if others and slots:
                own = covered(used, used, slots)
                chance = slots / used.shape[1]
                rows.append(Pinned(model, name, share, chance, own, fmean(others), None))
    return rows


def text(name: str) -> str:
    """Return what a kind of totals is of, without the mode or the variant of the model."""
    return re.sub(r"_reasoning_(on|off)$| \(.*\)$", "", name)


# ----------------------------------------------------------------------------- measures


Figure = Callable[[list[Pinned]], float | None]


def by_model(rows: Iterable[Pinned], figure: Figure) -> dict[str, float]:
    """Return a figure of the streams of each model that has it."""
    groups: dict[str, list[Pinned]] = {}
    for row in rows:
        groups.setdefault(row.model, []).append(row)
    found = {model: figure(group) for model, group in groups.items()}
    return {model: value for model, value in found.items() if value is not None}


def measured(figure: Figure) -> Callable[[Evidence], Measured]:
    """Return a function that measures a figure of the recorded streams, a sample for each model."""

    def measure(evidence: Evidence) -> Measured:
        rows = of_streams(evidence, SHARE)
        found = by_model(rows, figure)
        if not found:
            raise MissingEvidenceError("no model has recordings of two kinds of text")
        said = ", ".join(f"{model} {value:.3g}" for model, value in found.items())
        return Measured.of(
            found.values(), "counted", f"{len(rows)} streams, {SHARE:.0%} pinned: {said}",
            "models",
        )  # fmt: skip

    return measure


def over_chance(rows: Iterable[Pinned]) -> float:
    """Return the hits with profiles of other texts over chance."""
    return fmean(row.other / row.chance for row in rows)


def against_lru(rows: Iterable[Pinned]) -> float | None:
    """Return the hits with profiles of other texts less those of LRU, in points."""
    points = [100 * (row.other - row.lru) for row in rows if row.lru is not None]
    return fmean(points) if points else None


#: A profile carries over where it keeps this share of its own texts' gain, in percent.
CARRIES = 75.0


def turns(evidence: Evidence) -> str:
    """Return on which models and traces a profile carries over, and on which it beats LRU."""
    rows = of_streams(evidence, SHARE)
    carried: list[str] = []
    lost: list[str] = []
    better: list[str] = []
    for row in rows:
        share = keeps([row])
        if share is not None:
            (carried if share >= CARRIES else lost).append(f"{_name(row)} {share:.0f} %")
        if (points := against_lru([row])) is not None and points > 0:
            better.append(f"{_name(row)} +{points:.0f}")
    of_other = by_model(of_totals(evidence, SHARE), keeps)
    more = ", ".join(f"{model} {value:.0f} %" for model, value in of_other.items())
    return (
        f"At {SHARE:.0%} of a layer's experts, profiles of other texts keep of the gain of their "
        f"own: {CARRIES:.0f} % or more on {', '.join(carried) or 'no stream'}; less on "
        f"{', '.join(lost) or 'no stream'}. In published totals: {more or 'none'}. They beat an "
        f"LRU cache of that size, in points, on {', '.join(better) or 'no stream'}."
    )


def _name(row: Pinned) -> str:
    return f"{row.model} {row.workload}"
