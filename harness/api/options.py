"""The options of a run as Python keywords."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict

from moebench.harness.run.rules import resolve
from moebench.harness.sweep.plan import fields
from moebench.results.spec import LocalDevice, PageCache, Routing, RunSpec, Scoring
from moebench.substrate.choices import ExpertDtype, Precision
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.systems.registry import SYSTEMS, Variant

#: A system: a name of the catalogue, ``module:Class``, or a class of an importable module.
SystemName = str | type[System]


class Options(TypedDict, total=False):
    """Options of a run but its system: the fields of `RunSpec`, ``set`` for its overrides, and α.

    They are the keys of a sweep's file; `docs/sweeps.md` has a table of their meanings.
    """

    variant: Variant
    setting: str
    machine: str | PathLike[str]
    software: str
    model: str | PathLike[str]
    weights: str | PathLike[str]
    precision: Precision
    quant: str
    expert_dtype: ExpertDtype
    workload: str
    batch: int
    prompts: int
    new_tokens: int
    context: int
    capacity: float
    slots: int
    allow_overcommit: bool
    device_memory_gib: float
    free_host_gb: float
    emulated_link_gb_s: float
    page_cache: PageCache
    device: LocalDevice
    set: Mapping[str, Any]
    seed: int
    scoring: Scoring
    temperature: float
    top_p: float
    few_shot: int | str
    plain_prompts: bool
    calibrate_from: str
    calibrate_texts: int
    routing: Routing
    trace: str | PathLike[str]
    reconstruct_scores: bool
    clairvoyant: bool
    alpha: float


def given_of(system: SystemName, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return options as `harness.run.rules.resolve` takes them; None means "not given".

    Args:
        where: what they were given to, for error messages.

    Raises:
        UnknownNameError: there is no such option.
        UsageError: a value of the wrong type, or a class that cannot be imported.
    """
    plain = {name: _plain(value) for name, value in options.items() if value is not None}
    given = fields({"system": name_of(system), **plain}, where)
    overrides = given.pop("set", None)
    return given if overrides is None else {**given, "overrides": overrides}


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def specs_of(given: Mapping[str, Any], seeds: int | None, data_dir: Path | None) -> list[RunSpec]:
    """Return the spec of a run, or one spec for each of ``seeds`` seeds, counted from its own.

    Raises UsageError: seeds are asked for a trace, whose prompts are its own; or as `resolve`.
    """
    spec = resolve(data_dir, **given)
    if seeds is None:
        return [spec]
    if spec.trace is not None:
        raise UsageError(f"--seeds {seeds} and --trace: a trace has its own prompts")
    numbers = range(spec.seed, spec.seed + seeds)
    return [resolve(data_dir, **{**given, "seed": seed}) for seed in numbers]


def name_of(system: SystemName) -> str:
    """Return the name of a system by which any process finds it: ``module:Class`` of a class.

    Raises UsageError: the class is of a notebook or a script, whose code no other process and no
    run id can see.
    """
    if isinstance(system, str):
        return system
    if not (isinstance(system, type) and issubclass(system, System)):
        raise UsageError(f"system {system!r}: allowed: a name, or a class derived from System")
    place = system.__module__, system.__qualname__
    for name, (module, attribute, *_) in SYSTEMS.items():
        if place == (f"moebench.systems.{module}", attribute):
            return name
    if system.__module__ == "__main__" or "<locals>" in system.__qualname__:
        raise UsageError(
            f"system {system.__qualname__}: a class of a notebook, script or function cannot be "
            "imported by the processes that run it; write it to a file, such as mine.py, and give "
            f'"mine:{system.__name__}"'
        )
    return f"{system.__module__}:{system.__qualname__}"
