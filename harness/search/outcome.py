"""What a search found, against the best published system, and what the numbers allow to say."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

from moebench.harness.search.composition import BASE, RUNTIME, Sets, part_of
from moebench.harness.search.evaluation import Measured, Refused, paired
from moebench.harness.search.held_out import held_out
from moebench.harness.search.rounds import (
    VALIDATED_FOUND,
    VALIDATED_KNOWN,
    Candidate,
    Place,
    Search,
)
from moebench.harness.search.study import Trials
from moebench.results.published_errors import ratio_error
from moebench.substrate.errors import UsageError
from moebench.systems.options import build, describe, options_of
from moebench.systems.registry import DECISIONS

Row = dict[str, Any]

#: The quantile of a normal distribution within which, on both sides, 80 % of its values are.
_WITHIN_80 = NormalDist().inv_cdf(0.9)

#: Names of the held-out places whose machine is the one that was searched for.
HERE = ("prompts", "workload", "recordings")

#: The least gain that makes a composition better: a smaller one is not worth another system.
LEAST_GAIN = 0.01

#: How far the time of a live run may be from its replay's.
SAME_TIME = 0.005


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The outcome of a search in one place.

    Attributes:
        found, best: the composition with the least TPOT in validation, and the published system.
        rows: the validated candidates, the fastest first.
        places: found and best published in each held-out place.
        ablation: TPOT of the composition with each of its decisions as the published system's.
        bounds: lower bounds of the composition's decoded token.
        live: what a run that computes gave.
        regret: of one rule for several places: it, and the fastest trial here, on new prompts.
    """

    place: Place
    found: Candidate | None
    best: Candidate
    rows: list[Row] = field(default_factory=list)
    places: list[Row] = field(default_factory=list)
    ablation: list[Row] = field(default_factory=list)
    bounds: Row = field(default_factory=dict)
    live: Row = field(default_factory=dict)
    regret: Row = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """TPOT of the composition over the best published system's, on prompts of validation."""
        found = next((one for one in self.places if one["place"] == "prompts"), None)
        return None if found is None else found["ratio"]

    @property
    def lost(self) -> list[Row]:
        """The held-out places on this machine where the composition is clearly slower."""
        return [
            one for one in self.places
            if one["place"].split()[0] in HERE and one.get("ratio") and one["ratio"] > 1
            and one["clear"]
        ]  # fmt: skip

    @property
    def better(self) -> bool:
        """Whether it is faster on new prompts by `LEAST_GAIN`, and clearly slower nowhere here.

        A composition without loss that was computed has also given the model's own tokens.
        """
        first = next((one for one in self.places if one["place"] == "prompts"), None)
        return bool(first and first["clear"] and first["ratio"] <= 1 - LEAST_GAIN
                    and not self.lost and self.faithful)  # fmt: skip

    @property
    def faithful(self) -> bool:
        """Whether a run that computes gave the model's own tokens, if there was one."""
        return bool(self.live.get("agreement", 1) == 1)

    @property
    def verdict(self) -> str:
        """What may be said, in one line."""
        if self.found is None or self.ratio is None:
            return f"no better than {self.best.name}: no composition was faster"
        if not self.better:
            where = ", ".join(one["place"] for one in self.lost)
            why = (
                f"slower on {where}"
                if where
                else (f"not faster by {LEAST_GAIN:.0%} on new prompts")
            )
            why = why if self.faithful else "its tokens are not the model's own"
            return f"no better than {self.best.name}: {why}"
        here = f"{1 - self.ratio:.1%} faster than {self.best.name} on new prompts"
        elsewhere = [one for one in self.places if one["place"].split()[0] not in HERE]
        worse = [one["place"] for one in elsewhere if (one.get("ratio") or math.inf) > 1]
        return here + (f"; not with {', '.join(worse)}" if worse else "")

    @property
    def probability(self) -> float | None:
        """Probability that it is faster on a real machine, by the error of predicted ratios."""
        return None if self.ratio is None else probability_faster(self.ratio)


def probability_faster(ratio: float) -> float:
    """Return the probability that a true ratio is below 1, if the simulator predicts this one.

    The error of ratios of two engines' decode rates on one machine is lognormal, with the factor
    that holds 80 % of left-out published ones (`results.published_errors.ratio_error`).
    """
    spread = math.log(ratio_error()) / _WITHIN_80
    return NormalDist(0, spread).cdf(-math.log(ratio))


def validate(
    search: Search, trials: Trials, place: Place, systems: Sequence[Candidate],
    progress: Callable[[str], Callable[[int, int], None]],
) -> Outcome:  # fmt: skip
    """Compare the best candidates on new prompts and in the held-out places.

    Args:
        systems: published systems that were run.
        progress: told what is done; returns what counts it.
    """
    name = place.question.name
    ranked = sorted(
        (one for one in systems if search.within(one.name, name)),
        key=lambda one: search.tpot(one.name, name),
    )  # fmt: skip
    # On new prompts lossy ones may be beyond the limit; one without loss is not.
    exact = [one for one in ranked if build(one.system, one.sets).lossless][:1]
    known = list({one.name: one for one in (*ranked[:VALIDATED_KNOWN], *exact)}.values())
    most = VALIDATED_FOUND if len(search.places) == 1 else 1  # one rule is the same everywhere
    own = [one for one in search.ranked(trials) if not one.published][:most]
    progress("fewer decisions")
    own = [search.simplified(one) if rank == 0 else one for rank, one in enumerate(own)]
    here = [] if len(search.places) == 1 else search.fastest(trials, name)
    runs = search.validated([*known, *own, *here], place, progress("validation"))
    rows = _rows([*known, *own], runs, search.limit)
    allowed = [row for row in rows if row.get("tpot_ms") and row["allowed"]]
    by_name = {one.name: one for one in (*known, *own)}
    best = next((by_name[row["name"]] for row in allowed if by_name[row["name"]].published), None)
    if best is None:
        raise UsageError(
            f"--kl {search.limit:g}: on new prompts no published system of {name} is within it; "
            "give a larger one, or a system without loss"
        )
    found = next((by_name[row["name"]] for row in allowed if not by_name[row["name"]].published),
                 None)  # fmt: skip
    outcome = Outcome(place=place, found=found, best=best, rows=rows)
    if found is None:
        return outcome
    outcome.places.append(_compared("prompts", found, [best], runs))
    if here:
        outcome.regret = _compared("prompts", found, [found, *here], runs)
    _everywhere(outcome, search, known, progress("held-out places"))
    outcome.ablation = _ablation(outcome, search, runs, progress("ablation"))
    outcome.bounds = _bounds(outcome, search, progress("bounds"))
    outcome.live = _live(outcome, search, runs, progress("live run"))
    return outcome


def _rows(
    candidates: Sequence[Candidate], runs: Mapping[str, Measured | Refused], limit: float | None
) -> list[Row]:
    rows: list[Row] = []
    for one in candidates:
        run, row = runs[one.name], {"name": one.name, "published": one.published}
        if isinstance(run, Refused):
            rows.append({**row, "refused": run.why})
            continue
        allowed = limit is None or (run.kl or 0.0) <= limit
        rows.append({
            **row, "tpot_ms": run.tpot_ms, "kl": run.kl, "kl_interval": run.kl_interval,
            "allowed": allowed, "run": run.run_id,
            "memory_gb": run.document["metrics"]["peak_device_bytes"] / 1e9,
        })  # fmt: skip
    return sorted(rows, key=lambda row: row.get("tpot_ms") or math.inf)


def _compared(
    place: str, found: Candidate, others: Sequence[Candidate],
    runs: Mapping[str, Measured | Refused],
) -> Row:  # fmt: skip
    """Return the row of a place: the composition, and the fastest of the others there."""
    mine = runs[found.name]
    there = [one for one in others if isinstance(runs[one.name], Measured)]
    if isinstance(mine, Refused) or not there:
        why = mine.why if isinstance(mine, Refused) else "no published system can be run there"
        return {"place": place, "refused": why}
    best = min(there, key=lambda one: _tpot(runs[one.name]))
    other = runs[best.name]
    assert isinstance(other, Measured)
    gap = paired([mine], [other])
    return {
        "place": place, "found_ms": mine.tpot_ms, "best": best.name, "best_ms": other.tpot_ms,
        "ratio": mine.tpot_ms / other.tpot_ms, "difference_ms": gap.mean_ms,
        "error_ms": gap.error_ms, "clear": gap.clear, "run": mine.run_id,
    }  # fmt: skip


def _tpot(run: Measured | Refused) -> float:
    return run.tpot_ms if isinstance(run, Measured) else math.inf


def _everywhere(
    outcome: Outcome, search: Search, known: Sequence[Candidate],
    progress: Callable[[int, int], None],
) -> None:  # fmt: skip
    place, found = outcome.place, outcome.found
    assert found is not None
    spec = place.question.spec(BASE, {}, 1, place.seeds.validation)
    questions = [
        *held_out(
            place.question, spec.model, spec.machine, spec.workload,
            lambda question: search.possible(found, replace(place, question=question)),
        )
    ]  # fmt: skip
    for number, question in enumerate(questions, 1):
        there = replace(place, question=question)
        runs = search.validated([found, *known], there, lambda done, total: None)
        outcome.places.append(_compared(question.name, found, known, runs))
        progress(number, len(questions))


def _ablation(
    outcome: Outcome, search: Search, runs: Mapping[str, Measured | Refused],
    progress: Callable[[int, int], None],
) -> list[Row]:  # fmt: skip
    """Return the TPOT of the composition with each decision replaced by the published system's."""
    found, best = outcome.found, outcome.best
    assert found is not None
    mine, yours = describe(build(BASE, found.sets)), {**sets_of(best)}
    theirs = runs[best.name]
    if isinstance(theirs, Measured) and build(best.system, best.sets).has_alpha:
        yours["alpha"] = f"{theirs.document['spec']['alpha']:g}"  # it may be the setting's
    changed = []
    for part in (*DECISIONS, *RUNTIME):
        sets = {k: v for k, v in found.sets.items() if not part_of(k, part)}
        sets |= {k: v for k, v in yours.items() if part_of(k, part)}
        if sets != found.sets:
            changed.append((part, Candidate(name=f"with {best.name}'s {part}", system=BASE,
                                            sets=sets, trial=found.trial)))  # fmt: skip
    ran = search.validated([one for _, one in changed], outcome.place, progress)
    own, rows = runs[found.name], []
    assert isinstance(own, Measured)
    for part, one in changed:
        run = ran[one.name]
        row: Row = {"decision": part, "found": mine[part], "published": yours.get(part, "")}
        if isinstance(run, Refused):
            rows.append(row | {"refused": run.why})
        else:
            rows.append(row | {"tpot_ms": run.tpot_ms, "change": run.tpot_ms / own.tpot_ms - 1})
    return rows


def sets_of(one: Candidate) -> Sets:
    """Return a published system's decisions, and those options that differ from their defaults.

    Of options of the system itself, those that a composition may change.
    """
    system = build(one.system, one.sets)
    said = describe(system)
    found = {name: said[name] for name in RUNTIME}
    for decision in DECISIONS:
        policy = system.policies[decision]
        found[decision] = said[decision]
        plain = type(policy)()
        for option in options_of(type(policy)):
            if getattr(policy, option) != getattr(plain, option):
                found[f"{decision}.{option}"] = said[f"{decision}.{option}"]
    return found


def _bounds(outcome: Outcome, search: Search, progress: Callable[[int, int], None]) -> Row:
    """Return the bounds of a decoded token on prompts of validation, in ms."""
    assert outcome.found is not None
    runs = search.validated([outcome.found], outcome.place, progress, clairvoyant=True)
    run = runs[outcome.found.name]
    if isinstance(run, Refused):
        return {"refused": run.why}
    found: Row = dict(run.document["bound"])
    return found


def _live(
    outcome: Outcome, search: Search, runs: Mapping[str, Measured | Refused],
    progress: Callable[[int, int], None],
) -> Row:  # fmt: skip
    """Compute the composition's answers, if routing was recorded: are they the model's own?"""
    place, found = outcome.place, outcome.found
    assert found is not None
    if place.question.routing != "replayed":
        return {}
    (run,) = search.validated([found], place, progress, routing="model").values()
    if isinstance(run, Refused):
        return {"refused": run.why}
    replayed = _tpot(runs[found.name])
    return {
        "tpot_ms": run.tpot_ms, "kl": run.kl, "run": run.run_id,
        "agreement": run.document["accuracy"]["agreement"],
        "as_replayed": abs(run.tpot_ms / replayed - 1) <= SAME_TIME,
    }  # fmt: skip
