"""``--set key=value``: replace a policy of a system, or change an option of one."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from moebench.substrate.engine.policies import Policy, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.systems.dynamic_imports import recorded
from moebench.systems.native.base import NativeSystem
from moebench.systems.registry import (
    DECISIONS,
    NATIVE,
    name_of,
    native_class,
    policy_class,
    system_class,
)
from moebench.systems.user_classes import check_class, guard, is_own, made


def build(
    name: str, overrides: Mapping[str, str] | None = None, variant: str = "published"
) -> System:
    """Return a system with its options changed.

    Args:
        name: see `systems.registry.SYSTEMS`; ``module:Class`` for a system of your own.
        overrides: ``evict=lru`` replaces a policy, ``evict.window=16`` changes one of its options,
            ``scope=layer`` an option of the system itself.
        variant: see `systems.registry.Variant`.

    Raises:
        UnknownNameError: an unknown system, decision, policy or option.
        UsageError: a value that the option does not allow, or a variant that does not exist.
    """
    system, overrides = system_class(name, variant), overrides or {}
    check_class(system)
    plain = {k: v for k, v in overrides.items() if "." not in k}
    dotted = {k: v for k, v in overrides.items() if "." in k}
    with recorded() if is_own(system) else nullcontext():
        policies = {d: _policy(system, d, plain.get(d), dotted) for d in DECISIONS}
    own = {k: v for k, v in plain.items() if k not in DECISIONS}
    known = options_of(system)
    _reject_unknown([*own, *dotted], system, policies)
    options = {k: _value(known[k], v, k) for k, v in own.items()}
    try:
        with recorded() if is_own(system) else nullcontext():
            found = system(**policies, **options)
    except TypeError as error:  # an option has no default, or a method is missing
        raise UsageError(f"{system.__name__}: cannot be made ({error})") from error
    if "alpha" in own and not found.has_alpha:
        raise UsageError(
            f"--set alpha={own['alpha']}: route={name_of('route', found.route)} has no α"
        )
    return found


def routing_of(name: str, overrides: Mapping[str, str], variant: str = "published") -> Routing:
    """Return a system's routing policy with its options changed, without the other policies."""
    system = system_class(name, variant)
    check_class(system)
    for decision in DECISIONS:  # report the first missing decision, as `build` does
        _factory(system, decision, overrides.get("route") if decision == "route" else None)
    return typing.cast(Routing, _policy(system, "route", overrides.get("route"), {}))


def build_native(name: str, overrides: Mapping[str, str] | None = None) -> NativeSystem:
    """Return a third-party package's adapter with its options changed: ``{"offload": "cpu"}``.

    Raises:
        UnknownNameError: an unknown option.
        UsageError: a value that the option does not allow.
    """
    native, overrides = native_class(name), overrides or {}
    known = options_of(native)
    for key in overrides:
        if key not in known:
            raise UnknownNameError("option", key, known, f"{name} makes no decisions of ours")
    return native(**{key: _value(known[key], text, key) for key, text in overrides.items()})


def build_any(
    name: str, overrides: Mapping[str, str] | None = None, variant: str = "published"
) -> System | NativeSystem:
    """Return a system, or a third-party package's adapter, with its options changed."""
    if name not in NATIVE:
        return build(name, overrides, variant)
    if variant != "published":
        raise UsageError(f"--variant {variant}: {name} has none")
    return build_native(name, overrides)


def policy(decision: str, name: str, given: Mapping[str, str]) -> Policy:
    """Return one policy with its options changed: ``{"tie": "id"}``.

    Raises:
        UnknownNameError: an unknown policy or option.
        UsageError: a value that the option does not allow.
    """
    found = policy_class(decision, name)
    known = options_of(found)
    for key in given:
        if key not in known:
            hint = "see: moebench list policies"
            raise UnknownNameError("option", f"{name}.{key}", [f"{name}.{k}" for k in known], hint)
    return found(**{k: _value(known[k], text, f"{name}.{k}") for k, text in given.items()})


def _policy(
    system: type[System], decision: str, swap: str | None, dotted: Mapping[str, str]
) -> Any:
    default = made(decision, _factory(system, decision, swap), system)
    known = options_of(type(default))
    prefix = decision + "."
    given = {k.removeprefix(prefix): v for k, v in dotted.items() if k.startswith(prefix)}
    changed = {k: _value(known[k], v, prefix + k) for k, v in given.items() if k in known}
    return guard(decision, dataclasses.replace(default, **changed) if known else default)


def _factory(system: type[System], decision: str, swap: str | None) -> Any:
    """Return the factory of a decision: the policy named ``swap``, or the system's default."""
    fields = {f.name: f for f in dataclasses.fields(system)}
    factory: Any = policy_class(decision, swap) if swap else fields[decision].default_factory
    if factory is dataclasses.MISSING:
        raise UsageError(
            f"{system.__name__} has no default for {decision}: write "
            f"`{decision}: ... = field(default_factory=...)`, or subclass an existing system"
        )
    return factory


def options_of(owner: type[Policy] | type[System] | type[NativeSystem]) -> dict[str, Any]:
    """Return the options of a class and their types; for a system, without its decisions."""
    if not dataclasses.is_dataclass(owner):
        return {}
    hints = _hints(typing.cast(Any, owner))
    names = [f.name for f in dataclasses.fields(typing.cast(Any, owner)) if f.init]
    own = names if issubclass(owner, Policy) else [name for name in names if name not in DECISIONS]
    return {name: hints[name] for name in own}


@cache
def _hints(owner: type) -> dict[str, Any]:
    return typing.get_type_hints(owner)


def _value(kind: Any, text: str, key: str) -> Any:
    adapter = TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False))
    try:
        return adapter.validate_python(text)
    except ValidationError as error:
        with suppress(ValidationError):
            return adapter.validate_json(text)
        raise UsageError(f"--set {key}={text}: {error.errors()[0]['msg']}") from error


def _reject_unknown(keys: list[str], system: type[System], policies: Mapping[str, Policy]) -> None:
    own = options_of(system)
    known = [*DECISIONS, *own]
    known += [f"{d}.{o}" for d, policy in policies.items() for o in options_of(type(policy))]
    for key in keys:
        if key not in known:
            name, hint = key.rpartition(".")[2], "see: moebench list policies"
            if name in own:
                hint = f"{name} is an option of the system itself: --set {name}=VALUE"
            raise UnknownNameError("option", key, known, hint)


def describe(system: System | NativeSystem) -> dict[str, str]:
    """Return every decision and option of a system, spelled as for ``--set``, for provenance."""
    if isinstance(system, NativeSystem):
        return {k: _spell(getattr(system, k)) for k in options_of(type(system))}
    own = [k for k in options_of(type(system)) if k != "alpha" or system.has_alpha]
    resolved = {k: _spell(getattr(system, k)) for k in own}
    for decision, policy in system.policies.items():
        resolved[decision] = name_of(decision, policy)
        for option in options_of(type(policy)):
            resolved[f"{decision}.{option}"] = _spell(getattr(policy, option))
    return resolved


def _spell(value: Any) -> str:
    """Return a value as text; None and lists as JSON: ``null``, ``[[3, 1], [0, 2]]``."""
    return json.dumps(value) if value is None or isinstance(value, list | tuple) else str(value)
