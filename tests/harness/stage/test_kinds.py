"""Kinds of machines: which one a run names, and what each of them supports and offers."""

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from moebench.harness.machines.profile import write_profile
from moebench.harness.run.rules import resolve
from moebench.harness.stage import card, local, simulated
from moebench.harness.stage.card import CardKind
from moebench.harness.stage.kinds import check_machine, kind_of
from moebench.harness.stage.local import LocalKind, _require_no_host
from moebench.harness.stage.memory import Memory, Offer
from moebench.harness.stage.simulated import SimulatedKind, copies_block
from moebench.harness.stage.stage import Stage
from moebench.results.spec import RunSpec
from moebench.substrate.engine.runtime import Supports
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.memory.capacity import Room
from moebench.substrate.models.catalogue import quantised
from moebench.substrate.models.shape import Form
from moebench.systems.baselines import MoEOnDemand
from moebench.systems.options import build
from tests.harness.machines.test_profile import profile as measured_profile


def spec(**given: Any) -> RunSpec:
    base = {"system": "smoe", "model": "mixtral-8x7b", "machine": "a6000"}
    return resolve(None, **base | given)


HERE = {"machine": "local", "cache_ratio": 0.5}


def test_a_run_names_its_kind_of_machine() -> None:
    assert isinstance(kind_of(spec()), SimulatedKind)
    assert isinstance(kind_of(spec(**HERE)), LocalKind)
    assert isinstance(kind_of(spec(**HERE, device="cuda")), CardKind)


#: What no machine that computes can do otherwise.
COMPUTES = {
    "reads_unfinished": (
        False, "computes with finished copies only, unlike a simulated machine",
    ),
    "module_hooks": (False, "copies experts without hooks of their modules"),
    "threads": (None, "computes experts on the host with PyTorch's threads"),
}  # fmt: skip


def takes(precision: str, source: str, **more: object) -> dict[str, tuple[object, str]]:
    values = {"expert_precision": None, "host_experts": None} | more
    return COMPUTES | {name: (one, f"takes {precision} experts from {source}")
                       for name, one in values.items()}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "supports"),
    [
        ({"machine": "a100"}, Supports(where="--machine a100", divides=True)),
        (HERE, Supports(where="--machine local", forms=False, only=takes(
            "fp32", "the disk", overlap=True, pinned_copies=None))),
        (HERE | {"emulated_link_gb_s": 4.0}, Supports(
            where="--machine local", forms=False, only=takes("fp32", "host memory"))),
        (HERE | {"device": "cuda", "precision": "bf16"}, Supports(
            where="--machine local", forms=False, only=takes("bf16", "host memory"))),
    ],
)  # fmt: skip
def test_what_a_machine_supports(given: dict[str, Any], supports: Supports) -> None:
    of = spec(**given)
    assert kind_of(of).supports(of) == supports


def test_measured_machines_know_whole_records_by_one_number_of_threads(tmp_path: Any) -> None:
    file = tmp_path / "here.yaml"
    write_profile(measured_profile(4.0), file)
    of = spec(machine=str(file))
    why = "has times that were measured with the host's own threads"
    only = {"threads": (None, why)}
    assert kind_of(of).supports(of) == Supports(
        where=f"--machine {file}", forms=False, divides=False, only=only
    )
    runtime = build("moe-ondemand", {"pinned_copies": "false"}).runtime
    assert not copies_block(runtime, load_profile(str(file)))
    assert copies_block(runtime, load_profile("a6000"))


def test_a_machine_refuses_what_it_does_not_support() -> None:
    check_machine(spec(**HERE), build("moe-ondemand"))
    hooked = build("moe-ondemand", {"module_hooks": "true"})
    check_machine(spec(), hooked)
    with pytest.raises(UsageError, match=r"local: copies experts without hooks .* smoe"):
        check_machine(spec(**HERE), hooked)


def test_offers_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    a100 = load_profile("a100", "hf-eager")
    of = spec(machine="a100", software="hf-eager")
    assert kind_of(of).offer(of) == Offer(Room.of(a100), a100, False)
    monkeypatch.setattr(local, "available_bytes", lambda: 900)
    monkeypatch.setattr(card, "available_bytes", lambda: 800)
    here = Offer(Room("this computer", 900, 0, 900), None, True)
    for given in ({"cache_ratio": 0.5}, {"slots": 3}):
        of = spec(machine="local", **given)
        assert kind_of(of).offer(of) == here
    of = spec(machine="local")
    with pytest.raises(UsageError, match="how many experts may be on the device"):
        kind_of(of).offer(of)
    monkeypatch.setattr(local, "available_bytes", lambda: None)
    of = spec(**HERE)
    assert kind_of(of).offer(of).room == Room("this computer", 0, 0, 0)
    gpu = SimpleNamespace(name="a card", memory=lambda: (700, 999))
    monkeypatch.setattr(card.accelerator, "Cuda", lambda: gpu)
    of = spec(machine="local", device="cuda")
    assert kind_of(of).offer(of) == Offer(Room("a card", 700, card.WORKSPACE_BYTES, 800))
    for device in ("cpu", "cuda"):
        of = spec(machine="local", setting="S1", device=device)
        s1 = load_profile("rtx3080ti", of.software)
        assert kind_of(of).offer(of) == Offer(Room.of(s1), s1, True)


@pytest.mark.parametrize(
    ("decision", "name", "instead"),
    [("place", "threshold-ilp", "popular"), ("prefetch", "impact", "none"),
     ("evict", "placeholder", "lru")],
)  # fmt: skip
def test_policies_that_need_a_host_are_refused_where_the_host_is_the_device(
    decision: str, name: str, instead: str
) -> None:
    for whole in (True, False):
        _require_no_host(build("moe-ondemand"), whole)
    plain = {"place": "popular", "prefetch": "none", "evict": "lru"}
    system = build("daop", plain | {decision: name})
    with pytest.raises(UsageError) as caught:
        _require_no_host(system, whole=False)
    assert str(caught.value) == (
        "--machine local: here the host is the device and every missing expert is loaded, but "
        f"{decision}={name} works only where the host computes some; give --emulated-link RATE, or "
        f"--set {decision}={instead}"
    )
    if decision == "evict":  # nothing is evicted
        _require_no_host(system, whole=True)
    else:
        with pytest.raises(UsageError):
            _require_no_host(system, whole=True)


# ---------------------------------------------------------------------- notes of a simulation


class Records:
    capacity = 5


def notes(machine: Any = None, total: int = 64, **runtime: Any) -> list[str]:
    profile = load_profile("a6000")
    values = {"pinned_copies": None, "threads": None, "expert_precision": None,
              "reads_unfinished": False} | runtime  # fmt: skip
    request = SimpleNamespace(
        spec=SimpleNamespace(title="mine"),
        system=SimpleNamespace(runtime=SimpleNamespace(**values)),
    )
    first, *rest = simulated._notes(
        request, Memory(None, profile, []), SimpleNamespace(host_memory=machine), total  # type: ignore[arg-type]
    )  # fmt: skip
    assert first == (
        f"simulated on a6000 with {profile.software.name} software: no such hardware ran; "
        f"{profile.estimates} of the profile's {profile.numbers} numbers are estimates"
    )
    return rest


def test_notes_say_what_is_simulated_and_what_is_left_out() -> None:
    assert notes() == []
    on_disk = "experts are on the disk: host memory has room for 5 of 64"
    assert notes(Records) == [on_disk]
    assert notes(Records, pinned_copies=True) == [on_disk]
    assert notes(Records, pinned_copies=False) == [
        f"{on_disk}; the mapped file does not fit, the others are paged in from the disk at each "
        "use"
    ]
    assert notes(threads=99) == ["threads=99 counts as 6: the host has 6 cores"]
    assert notes(threads=6) == [
        "threads=6 limits products of many rows alone: the profile has no host.core_rate"
    ]
    assert notes(expert_precision="4bit") == [
        "experts are charged as 4bit; the mathematics is not quantised"
    ]
    assert notes(reads_unfinished=True) == [
        "mine computes experts whose copy is still under way (in_flight) on whatever their slots "
        "hold: its time is simulated, its results would be wrong; accuracy here is that of the "
        "right weights"
    ]


def test_notes_say_how_many_slots_each_form_has() -> None:
    whole, low = Form(), Form(name="low", dtype="int8", pool=0.5)
    half = Form(name="half", share=0.5, pool=0.2)
    costs = SimpleNamespace(form_bytes=[8_000_000, 2_500_000, 4_000_000])
    cache = SimpleNamespace(
        forms=3, form_pools=[[2, 1], [4], [0, 5]], slots=6, slot_bytes=30_000_000
    )
    said = simulated._forms
    assert said([whole], cache, costs) == []  # type: ignore[arg-type]
    assert said([whole, low, half], cache, costs) == [  # type: ignore[arg-type]
        "slots by form of record: 3 of full (8 MB), 4 of low (2.5 MB), 5 of half (4 MB)",
        "records in part (half) are charged, the model computes whole ones",
    ]
    costs.form_bytes, cache.form_pools = costs.form_bytes[:2], cache.form_pools[:2]
    assert said([whole, low], cache, costs) == [  # type: ignore[arg-type]
        "slots by form of record: 3 of full (8 MB), 4 of low (2.5 MB)"
    ]
    cache.forms = 1
    assert said([whole, low], cache, costs) == [  # type: ignore[arg-type]
        "each expert has one record, in a form of its own: 6 slots of 5 MB, as large as the "
        "largest record"
    ]


def test_a_stage_starts_with_loading_and_placing() -> None:
    """Seven experts are placed in 5 ns, after what loading them takes."""
    now = iter([100, 105])
    stage = object.__new__(Stage)
    stage.machine = SimpleNamespace(now_ns=lambda: next(now))  # type: ignore[assignment]
    stage.engine = SimpleNamespace(start=lambda: 7)  # type: ignore[assignment]
    stage.load_ns = lambda placed: 1000 * placed
    assert stage.start() == 7005


# ---------------------------------------------------------------------- building a simulation


class Built(NamedTuple):
    """What was built, by name, with what it was given; and the stage."""

    made: dict[str, tuple[Any, ...]]
    stage: Stage


def built(
    patch: pytest.MonkeyPatch, needs: dict[str, Any], given: dict[str, Any] | None = None,
    chosen: Any = None, from_disk: bool = False, most: int | None = None,
) -> Built:  # fmt: skip
    """Build a stage of which every part is the name of what it is."""
    made: dict[str, tuple[Any, ...]] = {}
    costs = SimpleNamespace(form_bytes=[80, 25, 40], record_bytes=80, name="costs")
    cache = SimpleNamespace(slots=7, slot_bytes=560, forms=1)
    machine = SimpleNamespace(host_memory=None)

    def note(name: str, answer: Any) -> None:
        def call(*args: Any, **more: Any) -> Any:
            made[name] = (*args, more) if more else args
            return answer

        patch.setattr(simulated, name, call)

    for name, answer in (
        ("cost_model", costs), ("Timeline", "timeline"), ("HostRecords", "records"),
        ("SimulatedMachine", machine), ("ExpertCache", cache), ("Engine", "engine"),
        ("loading_ns", 99), ("slots_by_form", [9, 4, 5]), ("used_forms", [1, 2]),
    ):  # fmt: skip
        note(name, answer)
    system = build("moe-ondemand")
    patch.setattr(type(system), "threads", needs.pop("threads", None))
    for name, value in needs.items():
        setattr(system, name, value)
    patch.setattr(type(system.place), "chosen_forms", lambda self, shape: chosen)
    patch.setattr(type(system), "most_slots", lambda self, full: most)
    of = spec(**given or {})
    capacity = SimpleNamespace(
        from_disk=from_disk, host="host", slots=12, device="device", homes="homes",
        streams_from_disk="streams",
    )  # fmt: skip
    shape = SimpleNamespace(moe_layers=range(3), num_experts=8)
    request = SimpleNamespace(
        spec=of, system=system, full="full", keep_timeline="keep", notes=["of the request"],
        model=lambda decoder: SimpleNamespace(shape=shape, given=decoder),
    )  # fmt: skip
    memory = Memory(capacity, load_profile("a6000"), ["of the memory"])  # type: ignore[arg-type]
    patch.setattr(Memory, "document", lambda self, *sizes: sizes)
    stage = SimulatedKind().build(request, memory, ExitStack())  # type: ignore[arg-type]
    return Built(made, stage)


def test_a_simulation_is_built_of_what_the_system_and_the_run_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs = {"pinned_copies": False, "parallel_reads": False, "overlap": False,
             "module_hooks": True, "expert_precision": "4bit", "host_experts": 6,
             "threads": 99, "prediction_python": False, "host_kernels": "ggml"}  # fmt: skip
    made, stage = built(monkeypatch, needs, {"routing": "drawn", "context": 5}, from_disk=True)
    profile, full, precision, more = made["cost_model"]
    assert (profile.name, full, precision) == ("a6000", "full", "bf16")
    assert more == {
        "expert_precision": "4bit", "pinned": False, "module_hooks": True, "fused_experts": False,
        "host": ("ggml", 6, 1.0), "prediction_python": False, "parallel_reads": False,
        "forms": (Form(),),
    }  # fmt: skip
    assert made["Timeline"] == ("keep",)
    assert made["HostRecords"] == ("host", 80, 6)
    costs, timeline, records, how = made["SimulatedMachine"]
    assert (costs.name, timeline, records) == ("costs", "timeline", "records")
    assert how == {"parallel_reads": False, "overlap": False, "blocking_copies": True}
    assert made["slots_by_form"] == ((Form(),), [80, 25, 40], 12)
    shape, *cached = made["ExpertCache"]
    assert cached == [9, "global", "device", 80, [(4, 25), (5, 40)], None]
    system, model, machine, _, *rest = made["Engine"]
    assert (type(system), model.given, model.shape) == (MoEOnDemand, None, shape)
    assert rest == ["timeline", "homes", "streams", 5]
    assert (stage.engine, stage.timeline, stage.device) == ("engine", "timeline", "device")
    assert (stage.machine, stage.host, stage.profile) == (machine, "host", profile)
    assert (stage.badge, stage.ran, stage.card) == (profile.badge, None, None)
    assert (stage.slots, stage.total, stage.memory) == (7, 24, (560, 80))
    assert stage.notes[0].startswith("simulated on a6000")
    assert stage.notes[-2:] == ["of the request", "of the memory"]
    assert stage.load_ns(3) == 99
    placed, costs, capacity, system, form = made["loading_ns"]
    assert (placed, costs.name, capacity.slots, type(system), form) == (
        3, "costs", 12, MoEOnDemand, 0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "precision", "experts", "rate"),
    [
        ({"expert_dtype": "int8"}, "bf16", "int8", 1.0),
        ({"quant": "q8_0"}, pytest.approx(8.5, rel=1e-3), 8.5, quantised("q8_0", "").rate),
        ({}, "bf16", None, 1.0),
    ],
)
def test_a_simulation_is_charged_the_runs_precision(
    given: dict[str, Any], precision: Any, experts: Any, rate: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    made, _ = built(monkeypatch, {}, given)
    *_, charged, more = made["cost_model"]
    assert (charged, more["expert_precision"]) == (precision, experts)
    assert more["host"] == ("unpacking", None, rate)
    assert "HostRecords" not in made
    assert made["SimulatedMachine"][2] is None


@pytest.mark.parametrize(("most", "slots"), [(None, 24), (10, 10), (99, 24)])
def test_slots_hold_the_largest_record_in_use(
    most: int | None, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the bytes of twelve whole records fit 24 of those of 40 bytes, the largest in use."""
    made, stage = built(monkeypatch, {}, chosen="chosen", most=most, from_disk=True)
    shape, *cached = made["ExpertCache"]
    assert made["used_forms"] == (shape, "chosen")
    assert cached == [slots, "global", "device", 40, [], "chosen"]
    assert made["HostRecords"][1] == 40
    stage.load_ns(1)
    assert made["loading_ns"][-1] == 2
    assert "slots_by_form" not in made
