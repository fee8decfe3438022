"""Experts that are on their way to the device when their layer's gate is known: wait, or compute.

With ``in_flight=host`` a system lets the host compute some of them, whatever its assignment is.
Their transfers go on: they are on the device for later tokens.
"""

from collections.abc import Sequence

from moebench.substrate.engine.decisions import Active, LayerView, Plan
from moebench.substrate.machines.protocol import Lane

#: How many past durations of the host are averaged.
HISTORY = 10


def host_in_flight(view: LayerView, active: Active, plan: Plan) -> Plan:
    """Return the plan with those experts in flight on the host that end sooner there.

    The link brings the layer's n experts in flight one after the other until its queue is empty, at
    time t.  With the k experts of fewest rows on the host the layer waits for the later of

        t · (n - k) / n        the last of the others is there
        h + Σ c · rows         the host has computed what the plan gives it, and the k experts

    where h is the time until the host is idle and c its mean time for a row.  The least k of those
    with the earliest end is taken.
    """
    waiting = [e for e in active.in_flight if e in {*plan.device}]
    if not waiting:
        return plan
    rows = active.rows
    recent = [*view.costs.host_ns_per_row][-HISTORY:]
    each_ns = sum(recent) / len(recent)
    link_ns = max(map(view.lanes.backlog_ns, view.lanes.load_path))
    host_ns = view.lanes.backlog_ns(Lane.HOST) + each_ns * sum(rows[e] for e in plan.host)
    fewest = sorted(waiting, key=lambda e: (rows[e], -e))
    taken = _earliest([each_ns * rows[e] for e in fewest], link_ns, host_ns)
    if not taken:
        return plan
    moved = fewest[:taken]
    device = [e for e in plan.device if e not in moved]
    return plan._replace(device=device, host=[*plan.host, *moved])


def _earliest(each_ns: Sequence[float], link_ns: float, host_ns: float) -> int:
    """Return the least number of experts on the host with which all are ready first."""
    count, best, best_ns = len(each_ns), 0, float(link_ns)
    for taken, one_ns in enumerate(each_ns, 1):
        host_ns += one_ns
        end_ns = max(link_ns * (count - taken) / count, host_ns)
        if end_ns < best_ns:
            best, best_ns = taken, end_ns
    return best
