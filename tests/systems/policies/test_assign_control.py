"""A split that counts the control thread: by hand, by the engine, all splits, and `Optimal`."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.engine.decisions import Plan, fetches
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.systems.policies.assign import Optimal
from moebench.systems.policies.assign_control import EarliestEnd, Prices, layer_end_ns
from moebench.systems.policies.latency import SAME_NS
from tests.substrate.engine.fakes import FlatCosts, prices, small_shape
from tests.substrate.engine.own import Placed, Plans, model_of, of, run, system
from tests.systems.views import Backlog, active, costs, fetched, view

ONE = Prices(
    device_ns=10, load_ns=40, token_ns=25, first_ns=5, launch_ns=12, submit_ns=1, hand_ns=3,
    shared_ns=8, shared_launch_ns=4,
)  # fmt: skip

# ---------------------------------------------------------------- one layer's end


def test_residents_wait_for_the_control_thread():
    # Three launches until 36, the shared experts' until 40; the device ends 3 · 10, then 8 more.
    assert layer_end_ns(ONE, 3, 0, 0, [], 0) == 40
    # A slower device: 3 · 15 + 8.
    assert layer_end_ns(ONE._replace(device_ns=15), 3, 0, 0, [], 0) == 53
    assert layer_end_ns(ONE, 0, 0, 0, [], 0) == 8


def test_the_host_works_beside_it():
    # Handed over at 3 and 6; the first ends at 3 + 25 + 5, the second, of two tokens, 50 later.
    assert layer_end_ns(ONE, 0, 0, 0, [1, 2], 0) == 83
    # One resident less: 3 + 2 · 12 + 4 = 31, but the host ends at 33.
    assert layer_end_ns(ONE, 2, 0, 0, [1], 0) == 33


def test_arrivals_are_launched_when_they_are_there():
    # Loads submitted at 1 and 2 come at 41 and 81; each is launched within 12.
    assert layer_end_ns(ONE, 0, 0, 2, [], 0) == 81 + 12
    # The link is free at 30 only, when one that was under way has come.
    assert layer_end_ns(ONE, 0, 1, 1, [], 30) == 30 + 40 + 12
    # Both are there before the residents have been launched: 5 · 12 + 4, and 12 each.
    assert layer_end_ns(ONE, 5, 2, 0, [], 0) == 64 + 24


class Launches(FlatCosts):
    """Prices whose first kernel is launched at once."""

    def first_launch_ns(self, op, lane):
        return 0


@given(
    st.integers(0, 3), st.integers(0, 2), st.integers(0, 2), st.integers(5, 300),
    st.integers(5, 300), st.integers(5, 300), st.integers(0, 40), st.integers(0, 9),
)  # fmt: skip
def test_the_engine_finds_the_same_end(here, loads, hosted, device, load, host, launch, hand):
    experts = here + loads + hosted
    if not experts:
        return
    shape = small_shape(layers=1, experts=max(experts, 2), top_k=experts, shared=True)
    device_first = [*range(here), *range(here, here + loads)]
    on_host = [*range(here + loads, experts)]
    plan = Plan(device_first, on_host, (), fetches(0, range(here, here + loads)))
    made = system(
        place=Placed(pairs=[(0, e) for e in range(here)]), assign=Plans(by=lambda *_: plan)
    )
    table = prices(expert=device, load=load, host=host, back=0)
    ran = run(
        made, model_of(shape, [[[tuple(range(experts))]]]), slots=max(experts, 2),
        costs=Launches(table, launch_ns=launch, submit_ns=hand, waits=True),
    )  # fmt: skip
    (gate,), (combine,) = of(ran, OpKind.GATE), of(ran, OpKind.COMBINE)
    each = Prices(
        device_ns=device, load_ns=load, token_ns=host, first_ns=0, launch_ns=launch, submit_ns=hand,
        hand_ns=2 * hand, shared_ns=8, shared_launch_ns=launch,
    )  # fmt: skip
    end_ns = gate[3] + layer_end_ns(each, here, 0, loads, [1] * hosted, 0)
    # The host begins with an expert before the return of its output has been submitted.
    assert 0 <= end_ns - combine[2] <= (2 * hand if hosted else 0)


# ---------------------------------------------------------------- the policy


def seen_with(resident, coming, each, free_ns, rows=((0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2),)):
    """Return a view whose tokens use all experts, at these prices."""
    lanes = Backlog(
        {Lane.H2D: free_ns},
        control_ns={
            (OpKind.EXPERT, Lane.DEVICE): each.launch_ns,
            (OpKind.LOAD, Lane.H2D): each.submit_ns,
            (OpKind.EXPERT, Lane.HOST): each.hand_ns,
        },
    )
    measured = costs([each.load_ns], [each.token_ns], [each.token_ns], [each.device_ns])
    return view(rows, len(rows[0]), resident, in_flight=coming, lanes=lanes, measured=measured)


TIMES = st.integers(0, 400).map(lambda n: 1000 * n)
ON_HOST = TIMES.map(lambda ns: ns + 1000)
EACH = st.builds(
    Prices, device_ns=TIMES, load_ns=TIMES, token_ns=ON_HOST, first_ns=st.just(0), launch_ns=TIMES,
    submit_ns=TIMES, hand_ns=TIMES, shared_ns=st.just(0), shared_launch_ns=st.just(0),
)  # fmt: skip


@given(st.integers(0, 5), st.integers(0, 1), EACH, TIMES, st.integers(0, 6))
def test_no_other_split_ends_earlier(here, coming, each, free_ns, most):
    seen = seen_with(range(here), range(here, here + coming), each, free_ns)
    found = active(seen)
    plan = EarliestEnd(residents=most).assign(seen, found)
    assert sorted([*plan.device, *plan.host]) == list(range(8))
    assert sum(e < here for e in plan.host) <= most
    loads = len(plan.load)

    def end_ns(loads, taken):
        on_host = [1] * (8 - here - coming - loads + taken)
        return layer_end_ns(each, here - taken, coming, loads, on_host, free_ns)

    ends = [end_ns(*both) for both in product(range(9 - here - coming), range(min(most, here) + 1))]
    assert end_ns(loads, sum(e < here for e in plan.host)) <= min(ends) + SAME_NS
    # What is loaded scores best.
    missing = list(range(here + coming, 8))
    assert fetched(0, plan.load) == missing[:loads]


@given(st.integers(0, 5), TIMES, ON_HOST, TIMES)
def test_where_control_and_device_take_no_time_it_is_the_optimal_split(here, load, host, free_ns):
    each = ONE._replace(
        device_ns=0, load_ns=load, token_ns=host, launch_ns=0, submit_ns=0, hand_ns=0
    )
    seen = seen_with(range(here), (), each, free_ns)
    ours, theirs = EarliestEnd(residents=0), Optimal()
    found, best = ours.assign(seen, active(seen)), theirs.assign(seen, active(seen))
    assert len(found.load) == len(best.load) or abs(
        max(free_ns + len(found.load) * load, len(found.host) * host)
        - max(free_ns + len(best.load) * load, len(best.host) * host)
    ) <= SAME_NS * 9  # fmt: skip


def test_slow_launches_send_residents_to_the_host():
    # Four launches of 100 us take 400; the host ends one expert at 10 + 150, a second one at 310,
    # when two launches have ended at 20 + 200.
    slow = Prices(10_000, 900_000, 150_000, 0, 100_000, 1000, 10_000, 0, 0)
    seen = seen_with(range(8), (), slow, 0)
    plan = EarliestEnd().assign(seen, active(seen))
    # 5 launched: 3 · 10 + 500; 6: 2 · 10 + 600, the host at 310; 5: the host at 460.
    assert list(plan.host) == [0, 1, 2]
    assert list(plan.device) == [3, 4, 5, 6, 7]
    quick = slow._replace(launch_ns=1000)
    seen = seen_with(range(8), (), quick, 0)
    assert EarliestEnd().assign(seen, active(seen)).host == []


def test_residents_with_fewest_tokens_go_to_the_host():
    slow = Prices(10_000, 900_000, 150_000, 0, 100_000, 1000, 10_000, 0, 0)
    seen = seen_with(range(4), (), slow, 0, [(0.4, 0.3, 0.2, 0.1)])
    found = active(seen, {0: 3, 1: 1, 2: 2, 3: 1})
    assert list(EarliestEnd().assign(seen, found).host) == [1]
    assert list(EarliestEnd(residents=0).assign(seen, found).host) == []


@pytest.mark.parametrize("prefill", ["load", "balanced"])
def test_a_prompt_is_divided_only_if_it_is_balanced(prefill):
    slow = Prices(10_000, 900_000, 1000, 0, 1000, 1000, 1000, 0, 0)
    rows = [(0.4, 0.3, 0.2, 0.1)]
    seen = seen_with((), (), slow, 0, rows)
    seen.phase = "prefill"
    plan = EarliestEnd(prefill=prefill).assign(seen, active(seen))
    assert len(plan.load) == (4 if prefill == "load" else 0)
