"""Shell completion of systems, settings, models, machines, workloads, policies and runs.

`moebench --install-completion` sets it up.  What completes an option or argument follows from its
name alone, in every command.  A value in a list is completed behind its last comma.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from moebench.harness.cli.parameters import DEFAULT_STORE
from moebench.results.spec import OPTIONS

#: Some releases of Typer carry their own copy of click: the one that this one uses.
_CLICK = typer.BadParameter.__module__.rpartition(".")[0]


def _systems(context: Any) -> Iterable[str]:
    from moebench.systems.registry import NATIVE, SYSTEMS, installed

    return [*SYSTEMS, *NATIVE, *installed().usable]


def _settings(context: Any) -> Iterable[str]:
    from moebench.harness.settings import settings

    return settings()


def _models(context: Any) -> Iterable[str]:
    from moebench.substrate.models.catalogue import shape_names

    return shape_names()


def _machines(context: Any) -> Iterable[str]:
    """Return the machines of the catalogue, ``local``, and profiles in the current folder."""
    from moebench.substrate.machines.profile import profile_names

    return [*profile_names(), "local", *(path.name for path in Path().glob("*.yaml"))]


def _software(context: Any) -> Iterable[str]:
    from moebench.substrate.machines.profile import software_names

    return software_names()


def _workloads(context: Any) -> Iterable[str]:
    from moebench.workloads.catalogue import workload_names

    return workload_names()


def _evictions(context: Any) -> Iterable[str]:
    from moebench.harness.cli.trace_caches import WITH_OPTIONS
    from moebench.systems.registry import POLICIES

    return [*POLICIES["evict"], *WITH_OPTIONS]


def _runs(context: Any) -> Iterable[str]:
    """Return the run ids of the given or default store; none if it cannot be read."""
    from moebench.results.store import Store
    from moebench.substrate.errors import MoeBenchError

    try:
        return Store(Path(context.params.get("store") or DEFAULT_STORE)).ids()
    except MoeBenchError:
        return []


Names = Callable[[Any], Iterable[str]]

#: By a catalogue of `results.spec.Option`, its names.
_CATALOGUES: dict[str, Names] = {
    "systems": _systems, "settings": _settings, "models": _models, "machines": _machines,
    "software": _software, "workloads": _workloads,
}  # fmt: skip

#: By a parameter's name, what may stand there.
NAMES: dict[str, Names] = {
    **{option.name: _CATALOGUES[option.catalogue] for option in OPTIONS.values()
       if option.catalogue},
    **_CATALOGUES, "first": _machines, "second": _machines, "tasks": _workloads,
    "policies": _evictions, "run": _runs, "runs": _runs,
}  # fmt: skip

#: Those that take lists separated by commas; of the others a comma is part of the name.
_LISTS = {*_CATALOGUES, "tasks", "policies"} - {"software"}


class CompletingGroup(TyperGroup):
    """A command group that completes parameters by their names."""

    def get_command(self, context: Any, name: str) -> Any:
        """Return a command, with completers attached if the shell requests completion."""
        command = super().get_command(context, name)
        if command is not None and context.resilient_parsing:
            _teach(command)
        return command


def _teach(command: Any) -> None:
    for below in getattr(command, "commands", {}).values():
        _teach(below)
    for parameter in command.params:
        if parameter.name in NAMES:
            parameter.shell_complete = _completer(parameter.name)


def _completer(name: str) -> Callable[[Any, str], list[Any]]:
    def complete(context: Any, incomplete: str) -> list[Any]:
        item = import_module(f"{_CLICK}.shell_completion").CompletionItem
        before, comma, last = incomplete.rpartition(",") if name in _LISTS else ("", "", incomplete)
        given = set(before.split(","))
        found = [n for n in NAMES[name](context) if n.startswith(last) and n not in given]
        return [item(f"{before}{comma}{one}") for one in found]

    return complete
