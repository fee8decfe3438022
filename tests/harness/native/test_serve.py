"""The main program of a package's process, in this one, with a package that notes its orders."""

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.native import process, serve
from moebench.substrate.errors import MoeBenchError

JOB = {"adapter": "an.adapter", "libraries": ["json", "torch"], "model": "m", "folder": "f",
       "options": {"threads": 3}, "context": 9, "batch": 2}  # fmt: skip


def proc(monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    def read(path: Path, *given: Any, **more: Any) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read)


def test_usage_is_what_the_kernel_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = SimpleNamespace(ru_majflt=1, ru_minflt=2, ru_nivcsw=3, ru_nvcsw=4)
    monkeypatch.setattr("resource.getrusage", {0: counted}.__getitem__)
    known = {"major_faults": 1, "minor_faults": 2, "involuntary_switches": 3}
    io_, status = "rchar: 50\nwchar: 60\nread_bytes: 70\n", "VmHWM:\t   12 kB\nVmRSS:\t 9 kB\n"
    proc(monkeypatch, {"/proc/self/io": io_, "/proc/self/status": status})
    assert serve.usage() == known | {
        "asked_bytes": 50, "read_bytes": 70, "peak_rss_bytes": 12 * 1024
    }  # fmt: skip
    proc(monkeypatch, {"/proc/self/status": status})
    assert serve.usage() == known | {"peak_rss_bytes": 12 * 1024}
    proc(monkeypatch, {})
    assert serve.usage() == known


@pytest.mark.parametrize("with_torch", [True, False])
def test_a_job_is_loaded_and_its_orders_carried_out(
    with_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    asked: list[Any] = []
    now = iter(range(1000, 9000, 1000))

    class Runner:
        facts = ("a fact",)

        def generate(self, prompts: Any, new_tokens: int, end: Any, put: Any) -> None:
            asked.append((prompts, new_tokens, end))
            put((4, 5))
            put([6])

    def runner(job: Any) -> Runner:
        asked.append((job.model, job.context, job.batch))
        return Runner()

    modules = {"json": json, "an.adapter": SimpleNamespace(runner=runner),
               "torch": SimpleNamespace(set_num_threads=lambda n: asked.append(n))}  # fmt: skip
    imported: list[str] = []
    monkeypatch.setattr(serve, "import_module", lambda name: imported.append(name) or modules[name])
    monkeypatch.setattr(serve, "_version", lambda name: f"{name} 1")
    monkeypatch.setattr(serve, "_settle", lambda folder: asked.append(folder))
    monkeypatch.setattr(serve, "usage", lambda: {"used": len(told)})
    monkeypatch.setattr("time.monotonic_ns", lambda: next(now))
    job = JOB if with_torch else JOB | {"libraries": ["json"]}
    order = {"prompts": [[1]], "new_tokens": 2, "end": 7}
    serve._serve(iter([job, order]), lambda **what: told.append(what))
    assert told == [
        {"imported": {name: f"{name} 1" for name in job["libraries"]}},  # type: ignore[attr-defined]
        {"loaded": ["a fact"], "load_ns": 1000, "usage": {"used": 1}},
        {"started": 3000}, {"ns": 4000, "tokens": [4, 5]}, {"ns": 5000, "tokens": [6]},
        {"done": {"used": 5}},
    ]  # fmt: skip
    threads = [3] if with_torch else []
    assert imported == [*job["libraries"], *["torch"][: len(threads)], "an.adapter"]  # type: ignore
    assert asked == [*threads, ("m", 9, 2), Path("f"), ([[1]], 2, 7)]


KILLED = "p: its process was killed: it needs more memory"


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (None, None),
        (MoeBenchError("one line\nmore"), "one line"),
        (ValueError("\n what\nmore"), "ValueError: what"),
        (KeyError(), "KeyError: no message"),
    ],
)
def test_a_failure_is_the_last_message(
    error: Exception | None, said: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """What the package prints goes where errors go, and answers where its output went."""
    calls: list[Any] = []
    answers = tmp_path / "answers"

    def run(orders: Any, say: Callable[..., None]) -> None:
        assert [*orders] == [{"a": 1}, {"b": 2}]
        say(started=5)
        if error is not None:
            raise error

    def ended(code: int) -> None:
        calls.append(code)
        raise Ended

    monkeypatch.setattr(serve, "_serve", run)
    monkeypatch.setattr(serve, "_die_with_parent", lambda: calls.append("dies"))
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"a": 1}\n{"b": 2}\n'))
    monkeypatch.setattr("os.dup", lambda n: os.open(answers, os.O_WRONLY | os.O_CREAT))
    monkeypatch.setattr("os.dup2", lambda *given: calls.append(given))
    monkeypatch.setattr("os._exit", ended)
    with pytest.raises(Ended):
        serve.main()
    assert calls == ["dies", (2, 1), 0 if error is None else 1]
    messages = [json.loads(line) for line in answers.read_text().splitlines()]
    assert messages == [{"started": 5}, *([] if said is None else [{"failed": said}])]
    assert ("Traceback" in capsys.readouterr().err) is (error is not None)


def test_the_version_of_a_module_is_its_packages_or_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "version", lambda name: {"torch": "2.1"}[name])
    monkeypatch.setitem(sys.modules, "named_otherwise", SimpleNamespace(__version__="0.3"))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "without", SimpleNamespace())  # type: ignore[arg-type]
    assert [serve._version(n) for n in ("torch", "named_otherwise", "without")] == [
        "2.1", "0.3", None,
    ]  # fmt: skip


def test_what_only_loading_needed_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a", "deep/b"):
        (tmp_path / name).write_text("x")
    calls: list[Any] = []
    monkeypatch.setattr("gc.collect", lambda: calls.append("collected"))
    monkeypatch.setattr("os.fsync", lambda n: calls.append(os.readlink(f"/proc/self/fd/{n}")))
    freed = SimpleNamespace(malloc_trim=lambda n: calls.append(("trimmed", n)))
    monkeypatch.setattr("ctypes.CDLL", lambda name: freed)
    serve._settle(tmp_path)
    assert calls[:2] == ["collected", ("trimmed", 0)]
    assert sorted(calls[2:]) == [str(tmp_path / "a"), str(tmp_path / "deep" / "b")]
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace())
    serve._settle(tmp_path)


def test_the_process_ends_with_the_one_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    library = SimpleNamespace(prctl=lambda *given: calls.append(given))
    monkeypatch.setattr("ctypes.CDLL", lambda name: library)
    monkeypatch.setattr(sys, "platform", "linux")
    serve._die_with_parent()
    assert calls == [(1, signal.SIGKILL)]
    monkeypatch.setattr(sys, "platform", "darwin")
    serve._die_with_parent()
    assert len(calls) == 1, "elsewhere there is no such call"


# ------------------------------------------------------------------------- the other side


def test_a_package_runs_offline_on_the_processor_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(Path(process.__file__).parents[3])
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    found = process.environment(5)
    assert {name: found[name] for name in (
        "PYTHONPATH", "PYTHONSAFEPATH", "PATH", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM",
        "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR", "KEPT",
    )} == {
        "PYTHONPATH": root, "PYTHONSAFEPATH": "1", "PATH": f"{Path(sys.executable).parent}:/bin",
        "OMP_NUM_THREADS": "5", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu",
        "KEPT": "1",
    }  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", "/own")
    assert process.environment(1)["PYTHONPATH"] == f"{root}:/own"


@pytest.mark.parametrize(
    ("code", "limited", "printed", "says"),
    [
        (3, False, "", "p: its process ended with code 3; all of it: "),
        (-11, True, "a\n last \n\n", "p: its process was killed by signal 11 (last); all of it: "),
        (-9, False, "", "p: its process was killed by signal 9; all of it: "),
        (
            -9,
            True,
            "x",
            "p: its process was killed: it needs more memory than 3 MB (x); all of it: ",
        ),
    ],
)
def test_how_a_process_ended(
    code: int, limited: bool, printed: str, says: str, tmp_path: Path
) -> None:
    made = object.__new__(process.NativeProcess)
    made._name, made._log = "p", tmp_path / "log"
    made._log.write_text(printed)
    made._limit = SimpleNamespace(text="3 MB") if limited else None  # type: ignore[assignment]
    made._process = SimpleNamespace(wait=lambda: code)  # type: ignore[assignment]
    assert made._ended() == f"{says}{made._log}"
