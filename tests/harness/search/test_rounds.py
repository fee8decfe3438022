"""The stages of a search, on made-up runs: what is run, what is stopped, what is best."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.harness.search import rounds
from moebench.harness.search.evaluation import Measured, Refused
from moebench.harness.search.outcome import validate
from moebench.harness.search.question import Question, Seeds
from moebench.harness.search.rounds import Candidate, Place, Search
from moebench.harness.search.study import STOPPED, Told, Trials
from moebench.results.spec import RunSpec
from moebench.substrate.errors import MoeBenchError, UsageError
from tests.harness.search import stages
from tests.harness.search.test_study import SPACE

#: Ms a token by eviction; whatever else a composition has changes nothing.
SPEED = {"lru": 10.0, "score": 12.0}
S1 = Place(question=Question(name="S1", given={"setting": "S1"}), seeds=Seeds((0, 1), 2))
S3 = Place(question=Question(name="S3", given={"setting": "S3"}), seeds=Seeds((0, 1), 2))


class MadeUp:
    """An evaluator whose runs take what ``speed`` says of a spec, with noise of its prompts."""

    def __init__(self, speed: Callable[[RunSpec], float | None], kl: float = 0.0) -> None:
        self.speed, self.kl = speed, kl
        self.ran: list[RunSpec] = []

    def run(self, specs: Sequence[RunSpec | Refused], progress: Any = None) -> list[Any]:
        return [self._one(spec) for spec in specs]

    def problem(self, spec: RunSpec) -> str | None:
        return None

    def _one(self, spec: RunSpec | Refused) -> Measured | Refused:
        if isinstance(spec, Refused):
            return spec
        self.ran.append(spec)
        ms = self.speed(spec)
        if ms is None:
            return Refused("no room")
        noise = np.random.default_rng(spec.seed).lognormal(0, 0.3, 64)
        token_ns = ms * 1e6 * noise / noise.mean()
        document = {
            "run_id": f"{spec.seed}-{spec.setting}-{ms}", "accuracy": {"kl": self.kl},
            "metrics": {"tpot_ms": {"mean": ms}, "peak_device_bytes": 1e9},
        }  # fmt: skip
        return Measured(document, token_ns)


def speed(spec: RunSpec) -> float | None:
    """LRU is faster than the score; a host that computes everything finds no room."""
    if spec.overrides.get("assign") == "host":
        return None
    if spec.system != "moe-ondemand":
        return 11.0
    return SPEED[spec.overrides.get("evict", "lru")] - 0.5 * ("prefetch" in spec.overrides)


SYSTEMS = [Candidate(name=name, system=name) for name in ("lfru", "moe-ondemand")]


@pytest.fixture
def trials(tmp_path: Path) -> Iterator[Trials]:
    with closing(Trials(tmp_path / "a.db", "one", SPACE, 1, 0)) as found:
        yield found


def searched(
    trials: Trials, evaluator: MadeUp, number: int = 24, places: Sequence[Place] = (S1,),
    limit: float | None = None,
) -> Search:  # fmt: skip
    search = Search(places, evaluator, limit, lambda line: None)  # type: ignore[arg-type]
    search.published(SYSTEMS, lambda done, total: None)
    search.seeded(SYSTEMS, SPACE, trials)
    evaluator.ran.clear()
    search.run(trials, number, time.monotonic() + 600, 2, lambda done, total: None)
    return search


@pytest.mark.slow
def test_objectives_are_ratios_to_the_best_published_system(trials: Trials) -> None:
    search = searched(trials, MadeUp(speed), 12)
    assert search.best["S1"].name == "moe-ondemand"
    for one in trials.done():
        evict = one.user_attrs["sets"].get("evict", "lru")
        if "system" not in one.user_attrs and not one.user_attrs[STOPPED]:
            assert one.values[0] in (SPEED[evict] / 10, (SPEED[evict] - 0.5) / 10)


@pytest.mark.slow
def test_what_is_slower_on_the_first_batch_is_not_run_on_the_second(trials: Trials) -> None:
    evaluator = MadeUp(speed)
    searched(trials, evaluator)
    done = [one for one in trials.done() if "system" not in one.user_attrs]
    stopped = [one for one in done if one.user_attrs[STOPPED]]
    assert stopped
    assert len(stopped) < len(done)
    slow = [one for one in done if one.user_attrs["sets"].get("evict") == "score"]
    assert {one.number for one in slow} <= {one.number for one in stopped}
    seconds = sum(spec.seed == 1 for spec in evaluator.ran)
    assert seconds == len(done) - len(stopped)
    assert all(one.values[0] > 1 for one in stopped if one in slow)


@pytest.mark.slow
def test_compositions_that_a_run_refuses_are_counted(trials: Trials) -> None:
    searched(trials, MadeUp(speed))
    assert trials.counts()["refused_by_run"] > 0
    assert trials.evaluated() == 24


@pytest.mark.slow
def test_the_fastest_come_first_and_equal_ones_once(trials: Trials) -> None:
    search = searched(trials, MadeUp(speed), 30)
    found = search.ranked(trials)
    values = [search.ratio(one.name) for one in found if not one.published]
    assert values == sorted(values)
    assert len(values) == len({*values})
    assert "prefetch" in found[0].sets
    assert found[0].sets.get("evict", "lru") == "lru"


@pytest.mark.slow
def test_one_rule_is_judged_in_all_places(trials: Trials) -> None:
    def by_place(spec: RunSpec) -> float | None:
        found = speed(spec)
        return found if found is None or spec.setting == "S1" else 2 * found**2

    search = searched(trials, MadeUp(by_place), 10, (S1, S3))
    for one in search.ranked(trials):
        ratios = [search.tpot(one.name, p) / search.tpot(search.best[p].name, p)
                  for p in ("S1", "S3")]  # fmt: skip
        assert search.ratio(one.name) == pytest.approx((ratios[0] * ratios[1]) ** 0.5)


@pytest.mark.slow
def test_the_fastest_trial_of_a_place_need_not_be_the_rule(trials: Trials) -> None:
    """The last ids are a quarter faster in S3, and 5 % slower in S1."""

    def by_place(spec: RunSpec) -> float | None:
        found = speed(spec)
        last = spec.overrides.get("place") == "last-ids"
        return found if found is None or not last else found * (1.05, 0.75)[spec.setting == "S3"]

    search = searched(trials, MadeUp(by_place), 12, (S1, S3))
    for place, first in (("S1", "by-id"), ("S3", "last-ids")):
        (one,) = search.fastest(trials, place)
        assert one.sets["place"] == first
        own = [other for other in search.ranked(trials) if not other.published]
        assert search.tpot(one.name, place) == min(search.tpot(o.name, place) for o in own)


def test_without_a_published_system_there_is_nothing_to_beat() -> None:
    search = Search([S1], MadeUp(lambda spec: None), None, lambda line: None)  # type: ignore[arg-type]
    with pytest.raises(MoeBenchError, match="no published system can be compared with: no room"):
        search.published(SYSTEMS, lambda done, total: None)


def test_a_limit_excludes_systems_beyond_it() -> None:
    far = Search([S1], MadeUp(speed, kl=0.5), 0.1, lambda line: None)  # type: ignore[arg-type]
    with pytest.raises(MoeBenchError, match="no published system"):
        far.published(SYSTEMS, lambda done, total: None)
    near = Search([S1], MadeUp(speed, kl=0.05), 0.1, lambda line: None)  # type: ignore[arg-type]
    assert near.published(SYSTEMS, lambda done, total: None) == {}
    assert near.values("lfru") == [1.1, 0.05]


def test_time_ends_a_search(trials: Trials) -> None:
    search = Search([S1], MadeUp(speed), None, lambda line: None)  # type: ignore[arg-type]
    search.published(SYSTEMS, lambda done, total: None)
    search.run(trials, 5, time.monotonic() - 1, 1, lambda done, total: None)
    assert trials.evaluated() == 0


@pytest.mark.parametrize(("held", "read"), [(9, 5), (4, 4), (1, 1)])
def test_recordings_with_few_prompts_are_read_as_far_as_they_go(held: int, read: int) -> None:
    evaluator = MadeUp(speed)
    evaluator.problem = (  # type: ignore[method-assign]
        lambda spec: "too few" if spec.prompts > held else None
    )
    search = Search([S1], evaluator, None, lambda line: None)  # type: ignore[arg-type]
    runs = search.validated(SYSTEMS, S1, lambda done, total: None)
    assert {*runs} == {"lfru", "moe-ondemand"}
    assert {spec.prompts for spec in evaluator.ran} == {read}
    assert {spec.seed for spec in evaluator.ran} == {S1.seeds.validation}


@pytest.mark.slow
def test_decisions_that_gain_nothing_are_left_out(trials: Trials) -> None:
    """Only the eviction and the prefetch change a made-up run's time."""
    search = searched(trials, MadeUp(speed), 4)
    sets = {"evict": "lru", "prefetch": "next-gate", "prefetch.experts": "3", "place": "last-ids",
            "place.equal_layers": "true", "assign": "balanced", "scope": "layer"}  # fmt: skip
    one = Candidate(name="trial 9", system="moe-ondemand", sets=sets, trial=9)
    found = search.simplified(one)
    assert found.sets == {"prefetch": "next-gate"}
    assert found.name == "trial 9, simplified"
    assert search.tpot(found.name, "S1") == search.tpot("trial 9", "S1")
    assert search.simplified(found) is found


@pytest.mark.slow
def test_a_system_that_runs_in_one_place_alone_is_beaten_there(trials: Trials) -> None:
    """The best one of S1 cannot run in S3, and the other one cannot in S1."""

    def by_place(spec: RunSpec) -> float | None:
        if spec.system == "lfru" or "evict" not in spec.overrides:
            possible = (spec.system == "lfru") == (spec.setting == "S1")
            return 11.0 if possible else None
        return speed(spec)

    search = searched(trials, MadeUp(by_place), 8, (S1, S3))
    assert {place: one.name for place, one in search.best.items()} == {
        "S1": "lfru", "S3": "moe-ondemand",
    }  # fmt: skip
    assert trials.evaluated() == 8
    assert all(search.ratio(one.name) > 0 for one in search.ranked(trials))


def test_published_systems_beyond_the_limit_on_new_prompts_are_one_line(tmp_path: Path) -> None:
    evaluator = MadeUp(speed, kl=0.05)
    search = Search([S1], evaluator, 0.1, lambda line: None)  # type: ignore[arg-type]
    search.published(SYSTEMS, lambda done, total: None)
    evaluator.kl = 0.5
    with (
        closing(Trials(tmp_path / "a.db", "one", SPACE, 2, 0)) as trials,
        pytest.raises(UsageError, match=r"--kl 0\.1: on new prompts no published system of S1"),
    ):
        validate(search, trials, S1, SYSTEMS, lambda what: lambda done, total: None)
    evaluator.kl = 0.05
    with closing(Trials(tmp_path / "a.db", "one", SPACE, 2, 0)) as trials:
        found = validate(search, trials, S1, SYSTEMS, lambda what: lambda done, total: None)
    assert found.best.name == "moe-ondemand"
    assert found.found is None


# ------------------------------------------------------------------------------ by hand


def ms_of(spec: RunSpec) -> tuple[float, float] | str:
    """The base takes 10 ms; a host 12, a prefetch 9, both 20; LFRU 11; balanced has no room."""
    if spec.system == "lfru":
        return 11.0, 0.0
    sets = spec.overrides
    if sets.get("assign") == "balanced":
        return "no room"
    ms = 12.0 if sets.get("assign") == "host" else 10.0
    return ms - ("prefetch" in sets) + 9 * ("prefetch" in sets and ms == 12), 0.0


HOST, PREFETCH = {"assign": "host"}, {"prefetch": "next-gate"}


def carry_out(
    search: Search, trials: Any, number: int, jobs: int = 2, until_s: float = 600
) -> list[tuple[int, int]]:
    counted: list[tuple[int, int]] = []
    search.run(trials, number, time.monotonic() + until_s, jobs, lambda *at: counted.append(at))
    return counted


def test_rounds_are_told_announced_and_counted() -> None:
    search, runs, said = stages.searching(ms_of)
    runs.ran.clear()
    trials = stages.Fixed(HOST, PREFETCH, {"assign": "balanced"}, {})
    assert carry_out(search, trials, 3) == [(0, 3), (2, 3), (3, 3)]
    assert trials.sizes == [2, 1]
    assert trials.told == {
        0: Told([1.2], stopped=True, runs=["S1-0-12"]),
        1: Told([0.9], runs=["S1-0-9", "S1-1-9"]),
        2: Told(None, why="no room"),
    }
    assert said == ["trial 1: 0.900 of the best published TPOT"]
    assert [(spec.seed, spec.overrides) for spec in runs.ran] == [
        (0, HOST), (0, PREFETCH), (1, PREFETCH), (0, {"assign": "balanced"}),
    ]  # fmt: skip
    # What is as fast as the best so far is not announced, and the last round is no larger.
    assert carry_out(search, trials, 9, jobs=5) == [(3, 9), (4, 9)]
    assert said[1:] == ["no further composition that can run was drawn"]
    assert trials.sizes[2:] == [5, 5]
    assert trials.told[3].stopped, "the base is slower than the prefetch, the leader"
    assert trials.told[3].values == pytest.approx([1.0])
    announced, rounds = list(said), list(trials.sizes)
    assert carry_out(search, trials, 2) == [(2, 2)]
    assert (said, trials.sizes) == (announced, rounds), "as many trials as were asked for are there"


def test_rounds_end_with_their_time() -> None:
    search, _, _ = stages.searching(ms_of)
    trials = stages.Fixed(HOST)
    assert carry_out(search, trials, 3, until_s=-1) == [(0, 3)]
    assert trials.sizes == []


def in_two_places(spec: RunSpec) -> tuple[float, float] | str:
    """The host is slower in S1 and as fast in S3; a prefetch is slower in both; LFRU best in S3."""
    if spec.system == "lfru":
        return (11.0 if spec.setting == "S1" else 4.0), 0.0
    ms = 10.0 if spec.setting == "S1" else 5.0
    factor = {"assign": 1.5 if spec.setting == "S1" else 0.8, "prefetch": 2.0}
    return ms * math.prod(factor[key] for key in spec.overrides), 0.0


@pytest.mark.slow
def test_a_trial_is_stopped_where_it_loses_in_every_place() -> None:
    """Objectives are geometric means over places: LFRU has 1.1 x 1, the base 1 x 1.25."""
    search, _, _ = stages.searching(in_two_places, (S1, S3))
    assert {name: one.name for name, one in search.best.items()} == {
        "S1": "moe-ondemand", "S3": "lfru",
    }  # fmt: skip
    assert search.ratio("lfru") == pytest.approx(1.1**0.5)
    assert search.ratio("moe-ondemand") == pytest.approx(1.25**0.5)
    trials = stages.Fixed(HOST, PREFETCH)
    carry_out(search, trials, 2)
    host, prefetch = trials.told.values()
    assert not host.stopped
    assert host.values == pytest.approx([(1.5 * 1.0) ** 0.5])
    assert host.runs == ["S1-0-15", "S1-1-15", "S3-0-4", "S3-1-4"]
    assert prefetch.stopped
    # The leader is LFRU: 1.1, times 20 of 11 ms and 10 of 4.
    assert prefetch.values == pytest.approx([(1.1 * 20 / 11 * 10 / 4) ** 0.5])
    assert prefetch.runs == ["S1-0-20", "S3-0-10"]


def lossy(spec: RunSpec) -> tuple[float, float] | str:
    """LFRU is exact; the base has a KL of 0.1, a host 0.2, and a prefetch 0.05."""
    if spec.system == "lfru":
        return 11.0, 0.0
    if "prefetch" in spec.overrides:
        return 30.0, 0.05 + 0.01 * spec.seed
    return (12.0, 0.2) if spec.overrides else (10.0, 0.1)


def test_with_a_limit_nearer_trials_are_not_stopped() -> None:
    search, _, said = stages.searching(lossy, limit=0.15)
    assert search.values("lfru") == pytest.approx([1.1, 0.0])
    trials = stages.Fixed(HOST, PREFETCH)
    carry_out(search, trials, 2)
    host, prefetch = trials.told.values()
    assert (host.stopped, host.values) == (True, pytest.approx([1.2, 0.2]))
    assert (prefetch.stopped, prefetch.values) == (False, pytest.approx([3.0, 0.06]))
    assert said == []
    # The limit holds at its very value.
    exact, _, _ = stages.searching(lossy, limit=0.1)
    assert exact.best["S1"].name == "moe-ondemand"
    below, _, _ = stages.searching(lossy, limit=0.09)
    assert below.best["S1"].name == "lfru"
    assert below.within("lfru", "S1")
    assert not below.within("moe-ondemand", "S1")
    assert not below.within("unheard", "S1")


def test_what_cannot_run_in_a_place_is_refused_with_its_reason() -> None:
    def says(spec: RunSpec) -> tuple[float, float] | str:
        if spec.system == "lfru" and spec.setting == "S3":
            return "no room there" if spec.seed else "no room"
        return 10.0, 0.0

    search = Search([S1, S3], stages.Runs(says), None, lambda line: None)  # type: ignore[arg-type]
    assert search.published(SYSTEMS, lambda done, total: None) == {"lfru": "no room"}
    assert search.within("lfru", "S1")
    assert not search.within("lfru", "S3")
    trials = stages.Fixed()
    space = SimpleNamespace(params=lambda system: {"of": type(system).__name__})
    search.seeded(SYSTEMS, space, trials)  # type: ignore[arg-type]
    assert trials.known == {
        "moe-ondemand": (
            {"of": "MoEOnDemand"}, {},
            Told([1.0], runs=["S1-0-10", "S1-1-10", "S3-0-10", "S3-1-10"]),
        ),
    }  # fmt: skip
    search.seeded(SYSTEMS, SimpleNamespace(params=lambda system: None), trials)  # type: ignore[arg-type]
    assert trials.known == {}
    with pytest.raises(MoeBenchError, match="S1: no published system can be compared with: no sys"):
        Search([S1], stages.Runs(says), None, print).published([], print)  # type: ignore[arg-type]


def test_the_fastest_within_the_limit_come_first_and_equal_ones_once() -> None:
    search, _, _ = stages.searching(lossy, limit=0.15)
    trials = SimpleNamespace(done=lambda: [
        stages.trial(0, [0.9, 0.1], {"a": "1"}),
        stages.trial(1, [0.8, 0.2], {"a": "2"}),
        stages.trial(2, [0.7, 0.1], {"a": "3"}, stopped=True),
        stages.trial(3, [0.9, 0.1], {"a": "4"}),
        stages.trial(4, [0.9, 0.05], {"a": "5"}),
        stages.trial(6, [0.5, 0.15], {"b": "6"}, system="lfru"),
    ])  # fmt: skip
    assert search.ranked(trials) == [  # type: ignore[arg-type]
        Candidate(name="lfru", system="lfru", sets={"b": "6"}),
        Candidate(name="trial 0", system="moe-ondemand", sets={"a": "1"}, trial=0),
        Candidate(name="trial 4", system="moe-ondemand", sets={"a": "5"}, trial=4),
    ]
    assert [one.published for one in search.ranked(trials)] == [True, False, False]  # type: ignore[arg-type]


def test_the_leader_of_a_search_that_goes_on_is_run_again() -> None:
    """Its runs are in the store; one that cannot run leads nothing."""
    search, runs, said = stages.searching(ms_of)
    trials = stages.Fixed({})
    known = [stages.trial(4, [0.9], PREFETCH)]
    trials.done = lambda: known  # type: ignore[method-assign]
    runs.ran.clear()
    carry_out(search, trials, 1)
    assert [spec.overrides for spec in runs.ran] == [PREFETCH, PREFETCH, {}]
    assert trials.told[0] == Told([pytest.approx(1.0)], stopped=True, runs=["S1-0-10"])
    known[:] = [stages.trial(5, [0.1], {"assign": "balanced"})]
    again = stages.Fixed(PREFETCH)
    again.done = trials.done  # type: ignore[method-assign]
    carry_out(search, again, 1)
    assert again.told[0].values == [0.9]
    assert said == ["trial 0: 0.900 of the best published TPOT"]


def test_decisions_stay_where_another_objective_would_be_worse() -> None:
    """A prefetch is slower and nearer to the model; a place changes neither."""

    search, _, _ = stages.searching(lossy, limit=0.15)
    one = Candidate(name="trial 3", system="moe-ondemand",
                    sets={**PREFETCH, "place": "last-ids"}, trial=3)  # fmt: skip
    found = search.simplified(one)
    assert found == Candidate(name="trial 3, simplified", system="moe-ondemand", sets=PREFETCH,
                              trial=3)  # fmt: skip
    other, _, _ = stages.searching(ms_of)
    cannot = Candidate(name="trial 4", system="moe-ondemand", sets={"assign": "balanced"}, trial=4)
    assert other.simplified(cannot) is cannot


@pytest.mark.parametrize(("held", "batches"), [(99, 5), (3, 3), (2, 2), (1, 1)])
def test_a_validation_has_as_many_batches_as_there_are(held: int, batches: int) -> None:
    search, runs, _ = stages.searching(ms_of)
    runs.problem = lambda spec: "few" if spec.prompts > held else None  # type: ignore[method-assign]
    runs.ran.clear()
    search.validated(SYSTEMS, S1, lambda done, total: None, clairvoyant=True)
    assert [(s.system, s.prompts, s.seed, s.clairvoyant) for s in runs.ran] == [
        ("lfru", batches, 2, True), ("moe-ondemand", batches, 2, True),
    ]  # fmt: skip


def test_a_candidate_that_cannot_run_shortens_no_validation() -> None:
    search, runs, _ = stages.searching(ms_of)
    runs.problem = lambda spec: "no" if spec.system == "lfru" else None  # type: ignore[method-assign]
    runs.ran.clear()
    search.validated(SYSTEMS, S1, lambda done, total: None)
    assert {(one.system, one.prompts) for one in runs.ran} == {("lfru", 5), ("moe-ondemand", 5)}


def test_a_candidate_is_possible_where_no_problem_is_known() -> None:
    search, runs, _ = stages.searching(ms_of)
    one = Candidate(name="lfru", system="lfru")
    assert search.possible(one, S1)
    runs.problem = lambda spec: "no"  # type: ignore[method-assign]
    assert not search.possible(one, S1)
    unheard = Candidate(name="x", system="moe-ondemand", sets={"evict": "unheard"})
    runs.problem = lambda spec: None  # type: ignore[method-assign]
    assert not search.possible(unheard, S1)


@pytest.mark.parametrize("limit", [None, 0.5])
def test_a_composition_is_refused_by_the_first_reason(
    limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own reason comes before those of places, which are asked in order, for one batch."""
    asked: list[Any] = []
    reasons: dict[str, str | None] = {"own": None, "S1": None, "S3": None}

    def own(sets: Any, lossy: bool) -> str | None:
        asked.append((sets, lossy))
        return reasons["own"]

    def problem(self: Any, one: Any, place: Any, batches: int) -> str | None:
        asked.append((one.sets, place.question.name, batches))
        return reasons[place.question.name]

    monkeypatch.setattr(rounds, "refusal", own)
    monkeypatch.setattr(Search, "_problem", problem)
    runs: Any = stages.Runs(lambda spec: (10.0, 0.0))
    search = Search([S1, S3], runs, limit, lambda line: None)
    sets = {"evict": "lru"}
    assert search._refusal(sets) is None
    assert asked == [(sets, limit is not None), (sets, "S1", 1), (sets, "S3", 1)]
    for name in ("S3", "S1", "own"):
        reasons[name] = f"no {name}"
        assert search._refusal(sets) == f"no {name}"
