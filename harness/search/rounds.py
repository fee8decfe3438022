"""The stages of a search: published systems, trials, and a validation on other prompts.

published   every system, on the two batches of the search
trials      compositions; clearly slower than the best on the first batch: not run on the second
validation  the best of both on `VALIDATED` batches that the search has not seen
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from moebench.harness.search.composition import BASE, Sets, Space, part_of, refusal
from moebench.harness.search.evaluation import Evaluator, Measured, Refused, paired
from moebench.harness.search.question import VALIDATED, Question, Seeds
from moebench.harness.search.study import SETS, STOPPED, SYSTEM, Asked, Told, Trials
from moebench.results.spec import RunSpec
from moebench.substrate.errors import MoeBenchError
from moebench.systems.options import build

#: How many compositions and how many published systems are validated.
VALIDATED_FOUND, VALIDATED_KNOWN = 6, 4

#: What is said while a search goes on: a line.
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A published system, or a composition.

    Attributes:
        name: the system's name, or ``trial 17``.
        system, sets: as of a run.
        trial: the number of its trial; None for a published system.
    """

    name: str
    system: str
    sets: Sets = field(default_factory=dict)
    trial: int | None = None

    @property
    def published(self) -> bool:
        """Whether it is a system of the registry, or the user's own."""
        return self.trial is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A question with the seeds of its prompts, and the best published time there."""

    question: Question
    seeds: Seeds


class Search:
    """One search: over one place, or for one rule over several.

    Args:
        limit: the largest KL divergence in nats a token of what is looked for; None asks for
            lossless compositions, and measures none.
    """

    def __init__(
        self, places: Sequence[Place], evaluator: Evaluator, limit: float | None, say: Say
    ) -> None:
        self.places, self._evaluator, self.limit, self._say = places, evaluator, limit, say
        #: Runs of candidates on the batches of the search, by name and place.
        self._runs: dict[tuple[str, str], list[Measured]] = {}
        #: Published candidates that ran in every place.
        self._everywhere: list[Candidate] = []
        #: For each place the fastest published candidate, whose times are the unit of objectives.
        self.best: dict[str, Candidate] = {}

    # ------------------------------------------------------------------ published systems

    def published(
        self, systems: Sequence[Candidate], progress: Callable[[int, int], None]
    ) -> dict[str, str]:  # fmt: skip
        """Run systems on the batches of the search; return why some cannot be, by name.

        Raises MoeBenchError: none can be.
        """
        asked = [(one, place) for place in self.places for one in systems]
        specs = [self._spec(one, place, seed) for one, place in asked
                 for seed in place.seeds.search]  # fmt: skip
        found = iter(self._evaluator.run(specs, progress))
        refused: dict[str, str] = {}
        for one, place in asked:
            pair = [next(found) for _ in place.seeds.search]
            why = next((run.why for run in pair if isinstance(run, Refused)), None)
            if why is not None:
                refused[one.name] = why
                continue
            self._runs[one.name, place.question.name] = [
                run for run in pair if isinstance(run, Measured)
            ]
        for place in self.places:
            name = place.question.name
            possible = [one for one in systems if self.within(one.name, name)]
            if not possible:
                why = next(iter(refused.values()), "no system was given")
                raise MoeBenchError(f"{name}: no published system can be compared with: {why}")
            self.best[name] = min(possible, key=lambda one: self.tpot(one.name, name))
        self._everywhere = [
            one for one in systems if all(self.within(one.name, place) for place in self.best)
        ]
        return refused

    def _allowed(self, runs: Sequence[Measured]) -> bool:
        return self.limit is None or max(run.kl or 0.0 for run in runs) <= self.limit

    def within(self, name: str, place: str) -> bool:
        """Whether a candidate ran in a place, and within the limit."""
        return (name, place) in self._runs and self._allowed(self._runs[name, place])

    def tpot(self, name: str, place: str) -> float:
        """Return a candidate's mean TPOT in ms on the batches of the search."""
        return mean(run.tpot_ms for run in self._runs[name, place])

    def ratio(self, name: str) -> float:
        """Return the geometric mean over places of a candidate's TPOT over the best published."""
        product = 1.0
        for place, best in self.best.items():
            product *= self.tpot(name, place) / self.tpot(best.name, place)
        return float(product ** (1 / len(self.best)))

    def values(self, name: str) -> list[float]:
        """Return a candidate's objectives: the ratio of `ratio`, and with a limit its KL."""
        found = [self.ratio(name)]
        if self.limit is not None:
            found.append(max(run.kl or 0.0 for place in self.best
                             for run in self._runs[name, place]))  # fmt: skip
        return found

    def seeded(self, systems: Sequence[Candidate], space: Space, trials: Trials) -> None:
        """Add published systems to the trials, those that consist of decisions of the space."""
        known: dict[str, tuple[Mapping[str, Any], Sets, Told]] = {}
        for one in systems:
            if not all((one.name, place) in self._runs for place in self.best):
                continue
            params = space.params(build(one.system, one.sets))
            if params is not None:
                runs = [run.run_id for place in self.best for run in self._runs[one.name, place]]
                known[one.name] = (params, one.sets, Told(self.values(one.name), runs=runs))
        trials.add_systems(known)

    # ------------------------------------------------------------------ trials

    def run(
        self, trials: Trials, number: int, until_s: float, jobs: int,
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        """Evaluate trials until there are ``number``, or until a time of the monotonic clock."""
        done = trials.evaluated()
        progress(min(done, number), number)
        while done < number and time.monotonic() < until_s:
            asked = trials.round(min(jobs, number - done), self._refusal)
            if not asked:
                self._say("no further composition that can run was drawn")
                return
            leader = self._leader(trials)
            for one, told in zip(asked, self._evaluate(asked, leader), strict=True):
                trials.tell(one.number, told)
                self._announce(one, told, leader)
            done = trials.evaluated()
            progress(min(done, number), number)

    def _refusal(self, sets: Sets) -> str | None:
        """Return why a composition cannot run, as far as that is known without a run."""
        why, one = refusal(sets, self.limit is not None), candidate(0, sets)
        for place in self.places:
            why = why or self._problem(one, place, 1)
        return why

    def possible(self, one: Candidate, place: Place) -> bool:
        """Whether a candidate can run in a place, as far as that is known without a run."""
        return self._problem(one, place, 1) is None

    def _problem(self, one: Candidate, place: Place, batches: int) -> str | None:
        """Return why a candidate cannot run in a place, as far as that is known without a run."""
        spec = self._spec(one, place, place.seeds.search[0], batches)
        return spec.why if isinstance(spec, Refused) else self._evaluator.problem(spec)

    def _announce(self, one: Asked, told: Told, leader: Candidate | None) -> None:
        if told.values is None or told.stopped or not self._holds(told.values):
            return
        if leader is None or told.values[0] < self.ratio(leader.name):
            self._say(f"trial {one.number}: {told.values[0]:.3f} of the best published TPOT")

    def _holds(self, values: Sequence[float]) -> bool:
        return self.limit is None or values[1] <= self.limit

    def _leader(self, trials: Trials) -> Candidate | None:
        """Return the best candidate so far, whose tokens others are compared with.

        Its runs are in the store, if it is of a search that goes on.  None if no published system
        ran in every place, and no composition yet.
        """
        own = [one for one in self.ranked(trials) if not one.published][:1]
        candidates = [one for one in (*own, *self._everywhere) if self._load(one)]
        return min(candidates, key=lambda one: self.ratio(one.name), default=None)

    def _load(self, one: Candidate) -> bool:
        """Take a candidate's runs from the store; return whether it can run."""
        missing = [p for p in self.places if (one.name, p.question.name) not in self._runs]
        for place in missing:
            found = self._evaluator.run([self._spec(one, place, s) for s in place.seeds.search])
            pair = [run for run in found if isinstance(run, Measured)]
            if len(pair) < len(found):
                return False
            self._runs[one.name, place.question.name] = pair
        return True

    def _evaluate(self, asked: Sequence[Asked], leader: Candidate | None) -> Iterator[Told]:
        """Yield the outcomes of a round: first batches of all, then second ones of those left."""
        candidates = [candidate(one.number, one.sets) for one in asked]
        runs: list[dict[str, list[Measured]]] = [{} for _ in asked]
        told: list[Told | None] = [None] * len(asked)
        for batch in (0, 1):
            open_ = [i for i, outcome in enumerate(told) if outcome is None]
            specs = [self._spec(candidates[i], place, place.seeds.search[batch])
                     for i in open_ for place in self.places]  # fmt: skip
            found = iter(self._evaluator.run(specs))
            for i in open_:
                ran = {place.question.name: next(found) for place in self.places}
                why = [run.why for run in ran.values() if isinstance(run, Refused)]
                if why:
                    told[i] = Told(None, why=why[0])
                    continue
                for name, run in ran.items():
                    assert isinstance(run, Measured)
                    runs[i].setdefault(name, []).append(run)
                if batch == 0 and leader is not None and self._loses(runs[i], leader):
                    told[i] = Told(self._estimate(runs[i], leader), stopped=True,
                                   runs=_ids(runs[i]))  # fmt: skip
        for one, of_trial, outcome in zip(candidates, runs, told, strict=True):
            if outcome is None:
                for name, pair in of_trial.items():
                    self._runs[one.name, name] = pair
                outcome = Told(self.values(one.name), runs=_ids(of_trial))
            yield outcome

    def _loses(self, runs: Mapping[str, list[Measured]], leader: Candidate) -> bool:
        """Whether a trial is clearly slower than the leader on the first batch of every place.

        With a limit, only if it is also no nearer to the model.
        """
        for name, first in runs.items():
            other = self._runs[leader.name, name][:1]
            if self.limit is not None and (first[0].kl or 0.0) < (other[0].kl or 0.0):
                return False
            gap = paired(first, other)
            if not (gap.clear and gap.mean_ms > 0):
                return False
        return True

    def _estimate(self, runs: Mapping[str, list[Measured]], leader: Candidate) -> list[float]:
        """Return objectives of a stopped trial: the leader's, scaled by the first batch."""
        product = 1.0
        for name, first in runs.items():
            product *= first[0].tpot_ms / self._runs[leader.name, name][0].tpot_ms
        found = [self.ratio(leader.name) * float(product ** (1 / len(runs)))]
        if self.limit is not None:
            found.append(max(first[0].kl or 0.0 for first in runs.values()))
        return found

    # ------------------------------------------------------------------ what comes of it

    def ranked(self, trials: Trials) -> list[Candidate]:
        """Return evaluated candidates within the limit, fastest first; equally fast ones once."""
        found: dict[str, tuple[float, int, Candidate]] = {}
        for trial in trials.done():
            if trial.user_attrs.get(STOPPED) or not self._holds(trial.values):
                continue
            system = trial.user_attrs.get(SYSTEM)
            sets = trial.user_attrs[SETS]
            one = candidate(trial.number, sets) if system is None else Candidate(
                name=system, system=system, sets=sets)  # fmt: skip
            key = repr(trial.values)  # equal to the last digit: they decide alike
            entry = (trial.values[0], trial.number, one)
            if key not in found or entry[:2] < found[key][:2]:
                found[key] = entry
        return [one for _, _, one in sorted(found.values(), key=lambda entry: entry[:2])]

    def fastest(self, trials: Trials, place: str) -> list[Candidate]:
        """Return the composition that is the fastest in one place; empty if none was evaluated."""
        own = [one for one in self.ranked(trials) if not one.published and self._load(one)]
        return sorted(own, key=lambda one: self.tpot(one.name, place))[:1]

    def simplified(self, one: Candidate) -> Candidate:
        """Return a composition without the decisions and options that gain nothing.

        Each is left to the base in turn, and stays so if no objective on the batches of the search
        is worse.
        """
        if not self._load(one):
            return one
        sets, values = dict(one.sets), self.values(one.name)
        decisions = [key for key in sets if "." not in key]
        options = [key for key in sets if "." in key]
        for key in (*decisions, *options):
            fewer = {k: v for k, v in sets.items() if not part_of(k, key)}
            if fewer == sets or self._refusal(fewer) is not None:
                continue
            other = replace(one, name=f"{one.name}: {sorted(fewer.items())}", sets=fewer)
            if self._load(other):
                found = self.values(other.name)
                if all(new <= old for new, old in zip(found, values, strict=True)):
                    sets, values = fewer, found
        if sets == one.sets:
            return one
        simple = replace(one, name=f"{one.name}, simplified", sets=sets)
        return simple if self._load(simple) else one

    def validated(
        self, candidates: Sequence[Candidate], place: Place, progress: Callable[[int, int], None],
        **more: Any,
    ) -> dict[str, Measured | Refused]:  # fmt: skip
        """Return the runs of candidates on the prompts of validation, by name.

        Recordings may hold fewer prompts: as many whole batches as there are, for those candidates
        that can run.
        """
        batches = next(
            (n for n in range(VALIDATED, 1, -1)
             if any(self._problem(one, place, n) is None for one in candidates)),
            1,
        )  # fmt: skip
        specs = [self._spec(one, place, place.seeds.validation, batches, **more)
                 for one in candidates]  # fmt: skip
        found = self._evaluator.run(specs, progress)
        return {one.name: run for one, run in zip(candidates, found, strict=True)}

    def _spec(
        self, one: Candidate, place: Place, seed: int, batches: int = 1, **more: Any
    ) -> RunSpec | Refused:
        try:
            return place.question.spec(one.system, one.sets, batches, seed, **more)
        except MoeBenchError as error:
            return Refused(str(error))


def candidate(number: int, sets: Sets) -> Candidate:
    """Return the composition of a trial."""
    return Candidate(name=f"trial {number}", system=BASE, sets=sets, trial=number)


def mean(values: Iterator[float]) -> float:
    """Return the mean of numbers."""
    found = list(values)
    return sum(found) / len(found)


def _ids(runs: Mapping[str, Sequence[Measured]]) -> list[str]:
    return [run.run_id for of_place in runs.values() for run in of_place]
