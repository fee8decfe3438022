"""Experts in flight when their gate is known: waited for, or computed on the host."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.engine.decisions import Active, Fetch, split
from moebench.substrate.engine.in_flight import host_in_flight
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.systems.policies.assign import HostAll, LoadAll
from tests.substrate.engine.fakes import FlatCosts, prices, small_shape
from tests.substrate.engine.own import Asks, Placed, model_of, of, run, system
from tests.systems.views import Backlog, costs, view

TWO = small_shape(layers=2)


def planned(rows, in_flight, link_ns, host_busy_ns=0, each_ns=7, host=(), disk_ns=None):
    """Return (device, host) of a layer whose experts are all in flight, but for ``host``."""
    scores = np.linspace(0.5, 0.1, 8)[None]
    path = (Lane.H2D,) if disk_ns is None else (Lane.DISK, Lane.H2D)
    lanes = Backlog({Lane.H2D: link_ns, Lane.HOST: host_busy_ns, Lane.DISK: disk_ns or 0}, path)
    seen = view(scores, 3, (), in_flight=in_flight, lanes=lanes,
                measured=costs(load=[20], host=[7], per_row=[each_ns], device=[10]))  # fmt: skip
    active = Active(dict(sorted(rows.items())), seen)
    plan = host_in_flight(seen, active, split(active, host=host))
    return list(plan.device), list(plan.host)


def test_the_host_takes_those_with_which_all_are_ready_first():
    # Three come until 30, one each 10: with one on the host all are ready at 20, with two at 14.
    assert planned({1: 1, 2: 1, 3: 1}, {1, 2, 3}, 30) == ([1], [3, 2])
    # The host is busy until 20: nothing is earlier than one, at 27.
    assert planned({1: 1, 2: 1, 3: 1}, {1, 2, 3}, 30, host_busy_ns=20) == ([1, 2], [3])
    # Until 23, and with one of its own: the link brings all before that.
    assert planned({1: 1, 2: 1, 3: 1}, {1, 2, 3}, 30, host_busy_ns=23) == ([1, 2, 3], [])


@pytest.mark.parametrize(("link_ns", "disk_ns"), [(30, 5), (5, 30)])
def test_of_the_lanes_to_the_device_the_busiest_counts(link_ns, disk_ns):
    found = planned({1: 1, 2: 1, 3: 1}, {1, 2, 3}, link_ns, disk_ns=disk_ns)
    assert found == ([1], [3, 2])


def test_it_takes_the_experts_of_fewest_rows():
    assert planned({1: 2, 2: 1, 3: 3}, {1, 2, 3}, 30) == ([1, 3], [2])


def test_what_the_plan_gives_the_host_comes_first():
    assert planned({1: 1, 4: 1}, {1}, 20, host=[4]) == ([], [4, 1])
    assert planned({1: 1, 4: 1}, {1}, 14, host=[4]) == ([1], [4])


@given(
    rows=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    link_ns=st.integers(0, 200), busy_ns=st.integers(0, 60), each_ns=st.integers(1, 40),
)  # fmt: skip
def test_no_other_number_of_them_is_ready_earlier(rows, link_ns, busy_ns, each_ns):
    """By exhaustion over all subsets, where the last of n - k arrives at t (n - k) / n."""
    experts = dict(enumerate(rows))
    device, host = planned(experts, {*experts}, link_ns, busy_ns, each_ns)
    assert sorted([*device, *host]) == sorted(experts)
    count = len(experts)

    def end_ns(chosen):
        on_host = busy_ns + each_ns * sum(experts[e] for e in chosen) if chosen else 0
        return max(link_ns * (count - len(chosen)) / count, on_host)

    best = min(
        end_ns([e for e, taken in enumerate(choice) if taken])
        for choice in product((False, True), repeat=count)
    )
    assert end_ns(host) == pytest.approx(best)


def ran(in_flight, assign):
    """Layer 1's expert 2 is prefetched for 400 ns; its gate is known at 88."""
    place = Placed(pairs=[(0, 0), (0, 1), (1, 0), (1, 1)])
    prefetch = Asks(opens=[Fetch(1, 2)], discipline="committed")
    made = system(place=place, prefetch=prefetch, assign=assign, in_flight=in_flight)
    use = [[(0, 1)], [(0, 1)]]
    uses = [use, [[(0, 1)], [(0, 2)]]]
    model = model_of(TWO, uses)
    return run(made, model, slots=5, costs=FlatCosts(prices(load=400)), passes=2)


def test_the_engine_computes_it_on_the_host_and_keeps_it():
    waits, hosts = ran("wait", HostAll()), ran("host", HostAll())
    assert of(waits, OpKind.EXPERT, Lane.HOST) == []
    ((layer, experts, start_ns, _),) = of(hosts, OpKind.EXPERT, Lane.HOST)
    assert (layer, experts) == (1, (2,))
    assert start_ns < 400
    (*_, first), (*_, other) = of(hosts, OpKind.HEAD)[-1], of(waits, OpKind.HEAD)[-1]
    assert first < other
    assert hosts.cache.holds(hosts.cache.key(1, 2))
    assert len(of(hosts, OpKind.LOAD)) == len(of(waits, OpKind.LOAD)) == 1


def test_without_a_host_that_computes_nothing_changes():
    assert of(ran("host", LoadAll()), OpKind.EXPERT) == of(ran("wait", LoadAll()), OpKind.EXPERT)
