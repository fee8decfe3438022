"""Kinds of runs whose errors on published rows are known: system, software and kind of machine."""

from collections.abc import Mapping
from functools import cache

from moebench.harness.published.case import Case
from moebench.harness.published.prediction import Phase
from moebench.results.published_errors import FILE, kind, shipped_errors
from moebench.substrate.errors import InputError

#: Systems of moebench by the engines that rows name.
SYSTEMS = {"llama.cpp": "llamacpp", "ktransformers": "ktransformers"}


def kind_of_case(case: Case) -> str:
    """Return the kind of a case, with the engine's name where it is not a system of moebench."""
    return kind(SYSTEMS.get(case.engine.name, case.engine.name), case.profile)


@cache
def own_deviations(phase: Phase) -> Mapping[str, float]:
    """Return the model's own deviation of the logarithm of a rate, by kind of run.

    It is empty in an installation without the rows.

    Raises InputError: the file was made by an earlier version.
    """
    if not FILE.is_file():
        return {}
    kinds = shipped_errors()["kinds"]
    try:
        return {name: one[phase]["deviation"] for name, one in kinds.items() if phase in one}
    except KeyError as error:
        raise InputError(
            f"{FILE}: has no deviations of kinds; delete it and make it again: make fit"
        ) from error
