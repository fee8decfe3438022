"""One search from its questions to its outcome: what `moebench search` does."""

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from moebench.harness.run.identity import code_hash
from moebench.harness.search.composition import BASE, RUNTIME, Sets, Space, space_of
from moebench.harness.search.evaluation import Evaluator
from moebench.harness.search.outcome import Outcome, Row, validate
from moebench.harness.search.question import Question, seeds_of
from moebench.harness.search.rounds import Candidate, Place, Search
from moebench.harness.search.study import STOPPED, SYSTEM, VERSION, Trials
from moebench.harness.sweep.pool import Workers
from moebench.results.searches import FOLDER
from moebench.substrate.errors import MoeBenchError, UsageError
from moebench.systems.options import build
from moebench.systems.registry import SYSTEMS

#: The file of all trials in a store's folder of searches.
TRIALS = "trials.db"

#: Shows the progress of a piece of work by its name; yields a function of done and total.
Shown = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of a search.

    Attributes:
        questions: the places; with several, one composition is looked for that is good in all.
        systems: published systems, and systems of the user's own, that it is compared with.
        trials, hours: when it ends, whichever is first.
        jobs: trials of a round.
        limit: the largest KL divergence in nats a token; None looks for lossless compositions.
        learned: whether policies that train networks are among those chosen.
        seed: of prompts and of random choices.
    """

    questions: Sequence[Question]
    systems: Sequence[str]
    trials: int
    hours: float = inf
    jobs: int = 1
    limit: float | None = None
    learned: bool = False
    seed: int = 0

    @property
    def name(self) -> str:
        """The name of the search's trials: equal for what gives the same trials."""
        said = {
            "questions": [[one.name, sorted(one.given.items()), str(one.data_dir)]
                          for one in self.questions],
            "systems": list(self.systems), "limit": self.limit, "learned": self.learned,
            "seed": self.seed, "jobs": self.jobs, "code": code_hash(),
            "version": VERSION, "runtime": dict(RUNTIME),
        }  # fmt: skip
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a search.

    Attributes:
        outcomes: one for each place.
        systems: TPOT of published systems on the prompts of the search, by place.
        refused: published systems that cannot be run, and why.
        counts: trials that were evaluated, stopped and refused.
        history: for each evaluated trial its number and objectives.
        seconds: wall time of the search.
    """

    request: Request
    outcomes: Sequence[Outcome]
    systems: Sequence[Row]
    refused: Row
    counts: dict[str, int]
    history: Sequence[Row] = field(default_factory=list)
    seconds: float = 0.0

    def document(self) -> dict[str, Any]:
        """Return the result as JSON."""
        request = self.request
        return {
            "search": request.name, "limit_kl": request.limit, "trials": self.counts,
            "seconds": round(self.seconds, 1), "systems": list(self.systems),
            "refused": self.refused, "history": list(self.history),
            "places": [_document(one) for one in self.outcomes],
        }  # fmt: skip

    def rule(self) -> Candidate | None:
        """Return the composition that was found, in the first place."""
        return self.outcomes[0].found


def _document(one: Outcome) -> dict[str, Any]:
    found = one.found
    return {
        "place": one.place.question.name, "verdict": one.verdict, "better": one.better,
        "best_published": one.best.name, "ratio": one.ratio,
        "probability_faster": one.probability,
        "found": None if found is None else {"name": found.name, "set": dict(found.sets)},
        "seeds": dataclasses.asdict(one.place.seeds), "validation": one.rows,
        "held_out": one.places, "ablation": one.ablation, "bound": one.bounds, "live": one.live,
        "regret": one.regret,
    }  # fmt: skip


def systems_of(names: Sequence[str], own: str | None) -> list[str]:
    """Return the systems that are compared with: of the registry, and one of the user's own.

    ``all`` leaves out bounds that know the future, and what needs everything on the device.

    Raises MoeBenchError: a system that does not exist, or that knows the future.
    """
    found = [one for name in names for one in (_comparable() if name == "all" else [name])]
    chosen = list(dict.fromkeys([*found, *([own] if own else [])]))
    for name in chosen:
        if build(name).clairvoyant:
            raise UsageError(f"--systems {name}: it knows the future, which no composition can")
    return chosen


def _comparable() -> list[str]:
    built = {name: build(name) for name in SYSTEMS}
    return [name for name, one in built.items() if not (one.clairvoyant or one.all_resident)]


def search(
    request: Request, directory: Path, data_dir: Path | None, workers: Workers,
    shown: Shown, say: Callable[[str], None],
) -> Result:  # fmt: skip
    """Carry out a search, or go on with it.

    Args:
        directory: the store's folder, which holds runs and trials.
        workers: run trials.
        shown: shows progress.
        say: told of each better composition, in a line.

    Raises MoeBenchError: no published system can be compared with, or the store cannot be used.
    """
    began = time.monotonic()
    until_s = began + request.hours * 3600
    with shown("drawing prompts"):
        places = [Place(question=q, seeds=seeds_of(q, request.seed)) for q in request.questions]
    systems = [Candidate(name=name, system=name) for name in request.systems]
    with ExitStack() as stack:
        stack.enter_context(closing(workers))
        evaluator = Evaluator(data_dir, directory, workers)
        of_all = Search(places, evaluator, request.limit, say)
        possible, refused = _possible(systems, request), _lossy(systems, request)
        if not possible:
            raise UsageError(f"--systems {request.systems[0]}: {refused[request.systems[0]]}")
        with shown("published systems") as progress:
            refused |= of_all.published(possible, progress)
        with shown("policies") as progress:
            space = _space(places, evaluator, request, progress)
        trials = stack.enter_context(
            closing(
                Trials(
                    directory / FOLDER / TRIALS, request.name, space,
                    1 if request.limit is None else 2, request.seed,
                )
            )
        )  # fmt: skip
        with trials.errors():
            of_all.seeded(possible, space, trials)
        with shown("trials") as progress, trials.errors():
            of_all.run(trials, request.trials, until_s, request.jobs, progress)

        def counting(what: str) -> Callable[[int, int], None]:
            say(what)
            return lambda done, total: None

        outcomes = [validate(of_all, trials, place, possible, counting) for place in places]
        known = [
            {"place": place.question.name, "name": one.name,
             "tpot_ms": of_all.tpot(one.name, place.question.name)}
            for place in places for one in possible if of_all.within(one.name, place.question.name)
        ]  # fmt: skip
        return Result(
            request=request, outcomes=outcomes, systems=known, refused=refused,
            counts=trials.counts(), history=_history(trials), seconds=time.monotonic() - began,
        )  # fmt: skip


def _possible(systems: Sequence[Candidate], request: Request) -> list[Candidate]:
    """Return the systems that a search may be compared with: lossless ones, or all with a limit."""
    return [one for one in systems if request.limit is not None or build(one.system).lossless]


def _lossy(systems: Sequence[Candidate], request: Request) -> Row:
    return {
        one.name: "it changes the model's output; give --kl" for one in systems
        if request.limit is None and not build(one.system).lossless
    }  # fmt: skip


def _space(
    places: Sequence[Place], evaluator: Evaluator, request: Request,
    progress: Callable[[int, int], None],
) -> Space:  # fmt: skip
    def usable(sets: Sets) -> bool:
        for place in places:
            try:
                spec = place.question.spec(BASE, sets, 1, place.seeds.search[0])
            except MoeBenchError:
                return False
            if evaluator.problem(spec) is not None:
                return False
        return True

    return space_of(usable, request.limit is not None, request.learned, progress)


def _history(trials: Trials) -> list[Row]:
    return [
        {
            "trial": one.number,
            "values": one.values,
            "system": one.user_attrs.get(SYSTEM),
            "stopped": bool(one.user_attrs.get(STOPPED)),
        }
        for one in trials.done()
    ]


def jobs_here(jobs: int | None) -> int:
    """Return how many trials run at once on this computer: one a core, unless it is given."""
    return os.cpu_count() or 1 if jobs is None else max(1, jobs)
