"""`moebench.advise`: which questions it asks, what it keeps, and the document of an answer."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.advise import advice, detect, kept, ours, purchases
from moebench.harness.advise.answer import Answer, Answers, Rate
from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.question import Hardware
from moebench.substrate.errors import UnknownNameError, UsageError
from tests.harness.advise.asked import question

PARTS: dict[str, Any] = {"gpu": "rtx-3090", "cpu": "ryzen-5950x", "ram": 64}


def answer(engine: str = "llama.cpp", **more: Any) -> Answer:
    fields: dict[str, Any] = {
        "engine": engine, "configuration": Configuration(engine=engine, host_layers=4),
        "config": "words", "decode": Rate(10.0, 8.0, 13.0), "prefill": Rate(100.0, 80.0, 120.0),
        "ttft_s": 2.0, "request_s": 50.0, "device_gib": 20.0, "host_gib": 30.0, "disk_gib": 0.0,
        "quality": "lossless", "verdict": "fits", "fits": "fits", "checked": True,
    }  # fmt: skip
    return Answer(**{**fields, **more})


class Asked:
    """What the parts of an answer were asked."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.questions: list[Any] = []
        self.written: dict[str, Any] = {}
        self.read: list[str] = []
        self.keys: list[str] = []
        patch.setattr(advice, "answers", self.answers)
        patch.setattr(advice, "command", lambda *given: SimpleNamespace(
            lines=("run it",), version="v1", notes=("a note",)))  # fmt: skip
        patch.setattr(kept, "key_of", lambda text: self.keys.append(text) or text)
        patch.setattr(kept, "read", lambda key: self.read.append(key) or self.written.get(key))
        patch.setattr(kept, "write", self.written.__setitem__)

    def answers(self, asked: Any, names: Any, forced: Any, **more: Any) -> Answers:
        self.questions.append((asked, names, forced, more["systems_only"]))
        more["told"]("a line")
        rows = [] if more["systems_only"] else [answer()]
        return Answers(question=asked, rows=rows, verdict="fits", largest_context=9,
                       left_out={"x": "no"}, assumed="a disk")  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def test_an_answer_is_a_document_and_is_kept(asked: Asked) -> None:
    told: list[str] = []
    found = advice.advise("gpt-oss-120b", told=told.append, context=4096, batch=2, **PARTS)
    ((one, names, forced, systems_only),) = asked.questions
    assert (names, forced, systems_only) == ([], None, False)
    assert (one.lengths.context, one.batch, one.lossless) == (4096, 2, False)
    assert one.hardware.ram_gib == 64
    assert told == ["a line"]
    document = found.document
    assert not found.cached
    assert document["question"] == {
        "model": "gpt-oss-120b", "quant": "mxfp4", "bits": one.bits._asdict(),
        "machine": "rtx-3090+ryzen-9-5950x+ram=64", "assumed": "a disk", "context": 4096,
        "prompt": 3584, "new": 512, "batch": 2, "sources": {},
    }  # fmt: skip
    assert (document["verdict"], document["largest_context"]) == ("fits", 9)
    assert document["left_out"] == {"x": "no"}
    assert "buy" not in document
    (row,) = found.answers
    assert row == {
        "engine": "llama.cpp", "config": "words",
        "configuration": {"engine": "llama.cpp", "host_layers": 4}, "command": ["run it"],
        "version": "v1", "notes": ["a note"], "decode_tok_s": 10.0, "low": 8.0, "high": 13.0,
        "prefill_tok_s": 100.0, "prefill_low": 80.0, "prefill_high": 120.0, "ttft_s": 2.0,
        "request_s": 50.0, "memory": {"device_gib": 20.0, "host_gib": 30.0, "disk_gib": 0.0},
        "quality": "lossless", "binds": "", "shares": {}, "verdict": "fits", "fits": "fits",
        "checked": True, "tied": False, "forced": False, "remarks": [],
    }  # fmt: skip
    again = advice.advise("gpt-oss-120b", context=4096, batch=2, **PARTS)
    assert again.cached
    assert (again.document, len(asked.questions)) == (document, 1)
    fresh = advice.advise("gpt-oss-120b", context=4096, batch=2, fresh=True, **PARTS)
    assert (fresh.cached, len(asked.questions)) == (False, 2)
    # Whatever is asked differently is another question.
    for more in (
        {"engines": ["vllm"]}, {"lossless": True}, {"tokens": 7}, {"prompt": "1k"},
        {"quant": "q8_0"}, {"bits": 5.0}, {"config": "llama.cpp -ncmoe 28"},
    ):  # fmt: skip
        given: dict[str, Any] = {"context": 4096, "batch": 2, **PARTS, **more}
        assert not advice.advise("gpt-oss-120b", **given).cached
    assert len({*asked.keys}) == 8


def test_a_row_without_a_prompt_has_no_prefill() -> None:
    row = advice._row(question(), answer(prefill=None, ttft_s=None))
    assert (row["prefill_tok_s"], row["prefill_low"], row["prefill_high"]) == (None, None, None)


def test_a_frame_has_a_row_for_each_answer_with_its_memory(asked: Asked) -> None:
    found = advice.advise("gpt-oss-120b", **PARTS)
    frame = found.frame()
    assert len(frame) == 1
    assert (frame.decode_tok_s[0], frame.host_gib[0]) == (10.0, 30.0)
    assert not {"memory", "configuration", "command"} & set(frame.columns)
    assert found._repr_html_() == frame.to_html()
    assert "llama.cpp" in found._repr_html_()


def test_a_typed_configuration_is_read_and_says_its_context(asked: Asked) -> None:
    told: list[str] = []
    advice.advise("gpt-oss-120b", config="llama.cpp -ncmoe 28 -c 16384 --mlock", told=told.append,
                  **PARTS)  # fmt: skip
    one, names, forced, _ = asked.questions[0]
    assert forced.host_layers == 28
    assert (one.lengths, names) == ((16384, 2048, 512), [])
    advice.advise("gpt-oss-120b", config="-ncmoe 28 -c 16384", context="8k",
                  engines=["llama.cpp"], **PARTS)  # fmt: skip
    one, names, forced, _ = asked.questions[1]
    assert (forced.engine, one.lengths.context, names) == ("llama.cpp", 8192, ["llama.cpp"])


def test_systems_are_asked_beside_engines_and_never_kept(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[str] = []

    def system_answer(one: Any, system: str, store: Path) -> Answer:
        if system == "smoe":
            raise UsageError("smoe: no such run")
        assert store == tmp_path
        return answer(f"moebench:{system}")

    monkeypatch.setattr(ours, "system_answer", system_answer)
    monkeypatch.setattr(
        advice, "with_others",
        lambda found, rows, left_out: Answers(
            question=found.question, rows=[*found.rows, *rows], verdict="both",
            largest_context=1, left_out={**found.left_out, **left_out},
        ),
    )  # fmt: skip
    for _ in range(2):
        found = advice.advise("gpt-oss-120b", engines=["moebench:fiddler", "smoe"],
                              store=str(tmp_path), told=told.append, **PARTS)  # fmt: skip
        assert [row["engine"] for row in found.answers] == ["moebench:fiddler"]
        assert found.document["left_out"] == {"x": "no", "smoe": "smoe: no such run"}
    assert asked.read == []
    assert told[:3] == ["a line", "fiddler: a simulated run", "smoe: a simulated run"]
    assert asked.questions[1][1:] == ([], None, True)
    advice.advise("gpt-oss-120b", engines=["fiddler", "vllm"], store=tmp_path, **PARTS)
    assert asked.questions[2][1:] == (["vllm"], None, False)


def test_names_are_engines_unless_they_are_systems_alone() -> None:
    names, systems = advice._engines(
        ["llama.cpp", "fiddler", "ktransformers", "moebench:deepspeed"]
    )
    assert (names, systems) == (["llama.cpp", "ktransformers"], ["fiddler", "deepspeed"])
    for unknown in ("llama.cp", "moebench:nosuch"):
        with pytest.raises(UnknownNameError, match=f"unknown engine '{unknown}'"):
            advice._engines([unknown])


def test_purchases_are_listed_with_their_gains(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    bought = purchases.Purchase("a card", answer("vllm"), Rate(3.0, -1.0, 5.0), None)
    other = bought._replace(what="a disk", prefill_gain=Rate(7.0, 6.0, 8.0))
    given: list[Any] = []
    monkeypatch.setattr(
        purchases, "purchases", lambda found, names: given.append(names) or [bought, other]
    )
    found = advice.advise("gpt-oss-120b", buy=True, engines=["vllm"], told=told.append, **PARTS)
    assert given == [["vllm"]]
    assert told[-1] == "what purchases would gain: one answer for each"
    first, second = found.document["buy"]
    assert first == {
        "what": "a card", "gain_tok_s": {"value": 3.0, "low": -1.0, "high": 5.0},
        "prefill_gain_tok_s": None, "engine": "vllm", "config": "words", "decode_tok_s": 10.0,
    }  # fmt: skip
    assert second["prefill_gain_tok_s"] == {"value": 7.0, "low": 6.0, "high": 8.0}


def test_without_parts_this_computer_is_meant(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    here = Hardware(gpu="rtx-3090", cpu="x", ram_gib=64.0, unread=("no link was read",))
    monkeypatch.setattr(detect, "this_computer", lambda: here)
    advice.advise("gpt-oss-120b", told=told.append)
    assert asked.questions[0][0].hardware == here
    assert told == ["no link was read", "a line"]
    advice.advise("gpt-oss-120b", cpu="ryzen-5950x")
    assert asked.questions[1][0].hardware.gpu == ""
    monkeypatch.setattr(detect, "this_computer", lambda: Hardware(gpu="rtx-3091"))
    with pytest.raises(UsageError, match="--gpu 'rtx-3091': unknown; nearest: "):
        advice.this_computer(told.append)
    monkeypatch.setattr(detect, "this_computer", lambda: Hardware(cpu="x"))
    assert advice.this_computer(told.append).cpu == "x"
