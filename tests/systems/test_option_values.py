"""Defaults, limits and searched ranges of all options of systems and policies, as a table.

Whoever changes one changes what runs and searches do, and its row in ``options.tsv`` with it: the
class that declares the option, the option, its default, the values that it allows, those that a
search tries, whether these are compared by ratios, and what other values than the default need.
"""

import csv
import dataclasses
from pathlib import Path

from moebench.substrate.engine.options import Allowed, allowed_values
from moebench.substrate.engine.policies import Policy
from moebench.substrate.engine.system import System
from moebench.systems.options import options_of
from tests.systems.test_space import owners

TABLE = Path(__file__).parent / "options.tsv"
HEADER = ("class", "option", "default", "allowed", "searched", "scale", "needs")

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


def test_options_are_those_of_the_table() -> None:
    with TABLE.open(encoding="utf-8", newline="") as file:
        header, *known = csv.reader(file, delimiter="\t")
    assert tuple(header) == HEADER
    listed = {tuple(row) for row in known}
    assert len(listed) == len(known)
    assert rows() == listed
