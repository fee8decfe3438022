"""Ends that differ by a microsecond or less are equal: rounding does not choose a schedule."""

import pytest

from moebench.systems.policies.latency import SAME_NS
from moebench.systems.policies.makespan import Times, schedule
from moebench.systems.smoe_shipped import divided

US = 1000


@pytest.mark.parametrize(("later_ns", "on_gpu"), [(0, True), (1, True), (SAME_NS, True), (-1, True),
                                                  (SAME_NS + 1, False)])  # fmt: skip
def test_the_gpu_takes_a_cached_expert_unless_the_cpu_ends_it_sooner(later_ns, on_gpu):
    # The CPU ends the first expert after 40 us, the GPU after so much more; both are idle.
    times = Times(token_ns=40 * US, first_ns=0, gpu_ns=40 * US + later_ns, pcie_ns=90 * US)
    assert schedule((1,), (), times).gpu == ([0] if on_gpu else [])


@pytest.mark.parametrize("link_ns", [40 * US - 1, 40 * US, 40 * US + 1])
def test_the_order_of_an_arrival_does_not_depend_on_rounding(link_ns):
    # Five tokens arrive when the GPU has computed nine: they go before the four that wait.
    times = Times(token_ns=900 * US, first_ns=0, gpu_ns=40 * US, pcie_ns=90 * US)
    assert schedule((9, 4), (), times, (5,), link_ns).gpu == [0, 2, 1]


@pytest.mark.parametrize(("ahead_ns", "loaded"), [(1, 1), (2 * SAME_NS, 1)])
def test_smoe_loads_only_where_the_link_has_clearly_less_work(ahead_ns, loaded):
    # The first goes to the host: no work on either side.  Then the host has 50 us of work.
    load, _ = divided([3, 1], 50 * US + ahead_ns, 50 * US)
    assert len(load) == loaded
    # One of each: the third is loaded if the link's 50 us are behind the host's by more than 1 us.
    load, _ = divided([3, 1, 2], 50 * US, 50 * US + ahead_ns)
    assert len(load) == (2 if ahead_ns > SAME_NS else 1)


@pytest.mark.parametrize(
    ("later_ns", "on_cpu"),
    [(-SAME_NS, True), (0, True), (1, True), (SAME_NS, True), (SAME_NS + 1, False)],
)
def test_the_cpu_takes_an_absent_expert_unless_the_link_brings_it_sooner(later_ns, on_cpu):
    times = Times(token_ns=40 * US + later_ns, first_ns=0, gpu_ns=US, pcie_ns=40 * US)
    found = schedule((), (1,), times)
    assert (found.cpu, found.pcie) == (([0], []) if on_cpu else ([], [0]))
