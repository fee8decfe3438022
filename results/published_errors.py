"""Errors of the simulator on rates that other people published, by kind of machine and system.

`results/measured/errors.json` has them: the scores of the rows that ship, and for each kind the
errors of its figures with machine and author left out (`harness.published.errors` writes it).  A
simulated run of such a kind has an interval that holds this error, and is called *checked*.  It
also has the error of ratios of two engines on one machine.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from moebench.substrate.errors import InputError
from moebench.substrate.files import read_text
from moebench.substrate.machines.compose import NO_GPU
from moebench.substrate.machines.profile import HardwareProfile

FILE = Path(__file__).parent / "measured" / "errors.json"

#: Fewest cores of a processor that is taken for a server's.
SERVER_CORES = 24


def machine_kind(profile: HardwareProfile) -> str:
    """Return the kind of a machine: no card, one pool, desktop or server."""
    if profile.pool:
        return "no card" if profile.gpu.name.endswith(NO_GPU) else "one pool"
    return "server" if profile.host.cores.count >= SERVER_CORES else "desktop"


def kind(system: str, profile: HardwareProfile) -> str:
    """Return the kind of a run: system, software and kind of machine."""
    return f"{system}, {profile.software.name}, {machine_kind(profile)}"


@cache
def shipped_errors(file: Path | None = None) -> Mapping[str, Any]:
    """Return the document that ships, or that of a file.

    Raises InputError: the file is absent or damaged; how to make it.
    """
    file = file or FILE
    try:
        said = json.loads(read_text(file))
        return {key: said[key] for key in ("in_sample", "left_out", "kinds", "ratios")}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: holds no errors ({error}); make them again: make fit") from error


def checked(system: str, profile: HardwareProfile) -> Mapping[str, Any] | None:
    """Return the left-out errors of a run's kind by phase, or None if no rows are of its kind.

    Returns:
        by phase: ``figures``, ``machines``, ``median_error``, and ``within_80``: the factor within
        which 80 % of the predictions are.
    """
    if not FILE.is_file():
        return None
    found: Mapping[str, Any] | None = shipped_errors()["kinds"].get(kind(system, profile))
    return found


class Error(NamedTuple):
    """A left-out error of decode rates.

    Attributes:
        factor: 80 % of the predictions are within it.
        of: what it is of, in words: a kind, or the kinds of machine whose largest it is.
        checked: whether rows of the run's own kind were predicted.
    """

    factor: float
    of: str
    checked: bool


def rate_error(system: str, profile: HardwareProfile) -> Error:
    """Return the error of a system's decode rate: of its kind, else the largest of such machines.

    Raises InputError: no rows of any kind on such machines were predicted.
    """
    name, where = kind(system, profile), machine_kind(profile)
    kinds = {key: one["decode"]["within_80"] for key, one in shipped_errors()["kinds"].items()
             if "decode" in one}  # fmt: skip
    if name in kinds:
        return Error(kinds[name], name, checked=True)
    others = [factor for key, factor in kinds.items() if key.endswith(f", {where}")]
    if not others:
        raise InputError(f"{FILE}: holds no errors of machines of the kind {where}; make fit")
    return Error(max(others), where, checked=False)


def ratio_error(phase: str = "decode") -> float:
    """Return the factor within which 80 % of the ratios of two engines' rates on a machine are."""
    return float(shipped_errors()["ratios"][phase]["within_80"])
