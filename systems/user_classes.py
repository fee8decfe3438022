"""Checks of users' own systems and policies, with errors that state what to write instead.

Python accepts classes that the engine cannot use: a field of a class that is not a dataclass is
neither an option nor a decision, and would be ignored without a message.
"""

import inspect
import traceback
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from moebench.substrate.engine.decisions import Fetch, Plan, Routed
from moebench.substrate.engine.policies import (
    Admission,
    Assignment,
    Eviction,
    Placement,
    Policy,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.files import brief

#: Base class of each decision's policies.
BASES: dict[str, type[Policy]] = {
    "place": Placement, "route": Routing, "assign": Assignment, "prefetch": Prefetching,
    "admit": Admission, "evict": Eviction,
}  # fmt: skip

_OURS = str(Path(__file__).parents[1])


def is_own(kind: type) -> bool:
    """Return whether a class is the user's own, not one of moebench's."""
    return not kind.__module__.startswith("moebench.")


def check_class(kind: type) -> None:
    """Refuse a class with fields that Python would ignore, and state how to change it."""
    for one in kind.__mro__:
        if one is object or not is_own(one):
            continue
        try:
            hints = get_type_hints(one)
        except Exception as error:  # an annotation uses an undefined name
            raise UsageError(f"{_place(one)}: its annotations cannot be read ({error})") from error
        own = [name for name in inspect.get_annotations(one) if not _of_class(hints, name)]
        if own and "__dataclass_fields__" not in one.__dict__:
            raise UsageError(
                f"{_place(one)} has the field {own[0]} and is no dataclass, so that nobody reads "
                "it; write @dataclass(kw_only=True) above the class"
            )
        for name in BASES if issubclass(one, System) else ():
            if name in one.__dict__ and name not in own:
                raise UsageError(
                    f"{_place(one)}: {name} has no type, so that nobody reads it; write "
                    f"{name}: {BASES[name].__name__} = field(default_factory=...)"
                )


def _of_class(hints: dict[str, Any], name: str) -> bool:
    hint = hints.get(name)
    return typing.ClassVar in (hint, typing.get_origin(hint))


def _place(kind: type) -> str:
    """Return a class and its file, as error messages name them."""
    try:
        file = Path(inspect.getsourcefile(kind) or kind.__module__).name
    except (TypeError, OSError):
        file = kind.__module__
    return f"{file}: class {kind.__name__}"


def made(decision: str, factory: Callable[[], Any], system: type[System]) -> Any:
    """Return a decision of a system, made by its field's factory; refuse other base classes."""
    base = BASES[decision]
    try:
        policy = factory()
    except Exception as error:  # a user's constructor can raise anything
        missing = sorted(getattr(factory, "__abstractmethods__", ()))
        what = f"{system.__name__}: cannot make its {decision} ({type(error).__name__}: {error})"
        if missing:
            name = missing[0]
            signature = str(inspect.signature(getattr(factory, name)))
            what += f"; write def {name}{signature} in class {getattr(factory, '__name__', '')}"
        raise UsageError(what) from error
    if not isinstance(policy, base):
        raise UsageError(
            f"{system.__name__}: its {decision} is {brief(policy)}; write a class derived from "
            f"moebench.{base.__name__}, and field(default_factory=ThatClass)"
        )
    check_class(type(policy))
    return policy


# ----------------------------------------------------------------------------- returned values


def _whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _pairs(value: object) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(pair, tuple | list) and len(pair) == 2 and all(map(_whole, pair))
        for pair in value
    )


def _fetches(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, Fetch) for one in value)


def _routed(value: object) -> bool:
    return isinstance(value, Routed) and all(
        isinstance(ids, np.ndarray) and ids.ndim == 2 and np.issubdtype(ids.dtype, np.integer)
        for ids in value[:2]
    )


#: By decision: the method that is checked, the check of its result, and what to return.
_ANSWERS: dict[str, tuple[str, Callable[[Any], bool], str]] = {
    "place": ("place", _pairs, "a list of pairs (layer, expert)"),
    "route": ("route", _routed, "Routed(ids_TK, weigh_as_TK), two arrays of whole numbers"),
    "assign": ("assign", lambda value: isinstance(value, Plan), "a Plan, for example split(...)"),
    "prefetch": ("prefetch", _fetches, "a list of Fetch(layer, expert)"),
    "admit": ("uploads", _fetches, "a list of Fetch(layer, expert)"),
    "evict": ("victim", lambda value: value is None or _whole(value),
        "one of the allowed keys, a whole number, or None"),
}  # fmt: skip


def guard(decision: str, policy: Any) -> Any:
    """Check every result of a user's own policy; return moebench's policies unchanged."""
    name, right, wanted = _ANSWERS[decision]
    if not is_own(_owner(type(policy), name)):
        return policy
    answer = getattr(policy, name)

    def checked(*arguments: Any, **named: Any) -> Any:
        found = answer(*arguments, **named)
        if decision == "place" and not isinstance(found, str | bytes | dict):
            found = list(found) if hasattr(found, "__iter__") else found
        if not right(found):
            raise UsageError(
                f"{_place(type(policy))}: {name} returned {brief(found)}; write return {wanted}"
            )
        return found

    object.__setattr__(policy, name, checked)
    return policy


def _owner(kind: type, name: str) -> type:
    """Return the class that defines a method."""
    return next(one for one in kind.__mro__ if name in one.__dict__)


def blamed(error: Exception, what: str) -> UsageError | None:
    """Return an error raised in the user's own code as one line with its place, else None."""
    if ":" not in what:  # only ``module:Class`` names a user's file
        return None
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith(_OURS) and "-packages" not in frame.filename
        and "moebench" not in Path(frame.filename).parts and not frame.filename.startswith("<")
        and Path(frame.filename).suffix == ".py" and "/lib/python" not in frame.filename
    ]  # fmt: skip
    if not own:
        return None
    last = own[-1]
    return UsageError(
        f"{what}: {Path(last.filename).name}:{last.lineno}, in {last.name}: "
        f"{type(error).__name__}: {error}; moebench doctor --system {what} checks all of it"
    )
