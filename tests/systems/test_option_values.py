"""Tables of what systems and policies declare: options, values of classes, default policies.

Whoever changes one changes what runs and searches do, and its row with it:

- ``options.tsv``: the class that declares an option, the option, its default, the values that it
  allows, those that a search tries, whether these are compared by ratios, and what other values
  than the default need
- ``classes.tsv``: a value that all instances of a class share, such as whether a policy learns
- ``defaults.tsv``: the policies of each system and variant, in the order of `DECISIONS`
"""

import csv
import dataclasses
import enum
from collections.abc import Iterator
from inspect import get_annotations
from pathlib import Path
from typing import Any

from moebench.substrate.engine.options import Allowed, allowed_values
from moebench.substrate.engine.policies import Policy, Predictor
from moebench.substrate.engine.system import System
from moebench.systems.options import build, describe, options_of
from moebench.systems.registry import DECISIONS, VARIANTS
from tests.systems.test_space import owners

FOLDER = Path(__file__).parent
OURS = ("moebench.systems.", "moebench.substrate.")
HEADERS: dict[str, tuple[str, ...]] = {
    "options": ("class", "option", "default", "allowed", "searched", "scale", "needs"),
    "classes": ("class", "name", "value"),
    "defaults": ("system", "variant", *DECISIONS),
}

Row = tuple[str, ...]


def declaring(owner: type[Policy] | type[System], option: str) -> str:
    """Return the class from which a class has an option with this default and these limits."""
    own = {one.name: one for one in dataclasses.fields(owner)}[option]
    for base in reversed(owner.__mro__):
        if dataclasses.is_dataclass(base):
            theirs = {one.name: one for one in dataclasses.fields(base)}.get(option)
            if theirs and (theirs.default, theirs.metadata) == (own.default, own.metadata):
                return f"{base.__module__.removeprefix('moebench.')}.{base.__qualname__}"
    raise AssertionError(option)


def searched(allowed: Allowed) -> str:
    if isinstance(allowed.searched, bool):
        return "all" if allowed.searched else "-"
    return "{:g} to {:g}".format(*allowed.searched)


def rows() -> set[Row]:
    """Return a row for each option of each class that declares it."""
    found: set[Row] = set()
    for _, owner, _ in owners():
        if not dataclasses.is_dataclass(owner):
            continue
        declared = allowed_values(owner)
        for one in dataclasses.fields(owner):
            if one.name in options_of(owner):
                allowed = declared.get(one.name, Allowed())
                found.add((
                    declaring(owner, one.name), one.name, repr(one.default), str(allowed),
                    searched(allowed), allowed.scale, " ".join(allowed.needs) or "-",
                ))  # fmt: skip
    return found


def all_of(base: type) -> Iterator[type]:
    """Yield a class and all that inherit from it."""
    yield base
    for one in base.__subclasses__():
        yield from all_of(one)


def spelled(value: Any) -> str:
    """Return a value as text that is the same in each process."""
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(map(repr, value))) + "}"
    return value.value if isinstance(value, enum.Enum) else repr(value)


def shared() -> set[Row]:
    """Return a row for each value that a class of systems, policies or predictors declares."""
    listed = {base for _, owner, _ in owners() for base in owner.__mro__} | {*all_of(Predictor)}
    ours = {one for one in listed if one.__module__.startswith(OURS)}
    names = {"reads_scores"} | {
        name for one in ours for name, said in get_annotations(one).items()
        if "ClassVar" in str(said)
    }  # fmt: skip
    return {
        (f"{one.__module__.removeprefix('moebench.')}.{one.__qualname__}", name, spelled(value))
        for one in ours
        for name in names
        if (value := one.__dict__.get(name, one)) is not one
        and not isinstance(value, property | type(spelled))
    }  # fmt: skip


def defaults() -> set[Row]:
    """Return a row for each system and variant."""
    return {
        (name, variant, *(found[decision] for decision in DECISIONS))
        for variant, listed in VARIANTS.items()
        for name in listed
        for found in [describe(build(name, None, variant))]
    }


def known(table: str) -> set[Row]:
    """Return the rows of a table."""
    with (FOLDER / f"{table}.tsv").open(encoding="utf-8", newline="") as file:
        header, *listed = csv.reader(file, delimiter="\t")
    assert tuple(header) == HEADERS[table]
    found = {tuple(row) for row in listed}
    assert len(found) == len(listed)
    return found


def test_options_are_those_of_the_table() -> None:
    assert rows() == known("options")


def test_values_of_classes_are_those_of_the_table() -> None:
    assert shared() == known("classes")


def test_default_policies_are_those_of_the_table() -> None:
    assert defaults() == known("defaults")
