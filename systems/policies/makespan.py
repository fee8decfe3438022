"""Simulation of a layer's makespan over the queues of GPU, CPU and PCIe (HybriMoE, DAC 2025)."""

from bisect import insort
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

from moebench.substrate.machines.timeline import Costs
from moebench.systems.policies.latency import SAME_NS, host_line, mean_of_last


class Times(NamedTuple):
    """Time of one expert on the CPU, on the GPU and over PCIe, in ns.

    On the CPU it is ``token_ns`` for each token, and ``first_ns`` more for a layer's first expert.
    """

    token_ns: float
    first_ns: float
    gpu_ns: float
    pcie_ns: float


def measured(costs: Costs, history: int) -> Times:
    """Return the mean times of the last ``history`` operations of each kind."""
    gpu_ns, pcie_ns = (mean_of_last(ns, history) for ns in (costs.device_ns, costs.load_ns))
    return Times(*host_line(costs, history), gpu_ns, pcie_ns)


class Schedule(NamedTuple):
    """Experts that the GPU and CPU compute and PCIe transfers, each in order, and the makespan.

    Experts are numbered: first the cached ones, then those on their way, then the absent ones.
    """

    gpu: Sequence[int]
    cpu: Sequence[int]
    pcie: Sequence[int]
    makespan_ns: float


@lru_cache(maxsize=1 << 14)
def schedule(
    cached: tuple[int, ...], absent: tuple[int, ...], times: Times,
    coming: tuple[int, ...] = (), link_ns: float = 0,
) -> Schedule:  # fmt: skip
    """Divide experts over GPU, CPU and PCIe: repeatedly commit the operation that ends first.

        GPU   cached experts and those that have arrived, most tokens first
        CPU   the others, fewest tokens first; without any, cached ones, fewest tokens first
        PCIe  the others, most tokens first; each then joins the GPU's queue

    The loop ends when every expert has an executor.  Ends that differ by 1 us or less count as
    equal (`SAME_NS`); the GPU then goes before the CPU, and the CPU before PCIe.

    Args:
        cached, absent, coming: tokens of the experts, descending.
        link_ns: when the link is free and all ``coming`` experts have arrived.
    """
    tokens = (*cached, *coming, *absent)
    ready = list(range(len(cached)))
    under_way = list(range(len(cached), len(cached) + len(coming)))
    missing = list(range(len(cached), len(tokens)))
    if coming:
        missing.sort(key=lambda e: (-tokens[e], e))
    arriving: deque[tuple[float, int]] = deque()
    gpu: list[int] = []
    cpu: list[int] = []
    pcie: list[int] = []
    gpu_ns, cpu_ns, pcie_ns = 0.0, 0.0, link_ns
    while len(gpu) + len(cpu) < len(tokens):
        while arriving and arriving[0][0] <= gpu_ns + SAME_NS:
            insort(ready, arriving.popleft()[1], key=lambda e: (-tokens[e], e))
        begins = gpu_ns if ready else arriving[0][0] if arriving else inf
        gpu_end = begins + times.gpu_ns
        left = missing or [e for e in ready if e < len(cached)]
        cpu_end = inf
        if left:
            cpu_end = cpu_ns + times.token_ns * tokens[left[-1]] + times.first_ns * (not cpu)
        pcie_end = inf
        if missing:
            pcie_end = link_ns if under_way else pcie_ns + times.pcie_ns
        if gpu_end <= min(cpu_end, pcie_end) + SAME_NS:
            gpu.append(ready.pop(0) if ready else arriving.popleft()[1])
            gpu_ns = gpu_end
        elif cpu_end <= pcie_end + SAME_NS:
            expert = left[-1]
            cpu.append(expert)
            (missing or ready).remove(expert)
            if expert in under_way:
                under_way.remove(expert)
            cpu_ns = cpu_end
        else:
            expert = under_way.pop(0) if under_way else missing[0]
            missing.remove(expert)
            arriving.append((pcie_end, expert))
            if expert >= len(cached) + len(coming):
                pcie.append(expert)
            pcie_ns = pcie_end
    return Schedule(gpu, cpu, pcie, max(gpu_ns, cpu_ns))
