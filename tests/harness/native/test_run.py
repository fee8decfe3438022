"""What a run of a package says of itself, without a package."""

from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.native import run
from moebench.harness.native.run import NativeSession, _generate, _notes, _prompts, _result, _Told
from moebench.harness.run.questions import Question
from moebench.substrate.engine.records import Generation
from moebench.substrate.machines import energy

BEFORE = {"read_bytes": 10, "asked_bytes": 20, "major_faults": 1, "minor_faults": 2,
          "involuntary_switches": 5, "peak_rss_bytes": 900}  # fmt: skip
AFTER = {name: 3 * count for name, count in BEFORE.items()}


def test_counters_count_from_the_warm_up_on() -> None:
    told = _Told(before=BEFORE, after=AFTER)
    assert told.figures() == {
        "read_bytes": 20, "asked_bytes": 40, "major_faults": 2, "minor_faults": 4,
        "peak_rss_bytes": 2700,  # with loading
    }  # fmt: skip
    assert told.grown("involuntary_switches") == 10
    assert _Told().figures() == dict.fromkeys(
        ("read_bytes", "asked_bytes", "major_faults", "minor_faults", "peak_rss_bytes")
    )


def session(scoring: str = "fixed-length", threads: int = 1, **more: Any) -> NativeSession:
    made = object.__new__(NativeSession)
    made.spec = SimpleNamespace(scoring=scoring, batch=2, new_tokens=5, system="native-x")  # type: ignore[assignment]
    made.questions = [Question([1, 2], [3], ([3],)), Question([4], [], ([],)), Question([5])]
    checkpoint = SimpleNamespace(shape=SimpleNamespace(expert_params=100))
    made.weights = SimpleNamespace(end=7, checkpoint=checkpoint)  # type: ignore[assignment]
    made.system = SimpleNamespace(  # type: ignore[assignment]
        threads=threads, remarks=lambda: ["a remark"], lossless=True, memory_limit=None
    )
    made.accuracy = SimpleNamespace(document=lambda: {"n": 0})  # type: ignore[assignment]
    return made


def test_prompts_are_read_whole() -> None:
    assert _prompts(session(), slice(0, 2)) == [[1, 2, 3], [4]]
    assert session().longest == 3 + 5


@pytest.mark.parametrize(("scoring", "end"), [("fixed-length", None), ("generation", 7)])
def test_a_batch_is_what_the_process_tells_of_it(
    scoring: str, end: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases: list[Any] = []
    monkeypatch.setattr(run, "report_phase", lambda *given: phases.append(given))
    answers = iter([{"started": 50}, {"ns": 60, "tokens": [1, 2]}, {"ns": 65, "tokens": [3, 4]},
                    {"done": AFTER}])  # fmt: skip
    sent: list[Any] = []
    process: Any = SimpleNamespace(send=sent.append, receive=lambda: next(answers))
    generation, counters = _generate(process, session(scoring), slice(0, 2), 6)
    assert sent == [{"prompts": [[1, 2, 3], [4]], "new_tokens": 6, "end": end}]
    assert generation == Generation([[1, 3], [2, 4]], 50, [60, 65])
    assert counters == AFTER
    assert phases == [("prefill",), ("decode", 1, 6), ("decode", 2, 6)]


LIMIT: Any = SimpleNamespace(text="3 MB beside", by="cgroup", page_cache=True)


@pytest.mark.parametrize(("threads", "said"), [(1, "1 thread"), (3, "3 threads")])
def test_notes_on_a_package(threads: int, said: str) -> None:
    told = _Told(versions={"x": "1", "y": None}, facts=["a fact"])
    begin = (
        "a model ran in fp32, measured on this computer's CPU: x 1, y None, in a process of its "
        f"own with {said}; 3 tokens before it were not timed"
    )
    made = session(threads=threads)
    assert _notes(made, "a model", told, None) == [
        begin, "no limit on its memory: files that were read stay in the page cache", "a remark",
        "a fact",
    ]  # fmt: skip
    assert _notes(made, "a model", told, LIMIT) == [
        begin, "its memory is limited to 3 MB beside, from when its model was loaded", "a remark",
        "a fact",
    ]  # fmt: skip


@pytest.mark.parametrize("limit", [None, LIMIT])
def test_the_result_holds_what_is_known_of_a_package(
    limit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "named", lambda spec, checkpoint: "a model")
    monkeypatch.setattr(run, "describe", lambda system: {"threads": "1"})
    monkeypatch.setattr(NativeSession, "limit_bytes", lambda self: 99)
    told = _Told({"x": "1"}, ["a fact"], 5, BEFORE, AFTER)
    meter = energy.Meter("RAPL", joules={"host": 8.0})
    ran = [Generation([[1, 7, 2], [3, 4, 5]], 0, [1, 2, 3])]
    for scoring, texts in (
        ("generation", [[1, 7], [3, 4, 5]]), ("fixed-length", [[1, 7, 2], [3, 4, 5]]),
    ):  # fmt: skip
        made = session(scoring)
        found = _result(made, ran, told, limit, meter)
        assert found.texts == texts
    assert (found.badge, found.ran, found.lossless, found.profile) == (
        "measured", "a model", True, None,
    )  # fmt: skip
    assert found.resolved == {
        "alpha": None, "cache_ratio": None, "slots": None, "options": {"threads": "1"},
    }  # fmt: skip
    assert found.memory == {
        "offered_device_bytes": None, "offered_host_bytes": None, "expert_bytes": 400,
        "slot_bytes": None, "limit_bytes": 99, "limited_by": limit and "cgroup",
        "page_cache_limited": limit and True,
    }  # fmt: skip
    assert found.metrics == run.unknown() | meter.figures(6) | {"process": told.figures()}
    assert (found.load_ns, found.switches, found.accuracy) == (5, 10, {"n": 0})
    assert found.bound == {"tpot_ms": None, "ratio": None}
    assert (found.versions, found.provenance) == ({"x": "1"}, {"threads": 1})
    assert found.notes == _notes(made, "a model", told, limit)
