"""What OpenCompass's process is asked, and what is made of its files."""

import ast
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.evaluate import opencompass_run
from moebench.harness.evaluate.opencompass_run import _items, _last, _result, version
from moebench.harness.evaluate.opencompass_server import TOKEN_VARIABLE, answer
from moebench.harness.evaluate.outcome import Metric, TaskResult
from moebench.harness.evaluate.responder import Pair
from moebench.substrate.errors import MoeBenchError

HEADER = "dataset,version,metric,mode,moebench\n"


def asked(name: str, count: int = 4) -> Any:
    drawn = SimpleNamespace(examples=range(count), source="a source", data_hash="dh")
    return SimpleNamespace(name=name, drawn=drawn, guessing=0.25)


def files(folder: Path, summary: str, results: Any = None) -> Path:
    """Write a summary and a data set's results as OpenCompass does."""
    file = folder / "out" / "1" / "summary" / "s.csv"
    file.parent.mkdir(parents=True)
    file.write_text(HEADER + summary)
    of = folder / "out" / "1" / "results" / "moebench" / "gsm8k.json"
    of.parent.mkdir(parents=True)
    of.write_text(json.dumps(results or {}))
    return file


def test_a_score_is_read_from_the_summary_and_its_examples_from_the_results(tmp_path: Path) -> None:
    details = {"1": {"correct": True}, "0": {"correct": False}, "type": "GEN"}
    rows = "WiC,x,accuracy,ppl,50\ngsm8k,v1,accuracy,gen,75.0\n"
    file = files(tmp_path, rows, {"details": details})
    assert _result(asked("gsm8k"), file, Path("log")) == TaskResult(
        task="gsm8k", workload="gsm8k", version="gsm8k_gen_1d7fe4", task_hash="v1",
        data="a source", data_hash="dh", shown=0, n=4,
        metrics=[Metric(
            name="accuracy (gen)", value=75.0, whole=100.0, guessing=25.0,
            stderr=100 * math.sqrt(0.75 * 0.25 / 4), higher_is_better=True, items=[0.0, 1.0],
        )],
    )  # fmt: skip


@pytest.mark.parametrize("rows", ["", "gsm8k,v1,accuracy,gen,-\n", "WiC,x,accuracy,ppl,50\n"])
def test_a_data_set_without_a_figure_is_a_failure(rows: str, tmp_path: Path) -> None:
    file = files(tmp_path, rows)
    with pytest.raises(MoeBenchError, match=r"^OpenCompass has no figure for gsm8k; see log$"):
        _result(asked("gsm8k"), file, Path("log"))


@pytest.mark.parametrize(
    ("results", "items"),
    [
        ({}, []), ({"details": 3}, []), ({"details": []}, []),
        ({"details": [{"correct": True}, {"is_correct": False}]}, [1.0, 0.0]),
        ({"details": [{"correct": [True, False]}, {"correct": [True, True]}]}, [0.0, 1.0]),
        ({"details": [{"correct": True}, {"other": 1}]}, []),
        ({"details": {"10": {"correct": 1}, "9": {"correct": 0}, "x": {}}}, [0.0, 1.0]),
    ],
)  # fmt: skip
def test_examples_are_right_or_wrong_or_not_known(results: Any, items: list[float]) -> None:
    assert _items(results) == items


@pytest.mark.parametrize(
    ("text", "last"), [("", "it said nothing"), ("a\n b \n\n", "b"), ("x", "x")]
)
def test_the_last_line_of_a_log(text: str, last: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(text)
    assert _last(tmp_path / "log") == last


def test_the_version_is_that_of_its_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencompass_run, "require_opencompass", lambda: Path("/their/python"))
    said = SimpleNamespace(returncode=0, stdout=" 0.5\n", stderr="")
    calls: list[Any] = []
    monkeypatch.setattr("subprocess.run", lambda command, **more: calls.append(command) or said)
    assert version() == "0.5"
    assert calls[0][:2] == [Path("/their/python"), "-c"]
    for error, last in (("a\nb\n", "b"), ("", "it said nothing")):
        said.returncode, said.stderr = 1, error
        with pytest.raises(MoeBenchError) as caught:
            version()
        assert str(caught.value) == f"OpenCompass's environment has no OpenCompass: {last}"


@pytest.mark.parametrize(("code", "found"), [(0, True), (0, False), (3, True)])
def test_tasks_are_answered_until_the_process_ends(
    code: int, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[Any] = []
    tasks = [asked("gsm8k", 5), asked("wic", 3)]
    rows = "gsm8k,v1,accuracy,gen,75.0\nWiC,v2,accuracy,ppl,50\n"

    class Server:
        def __init__(self, listener: Any, token: str, responder: Any, *calls: Any) -> None:
            log.append((token, responder))
            self.answered = calls[0]

        def serve(self, running: Any) -> None:
            self.answered(2)
            assert running()

    seen: list[Any] = []

    def wait() -> int:
        assert seen, "it does not end before it is answered"
        return code

    process = SimpleNamespace(poll=lambda: None, wait=wait)

    def start(session: Any, given: Any, folder: Path, server: Any, file: Path) -> Any:
        log.append((given, folder, server[1], file))
        assert Path(server[0]).name == "socket"
        file.write_text("first\nlast\n")
        if found:
            summary = files(folder, rows)
            (summary.parents[1] / "results" / "moebench" / "WiC.json").write_text("{}")
        return process

    monkeypatch.setattr(opencompass_run, "Server", Server)
    monkeypatch.setattr(opencompass_run, "_start", start)
    monkeypatch.setattr(opencompass_run, "_stop", lambda one: log.append(one))
    monkeypatch.setattr(opencompass_run, "write_data", lambda given, out: log.append((given, out)))
    monkeypatch.setattr("secrets.token_hex", lambda size: "t" * size)
    session: Any = SimpleNamespace(spec=SimpleNamespace(batch=2), responder="responder")

    def evaluate() -> list[TaskResult]:
        return opencompass_run.evaluate(session, tasks, tmp_path, lambda *done: seen.append(done))

    if code or not found:
        with pytest.raises(MoeBenchError) as caught:
            evaluate()
        assert str(caught.value) == (
            f"OpenCompass failed with code {code}: last; all of it: {tmp_path / 'opencompass.log'}"
        )
    else:
        assert [one.metrics[0].value for one in evaluate()] == [75, 50]
    # Batches of two: three of generated answers, and two for each of two labels.
    assert seen == [(2, 3 + 2 * 2)]
    token = "t" * 16
    assert log == [
        (tasks, tmp_path / "data"), (tasks, tmp_path, token, tmp_path / "opencompass.log"),
        (token, "responder"), process,
    ]  # fmt: skip


def test_the_process_gets_its_task_and_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(opencompass_run, "require_opencompass", lambda: Path("/their/bin/python"))
    monkeypatch.setattr("subprocess.Popen", lambda command, **more: calls.append((command, more)))
    session: Any = SimpleNamespace(spec=SimpleNamespace(batch=2), max_length=64)
    log = tmp_path / "log"
    opencompass_run._start(session, [asked("gsm8k"), asked("wic")], tmp_path, ("/s", "t"), log)
    ((command, more),) = calls
    config = tmp_path / "moebench_config.py"
    assert command == [Path("/their/bin/opencompass"), config, "--debug", "-w", tmp_path / "out"]
    assert (more["cwd"], more["start_new_session"]) == (tmp_path, True)
    assert {name: more["env"][name] for name in (
        "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_CACHE",
        "CUDA_VISIBLE_DEVICES", TOKEN_VARIABLE)} == {
        "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": "",
        TOKEN_VARIABLE: "t",
    }  # fmt: skip
    assert Path(more["env"]["PYTHONPATH"]).name == "opencompass"
    (line,) = [one for one in config.read_text().splitlines() if one.startswith("task = ")]
    assert ast.literal_eval(line.removeprefix("task = ")) == {
        "socket": "/s", "max_seq_len": 64, "batch": 2, "data": str(tmp_path / "data"),
        "datasets": ["gsm8k", "WiC"],
    }  # fmt: skip


# --------------------------------------------------------------------------- answers


class Responder:
    """A token is a letter; a continuation's log-likelihood is minus its tokens squared."""

    def encode(self, text: str) -> list[int]:
        return [*map(ord, text)]

    def write(self, *given: Any) -> Any:
        return given

    def read(self, pairs: list[Pair]) -> list[Any]:
        return [SimpleNamespace(log_likelihood=-(len(pair.continuation) ** 2.0)) for pair in pairs]


@pytest.mark.parametrize(
    ("request_", "answered"),
    [
        ({"ask": "token_len", "input": "abc"}, {"value": 3}),
        ({"ask": "generate", "inputs": ["a"], "max_out_len": 3, "stops": ["x"]},
         {"texts": (["a"], 3, ["x"])}),
        # Of a whole text the first token is not predicted, but counts in the mean.
        ({"ask": "ppl", "inputs": ["abcd", "ab"], "mask_length": None},
         {"values": [9 / 4, 1 / 2]}),
        ({"ask": "ppl", "inputs": ["abcd", "ab"], "mask_length": [2, 1]},
         {"values": [4 / 2, 1 / 1]}),
        ({"ask": "ppl", "inputs": ["abcd"], "mask_length": [4]},
         {"failed": "mask_length must leave a token of each text"}),
        ({"ask": "ppl", "inputs": ["abcd"], "mask_length": [1, 1]},
         {"failed": "mask_length must leave a token of each text"}),
        ({"ask": "ppl", "inputs": ["abcd"], "mask_length": [3]}, {"values": [1.0]}),
    ],
)  # fmt: skip
def test_requests_are_answered_with_opencompasss_own_means(
    request_: dict[str, Any], answered: dict[str, Any]
) -> None:
    assert answer(Responder(), request_) == answered  # type: ignore[arg-type]
