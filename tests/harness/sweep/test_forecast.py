"""Forecasts on tiny models: measured rates, and what is learnt and stored already."""

import threading
from pathlib import Path

import pytest

from moebench.harness.one_run import prepare, run
from moebench.harness.run.rules import resolve
from moebench.harness.sweep.estimate import Rates, Task
from moebench.harness.sweep.execute import jobs_of
from moebench.harness.sweep.forecast import (
    ALIKE,
    CONSTANT,
    MEASURED,
    STORED,
    Forecast,
    Forecaster,
    Learner,
    Load,
    Pace,
    counts_of,
    learns,
    short,
)
from moebench.harness.sweep.planned import Planned
from moebench.harness.sweep.progress import Left
from moebench.harness.sweep.worker import Failed, Finished, Job
from moebench.results.spec import RunSpec
from moebench.results.store import Store
from tests.harness.commands import call

pytestmark = pytest.mark.usefixtures("tiny_models")

#: FlashMoE's networks, small and trained for few epochs.
SMALL_NETWORK = {"evict.hidden": "4", "evict.epochs": "3"}


def spec(system: str = "smoe", **options) -> RunSpec:
    given = {"setting": "S3", "workload": "arithmetic", "prompts": 1, "new_tokens": 4, **options}
    return resolve(None, system=system, **given)


def learner(**options) -> RunSpec:
    return spec("flashmoe", calibrate_texts=2, overrides=SMALL_NETWORK, **options)


def forecast(*specs: RunSpec, processes: int = 1, **options) -> Forecast:
    jobs = jobs_of(specs, Planned(None))
    return Forecaster(Store(Path(".moebench")), Planned(None), processes, **options).of(jobs)


# ---------------------------------------------------------------------- pace


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


def paced(events: list[tuple[float, str, int]], after: int = 8, for_s: float = 0.0) -> Rates | None:
    """Return the rates after phases that are reported at given times."""
    clock = Clock()
    pace = Pace(clock, after, for_s)
    for now, name, done in events:
        clock.now = now
        pace.phase(name, done, None)
    return pace.rates


LOADED = [(10.0, "load", 0), (10.5, "prefill", 0), (10.6, "decode", 1)]


def test_rates_are_known_after_some_decoded_tokens() -> None:
    decoded = [(10.6 + 0.02 * k, "decode", k + 1) for k in range(1, 9)]
    assert paced([*LOADED, *decoded[:-1]]) is None
    # Loaded in 0.5 s, a prefill of 0.1 s and as much for scores, 20 ms a token.
    assert paced([*LOADED, *decoded]) == pytest.approx((0.5, 0.2, 0.02))
    slower_later = [*LOADED, *decoded, (99.0, "decode", 10)]
    assert paced(slower_later) == pytest.approx((0.5, 0.2, 0.02))


def test_rates_are_known_after_some_time_or_at_the_end_of_the_first_batch() -> None:
    decoded = [(10.6 + 0.02 * k, "decode", k + 1) for k in range(1, 60)]
    assert paced([*LOADED, *decoded[:49]], for_s=1.0) is None
    assert paced([*LOADED, *decoded[:51]], for_s=1.0) == pytest.approx((0.5, 0.2, 0.02))
    # The next prefill of a replay: 50 passes ended 1 s after the first began.
    next_batch = (11.6, "prefill", 0)
    assert paced([*LOADED, *decoded[:49], next_batch], for_s=9.0) == pytest.approx((0.5, 0.2, 0.02))


def test_rates_of_a_short_run_are_known_when_it_is_scored() -> None:
    assert paced([*LOADED, (10.62, "decode", 2), (10.64, "scoring", 0)]) == pytest.approx(
        (0.5, 0.2, 0.02)
    )
    assert paced([*LOADED[:2], (10.6, "scoring", 0)]) is None  # no token was decoded


def test_only_runs_of_fixed_length_have_known_numbers_of_tokens() -> None:
    assert counts_of(spec(prompts=6, batch=3, new_tokens=64)) == (2, 63, 0)
    assert counts_of(spec(prompts=6, new_tokens=64, scoring="generation")) == (6, 0, 0)


def test_the_load_is_the_mean_of_its_samples_without_the_sampling_and_working_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    file = tmp_path / "loadavg"
    load = Load(file)
    for runnable in (8, 4):  # 6 and 2 others
        file.write_text(f"9.91 9.97 9.26 {runnable}/255 14473\n")
        load.sample()
    assert load.samples == [6, 2]
    assert load.slowdown(2) == (4 + 2) / 2
    file.write_text("0.00 0.00 0.00 1/90 7\n")
    idle = Load(file)
    idle.sample()
    assert idle.slowdown(1) == 1
    elsewhere = Load(tmp_path / "none")
    elsewhere.sample()
    assert (elsewhere.samples, elsewhere.slowdown(4)) == ([], 2)


def test_the_load_is_sampled_from_the_beginning_to_the_end_of_its_context(tmp_path: Path) -> None:
    file = tmp_path / "loadavg"
    file.write_text("0 0 0 3/90 7\n")
    with Load(file) as load:
        assert load.samples[0] == 1
    ended = len(load.samples)
    assert not [one for one in threading.enumerate() if one.name == "load"]
    assert len(load.samples) == ended


# ---------------------------------------------------------------------- learning


def test_what_a_system_learns_is_missing_until_a_run_has_stored_it() -> None:
    store = Path(".moebench")
    first = learns(prepare(learner(), None), store)
    assert first is not None
    assert (first.texts, first.policies) == (2, ("evict",))
    assert not store.exists(), "asking creates nothing"
    run(prepare(learner(), None), store)
    assert (store / "calibration" / first.written).exists()
    assert learns(prepare(learner(), None), store) is None
    # Other prompts of the run, the same texts; a wider network must be trained, on stored texts.
    assert learns(prepare(learner(prompts=2), None), store) is None
    wider = spec("flashmoe", calibrate_texts=2, overrides=SMALL_NETWORK | {"evict.hidden": "6"})
    found = learns(prepare(wider, None), store)
    assert found is not None
    assert (found.texts, found.policies, found.written) == (0, ("evict",), first.written)
    # More texts are other texts.
    more = spec("flashmoe", calibrate_texts=3, overrides=SMALL_NETWORK)
    found = learns(prepare(more, None), store)
    assert found is not None
    assert found.texts == 3


def test_a_system_that_does_not_learn_misses_nothing() -> None:
    assert learns(prepare(spec(), None), Path(".moebench")) is None


def test_the_rates_of_learning_are_measured_and_nothing_is_kept() -> None:
    found = Learner(prepare(learner(), None), 2)
    assert found.write_seconds(64) > found.write_seconds(2) > 0
    training = found.training("evict")
    assert training.epochs == 3
    assert training.token_s > 0
    assert training.tokens == 65_536  # FlashMoE's most tokens
    usual, most = found.train_seconds(["evict"], 20)
    assert usual > 0
    assert most > 0
    assert not Path(".moebench").exists()


def test_a_policy_that_counts_is_not_trained() -> None:
    counted = spec("daop", calibrate_texts=2)
    found = Learner(prepare(counted, None), 2)
    (name,) = learns(prepare(counted, None), Path(".moebench")).policies
    assert found.training(name).epochs == 0
    assert found.train_seconds([name], 100) == (0, 0)


@pytest.mark.parametrize("system", ["adapmoe", "finemoe", "promoe", "duoserve", "moe-infinity"])
def test_every_shipped_learner_can_be_measured(system: str) -> None:
    cell = spec(system, calibrate_texts=2)
    session = prepare(cell, None)
    found = learns(session, Path(".moebench"))
    assert found is not None
    assert found.texts == 2
    measured = Learner(session, 2)
    usual, most = measured.train_seconds(found.policies, 2)
    assert usual >= 0
    assert (most > 0) == (system in ("promoe", "duoserve"))


# ---------------------------------------------------------------------- sweeps


@pytest.fixture
def worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if short sweeps were worth the time of measurements."""
    monkeypatch.setattr("moebench.harness.sweep.forecast.WORTH_S", 0.0)


def test_short_sweeps_are_not_measured() -> None:
    found = forecast(spec(), spec("moe-ondemand"))
    assert found.sources == {STORED: 0, MEASURED: 0, ALIKE: 0, CONSTANT: 2}
    long = forecast(spec(prompts=3000), spec("moe-ondemand"))
    assert long.sources[MEASURED] == 2


@pytest.mark.usefixtures("worth_it")
def test_kinds_of_cells_are_measured_once_and_like_cells_share_their_rates() -> None:
    found = forecast(*(spec(seed=seed) for seed in range(3)), spec("moe-ondemand"))
    assert found.sources == {STORED: 0, MEASURED: 4, ALIKE: 0, CONSTANT: 0}
    assert len(found.tasks) == 4
    kinds = {task.kind for task in found.tasks.values()}
    assert len({(task.kind, task.seconds) for task in found.tasks.values()}) == len(kinds) == 2
    assert "4 cells from short runs just now" in str(found)


@pytest.mark.usefixtures("worth_it")
def test_without_time_to_measure_rates_are_constant_or_from_other_cells() -> None:
    ticks = iter(range(0, 1000, 9))  # every look at the clock is nine seconds later
    found = forecast(spec(), spec("moe-ondemand"), clock=lambda: next(ticks))
    assert found.sources == {STORED: 0, MEASURED: 0, ALIKE: 0, CONSTANT: 2}
    ticks = iter([0, 0, 9, 9])
    found = forecast(spec(), spec("moe-ondemand"), clock=lambda: next(ticks))
    assert found.sources == {STORED: 0, MEASURED: 1, ALIKE: 1, CONSTANT: 0}


@pytest.mark.usefixtures("worth_it")
def test_stored_runs_give_the_rates_of_their_kind_unless_their_system_learns() -> None:
    small = ("--setting", "S3", "--workload", "arithmetic", "--prompts", "1", "--new-tokens", "4")
    assert call("run", "--system", "smoe", *small, "--no-interval").code == 0
    assert call("run", "--system", "daop", *small, "--calibrate-texts", "2").code == 0
    daop = spec("daop", calibrate_texts=2, prompts=2)
    found = forecast(spec(prompts=2), daop)
    assert found.sources == {STORED: 1, MEASURED: 1, ALIKE: 0, CONSTANT: 0}
    (document,) = [d for d in Store(Path(".moebench")).runs() if d["spec"]["system"] == "smoe"]
    twice = 2 * document["provenance"]["wall_s"]
    assert next(iter(found.tasks.values())).seconds == pytest.approx(twice)


def test_the_first_cell_learns_for_all_and_what_is_stored_takes_no_time() -> None:
    cells = [learner(prompts=1), learner(prompts=2)]
    first, second = forecast(*cells).tasks.values()
    assert first.kind is not None
    assert second.kind is None, "it may wait for the first one"
    run(prepare(cells[0], None), Path(".moebench"))
    known = forecast(*cells)
    assert {task.kind[1] for task in known.tasks.values()} == {False}


def test_cells_that_cannot_run_get_an_estimate_all_the_same() -> None:
    found = forecast(spec("belady"))
    assert found.sources[CONSTANT] == 1


def test_a_short_run_has_one_batch_of_few_tokens() -> None:
    cell = short(spec("daop", prompts=6, batch=3, new_tokens=64))
    assert (cell.prompts, cell.new_tokens, cell.calibrate_texts) == (3, 17, 1)
    cell = short(spec(prompts=4, new_tokens=3))
    assert (cell.prompts, cell.new_tokens, cell.calibrate_texts) == (1, 3, None)
    whole = short(spec(prompts=4, scoring="generation"))
    assert (whole.prompts, whole.new_tokens) == (1, spec(scoring="generation").new_tokens)


def test_the_remaining_time_is_corrected_when_a_cell_has_ended() -> None:
    clock = Clock()
    jobs = [Job(name, spec(), "") for name in "abcd"]
    tasks = {job.cell_id: Task("smoe", 10) for job in jobs}
    left = Left(Forecast(tasks, 40, {}, 1), clock)
    done = Finished({}, [], [])
    left.started(jobs[0])
    assert str(left) == "40 s left"
    clock.now += 4
    assert str(left) == "36 s left"
    clock.now += 16  # twice as long as expected
    left.ended(jobs[0], done)
    assert str(left) == "60 s left"
    left.started(jobs[1])
    clock.now += 1
    left.ended(jobs[1], Failed("cannot run here", None))
    assert str(left) == "40 s left", "a failed cell changes no rate"
    left.started(jobs[2])
    clock.now += 20
    left.ended(jobs[2], done)
    assert str(left) == "20 s left"
