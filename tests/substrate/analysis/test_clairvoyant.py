"""Both bounds by linear programs: worked out by hand, and below every schedule of small cases."""

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.analysis.clairvoyant import (
    StepCosts,
    _Program,
    bound_of,
    window_ns,
    windows,
)

#: One layer: an expert takes 10 on the device and 100 over the link.
PLAIN = StepCosts(
    device=10, host=1e9, link=100, gap=3, before=7, after=[5], launches=[0]
)  # fmt: skip


def ns(*tokens: list[int], slots: int, costs: StepCosts = PLAIN, foresight: bool = True) -> float:
    """The bound of tokens of one layer each."""
    dual, primal = window_ns([[keys] for keys in tokens], slots, costs, 0, foresight)
    assert dual == pytest.approx(primal)
    return dual


def test_experts_that_all_fit_take_the_longest_chain_of_each_step():
    # before + gap + two experts + after, three times.
    assert ns([0, 1], [1, 0], [0, 1], slots=2) == pytest.approx(3 * (7 + 3 + 20 + 5))
    busy = StepCosts(device=10, host=1e9, link=100, gap=3, shared=40, after=[5], launches=[0])
    assert ns([0, 1], slots=2, costs=busy) == pytest.approx(40 + 20 + 5)
    slow = StepCosts(
        device=10, host=1e9, link=100, gap=3, on_device=50, on_host=60, after=[5], launches=[20]
    )
    assert ns([0, 1], slots=2, costs=slow) == pytest.approx(3 + 2 * 50 + 20)


def test_the_host_takes_what_it_can_compute_while_the_link_is_busy():
    # Each expert is new: of the six, two are there, and a load takes as long as two on the host.
    costs = StepCosts(device=0, host=50, link=100, after=[0], launches=[0])
    tokens = [[0, 1, 2, 3, 4, 5]]
    # x on the host, 4 - x loads: 50 x = 100 (4 - x).
    assert ns(*tokens, slots=2, costs=costs) == pytest.approx(50 * 8 / 3)


def test_a_load_without_foresight_waits_for_its_gate():
    # Two loads are needed, of expert 1 if expert 0 stays in the one slot.  Without foresight,
    # shares of them in all four steps take 200 together, each at least as long as computing.
    known = ns([0], [1], [0], [1], slots=1)
    blind = ns([0], [1], [0], [1], slots=1, foresight=False)
    assert known == pytest.approx(2 * 100 + 5)
    assert blind == pytest.approx(2 * 100 + 4 * (7 + 3 + 5))


def test_experts_beyond_device_and_host_memory_are_read():
    costs = StepCosts(device=0, host=1e9, link=1, read=1000, after=[0], launches=[0])
    tokens = [[[0]], [[1]], [[2]]] * 3
    # Two of three experts are held throughout, the third is read for each of its three uses.
    assert window_ns(tokens, 1, costs, held=2)[0] == pytest.approx(3000)
    assert window_ns(tokens, 1, costs, held=3)[0] == pytest.approx(6)


def test_windows_hold_all_tokens_in_order():
    tokens = [[[token, token + 1]] for token in range(20_000)]
    parts = windows(tokens)
    assert [token for part in parts for token in part] == tokens
    assert len(parts) == 4
    assert windows([]) == [[]]
    found = bound_of([tokens[:2], tokens[2:4]], 9, PLAIN)
    assert found.ns == pytest.approx(4 * (7 + 3 + 20 + 5), rel=1e-5)
    assert 0 <= found.gap_ns < 1e-3


# ------------------------------------------------------------------ against all schedules

STEPS = st.lists(
    st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True), min_size=1, max_size=4
)
COSTS = st.builds(
    StepCosts, device=st.integers(1, 20), host=st.integers(10, 200), link=st.integers(10, 200),
    gap=st.integers(0, 10), before=st.integers(0, 10), shared=st.integers(0, 30),
    on_device=st.integers(0, 20), on_host=st.integers(0, 20),
    after=st.lists(st.integers(0, 10), min_size=1, max_size=1),
    launches=st.lists(st.integers(0, 30), min_size=1, max_size=1),
)  # fmt: skip


def least(steps: list[list[int]], slots: int, costs: StepCosts, foresight: bool) -> float:
    """The least time of any schedule that keeps, loads or computes on the host whole experts.

    Loads take the link in the order of their uses, as early as `foresight` allows.
    """
    every = sorted({key for keys in steps for key in keys})
    best = float("inf")
    starts = [set(c) for n in range(slots + 1) for c in combinations(every, n)]

    def go(s: int, held: set[int], now: float, link: float, best: float) -> float:
        if s == len(steps):
            return min(best, now)
        keys = steps[s]
        gate = now + costs.before
        for hosted in product([False, True], repeat=len(keys)):
            here = [k for k, h in zip(keys, hosted, strict=True) if not h]
            loads = [k for k in here if k not in held]
            there = link if foresight else max(link, gate + costs.gap)
            there += costs.link * len(loads)
            on_device = len(here) * costs.device
            ends = (
                max(
                    gate + max(costs.shared, costs.gap) + on_device,
                    gate + costs.gap + (len(keys) - len(here)) * costs.host,
                    there if loads else 0.0,
                )
                + costs.after[0]
            )
            submits = len(here) * costs.on_device + (len(keys) - len(here)) * costs.on_host
            ends = max(ends, gate + costs.gap + submits + costs.launches[0])
            if ends >= best:
                continue
            present = held | set(here)
            for n in range(min(slots, len(present)) + 1):
                for kept in combinations(sorted(present), n):
                    best = go(s + 1, set(kept), ends, there if loads else link, best)
        return best

    for start in starts:
        best = go(0, start, 0.0, 0.0, best)
    return best


@pytest.mark.slow
@given(STEPS, st.integers(1, 3), COSTS)
def test_no_schedule_is_faster(steps, slots, costs):
    tokens = [[keys] for keys in steps]
    for foresight in (True, False):
        dual, primal = window_ns(tokens, slots, costs, 0, foresight)
        assert dual == pytest.approx(primal, abs=1e-3)
        assert dual <= least(steps, slots, costs, foresight) + 1e-3


@pytest.mark.slow
@given(STEPS, st.integers(1, 3), COSTS)
def test_more_slots_and_foresight_lower_the_bound(steps, slots, costs):
    tokens = [[keys] for keys in steps]
    known, blind = (window_ns(tokens, slots, costs, 0, f)[0] for f in (True, False))
    assert known <= blind + 1e-3
    assert window_ns(tokens, slots + 1, costs)[0] <= known + 1e-3


def test_a_program_may_have_variables_in_no_row_and_rows_of_no_limit():
    """Least 2x + 3y with x + y ≥ 1.5, each at most 1: x = 1, y = 0.5; z is free."""
    program = _Program()
    x, y = program.column(price=2.0), program.column(price=3.0)
    program.at_most(-1.5, ([x, y], -1.0))
    program.column(price=1.0)
    program.at_most(7.0)
    dual, primal = program.solve()
    assert dual == pytest.approx(3.5)
    assert primal == pytest.approx(3.5)
