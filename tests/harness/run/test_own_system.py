"""A system of the user's own, given as ``module:Class``."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.commands import SMALL, call, run

pytestmark = pytest.mark.usefixtures("tiny_models")

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
        (
            "from dataclasses import dataclass, field\nfrom moebench import Eviction\n"
            "from moebench.systems.smoe import SMoE\n\n"
            "@dataclass(kw_only=True)\nclass Mine(SMoE):\n"
            "    evict: Eviction = field(default_factory=Eviction)\n",
            "write def victim(self, allowed: numpy.ndarray, incoming: int) -> int | None in class",
        ),
    ],
)
def test_a_broken_module_is_one_line(own, source, said):
    own("LeastRecentlyUsed")
    Path("mine.py").write_text(source)
    called = call("run", "--system", "mine:Mine", *SMALL)
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert said in called.err


def test_a_policy_without_options_need_not_be_a_dataclass(own):
    own("LeastRecentlyUsed")
    with Path("mine.py").open("a") as file:
        file.write(
            "\n\nclass Lowest(Eviction):\n"
            "    def victim(self, allowed, incoming):\n"
            "        return int(allowed.argmax()) if allowed.any() else None\n\n\n"
            "@dataclass(kw_only=True)\n"
            "class Bare(SMoE):\n"
            "    evict: Eviction = field(default_factory=Lowest)\n"
        )
    assert run("mine:Bare")["spec"]["options"]["evict"] == "Lowest"
    called = call("run", "--system", "mine:Bare", *SMALL, "--set", "evict.window=3")
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "unknown option 'evict.window'" in called.err


def test_a_lossy_router_may_not_call_itself_lossless(own):
    own("LeastRecentlyUsed")
    with Path("mine.py").open("a") as file:
        file.write(
            "\n\nfrom moebench.systems.smoe import ExpertCacheRouter\n\n\n"
            "class Liar(ExpertCacheRouter):\n"
            "    def lossless_at(self, alpha):\n"
            "        return True\n\n\n"
            "@dataclass(kw_only=True)\n"
            "class Lies(SMoE):\n"
            "    route: ExpertCacheRouter = field(default_factory=Liar)\n"
        )
    given = ("--capacity", "0.25", "--alpha", "0.9", "--new-tokens", "12")
    assert run("smoe", *given)["metrics"]["experts"]["decode"]["replaced"] > 0
    called = call("run", "--system", "mine:Lies", *SMALL, *given)
    assert called.code == 2
    assert called.err.count("\n") == 1
    assert "Liar says that it is lossless" in called.err


# --------------------------------------------------------------------------- modules beside it

HELPED = """
from dataclasses import dataclass, field

from helper import KeepEven
from moebench import Eviction
from moebench.systems.baselines import MoEOnDemand


@dataclass(kw_only=True)
class Helped(MoEOnDemand):
    evict: Eviction = field(default_factory=KeepEven)
"""
HELPER = """
from dataclasses import dataclass

from deeper.choice import preferred
from moebench import Eviction


@dataclass(kw_only=True)
class KeepEven(Eviction):
    def victim(self, allowed, incoming):
        return preferred(allowed.nonzero()[0].tolist())
"""
CHOICE = """
def preferred(keys):
    return min(keys, default=None)
"""


@pytest.fixture
def helped(own, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """A system whose policy lies in a module beside it, and what that decides in a package."""
    # Bytecode of a file that changes within a second, but not in size, counts as up to date.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = ("mine", "helper", "deeper", "deeper.choice")

    def write(file: str, source: str) -> None:
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_text(source)
        for name in names:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()

    for file, source in [
        ("mine.py", HELPED), ("helper.py", HELPER), ("deeper/choice.py", CHOICE),
        ("deeper/__init__.py", ""), ("alone.py", ""),
    ]:  # fmt: skip
        write(file, source)
    yield write
    for name in names:
        sys.modules.pop(name, None)


def test_a_changed_helper_is_another_run(helped):
    """Of whatever module of the user's own is imported, however far away; not of any other."""
    small = ("--capacity", "0.25", "--prompts", "2", "--new-tokens", "12")
    first = run("mine:Helped", *small)
    helped("alone.py", "nothing = 'imports this'")
    assert run("mine:Helped", *small) == first  # the stored one
    helped("deeper/choice.py", CHOICE.replace("min", "max"))
    second = run("mine:Helped", *small)
    assert second["run_id"] != first["run_id"]
    # It was really run again, and evicts others.
    assert second["metrics"]["cache_ratio"] != first["metrics"]["cache_ratio"]
    helped("helper.py", HELPER.replace("preferred(", "(lambda keys: keys[0])("))
    third = run("mine:Helped", *small)
    assert third["run_id"] not in (first["run_id"], second["run_id"])
    assert third["metrics"] == first["metrics"]  # the lowest key again
    helped("deeper/__init__.py", "CHANGED = True")
    ids = {first["run_id"], second["run_id"], third["run_id"]}
    assert run("mine:Helped", *small)["run_id"] not in ids


RESTRICTED = """
from dataclasses import dataclass

from moebench.systems.baselines import MoEOnDemand


@dataclass(kw_only=True)
class OneAtATime(MoEOnDemand):
    max_batch = 1

    def why_not(self, shape, batch):
        if shape.family == "mixtral":
            return "it has no kernels for this family"
        return super().why_not(shape, batch)

    def remarks(self, shape, slots):
        return [f"{slots} experts on the device"]
"""


@pytest.fixture
def restricted(own):
    Path("mine.py").write_text(RESTRICTED)
    return "mine:OneAtATime"


def test_what_it_remarks_is_in_the_document(restricted):
    document = run(restricted)
    assert f"{document['spec']['slots']} experts on the device" in document["notes"]


SIZED = """
from dataclasses import dataclass, field

from moebench.systems.baselines import MoEOnDemand
from moebench.systems.policies.prefetch import NoPrefetch


@dataclass(kw_only=True)
class Sized(NoPrefetch):
    def full_size(self, shape):
        self.full = shape.expert_params

    def start(self, shape, cache):
        self.computes = shape.expert_params


@dataclass(kw_only=True)
class Asked(MoEOnDemand):
    prefetch: NoPrefetch = field(default_factory=Sized)

    def remarks(self, shape, slots):
        assert not hasattr(self.prefetch, "computes")
        return [f"{self.prefetch.full} of {shape.expert_params}"]
"""


def test_its_policies_learn_the_model_that_is_charged(own):
    Path("mine.py").write_text(SIZED)
    told, charged = run("mine:Asked")["notes"][-1].split(" of ")
    assert int(told) == int(charged) > 10**6


EXPECTS = """
from dataclasses import dataclass, field

from moebench.systems.baselines import MoEOnDemand
from moebench.systems.policies.prefetch import NoPrefetch


@dataclass(kw_only=True)
class Expecting(NoPrefetch):
    def expect(self, prompt_tokens, texts=1):
        self.tokens = prompt_tokens


@dataclass(kw_only=True)
class Told(MoEOnDemand):
    prefetch: NoPrefetch = field(default_factory=Expecting)

    def remarks(self, shape, slots):
        return [f"expects {self.prefetch.tokens} tokens"]
"""


@pytest.mark.parametrize(
    ("given", "batch", "answer"),
    [
        ((), 1, 0),
        (("--batch", "2", "--prompts", "2"), 2, 0),
        # Here an answer may be of any length: it counts with the prompt.
        (("--scoring", "generation", "--new-tokens", "3"), 1, 3),
    ],
)
def test_its_policies_learn_how_long_prompts_can_be(own, given, batch, answer):
    Path("mine.py").write_text(EXPECTS)
    notes = run("mine:Told", *given)["notes"]
    told = next(int(note.split()[1]) for note in notes if note.startswith("expects"))
    longest = next(int(note.split()[4]) for note in notes if note.startswith("prompts of"))
    if not answer:
        assert told == batch * longest
    else:
        assert told >= longest + answer


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--setting", "S3", "--batch", "2"], "defined for 1 sequence(s) at once, not 2"),
        (["--model", "mixtral-8x7b", "--machine", "a6000"], "it has no kernels for this family"),
    ],
)
def test_where_it_does_not_exist_it_is_refused_in_a_line(restricted, given, reason):
    code, _, error = call("run", "--system", restricted, *given)
    assert code == 2
    assert error.count("\n") == 1
    assert reason in error


def test_a_sweep_leaves_out_where_it_does_not_exist_and_says_so(restricted):
    code, out, error = call(
        "sweep", "--systems", restricted, "--settings", "S3", "--batches", "1,2",
        "--prompts", "2", "--new-tokens", "2", "--jobs", "0", "--dry-run",
    )  # fmt: skip
    assert code == 0
    assert "n/a: mine:OneAtATime with qwen2-57b-a14b: defined for 1 sequence" in out + error


PLAIN = """
from typing import ClassVar

from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.smoe import SMoE


class WithoutDataclass(SMoE):
    depth: int = 2


class OnlyOfTheClass(SMoE):
    kinds: ClassVar[int] = 2


class WithoutType(SMoE):
    evict = LeastRecentlyUsed()
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("WithoutDataclass", "has the field depth and is no dataclass"),
        ("WithoutType", "evict has no type, so that nobody reads it"),
        ("OnlyOfTheClass", ""),
    ],
)
def test_fields_that_python_would_ignore_are_refused(own, name, said):
    own("LeastRecentlyUsed")
    Path("mine.py").write_text(PLAIN)
    called = call("run", "--system", f"mine:{name}", *SMALL)
    assert called.code == (2 if said else 0), called.err
    assert said in called.err
