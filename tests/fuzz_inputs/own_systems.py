"""Fuzzing of user-defined systems, given as ``module:Class``."""

import sys
from itertools import count
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz_inputs.door import Case, Door, finite, weighted
from tests.harness.commands import SMALL

_NUMBER = count()

HEAD = """
from dataclasses import dataclass, field
from collections.abc import Sequence
import numpy as np
from moebench import (
    Active, Assignment, Eviction, Fetch, LayerView, Placement, Plan, Prefetching, Routed, Routing,
    System, split,
)
from moebench.systems.smoe import SMoE
"""

#: By decision: its base, its method, a right body, and bodies that answer something else.
METHODS = {
    "evict": ("Eviction", "victim", "self, allowed, incoming",
              "return int(allowed.argmax()) if allowed.any() else None",
              ["return 'x'", "return 1.5", "return [1]", "return True", "return allowed"]),
    "assign": ("Assignment", "assign", "self, view, active",
               "return split(active, [Fetch(view.layer, e) for e in active.absent])",
               ["return None", "return []", "return 3", "return {}", "return 'x'"]),
    "prefetch": ("Prefetching", "prefetch", "self, view, forecast", "return []",
                 ["return None", "return 3", "return [1]", "return {3}", "return 'x'"]),
    "place": ("Placement", "place", "self, shape, slots, scope", "return []",
              ["return None", "return 3", "return [1]", "return 'ab'", "return [(1, 2, 3)]",
               "return [('a', 'b')]"]),
    "route": ("Routing", "route", "self, view",
              "return Routed(view.topk_ids_TK, view.topk_ids_TK)",
              ["return None", "return view.topk_ids_TK", "return (1, 2)", "return Routed(1, 2)",
               "return Routed(view.scores, view.scores)"]),
}  # fmt: skip
DECISION = st.sampled_from(sorted(METHODS))


def source(
    decision: str, body: str, method: str | None = None, above: str = "@dataclass(kw_only=True)\n",
    above_system: str = "@dataclass(kw_only=True)\n", more: str = "", field: str | None = None,
) -> str:  # fmt: skip
    base, name, signature, *_ = METHODS[decision]
    text = f"{HEAD}\n\n{above}class Own({base}):\n{more}"
    text += f"    def {method or name}({signature}):\n        {body}\n"
    line = f"{decision}: {base} = field(default_factory=Own)" if field is None else field
    return f"{text}\n\n{above_system}class Mine(SMoE):\n    {line}\n"


def running(text: str, names: tuple[str, ...], good: bool | None, about: str) -> Case:
    module = f"own_{next(_NUMBER)}"  # Python imports a name once

    def prepare(folder: Path) -> None:
        (folder / f"{module}.py").write_text(text)
        sys.path[:] = [place for place in sys.path if "door-" not in place]
        sys.dont_write_bytecode = True

    arguments = (
        "run", "--system", f"{module}:Mine", *SMALL, "--capacity", "0.25", "--no-interval",
        "--json",
    )  # fmt: skip
    return Case(arguments, prepare, names, good, lambda called: finite(called.json), about)


@st.composite
def answers(draw: st.DrawFn) -> Case:
    """Generate systems with a decision that returns a wrong type or value."""
    decision = draw(DECISION)
    body = draw(st.sampled_from(METHODS[decision][4]))
    names = (".py: class Own", METHODS[decision][1], "write return")
    # Eviction is not called if no expert must leave.
    good = None if decision == "evict" else False
    return running(source(decision, body), names, good, f"{decision}: {body}")


@st.composite
def lacking(draw: st.DrawFn) -> Case:
    """Generate systems without a required method; route and prefetch inherit defaults."""
    decision = draw(st.sampled_from(["evict", "assign", "place"]))
    names = ("Own", f"write def {METHODS[decision][1]}(self")
    return running(source(decision, "pass", "other"), names, False, f"{decision} lacks")


@st.composite
def plain_classes(draw: st.DrawFn) -> Case:
    """Generate plain classes with fields (no dataclasses), and fields without a type."""
    decision, right = draw(DECISION), METHODS
    body = right[decision][3]
    kind = draw(st.sampled_from(["policy", "system", "untyped", "object"]))
    if kind == "policy":
        text = source(decision, body, above="", more="    threshold: float = 0.5\n\n")
        return running(text, ("class Own", "threshold", "@dataclass"), False, "plain policy")
    if kind == "system":
        text = source(decision, body, above_system="")
        return running(text, ("class Mine", decision, "@dataclass"), False, "plain system")
    if kind == "untyped":
        text = source(decision, body, field=f"{decision} = Own()")
        return running(text, ("class Mine", decision, "field("), False, "untyped")
    other = draw(st.sampled_from(["dict", "list", "lambda: 3", "System", "str"]))
    base = right[decision][0]
    text = source(decision, body, field=f"{decision}: {base} = field(default_factory={other})")
    return running(text, ("Mine", decision), False, f"factory {other}")


FAILS = (
    "1 / 0", "raise ValueError('no')", "nosuch", "[][0]", "None.x", "raise RecursionError",
    "import nosuch", "raise KeyError(3)",
)  # fmt: skip


@st.composite
def raising(draw: st.DrawFn) -> Case:
    """Generate systems whose code fails when imported, constructed or called."""
    fails = draw(st.sampled_from(FAILS))
    place = draw(st.sampled_from(["module", "body", "made", "class"]))
    decision = draw(st.sampled_from(["assign", "place", "route"]))
    right = METHODS[decision][3]
    if place == "module":
        text = source(decision, right) + f"\n{fails}\n"
    elif place == "body":
        text = source(decision, fails)
    elif place == "made":
        more = f"    def __post_init__(self):\n        {fails}\n\n"
        text = source(decision, right, more=more)
    else:
        text = source(decision, right, more=f"    {fails}\n\n")
    return running(text, ("own_",) if place != "made" else ("Mine", decision), False, place)


@st.composite
def raw_modules(draw: st.DrawFn) -> Case:
    """Generate files that are not modules, or lack the named class."""
    text = draw(st.one_of(st.sampled_from(["", "Mine = 3", "class Mine: pass", "def broken(:", "\0",
                                           "Mine = None", "import sys; sys.exit(3)"]),
                          st.text(max_size=8).filter(lambda t: "\ud800" not in t)))  # fmt: skip
    return running(text, ("own_",), False, f"raw {text!r:.20}")


@st.composite
def names_of_systems(draw: st.DrawFn) -> Case:
    """Generate names that denote no system."""
    typed = draw(st.one_of(st.sampled_from(["a:", ":b", "a:b:c", "..:x", ".a:b", "a b:c", "os:path",
                                            "sys:exit", "moebench:System", "a/b.py:C"]),
                           st.text(alphabet="ab:./ ", min_size=1, max_size=5)))  # fmt: skip
    return Case(("run", f"--system={typed}", *SMALL), names=(), about=f"--system {typed!r}")


@st.composite
def right_systems(draw: st.DrawFn) -> Case:
    """Generate valid systems; a policy without options need not be a dataclass."""
    decision = draw(DECISION)
    above = draw(st.sampled_from(["", "@dataclass\n", "@dataclass(kw_only=True)\n"]))
    more = draw(st.sampled_from(["", "    reserve = 0\n\n"]))
    text = source(decision, METHODS[decision][3], above=above, more=more)
    return running(text, (), True, f"right {decision}")


DOOR = Door(
    "own systems",
    weighted(
        (4, answers()), (2, lacking()), (4, plain_classes()), (4, raising()), (2, raw_modules()),
        (2, names_of_systems()), (2, right_systems()),
    ),
)  # fmt: skip
