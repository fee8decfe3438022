"""A split of a layer's experts between device, link and host that counts the control thread's time.

The control thread submits a layer's work one by one: loads, then experts for the host, then those
of the device.  Where each takes it long, as in a framework's Python, the device waits for it, and
the host may be done with an expert that is on the device before its kernels could be launched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from moebench.substrate.engine.decisions import Active, LayerView, Plan, fetches, split
from moebench.substrate.engine.options import option
from moebench.substrate.machines.protocol import Lane, OpKind, op_of
from moebench.systems.policies.assign import LinkOrHost
from moebench.systems.policies.latency import SAME_NS, host_line


class Prices(NamedTuple):
    """Times in ns of one expert on each lane, and of the control thread for it.

    Attributes:
        device_ns, load_ns: on the device, and of its transfer.
        token_ns, first_ns: on the host for each token, and more for a layer's first expert there.
        launch_ns, submit_ns: of the control thread for an expert on the device, and for a load.
        hand_ns: of the control thread for an expert on the host and the return of its output.
        shared_ns, shared_launch_ns: of the layer's shared experts on the device, and of the control
            thread for them.
    """

    device_ns: float
    load_ns: float
    token_ns: float
    first_ns: float
    launch_ns: float
    submit_ns: float
    hand_ns: float
    shared_ns: float
    shared_launch_ns: float


def layer_end_ns(
    prices: Prices, here: int, coming: int, loads: int, host_rows: Sequence[int], free_ns: float
) -> float:
    """Return when a layer ends, in ns from the instant at which its plan is known.

    The control thread submits the loads, the experts on the host, the residents as one operation,
    and the shared experts.  Each expert that arrives is launched once it is there and the device is
    idle.  The layer ends when control thread, device and host have ended.

    Args:
        here, coming, loads: numbers of resident experts, of those under way, and of loads, which
            the device computes.
        host_rows: tokens of each expert on the host, in their order.
        free_ns: when the link is free and the experts under way have arrived.
    """
    control = host = 0.0
    link = free_ns
    arrivals = [free_ns] * coming
    for _ in range(loads):
        control += prices.submit_ns
        link = max(link, control) + prices.load_ns
        arrivals.append(link)
    for n, rows in enumerate(host_rows):
        control += prices.hand_ns
        host = max(host, control) + prices.token_ns * rows + prices.first_ns * (not n)
    device = control
    if here:
        device += prices.device_ns * here
        control += prices.launch_ns * here
    control += prices.shared_launch_ns
    device = max(device + prices.shared_ns, control)
    for arrival in arrivals:
        begin = max(control, device, arrival)
        control = begin + prices.launch_ns
        device = begin + max(prices.device_ns, prices.launch_ns)
    return max(device, host)


@dataclass(kw_only=True)
class EarliestEnd(LinkOrHost):
    """Uses the split of a layer after which the layer ends first, by `layer_end_ns`.

    Absent experts with most tokens, then with the best scores, are loaded, and the host computes
    the others.  It may compute residents, too: those with fewest tokens, then with the lowest ids.
    Of splits that end at the same time, to 1 us (`SAME_NS`), the one with most loads is used, then
    the one with fewest residents on the host.

    Attributes:
        residents: most residents of a layer that the host computes.
    """

    residents: int = option(8, low=0, searched=(0, 8))

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Return the plan of the best split, or one that loads all that a prompt misses."""
        if view.phase == "prefill" and self.prefill == "load":
            return split(active, fetches(view.layer, active.absent))
        backlogs_ns = map(view.lanes.backlog_ns, view.lanes.load_path)
        load, host = self.divide(view, active, max(backlogs_ns) if self.link == "backlog" else 0)
        return split(active, fetches(view.layer, load), host)

    def divide(self, view: LayerView, active: Active, free_ns: int) -> tuple[list[int], list[int]]:
        """Return the experts to load and those for the host, of these the absent ones first."""
        rows, score, here = active.rows, active.best, len(active.resident)
        queue = sorted(active.absent, key=lambda e: (-rows[e], -score[e], e))
        lent = sorted(active.resident, key=lambda e: (rows[e], e))[: self.residents]
        prices, coming = self._prices(view), len(active.in_flight)
        best_ns, best = inf, (0, 0)
        for loads in range(len(queue), -1, -1):
            away = [rows[e] for e in reversed(queue[loads:])]
            for taken in range(len(lent) + 1):
                host_rows = [*away, *(rows[e] for e in lent[:taken])]
                end_ns = layer_end_ns(prices, here - taken, coming, loads, host_rows, free_ns)
                if end_ns < best_ns - SAME_NS:
                    best_ns, best = end_ns, (loads, taken)
        loads, taken = best
        return queue[:loads], [*reversed(queue[loads:]), *lent[:taken]]

    def _prices(self, view: LayerView) -> Prices:
        """Return the mean times of the last operations, and the control thread's for one row."""
        costs, layer, control_ns = view.costs, view.layer, view.lanes.control_ns
        one = op_of(OpKind.EXPERT, layer, (1,), (0,))
        back = op_of(OpKind.RETURN, layer, (1,), (0,))
        shared_ns = shared_launch_ns = 0
        if view.shape.shared_width:
            shared = op_of(OpKind.SHARED, layer, (view.forward.rows,))
            shared_ns = view.lanes.estimate_ns(shared, Lane.DEVICE)
            shared_launch_ns = control_ns(shared, Lane.DEVICE)
        return Prices(
            self.mean(costs.device_ns), self.mean(costs.load_ns), *host_line(costs, self.history),
            launch_ns=control_ns(one, Lane.DEVICE),
            submit_ns=control_ns(op_of(OpKind.LOAD, layer, (), (0,)), Lane.H2D),
            hand_ns=control_ns(one, Lane.HOST) + control_ns(back, Lane.D2H),
            shared_ns=shared_ns, shared_launch_ns=shared_launch_ns,
        )  # fmt: skip
