"""The stages of a search, on made-up runs: what is run, what is stopped, what is best."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moebench.harness.search.evaluation import Measured, Refused
from moebench.harness.search.outcome import validate
from moebench.harness.search.question import Question, Seeds
from moebench.harness.search.rounds import Candidate, Place, Search
from moebench.harness.search.study import STOPPED, Trials
from moebench.results.spec import RunSpec
from moebench.substrate.errors import MoeBenchError, UsageError
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


def test_one_rule_is_judged_in_all_places(trials: Trials) -> None:
    def by_place(spec: RunSpec) -> float | None:
        found = speed(spec)
        return found if found is None or spec.setting == "S1" else 2 * found**2

    search = searched(trials, MadeUp(by_place), 10, (S1, S3))
    for one in search.ranked(trials):
        ratios = [search.tpot(one.name, p) / search.tpot(search.best[p].name, p)
                  for p in ("S1", "S3")]  # fmt: skip
        assert search.ratio(one.name) == pytest.approx((ratios[0] * ratios[1]) ** 0.5)


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
