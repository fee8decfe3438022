"""SMoE's claims S-16: its router in batches (§VI-B), and the first version's refinement (§5.4).

In a batch the experts that are top-score for one row are computed anyway, so that they can replace
low-score experts of other rows even where they are off the device.  Run documents do not tell these
substitutes from those on the device: each cell runs once more, with its routing wrapped.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from moebench.harness.reproduce.bands import Bands, sign
from moebench.harness.reproduce.claim import Claim, CounterExperiment
from moebench.harness.reproduce.evidence import Evidence, Experiment, Runs
from moebench.harness.reproduce.read import TPOT, Measure, curried, percent
from moebench.harness.reproduce.smoe.experiments import (
    ALONE,
    BATCHES,
    BESIDE_ALGORITHM_2,
    REFINED,
    REFINED_ALONE,
    REFINEMENT,
    UNREFINED,
)
from moebench.harness.reproduce.smoe.instrumented import answer, each_seen
from moebench.harness.reproduce.smoe.measures import conditions, measured
from moebench.harness.run.execute import EngineRun
from moebench.results.claims import Band, Measured
from moebench.substrate.engine.decisions import LayerView, Routed
from moebench.systems.smoe import best_unselected_score


@dataclass(slots=True)
class Substitutes:
    """Counts of low-score experts of decoded tokens that are off the device when the gate is known.

    Attributes:
        absent: all of them.
        shared: kept, because they are another row's top-score experts.
        by_resident: replaced by an expert on the device.
        by_row: replaced by another row's top-score expert, which is off the device.
    """

    absent: int = 0
    shared: int = 0
    by_resident: int = 0
    by_row: int = 0

    def count(self, view: LayerView, routed: Routed) -> None:
        """Add the tokens of one layer, as they were routed."""
        resident, important = view.residency.is_resident, routed.top_score or frozenset()
        pairs = zip(view.topk, routed.ids_TK.tolist(), view.scores, strict=True)
        for own, used, scores in pairs:
            rival = best_unselected_score(scores, own)
            low = [e for e in own if rival < scores[e] < (1 + view.alpha) * rival]
            absent = [e for e in low if not resident(e)]
            self.absent += len(absent)
            self.shared += sum(e in important for e in absent)
            substitutes = set(used) - set(own)
            self.by_resident += sum(map(resident, substitutes))
            self.by_row += sum(not resident(e) for e in substitutes)


def substitutes(
    evidence: Evidence, experiment: Experiment = BATCHES
) -> dict[tuple[str, int], Substitutes]:
    """Return the counts of each cell, by setting and seed; by default of three texts at a time."""
    specs, scratch = evidence.specs(experiment), evidence.scratch
    found = each_seen(evidence, specs, "substitutes", lambda run: _seen(run, scratch))
    names = [one.name for one in fields(Substitutes)]
    return {
        (one["setting"], one["seed"]): Substitutes(**{name: one[name] for name in names})
        for one in found
    }


def _seen(session: EngineRun, scratch: Path) -> dict[str, Any]:
    counts, routing = Substitutes(), session.system.route
    route = routing.route

    def watching(view: LayerView) -> Routed:
        routed = route(view)
        if view.phase == "decode":
            counts.count(view, routed)
        return routed

    routing.route = watching  # type: ignore[method-assign]
    answer(session, scratch)
    return {"setting": session.spec.setting, "seed": session.spec.seed, **asdict(counts)}


def of_replaced(one: Substitutes) -> float:
    """Return the share of replaced experts whose substitute is another row's, in percent."""
    return 100 * one.by_row / (one.by_row + one.by_resident)


def of_absent(one: Substitutes) -> float:
    """Return the share of absent low-score experts that another row's replaces, in percent."""
    return 100 * one.by_row / one.absent


@curried
def of_batches(evidence: Evidence, figure: Callable[[Substitutes], float]) -> Measured:
    """Measure a figure of the counts, the mean over settings, with one sample for each seed."""
    runs = evidence.runs(BATCHES)
    found: dict[int, list[float]] = {}
    for (_, seed), counts in substitutes(evidence).items():
        found.setdefault(seed, []).append(figure(counts))
    said = conditions(runs, "mean over S1-S3")
    return Measured.of(map(fmean, found.values()), "counted", said)


# ----------------------------------------------------------------------------- refinement


@curried
def refined_change(runs: Runs, figure: Callable[[Runs], float]) -> float:
    """Return the change of a figure by the refinement, averaged over settings, in percent."""
    with_it, without = (
        runs.of(set=either).by("setting") for either in ((REFINED, REFINED_ALONE), (UNREFINED, {}))
    )
    return percent(fmean(figure(with_it[s]) / figure(without[s]) for s in with_it))


def off_device(runs: Runs) -> float:
    """Return the mean number of experts that a run's decode loads or computes on the host."""
    counts = "metrics.experts.decode"
    return runs.mean(f"{counts}.loads") + runs.mean(f"{counts}.host")


# ----------------------------------------------------------------------------- claims


def _of_refinement(figure: Callable[[Runs], float]) -> Measure:
    """Return a function that measures a figure of the runs with and without the refinement."""
    return measured(figure, REFINEMENT, said="mean over S1-S3")


_refined = partial(Claim, needs=(REFINEMENT,), counters=(BESIDE_ALGORITHM_2, *ALONE))

CLAIMS = (
    Claim(
        "S-16 from other rows", "Fig. 11, §VI-B",
        "share of replaced low-score experts whose substitute is another row's top-score expert "
        "that is off the device, batch 3", None, "%",
        Bands(Band(low=5, high=50), None,
              "the paper names it the second of two reasons for its gain at batch 3, without a "
              "figure: a twentieth or more, and fewer than those on the device").effect(5),
        of_batches(of_replaced), (BATCHES,),
        (
            CounterExperiment(
                "of all low-score experts that are off the device, replaced or not",
                measure=of_batches(of_absent), always=True, reading=True,
            ),
            ALONE[0],
        ),
    ),
    _refined(
        "S-16 refined TPOT", "first version, §5.4",
        "TPOT with the refinement against without, batch 3: faster", None, "%",
        sign(-2, "the paper says faster without a figure: 2 % or more"),
        _of_refinement(refined_change(lambda runs: runs.mean(TPOT))),
    ),
    _refined(
        "S-16 refined misses", "first version, §5.4",
        "experts that are loaded or computed on the host, with the refinement against without, "
        "batch 3: fewer", None, "%",
        sign(-2, "the paper states no figure: 2 % or more"),
        _of_refinement(refined_change(off_device)), counters=(BESIDE_ALGORITHM_2, ALONE[0]),
    ),
)  # fmt: skip
