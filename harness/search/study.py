"""Trials of a search in an SQLite file: a killed search goes on with the trials that it would have.

Every other trial is a good one with one of its decisions exchanged: mostly for a policy that no
trial has had, as long as there is one, else for another good trial's, or drawn anew.  The sampler
(TPE) chooses the rest.

Trials are asked for in rounds of as many as run at once, and their outcomes are told in their
order, when all of a round are known.  The sampler is made anew for each trial, with a seed that
depends on the number of trials before it alone.  So what a trial chooses follows from what the file
holds: a search that is killed at any time and started again ends with the same trials as one that
is not.  One process at a time works on a file.

The sampler works on a copy of the file's trials in memory: it reads all of them for each parameter
that it chooses.  A trial is written to the file at once, when it has been drawn.
"""

import fcntl
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import IO, Any, NamedTuple

import optuna
from optuna.exceptions import StorageInternalError
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FixedTrial, FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from moebench.harness.search.composition import RUNTIME, Sets, Space
from moebench.substrate.errors import InputError, MoeBenchError, UsageError

#: Counted up where the same search would draw other trials: it then begins anew.
VERSION = 3

#: Trials drawn at random before the sampler learns from those that are known.
AT_RANDOM = 10

#: Good trials whose decisions are exchanged, and the share of exchanges: the others draw anew.
PARENTS, EXCHANGED = 10, 0.5

#: Share of such trials that get a policy which no trial has had, and in how many trials that made
#: no sense a policy counts as tried.
UNTRIED, REFUSALS = 0.75, 3

#: Most compositions that cannot run which a trial draws before it is given up.
TRIES = 200

#: Attributes of a trial: its round, its composition, the published system that it is, why it cannot
#: run, whether it was stopped early, and the ids of its runs.
ROUND, SETS, SYSTEM, REFUSED, STOPPED, RUNS = (
    "round", "sets", "system", "refused", "stopped", "runs"
)  # fmt: skip

#: Why a composition cannot run, known without running it; None if it may.
Refusal = Callable[[Sets], str | None]


class Asked(NamedTuple):
    """A trial that is to be evaluated.

    Attributes:
        number: how many trials were drawn before it, those that were refused included.
        sets: its composition.
    """

    number: int
    sets: dict[str, str]


class Told(NamedTuple):
    """The outcome of a trial.

    Attributes:
        values: the objectives, all minimised; None if the composition cannot run.
        why: why it cannot.
        stopped: on its first prompt it was clearly slower than the best one.
        runs: ids of its runs.
    """

    values: Sequence[float] | None
    why: str = ""
    stopped: bool = False
    runs: Sequence[str] = ()


class Trials:
    """The trials of one search.

    Args:
        file: the SQLite file, which is made if it is not there.
        name: tells the search from others in the file; equal searches have equal names.
        objectives: how many values a trial has.
        seed: of all random choices.

    Raises InputError: the file cannot be read or written.
    """

    def __init__(self, file: Path, name: str, space: Space, objectives: int, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self._space, self._seed, self._file = space, seed, file
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._alone = _locked(file)
            self._storage = RDBStorage(f"sqlite:///{file.absolute()}")
            directions = [StudyDirection.MINIMIZE] * objectives
            self._kept = optuna.create_study(
                storage=self._storage, study_name=name, load_if_exists=True, directions=directions
            )
            self._id = self._storage.get_study_id_from_name(name)
            self._drawn = optuna.create_study(directions=directions)  # in memory
            self._drawn.add_trials(self._kept.get_trials(deepcopy=False))
        except MoeBenchError:
            raise
        except Exception as error:
            # SQLAlchemy, Alembic and SQLite raise their own.
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"{file}: no study of Optuna can be kept there ({reason})") from error

    def _sampler(self, number: int) -> TPESampler:
        return TPESampler(
            seed=(self._seed * 1_000_003 + number) % 2**32, n_startup_trials=AT_RANDOM,
            multivariate=True, group=True, constant_liar=True,
        )  # fmt: skip

    def close(self) -> None:
        """Let other processes work on the file."""
        self._alone.close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of the file, such as a full disk, into `InputError`."""
        try:
            yield
        except (StorageInternalError, SQLAlchemyError) as error:
            reason = " ".join(str(error.__cause__ or error).split())[:200]
            raise InputError(
                f"{self._file}: a trial cannot be stored ({reason}); free space, and give the same "
                "command again"
            ) from error

    # ------------------------------------------------------------------ known systems

    def add_systems(self, known: Mapping[str, tuple[Mapping[str, Any], Sets, Told]]) -> None:
        """Add the trials of published systems, once each: parameters, composition and outcome."""
        there = {trial.user_attrs.get(SYSTEM) for trial in self._kept.get_trials(deepcopy=False)}
        for system, (params, sets, told) in known.items():
            if system in there or told.values is None:
                continue
            chosen = FixedTrial(dict(params))  # notes the ranges that the space asks it for
            self._space.suggest(chosen)
            trial = optuna.create_trial(
                params=chosen.params, distributions=chosen.distributions, values=list(told.values),
                user_attrs={SYSTEM: system, SETS: dict(sets), RUNS: list(told.runs)},
            )  # fmt: skip
            for study in (self._kept, self._drawn):
                study.add_trial(trial)

    # ------------------------------------------------------------------ rounds

    def round(self, size: int, refusal: Refusal) -> list[Asked]:
        """Return the trials of the next round, or of one that was begun and not ended.

        Compositions that cannot run are told to the sampler and drawn again.  Fewer trials are
        returned where `TRIES` draws found none that can.
        """
        trials = self._kept.get_trials(deepcopy=False)
        last = max((t.user_attrs.get(ROUND, -1) for t in trials), default=-1)
        of_last = [t for t in trials if t.user_attrs.get(ROUND) == last]
        running = [t for t in of_last if t.state == TrialState.RUNNING]
        told = any(t.state == TrialState.COMPLETE or _failed(t) for t in of_last)
        asked = [Asked(t.number, dict(t.user_attrs[SETS])) for t in running]
        if asked and told:
            return asked  # the round was complete, and some of it is told
        now = last if asked else last + 1
        tries = 0
        while len(asked) < size and tries < TRIES:
            tries += 1
            if (found := self._ask(now, refusal)) is not None:
                asked.append(found)
        return asked

    def _ask(self, now: int, refusal: Refusal) -> Asked | None:
        """Draw a trial, and store it; None if it cannot run."""
        trials = self._drawn.get_trials(deepcopy=False)
        number = len(trials)
        self._drawn.sampler = self._sampler(number)
        if number % 2:
            self._exchange(trials, Random(self._seed * 1_000_003 + number))
        trial = self._drawn.ask()
        sets = self._space.suggest(trial)
        why = refusal(sets)
        said = {SETS: sets} | ({ROUND: now} if why is None else {REFUSED: why})
        for key, value in said.items():
            trial.set_user_attr(key, value)
        if why is not None:
            self._drawn.tell(trial, state=TrialState.PRUNED)
        self._kept.add_trial(self._drawn.get_trials(deepcopy=False)[number])
        return None if why is not None else Asked(number, sets)

    def _exchange(self, trials: Sequence[FrozenTrial], draws: Random) -> None:
        """Let the next trial be a good one with one decision exchanged.

        Decisions are good together: the sampler alone, which models each by itself, changes many at
        once.  A policy that is new to the search begins with its default options.
        """
        done = [t for t in trials if t.state == TrialState.COMPLETE]
        good = sorted(done, key=lambda t: (t.values, t.number))[:PARENTS]
        if len(good) < 2:
            return
        parent, donor = draws.choice(good[: PARENTS // 2]), draws.choice(good)
        untried = self._untried(trials)
        if untried and draws.random() < UNTRIED:
            decision, name = draws.choice(untried)
            params = _without(parent.params, decision) | self._space.defaults(decision, name)
            self._drawn.enqueue_trial(params)
            return
        decision = draws.choice([*self._space.by_decision, *RUNTIME])
        params = _without(parent.params, decision)
        if draws.random() < EXCHANGED:
            params |= {k: v for k, v in donor.params.items() if _is_of(k, decision)}
        self._drawn.enqueue_trial(params)

    def _untried(self, trials: Sequence[FrozenTrial]) -> list[tuple[str, str]]:
        """Return the decisions and names of policies that no trial has had."""
        refused = Counter[tuple[str, str]]()
        tried = set[tuple[str, str]]()
        for trial in trials:
            chosen = {(one, str(trial.params.get(one))) for one in self._space.by_decision}
            if REFUSED in trial.user_attrs and ROUND not in trial.user_attrs:
                refused.update(chosen)
            else:
                tried |= chosen
        every = (
            (decision, name) for decision, of in self._space.by_decision.items() for name in of
        )
        return [one for one in every if one not in tried and refused[one] < REFUSALS]

    def tell(self, number: int, told: Told) -> None:
        """Store a trial's outcome.  The outcomes of a round are told in the order of its trials."""
        trial = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
        for key, value in ((RUNS, list(told.runs)), (STOPPED, told.stopped)):
            self._storage.set_trial_user_attr(trial, key, value)
        if told.values is None:
            self._storage.set_trial_user_attr(trial, REFUSED, told.why)
        for study in (self._kept, self._drawn):
            if told.values is None:
                study.tell(number, state=TrialState.PRUNED)
            else:
                study.tell(number, list(told.values))

    # ------------------------------------------------------------------ what is known

    def done(self) -> list[FrozenTrial]:
        """Return all trials with an outcome, in their order, published systems included."""
        return list(self._kept.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))

    def counts(self) -> dict[str, int]:
        """Return how many trials were evaluated, stopped early, and refused before and by a run."""
        trials = self._kept.get_trials(deepcopy=False)
        own = [t for t in trials if t.state == TrialState.COMPLETE and SYSTEM not in t.user_attrs]
        return {
            "evaluated": len(own),
            "stopped": sum(bool(t.user_attrs.get(STOPPED)) for t in own),
            "refused_before": sum(REFUSED in t.user_attrs and ROUND not in t.user_attrs
                                  for t in trials),
            "refused_by_run": sum(map(_failed, trials)),
        }  # fmt: skip

    def evaluated(self) -> int:
        """Return how many trials have an outcome, compositions that a run refused included."""
        found = self.counts()
        return found["evaluated"] + found["refused_by_run"]


def _is_of(name: str, part: str) -> bool:
    """Whether a trial's parameter is a decision, an option of its policy, or a runtime option."""
    return name == part or name.startswith(f"{part}=")


def _without(params: Mapping[str, Any], part: str) -> dict[str, Any]:
    return {name: value for name, value in params.items() if not _is_of(name, part)}


def _failed(trial: FrozenTrial) -> bool:
    """Whether a trial's run refused its composition."""
    return trial.state == TrialState.PRUNED and ROUND in trial.user_attrs


def _locked(file: Path) -> IO[bytes]:
    """Return the open lock file beside a study's file, which no other process holds.

    Raises UsageError: another search works on the study.
    """
    lock = file.with_suffix(".lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise UsageError(
            f"{file}: another search works on it; wait for it, or give another --store"
        ) from error
    return lock
