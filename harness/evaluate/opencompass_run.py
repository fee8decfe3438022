"""Runs OpenCompass on a started run; its process sends requests over a local socket."""

import csv
import json
import math
import os
import re
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.harness.evaluate.opencompass_data import DATASETS, check, write_data
from moebench.harness.evaluate.opencompass_server import TOKEN_VARIABLE, Server
from moebench.harness.evaluate.outcome import Metric, TaskResult
from moebench.harness.evaluate.packages import require_opencompass
from moebench.harness.evaluate.session import EvaluatedSession
from moebench.harness.evaluate.tasks import Questions
from moebench.substrate.errors import MoeBenchError

__all__ = ["check", "evaluate", "version"]

#: Folder of the modules that OpenCompass's process imports from moebench.
_THEIRS = Path(__file__).parent / "opencompass"


def version() -> str:
    """Return the version of OpenCompass in its own environment."""
    said = subprocess.run(
        [require_opencompass(), "-c",
         "from importlib.metadata import version; print(version('opencompass'))"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if said.returncode:
        last = (said.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise MoeBenchError(f"OpenCompass's environment has no OpenCompass: {last}")
    return said.stdout.strip()


def evaluate(
    session: EvaluatedSession, asked: Sequence[Questions], folder: Path,
    progress: Callable[[int, int], None],
) -> list[TaskResult]:  # fmt: skip
    """Run every task with OpenCompass and return the scores.

    Args:
        folder: folder for data files and OpenCompass's results.
        progress: called with the number of answered batches and their total.

    Raises MoeBenchError: OpenCompass's process failed; the error names its log file.
    """
    write_data(asked, folder / "data")
    log = folder / "opencompass.log"
    with ExitStack() as stack:
        # A socket's path must be short, so it is not in the user's folder.
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="moebench-"))
        address = str(Path(place) / "socket")
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(address)
        listener.listen()
        token = secrets.token_hex(16)
        process = _start(session, asked, folder, (address, token), log)
        stack.callback(_stop, process)
        batch = session.spec.batch
        total = sum(
            DATASETS[one.name].labels * -(-len(one.drawn.examples) // batch) for one in asked
        )
        server = Server(
            listener, token, session.responder, lambda done: progress(done, total), console.say
        )
        server.serve(lambda: process.poll() is None)
        code = process.wait()
    found = sorted(folder.glob("out/*/summary/*.csv"))
    if code or not found:
        raise MoeBenchError(f"OpenCompass failed with code {code}: {_last(log)}; all of it: {log}")
    return [_result(questions, found[-1], log) for questions in asked]


# ------------------------------------------------------------------------- its process


def _start(
    session: EvaluatedSession,
    asked: Sequence[Questions],
    folder: Path,
    server: tuple[str, str],
    log: Path,
) -> "subprocess.Popen[bytes]":
    address, token = server
    task = {
        "socket": address, "max_seq_len": session.max_length, "batch": session.spec.batch,
        "data": str((folder / "data").absolute()),
        "datasets": [DATASETS[questions.name].abbr for questions in asked],
    }  # fmt: skip
    environment = os.environ | {
        "PYTHONPATH": str(_THEIRS), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_CACHE": str((folder / "cache").absolute()),
        "CUDA_VISIBLE_DEVICES": "", TOKEN_VARIABLE: token,
    }  # fmt: skip
    config = folder / "moebench_config.py"
    template = (_THEIRS / config.name).read_text(encoding="utf-8")
    text = re.sub(r"(?m)^task: dict = .*$", lambda _: f"task = {task!r}", template)
    config.write_text(text, encoding="utf-8")
    python = require_opencompass()
    with log.open("wb") as printed:
        # "--debug" makes OpenCompass use one process instead of one for each data set.
        return subprocess.Popen(
            [python.parent / "opencompass", config.absolute(), "--debug",
             "-w", (folder / "out").absolute()],
            stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT, cwd=folder,
            env=environment, start_new_session=True,
        )  # fmt: skip


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Kill OpenCompass's process and its children, if they still run."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, 9)
    process.wait()


def _last(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it said nothing"


# ------------------------------------------------------------------------- its results


def _result(questions: Questions, summary: Path, log: Path) -> TaskResult:
    """Return a data set's score from the summary, and its examples' from the results file."""
    (abbr, config, *_), drawn = DATASETS[questions.name], questions.drawn
    with summary.open(encoding="utf-8", newline="") as file:
        row = next((row for row in csv.DictReader(file) if row["dataset"] == abbr), None)
    if row is None or row["moebench"] == "-":  # OpenCompass continues after a data set fails
        raise MoeBenchError(f"OpenCompass has no figure for {abbr}; see {log}")
    file_of_task = summary.parents[1] / "results" / "moebench" / f"{abbr}.json"
    items = _items(json.loads(file_of_task.read_text(encoding="utf-8")))
    n = len(drawn.examples)
    value = float(row["moebench"])
    share = value / 100
    return TaskResult(
        task=abbr,
        workload=questions.name,
        version=config,
        task_hash=row["version"],
        data=drawn.source,
        data_hash=drawn.data_hash,
        shown=0,
        n=n,
        metrics=[
            Metric(
                name=f"{row['metric']} ({row['mode']})",
                value=value,
                whole=100.0,
                guessing=100 * questions.guessing,
                # OpenCompass reports no standard error, so use that of a proportion.
                stderr=100 * math.sqrt(share * (1 - share) / n),
                higher_is_better=True,
                items=items,
            )
        ],
    )


def _items(results: Mapping[str, Any]) -> list[float]:
    """Return 1.0 or 0.0 for each right or wrong example, or [] if the results lack them."""
    details = results.get("details")
    if isinstance(details, Mapping):
        details = [details[key] for key in sorted(filter(str.isdigit, details), key=int)]
    if not isinstance(details, list):
        return []
    marks: list[Any] = [
        next((d[key] for key in ("correct", "is_correct") if key in d), None) for d in details
    ]
    return [] if None in marks else [float(all(mark) if isinstance(mark, list) else mark)
                                     for mark in marks]  # fmt: skip
