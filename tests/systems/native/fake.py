"""A fake third-party package whose process imports this module and obeys a test."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from moebench.systems.native.base import Job, NativeSystem, Put, Runner

#: What it answers, whatever it is asked.
TOKEN = 7


@dataclass(kw_only=True)
class Fake(NativeSystem):
    """Fake package whose options determine its behaviour."""

    paper = "tests"
    requires = {}  # noqa: RUF012
    does: Literal["answer", "fail", "exit", "die", "hang"] = "answer"
    loads: bool = True

    @property
    def libraries(self) -> Sequence[str]:
        return ("json",)


@dataclass(kw_only=True)
class Absent(Fake):
    """Package that is not installed."""

    requires = {"no_such_module": "no-such-package"}  # noqa: RUF012


def runner(job: Job) -> Runner:
    print("the package prints to stdout, which must not disturb")
    if not job.options["loads"]:
        raise ValueError("the model cannot be loaded\nsecond line")
    return FakeRunner(job)


class FakeRunner:
    def __init__(self, job: Job) -> None:
        self.facts = (f"a batch of {job.batch}, {job.context} tokens at most",)
        self._does = job.options["does"]

    def generate(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, end: int | None, put: Put
    ) -> None:
        if self._does == "fail":
            raise RuntimeError("out of luck")
        if self._does == "exit":
            print("last words", file=sys.stderr, flush=True)
            os._exit(3)
        if self._does == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._does == "hang":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            print(f"children {os.getpid()} {child.pid}", file=sys.stderr, flush=True)
            put([TOKEN] * len(prompts))
            threading.Event().wait()
        for _ in range(new_tokens):
            put([TOKEN] * len(prompts))
