"""What `moebench run` asks for, says and refuses, with runs that take no time."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from moebench.harness import console
from moebench.harness.api import run as api
from moebench.harness.cli import run as command
from moebench.harness.cli import run_time
from moebench.harness.cli import timeline as timelines
from moebench.results.spec import RunSpec
from tests.harness.commands import call, refused

ASKED = ("run", "--system", "smoe", "--setting", "S3", "--new-tokens", "5")


class Ran(NamedTuple):
    """A run that was asked for, by the arguments of `_run`, and whether its interval was."""

    spec: RunSpec
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class Asked:
    """Stands in for runs and their intervals: keeps what was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[Ran] = []
        self.completed: list[Path] = []
        self.shown: list[bool] = []
        monkeypatch.setattr(command, "_run", self._run)
        monkeypatch.setattr(api, "complete", self._complete)
        monkeypatch.setattr(console, "show_run", self._show)
        monkeypatch.setattr(run_time, "since_start", lambda: 2.5)

    def _run(self, spec: RunSpec, *arguments: Any, **options: Any) -> Any:
        self.ran.append(Ran(spec, arguments, options))
        return SimpleNamespace(document={"run": len(self.ran), "seed": spec.seed})

    def _complete(self, done: Any, directory: Path, shown: Any) -> bool:
        assert done.document == {"run": len(self.ran), "seed": 0}
        assert shown is console.progress
        self.completed.append(directory)
        return True

    def _show(self, document: Any, store: Path, complete: Any) -> None:
        assert document == {"run": len(self.ran), "seed": 0}
        self.shown.append(complete())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, here: Path) -> Asked:
    return Asked(monkeypatch)


def test_a_run_is_shown_and_its_interval_computed(asked: Asked) -> None:
    assert call(*ASKED) == (0, "", "")
    (one,) = asked.ran
    assert (one.spec.system, one.spec.setting, one.spec.new_tokens) == ("smoe", "S3", 5)
    folder, store, force, timeline, interval, before_s = one.arguments
    assert (folder, store, force, timeline) == (None, Path(".moebench"), False, None)
    assert (interval, before_s) == (True, 2.5)
    assert (asked.completed, asked.shown) == ([Path(".moebench")], [True])


def test_without_an_interval_none_is_announced_or_computed(asked: Asked) -> None:
    assert call(*ASKED, "--no-interval", "--force", "--store", "mine").code == 0
    assert asked.ran[0].arguments[1:5] == (Path("mine"), True, None, False)
    assert (asked.completed, asked.shown) == ([], [False])
    assert call(*ASKED, "--no-interval", "--json").code == 0
    assert asked.completed == []


def test_json_is_the_document_once_its_interval_is_in_it(asked: Asked) -> None:
    called = call(*ASKED, "--json")
    assert called.out == '{"run": 1, "seed": 0}\n'
    assert (asked.completed, asked.shown) == ([Path(".moebench")], [])


def test_seeds_are_runs_of_their_own_and_have_no_intervals(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moebench.harness.cli import seeds

    shown: list[Any] = []
    monkeypatch.setattr(seeds, "means", lambda documents: {"of": len(documents)})
    monkeypatch.setattr(seeds, "show_means", lambda documents, found: shown.append(found))
    assert call(*ASKED, "--seed", "4", "--seeds", "2") == (0, "", "")
    assert shown == [{"of": 2}]
    assert [one.spec.seed for one in asked.ran] == [4, 5]
    assert [one.options for one in asked.ran] == [{"what": ", seed 4"}, {"what": ", seed 5"}]
    called = call(*ASKED, "--seeds", "2", "--json")
    assert json.loads(called.out) == {
        "means": {"of": 2}, "runs": [{"run": 3, "seed": 0}, {"run": 4, "seed": 1}],
    }  # fmt: skip
    assert asked.completed == []


def test_a_timeline_is_of_one_run_on_lanes(asked: Asked) -> None:
    assert "--timeline and --seeds 3: give --seed instead" in refused(
        *ASKED, "--seeds", "3", "--timeline", "t.json"
    )
    native = ("run", "--system", "native-accelerate", "--setting", "S3", "--machine", "local")
    assert "is a package that shows no lanes" in refused(*native, "--timeline", "t.json")
    assert asked.ran == []
    assert call(*ASKED, "--timeline", "t.json").code == 0
    assert asked.ran[0].arguments[3] == Path("t.json")


# ------------------------------------------------------------------------------ quick runs


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), {"prompts": 4, "new_tokens": 32, "calibrate_texts": None}),
        (("--batch", "3"), {"prompts": 6, "new_tokens": 32}),
        (("--prompts", "2"), {"prompts": 2}),
        (("--prompts", "9", "--new-tokens", "40"), {"prompts": 9, "new_tokens": 40}),
        (("--new-tokens", "7"), {"prompts": 4, "new_tokens": 7}),
        (("--scoring", "generation"), {"prompts": 4}),
        (("--system", "daop"), {"prompts": 4, "calibrate_texts": 16}),
        (("--system", "daop", "--calibrate-texts", "3"), {"calibrate_texts": 3}),
    ],
)
def test_a_quick_run_is_shorter_where_nothing_else_is_given(
    given: tuple[str, ...], expected: dict[str, Any], asked: Asked
) -> None:
    own = () if "--system" in given else ("--system", "smoe")
    assert call("run", "--setting", "S3", "--quick", *own, *given).code == 0
    spec = asked.ran[0].spec.model_dump()
    assert {name: spec[name] for name in expected} == expected


def test_answers_keep_their_length_in_a_quick_run(asked: Asked) -> None:
    for more in ((), ("--quick",)):
        assert call("run", "--system", "smoe", "--setting", "S3", "--scoring", "generation",
                    *more).code == 0  # fmt: skip
    full, quick = (one.spec for one in asked.ran)
    assert (full.prompts, quick.prompts) == (32, 4)
    assert full.new_tokens == quick.new_tokens


# ------------------------------------------------------------------------------ one run


@pytest.mark.parametrize("stored", [False, True])
def test_a_stored_run_says_how_to_run_it_again_and_writes_its_timeline(
    stored: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[Any] = []
    spec: Any = SimpleNamespace(title="smoe on a6000", model="qwen2-57b-a14b")

    def carry_out(*given: Any) -> Any:
        said.append(given[:4] + given[5:7])
        with given[4]("prefill"):
            given[7]("session")
        return SimpleNamespace(
            stored=stored, session=SimpleNamespace(run_id="abc"), document={}, timeline="spans"
        )

    class Announcer:
        phase = staticmethod(lambda *given: None)

        def __init__(self, spec: Any, say: Any, interval: bool, before_s: float) -> None:
            said.append((interval, before_s))

        def learning(self, session: Any, directory: Path) -> None:
            said.append((session, directory))

    monkeypatch.setattr(api, "carry_out", carry_out)
    monkeypatch.setattr(run_time, "Announcer", Announcer)

    def progress(what: str, also: Any = None) -> Any:
        said.append(what)
        return nullcontext()

    monkeypatch.setattr(console, "progress", progress)
    monkeypatch.setattr(timelines, "write_timeline", lambda *given: said.append(given))
    command._run(spec, None, Path("store"), True, Path("t.json"), True, 1.5, ", seed 3")
    assert said == [
        (True, 1.5), "smoe on a6000 on qwen2-57b-a14b, seed 3",
        (spec, None, Path("store"), True, True, ", seed 3"), "prefill",
        ("session", Path("store")), (Path("t.json"), "spans", {}),
    ]  # fmt: skip
    printed = capsys.readouterr().err
    assert printed == ("run abc was stored; --force runs it again\n" if stored else "")
    said.clear()
    command._run(spec, None, Path("store"), False)
    assert said[0] == (False, 0.0)
    assert (spec, None, Path("store"), False, False, "") in said
    assert not any(one[0] == Path("t.json") for one in said)
