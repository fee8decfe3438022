"""The page of all policies and their options, from what their classes declare.

`docs/policies.md` and ``moebench list policies --long`` show the same.
"""

from collections.abc import Iterable
from itertools import groupby

from moebench.substrate.engine.options import Allowed
from moebench.substrate.engine.policies import (
    Admission,
    Assignment,
    Eviction,
    Placement,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.systems.description import markdown_table
from moebench.systems.registry import VARIANTS, policy_class, system_class
from moebench.systems.space import NEEDS, Dimension, dimensions, policies

COMMAND = "moebench list policies --long > docs/policies.md"

_HEADERS = ["option", "default", "allowed", "searched"]


def document() -> str:
    """Return the page in Markdown: policies and options by decision, then options of systems."""
    parts = [_INTRODUCTION, markdown_table(["word", "meaning"], [*map(list, NEEDS.items())])]
    for decision, found in groupby(policies(), key=lambda one: one.decision):
        of_decision = list(found)
        rows = [
            [one.name, one.what, ", ".join(one.needs) or "-", _beside_others(decision, one.name)]
            for one in of_decision
        ]
        headers = ["policy", "what it does", "needs", "beside others"]
        parts += [f"## {decision}", "", markdown_table(headers, rows)]
        rows = [[one.name, *_cells(option)] for one in of_decision for option in one.dimensions]
        if rows:
            parts.append(markdown_table(["policy", *_HEADERS], rows))
    of_systems = markdown_table(["system", *_HEADERS], [*_of_systems()])
    parts += ["## Options of systems", "", _SYSTEMS, of_systems]
    return "\n".join(parts)


def _beside_others(decision: str, name: str) -> str:
    """Return what decides with which policies one can be combined (`systems.compatible`)."""
    found = policy_class(decision, name)()
    said = {
        "slots of all layers": found.shares_slots,
        "leaves slots empty": isinstance(found, Placement) and found.leaves_slots,
        "residents alone": isinstance(found, Routing) and found.resident_only,
        "computes on the host": isinstance(found, Assignment) and found.uses_host,
        "whole layers": isinstance(found, Prefetching) and found.whole_layers,
        "committed": isinstance(found, Prefetching) and found.discipline == "committed",
        "chooses what enters": isinstance(found, Admission) and found.chooses,
    }
    if isinstance(found, Assignment):
        said |= {f"loads: {found.loads}": True}
    if isinstance(found, Eviction):
        said |= {f"makes room: {found.makes_room}": True}
    return ", ".join(word for word, holds in said.items() if holds) or "-"


def _of_systems() -> Iterable[list[str]]:
    """Yield a row for each option of every system, and for what a system has otherwise."""
    common = {one.option: one for one in dimensions("", "", System)}
    yield from (["all", *_cells(one)] for one in common.values())
    for variant, names in VARIANTS.items():
        for name in names:
            shown = name if variant == "published" else f"{name} ({variant})"
            for one in dimensions("", "", system_class(name, variant)):
                if common.get(one.option) != one:
                    yield [shown, *_cells(one)]


def _cells(one: Dimension) -> list[str]:
    """Return an option's name, default, allowed values, and those that a search chooses among."""
    name = one.key if one.decision else one.option
    return [f"`{name}`", str(one.default), _allowed(one), _searched(one)]


def _allowed(one: Dimension) -> str:
    if one.kind == "choice":
        return ", ".join(map(str, one.choices))
    numbers = str(Allowed(low=one.low, high=one.high, above=one.above, below=one.below))
    kind = "" if one.kind == "number" else "whole numbers: "
    none = "None, or " if None in one.choices else ""
    return f"{none}{kind}{numbers}"


def _searched(one: Dimension) -> str:
    needs = f"; needs {', '.join(one.needs)}" if one.needs else ""
    if not one.searched:
        return f"-{needs}"
    if one.kind == "choice":
        return f"all{needs}"
    by = "ratios" if one.scale == "log" else "differences"
    return f"{one.search_low:g} to {one.search_high:g}, by {by}{needs}"


_INTRODUCTION = f"""\
# Policies and their options

This page is generated from the policies' classes: `{COMMAND}`.

A system consists of six decisions, and each decision is a policy with a name.  `--set evict=lru`
replaces a policy, `--set evict.window=8` changes an option of one.

*Allowed* are the values that `--set` takes.  *Searched* are those among which `moebench search`
chooses ([a search for compositions](search.md)); it compares numbers by their differences or by
their ratios.  *Beside others* is what decides with which policies one can be combined:
placements may need the slots of all layers or leave some empty; routing may use residents alone;
assignments load experts that are kept, that pass through for one use, or none; prefetches may be
committed, and fetch whole layers; evictions make room for all experts that a layer loads, for one
at a time, or for named ones.  What a policy *needs* is one of these:
"""

_SYSTEMS = """\
`--set host_together=true` changes an option of a system.  The options of *all* systems come first;
then what one system has in addition, or with another default.
"""
