"""The host bandwidth of S3 that each of the paper's figures implies, as a table.

The authors do not name S3's host.  Its rate of reading weights, ``host.gemv_bandwidth``, decides
what the division of experts between link and host gains.  Each figure below is measured at the
places of the number's range; where it passes the paper's figure lies the value that it implies.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from moebench.harness.reproduce.claim import Show
from moebench.harness.reproduce.evidence import Evidence, Experiment
from moebench.harness.reproduce.exhibits import Row, axis, table
from moebench.harness.reproduce.ranges import PLACES
from moebench.harness.reproduce.read import TPOT, Figure
from moebench.harness.reproduce.smoe import measures as m
from moebench.harness.reproduce.smoe.components import MACHINE, expert_ns, host_over_load
from moebench.harness.reproduce.smoe.experiments import ABLATION, HOST, MAIN
from moebench.harness.reproduce.smoe.own_parts import HOST_BASE
from moebench.results.claims import Exhibit
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.machines.profile_ranges import number_at, uncertain
from moebench.substrate.machines.protocol import Lane

#: Setting of all figures here.
SETTING = "S3"


class Implied(NamedTuple):
    """A figure of the paper and the function that measures it.

    Attributes:
        paper: the figure, in ``unit``.
    """

    what: str
    place: str
    paper: float
    unit: str
    measure: Callable[[Evidence], float]


def _of_runs(experiment: Experiment, figure: Figure) -> Callable[[Evidence], float]:
    """Return a function that reads a figure from the runs of S3."""
    return lambda evidence: figure(evidence.runs(experiment).of(setting=SETTING))


def _host_over_gpu(evidence: Evidence) -> float:
    name = evidence.machine(MACHINE)
    return expert_ns(Lane.HOST, 1, name) / expert_ns(Lane.DEVICE, 1, name)


#: The paper's figures that depend on the host's bandwidth and have a size.
FIGURES = (
    *(
        Implied(f"TPOT against the best baseline, batch {batch} (S-2)", "Fig. 11", paper, "%",
                _of_runs(MAIN, m.change(TPOT, setting=SETTING, batch=batch)))
        for batch, paper in ((1, -34.0), (3, -48.0))
    ),
    Implied("TPOT of +CE against misses on the host (S-5)", "Fig. 14", -8, "%",
            _of_runs(ABLATION, m.step(TPOT, "+CE", HOST_BASE))),
    Implied("TPOT of +BA against +Pre (S-5)", "Fig. 14", -34, "%",
            _of_runs(ABLATION, m.step(TPOT, "+BA", "+Pre"))),
    Implied("the host's time over the load's, of one expert (S-9)", "Fig. 18", 0.333, "1",
            lambda evidence: host_over_load()(evidence).value),
    Implied("the host's time over the link's, of all experts with +BA (S-9)", "Fig. 18", 0.333, "1",
            _of_runs(ABLATION, m.host_to_link)),
    Implied("an expert's time on the host over the GPU's (S-14): one order", "Fig. 3", 10, "×",
            _host_over_gpu),
)  # fmt: skip


def implied(values: list[float], figures: list[float], paper: float) -> list[float]:
    """Return the values at which a figure equals the paper's, each between two measured ones.

    Between them the figure is taken as linear in the value's logarithm.

    Args:
        values: ascending, positive.
    """
    found = []
    for (a, first), (b, last) in pairwise(zip(values, figures, strict=True)):
        if (first - paper) * (last - paper) <= 0 and first != last:
            share = (paper - first) / (last - first)
            found.append(math.exp(math.log(a) + share * (math.log(b) - math.log(a))))
    return found


def said(values: list[float], figures: list[float], paper: float) -> str:
    """Return the implied values in words; outside the range, the end that comes closest."""
    found = implied(values, figures, paper)
    if found:
        return " and ".join(f"{value:.0f}" for value in dict.fromkeys(found))
    closest = min(zip(figures, values, strict=True), key=lambda pair: abs(pair[0] - paper))[1]
    if closest == values[0]:
        return f"below {closest:g}"
    if closest == values[-1]:
        return f"above {closest:g}"
    return f"none; closest at {closest:g}"


def _table(evidence: Evidence) -> Exhibit:
    profile = load_profile(MACHINE)
    number = next(one for one in uncertain(profile) if one.field == HOST)
    values = [number_at(number, place) for place in PLACES]
    moved = [evidence.moved({HOST: place} if place else {}) for place in PLACES]
    rows: list[Row] = []
    for one in FIGURES:
        figures = [one.measure(at) for at in moved]
        measured = {f"{value:g}": round(f, 3) for value, f in zip(values, figures, strict=True)}
        rows.append({
            "figure": one.what, "place": one.place, "unit": one.unit, "paper": one.paper,
            **measured, "implied": said(values, figures, one.paper),
        })  # fmt: skip
    return table(
        "smoe-host-bandwidth", "Fig. 3, 11, 14 and 18",
        "Host bandwidth of S3 that each figure implies",
        (
            axis("figure"), axis("place"), axis("unit"), axis("paper"),
            *(axis(f"{value:g}", f"ours at {value:g} GB/s") for value in values),
            axis("implied", "implied", "GB/s"),
        ),
        rows, badge="estimate",
        note="cells of --quick; the paper's figures of Fig. 14 are means over S1-S3. The profile's "
        f"value, {number.number.value:g} GB/s, lies between what both steps of Fig. 14 imply; the "
        "changes of TPOT imply less, Fig. 18 read as the ratio of one expert more",
    )  # fmt: skip


SHOWN = Show(_table, (MAIN, ABLATION))
