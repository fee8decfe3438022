"""Estimates of times: calculated by hand, and monotone in every count and rate."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.sweep.estimate import (
    INTERVAL_SHARE,
    START_S,
    Counts,
    Expected,
    Part,
    Rates,
    Task,
    Training,
    Writing,
    duration,
    each_seconds,
    makespan,
    mean_rates,
    rates_of,
    remaining_seconds,
    run_seconds,
    slowdown,
    sweep_seconds,
    training_seconds,
    writing_seconds,
)

RATES = Rates(start_s=0.5, batch_s=0.25, pass_s=0.02)
TIMES = st.lists(st.floats(0, 1000), max_size=8)
COUNT = st.integers(1, 1000)
RATE = st.floats(0, 100)


# ---------------------------------------------------------------------- runs and learning


def test_a_run_takes_its_start_its_batches_and_their_tokens() -> None:
    # 32 batches of a prefill and 63 further tokens: 0.5 + 32 · (0.25 + 63 · 0.02)
    assert run_seconds(Counts(32, 63), RATES) == pytest.approx(48.82)
    with_interval = run_seconds(Counts(32, 63, 300), RATES)
    assert with_interval - 48.82 == pytest.approx(300 * 0.02 * INTERVAL_SHARE)


def test_a_stored_run_has_the_rates_with_which_it_takes_its_time() -> None:
    counts = Counts(4, 31)
    assert run_seconds(counts, rates_of(14.4, counts)) == pytest.approx(14.4)
    # Twice the batches take twice the time.
    assert run_seconds(Counts(8, 31), rates_of(14.4, counts)) == pytest.approx(28.8)
    assert mean_rates([Rates(1, 2, 3), Rates(3, 4, 5)]) == (2, 3, 4)


def test_texts_are_generated_in_groups_and_read_one_by_one() -> None:
    rates = Writing(prompts_s=0.6, pass_s=0.07, read_s=0.06)
    # 512 texts are 16 groups: 16 · (0.6 + 63 · 0.07) + 512 · 0.06
    assert writing_seconds(512, 64, 32, rates) == pytest.approx(110.88)
    # 33 texts are two groups.
    assert writing_seconds(33, 64, 32, rates) == pytest.approx(2 * 5.01 + 33 * 0.06)
    assert writing_seconds(0, 64, 32, rates) == 0


def test_training_of_many_epochs_stops_early() -> None:
    training = Training(token_s=1e-4, epochs=200)
    assert training_seconds(10_000, training) == pytest.approx(15 * 6**0.4)  # of 200 epochs
    assert training_seconds(60_000, training) == pytest.approx(6 * 15)
    assert training_seconds(100, training) == pytest.approx(0.01 * 55)
    assert training_seconds(10_000, training, stops_early=False) == pytest.approx(200)
    assert training_seconds(10_000, Training(1e-4, epochs=45)) == pytest.approx(45)
    assert training_seconds(10_000, Training(0.0, 0)) == 0


@given(COUNT, COUNT, COUNT, COUNT, RATE, RATE, RATE)
def test_more_work_never_takes_less_time(
    few: int, batches: int, passes: int, replayed: int, start: float, batch: float, one: float
) -> None:
    rates = Rates(start, batch, one)
    base = run_seconds(Counts(batches, passes, replayed), rates)
    for more in product((0, few), repeat=3):
        counts = Counts(batches + more[0], passes + more[1], replayed + more[2])
        assert run_seconds(counts, rates) >= base
    writing = Writing(start, batch, one)
    assert writing_seconds(batches + few, 64, 32, writing) >= writing_seconds(
        batches, 64, 32, writing
    )
    training = Training(one, passes)
    assert training_seconds(batches + few, training) >= training_seconds(batches, training)


# ---------------------------------------------------------------------- sweeps


def test_a_file_that_cells_share_counts_once() -> None:
    texts, network = Part("texts", 60.0), Part("network", 200.0)
    cells = [
        Expected("daop", 10, (texts,)), Expected("flashmoe", 20, (texts, network)),
        Expected("flashmoe", 20, (texts, network)), Expected("smoe", 5),
    ]  # fmt: skip
    assert each_seconds(cells) == [70, 220, 20, 5]


@pytest.mark.parametrize(
    ("times", "processes", "seconds"),
    [
        ([], 2, 0), ([3, 4], 1, 7), ([3, 4], 2, 4), ([3, 4, 5], 2, 8), ([5, 1, 1, 1], 2, 5),
        ([2, 2], 0, 4),
    ],
)  # fmt: skip
def test_an_idle_process_takes_the_next_cell(
    times: list[float], processes: int, seconds: float
) -> None:
    assert makespan(times, processes) == seconds


def test_cells_that_measure_this_computer_run_after_the_others_and_alone() -> None:
    cells = [Expected("a", 8), Expected("local", 5, alone=True), Expected("a", 8)]
    assert sweep_seconds(cells, processes=2) == START_S + 8 + 5
    assert sweep_seconds(cells, processes=1) == START_S + 16 + 5
    assert sweep_seconds(cells, processes=1, start_s=0.5) == 0.5 + 16 + 5
    assert sweep_seconds([], 2) == 0


def test_a_cell_waits_for_the_file_that_another_one_makes() -> None:
    texts = Part("texts", 20)
    cells = [
        Expected("flashmoe", 5, (texts, Part("network", 30))),
        Expected("duoserve", 5, (texts, Part("path", 60))), Expected("smoe", 4),
    ]  # fmt: skip
    # The second process begins when the texts are written, after 20 s: 20 + 60 + 5.
    assert sweep_seconds(cells, processes=2, start_s=0) == 85
    assert sweep_seconds(cells, processes=1, start_s=0) == (20 + 30 + 5) + (60 + 5) + 4
    # A cell that begins later finds the file.
    late = [cells[0], Expected("smoe", 40), Expected("duoserve", 5, (texts,))]
    assert sweep_seconds(late, processes=2, start_s=0) == 55
    alone = [Expected("local", 7, (texts,), alone=True), cells[0]]
    assert sweep_seconds(alone, processes=2, start_s=0) == 55 + 7


@given(st.lists(st.tuples(st.floats(0, 100), st.sets(st.integers(0, 3))), max_size=8),
       st.integers(1, 4))  # fmt: skip
def test_waiting_lengthens_a_sweep_by_no_more_than_the_files(
    cells: list[tuple[float, set[int]]], processes: int
) -> None:
    expected = [Expected("a", s, tuple(Part(key, 7) for key in sorted(keys))) for s, keys in cells]
    files = 7 * len(set().union(*(keys for _, keys in cells)))
    found = sweep_seconds(expected, processes, start_s=0)
    assert found <= (sum(seconds for seconds, _ in cells) + files) * (1 + 1e-12)
    assert found >= max([0, *(seconds for seconds, _ in cells)])
    assert found >= (sum(seconds for seconds, _ in cells) + files) / processes * (1 - 1e-12)


def test_processes_share_the_cores_with_each_other_and_with_other_work() -> None:
    assert slowdown(load=0, processes=1, cores=2) == 1
    assert slowdown(load=0, processes=2, cores=2) == 1
    assert slowdown(load=1, processes=2, cores=2) == 1.5
    assert slowdown(load=10, processes=2, cores=2) == 6
    assert slowdown(load=10, processes=2, cores=128) == 1


@given(TIMES, st.integers(1, 4), st.integers(0, 7), RATE)
def test_a_longer_or_a_further_cell_never_shortens_a_sweep(
    times: list[float], processes: int, at: int, more: float
) -> None:
    base = makespan(times, processes)
    assert makespan([*times, more], processes) >= base
    longer = [t + more if i == at else t for i, t in enumerate(times)]
    assert makespan(longer, processes) >= base * (1 - 1e-12)
    assert max([0, *times]) <= base <= sum(times) * (1 + 1e-12)


# ---------------------------------------------------------------------- remaining time

FOUR = {"a": Task("live", 10), "b": Task("live", 10), "c": Task("learns", 100),
        "d": Task("live", 10)}  # fmt: skip


def test_before_a_cell_has_ended_its_expected_time_remains() -> None:
    assert remaining_seconds(FOUR, {}, {}, 1) == 130
    assert remaining_seconds(FOUR, {}, {"a": 4.0}, 1) == 126
    assert remaining_seconds(FOUR, {}, {"a": 25.0}, 1) == 120  # it is late: none of it is counted


def test_ended_cells_correct_their_kind_and_the_kinds_without_one() -> None:
    # A live cell took twice as long: so will all others, as nothing is known of those that learn.
    assert remaining_seconds(FOUR, {"a": 20.0}, {}, 1) == 20 + 200 + 20
    # The one that learns took half as long: the live ones are corrected by the live one alone.
    assert remaining_seconds(FOUR, {"a": 20.0, "c": 50.0}, {}, 1) == 20 + 20
    assert remaining_seconds(FOUR, {"a": 20.0, "c": 50.0}, {"b": 5.0}, 2) == 20
    assert remaining_seconds(FOUR, dict.fromkeys(FOUR, 1.0), {}, 2) == 0


def test_a_cell_that_may_have_waited_for_another_one_corrects_nothing() -> None:
    tasks = {"a": Task(None, 10), "b": Task("learns", 100), "c": Task(None, 10)}
    assert remaining_seconds(tasks, {"a": 90.0}, {"b": 90.0}, 2) == 10
    # It is corrected like all others.
    assert remaining_seconds(tasks, {"b": 200.0}, {}, 1) == 20 + 20


def test_remaining_cells_that_run_alone_are_added() -> None:
    tasks = {"a": Task("live", 10), "b": Task("live", 10), "m": Task("local", 7, alone=True)}
    assert remaining_seconds(tasks, {}, {}, 2) == 10 + 7
    assert remaining_seconds(tasks, {"a": 10.0, "b": 10.0}, {"m": 3.0}, 2) == 4


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (89, "89 s"),
        (90, "2 min"),
        (2745, "46 min"),
        (5399, "90 min"),
        (5400, "1.5 h"),
        (5401, "1.5 h"),
        (7200, "2.0 h"),
        (36_000, "10.0 h"),
        (360_000, "100.0 h"),
    ],
)
def test_durations_are_short_texts(seconds: float, text: str) -> None:
    assert duration(seconds) == text
