"""`moebench run`: its expected time, its quick form, and figures before their intervals."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.cli import run as command
from moebench.harness.cli.run_time import Announcer, learning_lines, since_start
from moebench.harness.run import learn
from moebench.harness.run.live import LiveSession
from moebench.harness.run.rules import resolve
from moebench.harness.sweep import forecast
from moebench.harness.sweep.estimate import INTERVAL_SHARE, duration
from moebench.harness.sweep.forecast import replayed_tokens
from moebench.results.spec import RunSpec
from moebench.results.store import Store
from tests.harness.commands import SMALL, call, run

pytestmark = pytest.mark.usefixtures("tiny_models")


def spec(**options: Any) -> RunSpec:
    return resolve(None, **{"system": "smoe", "setting": "S3", **options})


# ---------------------------------------------------------------------- expected time


def announced(
    asked: RunSpec, start_s: float, pass_s: float, before_s: float = 0.0, interval: bool = True
) -> list[str]:
    """Return what is printed of a run whose first tokens take given times."""
    said: list[str] = []
    now = 100.0
    announcer = Announcer(asked, said.append, interval, lambda: now, before_s)
    announcer.phase("load", 0, None)
    now += start_s
    announcer.phase("prefill", 0, None)
    for step in range(1, asked.new_tokens):
        now += pass_s
        announcer.phase("decode", step, asked.new_tokens)
    return said


def test_the_expected_time_is_printed_once_after_the_first_tokens() -> None:
    asked = spec(prompts=8, new_tokens=64)
    (line,) = announced(asked, start_s=3, pass_s=0.125, before_s=2)
    # Before 2 s, loaded in 3 s, a prefill and 8 tokens of 0.125 s; then 8 batches of two prefills
    # (one is the scoring) and 63 tokens, and the replays of the interval.
    interval = replayed_tokens(asked) * 0.125 * INTERVAL_SHARE
    seconds = 2 + 3 + 9 * 0.125 + 8 * (0.25 + 63 * 0.125) + interval
    took = duration(seconds)
    assert line == f"about {took}: 8 prompts of 64 tokens, 125 ms a token to compute"
    (without,) = announced(asked, start_s=3, pass_s=0.125, before_s=2, interval=False)
    assert without.startswith(f"about {duration(seconds - interval)}: ")
    # Half the speed, twice the time, whatever the computer.
    (slower,) = announced(asked, start_s=6, pass_s=0.25, before_s=4)
    assert slower.startswith(f"about {duration(2 * seconds)}: ")


@pytest.mark.parametrize("name", ["python", "a (b) c", ") 1 2 3"])
def test_the_time_since_the_start_of_the_process_is_the_kernels(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Field 22 of proc(5)'s stat is the start in clock ticks since boot; the name is the second.
    fields = [str(number) for number in range(3, 53)]
    fields[22 - 3] = "1250"
    monkeypatch.setattr(Path, "read_text", lambda file: f"7 ({name}) {' '.join(fields)}\n")
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    monkeypatch.setattr(time, "clock_gettime", lambda clock: 20.0)
    assert since_start() == pytest.approx(20.0 - 12.5)


def test_where_the_start_is_unknown_the_cpu_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    monkeypatch.setattr(time, "process_time", lambda: 4.5)
    assert since_start() == 4.5


def test_a_run_of_less_than_two_seconds_is_not_announced() -> None:
    assert announced(spec(prompts=1, new_tokens=12), start_s=0.1, pass_s=1e-4) == []


def test_a_fast_run_is_announced_after_a_second() -> None:
    (line,) = announced(spec(prompts=32, new_tokens=64), start_s=0.5, pass_s=2**-5)
    whole = 0.5 + 33 / 32 + 32 * (2 + 63) / 32
    assert float(line.split()[1]) == pytest.approx(whole, abs=5)


def test_answers_of_unknown_length_are_not_announced() -> None:
    assert announced(spec(scoring="generation"), start_s=1, pass_s=1.0) == []


def test_the_interval_counts_the_numbers_of_the_profile() -> None:
    assert replayed_tokens(spec(new_tokens=64)) % 5 == 0
    assert replayed_tokens(spec(new_tokens=64)) > 5
    assert replayed_tokens(spec(machine="local")) == 0


def test_a_system_that_learns_says_how_long_why_and_how_to_shorten_it() -> None:
    first, second = learning_lines(spec(system="flashmoe"), 512, 60.0, 200.0, 480.0, 40.0)
    assert first == (
        "about 5 min: flashmoe learns before it runs: 60 s to generate 512 texts, 3 min to train "
        "on them (at most 8 min), 40 s to run; what it learns is stored for later runs"
    )
    assert second.startswith("--calibrate-texts 16 learns from fewer texts, in about 8 s; ")
    assert "stored separately" in second


def test_stored_texts_and_few_texts_are_said() -> None:
    (line,) = learning_lines(spec(system="flashmoe"), 16, 0.0, 20.0, 20.0, 4.0)
    assert "its 16 texts are stored, 20 s to train on them, 4 s to run" in line
    (line,) = learning_lines(spec(system="daop"), 16, 6.0, 0.0, 0.0, 4.0)
    assert "6 s to generate 16 texts, 4 s to run" in line


def test_learning_is_announced_only_when_it_has_to_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moebench.harness.cli.run_time.SHORT_S", 0.0)
    asked = ("run", "--system", "daop", *SMALL, "--calibrate-texts", "2", "--no-interval")
    first = call(*asked)
    assert first.code == 0
    assert "daop learns before it runs: " in first.err
    assert first.err.index("learns before it runs") < first.err.index(" left: 1 prompt ")
    other = call(*asked, "--seed", "0", "--prompts", "2")
    assert "learns before it runs" not in other.err
    assert ": 2 prompts of 3 tokens" in other.err
    assert call("run", "--system", "smoe", *SMALL, "--json").json["spec"]["system"] == "smoe"


def test_the_whole_time_is_announced_for_a_replay_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moebench.harness.cli.run_time.SHORT_S", 0.0)
    called = call("run", "--system", "smoe", "--setting", "S3", "--routing", "drawn", "--prompts",
                  "2", "--new-tokens", "12", "--no-interval")  # fmt: skip
    assert called.code == 0, called.err
    assert "2 prompts of 12 tokens" in called.err


# ---------------------------------------------------------------------- a quick run


@pytest.mark.slow
def test_a_quick_run_is_the_run_of_its_options() -> None:
    quick = call("run", "--system", "smoe", "--setting", "S3", "--quick", "--no-interval", "--json")
    assert quick.code == 0, quick.err
    found = quick.json["spec"]
    assert (found["prompts"], found["new_tokens"]) == (4, 32)
    same = call("run", "--system", "smoe", "--setting", "S3", "--prompts", "4", "--new-tokens",
                "32", "--no-interval", "--json")  # fmt: skip
    assert same.json["run_id"] == quick.json["run_id"]
    assert "was stored" in same.err
    full = resolve(None, system="smoe", setting="S3")
    assert (full.prompts, full.new_tokens) == (32, 64)
    assert forecast.counts_of(full).batches > len(quick.json["accuracy"]["items"]["decoded"])
    # It is not comparable with a run of other prompts and lengths.
    other = run("moe-ondemand", "--prompts", "2")
    mixed = call("compare", quick.json["run_id"], other["run_id"])
    assert mixed.code == 2


@pytest.mark.parametrize(
    ("given", "shortened"),
    [
        ({}, {"prompts": 4, "new_tokens": 32}),
        ({"batch": 3}, {"prompts": 6, "new_tokens": 32}),
        ({"prompts": 2}, {"prompts": 2, "new_tokens": 32}),
        ({"new_tokens": 8}, {"prompts": 4, "new_tokens": 8}),
        ({"scoring": "generation"}, {"prompts": 4}),
        ({"system": "flashmoe"}, {"prompts": 4, "new_tokens": 32, "calibrate_texts": 16}),
        ({"system": "flashmoe", "routing": "drawn"}, {"prompts": 4, "new_tokens": 32}),
    ],
)
def test_quick_shortens_what_has_an_effect(
    given: dict[str, Any], shortened: dict[str, Any]
) -> None:
    assert command._quick({"system": "smoe", "setting": "S3", **given}, None) == shortened


def test_given_options_are_kept_in_a_quick_run() -> None:
    called = call("run", "--system", "daop", *SMALL, "--quick", "--calibrate-texts", "2", "--json",
                  "--no-interval")  # fmt: skip
    found = called.json["spec"]
    assert (found["prompts"], found["new_tokens"], found["calibrate_texts"]) == (1, 3, 2)


# ---------------------------------------------------------------------- the first table


def test_figures_are_printed_before_their_intervals_are_computed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from moebench.harness.api import run as api
    from moebench.harness.cli.app import main

    printed: list[str] = []
    add = api.complete

    def adding(done: Any, store: Path, shown: Any) -> bool:
        printed.append(capsys.readouterr().out)
        assert len(Store(store).runs()) == 1, "the run is stored before its interval"
        return add(done, store, shown)

    monkeypatch.setattr(api, "complete", adding)
    assert main(["run", "--system", "smoe", *SMALL]) == 0
    later = capsys.readouterr().out
    (first,) = printed
    before, after = (dict(row.split("\t") for row in text.splitlines()) for text in (first, later))
    assert " [estimate]" in before["TPOT"]
    assert "−" not in before["TPOT"]
    assert "+" in after["TPOT"] or "±" in after["TPOT"]
    assert set(after) <= set(before), "only rows that changed"
    assert before["hit ratio, complete"]
    assert "hit ratio, complete" not in after
    # The stored run has its interval: all is printed at once.
    printed.clear()
    assert main(["run", "--system", "smoe", *SMALL]) == 0
    whole = dict(row.split("\t") for row in printed[0].splitlines())
    assert whole["TPOT"] == after["TPOT"]
    assert capsys.readouterr().out == ""


def test_a_prompt_takes_five_passes_and_each_token_after_the_first_one() -> None:
    """Three batches of 10 tokens: 3 x (5 + 9) passes of 0.5 s; the start is not counted."""
    asked = spec(prompts=6, batch=2, new_tokens=10)
    alone = Announcer(asked, print, False)
    assert alone._run_seconds(0.5) == pytest.approx(3 * (5 + 9) * 0.5)
    replayed = replayed_tokens(asked) * 0.5 * INTERVAL_SHARE
    assert replayed > 0
    assert Announcer(asked, print, True)._run_seconds(0.5) == pytest.approx(21 + replayed)


class Learns:
    """Replaces what a run learns: two texts are to be written, for 6 s, and training takes 8 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: Any = SimpleNamespace(policies=["a policy"], texts=2)
        self.times, self.asked = (6.0, 8.0, 16.0), list[Any]()
        given = self

        class Learner:
            pass_s = 0.25

            def __init__(self, session: Any, texts: int) -> None:
                given.asked.append(("learner", texts))

            def train_seconds(self, policies: Any, texts: int) -> tuple[float, float]:
                given.asked.append(("train", policies, texts))
                return given.times[1:]

            def write_seconds(self, texts: int) -> float:
                given.asked.append(("write", texts))
                return given.times[0]

        class Load:
            def __enter__(self) -> "Load":
                return self

            def __exit__(self, *error: object) -> None:
                given.asked.append("loaded")

            def slowdown(self, processes: int) -> float:
                assert processes == 1
                return 2.0

        texts = SimpleNamespace(examples=range(40))
        monkeypatch.setattr(learn, "texts", lambda *what: texts)
        monkeypatch.setattr(forecast, "learns", lambda session, store: self.found)
        monkeypatch.setattr(forecast, "Learner", Learner)
        monkeypatch.setattr(forecast, "Load", Load)


def session() -> Any:
    made: Any = object.__new__(LiveSession)
    made.spec, made.system, made.data_dir = "spec", "system", None
    return made


def test_what_is_learnt_before_a_run_is_announced_beside_other_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice the times: 12 s to write, 16 to 32 to train, and 2 x (5 + 9) passes of .25 s."""
    learns, said = Learns(monkeypatch), list[str]()
    asked = spec(system="daop", prompts=1, new_tokens=10)
    Announcer(asked, said.append, False).learning(session(), Path("s"))
    assert learns.asked == [
        ("learner", 40), ("train", ["a policy"], 40), "loaded", ("write", 2),
    ]  # fmt: skip
    assert said == [
        "about 35 s: daop learns before it runs: 12 s to generate 40 texts, 16 s to train on them "
        "(at most 32 s), 7 s to run; what it learns is stored for later runs",
        "--calibrate-texts 16 learns from fewer texts, in about 11 s; such a run is another one: "
        "it is stored separately and predicts less well",
    ]


@pytest.mark.parametrize(("times", "lines"), [((0.5, 0.49, 9.0), 0), ((0.5, 0.5, 9.0), 2)])
def test_learning_of_less_than_two_seconds_is_not_announced(
    times: tuple[float, float, float], lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learns, said = Learns(monkeypatch), list[str]()
    learns.times = times
    Announcer(spec(system="daop"), said.append, False).learning(session(), Path("s"))
    assert len(said) == lines


def test_what_is_stored_or_replayed_is_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    learns, said = Learns(monkeypatch), list[str]()
    learns.found = None
    announcer = Announcer(spec(system="daop"), said.append, False)
    announcer.learning(session(), Path("s"))
    announcer.learning(object(), Path("s"))
    assert (said, learns.asked, announcer._learns) == ([], [], False)


def test_a_saving_is_in_proportion_to_the_texts() -> None:
    """Of 17 texts 16 are nearly all; of 16 there is no shorter form."""
    lines = learning_lines(spec(system="daop"), 17, 17.0, 0.0, 0.0, 1.0)
    assert lines[1].startswith("--calibrate-texts 16 learns from fewer texts, in about 16 s; ")
    assert len(learning_lines(spec(system="daop"), 16, 17.0, 0.0, 0.0, 1.0)) == 1
