"""From raw records to figures, worked out by hand on records small enough to do so."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moebench.harness.run.bound import bound, least_costs
from moebench.harness.run.document import (
    expert_figures,
    host_memory_figures,
    lane_figures,
    latencies,
    ms,
    notes_on_lingering,
    ratio,
    spread,
)
from moebench.substrate.engine.counts import Counts
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.records import Generation
from moebench.substrate.machines.protocol import Lane, Machine, Op, OpKind, Span
from moebench.substrate.machines.timeline import Timeline
from tests.harness.commands import run

# --------------------------------------------------------------------------- times


def test_milliseconds_are_exact_to_the_nanosecond() -> None:
    assert ms(1) == 1e-6
    assert ms(123_456_789) == 123.456789


def test_spread() -> None:
    # 1 to 101 ms: percentile p is p + 1, the mean 51.
    samples = [n * 1_000_000 for n in range(101, 0, -1)]
    assert spread(samples) == {"mean": 51, "p50": 51, "p90": 91, "p99": 100}
    assert spread([7_000_000]) == {"mean": 7, "p50": 7, "p90": 7, "p99": 7}
    # Between two samples a percentile lies on the line that joins them.
    assert spread([10_000_000, 20_000_000]) == {"mean": 15, "p50": 15, "p90": 19, "p99": 19.9}
    assert spread([]) is None


def test_ratio() -> None:
    assert ratio(1, 3) == 0.333333
    assert ratio(0, 3) == 0
    assert ratio(0, 0) is None


def generation(
    started_ns: int, ends_ns: Sequence[int], sequences: int = 1, **more: Any
) -> Generation:
    return Generation([[0] * len(ends_ns)] * sequences, started_ns, list(ends_ns), **more)


def test_latencies() -> None:
    found = latencies([
        generation(1_000_000, [5_000_000, 7_000_000, 10_000_000]),  # TTFT 4, steps 2 and 3
        generation(20_000_000, [28_000_000, 29_000_000, 33_000_000], sequences=2),  # 8, 1 and 4
    ])  # fmt: skip
    assert found["ttft_ms"]["mean"] == 6
    assert found["tpot_ms"]["mean"] == 2.5
    assert found["tpot_ms"]["p50"] == 2.5
    assert found["e2e_ms"] == (9 + 13) / 2
    # 3 tokens and 2 · 3 tokens in 9 + 13 ms; what passes between two batches does not count.
    assert found["tokens_per_s"] == pytest.approx(9 / 0.022, abs=1e-4)


def test_one_token_has_no_tpot() -> None:
    found = latencies([generation(0, [2_000_000])])
    assert found["tpot_ms"] is None
    assert found["e2e_ms"] == found["ttft_ms"]["mean"] == 2
    assert found["tokens_per_s"] == 500


# --------------------------------------------------------------------------- counts and lanes


def test_expert_figures() -> None:
    decode = Counts(
        active=8, hits=4, in_flight=1, begun=7, loads=1, host=2, host_resident=1, deferred=1,
        unchosen=3, replaced=2, prefetched=4, prefetched_top_score=3, prefetched_active=2,
        prefetched_used=1, asked=4, asked_all=1, asked_any=3, routed_ahead=8, routed_ahead_right=6,
        degraded=2, lingering=2, uploaded=3, uploads_refused=1,
    )  # fmt: skip
    counts = {"prefill": Counts(active=3, loads=3), "decode": decode}
    found = expert_figures(cast(Engine, SimpleNamespace(tally=SimpleNamespace(by_phase=counts))))
    # Decode's alone: 4 computed on the device and 1 on the host were resident; in flight is not.
    assert found["cache_ratio"] == 5 / 8
    # Besides, one that the device waited for and one that the host computed meanwhile.
    assert found["cache_ratio_begun"] == 7 / 8
    assert found["prefetch"] == {
        "issued": 4, "top_score": 3, "active": 2, "used": 1,
        "asked": 4, "all_of_top_k": 0.25, "at_least_one": 0.75,
    }  # fmt: skip
    assert found["routed_ahead"] == {"places": 8, "right": 0.75, "degraded": 0.25}
    assert found["experts"] == {
        "prefill": {
            "active": 3, "hits": 0, "in_flight": 0, "begun": 0, "loads": 3, "host": 0,
            "host_resident": 0, "deferred": 0, "unchosen": 0, "replaced": 0,
            "lingering": 0,
            "uploaded": 0,
            "uploads_refused": 0,
        },
        "decode": {
            "active": 8, "hits": 4, "in_flight": 1, "begun": 7, "loads": 1, "host": 2,
            "host_resident": 1, "deferred": 1, "unchosen": 3, "replaced": 2,
            "lingering": 2,
            "uploaded": 3,
            "uploads_refused": 1,
        },
    }  # fmt: skip


def test_hits_that_the_policy_did_not_intend_are_said() -> None:
    assert notes_on_lingering(Counts(active=8, hits=4)) == []
    (note,) = notes_on_lingering(Counts(active=8, hits=4, lingering=2))
    assert note.startswith("2 of 4 hits in decode found an expert that its layer had given up")


def moved(op: Op, lane: Lane, duration_ns: int) -> Span:
    """A transfer of 1000 bytes."""
    span = Span(op, lane, 0, duration_ns)
    span.moved_bytes = 1000
    return span


def timeline() -> Timeline:
    """A prefill of 10 ms on the device and two loads, a decode of 3 ms beside 3 ms of host."""
    made = Timeline()
    made.begin("prefill")
    made.add(Span(Op(OpKind.ATTEND, 0), Lane.DEVICE, 0, 10_000_000))
    for _ in range(2):
        made.add(moved(Op(OpKind.READ, 0), Lane.DISK, 4_000_000))
        made.add(moved(Op(OpKind.LOAD, 0), Lane.H2D, 1_000_000))
    made.begin("decode")
    expert = Op(OpKind.EXPERT, 0, (1,), (0,))
    made.add(Span(expert, Lane.DEVICE, 0, 2_000_000, 500_000, "load"))
    made.add(Span(expert, Lane.HOST, 0, 3_000_000))
    made.add(Span(Op(OpKind.RETURN, 0), Lane.D2H, 0, 1_000))
    made.add(moved(Op(OpKind.LOAD, 1), Lane.H2D, 1_000_000))
    made.add(Span(Op(OpKind.COMBINE, 0), Lane.DEVICE, 0, 1_000_000, 250_000, "host"))
    return made


def test_lane_figures() -> None:
    assert lane_figures(timeline()) == {
        "bytes_h2d": 3000,
        "bytes_disk": 2000,
        "lanes": {"device": 13, "h2d": 3, "d2h": 0.001, "host": 3, "disk": 8, "predict": 0},
        "stall_ms": {"host": 0.25, "load": 0.5},
        "decode": {
            "lanes": {"device": 3, "h2d": 1, "d2h": 0.001, "host": 3, "disk": 0, "predict": 0},
            "stall_ms": {"host": 0.25, "load": 0.5},
            "bytes_h2d": 1000,
            "bytes_disk": 0,
        },
    }


# --------------------------------------------------------------------------- the lower bound

#: What each kind costs at the least on the machine below, in ns.
ESTIMATES = {
    (OpKind.ATTEND, Lane.DEVICE): 10,
    (OpKind.GATE, Lane.DEVICE): 3,
    (OpKind.COMBINE, Lane.DEVICE): 2,
    (OpKind.SHARED, Lane.DEVICE): 5,
    (OpKind.DENSE, Lane.DEVICE): 20,
    (OpKind.HEAD, Lane.DEVICE): 30,
    (OpKind.EXPERT, Lane.DEVICE): 4,
    (OpKind.EXPERT, Lane.HOST): 50,
    (OpKind.LOAD, Lane.H2D): 400,
    (OpKind.READ, Lane.DISK): 1100,
}
#: What submitting each kind costs the control thread.
CONTROL = {
    OpKind.ATTEND: 7, OpKind.COMBINE: 1, OpKind.SHARED: 4, OpKind.DENSE: 6, OpKind.HEAD: 2,
    OpKind.EXPERT: 5, OpKind.RETURN: 1,
}  # fmt: skip


def machine(
    *load_path: Lane, has_host_lane: bool = True, host_records: int | None = None,
    decision_ns: int = 50,
) -> Machine:  # fmt: skip
    """``decision_ns`` 0 is a machine on which the control thread costs nothing."""

    def estimate_ns(op: Op, lane: Lane) -> int:
        return (ESTIMATES[op.kind, lane] - 100 * op.queued) // (1 + op.form)

    def control_ns(op: Op, lane: Lane) -> int:
        if not decision_ns:
            return 0
        return 3 if (op.kind, lane) == (OpKind.EXPERT, Lane.HOST) else CONTROL[op.kind]

    memory = host_records and SimpleNamespace(capacity=host_records, reads=30, hits=12)
    return cast(Machine, SimpleNamespace(
        estimate_ns=estimate_ns, control_ns=control_ns, decision_ns=decision_ns,
        sync_ns=20 if decision_ns else 0,
        load_path=load_path, has_host_lane=has_host_lane, host_memory=memory,
    ))  # fmt: skip


def engine(
    slots: int = 2, shared_width: int = 0, uses_host: bool = False, dense: Sequence[int] = (),
    on: Machine | None = None, forms: int = 1, together: bool = False,
) -> Engine:  # fmt: skip
    """Two MoE layers, and dense ones if asked for; ``slots`` for records in each form."""
    shape = SimpleNamespace(
        moe_layers=(1, 2), dense_layers=dense, shared_width=shared_width, num_experts=8
    )
    assign = SimpleNamespace(uses_host=uses_host)
    return cast(Engine, SimpleNamespace(
        machine=on or machine(Lane.H2D, decision_ns=0),
        model=SimpleNamespace(shape=shape),
        system=SimpleNamespace(
            assign=assign, host_together=together, route=SimpleNamespace(routes_passes=False)
        ),
        cache=SimpleNamespace(slots=slots, capacity=slots * forms, used_forms=range(forms)),
    ))  # fmt: skip


def test_least_costs() -> None:
    least = least_costs(engine(on=machine(Lane.H2D)), batch=1)
    assert least.common == 2 * (10 + 3 + 2) + 30
    assert (least.device, least.link, least.host, least.read) == (4, 400, None, 0)
    # Two layers of a launch of each part but the gate, and decisions; three results are read back.
    assert least.control == 2 * (7 + 1) + 2 + 2 * 50 + 3 * 20
    assert least.submit == 5


def test_least_costs_of_shared_experts_and_dense_layers() -> None:
    on = machine(Lane.H2D)
    least = least_costs(engine(shared_width=8, dense=(0,), on=on), batch=1)
    assert least.common == 2 * (10 + 3 + 2 + 5) + (10 + 20) + 30
    assert least.control == 2 * (7 + 1 + 4) + (7 + 6) + 2 + 2 * 50 + 3 * 20


@pytest.mark.parametrize(
    ("lane", "uses", "host"), [(True, True, 50), (True, False, None), (False, True, None)]
)
def test_least_costs_of_the_host(lane: bool, uses: bool, host: int | None) -> None:
    """The host counts where there is one and the system uses it."""
    on = machine(Lane.H2D, has_host_lane=lane)
    least = least_costs(engine(uses_host=uses, on=on), batch=1)
    assert least.host == host
    # An expert there is submitted with 3, and the way back of its output with 1.
    assert least.submit == (5 if host is None else 4)


def test_experts_that_are_handed_over_together_share_what_it_costs() -> None:
    """All eight of a layer at once: 50 for all on this host, 3 + 1 for submission and return."""
    on = machine(Lane.H2D)
    least = least_costs(engine(uses_host=True, on=on, together=True), batch=1)
    assert (least.host, least.submit) == (50 / 8, 4 // 8)


def test_least_costs_of_experts_on_the_disk() -> None:
    """The link is apart from the disk, and a read is as fast as with others under way."""
    on = machine(Lane.DISK, Lane.H2D, host_records=5)
    least = least_costs(engine(on=on), batch=1)
    assert (least.link, least.read) == (400, 1000)


def test_least_costs_of_several_forms_are_those_of_the_cheapest() -> None:
    on = machine(Lane.DISK, Lane.H2D, host_records=5)
    least = least_costs(engine(on=on, uses_host=True, forms=2), batch=1)
    assert (least.device, least.link, least.host, least.read) == (2, 200, 25, 500)


def test_figures_of_host_memory() -> None:
    assert host_memory_figures(machine(Lane.H2D)) is None
    on = machine(Lane.DISK, Lane.H2D, host_records=5)
    assert host_memory_figures(on) == {"records": 5, "reads": 30, "hits": 12}


def test_bound_by_the_link() -> None:
    # Of 0 1 0 2 3 1 with two slots, Belady hits 0 and 1 again: four miss, the first two are free.
    used = [[[0, 1], [0, 2]], [[3, 1]]]
    run = generation(0, [100, 1100, 2100], used=used)
    # Device: two steps of 60 and six experts of 4 are 144; the link: 2 · 400.
    assert figures(bound(engine(), [run])) == {"tpot_ms": ms(400), "ratio": 2.5}


def test_bound_by_the_link_with_two_forms() -> None:
    # With two slots of each form, Belady hits 0 and 1 again.
    used = [[[0, 1], [0, 2]], [[3, 1], [4, 5]], [[6, 7]]]
    run = generation(0, [100, 1100, 2100, 3100], used=used)
    # Eight experts miss, four of them for nothing; each of the others is half of 400 on the link.
    assert bound(engine(forms=2), [run])["tpot_ms"] == ms(4 * 200 / 3)


def test_bound_by_the_disk_or_by_the_control_thread() -> None:
    used = [[[0, 1], [0, 2]], [[3, 1]]]
    run = generation(0, [100, 2100, 4100], used=used)
    # Four miss, three are free with a record in host memory: 1 · 1000; the link 2 · 400.
    disk = engine(on=machine(Lane.DISK, Lane.H2D, host_records=1, decision_ns=0))
    assert bound(disk, [run])["tpot_ms"] == ms(500)
    on = machine(Lane.H2D, decision_ns=500)
    # Two tokens of 18 launched, two decisions, three results of 20; six experts of 5.
    control = 2 * (18 + 2 * 500 + 3 * 20) + 6 * 5
    assert bound(engine(on=on), [run])["tpot_ms"] == ms(control / 2)


def figures(found: dict[str, Any]) -> dict[str, Any]:
    """The figures of a bound that were asked for; the others are null."""
    assert found.keys() == {"tpot_ms", "ratio", "clairvoyant_ms", "information_ms", "programs"}
    return {name: value for name, value in found.items() if value is not None}


def test_bound_by_the_device() -> None:
    used = [[[0, 1], [0, 1]], [[0, 1], [0, 1]]]
    run = generation(0, [100, 300, 500], used=used)
    # No miss beyond the free ones; 2 · 60 + 8 · 4 = 152 ns for two steps that took 400.
    assert figures(bound(engine(), [run])) == {"tpot_ms": ms(76), "ratio": round(400 / 152, 4)}


def test_bound_with_the_host() -> None:
    used = [[[0, 1], [2, 3]]]
    run = generation(0, [100, 700], used=used)
    # Four experts: the device alone 60 + 16 = 76, shared with the host 76 / (1 + 4/50);
    # two misses beyond the free ones, shared by link and host: 2 / (1/400 + 1/50).
    device, shared = 76 / (1 + 4 / 50), 2 / (1 / 400 + 1 / 50)
    assert shared > device
    found = bound(engine(uses_host=True), [run])
    assert figures(found) == {"tpot_ms": ms(shared), "ratio": round(600 / shared, 4)}


def test_bound_adds_up_batches() -> None:
    run = generation(0, [0, 100, 200], used=[[[0]], [[0]]])
    other = generation(0, [0, 200], used=[[[1]]])
    # 2 · 60 + 2 · 4 and 60 + 4, over three steps.
    assert figures(bound(engine(), [run, other])) == {
        "tpot_ms": ms(64),
        "ratio": round(400 / 192, 4),
    }


def test_no_bound_without_a_decoded_token() -> None:
    assert set(bound(engine(), [generation(0, [5])]).values()) == {None}


@pytest.mark.usefixtures("tiny_models")
def test_a_runs_document_says_where_its_energy_is_from() -> None:
    metrics = run("smoe")["metrics"]
    assert metrics["energy"]["source"] == "simulated"
    assert sum(metrics["energy"]["parts_j"].values()) == pytest.approx(
        metrics["energy_j"], abs=1e-3
    )
    metrics = run("moe-ondemand", "--machine", "local")["metrics"]
    assert (metrics["energy_j"] is None) == (metrics["energy"]["reason"] is not None)
    assert metrics["energy"]["source"] != "simulated"


@pytest.mark.usefixtures("tiny_models")
def test_no_lane_of_a_document_is_busier_than_its_run_was_long() -> None:
    # The link of this system hardly ever rests, and has work for a pass after the last one as well.
    metrics = run("moesys", "--prompts", "2")["metrics"]
    whole_ms, busy_ms = 2 * metrics["e2e_ms"], metrics["lanes"].values()
    assert 0.99 * whole_ms < metrics["lanes"]["h2d"] == max(busy_ms) <= whole_ms
