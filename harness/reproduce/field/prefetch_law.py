"""The law by which prefetching gains or loses time on a link, in the hit rate (R-2).

For each decoded token, with times in ms and a system that loads every miss:

    ΔT = P (1 - w) + x · W - u · min(E, O)
    W  = (L - O) - (1 - exp(-λ (L - O))) / λ    where L > O, else 0
    λ  = (1 - exp(-m)) / C                      m = (1 - h) k misses in a layer

    P   the prediction itself: what it adds to a token when all experts are on the device
    w   share of the token's time that waits for copies; predictions of that time cost nothing
    x   copies that the link makes more than without prefetching: wrong predictions
    u   prefetched experts that are used
    L   the time of one copy, E the part of it that the device waits for
    O   the time from a prediction to the next gate that a copy can use
    C   the time of a layer without waiting for copies
    h,k the hit rate without prefetching, and the experts of a token in a layer

A right prediction hides at most O of a copy, and no more than what was waited for.  A wrong one
occupies the link for L, of which O passes before the next gate; the rest delays needed copies,
unless none is needed for long enough.  Copies are needed at random with rate λ, so the wait's mean
is W.  As h grows, predicted experts that are absent are more often wrong ones: x falls more slowly
than u.

O is the law's only constant that is not read from the cells: O = o · C with one o for all cells.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

import numpy as np

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.harness.reproduce.field.experiments import PREFETCH
from moebench.harness.reproduce.read import DECODED, LINK, STALL, TPOT
from moebench.results.claims import Measured
from moebench.results.document import Document, dig
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import model_shape

#: A link that is busy for this share of decode without prefetching is saturated.
SATURATED = 0.75


class Pair(NamedTuple):
    """A cell with prefetching and the same cell without, for each decoded token; times in ms.

    Attributes:
        link: rate of the link in GB/s.
        before, after: TPOT without and with prefetching.
        busy: share of decode in which the link copies, without prefetching.
        misses: misses of a layer without prefetching.
        more: copies more than without prefetching.
        used: prefetched experts that are used.
        copy, exposed: time of one copy, and the part of it that the device waits for.
        layer: time of a layer without waiting for copies.
        waits: share of a token's time that waits for copies.
        predict: what predictions take if all experts are on the device.
    """

    model: str
    link: float
    hit_rate: float
    before: float
    after: float
    busy: float
    misses: float
    more: float
    used: float
    copy: float
    exposed: float
    layer: float
    waits: float
    predict: float

    @property
    def change(self) -> float:
        """Change of TPOT by prefetching, in percent."""
        return 100 * (self.after / self.before - 1)

    def law(self, overlap: float) -> float:
        """Return the change of TPOT by the law, in percent, for O = ``overlap`` · C."""
        hidden = overlap * self.layer
        wait = waiting(self.copy - hidden, self.misses, self.layer)
        gain = self.used * min(self.exposed, hidden)
        predict = self.predict * (1 - self.waits)
        return 100 * (predict + self.more * wait - gain) / self.before


def waiting(rest: float, misses: float, layer: float) -> float:
    """Return the mean delay of needed copies by a copy that still takes ``rest``, in its unit.

    Args:
        misses: mean number of misses of a layer.
        layer: time of a layer.
    """
    if rest <= 0:
        return 0.0
    rate = -math.expm1(-misses) / layer
    return rest + math.expm1(-rate * rest) / rate if rate > 0 else 0.0


# ----------------------------------------------------------------------------- cells


def pairs(runs: Runs) -> list[Pair]:
    """Return all pairs of cells with and without prefetching that copy experts."""
    found = []
    for (model, machine, _), group in runs.groups("model", "machine", "seed").items():
        by_share = {
            share: (place.of(set={}), place.of(set={"prefetch": "next-gate"}))
            for share, place in group.by("cache_ratio").items()
        }
        (without, with_it) = by_share[max(by_share)]
        predict = with_it.mean(TPOT) - without.mean(TPOT)
        for share in sorted(by_share)[:-1]:
            (one,), (other,) = by_share[share]
            if dig(one, _LOADS):
                found.append(_pair(model, machine, one, other, predict))
    if not found:
        raise MissingEvidenceError("no cell copies an expert")
    return found


_LOADS = "metrics.experts.decode.loads"


def _pair(model: str, machine: str, one: Document, other: Document, predict: float) -> Pair:
    tokens, before = float(dig(one, DECODED)), float(dig(one, TPOT))
    loads, after = float(dig(one, _LOADS)), float(dig(other, TPOT))
    layers = len(model_shape(model).moe_layers)
    on_link, stalled = float(dig(one, LINK)), float(dig(one, STALL) or 0.0)
    more = dig(other, "metrics.prefetch.issued") + dig(other, _LOADS) - loads
    return Pair(
        model, load_profile(machine, one["spec"]["software"]).link.pinned_h2d.value,
        float(dig(one, "metrics.cache_ratio")), before, after, on_link / (tokens * before),
        loads / tokens / layers, max(0.0, more / tokens),
        dig(other, "metrics.prefetch.used") / tokens, on_link / loads, stalled / loads,
        (before - stalled / tokens) / layers, stalled / tokens / before, predict,
    )  # fmt: skip


# ----------------------------------------------------------------------------- the fit


class Fit(NamedTuple):
    """The law's constant, its error in points of TPOT, and how often its sign is right.

    Attributes:
        overlap: O over C.
        error: root of the mean square of the law's change less the cells', in points.
        held_out: the same on cells of other link rates than those that it was fitted to.
        signs: share of cells whose gain or loss the law tells, of those that change by `NOTHING`.
    """

    overlap: float
    error: float
    held_out: float
    signs: float


#: Smallest change of TPOT that counts as a gain or a loss, in percent.
NOTHING = 0.5


def fit(found: Sequence[Pair]) -> Fit:
    """Fit O over C to all cells; test it on every other link rate, fitted to the rest."""
    best = _overlap(found)
    rates = sorted({pair.link for pair in found})
    held = [
        error(test, _overlap(rest))
        for odd in (0, 1)
        if (test := [p for p in found if rates.index(p.link) % 2 == odd])
        and (rest := [p for p in found if rates.index(p.link) % 2 != odd])
    ]
    told = [p.change * p.law(best) > 0 for p in found if abs(p.change) >= NOTHING]
    signs = fmean(told) if told else 1.0
    return Fit(best, error(found, best), fmean(held) if held else error(found, best), signs)


def _overlap(found: Sequence[Pair]) -> float:
    grid = np.linspace(0, 1, 101)
    return float(min(grid, key=lambda overlap: error(found, float(overlap))))


def error(found: Iterable[Pair], overlap: float) -> float:
    """Return the root mean square of the law's change of TPOT less the cells', in points."""
    return math.sqrt(fmean((pair.law(overlap) - pair.change) ** 2 for pair in found))


def threshold(points: Iterable[tuple[float, float]]) -> float | None:
    """Return the first hit rate at which a change of TPOT becomes a loss; None: at no place.

    Args:
        points: hit rates with changes of TPOT; between them the change is a line.
    """
    ordered = sorted(points)
    for (h, gain), (next_h, loss) in pairwise(ordered):
        if gain <= 0 < loss:
            return h + (next_h - h) * -gain / (loss - gain)
    return ordered[0][0] if ordered and ordered[0][1] > 0 else None


# ----------------------------------------------------------------------------- measures


def saturated(evidence: Evidence) -> Measured:
    """Measure the mean change of TPOT by prefetching where the link is saturated without it."""
    runs = evidence.runs(PREFETCH)
    by_seed = {
        seed: [p.change for p in pairs(of) if p.busy >= SATURATED]
        for seed, of in runs.by("seed").items()
    }
    samples = [fmean(changes) for changes in by_seed.values() if changes]
    if not samples:
        raise MissingEvidenceError("no cell has a saturated link")
    cells = sum(map(len, by_seed.values()))
    said = f"{cells} cells whose link is busy for {SATURATED:.0%} of decode or more without it"
    return Measured.of(samples, runs.badge, said)


def of_fit(figure: Callable[[Fit], float]) -> Callable[[Evidence], Measured]:
    """Return a function that measures a figure of the fitted law."""

    def measure(evidence: Evidence) -> Measured:
        runs = evidence.runs(PREFETCH)
        found = pairs(runs)
        law = fit(found)
        said = (
            f"{len(found)} cells; O = {law.overlap:.2f} of a layer's time, fitted; error of all "
            f"cells {law.error:.2g} points of TPOT, of held-out link rates {law.held_out:.2g}"
        )
        return Measured.of([figure(law)], runs.badge, said)

    return measure


def turns(evidence: Evidence) -> str:
    """Return above which hit rates prefetching loses, by link rate, in the cells and by the law."""
    found = pairs(evidence.runs(PREFETCH))
    law = fit(found)
    parts = []
    for model in dict.fromkeys(pair.model for pair in found):
        of = [pair for pair in found if pair.model == model]
        said = []
        for rate in sorted({pair.link for pair in of}):
            here = [pair for pair in of if pair.link == rate]
            cells = threshold(_mean_by_hits((p.hit_rate, p.change) for p in here))
            told = threshold(_mean_by_hits((p.hit_rate, p.law(law.overlap)) for p in here))
            busy = max(p.busy for p in here)
            said.append(f"{_place(told)} at {rate:g} GB/s (cells: {_place(cells)}; link busy up "
                        f"to {busy:.0%})")  # fmt: skip
        parts.append(f"{model}: {', '.join(said)}")
    return (
        "Prefetching loses where P (1 - w) + x W > u min(E, O): a token's wrong copies x, each "
        "delaying needed ones by W, and the prediction P, as far as it is not made while copies "
        "are waited for (w), take longer than its u right ones hide (O, at most what a copy is "
        f"waited for, E). In the hit rate, with O = {law.overlap:.2f} C, it loses above "
        f"{'; '.join(parts)}. The law's error is {law.error:.2g} points of TPOT, on held-out "
        f"link rates {law.held_out:.2g}; it tells gain from loss in {law.signs:.0%} of the cells."
    )


def _mean_by_hits(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the means of points whose hit rates agree to 3 points: seeds of one cell."""
    groups: list[list[tuple[float, float]]] = []
    for point in sorted(points):
        if groups and point[0] - groups[-1][0][0] < 0.03:
            groups[-1].append(point)
        else:
            groups.append([point])
    return [(fmean(h for h, _ in g), fmean(c for _, c in g)) for g in groups]


def _place(hit_rate: float | None) -> str:
    return "no measured hit rate" if hit_rate is None else f"{hit_rate:.2f}"
