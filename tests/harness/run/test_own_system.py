"""A system of the user's own, given as ``module:Class``."""

import sys
from pathlib import Path

import pytest

from tests.harness.commands import SMALL, call, run

SOURCE = """
from dataclasses import dataclass, field

from moebench import Eviction, System
from moebench.systems.policies.evict import {evict}
from moebench.systems.smoe import SMoE

NotASystem = 3


@dataclass(kw_only=True)
class Mine(SMoE):
    evict: Eviction = field(default_factory={evict})
"""


@pytest.fixture
def own(monkeypatch):
    """Write the user's module into the current folder and forget what an earlier test imported."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(evict: str) -> None:
        Path("mine.py").write_text(SOURCE.format(evict=evict))
        sys.modules.pop("mine", None)

    yield write
    sys.modules.pop("mine", None)


def test_it_runs_beside_all_others_and_a_changed_file_is_another_run(own):
    own("LeastRecentlyUsed")
    first = run("mine:Mine")
    assert first["spec"]["options"]["evict"] == "lru"
    assert run("mine:Mine")["run_id"] == first["run_id"]
    own("LeastFrequentlyUsed")
    second = run("mine:Mine")
    assert second["spec"]["options"]["evict"] == "lfu"
    assert second["run_id"] != first["run_id"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("nosuch:Mine", "cannot import nosuch"), ("mine:NotASystem", "is not a System")],
)
def test_what_is_no_system_is_one_line(own, name, said):
    own("LeastRecentlyUsed")
    called = call("run", "--system", name, *SMALL)
    assert called.code == 2
    assert said in called.err
    assert called.err.count("\n") == 1


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def broken(:", "cannot import mine (SyntaxError"),
        ("1 / 0", "cannot import mine (ZeroDivisionError"),
        (
            "from dataclasses import dataclass\nfrom moebench import System\n\n"
            "@dataclass(kw_only=True)\nclass Mine(System):\n    pass\n",
            "Mine has no default for place",
        ),
    ],
)
def test_a_broken_module_is_one_line(own, source, said):
    own("LeastRecentlyUsed")
    Path("mine.py").write_text(source)
    called = call("run", "--system", "mine:Mine", *SMALL)
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert said in called.err


def test_a_lossy_router_may_not_call_itself_lossless(own):
    own("LeastRecentlyUsed")
    with Path("mine.py").open("a") as file:
        file.write(
            "\n\nfrom systems.smoe import ExpertCacheRouter\n\n\n"
            "class Liar(ExpertCacheRouter):\n"
            "    def route(self, view):\n"
            "        return ExpertCacheRouter(alpha=0.9).route(view)\n\n"
            "    lossless = True\n\n\n"
            "@dataclass(kw_only=True)\n"
            "class Lies(SMoE):\n"
            "    route: ExpertCacheRouter = field(default_factory=Liar)\n"
        )
    called = call("run", "--system", "mine:Lies", *SMALL, "--cache-ratio", "0.05")
    assert called.code == 2
    assert "Liar says that it is lossless" in called.err
