"""Costs of a token's parts and windows of tokens, on a machine whose operations cost what is said.

The bounds of `moebench run` themselves are in `test_document`.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.run import bound as module
from moebench.harness.run.bound import (
    _rooms,
    _spaced,
    _windows,
    bound,
    clairvoyant_bounds,
    least_read_ns,
    step_costs,
    waits_for_gates,
)
from moebench.substrate.analysis.clairvoyant import Bound, StepCosts
from moebench.substrate.engine.records import Generation
from moebench.substrate.machines.protocol import Lane, Op, OpKind

DEVICE = {OpKind.ATTEND: 10, OpKind.GATE: 3, OpKind.COMBINE: 2, OpKind.DENSE: 20, OpKind.HEAD: 30,
          OpKind.SHARED: 5, OpKind.EXPERT: 40}  # fmt: skip
CONTROL = {OpKind.ATTEND: 7, OpKind.GATE: 2, OpKind.COMBINE: 1, OpKind.DENSE: 6, OpKind.HEAD: 2,
           OpKind.SHARED: 4, OpKind.EXPERT: 8, OpKind.RETURN: 9}  # fmt: skip


class Machine:
    """Form 1 costs half; handing experts to the host costs 70 and 3 each, and 9 for their return.

    On the host a lone expert takes 100 ns, several take 90 each.
    """

    sync_ns, decision_ns, host_memory = 20, 50, None

    def __init__(self) -> None:
        self.costs = SimpleNamespace(
            least_host_ns=lambda op: (90 * len(op.rows) + 10 * (len(op.rows) == 1)) / (1 + op.form),
            least_load_ns=lambda form: 400 / (1 + form),
        )

    def estimate_ns(self, op: Op, lane: Lane) -> int:
        if op.kind is OpKind.READ:
            return (1000 - 100 * op.queued) // (1 + op.form)
        assert lane is Lane.DEVICE
        if op.kind is OpKind.ATTEND:
            assert op.context == op.pairs
        return (DEVICE[op.kind] + op.context) // (1 + op.form)

    def control_ns(self, op: Op, lane: Lane) -> int:
        if lane is Lane.HOST:
            return 70 + 3 * len(op.experts)
        assert lane is (Lane.D2H if op.kind is OpKind.RETURN else Lane.DEVICE)
        return CONTROL[op.kind] // (1 + op.form)


def engine(shared_width: int = 0, forms: tuple[int, ...] = (0,), **more: Any) -> Any:
    """Layers 1, 2 and 4 of six have eight experts each, of which two are chosen."""
    shape = SimpleNamespace(
        moe_layers=(1, 2, 4), num_layers=6, shared_width=shared_width, num_experts=8, top_k=2
    )
    system = SimpleNamespace(
        reads_unfinished=False, divides=False, route=SimpleNamespace(routes_passes=False)
    )
    decode = SimpleNamespace(routed_ahead=0, deferred=0)
    base = {
        "model": SimpleNamespace(shape=shape), "cached": 10, "machine": Machine(), "system": system,
        "cache": SimpleNamespace(used_forms=forms, capacity=6),
        "tally": SimpleNamespace(by_phase={"decode": decode}),
    }  # fmt: skip
    return SimpleNamespace(**base | more)


def test_the_parts_of_a_token() -> None:
    """Three texts with 10 cached tokens each: an attention takes 10 + 30 ns, beside a gate 43."""
    made = engine()
    assert step_costs(made.machine, made, 3) == StepCosts(
        device=40, host=90, link=400, read=0, shared=0, gap=70, on_device=8,
        # One expert alone costs 70 + 3 + 9; of six, each a sixth of 70 + 18 + 9.
        on_host=97 / 6,
        before=60 + 43,  # a dense layer, then the first gate
        # Up to the next gate; past a dense layer; past one, to the head, which is read back.
        after=[2 + 43, 2 + 60 + 43, 2 + 60 + 30 + 20],
        launches=[1 + 9, 1 + 13 + 9, 1 + 13 + 2 + 20],
    )  # fmt: skip


def test_shared_experts_are_launched_in_every_layer() -> None:
    made = engine(shared_width=8)
    found = step_costs(made.machine, made, 3)
    assert (found.shared, found.launches) == (5, [10 + 4, 23 + 4, 36 + 4])


def test_the_cheapest_form_counts_and_one_expert_of_a_lone_choice() -> None:
    made = engine(forms=(0, 1))
    made.model.shape.top_k = 1
    found = step_costs(made.machine, made, 1)
    assert (found.device, found.host, found.link, found.on_device) == (20, 50, 200, 4)
    assert found.on_host == 70 + 3 + 9
    assert found.after[0] == 2 + 10 + 10 + 3
    made.model.shape.top_k = 5  # of eight experts, three texts choose eight at most
    assert step_costs(made.machine, made, 3).on_host == (70 + 8 * 3 + 9) / 8


def test_a_record_is_read_in_a_queue_where_experts_are_on_the_disk() -> None:
    made = engine()
    assert least_read_ns(made.machine, 0) == 0
    made.machine.host_memory = SimpleNamespace(capacity=5)
    assert (least_read_ns(made.machine), least_read_ns(made.machine, 1)) == (900, 450)
    assert step_costs(made.machine, made, 1).read == 900
    assert _rooms(made) == (6, 11)
    assert _rooms(engine()) == (6, 6)


@pytest.mark.parametrize(
    "early", ["", "routed_ahead", "deferred", "reads_unfinished", "divides", "routes_passes"]
)
def test_bounds_are_of_layers_whose_experts_wait_for_their_gate(early: str) -> None:
    made = engine()
    for place in (made.tally.by_phase["decode"], made.system, made.system.route):
        if hasattr(place, early):
            setattr(place, early, 1)
    assert waits_for_gates(made) is not bool(early)


def generation(*steps: int) -> Generation:
    """A batch of one text whose n-th decoded token used n + 1 experts."""
    ends = [0]
    for took in steps:
        ends.append(ends[-1] + took)
    used = [[[*range(n + 1)]] for n in range(len(steps))]
    return Generation([[0] * len(ends)], 0, ends, used=used)


def test_windows_have_the_time_of_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "windows", lambda used: [used[:2], used[2:3], used[3:]])
    ran = generation(5, 7, 11, 13, 17)
    assert [took for _, took in _windows(ran)] == [12, 11, 30]
    assert [part for part, _ in _windows(ran)] == [ran.used[:2], ran.used[2:3], ran.used[3:]]


def windows(*uses: int) -> list[Any]:
    """Windows of one token each, with so many uses of experts in two layers."""
    return [([[[*range(n - 1)], [0]]], n) for n in uses]


@pytest.mark.parametrize(
    ("uses", "most", "chosen"),
    [
        ((3, 3, 3, 3), 12, [0, 1, 2, 3]),
        ((3, 3, 3, 3), 11, [0, 1, 2]),  # evenly spaced: 0, 4 · 1 // 3 and 4 · 2 // 3
        ((3, 3, 3, 3), 6, [0, 2]),
        ((3, 3, 3, 3), 5, [0]),
        ((9, 3, 3, 3), 2, [0]),  # at least one
        ((3, 3, 3, 3, 3, 3), 9, [0, 2, 4]),
        ((3, 9, 3, 3), 12, [0, 2]),
        ((3,), 1, [0]),
    ],
)
def test_as_many_windows_as_can_be_solved_evenly_spaced(
    uses: tuple[int, ...], most: int, chosen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_USES", most)
    parts = windows(*uses)
    assert _spaced(parts) == [parts[i] for i in chosen]


def test_programs_are_solved_for_the_uses_that_the_page_of_reports_names() -> None:
    """Two windows of 8,000 uses are within the limit, and one use more is not."""
    assert module.MOST_USES == 16_000
    parts = windows(8_000, 8_000)
    assert _spaced(parts) == parts
    more = windows(8_000, 8_001)
    assert _spaced(more) == more[:1]


def test_bounds_by_programs_are_those_of_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches of 3 and 1 tokens, which took 30 and 50 µs, in windows of two tokens."""
    monkeypatch.setattr(module, "SimulatedMachine", Machine)
    monkeypatch.setattr(
        module, "windows", lambda used: [used[:2], used[2:]] if used[2:] else [used]
    )
    asked: list[Any] = []

    def bound_of(parts: Any, slots: int, costs: StepCosts, held: int, foresight: bool) -> Bound:
        asked.append(([*parts], slots, costs, held, foresight))
        return Bound(40_000, 400) if foresight else Bound(20_000, 800)

    monkeypatch.setattr(module, "bound_of", bound_of)
    made = engine()
    made.machine.host_memory = SimpleNamespace(capacity=5)
    ran = [generation(10_000, 10_000, 10_000), generation(50_000)]
    assert clairvoyant_bounds(made, ran) == {
        "clairvoyant_ms": 0.01, "information_ms": 0.005,
        "programs": {"tokens": 4, "window": 2, "tpot_ms": 0.02, "gap_ms": 0.0002},
    }  # fmt: skip
    parts = [ran[0].used[:2], ran[0].used[2:], ran[1].used]
    costs = step_costs(made.machine, made, 1)
    assert asked == [(parts, 6, costs, 11, foresight) for foresight in (True, False)]
    made.system.divides = True
    assert clairvoyant_bounds(made, ran) == {}
    made.system.divides, made.machine = False, "this computer"
    assert clairvoyant_bounds(made, ran) == {}


def test_programs_are_solved_on_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "least_costs", lambda engine, batch: ("costs", batch))
    asked: list[Any] = []

    def least_decode_ns(used: Any, slots: int, costs: Any, held: int) -> int:
        asked.append((used, slots, costs, held))
        return 30_000

    monkeypatch.setattr(module, "least_decode_ns", least_decode_ns)
    monkeypatch.setattr(module, "clairvoyant_bounds", lambda engine, ran: {"clairvoyant_ms": 9})
    ran = [generation(40_000, 40_000), generation(40_000)]
    found = {"tpot_ms": 0.02, "ratio": 2.0, "clairvoyant_ms": None, "information_ms": None,
             "programs": None}  # fmt: skip
    assert bound(engine(), ran) == found
    assert bound(engine(), ran, clairvoyant=True) == found | {"clairvoyant_ms": 9}
    assert asked[:2] == [(one.used, 6, ("costs", 1), 6) for one in ran]
