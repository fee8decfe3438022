"""Forecasts on tiny models: measured rates, and what is learnt and stored already."""

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.one_run import prepare, run
from moebench.harness.run import learn
from moebench.harness.run.rules import resolve
from moebench.harness.sweep import forecast as module
from moebench.harness.sweep.estimate import Part, Rates, Task, Training, Writing
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
    kind_of,
    learns,
    measurable,
    measured,
    replayed_tokens,
    short,
)
from moebench.harness.sweep.planned import Planned
from moebench.harness.sweep.progress import Left
from moebench.harness.sweep.worker import Failed, Finished, Job
from moebench.results.spec import RunSpec
from moebench.results.store import Store
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.machines.profile_ranges import uncertain
from moebench.substrate.progress_events import report_phase
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


@pytest.mark.parametrize(
    ("options", "each", "ordered"),
    [
        ({"new_tokens": 64}, 5, 0),
        ({"new_tokens": 3}, 3, 0),
        # Another order of two batches; five of three; of nine batches, none.
        ({"prompts": 2, "new_tokens": 64}, 5, 1 * 2 * 32),
        ({"prompts": 6, "batch": 2, "new_tokens": 20}, 5, 5 * 3 * 20),
        ({"prompts": 9, "new_tokens": 64}, 5, 0),
    ],
)
def test_an_interval_replays_both_ends_of_each_number_and_other_orders(
    options: dict[str, Any], each: int, ordered: int
) -> None:
    numbers = len(uncertain(load_profile("a6000")))
    assert replayed_tokens(spec(**options)) == (1 + 2 * numbers) * each + ordered
    assert counts_of(spec(), 7).replayed == 7
    assert counts_of(spec(routing="drawn", prompts=3, batch=3, new_tokens=5)) == (1, 4, 0)
    assert replayed_tokens(spec(machine="local")) == 0


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
    tokens, training = found.training("evict", 2)
    assert tokens < 1000
    assert training.epochs == 3
    assert training.token_s > 0
    assert found.training("evict", 10_000)[0] == 65_536  # FlashMoE's most tokens
    usual, most = found.train_seconds(["evict"], 20)
    assert usual > 0
    assert most > 0
    assert not Path(".moebench").exists()


def test_a_policy_that_counts_is_not_trained() -> None:
    counted = spec("daop", calibrate_texts=2)
    found = Learner(prepare(counted, None), 2)
    (name,) = learns(prepare(counted, None), Path(".moebench")).policies
    assert found.training(name, 2) == (0, Training(0, 0))
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


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The CPU time of this process, which passes when a test says so."""
    clock = Clock()
    monkeypatch.setattr("time.process_time", clock)
    return clock


def test_texts_are_written_by_their_prompts_and_their_tokens(
    cpu: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group takes 2 s a prompt, and 1 s a text for each token after the first."""
    groups: list[tuple[int, int]] = []

    def write(decoder: Any, prompts: Sequence[Sequence[int]], tokens: int, seen: Any) -> None:
        assert 0 < max(map(len, prompts)) <= learn.PROMPT_TOKENS
        groups.append((len(prompts), tokens))
        cpu.now += (2 + tokens - 1) * len(prompts)

    read: list[tuple[int, int, list[str], bool, bool]] = []

    def read_(
        decoder: Any, texts: Sequence[Sequence[int]], prompt: int, kinds: list[str], states: bool,
        embeddings: bool,
    ) -> list[Any]:  # fmt: skip
        cpu.now += 0.25
        read.append((len(texts[0]), prompt, kinds, states, embeddings))
        return [SimpleNamespace(ids_TLK=texts[0])]

    monkeypatch.setattr("moebench.substrate.traces.observe.write", write)
    monkeypatch.setattr("moebench.substrate.traces.observe.read", read_)
    found = Learner(prepare(learner(), None), 2)
    # One text before, then one and two, of one token and of nine.
    assert groups == [(1, 2), (1, 1), (1, 9), (2, 1), (2, 9)]
    assert found.pass_s == 1
    assert found.writing == Writing(4, 2, 0.25)
    ((tokens, prompt, kinds, states, embeddings),) = read
    assert tokens - prompt == learn.NEW_TOKENS
    assert (states, embeddings, kinds) == (False, False, [])  # FlashMoE learns from the ids alone
    assert found.write_seconds(33) == 2 * (4 + (learn.NEW_TOKENS - 1) * 2) + 33 * 0.25


def test_a_policy_is_timed_over_its_second_epoch(
    cpu: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 tokens a text, 50 of its prompt: six texts are the first 1024, seven without prompts.

    The first epoch of two takes longer.
    """
    asked = []

    class Policy:
        tokens = 5000
        trains_on_prompts = True

        def calibrate(self, texts: Sequence[Any], full: Any, folder: Path, epoch: Any) -> None:
            asked.append((len(texts), full, folder.is_dir()))
            for done, took in enumerate((9.0, 6.0, 100.0), 1):
                cpu.now += took
                epoch(done, 40)

    class Groups(Policy):
        """Trains three groups of two networks in turn, each for at most 40 epochs, on answers."""

        epochs = 40
        trains_on_prompts = False

        def calibrate(self, texts: Sequence[Any], full: Any, folder: Path, epoch: Any) -> None:
            assert len(texts) == 7
            for done, took in enumerate((9.0, 6.0, 100.0), 1):
                cpu.now += took
                epoch(2 * done, 6 * 40)

    class Counts:
        trains_on_prompts = True

        def calibrate(self, *given: Any) -> None:
            cpu.now += 1

    found = object.__new__(Learner)
    found._text = SimpleNamespace(ids_TLK=range(200), prefill=50)
    made = {"evict": Policy(), "prefetch": Groups(), "place": Counts()}
    found._learn = SimpleNamespace(learners=lambda system: made)
    found._session = SimpleNamespace(spec=SimpleNamespace(make_system=lambda: None), full="full")
    assert found.training("evict", 20) == (4000, Training(6 / (6 * 200), 40))
    assert found.training("evict", 30) == (5000, Training(6 / (6 * 200), 40))
    assert asked == [(6, "full", True)] * 2
    # An epoch of all three groups takes three times as long as one of a group.
    assert found.training("prefetch", 20) == (3000, Training(3 * 6 / (7 * 150), 40))
    assert found.training("place", 20) == (0, Training(0, 0))
    # A usual training on 1,500 tokens stops early, were there more epochs.
    rates = {"a": (1500, Training(0.01, 100)), "b": (2000, Training(1, 2))}
    monkeypatch.setattr(Learner, "training", lambda self, name, texts: rates[name])
    assert found.train_seconds(["a", "b"], 10) == (
        0.01 * 1500 * 55 + 2000 * 2,
        0.01 * 1500 * 100 + 2000 * 2,
    )


# ---------------------------------------------------------------------- short runs


def test_a_short_run_has_rates_in_cpu_time(cpu: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_(session: Any, scratch: Path) -> None:
        for took, phase, done in ((3, "load", 0), (1, "prefill", 0), (0.5, "decode", 1),
                                  *((0.25, "decode", n) for n in range(2, 17))):  # fmt: skip
            cpu.now += took
            report_phase(phase, done)
        cpu.now += 100

    monkeypatch.setattr("moebench.harness.one_run.run", run_)
    for tokens in (17, 64):  # loaded in 4 s; a prefill of .5 s, and as much for the scores
        session = SimpleNamespace(spec=spec(new_tokens=tokens))
        assert measured(session, Path()) == (4, 1, 0.25)
    answers = SimpleNamespace(spec=spec(scoring="generation"))
    assert measured(answers, Path()) == (0, 4 + 0.5 + 15 * 0.25 + 100, 0)
    monkeypatch.setattr("moebench.harness.one_run.run", lambda session, scratch: None)
    assert measured(session, Path()) == (0, 0, 0)


@pytest.mark.parametrize(
    ("options", "is_so"),
    [
        ({}, True),
        ({"routing": "drawn"}, True),
        ({"machine": "local"}, False),
        ({"weights": "some/folder", "model": "qwen2-57b-a14b"}, False),
        ({"overrides": {"evict": "mine:Own"}}, False),
        ({"system": "mine:Own"}, False),
        ({"system": "llama-cpp", "machine": "local"}, False),
    ],
)
def test_short_runs_are_of_shipped_weights_and_our_own_code(
    options: dict[str, Any], is_so: bool
) -> None:
    changed = spec().model_copy(update=options)
    assert measurable(changed) is is_so


@pytest.mark.parametrize(
    ("options", "alike"),
    [
        ({"prompts": 4, "new_tokens": 9, "seed": 3, "cache_ratio": 0.5, "alpha": 0.2}, True),
        ({"machine": "a100"}, True),
        ({"machine": "local"}, False), ({"batch": 2, "prompts": 2}, False),
        ({"scoring": "generation"}, False), ({"workload": "facts"}, False),
        ({"routing": "replayed"}, False), ({"system": "moe-ondemand"}, False),
        ({"variant": "shipped"}, False), ({"overrides": {"evict": "lru"}}, False),
        ({"model": "mixtral-8x7b"}, False),
    ],
)  # fmt: skip
def test_cells_are_of_a_kind_that_differ_in_what_costs_no_time(
    options: dict[str, Any], alike: bool
) -> None:
    assert (kind_of(spec(**options)) == kind_of(spec())) is alike


# ---------------------------------------------------------------------- sweeps


def test_a_forecast_is_worked_out_from_all_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five cells of four tokens on two processes, on a computer that is slower by half."""
    lru = {"overrides": {"evict": "lru"}, "weights": "some/folder", "model": "qwen2-57b-a14b"}
    stored, short_run, like, local, drawn = cells = [
        spec(prompts=2), spec("moe-ondemand"), spec("moe-ondemand", **lru),
        spec("moe-ondemand", machine="local"), spec(routing="drawn"),
    ]  # fmt: skip
    monkeypatch.setattr(module, "WORTH_S", 0.0)
    asked: list[Any] = []

    class Busy(Load):
        def slowdown(self, processes: int) -> float:
            asked.append(processes)
            return 1.5

    monkeypatch.setattr(module, "Load", Busy)

    def measured_(session: Any, scratch: Path) -> Rates:
        asked.append(session.spec.system)
        if session.spec.replays:
            raise ZeroDivisionError
        return Rates(1, 2, 3)

    monkeypatch.setattr(module, "measured", measured_)
    texts, network = Part("texts", 10), Part("network", 4)
    parts = {kind_of(stored): (texts,), kind_of(like): (texts, network)}
    monkeypatch.setattr(Forecaster, "_learning", lambda self, of: parts.get(kind_of(of), ()))
    monkeypatch.setattr(Forecaster, "_learner", lambda self, of: of.system == "daop")
    wall = [
        (spec().model_dump(), 8.0), (spec(seed=4).model_dump(), 16.0),
        (spec("daop").model_dump(), 99.0), (spec(scoring="generation").model_dump(), 99.0),
        ({"system": "smoe"}, 99.0),
    ]  # fmt: skip

    def wall_times(systems: set[str]) -> list[tuple[dict[str, Any], float]]:
        assert systems == {"smoe", "moe-ondemand"}
        return wall

    store = SimpleNamespace(wall_times=wall_times, directory=Path())
    opened = SimpleNamespace(
        session=lambda of: SimpleNamespace(spec=of, share=lambda shared: shared)
    )
    seen: list[tuple[int, int]] = []
    jobs = [Job(f"c{n}", cell, "") for n, cell in enumerate(cells)]
    found = Forecaster(
        store, SimpleNamespace(opened=opened), 2, lambda *done: seen.append(done)
    ).of(jobs)
    assert asked == ["moe-ondemand", "smoe", 2]
    assert seen == [(n, 5) for n in range(1, 6)]
    assert found.sources == {STORED: 1, MEASURED: 1, ALIKE: 2, CONSTANT: 1}
    # Of 8 s, five eighths are the prefill: a second for each pass, and two of 16 s.  So 2 batches
    # take 2 · (7.5 + 3 · 1.5) s: wall time.  The texts take 10 · 1.5 s.
    # Measured: 1 + 2 + 3 · 3 s; the same with other policies, where the texts are there.
    # This computer is like both: .5 + 4.75 + 3 · 2.25 s.  A replay: .1 + .02 + 3 · .006 s.
    assert found.tasks == {
        "c0": Task((kind_of(stored), True), 24 + 15), "c1": Task((kind_of(short_run), False), 18),
        "c2": Task(None, 18 + 6), "c3": Task((kind_of(local), False), 18, True),
        "c4": Task((kind_of(drawn), False), pytest.approx(1.5 * 0.138)),
    }  # fmt: skip
    # On two processes 39 s, then a replay, and 18 + 24 s; this computer's cell is alone.
    assert found.seconds == 1.5 * 3 + 42 + 18
    assert found.processes == 2
    assert str(found) == (
        "about 64 s: 1 cell from stored runs like them, 1 cell from short runs just now, "
        "2 cells from other cells, 1 cell from constants"
    )
    assert str(Forecast({}, 0.0, {STORED: 0}, 1)) == "about 0 s: nothing to run"


def test_the_cell_that_makes_a_file_waits_for_none_however_its_times_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(.1 + .1) + 1 is less than .1 + (.1 + 1) in binary numbers."""
    parts = (Part("texts", 0.1), Part("network", 1.0))
    monkeypatch.setattr(Forecaster, "_learning", lambda self, of: parts)
    monkeypatch.setattr(Load, "slowdown", lambda self, processes: 1.0)
    monkeypatch.setattr(module, "run_seconds", lambda counts, rates: 0.1)
    assert (0.1 + 0.1) + 1.0 < 0.1 + (0.1 + 1.0)
    first, second = forecast(spec(), spec(prompts=2)).tasks.values()
    assert first.kind is not None
    assert second.kind is None


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


@pytest.mark.slow
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


def test_short_runs_of_equal_weights_share_their_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is passed on while model, weights and data type stay; the time for all is limited."""
    clock, log, step = Clock(), list[Any](), module.MEASURE_S / 5
    fields = {
        "m": ("m", None, None),
        "m again": ("m", None, None),
        "own": ("m", "w", None),
        "int8": ("m", "w", "int8"),
        "other": ("n", "w", "int8"),
        "late": ("n", "w", "int8"),
    }

    def session(name: str) -> Any:
        model, weights, dtype = fields[name]

        def share(shared: Any) -> Any:
            log.append((name, shared))
            return shared or f"work of {name}"

        return SimpleNamespace(
            spec=SimpleNamespace(model=model, weights=weights, expert_dtype=dtype), share=share
        )

    def measured_(of: Any, scratch: Path) -> Rates:
        clock.now += step
        if of.spec.weights is None and len(log) == 1:
            raise ZeroDivisionError
        return Rates(len(log), 0, 0)

    monkeypatch.setattr(module, "measured", measured_)
    monkeypatch.setattr(module, "short", lambda name: name)
    made: Any = object.__new__(Forecaster)
    made.clock, made._rates = clock, {}
    made.planned = SimpleNamespace(opened=SimpleNamespace(session=session))
    kinds = [(name,) for name in fields]
    made._measure_kinds(kinds, {(name,): name for name in fields}, Path("s"))
    assert log == [("m", None), ("m again", "work of m"), ("own", None), ("int8", None),
                   ("other", None), ("late", "work of other")]  # fmt: skip
    assert {kind: rate.start_s for (kind,), rate in made._rates.items()} == {
        "m again": 2, "own": 3, "int8": 4, "other": 5, "late": 6,
    }  # fmt: skip
    log.clear()
    clock.now = 0.0
    monkeypatch.setattr(module, "MEASURE_S", module.MEASURE_S / 2)
    made._measure_kinds(kinds, {(name,): name for name in fields}, Path("s"))
    assert [name for name, _ in log] == ["m", "m again", "own"]
