"""Trials of a search: kept in a file, and the same whether or not the search was killed."""

import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage

from moebench.harness.search.composition import RUNTIME, Space
from moebench.harness.search.study import REFUSED, RUNS, SETS, SYSTEM, Told, Trials
from moebench.substrate.errors import InputError, UsageError
from moebench.systems.registry import DECISIONS
from moebench.systems.space import policies

CHOSEN = {
    "place": ("by-id", "last-ids"), "route": ("exact",), "assign": ("load", "balanced", "host"),
    "prefetch": ("none", "next-gate"), "admit": ("all", "after-misses"), "evict": ("lru", "score"),
}  # fmt: skip

SPACE = Space(
    by_decision={
        decision: {one.name: one for one in policies()
                   if one.decision == decision and one.name in CHOSEN[decision]}
        for decision in DECISIONS
    },
    lossy=False,
)  # fmt: skip


def opened(file: Path, seed: int = 0) -> Trials:
    return Trials(file, "one", SPACE, 1, seed)


def refused(sets: Mapping[str, str]) -> str | None:
    """Compositions without a prefetch make no sense where the host computes, say."""
    return "no" if sets["assign"] != "load" and sets["prefetch"] == "none" else None


def value(sets: Mapping[str, str]) -> float | None:
    """A made-up objective; some compositions cannot run."""
    if sets["assign"] == "balanced":
        return None
    return float(len(repr(sorted(sets.items()))) + random.Random(repr(sets)).random())


def carried_out(trials: Trials, number: int, jobs: int = 2) -> None:
    while trials.evaluated() < number:
        asked = trials.round(min(jobs, number - trials.evaluated()), refused)
        for one in asked:
            found = value(one.sets)
            told = Told(None, why="no") if found is None else Told([found], runs=["r"])
            trials.tell(one.number, told)


def results(trials: Trials) -> list[Any]:
    return [(one.number, one.user_attrs[SETS], one.values) for one in trials.done()]


def test_only_optunas_warnings_of_experiments_are_silenced(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        opened(tmp_path / "a.db").close()
        warnings.warn("may change", ExperimentalWarning, stacklevel=1)
        warnings.warn("of ours", UserWarning, stacklevel=1)
    assert "may change" not in [str(one.message) for one in seen]
    assert "of ours" in [str(one.message) for one in seen]


@pytest.mark.slow
def test_trials_choose_the_best_more_and_more(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "a.db")) as trials:
        carried_out(trials, 36)
        found = [one.values[0] for one in trials.done()]
    assert sum(found[-10:]) / 10 < sum(found[:10]) / 10


@pytest.mark.slow
def test_one_seed_gives_the_same_trials_and_another_others(tmp_path: Path) -> None:
    found = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        with closing(opened(tmp_path / f"{name}.db", seed)) as trials:
            carried_out(trials, 13)
            found.append(results(trials))
    assert found[0] == found[1] != found[2]


EVICTIONS = Space(
    by_decision={
        **SPACE.by_decision,
        "evict": {one.name: one for one in policies() if one.decision == "evict"},
    },
    lossy=False,
)  # fmt: skip


def without_fifo(sets: Mapping[str, str]) -> str | None:
    return "no" if sets["evict"] == "fifo" else refused(sets)


@pytest.mark.slow
def test_policies_that_no_trial_has_had_come_early_with_their_defaults(tmp_path: Path) -> None:
    names = [*EVICTIONS.by_decision["evict"]]
    assert len(names) > 12
    assert "fifo" in names
    with closing(Trials(tmp_path / "a.db", "one", EVICTIONS, 1, 0)) as trials:
        for _ in range(3 * len(names)):
            for one in trials.round(1, without_fifo):
                trials.tell(one.number, Told([float(len(one.sets["evict"]))]))
        done = trials.done()
        counts = trials.counts()
    tried = {one.user_attrs[SETS]["evict"] for one in done}
    assert tried == {*names} - {"fifo"}  # which was refused, and was given up
    assert counts["refused_before"] < len(done)


def test_a_policys_defaults_are_a_trials_parameters() -> None:
    score = EVICTIONS.by_decision["evict"]["score"]
    numbers = {one.option: one.default for one in score.dimensions if one.searched}
    assert EVICTIONS.defaults("evict", "score") == {
        "evict": "score",
        **{f"evict=score.{name}": value for name, value in numbers.items()},
    }
    # A default outside of the range that is searched is a value of its own.
    assert SPACE.defaults("prefetch", "next-gate")["prefetch=next-gate.experts?"] == "0"


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def killing(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Raise `Killed` before a write to the file: the ``left``-th from now on; 0 is never."""
    left = {"left": 0}

    def before(name: str) -> None:
        own = getattr(RDBStorage, name)

        def written(self: RDBStorage, *given: Any, **more: Any) -> Any:
            if left["left"]:
                left["left"] -= 1
                if not left["left"]:
                    raise Killed
            return own(self, *given, **more)

        monkeypatch.setattr(RDBStorage, name, written)

    for name in ("create_new_trial", "set_trial_user_attr", "set_trial_state_values"):
        before(name)
    return left


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 3])
def test_a_killed_search_ends_with_the_same_trials(
    jobs: int, tmp_path: Path, killing: dict[str, int]
) -> None:
    with closing(opened(tmp_path / "whole.db")) as trials:
        carried_out(trials, 12, jobs)
        whole = results(trials)
    draws, kills = random.Random(jobs), 0
    for _ in range(200):
        killing["left"] = draws.randrange(1, 9)
        trials = opened(tmp_path / "killed.db")
        try:
            carried_out(trials, 12, jobs)
            break
        except Killed:
            kills += 1
        finally:
            killing["left"] = 0
            trials.close()
    assert kills >= 5
    with closing(opened(tmp_path / "killed.db")) as trials:
        assert results(trials) == whole


@pytest.mark.slow
def test_what_is_refused_is_counted_and_not_evaluated(tmp_path: Path) -> None:
    """By the composition itself before a run, and by every third run."""
    with closing(opened(tmp_path / "a.db")) as trials:
        for number in range(24):
            (one,) = trials.round(1, refused)
            trials.tell(one.number, Told([1.0 + number]) if number % 3 else Told(None, why="no"))
        counts = trials.counts()
        assert all(refused(one.user_attrs[SETS]) is None for one in trials.done())
        assert trials.evaluated() == 24
        told = [one.user_attrs.get(REFUSED) for one in trials._kept.get_trials(deepcopy=False)
                if one.user_attrs.get(RUNS) is not None]  # fmt: skip
    assert told == [None if number % 3 else "no" for number in range(24)]
    assert (counts["evaluated"], counts["refused_by_run"]) == (16, 8)
    assert counts["refused_before"] > 0


def test_no_trial_is_returned_where_none_can_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moebench.harness.search.study.TRIES", 4)
    with closing(opened(tmp_path / "a.db")) as trials:
        assert trials.round(2, lambda sets: "never") == []


def test_published_systems_are_trials_once(tmp_path: Path) -> None:
    from moebench.systems.options import build

    system = build("moe-ondemand")
    params = SPACE.params(system)
    assert params is not None
    known = {"moe-ondemand": (params, {}, Told([1.0], runs=["r"])),
             "broken": (params, {}, Told(None))}  # fmt: skip
    with closing(opened(tmp_path / "a.db")) as trials:
        for _ in range(2):
            trials.add_systems(known)
        (one,) = trials.done()
        assert (one.user_attrs[SYSTEM], one.values) == ("moe-ondemand", [1.0])
        assert trials.counts()["evaluated"] == 0


def test_one_process_at_a_time_works_on_a_file(tmp_path: Path) -> None:
    with (
        closing(opened(tmp_path / "a.db")),
        pytest.raises(UsageError, match="another search works on it"),
    ):
        opened(tmp_path / "a.db")
    opened(tmp_path / "a.db").close()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["set_trial_user_attr", "set_trial_state_values"])
def test_a_full_disk_is_one_line_and_nothing_is_lost(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **more: Any) -> Any:
        raise StorageInternalError("commit") from OSError("database or disk is full")

    with closing(opened(tmp_path / "a.db")) as trials:
        carried_out(trials, 2)
        with monkeypatch.context() as patch:
            patch.setattr(RDBStorage, method, full)
            with pytest.raises(InputError) as refused_, trials.errors():
                carried_out(trials, 4)
        assert "database or disk is full); free space" in str(refused_.value)
        assert "\n" not in str(refused_.value)
        carried_out(trials, 4)
        killed = results(trials)
    with closing(opened(tmp_path / "b.db")) as trials:
        carried_out(trials, 4)
        assert results(trials) == killed


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("not SQLite at all, but long enough to be read as a page")
    with pytest.raises(InputError, match="no study of Optuna can be kept there"):
        opened(tmp_path / "a.db")


class Scripted:
    """Draws that take what a test says, and note what they chose from."""

    def __init__(self, parent: int, donor: int, decision: str, draw: float) -> None:
        self._said: list[Any] = [parent, donor, decision]
        self._draw = draw
        self.seeds: list[int] = []
        self.lists: list[list[Any]] = []

    def __call__(self, seed: int) -> "Scripted":
        self.seeds.append(seed)
        return self

    def choice(self, of: list[Any]) -> Any:
        said = self._said.pop(0)
        self.lists.append(of)
        return of[said] if isinstance(said, int) else said

    def random(self) -> float:
        return self._draw


def known_systems(count: int) -> dict[str, Any]:
    """Return systems whose objective is their number: the even ones prefetch, the odd evict so."""
    from moebench.systems.options import build

    found = {}
    for n in range(count):
        sets = {"evict": "score"} if n % 2 else {"prefetch": "next-gate", "prefetch.experts": "3"}
        params = SPACE.params(build("moe-ondemand", sets))
        found[f"s{n}"] = (params, sets, Told([float(n)], runs=[]))
    return dict(reversed(found.items()))


@pytest.mark.parametrize(
    ("count", "decision", "draw", "expected"),
    [
        (13, "prefetch", 0.49, {"evict": "score", "prefetch": "next-gate"}),
        (3, "evict", 0.49, {"evict": "lru", "prefetch": "none"}),
        (3, "place", 0.5, {"evict": "score", "prefetch": "none", "place": "last-ids"}),
    ],
)
def test_every_other_trial_is_a_good_one_with_a_decision_of_another(
    count: int, decision: str, draw: float, expected: dict[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The second best, which evicts by score, with a decision of the third, or one drawn anew."""
    draws = Scripted(1, 2, decision, draw)
    monkeypatch.setattr("moebench.harness.search.study.Random", draws)
    monkeypatch.setattr(Trials, "_untried", lambda self, trials: [])
    with closing(opened(tmp_path / "a.db", seed=9)) as trials:
        trials.add_systems(known_systems(count))
        (one,) = trials.round(1, lambda sets: None)
    assert draws.seeds == [9 * 1_000_003 + count]
    parents, donors, decisions = draws.lists
    assert [one.values[0] for one in parents] == list(range(min(5, count)))
    assert [one.values[0] for one in donors] == list(range(min(10, count)))
    assert decisions == [*SPACE.by_decision, *RUNTIME]
    assert {key: one.sets[key] for key in expected} == expected
    assert one.sets.get("prefetch.experts") == ("3" if expected["prefetch"] != "none" else None)
    assert one.number == count
    if draw < 0.5:
        assert one.sets["place"] == "by-id", "as both have"


def test_a_policy_that_no_trial_has_had_replaces_one_of_a_good_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = Scripted(1, 2, ("admit", "after-misses"), 0.74)
    monkeypatch.setattr("moebench.harness.search.study.Random", draws)
    with closing(opened(tmp_path / "a.db")) as trials:
        trials.add_systems(known_systems(3))
        (one,) = trials.round(1, lambda sets: None)
    # All three systems place by id, load, and admit all; two prefetch, and one evicts by score.
    untried = [
        ("place", "last-ids"), ("assign", "balanced"), ("assign", "host"),
        ("admit", "after-misses"),
    ]  # fmt: skip
    assert sorted(draws.lists[2]) == sorted(untried)
    defaults = {one.option: "null" if one.default is None else str(one.default) for one in
                SPACE.by_decision["admit"]["after-misses"].dimensions if one.searched}  # fmt: skip
    assert {key: value for key, value in one.sets.items() if not key.startswith("admit.")} == {
        "place": "by-id", "route": "exact", "assign": "load", "prefetch": "none",
        "admit": "after-misses", "evict": "score",
    } | {key: one.sets[key] for key in one.sets if key.startswith("evict.")}  # fmt: skip
    assert {key: one.sets[f"admit.{key}"] for key in defaults} == defaults


@pytest.mark.parametrize("systems", [1, 2])
def test_other_trials_are_left_to_the_sampler(
    systems: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an even number of trials, and as long as there are no two good ones."""
    draws = Scripted(0, 1, "evict", 0.1)
    monkeypatch.setattr("moebench.harness.search.study.Random", draws)
    with closing(opened(tmp_path / "a.db")) as trials:
        trials.add_systems(known_systems(systems))
        assert len(trials.round(1, lambda sets: None)) == 1
    assert draws.lists == []


def test_samplers_follow_from_the_seed_and_the_number_of_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []

    def sampler(**given: Any) -> TPESampler:
        made.append(given)
        return TPESampler(**given)

    monkeypatch.setattr("moebench.harness.search.study.TPESampler", sampler)
    with closing(opened(tmp_path / "a.db", seed=9000)) as trials:
        trials.add_systems(known_systems(2))
        trials.round(1, lambda sets: None)
    usual = {"n_startup_trials": 10, "multivariate": True, "group": True, "constant_liar": True}
    assert made == [{"seed": (9000 * 1_000_003 + 2) % 2**32, **usual}]
