"""Checks that every option of a system reaches its policy and is described."""

import types
import typing
from collections.abc import Iterator

from moebench.harness.conformance.invariants import BrokenError
from moebench.substrate.engine.policies import Policy
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.systems.options import build, describe, options_of
from moebench.systems.registry import Variant


def other_values(kind: object, default: object) -> list[object]:
    """Return values of an option's type other than its default; none for unsupported types."""
    if typing.get_origin(kind) is typing.Literal:
        return [value for value in typing.get_args(kind) if value != default]
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        inner = [part for part in typing.get_args(kind) if part is not type(None)]
        return [value for part in inner for value in other_values(part, default)]
    if kind is bool:
        return [value for value in (True, False) if value != default]
    if kind is int:
        return [1 if default is None else int(str(default)) + 1]
    if kind is float:
        return [0.5 if default is None else float(str(default)) * 1.5]
    return []


def check_options(name: str, variant: Variant = "published") -> None:
    """Set each option to another value of its type and check that it has an effect.

    A value may be refused by an error that names the option.

    Raises BrokenError: an option is not described, has no effect, or changes another one.
    """
    plain = build(name, variant=variant)
    described = describe(plain)
    for key, owner, option in _options(plain):
        if key not in described:
            raise BrokenError(f"{key} is not described")
        default = getattr(owner, option)
        for value in other_values(options_of(type(owner))[option], default):
            try:
                changed = build(name, {key: str(value)}, variant)
            except UsageError as error:
                if option not in str(error):
                    raise BrokenError(f"{key}={value} is refused without its name") from error
                continue
            _check_arrival(key, described, plain, changed)


def _options(system: System) -> Iterator[tuple[str, System | Policy, str]]:
    """Yield each option as ``--set`` takes it, with the object that has it and its field name."""
    for option in options_of(type(system)):
        if option != "alpha" or system.has_alpha:
            yield option, system, option
    for decision, policy in system.policies.items():
        for option in options_of(type(policy)):
            yield f"{decision}.{option}", policy, option


def _check_arrival(key: str, before: dict[str, str], plain: System, changed: System) -> None:
    decision, _, option = key.rpartition(".")
    was, now = (s.policies[decision] if decision else s for s in (plain, changed))
    if getattr(now, option) == getattr(was, option):
        raise BrokenError(f"{key} was set and does not arrive in {type(now).__name__}")
    after = describe(changed)
    others = {k for k in before.keys() | after.keys() if before.get(k) != after.get(k)} - {key}
    if others:
        raise BrokenError(f"{key} was set and {', '.join(sorted(others))} changed")
    if after[key] == before[key]:
        raise BrokenError(f"{key} was set and is described as before")
