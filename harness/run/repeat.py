"""Reconstructs the command that repeats a stored run."""

import shlex
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from moebench.harness.run.rules import resolve
from moebench.harness.settings import Setting
from moebench.results.spec import OPTIONS, RunSpec
from moebench.results.store import Store
from moebench.substrate.errors import MoeBenchError
from moebench.systems.registry import needs_import
from moebench.workloads.catalogue import workload


def repeat(store: Store, document: Mapping[str, Any]) -> str:
    """Return the command that repeats a run, without options equal to defaults.

    Where questions are read from is not kept with a run: the command then says ``DIR`` for it.
    """
    return repeats(store, [document])[document["run_id"]]


def repeats(store: Store, documents: Collection[Mapping[str, Any]]) -> dict[str, str]:
    """Return the commands that repeat many runs, by run id."""
    cells = store.cells_of(run["run_id"] for run in documents)
    asked = {cell.run_id: cell.spec for cell in cells}
    return {run["run_id"]: _command(run, asked.get(run["run_id"])) for run in documents}


def _command(document: Mapping[str, Any], found: Mapping[str, Any] | None) -> str:
    """Return the command of a run from its requested spec ``found``, or from its document."""
    evaluation = document.get("evaluation")
    if found is None or evaluation is not None:
        found = _of_document(document["spec"])
    given = _given(found)
    if evaluation is not None:
        words = _evaluation(given, evaluation)
    else:
        words = ["run", *_options(_least(given))]
    if _needs_data(found, evaluation):
        words += ["--data-dir", "DIR"]
    return shlex.join(["moebench", *words])


def shortest(spec: RunSpec) -> str:
    """Return the shortest arguments of `moebench run` for a spec."""
    return shlex.join(_options(_least(_given(spec.model_dump()))))


def _given(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a spec that differ from plain defaults."""
    if found.get("machine") == "local":  # what ran here has no kind of software to choose
        found = {**found, "software": None}
    return {
        name: value for name, field in RunSpec.model_fields.items()
        if (value := found.get(name)) is not None
        # A setting may say otherwise than a default that was given.
        and (name in Setting.model_fields or value != field.default)
    }  # fmt: skip


def _of_document(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document's options, with ``slots`` in place of ``cache_ratio``."""
    return {**{key: spec.get(key) for key in RunSpec.model_fields}, "cache_ratio": None}


def _least(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fewest options that resolve to the same spec; all if they do not resolve.

    A system that is not ours is not resolved: that would import its code to read a store.
    """
    if needs_import(given["system"], given.get("overrides") or {}):
        return given
    try:
        wanted = _resolved(given)
        if "setting" in given:
            # What differs from the setting alone is enough, but for what depends on the rest.
            alone = _alone(given["system"], given["setting"])
            few = {k: v for k, v in given.items() if k in ("system", "setting")
                   or getattr(alone, k) != getattr(wanted, k)}  # fmt: skip
            if _resolved(few) == wanted:
                if len(few) <= 3:  # one option beside the two: without it, the setting's is used
                    return few
                given = few
    except MoeBenchError:  # weights or a system that are not here any more
        return given
    for name in [name for name in given if name not in ("system", "setting")]:
        fewer = {key: value for key, value in given.items() if key != name}
        try:
            if _resolved(fewer) == wanted:
                given = fewer
        except MoeBenchError:
            continue
    return given


@cache
def _alone(system: str, setting: str) -> RunSpec:
    """Return the spec of a system in a setting, with no other option given."""
    return resolve(None, system=system, setting=setting)


def _resolved(given: Mapping[str, Any]) -> RunSpec:
    return resolve(None, **given)


def _options(given: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in given.items():
        option = OPTIONS[name]
        if option.plain is dict:
            pairs = (f"{key}={one}" for key, one in value.items())
            words += [word for pair in pairs for word in (option.flag, pair)]
        elif value is True:
            words.append(option.flag)
        elif value is not False:
            words += [option.flag, f"{value}{option.unit}"]
    return words


def _evaluation(given: Mapping[str, Any], evaluation: Mapping[str, Any]) -> list[str]:
    tasks = evaluation["tasks"]
    words = ["eval", "--engine", evaluation["evaluator"]]
    words += ["--tasks", ",".join(task["workload"] for task in tasks)]
    words += ["--prompts", str(max(task["n"] for task in tasks)), "--mode", evaluation["mode"]]
    shown = {task["shown"] for task in tasks} - {0}
    if shown:
        words += ["--few-shot", str(max(shown))]
    return words + _options({k: v for k, v in given.items() if "evaluated" in OPTIONS[k].on})


def _needs_data(spec: Mapping[str, Any], evaluation: Mapping[str, Any] | None) -> bool:
    """Return whether a run needs a data folder: real prompts or recorded routing."""
    names = [task["workload"] for task in evaluation["tasks"]] if evaluation else []
    if not names and spec.get("trace") is None:
        names = [spec["workload"]]
    if spec.get("routing") == "real":
        return True
    try:
        return any(workload(name).source != "generated" for name in names)
    except MoeBenchError:  # a workload of another version
        return True
