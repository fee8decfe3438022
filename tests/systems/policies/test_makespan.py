"""HybriMoE's simulated schedule of a layer: by hand, and compared with another simulation."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from moebench.systems.policies.makespan import Times, schedule
from tests.systems.policies.exact import exact_ends  # noqa: F401

ONE = Times(token_ns=7, first_ns=0, gpu_ns=10, pcie_ns=20)


def test_the_cpu_takes_the_least_loaded_of_what_is_cached():
    # The CPU would end the one token at 7, the GPU its first at 10; then two tokens at 21 and 20.
    assert schedule((3, 2, 1), (), ONE) == ([0, 1], [2], [], 20)
    # With 4 more for its first it ends that at 11; the second at 18, the GPU at 20.
    dearer = ONE._replace(first_ns=4)
    assert schedule((1, 1, 1), (), dearer) == ([0], [2, 1], [], 18)


def test_absent_experts_go_to_the_cpu_from_the_least_loaded_and_to_the_link_from_the_most():
    # CPU: the one token at 7, the two at 21.  Link: the five at 20; the GPU ends them at 30.
    # For the four the CPU would take until 49, the link until 40 and then the GPU until 50.
    assert schedule((), (5, 4, 2, 1), ONE) == ([0, 1], [3, 2], [0, 1], 50)


def test_an_arrival_takes_its_place_in_the_queue_by_its_load():
    # The link brings the 9 tokens at 20; the GPU has computed 5 and 4 by then and 3 is next, but
    # for the arrival.  The CPU is slow.
    slow = Times(token_ns=100, first_ns=0, gpu_ns=10, pcie_ns=20)
    assert schedule((5, 4, 3), (9,), slow) == ([0, 1, 3, 2], [], [3], 40)
    # One that arrives in the middle of an operation waits for its end.
    assert schedule((5, 4, 3), (9,), slow._replace(pcie_ns=15)) == ([0, 1, 3, 2], [], [3], 40)
    assert schedule((5, 4, 3), (9,), slow._replace(pcie_ns=25)) == ([0, 1, 2, 3], [], [3], 40)


def test_what_is_on_its_way_arrives_when_the_link_is_free():
    slow = Times(token_ns=100, first_ns=0, gpu_ns=10, pcie_ns=20)
    # 1 has come at 5; the link brings 2 from then on.
    assert schedule((), (1,), slow, (2,), 5) == ([0, 1], [], [1], 35)
    assert schedule((1,), (), slow, (2, 2), 5) == ([0, 1, 2], [], [], 30)
    assert schedule((1,), (), slow, (2,), 50) == ([0, 1], [], [], 60)


def test_what_is_on_its_way_goes_to_the_cpu_if_that_is_sooner():
    # The CPU would end it at 14: before it is there, or while it arrives.
    assert schedule((), (), ONE, (2,), 15) == ([], [0], [], 14)
    assert schedule((), (), ONE, (2,), 13) == ([0], [], [], 23)
    # Of two the CPU takes the one with fewer tokens, whichever has begun.
    assert schedule((), (4,), ONE, (2,), 15) == ([1], [0], [1], 45)
    assert schedule((), (1,), ONE, (2,), 15) == ([0], [1], [], 25)


def test_schedule_without_experts_is_empty():
    assert schedule((), (), ONE) == ([], [], [], 0)


def by_events(cached, absent, times, coming, link_ns):
    """Return the same rule's schedule, always executing the operation that ends first."""
    tokens = dict(enumerate([*cached, *coming, *absent]))
    own = range(len(cached))
    here, under_way = dict.fromkeys(own, 0), range(len(cached), len(cached) + len(coming))
    clock, done = [0, 0, link_ns], ([], [], [])

    def next_of(who):
        """Return (end, lane, expert) of the next operation of the GPU, the CPU or the link."""
        left = [e for e in tokens if e not in {*done[0], *done[1]}]
        away = [e for e in left if e not in here]
        if who == 0 and (begin := min((here[e] for e in left if e in here), default=inf)) < inf:
            begin = max(begin, clock[0])
            queue = [e for e in left if here.get(e, inf) <= begin]
            return begin + times.gpu_ns, who, max(queue, key=lambda e: (tokens[e], -e))
        if who == 1 and (queue := away or [e for e in left if e in own]):
            expert = min(queue, key=lambda e: (tokens[e], -e))
            first = 0 if done[1] else times.first_ns
            return clock[1] + tokens[expert] * times.token_ns + first, who, expert
        if who == 2 and (queue := [e for e in away if e in under_way]):
            return link_ns, who, queue[0]
        if who == 2 and away:
            return clock[2] + times.pcie_ns, who, max(away, key=lambda e: (tokens[e], -e))
        return inf, who, -1

    while len(done[0]) + len(done[1]) < len(tokens):
        end, who, expert = min(map(next_of, range(3)))
        clock[who] = end
        if who == 2:
            here[expert] = end
        if who < 2 or expert not in under_way:
            done[who].append(expert)
    return (*done, max(clock[:2]))


LOADS = st.lists(st.integers(1, 6), max_size=5).map(lambda n: tuple(sorted(n, reverse=True)))
TIMES = st.builds(
    Times, st.integers(1, 9), st.integers(0, 9), st.integers(1, 12), st.integers(1, 20)
)


@given(cached=LOADS, absent=LOADS, coming=LOADS, times=TIMES, link_ns=st.integers(0, 30))
def test_another_simulation_schedules_alike(cached, absent, coming, times, link_ns):
    found = schedule(cached, absent, times, coming, link_ns)
    assert found == by_events(cached, absent, times, coming, link_ns)


@given(cached=LOADS, absent=LOADS, times=TIMES)
def test_its_queues_take_the_makespan(cached, absent, times):
    found, tokens = schedule(cached, absent, times), [*cached, *absent]
    assert sorted([*found.gpu, *found.cpu]) == list(range(len(tokens)))
    arrival = {e: (n + 1) * times.pcie_ns for n, e in enumerate(found.pcie)}
    gpu_ns = 0
    for e in found.gpu:
        assert e < len(cached) or e in arrival
        gpu_ns = max(gpu_ns, arrival.get(e, 0)) + times.gpu_ns
    cpu_ns = times.first_ns * bool(found.cpu) + times.token_ns * sum(tokens[e] for e in found.cpu)
    assert found.makespan_ns == max(gpu_ns, cpu_ns)
