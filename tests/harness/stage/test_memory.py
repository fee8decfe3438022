"""What a run's memory is counted from, and what is said of it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moebench.harness.run.rules import resolve
from moebench.harness.stage import memory
from moebench.harness.stage.memory import (
    Memory,
    Offer,
    check_common,
    count_memory,
    offer_of_setting,
)
from moebench.results.spec import RunSpec
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.memory.capacity import Capacity, Request, Room
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.catalogue import model_shape, quantised
from moebench.systems.options import build

MIXTRAL = model_shape("mixtral-8x7b")  # 32 layers of 8 experts
ROOM = Room("a card", 48 << 30, 1 << 30, 64 << 30)
PROFILE = load_profile("a6000")
Q8_OTHERS = pytest.approx(8.5, rel=1e-3)


def spec(**given: Any) -> RunSpec:
    return resolve(None, **{"system": "smoe", "model": "mixtral-8x7b", "machine": "a6000"} | given)


def capacity(**more: Any) -> Capacity:
    host = Tier("host", 64 << 30)
    return Capacity(
        **{
            "device": Tier("device", 48 << 30), "host": host, "offered_bytes": 700,
            "homes": ("device",) * 32, "common_bytes": 5, "slots": 9, "room": 12,
            "from_disk": False, "streams_from_disk": False, "overcommitted": False,
        } | more
    )  # fmt: skip


def test_a_document_holds_what_was_offered_and_what_slots_take() -> None:
    assert Memory(capacity(), None, []).document(90, 10) == {
        "offered_device_bytes": 700, "offered_host_bytes": 64 << 30, "expert_bytes": 10,
        "room_bytes": 120, "slot_bytes": 90,
    }  # fmt: skip


def test_a_setting_offers_the_memory_of_its_machine() -> None:
    assert offer_of_setting(spec(), raised=True) is None
    of_s1 = spec(setting="S1", machine="h100", software="hf-eager")
    for raised in (True, False):
        found = offer_of_setting(of_s1, raised)
        assert found is not None
        assert found.profile is not None
        assert (found.profile.name, found.profile.software.name) == ("rtx3080ti", "hf-eager")
        assert found.room == Room.of(load_profile("rtx3080ti"))
        assert found.raised is raised
    assert Offer(ROOM) == (ROOM, None, False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """What the planner is asked for; nothing fits."""
    found: list[Request] = []

    def plan(request: Request) -> Capacity:
        found.append(request)
        return capacity()

    monkeypatch.setattr(memory, "plan", plan)
    return found


def fields(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__slots__
            if not callable(getattr(request, name))}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "raised", "changed"),
    [
        ({}, False, {}),
        ({}, True, {"allow_overcommit": True}),
        ({"allow_overcommit": True}, False, {"allow_overcommit": True}),
        ({"precision": "4bit"}, False, {"precision": "4bit"}),
        ({"expert_dtype": "int8"}, False, {"expert_dtype": "int8"}),
        ({"cache_ratio": 0.5}, False, {"cache_ratio": 0.5}),
        ({"slots": 20}, False, {"slots": 20}),
        ({"device_memory_gib": 10.5}, False, {"device_bytes": 21 << 29}),
        ({"free_host_gb": 1.5}, False, {"free_host_bytes": 1_500_000_000}),
        ({"batch": 4}, False, {"texts": 4}),
        ({"routing": "drawn", "context": 100}, False, {"kv_tokens": 180}),
        # 8.5 bits, and 32 of the norms.
        ({"quant": "q8_0"}, False, {"precision": Q8_OTHERS, "expert_dtype": 8.5}),
    ],
)
def test_the_planner_is_told_the_runs_options(
    asked: list[Request], options: dict[str, Any], raised: bool, changed: dict[str, Any]
) -> None:
    system = build("moe-ondemand", {"host_experts": "7"})
    found = count_memory(spec(**options), system, MIXTRAL, 80, Offer(ROOM, PROFILE, raised))
    assert found.profile is PROFILE
    assert found.capacity.slots == 9
    (request,) = asked
    assert fields(request) == {
        "room": ROOM, "shape": MIXTRAL, "precision": "bf16", "kv_tokens": 80, "texts": 1,
        "expert_precision": None, "expert_dtype": None, "cache_ratio": None, "slots": None,
        "all_resident": False, "allow_overcommit": False, "device_bytes": None,
        "free_host_bytes": None, "own_bytes": 0, "host_experts": 7, "forms": system.forms,
        "chosen_forms": None, "kv_on_host": False,
    } | changed  # fmt: skip
    assert request.most_slots() is None
    assert request.kept(9) == 0


def test_the_planner_is_told_what_a_system_needs(asked: list[Request]) -> None:
    count_memory(spec(), build("gpu-only"), MIXTRAL, 80, Offer(ROOM))
    assert asked[-1].all_resident
    count_memory(spec(), build("moe-lightning"), MIXTRAL, 80, Offer(ROOM))
    assert asked[-1].kv_on_host
    stored = build("moe-ondemand", {"expert_precision": "4bit"})
    count_memory(spec(), stored, MIXTRAL, 80, Offer(ROOM))
    assert asked[-1].expert_precision == "4bit"
    for name, option in (("expert-dtype", "int8"), ("quant", "q8_0")):
        with pytest.raises(UsageError) as caught:
            count_memory(spec(**{name.replace("-", "_"): option}), stored, MIXTRAL, 80, Offer(ROOM))
        assert str(caught.value) == (
            f"--{name} {option} and expert_precision=4bit: both say what experts are stored as; "
            "add --set expert_precision=null"
        )


@pytest.mark.parametrize(
    ("options", "tokens"),
    [({"new_tokens": 30, "batch": 3}, 50 * 3), ({"scoring": "generation", "new_tokens": 30}, 80)],
)
def test_a_system_is_told_the_model_and_the_most_prompt_tokens(
    asked: list[Request], options: dict[str, Any], tokens: int
) -> None:
    system = build("smoe")
    said: list[Any] = []
    system.full_size = said.append  # type: ignore[method-assign]
    system.expect = lambda *given: said.append(given)  # type: ignore[method-assign]
    given = spec(**options)
    count_memory(given, system, MIXTRAL, 80, Offer(ROOM))
    assert said == [MIXTRAL, (tokens, given.batch)]


@pytest.mark.parametrize(
    ("options", "more", "system", "notes"),
    [
        ({}, {}, "moe-ondemand", []),
        ({}, {"slots": 256}, "moe-ondemand",
         ["nothing is offloaded: the device holds all 256 experts"]),
        ({}, {"slots": 256, "homes": ("device",) * 31 + ("host",)}, "moe-ondemand",
         ["common weights of 1 of 32 layers are on the host"]),
        ({}, {"overcommitted": True}, "moe-ondemand",
         ["overcommitted: a card cannot hold every expert"]),
        ({"machine": "local"}, {"overcommitted": True, "homes": ("host",) * 32}, "moe-ondemand",
         []),
        ({"expert_dtype": "int8"}, {}, "moe-ondemand",
         ["experts are charged as packed int8, 176.2 MB each instead of 352.3 in bf16"]),
        ({"expert_dtype": "int8", "machine": "local"}, {}, "moe-ondemand", []),
        ({"quant": "q8_0"}, {}, "moe-ondemand",
         ["weights are charged as q8_0: 8.5 bits each in routed experts, 8.501 in all others; the "
          "computation is not quantised"]),
        ({"setting": "D1", "model": "mixtral-8x7b"}, {}, "moe-ondemand",
         ["DAOP uses prompts of 256 tokens in D1; these keep their own lengths"]),
        ({"setting": "S3"}, {}, "moe-ondemand", []),
        ({}, {"homes": ("stream",) * 3 + ("host",) * 2 + ("device",) * 27}, "moe-ondemand",
         ["common weights of 3 of 32 layers are streamed to the device in every pass",
          "common weights of 2 of 32 layers are on the host"]),
        ({}, {"homes": ("stream",) * 32 + ("stream",), "streams_from_disk": True}, "moe-ondemand",
         ["common weights of 32 of 32 layers, and the head, are streamed from the disk to the "
          "device in every pass"]),
        ({}, {"homes": ("host",) + ("device",) * 31 + ("stream",)}, "moe-ondemand",
         ["common weights of 1 of 32 layers are on the host"]),
    ],
)  # fmt: skip
def test_notes_on_memory(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any], more: dict[str, Any], system: str, notes: list[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(memory, "plan", lambda request: capacity(**more))
    made = build(system)
    monkeypatch.setattr(type(made), "remarks", lambda self, full, slots: [f"slots: {slots}"])
    found = count_memory(spec(**options), made, MIXTRAL, 80, Offer(ROOM)).notes
    own = f"slots: {more.get('slots', 9)}"
    assert own in found
    assert [note for note in found if note != own] == notes


def test_the_kv_cache_of_divided_passes_is_in_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    held = capacity()
    held.host.reserve("KV cache", 1_234_567_890)
    monkeypatch.setattr(memory, "plan", lambda request: held)
    found = count_memory(spec(), build("moe-lightning"), MIXTRAL, 80, Offer(ROOM)).notes
    assert "the KV cache, 1.235 GB, is in host memory, where decode's attention reads it" in found


def test_the_bits_of_a_gguf_file_are_called_by_its_name() -> None:
    stored = quantised("q8_0", "mixtral-8x7b")
    assert stored is not None
    of = SimpleNamespace(model="a/file.gguf", quant=memory.OWN_BITS)
    assert memory._bits_note(of, stored).startswith(  # type: ignore[arg-type]
        "weights are charged as a/file.gguf: 8.5 bits"
    )


@pytest.mark.parametrize("free", [None, "as much", "less"])
def test_common_weights_must_fit_into_this_computers_memory(
    free: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = SimpleNamespace(common_params=1000)
    for dtype, size in ((torch.float32, 4000), (torch.bfloat16, 2000)):
        has = {None: None, "as much": size, "less": size - 1}[free]
        monkeypatch.setattr(memory, "available_bytes", lambda has=has: has)
        if free != "less":
            check_common(shape, dtype, "fp32")  # type: ignore[arg-type]
            continue
        with pytest.raises(BudgetError) as caught:
            check_common(shape, dtype, "a type")  # type: ignore[arg-type]
        assert str(caught.value) == (
            f"--machine local: common weights take {size / 1e9:.3g} GB in a type, this computer "
            f"has {(size - 1) / 1e9:.3g} GB of memory to spare; choose a smaller --model"
        )
