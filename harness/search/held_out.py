"""Places like the one that was searched for, which the search has not seen.

A composition that is faster on the prompts of a search alone is worth nothing.  It is compared with
the best published systems on another workload, on recordings of the real model, on another machine
of the catalogue, and on the same machine with another link, host or hand-off.
"""

import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from moebench.harness.search.question import Question
from moebench.substrate.errors import MoeBenchError
from moebench.substrate.machines.profile import (
    HardwareProfile,
    load_profile,
    machine_with,
    profile_names,
    split_numbers,
)
from moebench.substrate.traces.recordings import recordings
from moebench.workloads.catalogue import workload, workload_names

#: Shares of their values by which numbers of the machine are moved.
MOVED = 0.3

#: What is moved together: the link's rates, the host's, and what a task for it costs.
GROUPS = {
    "link": ("link.pinned_h2d", "link.pinned_d2h", "link.pageable_h2d"),
    "host": ("host.gemv_bandwidth", "host.peak_fp32"),
    "hand-off": ("host.handoff",),
}

#: Numbers by which machines are alike: how fast experts come, and are computed on either side.
_ALIKE = ("link.pinned_h2d", "host.gemv_bandwidth", "gpu.bandwidth")


def held_out(
    question: Question, model: str, machine: str, chosen: str,
    possible: Callable[[Question], bool] = lambda question: True,
) -> Iterator[Question]:  # fmt: skip
    """Yield places to compare in, besides other prompts of the same workload.

    Args:
        model, machine, chosen: of the question's runs: model, machine and workload.
        possible: whether the composition can run in a place; the most similar machine is taken on
            which it can.
    """
    for name in workload_names():
        if name != chosen and workload(name).source == "generated":
            yield question.with_(f"workload {name}", workload=name)
            break
    if question.data_dir is not None and _recorded(model, question.data_dir):
        yield question.with_("recordings of the real model", routing="real")
    others = (question.with_(f"machine {name}", machine=name)
              for name in _neighbours(question, machine))  # fmt: skip
    yield from islice(filter(possible, others), 1)
    for name, fields in GROUPS.items():
        for factor in (1 - MOVED, 1 + MOVED):
            moved = _moved(question, machine, fields, factor)
            if moved is not None:
                yield question.with_(f"{name} × {factor:.1f}", machine=moved)


def _recorded(model: str, data_dir: Path) -> bool:
    try:
        return bool(recordings(model, data_dir))
    except MoeBenchError:
        return False


def _moved(question: Question, machine: str, fields: tuple[str, ...], factor: float) -> str | None:
    """Return a machine with some of its numbers multiplied; None if one cannot be so."""
    name, numbers = split_numbers(machine)
    known = dict(load_profile(machine, _software(question)).quantities())
    moved = {field: float(f"{known[field].value * factor:.4g}") for field in fields
             if field in known}  # fmt: skip
    found = machine_with(name, numbers | moved)
    try:
        load_profile(found, _software(question))
    except MoeBenchError:
        return None
    return found


def _neighbours(question: Question, machine: str) -> list[str]:
    """Return the catalogue's machines, the most alike first; those with its own card left out."""
    own = load_profile(machine, _software(question))
    others = {name: load_profile(name, _software(question)) for name in profile_names()}
    apart = {name: _distance(own, other) for name, other in others.items()
             if other.gpu.name != own.gpu.name}  # fmt: skip
    return sorted(apart, key=lambda name: (apart[name], name))


def _software(question: Question) -> str:
    return question.spec("moe-ondemand", {}, 1, 0).software


def _distance(one: HardwareProfile, other: HardwareProfile) -> float:
    """Return how far two machines are apart: the sum of the logarithms of their numbers' ratios."""
    mine, yours = dict(one.quantities()), dict(other.quantities())
    return sum(
        abs(math.log(mine[field].value * mine[field].UNITS[mine[field].unit]
                     / (yours[field].value * yours[field].UNITS[yours[field].unit])))
        for field in _ALIKE
    )  # fmt: skip
