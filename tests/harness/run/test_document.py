"""From raw records to figures, worked out by hand on records small enough to do so."""

import platform
import resource
import subprocess
from collections.abc import Sequence
from datetime import datetime, timedelta
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moebench.harness.run import document
from moebench.harness.run.bound import bound, least_costs
from moebench.harness.run.document import (
    Evaluated,
    Result,
    commit,
    document_of,
    durations_ns,
    expert_figures,
    experts_quantised,
    generated_tokens,
    host_memory_figures,
    involuntary_switches,
    lane_figures,
    latencies,
    ms,
    notes_on_lingering,
    notes_on_repetition,
    notes_on_sampling,
    processor,
    ratio,
    spread,
    steadiness,
    unknown,
    versions,
    with_evaluation,
    with_interval,
)
from moebench.harness.run.rules import resolve
from moebench.harness.run.session import Session
from moebench.harness.stage.stage import Stage
from moebench.results.spec import RunSpec
from moebench.substrate.engine.counts import Counts
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.records import Generation
from moebench.substrate.machines import accelerator, energy
from moebench.substrate.machines.costs import CostModel
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.machines.protocol import Lane, Machine, Op, OpKind, Span
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.machines.utilisation import utilisation
from moebench.substrate.models.catalogue import model_shape
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


# --------------------------------------------------------------------------- measured runs


def steps(*steps_ms: float) -> Generation:
    """A batch whose first token takes 5 ms, and each further one some time."""
    ends = [5_000_000]
    for took in steps_ms:
        ends.append(ends[-1] + round(took * 1e6))
    return generation(0, ends)


def test_a_measurement_is_steady_by_the_middle_half_of_its_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (1.2345, 7.0, 8.0))
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    # Means of 10, 11, 12, 13 and 20 ms; a batch of one token has none, and counts as a batch.
    batches = [steps(12, 12), steps(9, 11), steps(20), steps(), steps(13), steps(11)]
    assert steadiness(batches, 3) == {
        "batches": 6, "tpot_ms": {"median": 12, "low": 11, "high": 13}, "spread": 0.1667,
        "noisy": True, "load_average": 1.23, "cores": 6, "involuntary_switches": 3,
    }  # fmt: skip
    found = steadiness([steps(9.5), steps(9.5), steps(10), steps(10.5), steps(10.5)], None)
    assert (found["spread"], found["noisy"]) == (0.1, False)
    assert found["involuntary_switches"] is None
    nothing = steadiness([steps()], 0)
    assert (nothing["tpot_ms"], nothing["spread"], nothing["noisy"]) == (None, None, False)


def test_switches_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = {resource.RUSAGE_SELF: SimpleNamespace(ru_nivcsw=5, ru_nvcsw=9)}
    monkeypatch.setattr("resource.getrusage", usage.__getitem__)
    assert involuntary_switches() == 5


def test_the_time_of_batches_and_the_number_of_their_tokens() -> None:
    batches = [generation(3, [10, 20], sequences=2), generation(20, [50])]
    assert durations_ns(batches) == [17, 30]
    assert generated_tokens(batches) == 5
    assert latencies(batches)["decoded_tokens"] == 2


@pytest.mark.parametrize(
    ("options", "notes"),
    [
        ({}, []),
        (
            {"temperature": 0.7, "seed": 3},
            ["tokens are drawn at temperature 0.7, top-p 1, with seed 3, and are not scored"],
        ),
        (
            {"temperature": 1, "top_p": 0.95, "scoring": "generation"},
            ["tokens are drawn at temperature 1, top-p 0.95, with seed 0"],
        ),
    ],
)
def test_how_tokens_are_drawn_is_said(options: dict[str, Any], notes: list[str]) -> None:
    assert notes_on_sampling(resolve(None, system="smoe", setting="S3", **options)) == notes


@pytest.mark.parametrize(
    ("options", "own", "quantised"),
    [
        ({}, None, False),
        ({}, "bf16", False),
        ({}, "4bit", True),
        ({"precision": "4bit"}, "bf16", False),
        ({"precision": "4bit"}, "2bit", True),
        ({"expert_dtype": "int8"}, None, True),
    ],
)
def test_experts_are_quantised_where_they_have_fewer_bits(
    options: dict[str, Any], own: str | None, quantised: bool
) -> None:
    spec = SimpleNamespace(**{"precision": "bf16", "expert_dtype": None} | options)
    session = SimpleNamespace(spec=spec, system=SimpleNamespace(expert_precision=own))
    assert experts_quantised(cast(Session, session)) is quantised


def test_what_a_package_does_not_report_is_null() -> None:
    assert unknown() == {
        "cache_ratio": None, "cache_ratio_begun": None, "experts": None, "prefetch": None,
        "routed_ahead": None, "host_memory": None, "peak_device_bytes": None,
        "peak_host_bytes": None, "utilisation": None, "lanes": {}, "stall_ms": {},
        "bytes_h2d": None, "bytes_disk": None,
        "decode": {"lanes": {}, "stall_ms": {}, "bytes_h2d": None, "bytes_disk": None},
    }  # fmt: skip


# --------------------------------------------------------------------------- documents


def prepared(spec: RunSpec, unknown_latencies: Sequence[str] = ()) -> Any:
    """A run with inputs of which only the document knows."""
    sample = SimpleNamespace(examples=[1, 2], available=9, source="shipped", seed=4)
    hashes = {"system": "s1", "profile": "p1", "weights": "w1", "data": "d1"}
    return SimpleNamespace(spec=spec, run_id="r1", sample=sample, hashes=hashes,
                           unknown_latencies=unknown_latencies)  # fmt: skip


def result(**more: Any) -> Result:
    return Result(
        **{
            "generations": [steps(2, 4)], "texts": [[7] * 8], "resolved": {"slots": 5},
            "badge": "estimate", "lossless": False, "memory": {"slot_bytes": 6},
            "notes": ["first"], "metrics": {"cache_ratio": 0.5}, "load_ns": 3_000_000,
            "accuracy": {"n": 0}, "bound": {"ratio": 2}, "provenance": {"threads": 77},
        } | more  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_document_holds_what_a_run_found_and_where_it_is_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("commit", "c1"), ("code_hash", "h1"), ("processor", "a processor")):
        monkeypatch.setattr(document, name, lambda value=value: value)
    monkeypatch.setattr(document, "versions", lambda: {"torch": "2", "python": "3"})
    profile = load_profile("a6000")
    spec = resolve(None, system="smoe", setting="S3", cache_ratio=0.4)
    on = result(profile=profile, oracle=True, switches=9, versions={"torch": "3", "x": "1"})
    found = document_of(prepared(spec), on, {"created": "now"})
    share = 4 / 5
    assert found == {
        "run_id": "r1", "spec": spec.model_dump() | {"slots": 5}, "badge": "estimate",
        "simulated": True, "measured": None, "lossless": False, "oracle": True,
        "memory": {"slot_bytes": 6}, "notes": ["first", *notes_on_repetition(share)],
        "metrics": {
            **latencies([steps(2, 4)]), "cache_ratio": 0.5, "load_ms": 3, "repeated_4grams": share,
        },
        "interval": None, "accuracy": {"n": 0}, "bound": {"ratio": 2},
        "provenance": {
            "versions": {"torch": "3", "python": "3", "x": "1"}, "commit": "c1", "code_hash": "h1",
            "system_hash": "s1", "machine": "a6000", "profile": profile.description,
            "profile_hash": "p1", "profile_error": None,
            "weights": "scale model of qwen2-57b-a14b", "weights_hash": "w1",
            "data": "shipped: 2 of 9, seed 4", "data_hash": "d1", "threads": 77, "created": "now",
            "learnt": {},
        },
    }  # fmt: skip
    with_interval(found, "checked", {"tpot_ms": 1})
    assert (found["badge"], found["interval"]) == ("checked", {"tpot_ms": 1})
    notes = list(found["notes"])
    evaluated = Evaluated(resolved={"prompts": 3}, notes=["more"], part={"tasks": 1},
                          versions={"lm_eval": "4"})  # fmt: skip
    with_evaluation(found, evaluated)
    assert found["spec"] == spec.model_dump() | {"slots": 5, "prompts": 3}
    assert found["notes"] == [*notes, "more"]
    assert found["evaluation"] == {"tasks": 1}
    assert found["provenance"]["versions"]["lm_eval"] == "4"
    assert found["provenance"]["versions"]["x"] == "1"


def test_a_document_of_this_computer_says_what_ran_and_how_steadily(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(document, "processor", lambda: "a processor")
    monkeypatch.setattr(accelerator, "Cuda", lambda: SimpleNamespace(name="a card"))
    spec = resolve(None, system="smoe", setting="S3", machine="local", weights="own/folder")
    of = prepared(spec, ("ttft_ms",))
    made = result(ran="a tiny model", texts=[[1]], switches=2)
    found = document_of(of, made, {})
    assert (found["simulated"], found["oracle"]) == (False, False)
    assert found["measured"]["model"] == "a tiny model"
    assert found["measured"]["tpot_ms"]["median"] == 3
    assert found["measured"]["involuntary_switches"] == 2
    assert found["metrics"]["ttft_ms"] is None
    assert found["metrics"]["repeated_4grams"] is None
    assert found["notes"] == ["first"]
    origin = found["provenance"]
    assert (origin["machine"], origin["weights"]) == ("a processor", "own/folder")
    assert (origin["profile"], origin["profile_hash"], origin["profile_error"]) == (None,) * 3
    assert datetime.fromisoformat(origin["created"]).utcoffset() == timedelta(0)
    assert "." not in origin["created"]
    on_card = prepared(spec.model_copy(update={"device": "cuda"}))
    machine = document_of(on_card, result(), {})["provenance"]["machine"]
    assert machine == "a card; a processor"


def test_the_processor_is_the_one_that_linux_names(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "processor\t: 0\nmodel name\t: Chip 9: fast \nmodel name\t: other\n"
    monkeypatch.setattr(Path, "read_text", lambda self: said if str(self) == "/proc/cpuinfo" else 0)
    assert processor() == "Chip 9: fast"
    said = "processor\t: 0\n"
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert processor() == "riscv64"
    monkeypatch.setattr(platform, "processor", lambda: "some chip")
    assert processor() == "some chip"


def test_versions_are_those_of_the_packages_that_results_depend_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version_of(name: str) -> str:
        if name == "tokenizers":
            raise PackageNotFoundError(name)
        return f"{name} 1"

    monkeypatch.setattr(document, "version", version_of)
    assert versions() == {
        "moebench": "moebench 1", "torch": "torch 1", "numpy": "numpy 1", "numba": "numba 1",
        "tokenizers": None, "python": platform.python_version(),
    }  # fmt: skip


def test_the_commit_is_that_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "checkout", lambda: None)
    assert commit() is None
    monkeypatch.setattr(document, "checkout", lambda: tmp_path)
    assert commit() is None, "no repository"
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run([*git, "init", "-q"], check=True)
    assert commit() is None, "no commit"
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert commit() == head.stdout[:12]
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert commit() is None, "no git"


# --------------------------------------------------------------------------- energy and use


def simulated_stage() -> tuple[Any, CostModel]:
    """A stage of two decoded tokens: a gate of 10 µs, launch-bound, and an expert on the host."""
    profile = load_profile("a6000")
    costs = CostModel(profile, model_shape("mixtral-8x7b"), "bf16")
    gate, expert = Op(OpKind.GATE, 0, (1,)), Op(OpKind.EXPERT, 0, (1,), (0,))
    made = Timeline()
    made.begin("decode")
    made.add(Span(gate, Lane.DEVICE, 0, 10_000_000))
    made.add(Span(expert, Lane.HOST, 0, 4_000_000))
    machine = SimulatedMachine(costs, made, None)
    decode = Counts(active=1, unchosen=3, prefetched=5, prefetched_used=4)
    by_phase = {"prefill": Counts(), "decode": decode}
    engine = SimpleNamespace(machine=machine, tally=SimpleNamespace(by_phase=by_phase))
    return SimpleNamespace(profile=profile, timeline=made, engine=engine), costs


def test_the_device_waits_for_launches_in_the_time_beyond_its_work() -> None:
    stage, costs = simulated_stage()
    work = costs.ns(Op(OpKind.GATE, 0, (1,)), Lane.DEVICE)
    run_ = [generation(0, [5_000_000, 20_000_000], sequences=2)]
    found = document._energy(stage, run_)
    bound_ns = 10_000_000 - work
    assert found["device_ms"] == {"work": ms(work), "launch_bound": ms(bound_ns)}
    assert found | {"device_ms": 0} == {"device_ms": 0} | energy.simulated(
        stage.profile, stage.timeline, 0.02, 4, bound_ns
    )
    stage.engine.machine = machine(Lane.H2D)
    assert document._energy(stage, run_)["device_ms"] == {"work": 10, "launch_bound": 0}


def test_energy_of_this_computer_is_what_its_counters_gained() -> None:
    meter = energy.Meter("RAPL", joules={"host": 8.0})
    stage = SimpleNamespace(profile=None, engine=SimpleNamespace(measured_by=meter))
    found = document._energy(cast(Stage, stage), [generation(0, [1, 2], sequences=2)])
    assert found == meter.figures(4)
    assert "device_ms" not in found


def test_utilisation_is_over_each_phases_own_time() -> None:
    stage, costs = simulated_stage()
    run_ = [generation(1_000, [1_000, 20_001_000], sequences=2)]
    found = document.utilisation_figures(stage, run_)
    assert found == {
        "decode": utilisation(costs, stage.timeline.totals["decode"], 0.02, 3 + 5 - 4)
    }, "a prefill that takes no time has none"
    run_ = [generation(0, [3_000_000, 5_000_000]), generation(5_000_000, [6_000_000])]
    found = document.utilisation_figures(stage, run_)
    prefill = utilisation(costs, stage.timeline.totals["prefill"], 0.004, 0)
    decode = utilisation(costs, stage.timeline.totals["decode"], 0.002, 4)
    assert found == {"prefill": prefill, "decode": decode}
    stage.engine.machine = machine(Lane.H2D)
    assert document.utilisation_figures(stage, run_) is None
