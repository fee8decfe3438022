"""What users' policies return is accepted in every form that means the same, and no other."""

import traceback
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from moebench.substrate.engine.decisions import Fetch, Plan, Routed
from moebench.substrate.engine.policies import Eviction
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.policies.place import PlaceById
from moebench.systems.user_classes import (
    BASES,
    _fetches,
    _pairs,
    blamed,
    check_class,
    guard,
    is_own,
    made,
)


@pytest.mark.parametrize("value", [[], (), [(0, 1)], ([0, 1], (np.int64(2), 3))])
def test_pairs_of_layer_and_expert(value: object) -> None:
    assert _pairs(value)


@pytest.mark.parametrize("value", [None, 3, {(0, 1)}, [(0,)], [(0, 1, 2)], [(0, 1.0)], [(True, 1)]])
def test_what_is_no_list_of_pairs(value: object) -> None:
    assert not _pairs(value)


def test_lists_of_fetches() -> None:
    assert _fetches([Fetch(0, 1)])
    assert _fetches((Fetch(0, 1),))
    assert not _fetches([(0, 1)])
    assert not _fetches({Fetch(0, 1): 1})


# --------------------------------------------------------------------------- guards

IDS = np.array([[0, 1]])
#: By decision: the checked method, answers that are right, and answers that are not.
ANSWERS = {
    "place": ("place", [[(0, 1)], ((0, 1),), iter([(0, 1)]), {0: 1}.items()],
              ["ab", {(0, 1): 2}, [(0, None)], None]),
    "route": ("route", [Routed(IDS, IDS)],
              [Routed(IDS[0], IDS), Routed(IDS, IDS * 1.0), (IDS, IDS), Routed(IDS, [[0, 1]])]),
    "assign": ("assign", [Plan([0])], [None, ([0], ())]),
    "prefetch": ("prefetch", [[], [Fetch(0, 1)]], [None, [(0, 1)], "x"]),
    "admit": ("uploads", [(), (Fetch(0, 1),)], [None, [3]]),
    "evict": ("victim", [None, 3, np.int64(3)], [True, 1.0, "1"]),
}  # fmt: skip


@pytest.mark.parametrize("decision", ANSWERS)
def test_answers_of_a_policy_of_ones_own_are_checked(decision: str) -> None:
    name, right, wrong = ANSWERS[decision]
    for value in right:
        own = type(
            "Own",
            (BASES[decision],),
            {"__module__": __name__, name: lambda self, *a, value=value, **more: value},
        )
        own.__abstractmethods__ = frozenset()
        policy = own()
        assert guard(decision, policy) is policy
        found = getattr(policy, name)(1, named=2)
        assert found is value or list(found) == [(0, 1)]
    for value in wrong:
        own = type(
            "Own",
            (BASES[decision],),
            {"__module__": __name__, name: lambda self, *a, value=value: value},
        )
        own.__abstractmethods__ = frozenset()
        policy = guard(decision, own())
        with pytest.raises(UsageError) as caught:
            getattr(policy, name)()
        line = str(caught.value)
        assert line.startswith(f"test_user_classes.py: class Own: {name} returned ")
        assert "; write return " in line


def test_policies_of_moebench_are_not_checked() -> None:
    plain = LeastRecentlyUsed()
    assert guard("evict", plain) is plain
    assert "victim" not in vars(plain)
    inherits = type(
        "Own", (LeastRecentlyUsed,), {"__module__": __name__}
    )()  # its answers are moebench's
    assert "victim" not in vars(guard("evict", inherits))
    assert [is_own(one) for one in (type(inherits), LeastRecentlyUsed)] == [True, False]


def test_a_policy_is_made_or_refused_in_one_line() -> None:
    class Mine(System):
        pass

    def fails() -> None:
        raise KeyError("x")

    assert isinstance(made("evict", LeastRecentlyUsed, Mine), LeastRecentlyUsed)
    for decision, factory, says in (
        ("evict", fails, r"Mine: cannot make its evict \(KeyError: 'x'\)$"),
        ("evict", PlaceById, r"Mine: its evict is PlaceById\(.*; write a class derived from "
         r"moebench\.Eviction, and field"),
        ("evict", type("Half", (Eviction,), {}), r"cannot make its evict \(TypeError: .*; write "
         r"def victim\(self, allowed.* in class Half$"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=says):
            made(decision, factory, Mine)


class Untyped(System):
    evict = LeastRecentlyUsed()


class Ignored(LeastRecentlyUsed):
    window: int = 3


class Undefined(LeastRecentlyUsed):
    window: "Nowhere" = 3  # type: ignore[name-defined]  # noqa: F821


class Sound(LeastRecentlyUsed):
    shared: ClassVar[int] = 3


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Untyped, "class Untyped: evict has no type, .* write evict: Eviction = field"),
        (Ignored, "class Ignored has the field window and is no dataclass, .*kw_only=True"),
        (Undefined, "class Undefined: its annotations cannot be read .*Nowhere"),
    ],
)
def test_fields_that_python_would_ignore_are_refused(kind: type, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        check_class(kind)
    assert str(caught.value).startswith("test_user_classes.py: ")
    check_class(Sound)


# --------------------------------------------------------------------------- whose error it is


def error_in(file: Path, text: str) -> Exception:
    """Return the error that the code of a file raises."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    try:
        exec(compile(text, str(file), "exec"), {})
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_an_error_in_the_users_file_names_its_line(tmp_path: Path) -> None:
    code = "def choose():\n    return 1 / 0\n\nchoose()\n"
    found = blamed(error_in(tmp_path / "mine.py", code), "mine:Mine")
    assert str(found) == (
        "mine:Mine: mine.py:2, in choose: ZeroDivisionError: division by zero; moebench doctor "
        "--system mine:Mine checks all of it"
    )
    # The innermost of the user's own frames counts, not what it called.
    deep = blamed(error_in(tmp_path / "deep.py", "import json\njson.loads('x')\n"), "deep:Mine")
    assert "deep.py:1" not in str(deep)
    assert str(deep).startswith("deep:Mine: deep.py:2, in <module>: JSONDecodeError: ")


@pytest.mark.parametrize(
    "place", ["site-packages/other.py", "moebench/other.py", "lib/python3/other.py", "other.txt"]
)
def test_errors_elsewhere_are_not_the_users(place: str, tmp_path: Path) -> None:
    error = error_in(tmp_path / place, "1 / 0")
    # Without the frame of this test, only that of the file is left.
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    assert str(tmp_path / place) in frames
    found = blamed(error.with_traceback(error.__traceback__.tb_next), "mine:Mine")  # type: ignore[union-attr]
    assert found is None


def test_only_a_users_class_is_blamed(tmp_path: Path) -> None:
    assert blamed(error_in(tmp_path / "mine.py", "1 / 0"), "smoe") is None
    assert blamed(ValueError("never raised"), "mine:Mine") is None
