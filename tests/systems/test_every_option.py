"""No option is silently ignored: each option of ``--set`` takes effect or is refused.

Options and their types come from the classes themselves; values other than the default are made
from the types.  An option whose type says too little needs a value in `VALUES`.
"""

import ast
import dataclasses
import typing
from collections.abc import Iterator
from inspect import getsource
from itertools import cycle
from pathlib import Path

import pytest

import moebench.substrate.engine
from moebench.harness.conformance.swaps import other_values
from moebench.harness.run.rules import resolve
from moebench.substrate.engine.policies import Policy
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.systems.options import build, describe, options_of
from moebench.systems.policies.place import PlacePopular
from moebench.systems.registry import DECISIONS, POLICIES, SYSTEMS, policy_class, system_class
from tests.harness.commands import call
from tests.systems.kinds import KINDS, fits

#: Values of options whose type does not say what is allowed, as ``--set`` takes them.
VALUES = {
    "admit.decay": ["0.5"],
    "evict.trace": ["a-trace"],
    "host_experts": ["8"],
    "place.counts": ["[5, 4]"],
    "place.host": [r"blk\.1\.ffn_.*_exps"],
    "place.popularity": ["[[3.0, 1.5], [0.0, 2.0]]"],
    "route.sensitivity": ["[2.0, 0.5]"],
    "route.share": ["0.5"],
    "route.t2": ["0.5"],
}
LOOP = Path(moebench.substrate.engine.__file__).parent / "loop.py"
#: What asks policies for their options.
ENGINE = (LOOP, LOOP.with_name("prefetches.py"), LOOP.with_name("micro_batches.py"))
EVERY_POLICY = [(decision, name) for decision in POLICIES for name in POLICIES[decision]]


def others(key: str, kind: object, default: object) -> list[object]:
    """Return values that an option may have besides its default."""
    found = VALUES.get(key) or other_values(kind, default)
    assert found, (
        f"{key} has the type {kind}, which does not say what is allowed beside its default "
        f"{default!r}: give values in tests/systems/test_every_option.py, VALUES"
    )
    return list(found)


def changes(owner: type[Policy] | type[System], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Return (option, another value) as typed after ``--set``, for all of an owner's options."""
    fields = {field.name: field for field in dataclasses.fields(typing.cast(typing.Any, owner))}
    for option, kind in options_of(owner).items():
        found = others(prefix + option, kind, fields[option].default)
        yield from ((prefix + option, str(value)) for value in found)


def seen(system: str, overrides: dict[str, str], key: str) -> None:
    """Check that an override changes its option in system and spec, and nothing else.

    Args:
        overrides: what the option is an option of; ``key`` is among them.
    """
    before = {k: v for k, v in overrides.items() if k != key}
    plain, changed = build(system, before), build(system, overrides)
    was, now = describe(plain), describe(changed)
    assert {k for k in now if now[k] != was[k]} == {key}, f"{system}: {overrides}"
    assert was.keys() == now.keys()
    owner, _, option = key.rpartition(".")
    value = getattr(changed.policies[owner] if owner else changed, option)
    assert value != getattr(plain.policies[owner] if owner else plain, option)
    assert now[key] == overrides[key]
    spec = resolve(None, system=system, setting="S3", overrides=overrides)
    assert spec.overrides[key] == now[key]
    assert spec != resolve(None, system=system, setting="S3", overrides=before)
    # The spec of a document builds an equal system.
    assert describe(build(spec.system, spec.overrides))[key] == now[key]


@pytest.mark.slow
@pytest.mark.parametrize(("decision", "name"), EVERY_POLICY)
def test_every_option_of_every_policy_is_seen_in_every_system(decision, name):
    for key, text in changes(policy_class(decision, name), decision + "."):
        for system in [system for system in SYSTEMS if fits(system, decision, name)]:
            seen(system, {decision: name, key: text}, key)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_option_of_a_system_is_seen(system):
    has_alpha = {"route": "expert-cache"}  # without it there is no α to set
    for key, text in changes(system_class(system)):
        seen(system, {**has_alpha, key: text} if key == "alpha" else {key: text}, key)


def test_an_option_without_known_values_is_noticed():
    assert others("evict.new", int | None, None) == [1]
    with pytest.raises(AssertionError, match=r"evict\.new has the type .*str.* VALUES"):
        others("evict.new", str, "")


def test_every_value_of_the_table_is_an_options():
    keys = {f"{d}.{o}" for d, name in EVERY_POLICY for o in options_of(policy_class(d, name))}
    keys |= set().union(*(options_of(system_class(system)) for system in SYSTEMS))
    assert set(VALUES) <= keys


# --------------------------------------------------------------------------- read


def loads(tree: ast.AST) -> set[str]:
    """Return the names of attributes that are read."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def loads_in(cls: type) -> set[str]:
    """Return attributes that a class's methods read, except checks in `__post_init__`.

    A method that a subclass overrides counts only where the subclass calls it.
    """
    found: set[str] = set()
    overridden = {"__post_init__"}
    for base in cls.__mro__:
        if base.__module__ in ("builtins", "abc"):
            continue
        (tree,) = ast.parse(getsource(base)).body
        methods = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        kept = [method for method in methods if method.name not in overridden]
        found = found.union(*map(loads, kept))
        calls_super = {
            method.name for method in kept if f"super().{method.name}(" in ast.unparse(method)
        }
        overridden |= {method.name for method in kept} - calls_super
    return found


@pytest.mark.parametrize(("decision", "name"), EVERY_POLICY)
def test_every_option_of_a_policy_is_read(decision, name):
    cls = policy_class(decision, name)
    # By the policy itself, or by the engine where its contract has the attribute.
    engine = set().union(*(loads(ast.parse(f.read_text(encoding="utf-8"))) for f in ENGINE))
    contract = set(vars(KINDS[decision])) & engine
    assert set(options_of(cls)) - contract - loads_in(cls) == set()


class Ignores(PlacePopular):
    """Policy that overrides the one method that reads ``equal_layers``."""

    def place(self, shape, slots, scope):
        return ()


def test_an_option_that_an_override_ignores_is_noticed():
    assert "equal_layers" in loads_in(PlacePopular)
    assert set(options_of(Ignores)) - loads_in(Ignores) == {"equal_layers"}


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_option_of_a_system_is_read(system):
    cls = system_class(system)
    # By the system itself, or by what wires and runs it.
    root = LOOP.parents[2]
    wires = (root / "harness" / name for name in ("run", "stage"))
    files = [LOOP, *(file for folder in wires for file in folder.glob("*.py"))]
    read = set().union(*(loads(ast.parse(file.read_text(encoding="utf-8"))) for file in files))
    assert set(options_of(cls)) - read - loads_in(cls) == set()


# --------------------------------------------------------------------------- refused


@pytest.mark.slow
@pytest.mark.parametrize("decision", DECISIONS)
def test_an_option_of_another_policy_is_refused(decision):
    options = {name: set(options_of(policy_class(decision, name))) for name in POLICIES[decision]}
    every = set().union(*options.values())
    systems = cycle(SYSTEMS)  # the policy's class refuses it: each pair needs one system
    for name in POLICIES[decision]:
        for option in sorted(every - options[name]):
            with pytest.raises(UnknownNameError, match=rf"unknown option '{decision}\."):
                build(next(systems), {decision: name, f"{decision}.{option}": "1"})


@pytest.mark.parametrize("system", SYSTEMS)
def test_an_option_of_another_system_is_refused(system):
    own = set(options_of(system_class(system)))
    every = set().union(*(options_of(system_class(name)) for name in SYSTEMS))
    policies = {o for d, name in EVERY_POLICY for o in options_of(policy_class(d, name))}
    for option in sorted((every | policies) - own):
        with pytest.raises(UnknownNameError, match="unknown option"):
            build(system, {option: "1"})


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("route", POLICIES["route"])
def test_alpha_is_refused_where_the_routing_has_none(system, route):
    overrides = {"route": route, "alpha": "0.5"}
    if policy_class("route", route).has_alpha:
        assert build(system, overrides).alpha_in_use == 0.5
        return
    with pytest.raises(UsageError, match=f"alpha=0.5: route={route} has no α"):
        build(system, overrides)
    with pytest.raises(UsageError, match="has no α"):
        resolve(None, system=system, setting="S3", overrides={"route": route}, alpha=0.5)
    assert "alpha" not in describe(build(system, {"route": route}))


def test_a_seed_that_nothing_draws_with_is_refused():
    with pytest.raises(UsageError, match=r"evict\.seed is 5.*variant=libcachesim"):
        build("smoe", {"evict": "lecar", "evict.variant": "libcachesim", "evict.seed": "5"})
    assert build("smoe", {"evict": "lecar", "evict.variant": "libcachesim"}).evict.seed == 123


@pytest.mark.parametrize(
    ("system", "override"),
    [
        ("daop", "evict.threshold=3"),  # taken once, and became 1.05 silently
        ("smoe", "route.alpha=0.3"),  # as it was spelled once
        ("duoserve", "alpha=0.3"),
        ("smoe", "alpha=2"),
        ("smoe", "slots=3"),
        ("flashmoe", "evict.window=3"),
        ("moe-ondemand", "scope=row"),
    ],
)
def test_a_refusal_is_one_line_and_exit_code_2(system, override):
    called = call("run", "--system", system, "--setting", "S3", "--set", override)
    assert (called.code, called.out) == (2, "")
    assert called.err.count("\n") == 1
    assert override.partition("=")[0] in called.err
