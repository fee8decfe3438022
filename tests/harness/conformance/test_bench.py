"""Runs of the conformance suite: what is opened once, which run is made, and what is kept of it."""

import gc
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moebench.harness.conformance import bench
from moebench.harness.conformance.bench import Bench, NotChecked, Run, batches, bench_in
from moebench.harness.conformance.cases import Case
from moebench.harness.conformance.watch import Claim
from moebench.harness.run.live import LiveSession
from moebench.substrate.errors import BudgetError, UsageError

CASE = Case("mixtral-8x7b", 3, "tight")
REPLAYED = Case("mixtral-8x7b", 3, "tight", replayed=True)


@pytest.mark.slow
def test_a_scratch_folder_of_its_own_is_removed_with_the_bench(tmp_path: Path) -> None:
    made = Bench(None)
    folder = made.scratch
    assert folder.is_dir()
    assert folder.name.startswith("moebench-")
    (folder / "learnt").mkdir()
    (folder / "learnt" / "file").write_text("x")
    del made
    gc.collect()
    assert not folder.exists()
    given = Bench(tmp_path)
    assert given.scratch == tmp_path
    del given
    gc.collect()
    assert tmp_path.exists()


def test_a_process_has_one_bench(tmp_path: Path) -> None:
    bench_in.cache_clear()
    try:
        first = bench_in(tmp_path)
        assert bench_in(tmp_path) is first
        assert bench_in(tmp_path / "other") is not first
        assert bench_in(tmp_path) is not first, "the last one alone is kept"
    finally:
        bench_in.cache_clear()


class Fakes:
    """Replaces systems and sessions; notes which run was prepared and how it was varied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prepared: list[Any] = []
        self.built: list[Any] = []
        self.system = SimpleNamespace(clairvoyant=False, why_not=self.why_not)
        self.refusal: str | None = None
        self.error: UsageError | None = None
        self.live = True
        monkeypatch.setattr(bench, "build", self.build)
        monkeypatch.setattr(bench, "model_shape", lambda name: f"shape of {name}")
        monkeypatch.setattr(bench, "spec_of", self.spec_of)
        monkeypatch.setattr(bench, "prepare", self.prepare)
        monkeypatch.setattr(bench, "SharedWork", lambda checkpoint: ("shared", checkpoint))

    def build(self, name: str, variant: str) -> Any:
        self.built.append((name, variant))
        return self.system

    def why_not(self, shape: str, batch: int) -> str | None:
        assert (shape, batch) == ("shape of mixtral-8x7b", 3)
        return self.refusal

    def spec_of(self, name: str, variant: str, case: Case, replayed: bool) -> Any:
        routing = "drawn" if replayed else "model"
        return SimpleNamespace(system=name, variant=variant, model=case.model, batch=case.batch,
                               routing=routing)  # fmt: skip

    def prepare(self, spec: Any, data_dir: Path | None) -> Any:
        assert data_dir is None
        self.prepared.append((spec.system, spec.variant, spec.routing))

        def varied(own: Any) -> Any:
            if self.error is not None:
                raise self.error
            made: Any = object.__new__(LiveSession) if self.live else SimpleNamespace()
            made.spec = own
            made.weights = SimpleNamespace(checkpoint=object(), shared=None)
            return made

        return SimpleNamespace(varied=varied)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(monkeypatch)


def test_inputs_are_opened_once_for_all_systems_of_a_case(fakes: Fakes, tmp_path: Path) -> None:
    made = Bench(tmp_path)
    first = made.session("smoe", "shipped", CASE)
    assert fakes.built == [("smoe", "shipped")]
    assert (first.spec.system, first.spec.variant, first.spec.routing) == (
        "smoe", "shipped", "model",
    )  # fmt: skip
    second = made.session("daop", "published", CASE)
    assert fakes.prepared == [("moe-ondemand", "published", "model")]
    assert isinstance(first, LiveSession)
    assert isinstance(second, LiveSession)
    assert first.weights.shared is second.weights.shared is not None
    assert first.weights.shared == ("shared", first.weights.checkpoint)  # type: ignore[comparison-overlap]
    made.session("smoe", "published", REPLAYED)
    assert fakes.prepared[1:] == [("moe-ondemand", "published", "drawn")]


def test_a_system_that_knows_the_future_is_replayed(fakes: Fakes, tmp_path: Path) -> None:
    fakes.system.clairvoyant, fakes.live = True, False
    made = Bench(tmp_path)
    assert made.session("belady", "published", CASE).spec.routing == "drawn"
    assert fakes.prepared == [("moe-ondemand", "published", "drawn")]


def test_what_does_not_exist_for_a_case_is_not_checked(fakes: Fakes, tmp_path: Path) -> None:
    made = Bench(tmp_path)
    fakes.refusal = "one sequence alone"
    with pytest.raises(NotChecked, match=r"^one sequence alone$"):
        made.session("smoe", "published", CASE)
    assert fakes.prepared == []
    fakes.refusal, fakes.error = None, UsageError("the trace lacks scores")
    with pytest.raises(NotChecked, match=r"^the trace lacks scores$"):
        made.session("smoe", "published", REPLAYED)
    # An error of a run that computes, and of one that must be replayed, is a failure.
    with pytest.raises(UsageError):
        made.session("smoe", "published", CASE)
    fakes.system.clairvoyant = True
    with pytest.raises(UsageError):
        made.session("smoe", "published", REPLAYED)


def question(*prompt: int) -> Any:
    return SimpleNamespace(prompt=list(prompt))


class Live(LiveSession):
    """A live session to which a test gives attributes."""


def live(batch: int = 2, **more: Any) -> Any:
    made: Any = object.__new__(Live)
    made.spec = SimpleNamespace(model="m", batch=batch, routing="model", new_tokens=4, prompts=3)
    made.questions = [question(1), question(2, 2), question(3)]
    made.weights = SimpleNamespace(checkpoint="checkpoint")
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_prompts_come_in_batches() -> None:
    assert list(batches(live())) == [[[1], [2, 2]], [[3]]]
    assert list(batches(live(batch=3))) == [[[1], [2, 2], [3]]]


def test_the_resident_models_tokens_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    shared = SimpleNamespace(decoder=lambda: "a decoder")
    monkeypatch.setattr(bench, "SharedWork", lambda checkpoint: shared)

    def write(decoder: str, prompts: Any, new_tokens: int, end: int | None) -> Any:
        asked.append((decoder, prompts, new_tokens, end))
        return [[len(asked)]]

    monkeypatch.setattr(bench, "write", write)
    made = Bench(tmp_path)
    assert made.resident(live()) == [[[1]], [[2]]]
    assert made.resident(live()) == [[[1]], [[2]]]
    assert asked == [("a decoder", [[1], [2, 2]], 4, None), ("a decoder", [[3]], 4, None)]
    made.resident(live(batch=3))
    assert len(asked) == 3, "batches of another size are written anew"


def claim(before: int) -> Claim:
    return Claim(before, 1, 0, None, False)


class Ran:
    """A session that runs on fakes, of which every step is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_live: bool) -> None:
        self.log: list[Any] = []
        self.error: BudgetError | None = None
        timeline = SimpleNamespace(spans=[], finish=lambda ns: self.log.append(("finish", ns)))
        cache, transfers = object(), object()
        engine = SimpleNamespace(cache=cache, transfers=transfers, generate=self.generate)
        self.stage = SimpleNamespace(engine=engine, timeline=timeline, start=self.start)
        self.session = live(answer=self.answer) if is_live else SimpleNamespace(
            spec=live().spec, answer=self.answer)  # fmt: skip
        self.events = [claim(0), claim(0)]
        monkeypatch.setattr(Bench, "session", lambda own, *given: self.opened(given))
        monkeypatch.setattr(bench, "calibrated", self.calibrated)
        monkeypatch.setattr(bench, "watch_slots", lambda *given: self.seen(given, cache, timeline))
        same = {id(transfers): "transfers", id(timeline): "timeline", id(self.events): "events"}
        monkeypatch.setattr(bench, "watch_again", lambda *given: self.log.append(
            ("again", *(same[id(one)] for one in given))))  # fmt: skip
        monkeypatch.setattr(torch, "set_num_threads", lambda n: self.log.append(("threads", n)))

    def opened(self, given: Any) -> Any:
        self.log.append(given)
        return self.session

    def seen(self, given: Any, cache: Any, timeline: Any) -> list[Any]:
        assert given == (cache, timeline)
        return self.events

    def calibrated(self, session: Any, scratch: Path, progress: Any, keep: bool,
                   stack: ExitStack) -> Any:  # fmt: skip
        assert torch.is_inference_mode_enabled()
        assert session.wrap("a model")._model == "a model"
        self.log.append(("calibrated", session is self.session, scratch, keep))
        return self.stage, {}

    def start(self) -> None:
        if self.error is not None:
            raise self.error
        self.log.append("start")

    def made(self, what: Any) -> Any:
        self.events.append(claim(9))
        self.log.append(what)
        return SimpleNamespace(tokens=[what], token_ends_ns=[1, len(self.log)], used="used")

    def generate(self, prompts: Any, new_tokens: int) -> Any:
        return self.made((prompts, new_tokens))

    def answer(self, stage: Any, rows: slice) -> list[Any]:
        assert stage is self.stage
        return [self.made((rows.start, rows.stop))]


@pytest.mark.parametrize("is_live", [True, False])
def test_a_run_is_watched_from_its_placement_to_its_end(
    is_live: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Ran(monkeypatch, is_live)
    found: Any = Bench(tmp_path).run("smoe", "shipped", CASE)
    texts: list[Any] = [([[1], [2, 2]], 4), ([[3]], 4)] if is_live else [(0, 2), (2, 4)]
    assert given.log == [
        ("smoe", "shipped", CASE), ("threads", 1),
        ("calibrated", True, tmp_path, True), ("again", "transfers", "timeline", "events"),
        "start", *texts, ("finish", 7),
    ]  # fmt: skip
    assert (found.case, found.session, found.stage) == (CASE, given.session, given.stage)
    assert [one.tokens for one in found.generations] == [[text] for text in texts]
    # Slots that were claimed before anything ran were placed.
    assert [one.placed for one in found.events] == [True, True, False, False]
    assert found.deferred == []


def test_a_run_that_needs_a_larger_device_is_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Ran(monkeypatch, True)
    given.error = BudgetError("it needs 20 slots")
    with pytest.raises(NotChecked, match=r"^it needs 20 slots$"):
        Bench(tmp_path).run("smoe", "published", CASE)


def test_all_that_must_repeat_is_recorded() -> None:
    span = SimpleNamespace(op="op", lane="lane", start_ns=1, end_ns=2, cause="cause", other=3)
    stage: Any = SimpleNamespace(timeline=SimpleNamespace(spans=[span]))
    generation: Any = SimpleNamespace(tokens=[[1]], token_ends_ns=[4], used="used", more=5)
    ran = Run(CASE, live(), stage, [generation], [claim(0)], [])
    assert ran.recorded == [
        [("op", "lane", 1, 2, "cause")], [claim(0)], [([[1]], [4], "used")],
    ]  # fmt: skip
