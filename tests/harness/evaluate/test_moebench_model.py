"""OpenCompass's model class: its requests over a socket, without OpenCompass."""

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

NAME = "moebench.harness.evaluate.opencompass.moebench_model"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module with stand-ins for OpenCompass's classes."""
    base = ModuleType("opencompass.models.base")
    base.BaseModel = object  # type: ignore[attr-defined]
    base.LMTemplateParser = lambda: "the parser"  # type: ignore[attr-defined]
    for name in ("opencompass", "opencompass.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "opencompass.models.base", base)
    monkeypatch.setenv("MOEBENCH_OPENCOMPASS_TOKEN", "secret")
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield import_module(NAME)
    sys.modules.pop(NAME, None)


@contextmanager
def answering(*answers: Any) -> Iterator[SimpleNamespace]:
    """Listen on a socket, answer requests one after another, and note each line."""
    path, lines = "answers.sock", list[str]()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(1)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rw", encoding="utf-8") as stream:
                lines.append(stream.readline())
                for answer in answers:
                    lines.append(stream.readline())
                    stream.write(json.dumps(answer) + "\n")
                    stream.flush()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield SimpleNamespace(path=path, lines=lines)
        thread.join(10)
    Path(path).unlink()


def test_requests_are_lines_of_json_after_the_token(module: Any) -> None:
    answers: Any = ({"texts": ["a", "b"]}, {"texts": []}, {"values": [1.5, 2]}, {"values": [3]},
               {"value": 7})  # fmt: skip
    with answering(*answers) as served:
        model = module.MoeBenchModel(served.path, 100, True, batch_padding=True)
        assert (model.path, model.max_seq_len, model.tokenizer_only) == ("answers.sock", 100, True)
        assert (model.template_parser, model.eos_token_id) == ("the parser", None)
        assert model.generation_kwargs == {}
        assert model.generate([1, "two"], 16, ["\n"], temperature=0) == ["a", "b"]
        assert model.generate([], max_out_len=8) == []
        assert model.get_ppl(["x", 2]).tolist() == [1.5, 2.0]
        assert model.get_ppl(["x"], [3.0]).tolist() == [3.0]
        found = model.get_token_len(5)
        assert (found, type(found)) == (7, int)
        model._lines.close()
        model._connection.close()
    token, *requests = served.lines
    assert token == "secret\n"
    assert [json.loads(line) for line in requests] == [
        {"ask": "generate", "inputs": ["1", "two"], "max_out_len": 16, "stops": ["\n"]},
        {"ask": "generate", "inputs": [], "max_out_len": 8, "stops": []},
        {"ask": "ppl", "inputs": ["x", "2"], "mask_length": None},
        {"ask": "ppl", "inputs": ["x"], "mask_length": [3]},
        {"ask": "token_len", "input": "5"},
    ]


@pytest.mark.parametrize(
    ("answers", "error", "said"),
    [
        (({"failed": "too long"},), RuntimeError, "too long"),
        ((), ConnectionError, "the moebench process has ended"),
    ],
)
def test_a_failed_request_is_an_error(
    answers: tuple[Any, ...], error: type[Exception], said: str, module: Any
) -> None:
    with answering(*answers) as served:
        model = module.MoeBenchModel(served.path)
        assert (model.max_seq_len, model.tokenizer_only) == (2048, False)
        ask: Callable[[str], int] = model.get_token_len
        with pytest.raises(error, match=said):
            ask("x")
        model._lines.close()
        model._connection.close()
